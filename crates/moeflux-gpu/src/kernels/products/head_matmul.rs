//! [`HeadMatMul`]: products with each head's own rows of the weight, in either orientation.

use moeflux::provider::error::Result;
use moeflux::provider::ops::{HeadMatMul, Orientation};
use moeflux_kernels::MatrixLayout;

use super::decode_matrix::{self, UNIT_COLS, kind_of, reading};
use super::matvec::{Matvec, ROWS_FEW};
use super::tile::ProductTile;
use crate::compiler::PlanCompiler;
use crate::kernels::Kernel;
use crate::memory::weights::MatrixSlice;
use crate::params::{Params as _, View, narrow, params};
use crate::shader::Shader;
use crate::step::{Grid, GridExtent};

pub(crate) const KERNEL: Kernel = Kernel { op: "head_matmul", shaders };

params! {
    struct HeadMatMulParams {
        x: View,
        out: View,
        n_cols: u32,
        /// Rows of one head's matrix.
        n_rows: u32,
        /// Distance between the first rows of heads.
        row_stride: u32,
        /// First row of the bound part, relative to row 0 of head 0; wraps around.
        first_row: u32,
        n_bound: u32,
        codes: u32,
        scales: u32,
        biases: u32,
        /// Whether other parts have already written sums to `out`.
        adds: u32,
    }
}

fn with_weight(shader: Shader, layout: MatrixLayout) -> Shader {
    reading(shader, [("KIND", kind_of(layout))]).fragment(include_str!("head_matmul_params.wgsl"))
}

fn few_shader(layout: MatrixLayout, matvec: Matvec) -> Shader {
    with_weight(
        matvec.shader("head_matmul", HeadMatMulParams::WGSL, include_str!("head_matmul.wgsl")),
        layout,
    )
}

fn tile_shader(layout: MatrixLayout, tile: ProductTile) -> Shader {
    with_weight(
        tile.shader(
            "head_matmul_tile",
            HeadMatMulParams::WGSL,
            include_str!("head_matmul_tile.wgsl"),
        ),
        layout,
    )
}

fn back_shader(layout: MatrixLayout) -> Shader {
    with_weight(
        Shader::new(
            "head_matmul_back",
            HeadMatMulParams::WGSL,
            include_str!("head_matmul_back.wgsl"),
        ),
        layout,
    )
}

fn shaders() -> Vec<Shader> {
    let mut shaders = Vec::new();
    for layout in decode_matrix::examples() {
        shaders.extend(Matvec::examples().into_iter().map(|matvec| few_shader(layout, matvec)));
        shaders.extend(ProductTile::examples().into_iter().map(|tile| tile_shader(layout, tile)));
        shaders.push(back_shader(layout));
    }
    shaders
}

pub(crate) fn compile(op: &HeadMatMul, compiler: &mut PlanCompiler<'_>) -> Result<()> {
    let weight = compiler.matrix(op.weight);
    for (slice_idx, slice) in weight.slices.iter().enumerate() {
        let params = HeadMatMulParams {
            x: compiler.view(&op.x),
            out: compiler.view(&op.out),
            n_cols: narrow(weight.layout.n_cols),
            n_rows: narrow(op.n_rows),
            row_stride: narrow(op.row_stride),
            first_row: slice.first_row.wrapping_sub(narrow(op.first_row)),
            n_bound: slice.n_rows,
            codes: slice.codes,
            scales: slice.scales,
            biases: slice.biases,
            adds: u32::from(slice_idx > 0),
        };
        let heads = GridExtent::fixed(narrow(op.x.n_heads));
        match op.orientation {
            Orientation::RowsToOut => {
                rows_to_out((weight.layout, slice), compiler, &params, heads)?;
            }
            Orientation::RowsFromIn => {
                let n_units = narrow(weight.layout.n_cols.div_ceil(UNIT_COLS));
                let grid = Grid { x: GridExtent::fixed(n_units), y: GridExtent::rows(1), z: heads };
                compiler.step(&back_shader(weight.layout), &params, grid)?.weights(slice.arena);
            }
        }
    }
    Ok(())
}

fn rows_to_out(
    (layout, slice): (MatrixLayout, &MatrixSlice),
    compiler: &mut PlanCompiler<'_>,
    params: &HeadMatMulParams,
    heads: GridExtent,
) -> Result<()> {
    let subgroup_sizes = compiler.gpu().facts().subgroup_sizes;
    let shape = (params.n_rows as usize, layout.n_cols);
    let matvec = Matvec::new(shape, subgroup_sizes);
    let n_groups = params.n_rows.div_ceil(matvec.outs_per_group());
    let grid = Grid { x: GridExtent::fixed(n_groups), y: GridExtent::rows(1), z: heads };
    let shader = few_shader(layout, matvec);
    compiler.step(&shader, params, grid)?.weights(slice.arena).when(1..=ROWS_FEW);
    for (rows, tile) in ProductTile::by_rows(ROWS_FEW + 1) {
        let n_groups = ProductTile::n_groups(params.n_rows);
        let grid =
            Grid { x: GridExtent::fixed(n_groups), y: GridExtent::rows(tile.n_inputs()), z: heads };
        let shader = tile_shader(layout, tile);
        compiler.step(&shader, params, grid)?.weights(slice.arena).when(rows);
    }
    Ok(())
}
