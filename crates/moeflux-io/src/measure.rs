//! Measures how fast a drive reads, with a number of reads in flight, at offsets that are never
//! read twice.
//!
//! **Invariant:** a [`ScatteredOffsets`] yields each offset of its file once, so that no cache of
//! the system or the drive can inflate the result. The drive does nothing else meanwhile.

use std::io;
use std::time::Duration;

use crate::clock::Clock;
use crate::drives::block::{BlockRead, FileIdx, ReadCompletion, ReadOutcome, ReadRequest, Wait};
use crate::memory::slots::{Piece, SLOT_ALIGN, SlotIdx, SlotMemory};
use crate::mix::mixed;

/// Offsets in a file, in scattered order, each once.
#[derive(Clone, Copy, Debug)]
pub struct ScatteredOffsets {
    unit_bytes: u64,
    n_units: u64,
    first: u64,
    stride: u64,
    n_given: u64,
}

impl ScatteredOffsets {
    /// Creates the offsets of all whole `unit_bytes` in a file of `len_bytes`, in an order that
    /// `seed` determines.
    ///
    /// # Panics
    ///
    /// If `unit_bytes` is 0.
    #[must_use]
    pub fn new(len_bytes: u64, unit_bytes: usize, seed: u64) -> Self {
        assert!(unit_bytes > 0, "a unit has bytes");
        let unit_bytes = unit_bytes as u64;
        let n_units = len_bytes / unit_bytes;
        let n = n_units.max(1);
        // A stride coprime to `n` visits every unit once.
        let strides = (1..).map(|attempt| mixed(&[seed, attempt]) % n);
        let is_good = |&stride: &u64| n == 1 || greatest_common_divisor(stride, n) == 1;
        let stride = strides.take(1000).find(is_good).unwrap_or(1);
        Self { unit_bytes, n_units, first: mixed(&[seed]) % n, stride, n_given: 0 }
    }
}

impl Iterator for ScatteredOffsets {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        if self.n_given == self.n_units {
            return None;
        }
        let steps = u128::from(self.n_given) * u128::from(self.stride) + u128::from(self.first);
        let unit = steps % u128::from(self.n_units);
        self.n_given += 1;
        Some(u64::try_from(unit).expect("a unit of the file") * self.unit_bytes)
    }
}

fn greatest_common_divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}

/// The reads of a measurement.
#[derive(Clone, Copy, Debug)]
pub struct ReadLoad {
    /// The file.
    pub file: FileIdx,
    /// Size of each read; a multiple of the file's block.
    pub read_bytes: usize,
    /// Number of reads in flight; at most the drive's depth.
    pub n_in_flight: usize,
    /// Time after which no read starts.
    pub duration_max: Duration,
}

/// Result of a measurement.
#[derive(Clone, Copy, Debug)]
pub struct ReadMeasurement {
    /// Bytes read.
    pub read_bytes: u64,
    /// Number of reads.
    pub n_reads: u64,
    /// Time from the start of the first read to the end of the last one.
    pub elapsed: Duration,
}

impl ReadMeasurement {
    /// Returns the bytes per second.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a figure to look at")]
    pub fn bytes_per_s(&self) -> f64 {
        self.read_bytes as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }
}

/// Reads from `offsets` until the time or the offsets run out.
///
/// # Errors
///
/// The drive's error; reads in flight are awaited first.
///
/// # Panics
///
/// If `n_in_flight` is 0 or more than the drive's depth.
pub fn measure(
    drive: &mut dyn BlockRead,
    load: ReadLoad,
    offsets: &mut ScatteredOffsets,
    clock: &dyn Clock,
) -> io::Result<ReadMeasurement> {
    let ReadLoad { read_bytes, n_in_flight, .. } = load;
    assert!((1..=drive.depth()).contains(&n_in_flight), "reads in flight within the depth");
    let mut memory =
        SlotMemory::new(read_bytes, n_in_flight * read_bytes.next_multiple_of(SLOT_ALIGN));
    let slab_idx = memory.grow().ok_or(io::ErrorKind::OutOfMemory)?;
    let slab = memory.slab(slab_idx).expect("it was just made").clone();
    drive.slab_added(&slab);
    let mut fillings: Vec<_> =
        memory.slots_of(slab_idx).map(|slot| memory.begin_fill(SlotIdx(slot))).collect();
    let mut pieces: Vec<Piece> = fillings.iter_mut().map(|it| it.take(0..read_bytes)).collect();
    for piece in &mut pieces {
        // Pages that were never accessed would be allocated during the measurement.
        piece.rest_mut().fill(1);
    }
    let measured = run(drive, load, offsets, clock, pieces);
    if drive.n_in_flight() == 0 {
        fillings.into_iter().for_each(|filling| memory.abandon(filling));
        drive.slab_removed(&slab);
    }
    measured
}

fn run(
    drive: &mut dyn BlockRead,
    load: ReadLoad,
    offsets: &mut ScatteredOffsets,
    clock: &dyn Clock,
    mut pieces: Vec<Piece>,
) -> io::Result<ReadMeasurement> {
    let ReadLoad { file, duration_max, .. } = load;
    let began = clock.now();
    let mut measured = ReadMeasurement { read_bytes: 0, n_reads: 0, elapsed: Duration::ZERO };
    let mut failure = None;
    let mut done = Vec::with_capacity(pieces.len());
    let mut tag = 0;
    loop {
        let is_over = failure.is_some() || clock.now() - began >= duration_max;
        while !is_over && !pieces.is_empty() {
            let (Some(offset_bytes), Some(piece)) = (offsets.next(), pieces.pop()) else { break };
            drive.submit(ReadRequest { tag, file, offset_bytes, attempt: 0, piece });
            tag += 1;
        }
        if drive.n_in_flight() == 0 {
            measured.elapsed = clock.now() - began;
            return failure.map_or(Ok(measured), Err);
        }
        drive.complete(Wait::Any, &mut done)?;
        for ReadCompletion { piece, outcome, .. } in done.drain(..) {
            match outcome {
                ReadOutcome::Read(n_bytes) => {
                    measured.read_bytes += n_bytes as u64;
                    measured.n_reads += 1;
                }
                ReadOutcome::Failed(error) => failure = Some(error),
                ReadOutcome::Cancelled => {}
            }
            pieces.push(piece);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::clock::VirtualClock;
    use crate::drives::simulated::{DriveSpeed, Faults, SimulatedDrive, SimulatedFile};

    #[test]
    fn every_place_comes_once() {
        for (len_bytes, seed) in [(0, 1), (4095, 1), (4096, 2), (4096 * 17, 3), (4096 * 1000, 4)] {
            let all: Vec<u64> = ScatteredOffsets::new(len_bytes, 4096, seed).collect();
            let distinct: HashSet<u64> = all.iter().copied().collect();
            assert_eq!(all.len() as u64, len_bytes / 4096);
            assert_eq!(distinct.len(), all.len());
            assert!(all.iter().all(|it| it % 4096 == 0 && it + 4096 <= len_bytes));
        }
    }

    #[test]
    fn the_speed_of_a_simulated_drive_is_measured() {
        let clock = VirtualClock::default();
        let file = SimulatedFile::of("f", vec![0; 64 << 20]);
        let latency = Duration::from_micros(500);
        let speed =
            DriveSpeed { latency_min: latency, latency_more_max: latency, bytes_per_s: 1 << 30 };
        let files = vec![file];
        let mut drive = SimulatedDrive::new(files, 8, clock.clone()).with_speed(speed);
        let mut offsets = ScatteredOffsets::new(64 << 20, 1 << 20, 1);
        let mut rates = Vec::new();
        for n_in_flight in [1, 8] {
            let duration_max = Duration::from_millis(20);
            let load =
                ReadLoad { file: FileIdx(0), read_bytes: 1 << 20, n_in_flight, duration_max };
            let measured = measure(&mut drive, load, &mut offsets, &clock).unwrap();
            assert_eq!(measured.read_bytes, measured.n_reads << 20);
            rates.push(measured.bytes_per_s() / f64::from(1 << 30));
        }
        assert!((0.4..0.7).contains(&rates[0]), "{rates:?}");
        assert!((0.9..=1.0).contains(&rates[1]), "{rates:?}");
    }

    #[test]
    fn it_ends_with_the_offsets_or_with_an_error() {
        let clock = VirtualClock::default();
        let drive = |faults| {
            let file = SimulatedFile::of("f", vec![0; 40_960]);
            SimulatedDrive::new(vec![file], 4, clock.clone()).with_faults(faults)
        };
        let duration_max = Duration::from_secs(1000);
        let load = ReadLoad { file: FileIdx(0), read_bytes: 4096, n_in_flight: 4, duration_max };
        let mut offsets = ScatteredOffsets::new(40_960, 4096, 1);
        let mut healthy = drive(Faults::default());
        let measured = measure(&mut healthy, load, &mut offsets, &clock).unwrap();
        assert_eq!((measured.n_reads, offsets.next()), (10, None));

        let mut offsets = ScatteredOffsets::new(40_960, 4096, 1);
        let mut broken = drive(Faults { n_lost: 1000, ..Faults::default() });
        measure(&mut broken, load, &mut offsets, &clock).unwrap_err();
        assert_eq!(broken.n_in_flight(), 0);
    }
}
