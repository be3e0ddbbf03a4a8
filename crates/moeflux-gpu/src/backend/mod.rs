//! The interpreter: plans become steps once, batches become commands.
//!
//! Submitting a plan records it. The device begins when something must come back, or when enough
//! is recorded. **Invariant:** commands run in the order of submission; what was recorded keeps
//! the buffers and rows that it was recorded with.

mod compile;
mod record;

use std::collections::HashMap;
use std::sync::Arc;

use moeflux::backend::{Arithmetic, Backend, DeviceNames, StatePart, TierStats};
use moeflux::error::Result;
use moeflux::experts::Arrived;
use moeflux::experts::stream::{Move, SeenSlots, SlotSight};
use moeflux::ids::{BufferId, ExpertIdx, LayerIdx, StateId};
use moeflux::ops::{Batch, Op, Plan, Purpose, Routes, RowSet, StateSpec, Workspace};
use moeflux::weights::{ExpertView, Weights};

use crate::compiler::RouteShape;
use crate::device::Gpu;
use crate::experts::{DeviceExperts, layouts_of};
use crate::kernels::{MatrixUnit, guess_cols};
use crate::memory::STORAGE;
use crate::memory::batches::Batches;
use crate::memory::states::{States, Stretch};
use crate::memory::weights::DeviceWeights;
use crate::memory::workspace::DeviceWorkspace;
use crate::params::View;
use crate::recorder::{ReadBack, Recorder};
use crate::seen::can_see;
use crate::staging::Flow;
use crate::step::Step;

/// Where the experts lie that kernels see.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Tiers {
    /// In the device's memory.
    #[default]
    Device,
    /// Some in the device's memory, some in the host's.
    DeviceAndHost,
}

/// What multiplies matrices in half precision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Matrices {
    /// The adapter's unit, if it has one.
    OfDevice,
    /// Plain kernels, for tests on adapters that have none: slower than without.
    Emulated,
}

/// How a backend is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuConfig {
    /// Whether ops that follow each other may run as one.
    pub fuses: bool,
    /// Whether kernels may use subgroups where the adapter has them.
    pub uses_subgroups: bool,
    /// [`Arithmetic::F16Staged`] where the adapter multiplies matrices in half precision and that
    /// is asked for; otherwise f32.
    pub arithmetic: Arithmetic,
    /// What multiplies what was staged.
    pub matrices: Matrices,
    /// Bytes of routed experts in the device's memory at most.
    pub expert_bytes_max: u64,
    /// Bytes of one buffer of them at most; by default as many as kernels see at once.
    pub expert_buffer_bytes_max: u64,
    /// Whether those for which `expert_bytes_max` has no room are kept in the host's memory, where
    /// kernels read them.
    pub tiers: Tiers,
}

impl Default for GpuConfig {
    fn default() -> Self {
        Self {
            fuses: true,
            uses_subgroups: true,
            arithmetic: Arithmetic::F32,
            matrices: Matrices::OfDevice,
            expert_bytes_max: 1 << 30,
            expert_buffer_bytes_max: u64::MAX,
            tiers: Tiers::Device,
        }
    }
}

impl GpuConfig {
    /// What multiplies matrices in half precision, where they may be rounded to it.
    pub(crate) fn matrix_unit(&self, gpu: &Gpu) -> Option<MatrixUnit> {
        let unit = match self.matrices {
            Matrices::OfDevice => gpu.matrix_unit(),
            Matrices::Emulated => gpu.facts().has_f16.then_some(MatrixUnit::Plain),
        };
        unit.filter(|_| self.arithmetic == Arithmetic::F16Staged)
    }
}

/// A compiled plan.
#[derive(Debug)]
struct Compiled {
    plan: Plan,
    /// What a router had left before it, and what one leaves after it.
    routes: [RouteShape; 2],
    /// Where a router of it leaves a guess.
    guess: Option<(View, RouteShape)>,
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

/// What the last batch asked of a router beforehand, until it is read.
#[derive(Clone, Copy, Debug)]
struct Guess {
    view: View,
    shape: RouteShape,
    n_rows: usize,
}

impl Guess {
    const fn n_values(&self) -> usize {
        self.n_rows * self.view.row_stride as usize
    }
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
    guess: Option<Guess>,
    guessed: Routes,
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
        let experts = DeviceExperts::new(&gpu, &config)?;
        let route_pairs = gpu.buffer("routes", 16, STORAGE)?;
        let model_group =
            model_group(&gpu, (&workspace, &weights), &batches, &route_pairs, &experts);
        let recorder = Recorder::new(Arc::clone(&gpu))?;
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
            guess: None,
            guessed: Routes::default(),
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

    /// Reads streamed experts where they lie in the host's memory, in such slots, if the driver
    /// lets kernels do that. Before plans are compiled.
    ///
    /// # Errors
    ///
    /// [`moeflux::error::Error::NoRoom`].
    pub fn see_slots(&mut self, slots: &SeenSlots) -> Result<()> {
        if can_see(self.gpu.device()) {
            self.experts.see_slots(&self.gpu, slots)?;
        }
        Ok(())
    }

    fn begin_step(&mut self) -> Result<()> {
        while !self.experts.begin_step(&mut Flow {
            gpu: &self.gpu,
            recorder: &mut self.recorder,
            submission: self.n_submissions,
        })? {
            self.flush();
        }
        Ok(())
    }

    /// Hands all that was recorded to the device.
    fn flush(&mut self) {
        self.recorder.submit();
        self.n_submissions += 1;
        self.batches.submitted();
        self.experts.submitted();
    }

    fn read(&mut self, sources: &[(&wgpu::Buffer, u64, u64)], target: &mut [u8]) -> Result<()> {
        let recorder = (&*self.gpu, &mut self.recorder);
        let done = self.read_back.read(recorder, sources, target);
        self.n_submissions += 1;
        self.batches.submitted();
        self.experts.submitted();
        done
    }

    fn read_values(&mut self, source: &wgpu::Buffer, first: usize, n: usize) -> Result<Vec<f32>> {
        let mut values = vec![0.0; n];
        let target: &mut [u8] = bytemuck::cast_slice_mut(&mut values);
        let stretch = (source, (first * size_of::<f32>()) as u64, target.len() as u64);
        self.read(&[stretch], target)?;
        Ok(values)
    }
}

impl GpuBackend {
    fn read_guess(&mut self) -> Result<&Routes> {
        if let Some(guess) = self.guess.take() {
            let source = self.workspace.buffer.clone();
            let (first, n_values) = (guess.view.first as usize, guess.n_values());
            let values = self.read_values(&source, first, n_values)?;
            self.keep_guess(guess, &values)?;
        }
        Ok(&self.guessed)
    }

    fn keep_guess(&mut self, guess: Guess, values: &[f32]) -> Result<()> {
        let Guess { view, shape, .. } = guess;
        let Routes { top_k, experts, weights } = &mut self.guessed;
        *top_k = shape.top_k;
        experts.clear();
        weights.clear();
        for row in values.chunks(view.row_stride as usize) {
            let (named, weighed) = row[..guess_cols(shape.top_k)].split_at(shape.top_k);
            experts.extend(named.iter().map(|it| ExpertIdx(index_of(*it))));
            weights.extend_from_slice(weighed);
        }
        if experts.iter().any(|it| it.0 >= shape.n_experts) {
            return Err(self.gpu.error("its router named an expert that does not exist"));
        }
        Ok(())
    }
}

/// An index that a kernel wrote as a float: exact, since no layer has 2^24 experts.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a whole number; what is none becomes one that is checked"
)]
fn index_of(value: f32) -> usize {
    value as usize
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
        let unit = self.config.matrix_unit(&self.gpu);
        let arithmetic = unit.map_or(Arithmetic::F32, |_| Arithmetic::F16Staged);
        DeviceNames { backend: "gpu", arithmetic, isa }
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
        if matches!(plan.ops.first(), Some(Op::Embed(_))) {
            self.begin_step()?;
        }
        self.record(plan_idx, batch)?;
        self.gpu.check()
    }

    fn routes(&mut self, purpose: Purpose) -> Result<&Routes> {
        if purpose == Purpose::Guess {
            return self.read_guess();
        }
        if !self.routed.is_here {
            let Routed { shape, n_rows, .. } = self.routed;
            // What was asked beforehand comes with it.
            let guess = self.guess.take();
            let n_guessed = guess.as_ref().map_or(0, Guess::n_values);
            let n_words = 2 * n_rows * shape.top_k;
            let mut words = vec![0_u32; n_words + n_guessed];
            let (chosen, workspace) = (self.route_pairs.clone(), self.workspace.buffer.clone());
            let guessed_at = guess.as_ref().map_or(0, |guess| u64::from(guess.view.first) * 4);
            let stretches =
                [(&chosen, 0, n_words as u64 * 4), (&workspace, guessed_at, n_guessed as u64 * 4)];
            let n_stretches = 1 + usize::from(guess.is_some());
            self.read(&stretches[..n_stretches], bytemuck::cast_slice_mut(&mut words))?;
            let (pairs, values) = words.split_at(n_words);
            if let Some(guess) = guess {
                self.keep_guess(guess, bytemuck::cast_slice(values))?;
            }
            let pairs = pairs.chunks_exact(2);
            let Routes { top_k, experts, weights } = &mut self.routes;
            *top_k = shape.top_k;
            experts.clear();
            experts.extend(pairs.clone().map(|pair| ExpertIdx(pair[0] as usize)));
            weights.clear();
            weights.extend(pairs.map(|pair| f32::from_bits(pair[1])));
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
        // What lies near or is seen has its shape already.
        if let Some(at) = (0..arrived.len()).find(|at| arrived.near(*at).is_none()) {
            self.experts.note_shape(layer, layouts_of(&arrived.view(at)));
        }
        let plan_idx = self.compiled(plan)?;
        let Routed { shape, n_rows, .. } = self.routed;
        let mut first = 0;
        while first < arrived.len() {
            let of_layer = (layer, shape.n_experts);
            let mut flow = Flow {
                gpu: &self.gpu,
                recorder: &mut self.recorder,
                submission: self.n_submissions,
            };
            let taken = self.experts.take(&mut flow, of_layer, (arrived, first))?;
            let Some(taken) = taken else {
                self.flush();
                continue;
            };
            self.record_experts(plan_idx, n_rows, &taken.bound)?;
            first += taken.n;
        }
        // The device computes these while others are on their way.
        if (0..arrived.len()).all(|at| arrived.near(at).is_some() || arrived.seen(at).is_some()) {
            self.flush();
        }
        self.gpu.check()
    }

    fn keep_expert(
        &mut self,
        at: (LayerIdx, ExpertIdx),
        n_experts: usize,
        view: &ExpertView<'_>,
    ) -> Result<()> {
        while !self.experts.keep(
            &mut Flow {
                gpu: &self.gpu,
                recorder: &mut self.recorder,
                submission: self.n_submissions,
            },
            at,
            n_experts,
            view,
        )? {
            self.flush();
        }
        self.gpu.check()
    }

    fn tier_stats(&self) -> Option<TierStats> {
        self.experts.tier_stats()
    }

    fn slot_sight(&self) -> Option<Arc<dyn SlotSight>> {
        self.experts.slot_sight()
    }

    fn bring_near(&mut self, expert: &Move<'_>) -> Result<()> {
        while !self.experts.bring_near(
            &mut Flow {
                gpu: &self.gpu,
                recorder: &mut self.recorder,
                submission: self.n_submissions,
            },
            expert,
        )? {
            self.flush();
        }
        self.gpu.check()
    }

    fn is_remote(&self) -> bool {
        true
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
    let mut layers = plan.ops.iter().map(|op| match op {
        Op::ExpertFfn(op) => op.layer,
        other => unreachable!("{} is not an expert's op", other.name()),
    });
    layers.next().expect("a plan of experts has an op")
}
