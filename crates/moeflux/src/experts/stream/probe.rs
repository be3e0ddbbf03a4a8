//! Which way of reading is faster here for what nobody has in memory yet.

use std::cmp::Reverse;
use std::path::PathBuf;
use std::time::Duration;

use moeflux_io::{Caching, Probe, RealClock};

use crate::error::{Error, Result};
use crate::format::Checkpoint;

/// Of each read.
const READ_BYTES: usize = 1 << 20;

/// Reads in flight.
const N_IN_FLIGHT: usize = 16;

/// Memory of a probe while it reads.
pub const PROBE_BYTES: u64 = (READ_BYTES * N_IN_FLIGHT) as u64;

/// The page cache has to be so much faster: what it holds it holds blindly.
const GAIN_MIN: f64 = 1.15;

/// A probe of a checkpoint's files, the largest first; `seed` names the places.
#[must_use]
pub fn probe_of(checkpoint: &Checkpoint, seed: u64) -> Probe {
    let mut files: Vec<_> = checkpoint.files.iter().collect();
    files.sort_by_key(|file| Reverse(file.len_bytes));
    let paths: Vec<PathBuf> = files.iter().map(|file| file.path.clone()).collect();
    Probe::new(paths, READ_BYTES, seed)
}

/// Bytes per second that the drive gives to this way of reading and to nobody else for so long; 0
/// where the files are too short to tell.
///
/// # Errors
///
/// When they cannot be read.
pub fn drive_speed(probe: &mut Probe, caching: Caching, duration_max: Duration) -> Result<f64> {
    let probed = probe.rate(caching, N_IN_FLIGHT, duration_max, &RealClock::new());
    let probed = probed.map_err(|source| Error::Drive(format!("the drive: {source}")))?;
    Ok(probed.map_or(0.0, |probed| probed.measured.bytes_per_s()))
}

/// The faster way of reading, each asked in turn for `duration_max` in all; direct reads if the
/// files are too short to tell.
///
/// # Errors
///
/// When the checkpoint cannot be read.
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
