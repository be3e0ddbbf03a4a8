//! The choice of experts and an independent product, side by side as one step for a few rows: the
//! last product of the shared expert takes no extra time.
//!
//! **Invariant:** results equal those of the two ops alone, row by row; many rows use their steps.

use moeflux::provider::error::Result;
use moeflux::provider::ops::{MatMul, Op, Purpose, Route};
use moeflux_kernels::MatrixLayout;

use super::route::{self, RouteConstants};
use crate::compiler::PlanCompiler;
use crate::kernels::products::decode_matrix::{self, kind_of, reading};
use crate::kernels::products::matvec::{Matvec, N_INVOCATIONS, ROWS_FEW};
use crate::kernels::shared::reduce::ReductionMethod;
use crate::kernels::{Kernel, compile_unfused};
use crate::memory::weights::MatrixSlice;
use crate::params::{Params, View, narrow, params};
use crate::shader::Shader;
use crate::step::{Grid, GridExtent};

pub(crate) const KERNEL: Kernel = Kernel { op: NAME, shaders };

/// Name of the shader.
const NAME: &str = "route and product";

params! {
    struct RouteAndProductParams {
        logits: View,
        correction: u32,
        factor: f32,
        guess: View,
        x: View,
        out: View,
        n_cols: u32,
        n_outputs: u32,
        codes: u32,
        scales: u32,
        biases: u32,
    }
}

/// A router's choice, and the product after it in the list.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RouteAndProduct<'a> {
    ops: &'a [Op],
    route: &'a Route,
    product: &'a MatMul,
    layout: MatrixLayout,
    slice: MatrixSlice,
}

impl<'a> RouteAndProduct<'a> {
    /// Number of ops.
    pub(crate) const N_OPS: usize = 2;

    /// Returns the first ops of a list, if they are these.
    pub(crate) fn of(ops: &'a [Op], compiler: &PlanCompiler<'_>) -> Option<Self> {
        let [Op::Route(route), Op::MatMul(product), ..] = ops else {
            return None;
        };
        let matrix = compiler.matrix(product.weight);
        let &[slice] = matrix.slices.as_slice() else {
            return None;
        };
        let is_apart = ![product.x.buffer, route.logits.buffer].contains(&product.out.buffer);
        let fits = route.purpose == Purpose::Compute && product.bias.is_none() && is_apart;
        let layout = matrix.layout;
        fits.then_some(Self { ops: &ops[..Self::N_OPS], route, product, layout, slice })
    }

    /// Appends the steps.
    pub(crate) fn compile_fused(&self, compiler: &mut PlanCompiler<'_>) -> Result<()> {
        let Self { ops, route, product, layout, slice } = *self;
        let sizes = compiler.subgroup_sizes();
        let matvec = Matvec::new((layout.n_rows, layout.n_cols), sizes);
        let (constants, chosen) = route::described(route, compiler)?;
        let params = RouteAndProductParams {
            logits: chosen.logits,
            correction: chosen.correction,
            factor: chosen.factor,
            guess: chosen.guess,
            x: compiler.view(&product.x),
            out: compiler.view(&product.out),
            n_cols: narrow(layout.n_cols),
            n_outputs: slice.n_rows,
            codes: slice.codes,
            scales: slice.scales,
            biases: slice.biases,
        };
        let n_groups = slice.n_rows.div_ceil(matvec.outs_per_group()) + 1;
        let grid = Grid::new(GridExtent::fixed(n_groups), GridExtent::rows(1));
        let shader = shader((ReductionMethod::on(compiler), constants), (layout, matvec));
        compiler.step(&shader, &params, grid)?.weights(slice.arena).when(1..=ROWS_FEW);
        compile_unfused(ops, compiler, ROWS_FEW + 1)
    }
}

fn shader(
    (reduction, constants): (ReductionMethod, RouteConstants),
    (layout, matvec): (MatrixLayout, Matvec),
) -> Shader {
    let shader = matvec.shader(NAME, RouteAndProductParams::WGSL, include_str!("fused_route.wgsl"));
    let shader = reading(shader, [("KIND", kind_of(layout))]);
    reduction.add_to(constants.add_to(shader), N_INVOCATIONS)
}

fn shaders() -> Vec<Shader> {
    let constants = ReductionMethod::ALL.into_iter().zip(RouteConstants::examples());
    let matvecs = Matvec::examples().into_iter();
    let layouts = [decode_matrix::examples()[1], decode_matrix::examples()[9]];
    let products = layouts.into_iter().zip(matvecs);
    constants.zip(products).map(|(constants, product)| shader(constants, product)).collect()
}
