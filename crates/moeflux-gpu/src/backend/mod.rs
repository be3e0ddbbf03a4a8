//! The interpreter: compiles plans into steps once, and records batches as commands.
//!
//! Submitting a plan records it. The device starts when a result must be read back, or when enough
//! is recorded. **Invariant:** commands run in the order of submission; recorded commands keep the
//! buffers and rows they were recorded with.

mod record;
mod ahead;
mod compile;
mod read;

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use moeflux::provider::backend::room::SessionBudget;
use moeflux::provider::backend::{
    Arithmetic, Backend, DeviceNames, ExpertSharding, ExpertTiers, SessionStates, StatePart,
    TierStats,
};
use moeflux::provider::error::{Error, Result};
use moeflux::provider::experts::Arrived;
use moeflux::provider::experts::stream::{DeviceMove, MappedSlots, SlotMapping};
use moeflux::provider::ids::{BufferId, ExpertIdx, LayerIdx, StateId};
use moeflux::provider::ops::{
    Batch, Op, Plan, PlanId, Purpose, Routes, RowSet, StateSpec, Workspace,
};
use moeflux::provider::weights::{ExpertView, Weights};

use crate::compiler::RouteShape;
use crate::config::GpuConfig;
use crate::device::Gpu;
use crate::device::read_back::ReadBackBuffer;
use crate::device::recorder::CommandRecorder;
use crate::experts::{DeviceExperts, layouts_of};
use crate::memory::STORAGE;
use crate::memory::batches::Batches;
use crate::memory::states::{DeviceStates, StateRange};
use crate::memory::weights::DeviceWeights;
use crate::memory::workspace::DeviceWorkspace;
use crate::params::View;
use crate::seen::can_import_slabs;
use crate::step::DispatchStep;
use ahead::StepPrerecorder;

/// A compiled plan.
#[derive(Debug)]
struct CompiledPlan {
    plan: Plan,
    /// Whether it contains a router that chooses the experts to compute.
    has_router: bool,
    /// Shapes of the router output before and after it.
    routes: [RouteShape; 2],
    /// Location of its router's guess, if it has one.
    guess: Option<(View, RouteShape)>,
    steps: Vec<DispatchStep>,
}

impl CompiledPlan {
    /// Returns the number of batch rows that the plan computes.
    const fn n_rows(&self, batch: &Batch<'_>) -> usize {
        match self.plan.rows() {
            RowSet::All => batch.rows.len(),
            RowSet::Outputs => batch.outputs.len(),
        }
    }
}

/// Returns whether the op chooses the experts to compute.
fn is_choice(op: &Op) -> bool {
    matches!(op, Op::Route(route) if route.purpose == Purpose::Compute)
}

/// Router output of the last batch.
#[derive(Clone, Copy, Debug, Default)]
struct RouterOutput {
    shape: RouteShape,
    n_rows: usize,
    /// Whether `routes` on the host matches the device.
    is_on_host: bool,
}

/// Router guess of the last batch, until it is read.
#[derive(Clone, Copy, Debug)]
struct PendingGuess {
    view: View,
    shape: RouteShape,
    n_rows: usize,
}

impl PendingGuess {
    const fn n_values(&self) -> usize {
        self.n_rows * self.view.row_stride as usize
    }
}

/// See [`DeviceNames::bits_version`].
const BITS_VERSION: u32 = 1;

/// Rows that were read back together.
#[derive(Debug)]
struct ReadBackRows {
    buffer: BufferId,
    values: Vec<f32>,
}

/// A model on a GPU.
#[derive(Debug)]
pub struct GpuBackend {
    gpu: Arc<Gpu>,
    config: GpuConfig,
    weights: DeviceWeights,
    workspace: DeviceWorkspace,
    batches: Batches,
    states: DeviceStates,
    experts: DeviceExperts,
    /// Routes as kernels see them: (expert, bits of its weight).
    route_pairs: wgpu::Buffer,
    model_group: wgpu::BindGroup,
    plans: Vec<CompiledPlan>,
    /// Index of the compiled plan for each name.
    plan_names: HashMap<PlanId, usize>,
    recorder: CommandRecorder,
    prerecorder: StepPrerecorder,
    read_back: ReadBackBuffer,
    router_output: RouterOutput,
    routes: Routes,
    guess: Option<PendingGuess>,
    guessed: Routes,
    rows_read_back: Option<ReadBackRows>,
    /// Number of rows and of output rows of the last plan.
    last_rows: (usize, usize),
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
        let workspace = DeviceWorkspace::new(&gpu, workspace, n_rows_max)?;
        let weights = DeviceWeights::upload(&gpu, weights)?;
        let batches = Batches::new(&gpu, workspace.n_rows_max)?;
        let experts = DeviceExperts::new(&gpu, &config)?;
        let route_pairs = gpu.buffer("routes", 16, STORAGE)?;
        let model_group =
            model_group(&gpu, (&workspace, &weights), &batches, &route_pairs, &experts);
        let recorder = CommandRecorder::new(Arc::clone(&gpu))?;
        let read_back = ReadBackBuffer::new(&gpu)?;
        Ok(Self {
            gpu,
            config,
            weights,
            workspace,
            batches,
            states: DeviceStates::default(),
            experts,
            route_pairs,
            model_group,
            plans: Vec::new(),
            plan_names: HashMap::new(),
            recorder,
            prerecorder: StepPrerecorder::default(),
            read_back,
            router_output: RouterOutput::default(),
            routes: Routes::default(),
            guess: None,
            guessed: Routes::default(),
            rows_read_back: None,
            last_rows: (0, 0),
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
        self.experts.n_uploaded()
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
            self.experts.map_slots(&self.gpu, slots)?;
        }
        Ok(())
    }

    fn begin_step(&mut self) -> Result<()> {
        while !self.experts.begin_step(&mut self.recorder)? {
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
        self.batches.submitted();
        self.experts.submitted();
    }
}

fn model_group(
    gpu: &Gpu,
    (workspace, weights): (&DeviceWorkspace, &DeviceWeights),
    batches: &Batches,
    routes: &wgpu::Buffer,
    experts: &DeviceExperts,
) -> wgpu::BindGroup {
    let buffers = [&workspace.buffer, &batches.buffer, routes, &experts.tables, &weights.vectors];
    let entries: Vec<wgpu::BindGroupEntry<'_>> = (0..)
        .zip(buffers)
        .map(|(binding, it)| wgpu::BindGroupEntry { binding, resource: it.as_entire_binding() })
        .collect();
    gpu.device().create_bind_group(&wgpu::BindGroupDescriptor {
        label: None,
        layout: &gpu.layouts().model,
        entries: &entries,
    })
}

impl Backend for GpuBackend {
    fn names(&self) -> DeviceNames {
        let isa = self.gpu.facts().api;
        let unit = self.gpu.matrix_unit_for(&self.config);
        let arithmetic = unit.map_or(Arithmetic::F32, |_| Arithmetic::F16Staged);
        DeviceNames { backend: "gpu", arithmetic, isa, bits_version: BITS_VERSION }
    }

    fn n_rows_max(&self) -> usize {
        self.workspace.n_rows_max
    }

    fn submit(&mut self, plan: &Plan, batch: &Batch<'_>) -> Result<()> {
        assert!(batch.rows.len() <= self.workspace.n_rows_max, "a batch fits the workspace");
        let plan_idx = self.compiled(plan)?;
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
            self.experts.note_slot_layout(layer, layouts_of(&arrived.view(at)));
        }
        let plan_idx = self.compiled(plan)?;
        let RouterOutput { shape, n_rows, .. } = self.router_output;
        let mut first = 0;
        while first < arrived.len() {
            let of_layer = (layer, shape.n_experts);
            let ready = self.experts.make_ready(&mut self.recorder, of_layer, (arrived, first))?;
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
        self.workspace.swap_rows((&self.gpu, encoder), buffer, n_rows)?;
        self.rows_read_back = None;
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

impl SessionStates for GpuBackend {
    fn budget(&self) -> &Arc<SessionBudget> {
        self.states.budget()
    }

    fn create_state(&mut self, spec: &StateSpec, context: usize) -> Result<StateId> {
        self.flush_all();
        self.states.create(&self.gpu, spec, context)
    }

    fn reserve_positions(&mut self, state: StateId, positions: &Range<usize>) -> Result<()> {
        if self.states.is_reserved(state, positions) {
            return Ok(());
        }
        self.flush_all();
        self.states.reserve(&self.gpu, state, positions)
    }

    fn fork_state(&mut self, state: StateId) -> Result<StateId> {
        self.flush_all();
        self.states.fork(&self.gpu, state)
    }

    fn drop_state(&mut self, state: StateId) {
        // Commands recorded for the session run before its pages are reused.
        self.prerecorder.discard_session(state);
        if self.states.remove(state) {
            self.flush_all();
            self.states.trim(&self.gpu);
        }
    }

    fn reset_state(&mut self, state: StateId) {
        self.flush_all();
        // The next check reports a device failure.
        self.states.reset(&self.gpu, state).ok();
    }

    fn commit_state(&mut self, state: StateId) {
        // Plans that were requested but not submitted belong to the step that is committed here.
        self.record_pending();
        self.states.commit(state);
    }

    fn set_marks(&mut self, state: StateId, n_marks: usize) -> Result<()> {
        if self.states.n_marks(state) == n_marks {
            return Ok(());
        }
        self.flush_all();
        self.states.set_marks(&self.gpu, state, n_marks)
    }

    fn state_part_bytes(&self, state: StateId, part: StatePart) -> usize {
        self.states.part_bytes(state, part)
    }

    fn read_state(&mut self, state: StateId, part: StatePart, target: &mut [u8]) -> Result<()> {
        let mut rest = target;
        for table_idx in 0..2 {
            let ranges = &self.states.ranges(state, part)[table_idx];
            let Some(table) = ranges.first().map(|it| it.table) else { continue };
            let n_stored = ranges.iter().map(StateRange::n_stored).sum();
            let n_saved: usize = ranges.iter().map(StateRange::n_saved).sum();
            let places: Vec<_> =
                ranges.iter().map(|it| (it.first_stored(), it.n_stored())).collect();
            let (buffer, layout) = (table.buffer.clone(), table.layout);
            let mut stored = vec![0.0; n_stored];
            self.read_ranges(&buffer, &places, &mut stored)?;
            let mut saved = vec![0.0; n_saved];
            layout.pack(&stored, &mut saved);
            let (target, after) = rest.split_at_mut(n_saved * size_of::<f32>());
            target.copy_from_slice(bytemuck::cast_slice(&saved));
            rest = after;
        }
        assert!(rest.is_empty(), "a layer has only its own kind of state");
        Ok(())
    }

    fn write_state(&mut self, state: StateId, part: StatePart, source: &[u8]) -> Result<()> {
        // Writes take effect before all later submissions, so recorded commands must be submitted
        // first.
        self.record_pending();
        self.flush();
        let mut rest = source;
        for range in self.states.targets(state, part).into_iter().flatten() {
            let (source, after) = rest.split_at(range.n_saved() * size_of::<f32>());
            let saved: Vec<f32> = bytemuck::pod_collect_to_vec(source);
            let mut stored = vec![0.0; range.n_stored()];
            range.table.layout.unpack(&saved, &mut stored);
            let offset_bytes = (range.first_stored() * size_of::<f32>()) as u64;
            let bytes = bytemuck::cast_slice(&stored);
            self.gpu.upload(&range.table.buffer, offset_bytes, bytes)?;
            rest = after;
        }
        assert!(rest.is_empty(), "a layer has only its own kind of state");
        self.gpu.check()
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
        while !self.experts.keep(&mut self.recorder, at, n_experts, view)? {
            self.flush();
        }
        self.gpu.check()
    }

    fn tier_stats(&self) -> Option<TierStats> {
        self.experts.tier_stats()
    }

    fn slot_mapping(&self) -> Option<Arc<dyn SlotMapping>> {
        self.experts.slot_mapping()
    }

    fn copy_to_device(&mut self, expert: &DeviceMove<'_>) -> Result<()> {
        while !self.experts.bring_near(&mut self.recorder, expert)? {
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
