//! [`Route`]: one workgroup per row.

use moeflux::provider::error::Result;
use moeflux::provider::ops::{Purpose, Route, RouterKind};

use super::Kernel;
use super::reduce::{Sums, lanes_for};
use crate::compiler::{Compiler, RouteShape};
use crate::params::{NONE, Params as _, View, narrow, params};
use crate::shader::Shader;
use crate::step::{Extent, Grid};

pub(super) const KERNEL: Kernel = Kernel {
    op: "route",
    shaders: || {
        let kinds = Choice::examples().into_iter().zip(Sums::ALL);
        kinds.map(|(choice, sums)| shader(sums, choice)).collect()
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
struct Kind {
    is_sigmoid: bool,
    n_groups: usize,
    n_groups_kept: usize,
    renormalises: bool,
}

/// Constants of an op in a shader.
#[derive(Clone, Copy)]
pub(super) struct Choice {
    shape: RouteShape,
    purpose: Purpose,
    kind: Kind,
}

impl Choice {
    /// Returns one of each kind, for tests.
    pub(super) fn examples() -> [Self; 2] {
        let softmax = Kind { is_sigmoid: false, n_groups: 1, n_groups_kept: 1, renormalises: true };
        let sigmoid = Kind { is_sigmoid: true, n_groups: 8, n_groups_kept: 4, renormalises: true };
        let shape = RouteShape { top_k: 8, n_experts: 256 };
        [
            Self { shape, purpose: Purpose::Use, kind: sigmoid },
            Self { shape, purpose: Purpose::Guess, kind: softmax },
        ]
    }

    /// Adds the constants and the function `choose(lanes, row)`.
    pub(super) fn add_to(self, shader: Shader) -> Shader {
        let Self { shape, purpose, kind } = self;
        shader
            .with("N_EXPERTS", narrow(shape.n_experts))
            .with("TOP_K", narrow(shape.top_k))
            .with("IS_SIGMOID", kind.is_sigmoid)
            .with("N_GROUPS", narrow(kind.n_groups))
            .with("N_GROUPS_KEPT", narrow(kind.n_groups_kept))
            .with("RENORMALISES", kind.renormalises)
            .with("GUESSES", purpose == Purpose::Guess)
            .piece(include_str!("functions.wgsl"))
            .piece(include_str!("route_row.wgsl"))
    }
}

fn shader(sums: Sums, choice: Choice) -> Shader {
    let shader = choice.add_to(Shader::new("route", RouteParams::WGSL, include_str!("route.wgsl")));
    // Every expert is compared with all others: one invocation for each.
    sums.add_to(shader, lanes_for(4 * choice.shape.n_experts))
}

pub(super) fn compile(op: &Route, compiler: &mut Compiler<'_>) -> Result<()> {
    let (choice, params) = described(op, compiler)?;
    let shader = shader(Sums::on(compiler), choice);
    compiler.step(&shader, &params, Grid::new(Extent::fixed(1), Extent::rows(1)))?;
    Ok(())
}

/// Returns the constants and parameters of a choice; registers the location of its result.
pub(super) fn described(op: &Route, compiler: &mut Compiler<'_>) -> Result<(Choice, RouteParams)> {
    let shape = RouteShape { top_k: op.top_k, n_experts: op.logits.head_dim };
    let guess = match op.purpose {
        Purpose::Use => {
            compiler.set_route(shape);
            View::NOWHERE
        }
        Purpose::Guess => {
            let guess = compiler.scratch("guess", guess_cols(op.top_k))?;
            compiler.set_guess((guess, shape));
            guess
        }
    };
    let (kind, correction, factor) = match op.kind {
        RouterKind::Softmax { renormalise } => {
            let renormalises = renormalise;
            let kind = Kind { is_sigmoid: false, n_groups: 1, n_groups_kept: 1, renormalises };
            (kind, NONE, 1.0)
        }
        RouterKind::SigmoidGrouped { correction, n_groups, n_groups_kept, renormalise, factor } => {
            let renormalises = renormalise;
            let kind = Kind { is_sigmoid: true, n_groups, n_groups_kept, renormalises };
            (kind, compiler.vector(correction), factor)
        }
    };
    let params = RouteParams { logits: compiler.view(&op.logits), correction, factor, guess };
    Ok((Choice { shape, purpose: op.purpose, kind }, params))
}
