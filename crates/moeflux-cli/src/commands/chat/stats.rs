//! Statistics of an answer: a line below it, and a longer form.
//!
//! **Invariant:** the line is never wider than the terminal or 80 columns: parts that do not fit
//! are dropped from its end.

use std::time::{Duration, Instant};

use moeflux::stats::StreamStats;
use moeflux_io::process_memory_bytes;
use moeflux_schedule::{Missed, Stats};

use crate::output::fold::labelled;
use crate::output::size::binary;
use crate::stats::rate;
use crate::stats::streaming;
use crate::system::clock;

/// Upper bound on the width of the line.
const N_COLUMNS_MAX: usize = 80;

/// The statistics of an answer.
#[derive(Clone, Debug)]
pub(crate) struct AnswerStats {
    asked: Instant,
    /// The time of the first token and of the last.
    first: Option<Instant>,
    last: Option<Instant>,
    pub(crate) n_prompt_tokens: usize,
    pub(crate) n_cached_tokens: usize,
    pub(crate) n_cached_drive_tokens: usize,
    /// The cached part of the conversation that was dropped.
    pub(crate) missed: Option<Missed>,
    n_tokens: usize,
    before: Option<StreamStats>,
    stream: Option<StreamStats>,
    /// Whether the model has no experts.
    is_dense: bool,
}

impl AnswerStats {
    /// Starts the measurement, for a prompt of this length.
    pub(crate) fn begin(n_prompt_tokens: usize, stats: &Stats) -> Self {
        Self {
            asked: clock::instant(),
            first: None,
            last: None,
            n_prompt_tokens,
            n_cached_tokens: 0,
            n_cached_drive_tokens: 0,
            missed: None,
            n_tokens: 0,
            before: stats.stream.clone(),
            stream: None,
            is_dense: is_dense(stats),
        }
    }

    /// Records a token.
    pub(crate) fn token(&mut self) {
        let now = clock::instant();
        self.first.get_or_insert(now);
        self.last = Some(now);
        self.n_tokens += 1;
    }

    /// Records the end of the answer.
    pub(crate) fn end(&mut self, stats: &Stats) {
        let before = self.before.take().unwrap_or_default();
        self.is_dense = is_dense(stats);
        self.stream = stats.stream.as_ref().map(|stream| stream.since(&before));
    }

    /// Returns the number of tokens of the prompt and the answer.
    pub(crate) fn n_context_tokens(&self) -> usize {
        self.n_prompt_tokens + self.n_tokens
    }

    /// Returns the line for a terminal of this width.
    pub(crate) fn line(&self, n_columns: usize) -> String {
        let mut parts = Vec::new();
        parts.extend(self.tokens_per_s().map(|rate| format!("{rate:.1} tokens/s")));
        match &self.stream {
            Some(stream) => {
                parts.push(format!("{} read", binary(stream.read_bytes())));
                let what = if stream.are_layers { "layers" } else { "experts" };
                parts.extend(share(stream).map(|share| format!("{share} of {what} in memory")));
            }
            None if self.is_dense => parts.push("all weights in memory".to_owned()),
            None => parts.push("all experts in memory".to_owned()),
        }
        parts.extend(process_memory_bytes().map(|bytes| format!("{} used", binary(bytes))));
        joined(parts, n_columns.min(N_COLUMNS_MAX))
    }

    /// Returns the longer form.
    pub(crate) fn lines(&self, context: usize) -> Vec<String> {
        let seconds = |time: Option<Duration>| {
            time.map_or("-".to_owned(), |time| format!("{:.2}", time.as_secs_f64()))
        };
        let per_s = self.tokens_per_s().map_or("-".to_owned(), |rate| format!("{rate:.1}"));
        let from_drive = match self.n_cached_drive_tokens {
            0 => String::new(),
            n_tokens => format!(" ({n_tokens} from the drive)"),
        };
        let mut lines = vec![
            format!(
                "prompt    {} tokens, {} of them cached{from_drive}; {} s to the first token",
                self.n_prompt_tokens,
                self.n_cached_tokens,
                seconds(self.first.map(|first| first.duration_since(self.asked)))
            ),
            format!("answer    {} tokens, {per_s} tokens/s", self.n_tokens),
            format!("context   {} of {context} tokens", self.n_context_tokens()),
        ];
        lines.extend(self.missed.map(|Missed { n_tokens, reason }| {
            format!("dropped   {n_tokens} kept tokens: {}", reason.text())
        }));
        lines.extend(process_memory_bytes().map(|bytes| format!("memory    {}", binary(bytes))));
        lines.extend(self.stream.iter().flat_map(streaming::lines));
        lines.iter().flat_map(|line| labelled(line)).collect()
    }

    /// Returns the rate of generation. The first token comes with the prompt, so only later tokens
    /// count as steps.
    fn tokens_per_s(&self) -> Option<f64> {
        let (first, last) = self.first.zip(self.last)?;
        rate(self.n_tokens - 1, last.duration_since(first))
    }
}

/// Returns the share of requested experts that were in memory, rounded down.
fn share(stream: &StreamStats) -> Option<String> {
    let n_asked = stream.hits + stream.on_their_way + stream.misses;
    stream.hits.saturating_mul(100).checked_div(n_asked).map(|share| format!("{share} %"))
}

fn joined(parts: Vec<String>, n_columns: usize) -> String {
    let mut line = String::new();
    for part in parts {
        let comma = if line.is_empty() { "" } else { ", " };
        // The last column stays free: some terminals wrap as soon as it is filled.
        if line.len() + comma.len() + part.len() >= n_columns {
            break;
        }
        line = line + comma + &part;
    }
    line
}

fn is_dense(stats: &Stats) -> bool {
    stats.memory.is_some_and(|memory| memory.expert_bytes == 0)
}

#[cfg(test)]
mod tests {
    use moeflux_schedule::DropReason;

    use super::*;

    #[test]
    fn parts_that_do_not_fit_are_left_out() {
        let parts = || vec!["12.5 tokens/s".to_owned(), "1.2 GB read".to_owned()];
        assert_eq!(joined(parts(), 80), "12.5 tokens/s, 1.2 GB read");
        assert_eq!(joined(parts(), 27), "12.5 tokens/s, 1.2 GB read");
        assert_eq!(joined(parts(), 26), "12.5 tokens/s");
        assert_eq!(joined(parts(), 13), "");
    }

    #[test]
    fn the_longest_line_fits_a_terminal() {
        let stream = StreamStats {
            hits: 9999,
            misses: 1,
            demand_bytes: u64::MAX / 1000,
            ..StreamStats::default()
        };
        let now = clock::instant();
        let stats = AnswerStats {
            asked: now,
            first: Some(now),
            last: Some(now + Duration::from_secs(1)),
            n_prompt_tokens: 9,
            n_cached_tokens: 8,
            n_cached_drive_tokens: 0,
            missed: Some(Missed { n_tokens: 7, reason: DropReason::Answers }),
            n_tokens: 10_001,
            before: None,
            stream: Some(stream),
            is_dense: false,
        };
        let line = stats.line(200);
        assert!(line.starts_with("10000.0 tokens/s, "), "{line}");
        assert!(line.contains("99 % of experts in memory") && line.len() < 80, "{line}");
        assert!(stats.line(40).len() < 40);
        let lines = stats.lines(4096);
        assert_eq!(lines[0], "prompt    9 tokens, 8 of them cached; 0.00 s to the first token");
        assert_eq!(lines[2], "context   10010 of 4096 tokens");
        assert_eq!(lines[3], "dropped   7 kept tokens: running answers needed the memory");
        let lines = AnswerStats { n_cached_drive_tokens: 5, ..stats }.lines(4096);
        assert!(lines[0].starts_with("prompt    9 tokens, 8 of them cached (5 from the drive);"));
    }
}
