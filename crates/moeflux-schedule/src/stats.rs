//! Counters of a scheduler's work, for people and dashboards.
//!
//! **Invariant:** tokens are counted when the engine's step with them is done, not when a client
//! reads them.

use std::time::Duration;

use moeflux::stats::{RowStats, StreamStats, TierStats};
use moeflux::{Finish, Memory, SessionRoom};
use moeflux_prefix::StoreCounts;

use crate::found::PromptOutcome;
use crate::job::DropReason;

/// Upper bounds in seconds: from a token in memory to a long prompt read from a drive.
const SECONDS: [f64; 20] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0,
    30.0, 60.0, 300.0, 900.0, 3600.0,
];

/// Upper bounds in tokens.
const TOKENS: [f64; 16] = [
    1.0, 4.0, 16.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0, 32768.0,
    65536.0, 131_072.0, 262_144.0,
];

/// The work that a scheduler has done, and its current load.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Stats {
    /// Jobs whose prompt is being read or that are being answered.
    pub n_running: usize,
    /// Jobs that wait.
    pub n_waiting: usize,
    /// Answers that are parked because their clients take no tokens.
    pub n_parked: usize,
    /// Sessions that are kept for prompts that continue them.
    pub n_kept: usize,
    /// Bytes of kept sessions.
    pub kept_bytes: u64,
    /// Kept sessions that were dropped, in the order of [`DropReason::ALL`].
    pub n_dropped: [u64; DropReason::ALL.len()],
    /// Prompts that continue a session that was dropped, in the same order.
    pub n_missed: [u64; DropReason::ALL.len()],
    /// Prompts that were looked up, by what they found, in the order of [`PromptOutcome::ALL`].
    pub n_outcomes: [u64; PromptOutcome::ALL.len()],
    /// What the folder of saved conversations has, and what was done there; `None` without one.
    pub saved: Option<StoreCounts>,
    /// Bytes that all sessions take, and their limit.
    pub room: SessionRoom,
    /// Tokens of all prompts that were begun.
    pub n_prompt_tokens: u64,
    /// The tokens among them that needed no computation.
    pub n_cached_tokens: u64,
    /// The tokens among those that were loaded from a drive; a session held the others.
    pub n_cached_drive_tokens: u64,
    /// Tokens of answers.
    pub n_answer_tokens: u64,
    /// The tokens among them that a mask forced after another.
    pub n_forced_tokens: u64,
    /// Answers that the model ended.
    pub n_ended: u64,
    /// Answers that a stop string ended.
    pub n_stopped: u64,
    /// Answers that reached their token limit or the end of the context.
    pub n_cut: u64,
    /// Answers that were cancelled.
    pub n_cancelled: u64,
    /// Answers that failed.
    pub n_failed: u64,
    /// Jobs that were refused.
    pub n_refused: u64,
    /// Steps of answers.
    pub n_steps: u64,
    /// Seconds that jobs waited in the queue.
    pub queued: Histogram,
    /// Seconds from submission to the first token.
    pub first_token: Histogram,
    /// Seconds between tokens.
    pub between_tokens: Histogram,
    /// Seconds from the beginning of a prompt to the first token.
    pub prompt: Histogram,
    /// Seconds from the first token to the last.
    pub answer: Histogram,
    /// Seconds from submission to the last token.
    pub whole: Histogram,
    /// Tokens per prompt.
    pub prompt_tokens: Histogram,
    /// Tokens per answer.
    pub answer_tokens: Histogram,
    /// Number of times that the model was loaded.
    pub n_loads: u64,
    /// Number of times that the model was unloaded, because it was idle, its files changed or a
    /// step failed.
    pub n_unloads: u64,
    /// Memory use of the model; `None` while it is not loaded.
    pub memory: Option<Memory>,
    /// Reads from drives; `None` while all experts are in memory or no model is open.
    pub stream: Option<StreamStats>,
    /// Rows of tables; `None` if the model has no tables or is not open.
    pub rows: Option<RowStats>,
    /// Experts in a GPU's memory and in the host's; `None` where no GPU divides them, or no model
    /// is open.
    pub tiers: Option<TierStats>,
}

impl Default for Stats {
    fn default() -> Self {
        let seconds = || Histogram::new(&SECONDS);
        let tokens = || Histogram::new(&TOKENS);
        Self {
            n_running: 0,
            n_waiting: 0,
            n_parked: 0,
            n_kept: 0,
            kept_bytes: 0,
            n_dropped: [0; DropReason::ALL.len()],
            n_missed: [0; DropReason::ALL.len()],
            n_outcomes: [0; PromptOutcome::ALL.len()],
            saved: None,
            room: SessionRoom::default(),
            n_prompt_tokens: 0,
            n_cached_tokens: 0,
            n_cached_drive_tokens: 0,
            n_answer_tokens: 0,
            n_forced_tokens: 0,
            n_ended: 0,
            n_stopped: 0,
            n_cut: 0,
            n_cancelled: 0,
            n_failed: 0,
            n_refused: 0,
            n_steps: 0,
            queued: seconds(),
            first_token: seconds(),
            between_tokens: seconds(),
            prompt: seconds(),
            answer: seconds(),
            whole: seconds(),
            prompt_tokens: tokens(),
            answer_tokens: tokens(),
            n_loads: 0,
            n_unloads: 0,
            memory: None,
            stream: None,
            rows: None,
            tiers: None,
        }
    }
}

impl Stats {
    /// Counts a load of the model.
    pub(crate) fn count_load(&mut self, memory: Memory) {
        self.n_loads += 1;
        self.memory = Some(memory);
    }

    /// Counts an unload of the model and resets the counters of its kept sessions and reads.
    pub(crate) fn count_unload(&mut self) {
        self.n_unloads += 1;
        (self.memory, self.stream, self.tiers, self.rows) = (None, None, None, None);
        self.room = SessionRoom::default();
        (self.n_kept, self.kept_bytes) = (0, 0);
    }

    /// Counts an answer that ended.
    pub(crate) fn count_end(&mut self, finish: Finish) {
        let count = match finish {
            Finish::EndToken => &mut self.n_ended,
            Finish::StopString => &mut self.n_stopped,
            Finish::Cancelled => &mut self.n_cancelled,
            _ => &mut self.n_cut,
        };
        *count += 1;
    }
}

/// A distribution of values over fixed buckets.
#[derive(Clone, Debug)]
pub struct Histogram {
    bounds: &'static [f64],
    /// One count for each bound, and one for values above the last.
    counts: Vec<u64>,
    sum: f64,
}

impl Histogram {
    fn new(bounds: &'static [f64]) -> Self {
        Self { bounds, counts: vec![0; bounds.len() + 1], sum: 0.0 }
    }

    pub(crate) fn add(&mut self, value: f64) {
        let place = self.bounds.partition_point(|bound| *bound < value);
        self.counts[place] += 1;
        self.sum += value;
    }

    pub(crate) fn add_time(&mut self, time: Duration) {
        self.add(time.as_secs_f64());
    }

    #[expect(clippy::cast_precision_loss, reason = "numbers of tokens are small")]
    pub(crate) fn add_count(&mut self, count: usize) {
        self.add(count as f64);
    }

    /// Returns each upper bound with the number of values at most as large. The last bound is
    /// infinite.
    pub fn buckets(&self) -> impl Iterator<Item = (f64, u64)> {
        let bounds = self.bounds.iter().copied().chain([f64::INFINITY]);
        bounds.zip(&self.counts).scan(0, |below, (bound, count)| {
            *below += count;
            Some((bound, *below))
        })
    }

    /// Returns the number of values.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Returns the mean, or `None` without values.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "an average")]
    pub fn mean(&self) -> Option<f64> {
        let count = self.count();
        (count > 0).then(|| self.sum / count as f64)
    }

    /// Returns the sum of the values.
    #[must_use]
    pub fn sum(&self) -> f64 {
        self.sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_counted_up_to_each_bound() {
        let mut histogram = Histogram::new(&[1.0, 4.0]);
        [0.5, 1.0, 2.0, 9.0].into_iter().for_each(|value| histogram.add(value));
        let found: Vec<_> = histogram.buckets().collect();
        assert_eq!(found, [(1.0, 2), (4.0, 3), (f64::INFINITY, 4)]);
        assert_eq!(histogram.count(), 4);
        assert!((histogram.sum() - 12.5).abs() < 1e-12);
    }
}
