//! Prints the speed of a drive for each way of reading, with 1 to 32 reads in flight.
//!
//! `cargo run --release -p moeflux-io --example drive -- FILE [READ_KIB [MILLISECONDS [ROUNDS]]]`.
//! No place is read twice within a round of all ways and depths as long as the file lasts; copies
//! in the page cache are dropped before each figure. Rounds show the spread.
#![expect(clippy::print_stdout, reason = "printing is the purpose")]

use std::io;
use std::path::Path;
use std::time::Duration;

use moeflux_io::{
    BlockRead, Caching, DriveFile, FileIdx, ReadLoad, RealClock, ScatteredOffsets, ThreadsDrive,
    measure,
};

const DEPTHS: [usize; 6] = [1, 2, 4, 8, 16, 32];

fn main() -> io::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, default: usize| {
        arguments.get(at).map_or(default, |text| text.parse().expect("a number"))
    };
    let path = Path::new(arguments.first().expect("a file"));
    let read_bytes = number(1, 1024) << 10;
    let duration_max = Duration::from_millis(number(2, 500) as u64);
    print!("{:24}", "GB/s, in flight:");
    DEPTHS.iter().for_each(|depth| print!("{depth:>7}"));
    println!();
    let ways = [Caching::Direct, Caching::PageCache];
    for (round, caching) in (0..number(3, 1) as u64).flat_map(|it| ways.map(|way| (it, way))) {
        let file = DriveFile::open(path, caching)?;
        let mut offsets = ScatteredOffsets::new(file.len_bytes(), read_bytes, round);
        for kind in ["io_uring", "threads"] {
            print!("{:24}", format!("{kind}, {:?}", file.caching()));
            for n_in_flight in DEPTHS {
                let load = ReadLoad { file: FileIdx(0), read_bytes, n_in_flight, duration_max };
                let rate = measure_fresh(kind, &file, load, &mut offsets)?;
                print!("{:7.2}", rate.unwrap_or(f64::NAN) / 1e9);
            }
            println!();
        }
    }
    Ok(())
}

/// Bytes per second from places not read before; none where the kernel refuses this kind.
fn measure_fresh(
    kind: &str,
    file: &DriveFile,
    load: ReadLoad,
    offsets: &mut ScatteredOffsets,
) -> io::Result<Option<f64>> {
    let Some(mut drive) = open(kind, file.path(), file.caching(), load.n_in_flight)? else {
        return Ok(None);
    };
    let clock = RealClock::new();
    file.drop_copies();
    let mut measured = measure(&mut *drive, load, offsets, &clock)?;
    if measured.elapsed < load.duration_max {
        // The places are used up: once more from the first.
        *offsets = ScatteredOffsets::new(file.len_bytes(), load.read_bytes, 1000);
        file.drop_copies();
        measured = measure(&mut *drive, load, offsets, &clock)?;
    }
    Ok(Some(measured.bytes_per_s()))
}

/// A drive of one kind; none where the kernel refuses it.
fn open(
    kind: &str,
    path: &Path,
    caching: Caching,
    n_in_flight: usize,
) -> io::Result<Option<Box<dyn BlockRead>>> {
    let files = vec![DriveFile::open(path, caching)?];
    if kind == "threads" {
        return Ok(Some(Box::new(ThreadsDrive::new(files, n_in_flight, n_in_flight)?)));
    }
    #[cfg(target_os = "linux")]
    if let Ok(drive) = moeflux_io::UringDrive::new(files, n_in_flight) {
        return Ok(Some(Box::new(drive)));
    }
    Ok(None)
}
