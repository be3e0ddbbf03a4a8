//! [`Route`]: one workgroup per row.

use moeflux::provider::error::Result;
use moeflux::provider::ops::{Purpose, Route, RouterKind};

use crate::compiler::{PlanCompiler, RouteShape};
use crate::kernels::Kernel;
use crate::kernels::shared::reduce::{ReductionMethod, lanes_for};
use crate::params::{NONE, Params as _, View, narrow, params};
use crate::shader::Shader;
use crate::step::{Grid, GridExtent};

pub(crate) const KERNEL: Kernel = Kernel {
    op: "route",
    shaders: || {
        let kinds = RouteConstants::examples().into_iter().zip(ReductionMethod::ALL);
        kinds.map(|(constants, reduction)| shader(reduction, constants)).collect()
    },
};

params! {
    struct RouteParams {
        logits: View,
        correction: u32,
        factor: f32,
        guess: View,
    }
}

/// Returns the values of one row of a guess: experts, then their weights.
pub(crate) const fn guess_cols(top_k: usize) -> usize {
    2 * top_k
}

/// Constants of a [`RouterKind`] in a shader.
#[derive(Clone, Copy)]
struct ScoringConstants {
    is_sigmoid: bool,
    n_groups: usize,
    n_groups_kept: usize,
    renormalises: bool,
}

/// Constants of an op in a shader.
#[derive(Clone, Copy)]
pub(crate) struct RouteConstants {
    shape: RouteShape,
    purpose: Purpose,
    scoring: ScoringConstants,
}

impl RouteConstants {
    /// Returns one of each kind, for tests.
    pub(crate) fn examples() -> [Self; 2] {
        let softmax = ScoringConstants {
            is_sigmoid: false,
            n_groups: 1,
            n_groups_kept: 1,
            renormalises: true,
        };
        let sigmoid = ScoringConstants {
            is_sigmoid: true,
            n_groups: 8,
            n_groups_kept: 4,
            renormalises: true,
        };
        let shape = RouteShape { top_k: 8, n_experts: 256 };
        [
            Self { shape, purpose: Purpose::Compute, scoring: sigmoid },
            Self { shape, purpose: Purpose::Prefetch, scoring: softmax },
        ]
    }

    /// Adds the constants and the function `choose(lanes, row)`.
    pub(crate) fn add_to(self, shader: Shader) -> Shader {
        let Self { shape, purpose, scoring } = self;
        shader
            .with("N_EXPERTS", narrow(shape.n_experts))
            .with("TOP_K", narrow(shape.top_k))
            .with("IS_SIGMOID", scoring.is_sigmoid)
            .with("N_GROUPS", narrow(scoring.n_groups))
            .with("N_GROUPS_KEPT", narrow(scoring.n_groups_kept))
            .with("RENORMALISES", scoring.renormalises)
            .with("GUESSES", purpose == Purpose::Prefetch)
            .fragment(include_str!("../shared/functions.wgsl"))
            .fragment(include_str!("route_row.wgsl"))
    }
}

fn shader(reduction: ReductionMethod, constants: RouteConstants) -> Shader {
    let shader =
        constants.add_to(Shader::new("route", RouteParams::WGSL, include_str!("route.wgsl")));
    // Every expert is compared with all others: one invocation for each.
    reduction.add_to(shader, lanes_for(4 * constants.shape.n_experts))
}

pub(crate) fn compile(op: &Route, compiler: &mut PlanCompiler<'_>) -> Result<()> {
    let (constants, params) = described(op, compiler)?;
    let shader = shader(ReductionMethod::on(compiler), constants);
    compiler.step(&shader, &params, Grid::new(GridExtent::fixed(1), GridExtent::rows(1)))?;
    Ok(())
}

/// Returns the constants and parameters of a choice; registers the location of its result.
pub(super) fn described(
    op: &Route,
    compiler: &mut PlanCompiler<'_>,
) -> Result<(RouteConstants, RouteParams)> {
    let shape = RouteShape { top_k: op.top_k, n_experts: op.logits.head_dim };
    let guess = match op.purpose {
        Purpose::Compute => {
            compiler.set_route(shape);
            View::NOWHERE
        }
        Purpose::Prefetch => {
            let guess = compiler.scratch("guess", guess_cols(op.top_k))?;
            compiler.set_guess((guess, shape));
            guess
        }
    };
    let (scoring, correction, factor) = match op.kind {
        RouterKind::Softmax { renormalise } => {
            let renormalises = renormalise;
            let scoring =
                ScoringConstants { is_sigmoid: false, n_groups: 1, n_groups_kept: 1, renormalises };
            (scoring, NONE, 1.0)
        }
        RouterKind::SigmoidGrouped { correction, n_groups, n_groups_kept, renormalise, factor } => {
            let renormalises = renormalise;
            let scoring =
                ScoringConstants { is_sigmoid: true, n_groups, n_groups_kept, renormalises };
            (scoring, compiler.vector(correction), factor)
        }
    };
    let params = RouteParams { logits: compiler.view(&op.logits), correction, factor, guess };
    Ok((RouteConstants { shape, purpose: op.purpose, scoring }, params))
}
