//! The interpreter: compiles plans into steps once, and records batches as commands.
//!
//! `plans`, `memory`, `routing` and `outputs` each own a part of the backend's state. The other
//! files have its methods, by what they do.
//!
//! Submitting a plan records it. The device starts when a result must be read back, or when enough
//! is recorded. **Invariant:** commands run in the order of submission; recorded commands keep the
//! buffers and rows they were recorded with.

mod plans;
mod routing;
mod outputs;
mod memory;
mod record;
mod prerecord;
mod compile;
mod read;
mod sessions;

use std::sync::Arc;

use moeflux::provider::backend::{
    Arithmetic, Backend, DeviceNames, ExpertSharding, ExpertTiers, SessionStates, TierStats,
};
use moeflux::provider::error::{Error, Result};
use moeflux::provider::experts::Arrived;
use moeflux::provider::experts::stream::{DeviceMove, MappedSlots, SlotMapping};
use moeflux::provider::ids::{BufferId, ExpertIdx, LayerIdx};
use moeflux::provider::ops::{Batch, Op, Plan, Purpose, Routes, Workspace};
use moeflux::provider::weights::{ExpertView, Weights};

use crate::config::GpuConfig;
use crate::device::Gpu;
use crate::device::read_back::ReadBackBuffer;
use crate::device::recorder::CommandRecorder;
use crate::experts::layouts_of;
use crate::host_import::can_import_slabs;
use memory::ModelMemory;
use outputs::OutputRows;
use plans::CompiledPlans;
use prerecord::StepPrerecorder;
use routing::RouterResults;

/// See [`DeviceNames::bits_version`].
const BITS_VERSION: u32 = 1;

/// A model on a GPU.
#[derive(Debug)]
pub struct GpuBackend {
    gpu: Arc<Gpu>,
    config: GpuConfig,
    memory: ModelMemory,
    plans: CompiledPlans,
    recorder: CommandRecorder,
    prerecorder: StepPrerecorder,
    read_back: ReadBackBuffer,
    routing: RouterResults,
    outputs: OutputRows,
}

impl GpuBackend {
    /// Copies a model's weights to a device and allocates memory for steps of at most `n_rows_max`
    /// rows, or of fewer if the device's limits require: see [`Backend::n_rows_max`].
    ///
    /// # Errors
    ///
    /// [`moeflux::Error::NoRoom`] if device memory is exhausted; [`moeflux::Error::Device`] if the
    /// driver reports a failure.
    pub fn new(
        gpu: Arc<Gpu>,
        weights: &Weights,
        workspace: &Workspace,
        n_rows_max: usize,
        config: GpuConfig,
    ) -> Result<Self> {
        let memory = ModelMemory::new(&gpu, weights, (workspace, n_rows_max), &config)?;
        let recorder = CommandRecorder::new(Arc::clone(&gpu))?;
        let read_back = ReadBackBuffer::new(&gpu)?;
        Ok(Self {
            gpu,
            config,
            memory,
            plans: CompiledPlans::default(),
            recorder,
            prerecorder: StepPrerecorder::default(),
            read_back,
            routing: RouterResults::default(),
            outputs: OutputRows::default(),
        })
    }

    /// Returns the device.
    #[must_use]
    pub fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }

    /// Returns the number of experts copied to the device so far.
    #[must_use]
    pub fn n_experts_uploaded(&self) -> u64 {
        self.memory.experts.n_uploaded()
    }

    /// Returns the number of dispatches recorded for requested steps. Those recorded ahead are not
    /// counted.
    #[must_use]
    pub fn n_dispatches(&self) -> u64 {
        self.recorder.n_dispatches()
    }

    /// Reads streamed experts directly from these slots in host memory, if the driver supports it.
    /// Must precede the compilation of plans.
    ///
    /// # Errors
    ///
    /// [`moeflux::Error::NoRoom`] if device memory is exhausted.
    pub fn map_slots(&mut self, slots: &MappedSlots) -> Result<()> {
        if can_import_slabs(self.gpu.device()) {
            self.memory.experts.map_slots(&self.gpu, slots)?;
        }
        Ok(())
    }

    fn begin_step(&mut self) -> Result<()> {
        while !self.memory.experts.begin_step(&mut self.recorder)? {
            self.flush();
        }
        Ok(())
    }

    /// Submits all recorded commands, and drops those recorded ahead, before states move.
    fn flush_all(&mut self) {
        self.discard_prerecorded();
        self.flush();
    }

    /// Submits all recorded commands.
    fn flush(&mut self) {
        self.recorder.submit();
        self.memory.submitted();
    }
}

impl Backend for GpuBackend {
    fn names(&self) -> DeviceNames {
        let facts = self.gpu.facts();
        let isa = facts.api;
        let device = format!("{}\n{}\n{isa}", facts.name, facts.driver);
        let device_hash = twox_hash::XxHash3_64::oneshot(device.as_bytes());
        let unit = self.gpu.matrix_unit_for(&self.config);
        let arithmetic = unit.map_or(Arithmetic::F32, |_| Arithmetic::F16Staged);
        DeviceNames { backend: "gpu", arithmetic, isa, bits_version: BITS_VERSION, device_hash }
    }

    fn n_rows_max(&self) -> usize {
        self.memory.workspace.n_rows_max
    }

    fn submit(&mut self, plan: &Plan, batch: &Batch<'_>) -> Result<()> {
        assert!(batch.rows.len() <= self.memory.workspace.n_rows_max, "a batch fits the workspace");
        let plan_idx = self.compiled(plan, self.routing.shape())?;
        if matches!(plan.ops().first(), Some(Op::Embed(_))) {
            self.begin_step()?;
            self.begin_prerecorded_step(batch);
        }
        if !self.submit_prerecorded(plan_idx, batch) {
            self.record(plan_idx, batch)?;
        }
        self.gpu.check()
    }

    fn routes(&mut self, purpose: Purpose) -> Result<&Routes> {
        self.prerecorder.discard_current();
        match purpose {
            Purpose::Prefetch => self.read_guess(),
            Purpose::Compute => self.read_routes(),
        }
    }

    fn submit_experts(&mut self, plan: &Plan, arrived: &Arrived<'_>) -> Result<()> {
        if arrived.is_empty() {
            return Ok(());
        }
        self.prerecorder.discard_current();
        let layer = layer_of(plan);
        // For experts in device memory or imported slots the shape is already known.
        if let Some(at) = (0..arrived.len()).find(|at| arrived.device_slot(*at).is_none()) {
            self.memory.experts.note_slot_layout(layer, layouts_of(&arrived.view(at)));
        }
        let plan_idx = self.compiled(plan, self.routing.shape())?;
        let (shape, n_rows) = (self.routing.shape(), self.routing.n_rows());
        let mut first = 0;
        while first < arrived.len() {
            let of_layer = (layer, shape.n_experts);
            let ready =
                self.memory.experts.make_ready(&mut self.recorder, of_layer, (arrived, first))?;
            let Some(ready) = ready else {
                self.flush();
                continue;
            };
            self.record_experts(plan_idx, n_rows, &ready.bindings)?;
            first += ready.n;
        }
        // The device computes these while others are loading.
        if (0..arrived.len())
            .all(|at| arrived.device_slot(at).is_some() || arrived.mapped_slot(at).is_some())
        {
            self.flush();
        }
        self.gpu.check()
    }

    fn reads_stall(&self) -> bool {
        true
    }

    fn swap_rows(&mut self, buffer: BufferId, n_rows: usize) -> Result<()> {
        self.discard_prerecorded();
        let encoder = self.recorder.encoder();
        self.memory.workspace.swap_rows((&self.gpu, encoder), buffer, n_rows)?;
        self.outputs.discard();
        self.gpu.check()
    }

    fn write_rows(&mut self, buffer: BufferId, values: &[f32]) -> Result<()> {
        // Commands that were recorded before read what the rows were before.
        self.flush_all();
        self.memory.workspace.write_rows(&self.gpu, buffer, values);
        self.outputs.discard();
        self.gpu.check()
    }

    fn read_row(&mut self, buffer: BufferId, row_idx: usize, target: &mut [f32]) -> Result<()> {
        self.read_output(buffer, row_idx, target)
    }

    fn set_rows_max(&mut self, n_rows_max: usize) -> Result<()> {
        let backend = self.names().backend;
        Err(Error::Unsupported(format!("{backend} cannot make steps of {n_rows_max} rows")))
    }

    fn states(&self) -> &dyn SessionStates {
        self
    }

    fn states_mut(&mut self) -> &mut dyn SessionStates {
        self
    }

    fn sharding(&mut self) -> Option<&mut dyn ExpertSharding> {
        None
    }

    fn tiers(&self) -> Option<&dyn ExpertTiers> {
        Some(self)
    }

    fn tiers_mut(&mut self) -> Option<&mut dyn ExpertTiers> {
        Some(self)
    }
}

impl ExpertTiers for GpuBackend {
    fn keep_expert(
        &mut self,
        at: (LayerIdx, ExpertIdx),
        n_experts: usize,
        view: &ExpertView<'_>,
    ) -> Result<()> {
        self.discard_prerecorded();
        while !self.memory.experts.keep(&mut self.recorder, at, n_experts, view)? {
            self.flush();
        }
        self.gpu.check()
    }

    fn tier_stats(&self) -> Option<TierStats> {
        self.memory.experts.tier_stats()
    }

    fn slot_mapping(&self) -> Option<Arc<dyn SlotMapping>> {
        self.memory.experts.slot_mapping()
    }

    fn copy_to_device(&mut self, expert: &DeviceMove<'_>) -> Result<()> {
        while !self.memory.experts.copy_to_cache(&mut self.recorder, expert)? {
            self.flush();
        }
        self.gpu.check()
    }
}

/// Returns the layer whose experts a plan computes.
fn layer_of(plan: &Plan) -> LayerIdx {
    let mut layers = plan.ops().iter().map(|op| match op {
        Op::ExpertFfn(op) => op.layer,
        other => unreachable!("{} is not an expert's op", other.name()),
    });
    layers.next().expect("a plan of experts has an op")
}
