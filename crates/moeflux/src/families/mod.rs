//! A valid spec and a checkpoint's tensors become a model's plans.
//!
//! The published families share their blocks; where they differ, in names of tensors and in how
//! projections are fused, the block asks the spec's family.
//! **Invariant:** each tensor that a family has is bound here, under its published name; what
//! stays unbound is left over, and refused by the binder. Nothing here reads a weight.

mod site;
mod attention;
mod ffn;
mod gated_delta;
mod mla;
mod decoder;
mod divide;

pub(crate) use decoder::build;

use std::ops::Range;

use crate::ops::{Heads, Plan, StateSpec, Workspace};

/// A model as plans: what to run, layer by layer.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelPlan {
    /// The activation buffers that all plans share.
    pub workspace: Workspace,
    /// What each layer remembers of a session.
    pub state: StateSpec,
    /// Tokens to the residual stream.
    pub embed: Plan,
    /// The decoder, in order.
    pub layers: Vec<LayerPlan>,
    /// Wanted rows of the residual stream to logits.
    pub head: Plan,
    /// Where `head` leaves the logits.
    pub logits: Heads,
    /// `head`, and which logits are the best.
    pub head_and_best: Plan,
    /// Where `head_and_best` leaves these: see [`crate::ops::Best`].
    pub best: Heads,
}

/// One decoder layer. A sparse layer's decision stands between `mixer` and the rest.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerPlan {
    /// Norm, mixer, residual; then the dense feed-forward, or the norm and the router.
    pub mixer: Plan,
    /// What follows the router's choice.
    pub moe: Option<MoePlan>,
}

/// The sparse part of a layer.
#[derive(Clone, Debug, PartialEq)]
pub struct MoePlan {
    /// The expert that every token uses: computed while routed experts are on their way.
    pub shared: Plan,
    /// For each group of routed experts that has arrived.
    pub experts: Plan,
    /// Sum and residual.
    pub combine: Plan,
    /// The whole layer, mixer and all, for a device that holds the experts itself.
    pub whole: Plan,
    /// What the router would choose, and what comes next in its favour, if nothing were added to
    /// the residual stream until then: run while the experts of the layer before are on their way.
    pub guess: Plan,
    /// Where several machines have some rows each of every expert.
    pub divided: Option<DividedExperts>,
}

/// What one of several machines computes of experts, and what of them the others do.
#[derive(Clone, Debug, PartialEq)]
pub struct DividedExperts {
    /// For each group that has arrived; behind it inner values travel.
    pub up: Plan,
    /// For all experts of a wave; behind the last wave columns of the sum travel.
    pub down: Plan,
    /// What experts read.
    pub x: Heads,
    /// Rows of gate and up of whole experts.
    pub n_inner: usize,
    /// Which of these each machine has.
    pub inner: Vec<Range<usize>>,
    /// Which columns of the sum.
    pub sums: Vec<Heads>,
}
