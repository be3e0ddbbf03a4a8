//! [`Route`]: one workgroup per row.

use moeflux::error::Result;
use moeflux::ops::{Purpose, Route, RouterKind};

use super::Kernel;
use super::reduce::{Sums, lanes_for};
use crate::compiler::{Compiler, RouteShape};
use crate::memory::narrow;
use crate::params::{NONE, Params as _, View, params};
use crate::shader::Shader;
use crate::step::{Extent, Grid};

pub(super) const KERNEL: Kernel = Kernel {
    op: "route",
    is_done: true,
    shaders: || {
        let softmax = Kind { is_sigmoid: false, n_groups: 1, n_groups_kept: 1, renormalises: true };
        let sigmoid = Kind { is_sigmoid: true, n_groups: 8, n_groups_kept: 4, renormalises: true };
        let shape = RouteShape { top_k: 8, n_experts: 256 };
        vec![
            shader(Sums::Subgroups, (shape, Purpose::Use), sigmoid),
            shader(Sums::Shared, (shape, Purpose::Guess), softmax),
        ]
    },
    params: || vec![("route", RouteParams::fields())],
};

params! {
    struct RouteParams {
        logits: View,
        correction: u32,
        factor: f32,
        guess: View,
    }
}

/// Values of one row of a guess: experts, then their weights.
pub(crate) const fn guess_cols(top_k: usize) -> usize {
    2 * top_k
}

/// What of a [`RouterKind`] is constant in a shader.
#[derive(Clone, Copy)]
struct Kind {
    is_sigmoid: bool,
    n_groups: usize,
    n_groups_kept: usize,
    renormalises: bool,
}

fn shader(sums: Sums, (shape, purpose): (RouteShape, Purpose), kind: Kind) -> Shader {
    let shader = Shader::new("route", include_str!("route.wgsl"))
        .with("N_EXPERTS", narrow(shape.n_experts))
        .with("TOP_K", narrow(shape.top_k))
        .with("IS_SIGMOID", kind.is_sigmoid)
        .with("N_GROUPS", narrow(kind.n_groups))
        .with("N_GROUPS_KEPT", narrow(kind.n_groups_kept))
        .with("RENORMALISES", kind.renormalises)
        .with("GUESSES", purpose == Purpose::Guess)
        .piece(include_str!("functions.wgsl"));
    // Every expert is compared with all others: an invocation for each.
    sums.add_to(shader, lanes_for(4 * shape.n_experts))
}

pub(super) fn compile(op: &Route, compiler: &mut Compiler<'_>) -> Result<()> {
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
    let shader = shader(Sums::on(compiler), (shape, op.purpose), kind);
    compiler.step(&shader, &params, Grid::new(Extent::fixed(1), Extent::rows(1)))?;
    Ok(())
}
