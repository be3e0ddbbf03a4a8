//! Compiled plans, found by their names.
//!
//! **Invariant:** the index of a plan is valid until all plans are dropped together.

use std::collections::HashMap;
use std::ops::Index;

use moeflux::provider::ops::{Batch, Op, Plan, PlanId, Purpose, RowSet};

use crate::compiler::RouteShape;
use crate::params::View;
use crate::step::DispatchStep;

/// Upper bound on cached plan names. A model has fewer than ten plans a layer; temporary plans
/// leave names that never recur.
const N_NAMES_MAX: usize = 1 << 14;

/// A compiled plan.
#[derive(Debug)]
pub(super) struct CompiledPlan {
    pub(super) plan: Plan,
    /// Shapes of the router output before and after it. A plan with a router of its own does not
    /// depend on the one before.
    pub(super) routes: [RouteShape; 2],
    /// Location of its router's guess, if it has one.
    pub(super) guess: Option<(View, RouteShape)>,
    pub(super) steps: Vec<DispatchStep>,
    /// Whether it contains a router that chooses the experts to compute.
    pub(super) has_router: bool,
}

impl CompiledPlan {
    /// Returns the number of batch rows that the plan computes.
    pub(super) const fn n_rows(&self, batch: &Batch<'_>) -> usize {
        match self.plan.rows() {
            RowSet::All => batch.rows.len(),
            RowSet::Outputs => batch.outputs.len(),
        }
    }

    /// Returns whether the plan may follow a router whose output has this shape.
    fn may_follow(&self, before: RouteShape) -> bool {
        self.has_router || self.routes[0] == before
    }
}

/// Returns whether a plan contains a router that chooses the experts to compute.
pub(super) fn has_router(plan: &Plan) -> bool {
    let is_choice = |op: &Op| matches!(op, Op::Route(it) if it.purpose == Purpose::Compute);
    plan.ops().iter().any(is_choice)
}

/// All compiled plans.
#[derive(Debug, Default)]
pub(super) struct CompiledPlans {
    plans: Vec<CompiledPlan>,
    /// Index of the plan for each name.
    names: HashMap<PlanId, usize>,
}

impl CompiledPlans {
    /// Returns the index of a plan that may follow a router whose output has this shape.
    pub(super) fn find(&mut self, plan: &Plan, before: RouteShape) -> Option<usize> {
        let named = self.names.get(plan.id()).copied();
        let named = named.filter(|&plan_idx| self.plans[plan_idx].may_follow(before));
        if named.is_some() {
            return named;
        }
        // Temporary plans, made to find a broken op, equal earlier ones.
        let is_same = |it: &CompiledPlan| it.may_follow(before) && it.plan == *plan;
        let plan_idx = self.plans.iter().position(is_same)?;
        self.name(plan.id(), plan_idx);
        Some(plan_idx)
    }

    /// Adds a plan. Returns its index.
    pub(super) fn add(&mut self, compiled: CompiledPlan) -> usize {
        let plan_idx = self.plans.len();
        self.name(compiled.plan.id(), plan_idx);
        self.plans.push(compiled);
        plan_idx
    }

    /// Returns the steps of all plans.
    pub(super) fn steps(&self) -> impl Iterator<Item = &DispatchStep> {
        self.plans.iter().flat_map(|plan| &plan.steps)
    }

    fn name(&mut self, id: &PlanId, plan_idx: usize) {
        if self.names.len() >= N_NAMES_MAX {
            self.names.clear();
        }
        self.names.insert(id.clone(), plan_idx);
    }
}

impl Index<usize> for CompiledPlans {
    type Output = CompiledPlan;

    fn index(&self, plan_idx: usize) -> &CompiledPlan {
        &self.plans[plan_idx]
    }
}
