//! A progress bar on stderr, if stderr is a terminal.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Bytes done of bytes in all.
#[derive(Debug)]
pub(crate) struct ByteBar(ProgressBar);

impl ByteBar {
    /// An empty bar with a word in front. Off a terminal it draws nothing.
    pub(crate) fn new(label: &'static str) -> Self {
        let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr());
        let style = "{msg} [{bar:30}] {bytes} of {total_bytes}, {binary_bytes_per_sec}, {eta} left";
        let style = ProgressStyle::with_template(style).expect("the template is a constant");
        bar.set_style(style.progress_chars("=> "));
        bar.set_message(label);
        Self(bar)
    }

    /// How far it is.
    pub(crate) fn set(&mut self, done_bytes: u64, total_bytes: u64) {
        self.0.set_length(total_bytes);
        self.0.set_position(done_bytes);
    }

    /// Takes the bar away.
    pub(crate) fn finish(&self) {
        self.0.finish_and_clear();
    }
}
