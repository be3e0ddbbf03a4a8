//! [`MatMul`]: a few rows one by one, each computed as if alone; many rows in tiles, by cooperative
//! matrices if the device has them and may round.

use moeflux::provider::error::Result;
use moeflux::provider::ops::MatMul;
use moeflux_kernels::MatrixLayout;

use super::Kernel;
use super::coop_tile::{self, CoopTile};
use super::decode_matrix::{self, kind_of, reading};
use super::matvec::{Matvec, ROWS_FEW};
use super::tile::Tile;
use crate::compiler::Compiler;
use crate::config::MatrixUnit;
use crate::memory::weights::Piece;
use crate::params::{NONE, Params as _, View, narrow, params};
use crate::shader::{Lanes, Shader};
use crate::step::{Extent, Grid};

pub(super) const KERNEL: Kernel = Kernel { op: "matmul", shaders };

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

fn few_shader(layout: MatrixLayout, matvec: Matvec, lanes: Lanes) -> Shader {
    let shader = matvec.shader("matmul", MatMulParams::WGSL, include_str!("matmul.wgsl"));
    stored(shader.workspace(lanes), layout)
}

fn tile_shader(layout: MatrixLayout, tile: Tile) -> Shader {
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
    reading(shader, [("KIND", kind_of(layout))]).piece(include_str!("matmul_store.wgsl"))
}

fn shaders() -> Vec<Shader> {
    let mut shaders = Vec::new();
    for layout in decode_matrix::examples() {
        shaders.extend(CoopTile::examples().into_iter().map(|tile| coop_shader(layout, tile)));
        for lanes in [Lanes::One, Lanes::Four] {
            let few = |matvec| few_shader(layout, matvec, lanes);
            shaders.extend(Matvec::examples().into_iter().map(few));
        }
        shaders.extend(Tile::examples().into_iter().map(|tile| tile_shader(layout, tile)));
    }
    shaders
}

pub(super) fn compile(op: &MatMul, compiler: &mut Compiler<'_>) -> Result<()> {
    let weight = compiler.matrix(op.weight);
    let layout = weight.layout;
    let subgroup_sizes = compiler.subgroup_sizes();
    for piece in &weight.pieces {
        let params = MatMulParams {
            x: compiler.view(&op.x),
            out: compiler.view(&op.out),
            n_cols: narrow(op.x.head_dim),
            first_output: piece.first_row,
            n_outputs: piece.n_rows,
            codes: piece.codes,
            scales: piece.scales,
            biases: piece.biases,
            bias: op.bias.map_or(NONE, |bias| compiler.vector(bias)),
        };
        let shape = (piece.n_rows as usize, layout.n_cols);
        let matvec = Matvec::new(shape, subgroup_sizes);
        let n_groups = piece.n_rows.div_ceil(matvec.outs_per_group());
        let grid = Grid::new(Extent::fixed(n_groups), Extent::rows(1));
        let is_quads = [params.x.first, params.x.row_stride, params.n_cols];
        let is_quads = is_quads.iter().all(|it| it.is_multiple_of(4));
        let lanes = if is_quads { Lanes::Four } else { Lanes::One };
        let shader = few_shader(layout, matvec, lanes);
        compiler.step(&shader, &params, grid)?.weights(piece.arena).when(1..=ROWS_FEW);
        many((layout, piece), compiler, &params)?;
    }
    Ok(())
}

/// Appends the steps for more rows than a few, for a piece of a weight.
fn many(
    (layout, piece): (MatrixLayout, &Piece),
    compiler: &mut Compiler<'_>,
    params: &MatMulParams,
) -> Result<()> {
    let unit = CoopTile::unit_for(compiler, &[params.x], &[layout]);
    let rows_most = if unit.is_some() { coop_tile::ROWS_FIRST - 1 } else { u32::MAX };
    for (rows, tile) in Tile::by_rows(ROWS_FEW + 1) {
        let grid =
            Grid::new(Extent::fixed(Tile::n_groups(piece.n_rows)), Extent::rows(tile.n_inputs()));
        let shader = tile_shader(layout, tile);
        let rows = *rows.start()..=rows_most.min(*rows.end());
        compiler.step(&shader, params, grid)?.weights(piece.arena).when(rows);
    }
    if let Some(unit) = unit {
        let first_large = CoopTile::first_large(unit, piece.n_rows);
        for (rows, tile) in [
            (coop_tile::ROWS_FIRST..=first_large - 1, CoopTile::SMALL),
            (first_large..=u32::MAX, CoopTile::LARGE),
        ] {
            let n_groups = Extent::fixed(CoopTile::n_groups(piece.n_rows));
            let grid = Grid::new(n_groups, Extent::rows(tile.n_inputs()));
            let shader = coop_shader(layout, (tile, unit));
            compiler.step(&shader, params, grid)?.weights(piece.arena).when(rows);
        }
    }
    Ok(())
}
