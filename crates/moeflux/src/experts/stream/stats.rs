//! Statistics of streaming: counted as it runs, summed up on request.

use std::time::Duration;

use tracing::Level;

use crate::experts::predict::{Quality, StepCost};
use crate::experts::stream::{ExpertStream, GUESS_BYTES};

/// What streaming has done since the model was opened.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StreamStats {
    /// Experts that fit in memory, including a device's own.
    pub n_slots: usize,
    /// Bytes of one slot.
    pub slot_bytes: usize,
    /// Experts of the model.
    pub n_experts: usize,
    /// Experts that were in memory when they were requested.
    pub hits: u64,
    /// Hits in a device's own memory.
    pub device_hits: u64,
    /// Experts whose read was under way when they were requested.
    pub on_their_way: u64,
    /// Experts whose read began when they were requested.
    pub misses: u64,
    /// Experts read as guesses.
    pub guesses: u64,
    /// Guessed experts that were requested later.
    pub guesses_used: u64,
    /// Bytes read on demand.
    pub demand_bytes: u64,
    /// Bytes read as guesses and not yet requested when they were read.
    pub guess_bytes: u64,
    /// Records read again because their checksum was wrong.
    pub rereads: u64,
    /// Failed reads that were repeated.
    pub retries: u64,
    /// Time for which computing waited for reads.
    pub read_wait: Duration,
    /// Time with a read in flight, on the busier drive.
    pub read_busy: Duration,
    /// Time spent comparing checksums or searching for NaN.
    pub check: Duration,
    /// Time spent running the next layers' routers.
    pub ask: Duration,
    /// Interface used for reading: `io_uring`, `threads`.
    pub drive: &'static str,
    /// Quality of guesses in the last window of lookahead.
    pub ahead: Quality,
}

impl StreamStats {
    /// Returns what was done since `before`, taken earlier from the same engine.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        Self {
            hits: self.hits - before.hits,
            device_hits: self.device_hits - before.device_hits,
            on_their_way: self.on_their_way - before.on_their_way,
            misses: self.misses - before.misses,
            guesses: self.guesses - before.guesses,
            guesses_used: self.guesses_used - before.guesses_used,
            demand_bytes: self.demand_bytes - before.demand_bytes,
            guess_bytes: self.guess_bytes - before.guess_bytes,
            rereads: self.rereads - before.rereads,
            retries: self.retries - before.retries,
            read_wait: self.read_wait.saturating_sub(before.read_wait),
            read_busy: self.read_busy.saturating_sub(before.read_busy),
            check: self.check.saturating_sub(before.check),
            ask: self.ask.saturating_sub(before.ask),
            ..self.clone()
        }
    }

    /// Returns the bytes read.
    #[must_use]
    pub fn read_bytes(&self) -> u64 {
        self.demand_bytes + self.guess_bytes
    }

    /// Returns the bytes per second while something was being read.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "for display")]
    pub fn read_bytes_per_s(&self) -> Option<f64> {
        let is_known = !self.read_busy.is_zero();
        is_known.then(|| self.read_bytes() as f64 / self.read_busy.as_secs_f64())
    }
}

/// Measurements of the current step, by which lookahead is judged.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct StepMeter {
    pub(super) asked_at: Duration,
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
    read_wait: Duration,
}

impl ExpertStream {
    /// Begins a step.
    pub(in crate::experts) fn begin_step(&mut self, n_rows: usize, is_small: bool) {
        self.end_step();
        if tracing::enabled!(Level::DEBUG) {
            self.report();
        }
        self.follow_pressure();
        self.table.begin_step(n_rows);
        let guess_bytes = if is_small { GUESS_BYTES } else { usize::MAX };
        self.loader.set_prefetch_bytes_max(guess_bytes);
        self.stats.ask += self.prefetch.step.ask;
        self.prefetch.step = StepMeter {
            began_at: self.clock.now(),
            is_small,
            read_wait: self.stats.read_wait,
            ..StepMeter::default()
        };
    }

    /// Logs the totals so far: one event per step, none per read.
    fn report(&self) {
        let StreamStats { hits, misses, demand_bytes, guess_bytes, retries, rereads, .. } =
            self.stats();
        tracing::debug!(hits, misses, demand_bytes, guess_bytes, retries, rereads, "reads so far");
    }

    fn end_step(&mut self) {
        let Some(look_ahead) = &mut self.prefetch.look_ahead else { return };
        let step = &self.prefetch.step;
        if !step.is_small {
            return;
        }
        let record_ns = record_ns(self.memory.slot_bytes(), self.loader.speed());
        look_ahead.end_step(&StepCost {
            n_ready: step.n_ready,
            n_on_their_way: step.n_on_their_way,
            n_wasted: step.n_wasted,
            record_ns,
            ask_ns: nanoseconds(step.ask),
            delay_ns: step.n_in_the_way * record_ns / 2,
            wait_ns: nanoseconds(self.stats.read_wait.saturating_sub(step.read_wait)),
            step_ns: nanoseconds(self.clock.now().saturating_sub(step.began_at)),
        });
    }

    /// Returns the time for which computing waited for reads so far.
    pub(in crate::experts) fn read_wait(&self) -> Duration {
        self.stats.read_wait
    }

    /// Returns the statistics so far.
    #[must_use]
    pub fn stats(&self) -> StreamStats {
        let table = self.table.counters();
        let loader = self.loader.counts();
        let n_experts = self.banks.iter().map(|bank| bank.bank.n_experts).sum();
        let [first, second] = loader.lanes;
        StreamStats {
            n_slots: self.table.n_slots() + self.device_cache.n_slots(),
            slot_bytes: self.memory.slot_bytes(),
            n_experts,
            hits: table.hits + self.device_cache.hits,
            device_hits: self.device_cache.hits,
            on_their_way: table.on_their_way,
            misses: table.misses,
            guesses: table.guesses,
            guesses_used: table.guesses_used,
            demand_bytes: loader.demand_bytes,
            guess_bytes: loader.prefetch_bytes,
            retries: loader.n_retries,
            read_busy: first.busy.max(second.busy),
            ask: self.stats.ask + self.prefetch.step.ask,
            drive: self.loader.drive_names().next().unwrap_or(""),
            ahead: self.prefetch.look_ahead.as_ref().map(|it| it.quality()).unwrap_or_default(),
            ..self.stats.clone()
        }
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
fn record_ns(n_bytes: usize, speed: f64) -> u64 {
    let speed = if speed > 0.0 { speed } else { 1e9 };
    (n_bytes as f64 / speed * 1e9) as u64
}
