//! Progress of a download or check: a bar on a terminal, and occasional lines elsewhere.

use std::io::IsTerminal as _;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use moeflux::ByteCount;
use moeflux_hub::PullProgress;

use crate::output::print;
use crate::output::progress::Bar;
use crate::system::clock;

/// Interval between lines if there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(30);

/// Shows the progress of a download or of a check.
#[derive(Debug)]
pub(super) struct DownloadProgress {
    /// Label of the bar: the current activity.
    doing: &'static str,
    /// Label of a line: the completed activity.
    done: &'static str,
    bar: Option<Bar>,
    /// Time and amount of the last printed line.
    line: Option<(Instant, u64)>,
    said_waiting: bool,
}

impl DownloadProgress {
    pub(super) fn downloading() -> Self {
        Self::new("downloading", "downloaded")
    }

    pub(super) fn checking() -> Self {
        Self::new("checking", "checked")
    }

    fn new(doing: &'static str, done: &'static str) -> Self {
        Self { doing, done, bar: None, line: None, said_waiting: false }
    }

    pub(super) fn watch(&mut self, progress: PullProgress) -> ControlFlow<()> {
        let PullProgress { total_bytes, done_bytes, is_waiting, .. } = progress;
        if is_waiting && !self.said_waiting {
            self.said_waiting = true;
            print::stderr_line(
                "another process is downloading some of these files: waiting for it",
            );
        }
        if std::io::stderr().is_terminal() {
            let new = || Bar::bytes_from(self.doing, total_bytes, done_bytes);
            self.bar.get_or_insert_with(new).set(done_bytes);
        } else {
            self.line(total_bytes, done_bytes);
        }
        // Ctrl-C stops the download itself.
        ControlFlow::Continue(())
    }

    fn line(&mut self, total_bytes: u64, done_bytes: u64) {
        let now = clock::instant();
        let (before, before_bytes) = *self.line.get_or_insert((now, done_bytes));
        let time = now.duration_since(before);
        if time < LINE_EVERY {
            return;
        }
        self.line = Some((now, done_bytes));
        print::stderr_line(&format!(
            "{} {}",
            self.done,
            text(total_bytes, done_bytes, done_bytes.saturating_sub(before_bytes), time)
        ));
    }
}

fn text(total_bytes: u64, done_bytes: u64, recent_bytes: u64, time: Duration) -> String {
    let millis = u64::try_from(time.as_millis()).unwrap_or(u64::MAX).max(1);
    let rate = recent_bytes.saturating_mul(1000) / millis;
    let left = total_bytes.saturating_sub(done_bytes).checked_div(rate);
    let left = left.map_or("time unknown".to_owned(), |seconds| match seconds {
        ..120 => format!("{seconds} s left"),
        120..7200 => format!("{} min left", seconds / 60),
        _ => format!("{} h left", seconds / 3600),
    });
    let [done, total, rate] = [done_bytes, total_bytes, rate].map(|it| ByteCount(it).rounded());
    format!("{done} of {total}, {rate}/s, {left}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_states_progress_speed_and_time_left() {
        let check = |done, recent, expected: &str| {
            let text = text(20_000_000_000, done, recent, Duration::from_secs(30));
            assert_eq!(text, expected);
        };
        let slow = "2.00 GB of 20.00 GB, 10.00 MB/s, 30 min left";
        check(2_000_000_000, 300_000_000, slow);
        let fast = "19.00 GB of 20.00 GB, 100.00 MB/s, 10 s left";
        check(19_000_000_000, 3_000_000_000, fast);
        check(0, 0, "0 bytes of 20.00 GB, 0 bytes/s, time unknown");
    }
}
