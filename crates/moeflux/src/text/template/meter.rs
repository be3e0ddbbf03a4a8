//! Meters the work and memory of a rendering, in units that do not depend on the machine.
//!
//! Work is charged in advance, at about one unit per nanosecond. Bytes are those in use at the same
//! time: lists and maps release theirs when dropped; long texts are tracked by weak references,
//! which reveal how many are still alive when memory runs short. **Invariant:** after a limit is
//! exceeded every charge fails, so a template cannot continue by ignoring an error.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use minijinja::{Error, ErrorKind, Value};

use crate::text::limit::TextLimit;
use crate::text::template::OUTPUT_BYTES_MAX;

/// Maximum work of one rendering, half a second to a second. A message takes thousands of units,
/// and up to five per byte of its text, so that the longest output is within the limit.
pub(super) const WORK_MAX: u64 = 500_000_000;
/// Maximum bytes of live values, besides messages and output. With both of these at their maximum
/// the process grows by at most 256 MB.
pub(super) const VALUES_BYTES_MAX: u64 = 96 << 20;

/// Minimum length of tracked texts. Shorter ones are counted where a list holds them.
const WATCHED_BYTES_MIN: usize = 128;
/// Bytes created between two sweeps, each of which visits all tracked texts.
const SWEEP_BYTES: u64 = 16 << 20;
/// Work per tracked text in a sweep.
const SWEEP_WORK: u64 = 10;

/// The counts of one rendering.
#[derive(Debug)]
pub(super) struct RenderMeter {
    work_max: u64,
    limit: TextLimit,
    work: AtomicU64,
    containers_bytes: Arc<AtomicU64>,
    texts: Mutex<Texts>,
}

#[derive(Debug, Default)]
struct Texts {
    watched: Vec<(Weak<str>, u64)>,
    watched_bytes: u64,
    sweep_at_bytes: u64,
    /// Bytes in each open capture, innermost last.
    captures: Vec<u64>,
    captured_bytes: u64,
    output_bytes: u64,
    is_full: bool,
}

/// The memory that a container takes, counted while it is alive.
#[derive(Debug)]
pub(super) struct ByteReservation {
    count: Arc<AtomicU64>,
    bytes: u64,
}

impl Drop for ByteReservation {
    fn drop(&mut self) {
        self.count.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Converts a number of bytes or items into a charge.
pub(super) fn units(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}

/// Returns an error about a mistake of the template, or a limit.
pub(super) fn refused(why: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, why.into())
}

impl RenderMeter {
    pub(super) fn new(work_max: u64, limit: TextLimit) -> Self {
        Self {
            work_max,
            limit,
            work: AtomicU64::new(0),
            containers_bytes: Arc::default(),
            texts: Mutex::default(),
        }
    }

    fn texts(&self) -> MutexGuard<'_, Texts> {
        self.texts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the maximum bytes of the output.
    pub(super) fn output_bytes_max(&self) -> usize {
        OUTPUT_BYTES_MAX.min(self.limit.n_bytes_max)
    }

    fn values_bytes_max(&self) -> u64 {
        VALUES_BYTES_MAX.min(units(self.limit.n_bytes_max))
    }

    fn too_large(&self) -> Error {
        let n_bytes_max = self.values_bytes_max();
        refused(format!("more than {n_bytes_max} bytes of values at the same time"))
    }

    /// Charges work in advance.
    pub(super) fn work(&self, amount: u64) -> Result<(), Error> {
        // Saturates: a sum that wrapped would start over.
        let before = self.work.load(Ordering::Relaxed);
        let after = before.saturating_add(amount);
        self.work.store(after, Ordering::Relaxed);
        if after > self.work_max {
            let max = self.work_max;
            let reason = "units of work: too many operations on long values";
            return Err(refused(format!("more than {max} {reason}")));
        }
        if self.limit.cancel.is_cancelled() {
            return Err(refused("rendering was cancelled"));
        }
        Ok(())
    }

    /// Checks that a rendering that appears to have succeeded did not exceed a limit.
    pub(super) fn check(&self) -> Result<(), Error> {
        self.work(0)?;
        if self.texts().is_full { Err(self.too_large()) } else { Ok(()) }
    }

    /// Requests memory for values that are about to be created.
    pub(super) fn room(&self, bytes: u64) -> Result<(), Error> {
        self.room_in(&mut self.texts(), bytes)
    }

    fn room_in(&self, texts: &mut Texts, bytes: u64) -> Result<(), Error> {
        let wanted = |texts: &Texts| {
            let captured = texts.captured_bytes.saturating_mul(2);
            let containers = self.containers_bytes.load(Ordering::Relaxed);
            containers.saturating_add(texts.watched_bytes + captured).saturating_add(bytes)
        };
        let is_due = texts.watched_bytes >= texts.sweep_at_bytes.max(SWEEP_BYTES);
        if is_due || wanted(texts) > self.values_bytes_max() {
            self.work(SWEEP_WORK * units(texts.watched.len()))?;
            texts.watched.retain(|(text, _)| text.strong_count() > 0);
            texts.watched_bytes = texts.watched.iter().map(|(_, bytes)| bytes).sum();
            texts.sweep_at_bytes = texts.watched_bytes + SWEEP_BYTES;
        }
        if texts.is_full || wanted(texts) > self.values_bytes_max() {
            texts.is_full = true;
            return Err(self.too_large());
        }
        Ok(())
    }

    /// Converts a text into a value, and tracks it if it is long.
    pub(super) fn text(&self, text: String) -> Result<Value, Error> {
        let value = Value::from(text);
        self.watch(&value)?;
        Ok(value)
    }

    /// Tracks a long text that is already a value.
    pub(super) fn watch(&self, value: &Value) -> Result<(), Error> {
        let Some(bytes) = value.as_str().map(str::len) else { return Ok(()) };
        if bytes < WATCHED_BYTES_MIN {
            return Ok(());
        }
        let Some(text) = value.to_str() else { return Ok(()) };
        let mut texts = self.texts();
        self.room_in(&mut texts, units(bytes))?;
        // A text that is tracked twice is only counted too high, and both entries expire together.
        texts.watched.push((Arc::downgrade(&text), units(bytes)));
        texts.watched_bytes += units(bytes);
        Ok(())
    }

    /// Counts a container's bytes until the result is dropped.
    pub(super) fn reserve(&self, bytes: u64) -> Result<ByteReservation, Error> {
        self.room(bytes)?;
        self.containers_bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok(ByteReservation { count: Arc::clone(&self.containers_bytes), bytes })
    }

    /// Counts bytes until the rendering ends.
    pub(super) fn reserve_for_good(&self, bytes: u64) -> Result<(), Error> {
        self.room(bytes)?;
        self.containers_bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }

    /// Returns a count of zero bytes, for a container that exists before the rendering.
    pub(super) fn reserve_nothing(&self) -> ByteReservation {
        ByteReservation { count: Arc::clone(&self.containers_bytes), bytes: 0 }
    }

    /// Starts a capture: subsequent output is kept as a value.
    pub(super) fn begin_capture(&self) {
        self.texts().captures.push(0);
    }

    pub(super) fn end_capture(&self) {
        let mut texts = self.texts();
        let bytes = texts.captures.pop().unwrap_or(0);
        texts.captured_bytes -= bytes;
    }

    /// Counts bytes that are about to be written to the innermost capture or the output.
    pub(super) fn write(&self, bytes: usize) -> Result<(), Error> {
        let bytes = units(bytes);
        self.work(bytes / 2)?;
        let mut texts = self.texts();
        if texts.captures.is_empty() {
            texts.output_bytes += bytes;
            if texts.output_bytes > units(self.output_bytes_max()) {
                return Err(Error::from(ErrorKind::WriteFailure));
            }
            return Ok(());
        }
        self.room_in(&mut texts, bytes.saturating_mul(2))?;
        if let Some(capture) = texts.captures.last_mut() {
            *capture += bytes;
        }
        texts.captured_bytes += bytes;
        Ok(())
    }
}
