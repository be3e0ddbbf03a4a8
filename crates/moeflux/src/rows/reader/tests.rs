//! Rows from simulated drives: the right values come out, or an error that names row, file and
//! bytes.

use std::sync::Arc;

use half::bf16;
use moeflux_io::{
    BlockRead, Caching, FaultSwitch, Faults, SimulatedDrive, SimulatedFile, VirtualClock,
};
use moeflux_kernels::FloatKind;
use moeflux_testing::drives::transient;
use moeflux_testing::random::{Rng, seeds};

use super::*;
use crate::weights::{BlockShape, FileExtent, RowBlocks, RowRun, TableValues};

const N_ROWS: usize = 3000;
const N_COLS: usize = 160;
const ROW_BYTES: usize = 2 * N_COLS;

/// Files with one table: in three tensors, or in blocks.
struct Rig {
    table: RowTable,
    files: Vec<Arc<[u8]>>,
}

/// Returns the value of a row and a column, which bf16 has.
fn value(row: u64, col: usize) -> f32 {
    let number = u16::try_from((row * 31 + col as u64 * 7) % 0x7000).unwrap();
    bf16::from_bits(number).to_f32()
}

fn row_bytes(row: u64) -> Vec<u8> {
    let values = (0..N_COLS).map(|col| bf16::from_f32(value(row, col)).to_le_bytes());
    values.flatten().collect()
}

impl Rig {
    fn plain() -> Self {
        // The second file has rows between the others, and each begins in the middle of a block.
        let runs = [(0, 1, 48), (1900, 0, 16), (2500, 1, 48 + 1900 * ROW_BYTES + 6)];
        let ends = [1900, 2500, N_ROWS as u64];
        let mut files = vec![vec![1; 900_000], vec![2; 1_500_000]];
        let runs = runs.iter().zip(ends).map(|(&(first_row, file_idx, at), end)| {
            let bytes: Vec<u8> = (first_row..end).flat_map(row_bytes).collect();
            files[file_idx][at..][..bytes.len()].copy_from_slice(&bytes);
            let extent =
                FileExtent { file_idx, offset_bytes: at as u64, len_bytes: bytes.len() as u64 };
            RowRun { first_row, extent }
        });
        let storage = RowStorage::Tensors(runs.collect());
        Self { table: table(storage), files: files.into_iter().map(Arc::from).collect() }
    }

    fn packed() -> Self {
        let shape = BlockShape::new(ROW_BYTES);
        let first_bytes = 16 << 10;
        let mut file = vec![3; 16 << 10];
        for block in 0..shape.n_blocks(N_ROWS) as u64 {
            let first = block * shape.n_rows as u64;
            let end = (first + shape.n_rows as u64).min(N_ROWS as u64);
            let mut bytes: Vec<u8> = (first..end).flat_map(row_bytes).collect();
            bytes.resize(shape.block_bytes, 0);
            shape.seal(block, &mut bytes);
            file.extend(bytes);
        }
        let blocks = RowBlocks { file_idx: 0, first_bytes, shape };
        Self { table: table(RowStorage::Blocks(blocks)), files: vec![file.into()] }
    }

    fn open(&self, faults: &[Faults], switch: &FaultSwitch, cache_bytes: u64) -> RowReader {
        let clock = VirtualClock::default();
        let drive = |faults: &Faults| {
            let files = self.files.iter().enumerate();
            let files = files.map(|(it, bytes)| {
                SimulatedFile::of(&format!("{it}.safetensors"), Arc::clone(bytes))
            });
            SimulatedDrive::new(files.collect(), 8, clock.clone()).with_faults(*faults)
        };
        let mirror = faults.get(1).map(|it| -> Box<dyn BlockRead> { Box::new(drive(it)) });
        let primary = Box::new(drive(&faults[0]).with_switch(switch.clone()));
        let clock = Arc::new(clock.clone());
        let drives = Drives { primary, mirror, caching: Caching::Direct, clock };
        let paths = (0..self.files.len()).map(|it| format!("{it}.safetensors").into()).collect();
        let settings = (cache_bytes, SumChecks::On);
        RowReader::open(vec![(self.table.clone(), 1.0)], (drives, paths), settings).unwrap()
    }
}

fn table(storage: RowStorage) -> RowTable {
    let name = "model.layers.1.ple".to_owned();
    RowTable {
        name,
        n_rows: N_ROWS,
        n_cols: N_COLS,
        values: TableValues::Floats(FloatKind::Bf16),
        storage,
    }
}

fn random_rows(rng: &mut Rng) -> Vec<u64> {
    let n_rows = rng.pick(&[1, 16, 16, 16, 400]);
    (0..n_rows).map(|_| rng.below(N_ROWS) as u64).collect()
}

fn expected(rows: &[u64]) -> Vec<f32> {
    rows.iter().flat_map(|row| (0..N_COLS).map(|col| value(*row, col))).collect()
}

/// Runs some batches. Returns how many of them failed.
fn run(reader: &mut RowReader, seed: u64, n_batches: usize) -> usize {
    let mut rng = Rng::new(seed);
    let mut n_failed = 0;
    for _ in 0..n_batches {
        let rows = random_rows(&mut rng);
        if rng.coin() {
            reader.ask(0, &rows).unwrap();
        }
        if rng.below(4) == 0 {
            // Another batch takes the turn of the one that was asked for.
            reader.ask(0, &random_rows(&mut rng)).unwrap();
        }
        if rng.coin() {
            reader.advance().unwrap();
        }
        let mut values = vec![5.0];
        match reader.collect(0, &rows, &mut values) {
            Ok(()) => assert!(values[1..] == expected(&rows), "seed {seed}"),
            Err(Error::TableRow { table, row, problem }) => {
                assert!(table.contains("ple") && rows.contains(&row), "seed {seed}: {row}");
                assert!(problem.contains(".safetensors: ") && problem.contains("bytes at offset"));
                n_failed += 1;
            }
            Err(other) => panic!("seed {seed}: {other}"),
        }
    }
    assert_eq!(reader.free_slots.len() + reader.loader.n_jobs(), reader.jobs.len());
    n_failed
}

#[test]
fn transient_faults_end_with_the_right_rows() {
    let (mut n_retries, mut n_rereads) = (0, 0);
    for (rig, n_flipped) in [(Rig::plain(), 0), (Rig::packed(), 40)] {
        for seed in seeds(40) {
            let faults = Faults { n_flipped, ..transient(seed) };
            let cache_bytes = Rng::new(seed).pick(&[0, 100_000, 1 << 20]);
            let mut reader = rig.open(&[faults], &FaultSwitch::default(), cache_bytes);
            assert_eq!(run(&mut reader, seed, 12), 0, "seed {seed}");
            let stats = reader.stats();
            n_retries += stats.retries;
            n_rereads += stats.rereads;
            assert!(stats.hits < stats.asked && stats.reads > 0 && stats.read_bytes > 0);
        }
    }
    assert!(n_retries > 40 && n_rereads > 20, "{n_retries} reads failed, {n_rereads} were flipped");
}

#[test]
fn lasting_faults_end_right_or_with_an_error_that_names_the_row() {
    for rig in [Rig::plain(), Rig::packed()] {
        let [mut n_failed, mut n_batches] = [0; 2];
        for seed in seeds(40) {
            let faults = Faults { n_lost: 30, ..transient(seed) };
            let switch = FaultSwitch::default();
            let mut reader = rig.open(&[faults], &switch, 100_000);
            n_failed += run(&mut reader, seed, 12);
            n_batches += 12;
            // The reader works again when the drive does.
            switch.set(Faults::default());
            assert_eq!(run(&mut reader, seed, 12), 0, "seed {seed}");
        }
        assert!(n_failed > n_batches / 8 && n_failed < n_batches, "{n_failed} of {n_batches}");
    }
}

#[test]
fn the_mirror_replaces_lost_and_wrong_reads() {
    let rig = Rig::packed();
    for seed in seeds(20) {
        let lost = Faults { n_lost: 200, n_flipped: 100, ..transient(seed) };
        let faults = [lost, Faults { n_flipped: 20, ..transient(seed + 1000) }];
        let mut reader = rig.open(&faults, &FaultSwitch::default(), 100_000);
        assert_eq!(run(&mut reader, seed, 12), 0, "seed {seed}");
    }
}

/// Only those who need a row that cannot be read are concerned.
#[test]
fn a_lost_block_concerns_its_rows_only() {
    let rig = Rig::packed();
    let lost = Faults { n_lost: 100, ..Faults::default() };
    let mut reader = rig.open(&[lost], &FaultSwitch::default(), 0);
    let failed: Vec<bool> =
        (0..N_ROWS as u64).map(|row| reader.collect(0, &[row], &mut Vec::new()).is_err()).collect();
    let rows = |is_failed: bool| {
        let rows = (0..).zip(&failed).filter(|(_, failed)| **failed == is_failed);
        rows.map(|(row, _)| row).collect::<Vec<u64>>()
    };
    let mut values = Vec::new();
    reader.collect(0, &rows(false), &mut values).unwrap();
    assert!(values == expected(&rows(false)));
    assert!(!rows(true).is_empty());
    for row in rows(true) {
        let error = reader.collect(0, &[0, row, 2999], &mut Vec::new()).unwrap_err();
        assert!(matches!(error, Error::TableRow { .. }), "{error}");
    }
}

#[test]
fn damage_is_found() {
    let Rig { table, files } = Rig::packed();
    let mut file = files[0].to_vec();
    // Two blocks exchange places: each is intact, but not there.
    let (first, second) = file[16 << 10..].split_at_mut(4096);
    first.swap_with_slice(&mut second[..4096]);
    let rig = Rig { table, files: vec![file.into()] };
    let mut reader = rig.open(&[Faults::default()], &FaultSwitch::default(), 0);
    let error = reader.collect(0, &[13], &mut Vec::new()).unwrap_err().to_string();
    assert!(
        error.starts_with("row 13 of `model.layers.1.ple`: 0.safetensors: 4096 bytes at offset")
    );
    assert!(error.contains("`moeflux verify`"), "{error}");
    // A value that is not finite.
    let Rig { table, files } = Rig::plain();
    let mut file = files[0].to_vec();
    file[16 + ROW_BYTES + 6..][..2].copy_from_slice(&f32::NAN.to_le_bytes()[2..]);
    let rig = Rig { table, files: vec![file.into(), Arc::clone(&files[1])] };
    let mut reader = rig.open(&[Faults::default()], &FaultSwitch::default(), 0);
    let error = reader.collect(0, &[1900, 1901], &mut Vec::new()).unwrap_err().to_string();
    let expected =
        "row 1901 of `model.layers.1.ple`: 0.safetensors: value 3 of the row in 320 bytes";
    assert!(error.starts_with(expected) && error.contains("is NaN or infinite"), "{error}");
    reader.collect(0, &[1900], &mut Vec::new()).unwrap();
}

#[test]
fn room_for_all_rows_reads_each_once() {
    let rig = Rig::plain();
    let mut reader = rig.open(&[Faults::default()], &FaultSwitch::default(), u64::MAX);
    let all: Vec<u64> = (0..N_ROWS as u64).collect();
    for _ in 0..3 {
        let mut values = Vec::new();
        reader.ask(0, &all).unwrap();
        reader.collect(0, &all, &mut values).unwrap();
        assert!(values == expected(&all));
    }
    let stats = reader.stats();
    assert_eq!((stats.asked, stats.hits), (9000, 6000));
    assert_eq!(stats.since(&stats).asked, 0);
    let memory_bytes = RowReader::memory_bytes(&[rig.table], u64::MAX);
    assert!(memory_bytes < 3008 * 340 + (3 << 20), "{memory_bytes}");
}
