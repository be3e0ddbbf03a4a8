//! A progress bar on standard error.
//!
//! **Invariant:** draws only on a terminal; nothing is written to a pipe or a file.

use std::fmt::Write;
use std::io::IsTerminal as _;

use indicatif::{BinaryBytes, HumanDuration, ProgressBar, ProgressState, ProgressStyle};
use moeflux::step::StepProgress;

use crate::output::screen::device;

// With the longest figures, these have 80 columns: longer lines would leave remains on the screen.
const BYTES: &str = "{msg} [{bar:16}] {bytes} of {total_bytes}{rate}";
const STEPS: &str = "{msg} [{bar:16}] {pos} of {len}";
const TOKENS: &str = "{msg} [{bar:16}] {pos} of {len} tokens{left}";

/// A bar that is removed on drop, so that errors have a line of their own.
#[derive(Debug)]
pub(crate) struct Bar {
    bar: ProgressBar,
}

impl Bar {
    /// Creates a bar of bytes at zero; hidden if standard error is not a terminal.
    pub(crate) fn bytes(what: &str, total_bytes: u64) -> Self {
        Self::new(what, total_bytes, BYTES)
    }

    /// Creates a bar of bytes that starts at `done_bytes`; its rate counts from there.
    pub(crate) fn bytes_from(what: &str, total_bytes: u64, done_bytes: u64) -> Self {
        let bar = Self::bytes(what, total_bytes);
        bar.set(done_bytes);
        bar.bar.reset_eta();
        bar
    }

    /// Creates a bar of tokens at zero; hidden if standard error is not a terminal.
    pub(crate) fn tokens(what: &str, n_tokens: usize) -> Self {
        Self::new(what, n_tokens as u64, TOKENS)
    }

    /// Creates a bar of steps at zero; hidden if standard error is not a terminal.
    pub(crate) fn steps(what: &str, n_steps: usize) -> Self {
        Self::new(what, n_steps as u64, STEPS)
    }

    fn new(what: &str, total: u64, template: &str) -> Self {
        // A bar overwrites itself by escape sequences.
        if !std::io::stderr().is_terminal() || !device::shows_no_sequence() {
            return Self { bar: ProgressBar::hidden() };
        }
        let bar = ProgressBar::new(total);
        if let Ok(style) = ProgressStyle::with_template(template) {
            let style = style.with_key("rate", rate).with_key("left", left);
            bar.set_style(style.progress_chars("=> "));
        }
        bar.set_message(what.to_owned());
        Self { bar }
    }

    /// Advances the bar by `n`.
    pub(crate) fn add(&self, n: u64) {
        self.bar.inc(n);
    }

    /// Sets the position of the bar.
    pub(crate) fn set(&self, n_done: u64) {
        self.bar.set_position(n_done);
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// Writes bytes per second and the remaining time, once there is a rate.
fn rate(state: &ProgressState, line: &mut dyn Write) {
    if state.pos() > 0 {
        // After an error, the next update draws it again.
        let _ = write!(line, ", {}/s", BinaryBytes(whole(state.per_sec())));
        left(state, line);
    }
}

fn left(state: &ProgressState, line: &mut dyn Write) {
    if state.pos() > 0 {
        let _ = write!(line, ", {:#} left", HumanDuration(state.eta()));
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "for display")]
fn whole(rate: f64) -> u64 {
    rate as u64
}

/// Returns the tokens that are done, with tokens in progress counted by the layers completed.
pub(crate) fn tokens_done(progress: StepProgress) -> u64 {
    let passed = progress.n_rows_now * progress.n_layers_done / progress.n_layers.max(1);
    (progress.n_rows_done + passed) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_that_is_wrong_would_be_ignored_silently() {
        for template in [BYTES, STEPS, TOKENS] {
            assert!(ProgressStyle::with_template(template).is_ok());
        }
    }

    #[test]
    fn tokens_under_way_count_by_layers() {
        let progress = StepProgress {
            n_rows_done: 256,
            n_rows_now: 44,
            n_rows: 300,
            n_layers_done: 3,
            n_layers: 6,
        };
        assert_eq!(tokens_done(progress), 256 + 22);
        assert_eq!(tokens_done(StepProgress { n_rows_done: 0, n_rows_now: 256, ..progress }), 128);
    }
}
