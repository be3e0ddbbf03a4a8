//! A bar of bytes on standard error.
//!
//! **Invariant:** draws only where a person looks: into a pipe or a file nothing is written.

use std::io::IsTerminal as _;

use indicatif::{ProgressBar, ProgressStyle};

const TEMPLATE: &str = "{msg} [{bar:30}] {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left";

/// A bar of bytes. Removes itself when dropped, so that errors stand on a line of their own.
#[derive(Debug)]
pub(crate) struct BytesBar {
    bar: ProgressBar,
}

impl BytesBar {
    /// A bar at zero; hidden where standard error is no terminal.
    pub(crate) fn new(what: &str, total_bytes: u64) -> Self {
        if !std::io::stderr().is_terminal() {
            return Self { bar: ProgressBar::hidden() };
        }
        let bar = ProgressBar::new(total_bytes);
        if let Ok(style) = ProgressStyle::with_template(TEMPLATE) {
            bar.set_style(style.progress_chars("=> "));
        }
        bar.set_message(what.to_owned());
        Self { bar }
    }

    /// So many bytes more are done.
    pub(crate) fn add(&self, n_bytes: u64) {
        self.bar.inc(n_bytes);
    }

    /// So many bytes are done in all.
    pub(crate) fn set(&self, done_bytes: u64) {
        self.bar.set_position(done_bytes);
    }
}

impl Drop for BytesBar {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_that_is_wrong_would_be_ignored_silently() {
        assert!(ProgressStyle::with_template(TEMPLATE).is_ok());
    }
}
