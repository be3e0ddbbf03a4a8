//! A table in shards is packed into blocks, and its rows are read from there.

use std::ops::ControlFlow;
use std::sync::Arc;

use moeflux_io::{Caching, Faults, SimulatedDrive, SimulatedFile, VirtualClock};
use moeflux_testing::temp_dir::TempDir;

use crate::error::{Error, Result};
use crate::experts::stream::Drives;
use crate::format::{Checkpoint, CheckpointSums};
use crate::ids::TableId;
use crate::pack::folder::PackFolder;
use crate::pack::plan::file::FilePlan;
use crate::pack::source::SourceFiles;
use crate::pack::write::{ProgressReporter, read_back, write_file};
use crate::rows::{RowReader, SumChecks};
use crate::spec::Family;
use crate::weights::tests_support::{Tensors, spec};
use crate::weights::{Binder, RowStorage, RowTable, TensorSource};

const BASE: &str = "model.layers.1.ple.ple_embedding.ngram_embedding";
const N_COLS: usize = 160;
const SHARD_ROWS: [usize; 4] = [900, 7, 1, 600];
const N_ROWS: usize = 1508;

fn bind(checkpoint: &Checkpoint, n_rows: usize) -> Result<RowTable> {
    let spec = spec(Family::Qwen3Moe, 1);
    let mut binder = Binder::new(TensorSource::Checkpoint(checkpoint), &spec);
    let id = binder.row_table(BASE, n_rows, N_COLS)?;
    assert_eq!(id, TableId(0));
    Ok(binder.finish()?.tables[0].clone())
}

/// Packs the table. Returns the folder of the pack and all bytes of the rows.
fn packed() -> (TempDir, Vec<u8>) {
    let mut tensors = Tensors::default();
    let mut rows = Vec::new();
    for (shard_idx, n_rows) in SHARD_ROWS.into_iter().enumerate() {
        let name = format!("{BASE}.shard_{shard_idx}.weight");
        tensors.add(&name, "BF16", &[n_rows, N_COLS]);
        rows.extend_from_slice(tensors.bytes(&name));
    }
    let (_dir, checkpoint) = tensors.open();
    let table = Arc::new(bind(&checkpoint, N_ROWS).unwrap());
    let plan = FilePlan::of_table("rows-00001.safetensors".to_owned(), &table, 7);
    let target = TempDir::new();
    let folder = PackFolder::open(target.path()).unwrap();
    let files = SourceFiles::open(&checkpoint).unwrap();
    let watch = &mut |_| ControlFlow::Continue(());
    let mut reporter = ProgressReporter::new(plan.len_bytes(), watch);
    write_file(&plan, (&files, &folder), 2, &mut reporter).unwrap();
    folder.publish(&plan.name).unwrap();
    read_back(&plan, &folder.path(&plan.name), &mut reporter).unwrap();
    (target, rows)
}

fn reader(checkpoint: &Checkpoint, faults: Faults) -> RowReader {
    let clock = VirtualClock::default();
    let files = checkpoint.files.iter().map(|file| {
        let bytes = std::fs::read(&file.path).unwrap();
        SimulatedFile::of(&file.path.to_string_lossy(), bytes)
    });
    let drive = SimulatedDrive::new(files.collect(), 8, clock.clone()).with_faults(faults);
    let (primary, clock) = (Box::new(drive), Arc::new(clock));
    let drives = Drives { primary, mirror: None, caching: Caching::Direct, clock };
    let paths = checkpoint.files.iter().map(|file| file.path.clone()).collect();
    let table = bind(checkpoint, N_ROWS).unwrap();
    RowReader::open(vec![(table, 1.0)], (drives, paths), (0, SumChecks::On)).unwrap()
}

#[test]
fn rows_of_a_pack_are_those_of_its_source() {
    let (dir, rows) = packed();
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    let table = bind(&checkpoint, N_ROWS).unwrap();
    let RowStorage::Blocks(blocks) = table.storage else { panic!("{table:?}") };
    assert_eq!((blocks.shape.block_bytes, blocks.shape.n_rows), (4096, 12));
    // The sum of all blocks is there for those who read all of them.
    let sums = CheckpointSums::of(&checkpoint).unwrap().unwrap();
    let n_bytes = 4096 * N_ROWS.div_ceil(12) as u64;
    let all = blocks.first_bytes..blocks.first_bytes + n_bytes;
    let units = sums.overlapping(0, &all);
    assert_eq!((units.len(), units[0].len_bytes), (1, n_bytes));
    let all: Vec<u64> = (0..N_ROWS as u64).collect();
    let mut values = Vec::new();
    let flips = Faults { n_flipped: 30, ..Faults::default() };
    let mut reader = reader(&checkpoint, flips);
    reader.collect(0, &all, &mut values).unwrap();
    let stored = values.iter().flat_map(|value| half::bf16::from_f32(*value).to_le_bytes());
    assert!(stored.collect::<Vec<u8>>() == rows);
    assert!(reader.stats().rereads > 0);
}

#[test]
fn another_shape_and_damage_are_refused() {
    let (dir, _) = packed();
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    let error = bind(&checkpoint, N_ROWS + 1).unwrap_err().to_string();
    let expected = "has 1508 rows of 160 values, but config.json requires 1509 of 160";
    assert!(error.contains(expected), "{error}");
    let spec = spec(Family::Qwen3Moe, 1);
    let binder = Binder::new(TensorSource::Checkpoint(&checkpoint), &spec);
    let error = binder.finish().unwrap_err().to_string();
    assert!(error.contains("rows of a table that config.json does not describe"), "{error}");
    assert!(checkpoint.name_at(0, 1 << 16).contains("ngram_embedding.blocks"));
    // A bit of row 30.
    let path = dir.path().join("rows-00001.safetensors");
    let mut bytes = std::fs::read(&path).unwrap();
    let RowStorage::Blocks(blocks) = bind(&checkpoint, N_ROWS).unwrap().storage else { panic!() };
    let first = usize::try_from(blocks.first_bytes).unwrap();
    bytes[first + 2 * 4096 + 6 * 320] ^= 4;
    std::fs::write(&path, bytes).unwrap();
    let mut reader = reader(&checkpoint, Faults::default());
    let error = reader.collect(0, &[1, 24, 29], &mut Vec::new()).unwrap_err();
    assert!(matches!(error, Error::TableRow { row: 24 | 29, .. }), "{error}");
    reader.collect(0, &[1, 23, 36], &mut Vec::new()).unwrap();
}
