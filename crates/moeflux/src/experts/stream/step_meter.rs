//! Measures the gain and the cost of a step's guesses, by which lookahead is judged.

use std::time::Duration;

use crate::experts::predict::StepCost;

/// Measurements of the current step.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct StepMeter {
    /// When the next layer's router began to run.
    pub(super) asked_at: Duration,
    /// Time spent running the next layers' routers.
    pub(super) ask: Duration,
    /// Right guesses that were in memory when they were requested.
    pub(super) n_ready: u64,
    /// Right guesses that were being read then.
    pub(super) n_on_their_way: u64,
    /// Wrong guesses that were in memory.
    pub(super) n_wasted: u64,
    /// Wrong guesses that were being read.
    pub(super) n_in_the_way: u64,
    began_at: Duration,
    /// Whether it is a step of few rows or of decoding; `false` before the first step.
    is_small: bool,
    /// Time for which computing had waited for reads before the step.
    read_wait: Duration,
}

impl StepMeter {
    /// Begins a step at `now`; computing waited for `read_wait` before it.
    pub(super) fn begin(is_small: bool, now: Duration, read_wait: Duration) -> Self {
        Self { began_at: now, is_small, read_wait, ..Self::default() }
    }

    /// Returns the cost of the step that ends at `now`; `None` if it was not a small one. An expert
    /// takes `record_ns` to read, and computing has waited for `read_wait` so far.
    pub(super) fn cost(
        &self,
        now: Duration,
        read_wait: Duration,
        record_ns: u64,
    ) -> Option<StepCost> {
        self.is_small.then(|| StepCost {
            n_ready: self.n_ready,
            n_on_their_way: self.n_on_their_way,
            n_wasted: self.n_wasted,
            record_ns,
            ask_ns: nanoseconds(self.ask),
            delay_ns: self.n_in_the_way * record_ns / 2,
            wait_ns: nanoseconds(read_wait.saturating_sub(self.read_wait)),
            step_ns: nanoseconds(now.saturating_sub(self.began_at)),
        })
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Returns the time to read one expert at `speed` bytes per second; 1e9 where that is not known.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "an estimate"
)]
pub(super) fn record_ns(n_bytes: usize, speed: f64) -> u64 {
    let speed = if speed > 0.0 { speed } else { 1e9 };
    (n_bytes as f64 / speed * 1e9) as u64
}
