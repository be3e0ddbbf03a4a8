//! The interpreter: plans become steps once, batches become commands.
//!
//! Submitting a plan records it. The device begins when something must come back, or when enough
//! is recorded. **Invariant:** commands run in the order of submission; what was recorded keeps
//! the buffers and rows that it was recorded with.

use std::collections::HashMap;
use std::sync::Arc;

use moeflux::backend::{Arithmetic, Backend, DeviceNames, StatePart};
use moeflux::error::{Error, Result};
use moeflux::experts::Arrived;
use moeflux::families::ModelPlan;
use moeflux::ids::{BufferId, ExpertIdx, LayerIdx, StateId};
use moeflux::ops::{Batch, N_OUTPUTS_MAX, Op, Plan, Routes, RowSet, StateSpec, Workspace};
use moeflux::weights::{ExpertLayout, ExpertView, Weights};

use crate::compiler::{Compiler, RouteShape};
use crate::device::Gpu;
use crate::experts::{Bound, DeviceExperts, layouts_of};
use crate::memory::batches::Batches;
use crate::memory::states::{States, Stretch};
use crate::memory::weights::DeviceWeights;
use crate::memory::workspace::DeviceWorkspace;
use crate::memory::{STORAGE, narrow};
use crate::recorder::{ReadBack, Recorder};
use crate::step::{Head, Over, Step};

/// How a backend is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuConfig {
    /// Whether ops that follow each other may run as one.
    pub fuses: bool,
    /// Bytes of routed experts on the device at most.
    pub expert_bytes_max: u64,
}

impl Default for GpuConfig {
    fn default() -> Self {
        Self { fuses: true, expert_bytes_max: 1 << 30 }
    }
}

/// A compiled plan.
#[derive(Debug)]
struct Compiled {
    plan: Plan,
    /// What a router had left before it, and what one leaves after it.
    routes: [RouteShape; 2],
    steps: Vec<Step>,
}

/// What the last batch asked of a router.
#[derive(Clone, Copy, Debug, Default)]
struct Routed {
    shape: RouteShape,
    n_rows: usize,
    /// Whether `routes` on the host is what the device has.
    is_here: bool,
}

/// Rows that were read back together.
#[derive(Debug)]
struct KeptRows {
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
    states: States,
    experts: DeviceExperts,
    /// As kernels see them: (expert, bits of its weight).
    route_pairs: wgpu::Buffer,
    model_group: wgpu::BindGroup,
    plans: Vec<Compiled>,
    /// By the address of the ops that were last found there.
    plan_places: HashMap<usize, usize>,
    recorder: Recorder,
    n_submissions: u64,
    read_back: ReadBack,
    routed: Routed,
    routes: Routes,
    kept_rows: Option<KeptRows>,
    /// Rows and wanted rows of the last plan.
    last_rows: (usize, usize),
}

impl GpuBackend {
    /// Copies a model's weights to a device and makes room for steps of at most `n_rows_max` rows,
    /// or of fewer where the device has limits: see [`Backend::n_rows_max`].
    ///
    /// # Errors
    ///
    /// [`moeflux::error::Error::NoRoom`], [`moeflux::error::Error::Device`].
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
        let experts = DeviceExperts::new(&gpu, config.expert_bytes_max)?;
        let route_pairs = gpu.buffer("routes", 16, STORAGE)?;
        let model_group =
            model_group(&gpu, (&workspace, &weights), &batches, &route_pairs, &experts);
        let recorder = Recorder::new(Arc::clone(&gpu));
        let read_back = ReadBack::new(&gpu)?;
        Ok(Self {
            gpu,
            config,
            weights,
            workspace,
            batches,
            states: States::default(),
            experts,
            route_pairs,
            model_group,
            plans: Vec::new(),
            plan_places: HashMap::new(),
            recorder,
            n_submissions: 1,
            read_back,
            routed: Routed::default(),
            routes: Routes::default(),
            kept_rows: None,
            last_rows: (0, 0),
        })
    }

    /// The device.
    #[must_use]
    pub fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }

    /// Experts that had to be copied to the device so far.
    #[must_use]
    pub fn n_experts_uploaded(&self) -> u64 {
        self.experts.n_uploaded()
    }

    /// Hands all that was recorded to the device.
    fn flush(&mut self) {
        self.recorder.submit();
        self.n_submissions += 1;
        self.batches.submitted();
        self.experts.submitted();
    }

    /// The compiled plan, made if it is new. A model's plans stay where they are, so that one place
    /// in memory names one; another plan may come to lie there, so that it is compared.
    fn compiled(&mut self, plan: &Plan) -> Result<usize> {
        let place = plan.ops.as_ptr().addr();
        let has_router = plan.ops.iter().any(|op| matches!(op, Op::Route(_)));
        let before = if has_router { RouteShape::default() } else { self.routed.shape };
        let is_same = |it: &Compiled| it.routes[0] == before && it.plan == *plan;
        let known = self.plan_places.get(&place).copied();
        if let Some(known) = known.filter(|&known| is_same(&self.plans[known])) {
            return Ok(known);
        }
        if let Some(known) = self.plans.iter().position(is_same) {
            self.plan_places.insert(place, known);
            return Ok(known);
        }
        let mut compiler = Compiler {
            gpu: &self.gpu,
            config: &self.config,
            weights: &self.weights,
            workspace: &mut self.workspace,
            slots: &self.experts.shapes,
            route: before,
            steps: Vec::new(),
        };
        compiler.plan(plan)?;
        let (route, steps) = (compiler.route, compiler.steps);
        self.grow(route)?;
        self.plans.push(Compiled { plan: plan.clone(), routes: [before, route], steps });
        self.plan_places.insert(place, self.plans.len() - 1);
        Ok(self.plans.len() - 1)
    }

    /// Compiles all plans of a model, so that no step has to: with fewer rows than were asked for
    /// where the adapter's limits are too small for what kernels need beside the workspace.
    ///
    /// # Errors
    ///
    /// [`Error::NoRoom`] if not even one row has room; [`Error::Unsupported`].
    pub fn prepare(
        &mut self,
        plan: &ModelPlan,
        experts: &[(LayerIdx, ExpertLayout)],
    ) -> Result<()> {
        for (layer, layout) in experts {
            let spans = [layout.gate, layout.up, layout.down];
            self.experts.note_shape(*layer, spans.map(|span| span.layout));
        }
        loop {
            match self.compile_all(plan) {
                Err(Error::NoRoom { .. }) if self.workspace.n_rows_max > 1 => {
                    self.set_rows(&plan.workspace, self.workspace.n_rows_max.div_ceil(2))?;
                }
                other => return other,
            }
        }
    }

    fn compile_all(&mut self, plan: &ModelPlan) -> Result<()> {
        self.compiled(&plan.embed)?;
        self.compiled(&plan.head)?;
        for layer in &plan.layers {
            let mixer = self.compiled(&layer.mixer)?;
            let Some(moe) = &layer.moe else { continue };
            self.routed.shape = self.plans[mixer].routes[1];
            for plan in [&moe.shared, &moe.experts, &moe.combine, &moe.whole, &moe.guess] {
                self.compiled(plan)?;
            }
        }
        self.routed = Routed::default();
        Ok(())
    }

    /// Begins anew with a workspace of so many rows.
    fn set_rows(&mut self, workspace: &Workspace, n_rows_max: usize) -> Result<()> {
        self.flush();
        self.plans.clear();
        self.plan_places.clear();
        self.workspace = DeviceWorkspace::new(&self.gpu, workspace, n_rows_max)?;
        self.batches = Batches::new(&self.gpu, self.workspace.n_rows_max)?;
        self.bind_model();
        Ok(())
    }

    fn bind_model(&mut self) {
        let weights = (&self.workspace, &self.weights);
        let (routes, experts) = (&self.route_pairs, &self.experts);
        self.model_group = model_group(&self.gpu, weights, &self.batches, routes, experts);
    }

    /// Makes room for what compiled plans ask for.
    fn grow(&mut self, route: RouteShape) -> Result<()> {
        let mut has_grown = false;
        if let Some(larger) = self.workspace.grown(&self.gpu)? {
            let old = &self.workspace.buffer;
            self.recorder.encoder().copy_buffer_to_buffer(old, 0, &larger, 0, old.size());
            self.workspace.buffer = larger;
            has_grown = true;
        }
        let route_bytes = (self.workspace.n_rows_max * route.top_k * 8) as u64;
        if route_bytes > self.route_pairs.size() {
            let larger = self.gpu.buffer("routes", route_bytes, STORAGE)?;
            let old = &self.route_pairs;
            self.recorder.encoder().copy_buffer_to_buffer(old, 0, &larger, 0, old.size());
            self.route_pairs = larger;
            has_grown = true;
        }
        if has_grown {
            self.bind_model();
        }
        Ok(())
    }

    /// Records the steps of a plan for a batch.
    fn record(&mut self, plan_idx: usize, batch: &Batch<'_>) {
        if !self.batches.has_room(batch) {
            self.flush();
        }
        let batch_at = self.batches.place(&self.gpu, batch);
        let compiled = &self.plans[plan_idx];
        let n_rows = match compiled.plan.rows {
            RowSet::All => batch.rows.len(),
            RowSet::Outputs => batch.outputs.len(),
        };
        let all = Head { first_row: 0, n_rows: narrow(n_rows), batch_at, place: 0 };
        let mut recording = Recording {
            recorder: &mut self.recorder,
            model_group: &self.model_group,
            weights: &self.weights,
            n_groups_max: self.gpu.n_groups_max(),
        };
        for step in &compiled.steps {
            match step.over {
                Over::Rows => recording.dispatch(step, all, None),
                Over::State(layer) => {
                    for segment in batch.segments.iter().filter(|it| !it.rows.is_empty()) {
                        let first = &batch.rows[segment.rows.start];
                        let head = Head {
                            first_row: narrow(segment.rows.start),
                            n_rows: narrow(segment.rows.len()),
                            batch_at,
                            place: narrow(first.position.0),
                        };
                        let memory = self.states.layer(segment.state, layer);
                        recording.dispatch(step, head, Some(&memory.bind_group));
                    }
                }
                Over::Experts(layer) => {
                    let bound = self.experts.bound(layer);
                    assert!(!bound.is_empty(), "layer {} has no experts here", layer.0);
                    for bound in bound {
                        let head = Head { place: bound.table_at, ..all };
                        recording.dispatch(step, head, Some(&bound.bind_group));
                    }
                }
            }
        }
        if compiled.plan.ops.iter().any(|op| matches!(op, Op::Route(_))) {
            self.routed = Routed { shape: compiled.routes[1], n_rows, is_here: false };
        }
        self.last_rows = (batch.rows.len(), batch.outputs.len().min(N_OUTPUTS_MAX));
        self.kept_rows = None;
        if self.recorder.is_full() {
            self.flush();
        }
    }

    /// Records the steps of a plan of experts over all rows that were routed, once for each buffer
    /// that holds some of the experts.
    fn record_experts(&mut self, plan_idx: usize, n_rows: usize, bound: &[Bound]) {
        let mut recording = Recording {
            recorder: &mut self.recorder,
            model_group: &self.model_group,
            weights: &self.weights,
            n_groups_max: self.gpu.n_groups_max(),
        };
        for step in &self.plans[plan_idx].steps {
            for bound in bound {
                let (n_rows, place) = (narrow(n_rows), bound.table_at);
                let head = Head { first_row: 0, n_rows, batch_at: 0, place };
                recording.dispatch(step, head, Some(&bound.bind_group));
            }
        }
        self.kept_rows = None;
        if self.recorder.is_full() {
            self.flush();
        }
    }

    fn read(&mut self, source: &wgpu::Buffer, offset_bytes: u64, target: &mut [u8]) -> Result<()> {
        let recorder = (&*self.gpu, &mut self.recorder);
        let done = self.read_back.read(recorder, (source, offset_bytes), target);
        self.n_submissions += 1;
        self.batches.submitted();
        self.experts.submitted();
        done
    }

    fn read_values(&mut self, source: &wgpu::Buffer, first: usize, n: usize) -> Result<Vec<f32>> {
        let mut values = vec![0.0; n];
        let target = bytemuck::cast_slice_mut(&mut values);
        self.read(source, (first * size_of::<f32>()) as u64, target)?;
        Ok(values)
    }
}

/// What dispatches of one plan have in common.
struct Recording<'a> {
    recorder: &'a mut Recorder,
    model_group: &'a wgpu::BindGroup,
    weights: &'a DeviceWeights,
    n_groups_max: u32,
}

impl Recording<'_> {
    /// Records a step; `bound` is the state, or the buffer of experts.
    fn dispatch(&mut self, step: &Step, head: Head, bound: Option<&wgpu::BindGroup>) {
        let grid = [step.grid.x, step.grid.y, step.grid.z].map(|extent| extent.of(head.n_rows));
        if !step.runs(head) || grid.contains(&0) {
            return;
        }
        let largest = grid.iter().max();
        assert!(largest <= Some(&self.n_groups_max), "{}: {grid:?} workgroups", step.name);
        let mut bytes = [0; 128];
        let n_bytes = 16 + 4 * step.params.len();
        let words = head.words().into_iter().chain(step.params.iter().copied());
        for (target, word) in bytes[..n_bytes].chunks_exact_mut(4).zip(words) {
            target.copy_from_slice(&word.to_le_bytes());
        }
        let pass = self.recorder.pass();
        pass.set_pipeline(&step.pipeline);
        pass.set_bind_group(0, self.model_group, &[]);
        if let Some(arena) = step.weights {
            pass.set_bind_group(1, &self.weights.arenas[arena].bind_group, &[]);
        }
        match (step.over, bound) {
            (Over::State(_), Some(bound)) => pass.set_bind_group(2, bound, &[]),
            (Over::Experts(_), Some(bound)) => pass.set_bind_group(1, bound, &[]),
            _ => {}
        }
        if let Some(arena) = step.more_weights {
            pass.set_bind_group(3, &self.weights.arenas[arena].bind_group, &[]);
        }
        pass.set_immediates(0, &bytes);
        let [x, y, z] = grid;
        pass.dispatch_workgroups(x, y, z);
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
        DeviceNames { backend: "gpu", arithmetic: Arithmetic::F32, isa }
    }

    fn n_rows_max(&self) -> usize {
        self.workspace.n_rows_max
    }

    fn create_state(&mut self, spec: &StateSpec, context: usize) -> Result<StateId> {
        self.states.create(&self.gpu, spec, context)
    }

    fn drop_state(&mut self, state: StateId) {
        // What was recorded for the session keeps its buffers until it has run.
        self.states.remove(state);
    }

    fn reset_state(&mut self, state: StateId) {
        for memory in self.states.layers(state) {
            for table in memory.tables.iter().filter(|it| it.is_whole()) {
                self.recorder.encoder().clear_buffer(&table.buffer, 0, None);
            }
        }
    }

    fn state_part_bytes(&self, state: StateId, part: StatePart) -> usize {
        let stretches = self.states.stretches(state, part);
        stretches.iter().map(|it| it.n_saved * size_of::<f32>()).sum()
    }

    fn read_state(&mut self, state: StateId, part: StatePart, target: &mut [u8]) -> Result<()> {
        let mut rest = target;
        for place in 0..self.states.stretches(state, part).len() {
            let Stretch { table, first_stored, n_stored, n_saved } =
                self.states.stretches(state, part)[place];
            let (buffer, form) = (table.buffer.clone(), table.form);
            let stored = self.read_values(&buffer, first_stored, n_stored)?;
            let mut saved = vec![0.0; n_saved];
            form.pack(&stored, &mut saved);
            let (target, after) = rest.split_at_mut(n_saved * size_of::<f32>());
            target.copy_from_slice(bytemuck::cast_slice(&saved));
            rest = after;
        }
        assert!(rest.is_empty(), "a layer has only its own kind of state");
        Ok(())
    }

    fn write_state(&mut self, state: StateId, part: StatePart, source: &[u8]) -> Result<()> {
        // Writes come before all that is submitted later: what was recorded must be first.
        self.flush();
        let mut rest = source;
        for stretch in self.states.stretches(state, part) {
            let (source, after) = rest.split_at(stretch.n_saved * size_of::<f32>());
            let saved: Vec<f32> = bytemuck::pod_collect_to_vec(source);
            let mut stored = vec![0.0; stretch.n_stored];
            stretch.table.form.unpack(&saved, &mut stored);
            let offset_bytes = (stretch.first_stored * size_of::<f32>()) as u64;
            let bytes = bytemuck::cast_slice(&stored);
            self.gpu.upload(&stretch.table.buffer, offset_bytes, bytes)?;
            rest = after;
        }
        assert!(rest.is_empty(), "a layer has only its own kind of state");
        self.gpu.check()
    }

    fn submit(&mut self, plan: &Plan, batch: &Batch<'_>) -> Result<()> {
        assert!(batch.rows.len() <= self.workspace.n_rows_max, "a batch fits the workspace");
        let plan_idx = self.compiled(plan)?;
        self.record(plan_idx, batch);
        self.gpu.check()
    }

    fn routes(&mut self) -> Result<&Routes> {
        if !self.routed.is_here {
            let Routed { shape, n_rows, .. } = self.routed;
            let mut pairs = vec![[0_u32; 2]; n_rows * shape.top_k];
            let source = self.route_pairs.clone();
            self.read(&source, 0, bytemuck::cast_slice_mut(&mut pairs))?;
            let Routes { top_k, experts, weights } = &mut self.routes;
            *top_k = shape.top_k;
            experts.clear();
            experts.extend(pairs.iter().map(|pair| ExpertIdx(pair[0] as usize)));
            weights.clear();
            weights.extend(pairs.iter().map(|pair| f32::from_bits(pair[1])));
            let last = experts.iter().max();
            if last.is_some_and(|it| it.0 >= shape.n_experts) {
                return Err(self.gpu.error("its router chose an expert that does not exist"));
            }
            self.routed.is_here = true;
        }
        Ok(&self.routes)
    }

    fn submit_experts(&mut self, plan: &Plan, arrived: &Arrived<'_>) -> Result<()> {
        if arrived.is_empty() {
            return Ok(());
        }
        let layer = layer_of(plan);
        self.experts.note_shape(layer, layouts_of(&arrived.view(0)));
        let plan_idx = self.compiled(plan)?;
        let Routed { shape, n_rows, .. } = self.routed;
        let mut first = 0;
        while first < arrived.len() {
            let device = (&*self.gpu, self.n_submissions);
            let taken = self.experts.take(device, (layer, shape.n_experts), (arrived, first))?;
            let Some(taken) = taken else {
                self.flush();
                continue;
            };
            self.record_experts(plan_idx, n_rows, &taken.bound);
            first += taken.n;
        }
        self.gpu.check()
    }

    fn keep_expert(
        &mut self,
        at: (LayerIdx, ExpertIdx),
        n_experts: usize,
        view: &ExpertView<'_>,
    ) -> Result<()> {
        self.experts.keep(&self.gpu, at, n_experts, view)
    }

    fn read_row(&mut self, buffer: BufferId, row_idx: usize, target: &mut [f32]) -> Result<()> {
        let place = self.workspace.place(buffer);
        let row_stride = place.row_stride as usize;
        let n_rows = match place.rows {
            RowSet::All => self.last_rows.0,
            RowSet::Outputs => self.last_rows.1,
        };
        let n_rows = n_rows.max(row_idx + 1);
        let is_kept =
            |kept: &KeptRows| kept.buffer == buffer && kept.values.len() >= n_rows * row_stride;
        if !self.kept_rows.as_ref().is_some_and(is_kept) {
            let source = self.workspace.buffer.clone();
            let values = self.read_values(&source, place.first as usize, n_rows * row_stride)?;
            self.kept_rows = Some(KeptRows { buffer, values });
        }
        let kept = self.kept_rows.as_ref().map_or(&[][..], |kept| &kept.values);
        assert!(target.len() <= place.n_cols, "a row has {} columns", place.n_cols);
        target.copy_from_slice(&kept[row_idx * row_stride..][..target.len()]);
        Ok(())
    }
}

/// Whose experts a plan computes.
fn layer_of(plan: &Plan) -> LayerIdx {
    let layers = plan.ops.iter().map(|op| match op {
        Op::ExpertFfn(op) => op.layer,
        other => unreachable!("{} is not an expert's op", other.name()),
    });
    layers.last().expect("a plan of experts has an op")
}
