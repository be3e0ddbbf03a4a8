//! Finds out which way of reading is faster on this machine for data that is not in memory.

use std::cmp::Reverse;
use std::path::PathBuf;
use std::time::Duration;

use moeflux_io::{Caching, Probe, RealClock};

use crate::error::{Error, Result};
use crate::format::Checkpoint;

/// Bytes of each read.
const READ_BYTES: usize = 1 << 20;

/// Reads in flight.
const N_IN_FLIGHT: usize = 16;

/// Bytes of memory that a probe uses while it reads.
pub const PROBE_BYTES: u64 = (READ_BYTES * N_IN_FLIGHT) as u64;

/// The page cache has to be faster by this factor, since it does not choose what it holds.
const GAIN_MIN: f64 = 1.15;

/// Creates a probe of a checkpoint's files, the largest first; `seed` selects the offsets.
#[must_use]
pub fn probe_of(checkpoint: &Checkpoint, seed: u64) -> Probe {
    let mut files: Vec<_> = checkpoint.files.iter().collect();
    files.sort_by_key(|file| Reverse(file.len_bytes));
    let paths: Vec<PathBuf> = files.iter().map(|file| file.path.clone()).collect();
    Probe::new(paths, READ_BYTES, seed)
}

/// Returns the bytes per second that the drive delivers when only this way of reading is used, for
/// up to `duration_max`; 0 where the files are too short to tell.
///
/// # Errors
///
/// [`Error::Drive`] when the files cannot be read.
pub fn drive_speed(probe: &mut Probe, caching: Caching, duration_max: Duration) -> Result<f64> {
    let probed = probe.rate(caching, N_IN_FLIGHT, duration_max, &RealClock::new());
    let probed = probed
        .map_err(|source| Error::Drive(format!("cannot measure the drive's speed: {source}")))?;
    Ok(probed.map_or(0.0, |probed| probed.measured.bytes_per_s()))
}

/// Returns the faster way of reading, alternating between both for `duration_max` in all; direct
/// reads if the files are too short to tell.
///
/// # Errors
///
/// [`Error::Drive`] when the checkpoint cannot be read.
pub fn choose_way(checkpoint: &Checkpoint, duration_max: Duration) -> Result<Caching> {
    let mut probe = probe_of(checkpoint, 1);
    let slice = duration_max / 4;
    let [mut direct, mut cached] = [0.0_f64; 2];
    for caching in [Caching::Direct, Caching::PageCache, Caching::PageCache, Caching::Direct] {
        let speed = drive_speed(&mut probe, caching, slice)?;
        let best = if caching == Caching::Direct { &mut direct } else { &mut cached };
        *best = best.max(speed);
    }
    Ok(if cached > GAIN_MIN * direct { Caching::PageCache } else { Caching::Direct })
}
