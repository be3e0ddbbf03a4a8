//! Statistics of streaming: counted as it runs, summed up on request.

use std::time::Duration;

use crate::experts::predict::Quality;
use crate::experts::stream::ExpertStream;
use crate::experts::times::{StepTimes, StreamTotals};
use crate::experts::uses::LayerExperts;

/// What streaming has done since the model was opened.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StreamStats {
    /// Experts that fit in memory, including a device's own.
    pub n_slots: usize,
    /// Bytes of one slot.
    pub slot_bytes: usize,
    /// Experts of the model.
    pub n_experts: usize,
    /// Whether these are the feed-forwards of a dense model's layers.
    pub are_layers: bool,
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
    /// Returns the differences from `before`, taken earlier from the same engine.
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

    /// Logs the totals so far: one event per step, none per read.
    pub(super) fn report(&self) {
        let Self { hits, misses, demand_bytes, guess_bytes, retries, rereads, .. } = *self;
        tracing::debug!(hits, misses, demand_bytes, guess_bytes, retries, rereads, "reads so far");
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

impl ExpertStream {
    /// Returns the experts of each layer, with their uses.
    pub(in crate::experts) fn layers(&self) -> Vec<LayerExperts> {
        let Self { slots, device_cache, uses, .. } = self;
        uses.layers(|layer, expert| {
            let slot = slots.table.slot_of(layer, expert);
            slot.is_some_and(|slot| slots.is_ready(slot)) || device_cache.has(layer, expert)
        })
    }

    /// Returns the times of the last step of an answer.
    pub(in crate::experts) fn step_times(&self) -> Option<StepTimes> {
        self.times.last()
    }

    /// Returns totals at `now`.
    pub(super) fn totals(&self, now: Duration) -> StreamTotals {
        let table = self.slots.table.counters();
        StreamTotals {
            now,
            read_wait: self.read_wait,
            n_found: table.hits + self.device_cache.hits,
            n_read: table.misses + table.on_their_way,
        }
    }

    /// Returns the statistics so far.
    #[must_use]
    pub fn stats(&self) -> StreamStats {
        let Self { files, slots, reads, prefetch, device_cache, .. } = self;
        let table = slots.table.counters();
        let loader = reads.loader.counts();
        let [first, second] = loader.lanes;
        StreamStats {
            n_slots: slots.table.n_slots() + device_cache.n_slots(),
            slot_bytes: slots.slot_bytes(),
            n_experts: files.n_experts(),
            are_layers: files.are_read_in_turn(),
            hits: table.hits + device_cache.hits,
            device_hits: device_cache.hits,
            on_their_way: table.on_their_way,
            misses: table.misses,
            guesses: table.guesses,
            guesses_used: table.guesses_used,
            demand_bytes: loader.demand_bytes,
            guess_bytes: loader.prefetch_bytes,
            rereads: reads.n_repeated,
            retries: loader.n_retries,
            read_wait: self.read_wait,
            read_busy: first.busy.max(second.busy),
            check: reads.check,
            ask: prefetch.ask(),
            drive: reads.loader.drive_names().next().unwrap_or(""),
            ahead: prefetch.quality(),
        }
    }
}
