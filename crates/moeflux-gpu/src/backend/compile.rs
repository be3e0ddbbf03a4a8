//! Compilation of plans on first use, or of all plans when a model is opened.
//!
//! **Invariant:** the resources of compiled plans (scratch, space for routes) exist before one
//! runs.

use moeflux::provider::error::{Error, Result};
use moeflux::provider::families::ModelPlan;
use moeflux::provider::ids::LayerIdx;
use moeflux::provider::ops::{Plan, Workspace};
use moeflux::provider::weights::ExpertLayout;

use super::GpuBackend;
use super::plans::{CompiledPlan, CompiledPlans, has_router};
use super::prerecord::StepPrerecorder;
use crate::compiler::{PlanCompiler, RouteShape};
use crate::kernels;

impl GpuBackend {
    /// Returns the index of the compiled plan; compiles it if it is new. A plan without a router
    /// also depends on the shape of the preceding router's output.
    pub(super) fn compiled(&mut self, plan: &Plan, before: RouteShape) -> Result<usize> {
        if let Some(known) = self.plans.find(plan, before) {
            return Ok(known);
        }
        let has_router = has_router(plan);
        let before = if has_router { RouteShape::default() } else { before };
        self.discard_prerecorded();
        let mut compiler = PlanCompiler {
            gpu: &self.gpu,
            config: &self.config,
            weights: &self.memory.weights,
            workspace: &mut self.memory.workspace,
            slots: &self.memory.experts.slot_layouts,
            route: before,
            guess: None,
            steps: Vec::new(),
        };
        kernels::compile_plan(plan, &mut compiler)?;
        let PlanCompiler { route, guess, steps, .. } = compiler;
        self.memory.grow(&mut self.recorder, route)?;
        let (plan, routes) = (plan.clone(), [before, route]);
        Ok(self.plans.add(CompiledPlan { plan, routes, guess, steps, has_router }))
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
            self.memory.experts.note_slot_layout(*layer, spans.map(|span| span.layout));
        }
        loop {
            match self.compile_all(plan) {
                Err(Error::NoRoom { .. }) if self.memory.workspace.n_rows_max > 1 => {
                    self.resize_rows(
                        &plan.workspace,
                        self.memory.workspace.n_rows_max.div_ceil(2),
                    )?;
                }
                other => return other,
            }
        }
    }

    fn compile_all(&mut self, plan: &ModelPlan) -> Result<()> {
        let mut before = RouteShape::default();
        self.compiled(&plan.embed, before)?;
        self.compiled(&plan.head, before)?;
        self.compiled(&plan.head_and_best, before)?;
        for layer in &plan.layers {
            let mixer = self.compiled(&layer.mixer, before)?;
            let Some(moe) = &layer.moe else { continue };
            before = self.plans[mixer].routes[1];
            for plan in [&moe.shared, &moe.experts, &moe.combine, &moe.whole, &moe.guess] {
                self.compiled(plan, before)?;
            }
        }
        self.plans.steps().try_for_each(|step| step.pipeline.compiled(&self.gpu).map(drop))
    }

    /// Recreates the workspace for `n_rows_max` rows and drops all plans.
    fn resize_rows(&mut self, workspace: &Workspace, n_rows_max: usize) -> Result<()> {
        self.flush();
        self.prerecorder = StepPrerecorder::default();
        self.plans = CompiledPlans::default();
        self.memory.resize_rows(&self.gpu, workspace, n_rows_max)
    }
}
