//! [`MatMul`]: a few rows one by one, each computed as if alone; many rows in tiles, by cooperative
//! matrices if the device has them and may round.

use moeflux::provider::error::Result;
use moeflux::provider::ops::MatMul;
use moeflux_kernels::MatrixLayout;

use super::coop_tile::{self, CoopTile};
use super::decode_matrix::{self, kind_of, reading};
use super::matvec::{Matvec, ROWS_FEW};
use super::tile::ProductTile;
use crate::compiler::PlanCompiler;
use crate::config::MatrixUnit;
use crate::kernels::Kernel;
use crate::memory::weights::MatrixSlice;
use crate::params::{NONE, Params as _, View, narrow, params};
use crate::shader::{Shader, VectorWidth};
use crate::step::{Grid, GridExtent};

pub(crate) const KERNEL: Kernel = Kernel { op: "matmul", shaders };

params! {
    struct MatMulParams {
        x: View,
        out: View,
        n_cols: u32,
        /// Outputs in the bound arena.
        first_output: u32,
        n_outputs: u32,
        /// Offsets of the parts of their rows, in words.
        codes: u32,
        scales: u32,
        biases: u32,
        /// Offset of the bias, or `NONE`.
        bias: u32,
    }
}

fn few_shader(layout: MatrixLayout, matvec: Matvec, width: VectorWidth) -> Shader {
    let shader = matvec.shader("matmul", MatMulParams::WGSL, include_str!("matmul.wgsl"));
    stored(shader.workspace(width), layout)
}

fn tile_shader(layout: MatrixLayout, tile: ProductTile) -> Shader {
    stored(tile.shader("matmul_tile", MatMulParams::WGSL, include_str!("matmul_tile.wgsl")), layout)
}

fn coop_shader(layout: MatrixLayout, (tile, unit): (CoopTile, MatrixUnit)) -> Shader {
    stored(
        tile.shader(unit, "matmul_coop", MatMulParams::WGSL, include_str!("matmul_coop.wgsl")),
        layout,
    )
}

/// Adds the common parts: the weight, and the storing of results.
fn stored(shader: Shader, layout: MatrixLayout) -> Shader {
    reading(shader, [("KIND", kind_of(layout))]).fragment(include_str!("matmul_store.wgsl"))
}

fn shaders() -> Vec<Shader> {
    let mut shaders = Vec::new();
    for layout in decode_matrix::examples() {
        shaders.extend(CoopTile::examples().into_iter().map(|tile| coop_shader(layout, tile)));
        for width in [VectorWidth::One, VectorWidth::Four] {
            let few = |matvec| few_shader(layout, matvec, width);
            shaders.extend(Matvec::examples().into_iter().map(few));
        }
        shaders.extend(ProductTile::examples().into_iter().map(|tile| tile_shader(layout, tile)));
    }
    shaders
}

pub(crate) fn compile(op: &MatMul, compiler: &mut PlanCompiler<'_>) -> Result<()> {
    let weight = compiler.matrix(op.weight);
    let layout = weight.layout;
    let subgroup_sizes = compiler.subgroup_sizes();
    for slice in &weight.slices {
        let params = MatMulParams {
            x: compiler.view(&op.x),
            out: compiler.view(&op.out),
            n_cols: narrow(op.x.head_dim),
            first_output: slice.first_row,
            n_outputs: slice.n_rows,
            codes: slice.codes,
            scales: slice.scales,
            biases: slice.biases,
            bias: op.bias.map_or(NONE, |bias| compiler.vector(bias)),
        };
        let shape = (slice.n_rows as usize, layout.n_cols);
        let matvec = Matvec::new(shape, subgroup_sizes);
        let n_groups = slice.n_rows.div_ceil(matvec.outs_per_group());
        let grid = Grid::new(GridExtent::fixed(n_groups), GridExtent::rows(1));
        let is_quads = [params.x.first, params.x.row_stride, params.n_cols];
        let is_quads = is_quads.iter().all(|it| it.is_multiple_of(4));
        let width = if is_quads { VectorWidth::Four } else { VectorWidth::One };
        let shader = few_shader(layout, matvec, width);
        compiler.step(&shader, &params, grid)?.weights(slice.arena).when(1..=ROWS_FEW);
        compile_many((layout, slice), compiler, &params)?;
    }
    Ok(())
}

/// Appends the steps for more rows than a few, for a slice of a weight.
fn compile_many(
    (layout, slice): (MatrixLayout, &MatrixSlice),
    compiler: &mut PlanCompiler<'_>,
    params: &MatMulParams,
) -> Result<()> {
    let unit = CoopTile::unit_for(compiler, &[params.x], &[layout]);
    let rows_most = if unit.is_some() { coop_tile::ROWS_FIRST - 1 } else { u32::MAX };
    for (rows, tile) in ProductTile::by_rows(ROWS_FEW + 1) {
        let grid = Grid::new(
            GridExtent::fixed(ProductTile::n_groups(slice.n_rows)),
            GridExtent::rows(tile.n_inputs()),
        );
        let shader = tile_shader(layout, tile);
        let rows = *rows.start()..=rows_most.min(*rows.end());
        compiler.step(&shader, params, grid)?.weights(slice.arena).when(rows);
    }
    if let Some(unit) = unit {
        let first_large = CoopTile::first_large(unit, slice.n_rows);
        for (rows, tile) in [
            (coop_tile::ROWS_FIRST..=first_large - 1, CoopTile::SMALL),
            (first_large..=u32::MAX, CoopTile::LARGE),
        ] {
            let n_groups = GridExtent::fixed(CoopTile::n_groups(slice.n_rows));
            let grid = Grid::new(n_groups, GridExtent::rows(tile.n_inputs()));
            let shader = coop_shader(layout, (tile, unit));
            compiler.step(&shader, params, grid)?.weights(slice.arena).when(rows);
        }
    }
    Ok(())
}
