//! Compilation of plans on first use, or of all plans when a model is opened.
//!
//! **Invariant:** the resources of compiled plans (scratch, space for routes) exist before one
//! runs.

use moeflux::provider::error::{Error, Result};
use moeflux::provider::families::ModelPlan;
use moeflux::provider::ids::LayerIdx;
use moeflux::provider::ops::{Plan, Workspace};
use moeflux::provider::weights::ExpertLayout;

use super::ahead::StepPrerecorder;
use super::{CompiledPlan, GpuBackend, RouterOutput, is_choice, model_group};
use crate::compiler::{PlanCompiler, RouteShape};
use crate::kernels;
use crate::memory::STORAGE;
use crate::memory::batches::Batches;
use crate::memory::workspace::DeviceWorkspace;

/// Upper bound on cached plan names. A model has fewer than ten plans a layer; temporary plans
/// leave names that never recur.
const N_NAMES_MAX: usize = 1 << 14;

impl GpuBackend {
    /// Returns the index of the compiled plan; compiles it if its name is new. A plan without a
    /// router also depends on the preceding router.
    pub(super) fn compiled(&mut self, plan: &Plan) -> Result<usize> {
        let before = self.router_output.shape;
        let fits = |it: &CompiledPlan| it.has_router || it.routes[0] == before;
        let known = self.plan_names.get(plan.id()).copied();
        if let Some(known) = known.filter(|&known| fits(&self.plans[known])) {
            return Ok(known);
        }
        // Temporary plans, made to find a broken op, equal earlier ones.
        let is_same = |it: &CompiledPlan| fits(it) && it.plan == *plan;
        if let Some(known) = self.plans.iter().position(is_same) {
            self.name(plan, known);
            return Ok(known);
        }
        let has_router = plan.ops().iter().any(is_choice);
        let before = if has_router { RouteShape::default() } else { before };
        self.discard_prerecorded();
        let mut compiler = PlanCompiler {
            gpu: &self.gpu,
            config: &self.config,
            weights: &self.weights,
            workspace: &mut self.workspace,
            slots: &self.experts.slot_layouts,
            route: before,
            guess: None,
            steps: Vec::new(),
        };
        kernels::compile_plan(plan, &mut compiler)?;
        let PlanCompiler { route, guess, steps, .. } = compiler;
        self.grow(route)?;
        let plan_idx = self.plans.len();
        let routes = [before, route];
        self.plans.push(CompiledPlan { plan: plan.clone(), has_router, routes, guess, steps });
        self.name(plan, plan_idx);
        Ok(plan_idx)
    }

    /// Maps a plan's name to a compiled plan.
    fn name(&mut self, plan: &Plan, plan_idx: usize) {
        if self.plan_names.len() >= N_NAMES_MAX {
            self.plan_names.clear();
        }
        self.plan_names.insert(plan.id().clone(), plan_idx);
    }

    /// Compiles all plans of a model in advance. Reduces the number of rows if the adapter's limits
    /// are too small for the kernels' scratch beside the workspace.
    ///
    /// # Errors
    ///
    /// [`Error::NoRoom`] if not even one row fits; [`Error::Unsupported`] if no kernel supports an
    /// op.
    pub fn prepare(
        &mut self,
        plan: &ModelPlan,
        experts: &[(LayerIdx, ExpertLayout)],
    ) -> Result<()> {
        for (layer, layout) in experts {
            let spans = [layout.gate, layout.up, layout.down];
            self.experts.note_slot_layout(*layer, spans.map(|span| span.layout));
        }
        loop {
            match self.compile_all(plan) {
                Err(Error::NoRoom { .. }) if self.workspace.n_rows_max > 1 => {
                    self.resize_rows(&plan.workspace, self.workspace.n_rows_max.div_ceil(2))?;
                }
                other => return other,
            }
        }
    }

    fn compile_all(&mut self, plan: &ModelPlan) -> Result<()> {
        self.compiled(&plan.embed)?;
        self.compiled(&plan.head)?;
        self.compiled(&plan.head_and_best)?;
        for layer in &plan.layers {
            let mixer = self.compiled(&layer.mixer)?;
            let Some(moe) = &layer.moe else { continue };
            self.router_output.shape = self.plans[mixer].routes[1];
            for plan in [&moe.shared, &moe.experts, &moe.combine, &moe.whole, &moe.guess] {
                self.compiled(plan)?;
            }
        }
        self.router_output = RouterOutput::default();
        let mut steps = self.plans.iter().flat_map(|plan| &plan.steps);
        steps.try_for_each(|step| step.pipeline.compiled(&self.gpu).map(drop))
    }

    /// Recreates the workspace for `n_rows_max` rows and drops all plans.
    fn resize_rows(&mut self, workspace: &Workspace, n_rows_max: usize) -> Result<()> {
        self.flush();
        self.prerecorder = StepPrerecorder::default();
        self.plans.clear();
        self.plan_names.clear();
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

    /// Allocates the memory that compiled plans need.
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
}
