//! What a drive gives to a reader that does nothing else: the measure of a run, and the ground on
//! which a way of reading is chosen.

use std::time::Duration;

use moeflux_io::{Caching, Clock as _, DriveFile, FileIdx, Load, Offsets, RealClock, measure};

use crate::error::{Error, Result};
use crate::experts::stream::open::drive_over;
use crate::format::Checkpoint;

/// Of each read.
const READ_BYTES: usize = 1 << 20;

/// Reads in flight.
const N_IN_FLIGHT: usize = 16;

/// The page cache has to be so much faster: what it holds it holds blindly.
const GAIN_MIN: f64 = 1.15;

/// Bytes per second of scattered reads from a checkpoint's largest file; `seed` names the places.
///
/// # Errors
///
/// When it cannot be read.
pub fn drive_speed(
    checkpoint: &Checkpoint,
    caching: Caching,
    (seed, duration_max): (u64, Duration),
) -> Result<f64> {
    let largest = checkpoint.files.iter().max_by_key(|file| file.len_bytes);
    let Some(largest) = largest else { return Ok(0.0) };
    let path = &largest.path;
    let file = DriveFile::open(path, caching).map_err(Error::io("open", path))?;
    let unit_bytes = READ_BYTES.min(usize::try_from(file.len_bytes()).unwrap_or(READ_BYTES));
    let unit_bytes = (unit_bytes / file.block_bytes()).max(1) * file.block_bytes();
    let mut offsets = Offsets::new(file.len_bytes(), unit_bytes, seed);
    if caching == Caching::PageCache {
        file.drop_copies();
    }
    let mut drive = drive_over(|| Ok(vec![reopened(&file)?]), N_IN_FLIGHT)?;
    let load =
        Load { file: FileIdx(0), read_bytes: unit_bytes, n_in_flight: N_IN_FLIGHT, duration_max };
    let measured = measure(&mut *drive, load, &mut offsets, &RealClock::new());
    Ok(measured.map_err(Error::io("read", path))?.bytes_per_s())
}

fn reopened(file: &DriveFile) -> Result<DriveFile> {
    let path = file.path();
    DriveFile::open(path, file.caching()).map_err(Error::io("open", path))
}

/// Which way of reading is faster for data that nobody has in memory, and by how much: bytes per
/// second directly and through the page cache, each asked in turn for `duration_max` in all.
///
/// # Errors
///
/// When the checkpoint cannot be read.
pub fn choose_way(checkpoint: &Checkpoint, duration_max: Duration) -> Result<(Caching, [f64; 2])> {
    let clock = RealClock::new();
    let mut best = [0.0_f64; 2];
    let slice = duration_max / 4;
    for (seed, way) in [(1, 0), (2, 1), (3, 1), (4, 0)] {
        if clock.now() > duration_max {
            break;
        }
        let caching = [Caching::Direct, Caching::PageCache][way];
        best[way] = best[way].max(drive_speed(checkpoint, caching, (seed, slice))?);
    }
    let way = if best[1] > GAIN_MIN * best[0] { Caching::PageCache } else { Caching::Direct };
    Ok((way, best))
}
