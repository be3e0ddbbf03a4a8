//! A drive from the loader's point of view: its load, its speed, and whether it is reliable.
//!
//! **Invariant:** busy time is the time with at least one read in flight, until its completion is
//! processed. If the loader is rarely called, this is too long, never too short.

use std::time::Duration;

use crate::drives::block::{BlockRead, ReadCompletion, ReadRequest, Wait};
use crate::loader::error::LoadError;

/// Bytes of one measurement of speed.
const WINDOW_BYTES: u64 = 8 << 20;
/// Weight of the latest measurement.
const WEIGHT_OF_NEW: f64 = 0.25;
/// Number of consecutive failures from which a drive with a mirror gets only one read at a time,
/// after a pause.
const N_FAILURES_SUSPECT: u32 = 3;
/// The first of these pauses; each further failure doubles it.
const PAUSE: Duration = Duration::from_millis(1);
/// Maximum pause.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// Statistics of one drive.
#[derive(Clone, Copy, Debug, Default)]
pub struct LaneCounts {
    /// Completed reads.
    pub n_reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Time with at least one read in flight.
    pub busy: Duration,
    /// Failed reads, not counting interruptions.
    pub n_failures: u64,
    /// Recent speed while busy, in bytes per second; 0 until it is known.
    pub speed: f64,
}

/// A drive and its load.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) drive: Box<dyn BlockRead>,
    n_in_flight: usize,
    in_flight_bytes: u64,
    busy_since: Duration,
    counts: LaneCounts,
    /// Bytes per second; 0 until it is known.
    speed: f64,
    window: SpeedWindow,
    n_consecutive_failures: u32,
    paused_until: Duration,
}

/// Start of the current measurement.
#[derive(Clone, Copy, Debug, Default)]
struct SpeedWindow {
    read_bytes: u64,
    busy: Duration,
}

impl Lane {
    pub(super) fn new(drive: Box<dyn BlockRead>) -> Self {
        Self {
            drive,
            n_in_flight: 0,
            in_flight_bytes: 0,
            busy_since: Duration::ZERO,
            counts: LaneCounts::default(),
            speed: 0.0,
            window: SpeedWindow::default(),
            n_consecutive_failures: 0,
            paused_until: Duration::ZERO,
        }
    }

    pub(super) fn is_busy(&self) -> bool {
        self.n_in_flight > 0
    }

    /// Returns whether another read may be submitted.
    pub(super) fn has_room(&self, n_lanes: usize) -> bool {
        self.n_in_flight < if n_lanes > 1 && self.is_suspect() { 1 } else { self.drive.depth() }
    }

    /// Returns whether the drive has failed repeatedly.
    pub(super) fn is_suspect(&self) -> bool {
        self.n_consecutive_failures >= N_FAILURES_SUSPECT
    }

    /// Returns whether reads should go to another drive, if there is one.
    pub(super) fn is_paused(&self, now: Duration) -> bool {
        self.paused_until > now
    }

    /// Returns how long `more_bytes` would take after everything in flight. `default_speed`
    /// replaces a speed that is not known.
    #[expect(clippy::cast_precision_loss, reason = "an estimate")]
    pub(super) fn delay(&self, more_bytes: usize, default_speed: f64) -> f64 {
        let speed = if self.speed > 0.0 { self.speed } else { default_speed };
        let penalty = f64::from(1 + self.n_consecutive_failures);
        penalty * (self.in_flight_bytes as f64 + more_bytes as f64) / speed
    }

    pub(super) fn speed(&self) -> f64 {
        self.speed
    }

    pub(super) fn submit(&mut self, read: ReadRequest, now: Duration) {
        if self.n_in_flight == 0 {
            self.busy_since = now;
        }
        self.n_in_flight += 1;
        self.in_flight_bytes += read.piece.rest_bytes() as u64;
        self.drive.submit(read);
    }

    pub(super) fn flush(&mut self) -> Result<(), LoadError> {
        let name = self.drive.name();
        self.drive.flush().map_err(|source| LoadError::Drive { name, source })
    }

    pub(super) fn complete(
        &mut self,
        wait: Wait,
        done: &mut Vec<ReadCompletion>,
    ) -> Result<(), LoadError> {
        let name = self.drive.name();
        self.drive.complete(wait, done).map_err(|source| LoadError::Drive { name, source })
    }

    /// Records the completion of a read: the requested and the received bytes.
    pub(super) fn note_end(&mut self, requested_bytes: usize, read_bytes: usize, now: Duration) {
        self.n_in_flight -= 1;
        self.in_flight_bytes -= requested_bytes as u64;
        self.counts.n_reads += 1;
        self.counts.read_bytes += read_bytes as u64;
        if read_bytes > 0 {
            self.n_consecutive_failures = 0;
            self.paused_until = Duration::ZERO;
        }
        if self.n_in_flight == 0 {
            self.counts.busy += now.saturating_sub(self.busy_since);
        }
        self.measure(now);
    }

    pub(super) fn note_failure(&mut self, now: Duration) {
        self.counts.n_failures += 1;
        self.n_consecutive_failures = self.n_consecutive_failures.saturating_add(1);
        if self.is_suspect() {
            let n_more = self.n_consecutive_failures - N_FAILURES_SUSPECT;
            let pause = PAUSE.saturating_mul(2u32.saturating_pow(n_more));
            self.paused_until = now + pause.min(PAUSE_MAX);
        }
    }

    pub(super) fn counts(&self, now: Duration) -> LaneCounts {
        LaneCounts { busy: self.busy(now), speed: self.speed, ..self.counts }
    }

    fn busy(&self, now: Duration) -> Duration {
        let open =
            if self.is_busy() { now.saturating_sub(self.busy_since) } else { Duration::ZERO };
        self.counts.busy + open
    }

    #[expect(clippy::cast_precision_loss, reason = "an estimate")]
    fn measure(&mut self, now: Duration) {
        let read_bytes = self.counts.read_bytes - self.window.read_bytes;
        let busy = self.busy(now).saturating_sub(self.window.busy);
        if read_bytes < WINDOW_BYTES || busy.is_zero() {
            return;
        }
        let speed = read_bytes as f64 / busy.as_secs_f64();
        let is_first = self.speed <= 0.0;
        let change = WEIGHT_OF_NEW * (speed - self.speed);
        self.speed = if is_first { speed } else { self.speed + change };
        self.window = SpeedWindow { read_bytes: self.counts.read_bytes, busy: self.busy(now) };
    }
}
