//! Checkpoints on simulated drives with faults, for the tests of all crates that stream experts.

use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use moeflux::provider::config::{DriveMaker, EngineConfig, StreamingConfig};
use moeflux::provider::engine::Engine;
use moeflux::provider::error::{Error, Result};
use moeflux::provider::experts::stream::{Drives, ReadPurpose};
use moeflux::provider::format::Checkpoint;
use moeflux::provider::model::Model;
use moeflux::provider::pack::{PackOptions, Packing, SourceHandling};
use moeflux_io::{
    BLOCK_BYTES, BlockRead, Caching, FaultSwitch, Faults, SimulatedDrive, SimulatedFile,
    VirtualClock,
};

use crate::temp_dir::TempDir;

/// Faults that go away when a read is repeated.
pub fn transient(seed: u64) -> Faults {
    Faults {
        seed,
        n_short: 120,
        n_interrupted: 60,
        n_again: 60,
        n_failed: 40,
        n_away: 60,
        n_attempts_away: 2,
        ..Faults::default()
    }
}

/// The packed form of a checkpoint, whose records have checksums.
pub fn packed(dir: &Path) -> TempDir {
    let packed = TempDir::new();
    let options =
        PackOptions { params: None, handling: SourceHandling::Kept, n_threads: NonZeroUsize::MIN };
    let packing = Packing::prepare(dir, packed.path(), &options).unwrap();
    packing.run(&mut |_| ControlFlow::Continue(())).unwrap();
    packed
}

/// A checkpoint on simulated drives.
#[derive(Clone, Debug)]
pub struct SimulatedCheckpoint<'a> {
    /// The checkpoint.
    pub dir: &'a Path,
    /// Faults of the first drive.
    pub faults: Faults,
    /// Faults of the mirror, if there is one.
    pub mirror: Option<Faults>,
    /// Exchanges the faults of the first drive.
    pub switch: FaultSwitch,
    /// The block size of both drives.
    pub block_bytes: usize,
}

impl<'a> SimulatedCheckpoint<'a> {
    /// Creates a checkpoint on one drive with these faults.
    pub fn new(dir: &'a Path, faults: Faults) -> Self {
        let (switch, block_bytes) = (FaultSwitch::default(), BLOCK_BYTES);
        Self { dir, faults, mirror: None, switch, block_bytes }
    }

    /// Opens an engine over the checkpoint.
    pub fn open(&self, config: &EngineConfig) -> Engine {
        let Self { dir, faults, mirror, switch, block_bytes } = self.clone();
        let clock = VirtualClock::default();
        let maker = SimulatedDrives { faults, mirror, switch, block_bytes, clock };
        let drives: Option<Arc<dyn DriveMaker>> = Some(Arc::new(maker));
        let streaming = StreamingConfig { drives, ..config.streaming.clone() };
        let config = EngineConfig { streaming, ..config.clone() };
        let model = Model::open(dir).unwrap();
        Engine::load(model, &config, &mut |_| ControlFlow::Continue(())).unwrap()
    }
}

/// Makes these drives of a checkpoint's files.
#[derive(Debug)]
struct SimulatedDrives {
    faults: Faults,
    mirror: Option<Faults>,
    switch: FaultSwitch,
    block_bytes: usize,
    clock: VirtualClock,
}

impl DriveMaker for SimulatedDrives {
    fn open(&self, checkpoint: &Checkpoint, read_for: ReadPurpose) -> Result<Drives> {
        let drive = |faults: Faults| {
            let files = checkpoint.files.iter().map(|file| {
                let bytes = std::fs::read(&file.path).unwrap();
                SimulatedFile::of(&file.path.to_string_lossy(), bytes)
            });
            let drive = SimulatedDrive::new(files.collect(), 8, self.clock.clone());
            let block_bytes = if read_for == ReadPurpose::Memory { 1 } else { self.block_bytes };
            drive.with_faults(faults).with_block(block_bytes)
        };
        let mirror = self.mirror.map(drive);
        Ok(Drives {
            primary: Box::new(drive(self.faults).with_switch(self.switch.clone())),
            mirror: mirror.map(|it| -> Box<dyn BlockRead> { Box::new(it) }),
            caching: Caching::Direct,
            clock: Arc::new(self.clock.clone()),
        })
    }
}

/// Returns whether the outcome is the expected value, and not an error. Fails for another value,
/// and for an error that does not name expert or row, file and bytes.
pub fn is_right<T: PartialEq>(outcome: &Result<T>, expected: &T, what: &str) -> bool {
    match outcome {
        Ok(found) => {
            assert!(found == expected, "{what}: other logits");
            true
        }
        Err(error @ (Error::Expert { problem, .. } | Error::TableRow { problem, .. })) => {
            let names_bytes = problem.contains("bytes at offset");
            let names_file = [".safetensors", ".gguf"].iter().any(|end| problem.contains(end));
            assert!(names_bytes && names_file, "{what}: {error}");
            false
        }
        Err(other) => panic!("{what}: {other}"),
    }
}
