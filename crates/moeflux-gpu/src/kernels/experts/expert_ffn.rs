//! [`ExpertFfn`]: gate, up and their product, then down, for the experts in the bound slots. The
//! output of each expert for each row is stored separately, for `Combine`.
//!
//! With few rows every pair of a row and an expert is computed alone; with many, pairs are sorted
//! by expert on the device and computed in tiles. **Invariant:** a pair's sums do not depend on the
//! other pairs of its tile.

use std::ops::RangeInclusive;

use moeflux::provider::error::Result;
use moeflux::provider::ids::VectorId;
use moeflux::provider::ops::ExpertFfn;
use moeflux_kernels::MatrixLayout;

use crate::compiler::{ExpertSlotLayout, PlanCompiler, RouteShape, SlotMatrix};
use crate::config::{MatrixUnit, Tiers};
use crate::kernels::Kernel;
use crate::kernels::products::coop_tile::CoopTile;
use crate::kernels::products::decode_matrix::{self, kind_of, reading};
use crate::kernels::products::matvec::Matvec;
use crate::kernels::products::tile::ProductTile;
use crate::params::{Params as _, View, narrow, params};
use crate::shader::Shader;
use crate::step::{Grid, GridExtent, Over};

pub(crate) const KERNEL: Kernel = Kernel { op: "expert_ffn", shaders };

/// Name of the kernel of gate and up for few rows.
pub(crate) const GATE_UP: &str = "expert_gate_up";

/// Invocations of the one workgroup that sorts pairs.
const N_SORTING: u32 = 256;
/// Tile sizes, plain and for cooperative matrices.
const TILE: ProductTile = ProductTile::LARGE;
const COOP_TILE: CoopTile = CoopTile::SMALL;
/// Average pairs per expert from which tiles pay.
const PAIRS_OF_TILES: usize = 2;

params! {
    struct ExpertParams {
        x: View,
        out: View,
        top_k: u32,
        /// Distance between slots.
        n_words: u32,
        n_outputs: u32,
        n_cols: u32,
        /// Offsets of the matrix, or of gate, in its slot.
        codes: u32,
        scales: u32,
        biases: u32,
        /// Offsets of up.
        up_codes: u32,
        up_scales: u32,
        up_biases: u32,
        /// With `HAS_BIASES`: offset in `vectors` of the biases of all experts.
        bias: u32,
        /// The same for up.
        up_bias: u32,
        /// With `HAS_LIMIT`: clamps gate and up.
        limit: f32,
        /// Offset in `ws`: the expert of each tile of pairs as a float, or `ABSENT`.
        tiles: u32,
        /// Offset in `ws`: the pairs of each tile, likewise.
        pairs: u32,
    }
}

const PARAMS: &str = include_str!("expert_params.wgsl");

/// Optional operations between and after the products.
#[derive(Clone, Copy, Debug)]
struct ExpertFfnOptions {
    /// Whether gate and up are clamped.
    limit: bool,
    /// Whether each product has a bias.
    biases: bool,
}

impl ExpertFfnOptions {
    const fn of(op: &ExpertFfn) -> Self {
        Self { limit: op.limit.is_some(), biases: op.biases.is_some() }
    }
}

fn gate_up_shader(
    shader: Shader,
    (gate, up): (MatrixLayout, MatrixLayout),
    options: ExpertFfnOptions,
) -> Shader {
    reading(shader, [("GATE_KIND", kind_of(gate)), ("UP_KIND", kind_of(up))])
        .with("HAS_LIMIT", options.limit)
        .with("HAS_BIASES", options.biases)
        .fragment(PARAMS)
        .fragment(include_str!("expert_swiglu.wgsl"))
}

fn gate_up_few(
    kinds: (MatrixLayout, MatrixLayout),
    options: ExpertFfnOptions,
    matvec: Matvec,
) -> Shader {
    let shader = matvec.shader(GATE_UP, ExpertParams::WGSL, include_str!("expert_gate_up.wgsl"));
    gate_up_shader(shader, kinds, options)
}

fn gate_up_many(kinds: (MatrixLayout, MatrixLayout), options: ExpertFfnOptions) -> Shader {
    let shader = TILE.shader(
        "expert_gate_up_tile",
        ExpertParams::WGSL,
        include_str!("expert_gate_up_tile.wgsl"),
    );
    gate_up_shader(shader, kinds, options)
        .fragment(include_str!("expert_tile.wgsl"))
        .fragment(include_str!("expert_inputs.wgsl"))
}

/// Returns the shader of gate and up of the same kind.
fn gate_up_coop(
    unit: MatrixUnit,
    kinds: (MatrixLayout, MatrixLayout),
    options: ExpertFfnOptions,
) -> Shader {
    let source = include_str!("expert_gate_up_coop.wgsl");
    gate_up_shader(
        COOP_TILE.shader(unit, "expert_gate_up_coop", ExpertParams::WGSL, source),
        kinds,
        options,
    )
    .fragment(include_str!("expert_tile.wgsl"))
    .fragment(include_str!("expert_quads.wgsl"))
}

fn down_shader(shader: Shader, layout: MatrixLayout, options: ExpertFfnOptions) -> Shader {
    reading(shader, [("KIND", kind_of(layout))]).with("HAS_BIASES", options.biases).fragment(PARAMS)
}

fn down_few(layout: MatrixLayout, options: ExpertFfnOptions, matvec: Matvec) -> Shader {
    let shader = matvec.shader("expert_down", ExpertParams::WGSL, include_str!("expert_down.wgsl"));
    down_shader(shader, layout, options)
}

fn down_many(layout: MatrixLayout, options: ExpertFfnOptions) -> Shader {
    let shader =
        TILE.shader("expert_down_tile", ExpertParams::WGSL, include_str!("expert_down_tile.wgsl"));
    down_shader(shader, layout, options)
        .fragment(include_str!("expert_tile.wgsl"))
        .fragment(include_str!("expert_inputs.wgsl"))
}

fn down_coop(unit: MatrixUnit, layout: MatrixLayout, options: ExpertFfnOptions) -> Shader {
    let source = include_str!("expert_down_coop.wgsl");
    down_shader(
        COOP_TILE.shader(unit, "expert_down_coop", ExpertParams::WGSL, source),
        layout,
        options,
    )
    .fragment(include_str!("expert_tile.wgsl"))
    .fragment(include_str!("expert_quads.wgsl"))
}

fn sort(n_experts: u32, tile_inputs: u32) -> Shader {
    reading(Shader::new("expert_pairs", ExpertParams::WGSL, include_str!("expert_pairs.wgsl")), [])
        .with("N_INVOCATIONS", N_SORTING)
        .with("N_EXPERTS", n_experts)
        .with("TILE_INPUTS", tile_inputs)
        .with("HAS_BIASES", false)
        .fragment(PARAMS)
}

fn shaders() -> Vec<Shader> {
    let mut shaders = vec![sort(8, TILE.n_inputs()), sort(512, COOP_TILE.n_inputs())];
    let layouts = decode_matrix::examples();
    let matvecs = Matvec::examples().into_iter();
    let all_options = [
        ExpertFfnOptions { limit: false, biases: false },
        ExpertFfnOptions { limit: true, biases: true },
    ];
    for (matvec, options) in matvecs.zip(all_options) {
        for (&gate, &up) in layouts.iter().zip(layouts.iter().rev()) {
            shaders.push(gate_up_few((gate, up), options, matvec));
            shaders.push(gate_up_few((gate, gate), options, matvec));
            shaders.push(gate_up_many((gate, up), options));
            shaders.push(gate_up_many((gate, gate), options));
            shaders.push(down_few(gate, options, matvec));
            shaders.push(down_many(gate, options));
            for unit in [MatrixUnit::Plain, MatrixUnit::Cooperative] {
                shaders.push(gate_up_coop(unit, (gate, gate), options));
                shaders.push(down_coop(unit, gate, options));
            }
        }
    }
    let in_tiers = |it: &Shader| it.clone().tiers(Tiers::DeviceAndHost);
    let others: Vec<_> = shaders.iter().map(in_tiers).collect();
    shaders.extend(others);
    shaders
}

/// Returns the largest number of rows for which each pair of a row and an expert is computed alone.
pub(crate) fn rows_few(route: RouteShape) -> u32 {
    narrow((PAIRS_OF_TILES * route.n_experts / route.top_k).max(1))
}

/// Returns the location of the experts' outputs: a head of `hidden` columns per rank.
pub(crate) fn partials(compiler: &mut PlanCompiler<'_>, hidden: usize) -> Result<View> {
    ranks(compiler, "expert outputs", hidden)
}

/// Returns the location of the results of gate and up, the input of down: a head per rank.
pub(crate) fn inner_values(
    compiler: &mut PlanCompiler<'_>,
    slot: &ExpertSlotLayout,
) -> Result<View> {
    ranks(compiler, "inner values of experts", slot.gate.layout.n_rows)
}

fn ranks(compiler: &mut PlanCompiler<'_>, name: &'static str, n_cols: usize) -> Result<View> {
    let n_all = compiler.route().top_k * n_cols;
    Ok(View { head_stride: narrow(n_cols), ..compiler.scratch(name, n_all)? })
}

/// Allocates `n_values` values in total in the workspace.
fn room(compiler: &mut PlanCompiler<'_>, name: &'static str, n_values: u32) -> Result<u32> {
    let n_cols = n_values.div_ceil(compiler.n_rows_max()) as usize;
    Ok(compiler.scratch(name, n_cols)?.first)
}

pub(crate) fn compile(op: &ExpertFfn, compiler: &mut PlanCompiler<'_>) -> Result<()> {
    let slot = compiler.slot_layout(op.layer)?;
    let RouteShape { top_k, n_experts } = compiler.route();
    let inner = inner_values(compiler, &slot)?;
    let layouts = [slot.gate.layout, slot.up.layout, slot.down.layout];
    let are_alike = kind_of(slot.gate.layout) == kind_of(slot.up.layout);
    let unit = CoopTile::unit_for(compiler, &[compiler.view(&op.x), inner], &layouts);
    let tiles = unit.filter(|_| are_alike).map_or(TileMethod::Plain, TileMethod::Coop);
    let tile_inputs = tiles.n_inputs();
    let n_tiles_most =
        narrow(n_experts) + compiler.n_rows_max().div_ceil(tile_inputs) * narrow(top_k);
    let base = ExpertParams {
        // All ranks have the same inputs.
        x: View { head_stride: 0, ..compiler.view(&op.x) },
        out: inner,
        top_k: narrow(top_k),
        n_words: slot.n_words,
        n_outputs: 0,
        n_cols: 0,
        codes: 0,
        scales: 0,
        biases: 0,
        up_codes: slot.up.codes,
        up_scales: slot.up.scales,
        up_biases: slot.up.biases,
        bias: 0,
        up_bias: vector_at(compiler, op.biases.map(|biases| biases.up)),
        limit: op.limit.unwrap_or(0.0),
        tiles: room(compiler, "tiles of pairs", n_tiles_most)?,
        pairs: room(compiler, "pairs by expert", n_tiles_most * tile_inputs)?,
    };
    let bias = vector_at(compiler, op.biases.map(|biases| biases.gate));
    let gate_up = params_of(ExpertParams { bias, ..base }, slot.gate);
    let out = partials(compiler, op.sum.head_dim)?;
    let bias = vector_at(compiler, op.biases.map(|biases| biases.down));
    let down = params_of(ExpertParams { x: inner, out, bias, ..base }, slot.down);
    let both = (&slot, &gate_up, &down);
    let rows_few = rows_few(compiler.route());
    compile_few(op, compiler, both, 1..=rows_few)?;
    compile_many(op, compiler, (both, tiles), rows_few + 1..=u32::MAX)
}

/// Returns the offset of a vector, if there is one.
fn vector_at(compiler: &PlanCompiler<'_>, vector: Option<VectorId>) -> u32 {
    vector.map_or(0, |vector| compiler.vector(vector))
}

/// Returns the parameters for the product with a matrix.
fn params_of(params: ExpertParams, matrix: SlotMatrix) -> ExpertParams {
    ExpertParams {
        n_outputs: narrow(matrix.layout.n_rows),
        n_cols: narrow(matrix.layout.n_cols),
        codes: matrix.codes,
        scales: matrix.scales,
        biases: matrix.biases,
        ..params
    }
}

/// The layout of a slot, and the parameters of gate and up, and of down.
type ExpertOperands<'a> = (&'a ExpertSlotLayout, &'a ExpertParams, &'a ExpertParams);

fn compile_few(
    op: &ExpertFfn,
    compiler: &mut PlanCompiler<'_>,
    (slot, gate_up, down): ExpertOperands<'_>,
    rows: RangeInclusive<u32>,
) -> Result<()> {
    let subgroup_sizes = compiler.subgroup_sizes();
    let top_k = compiler.route().top_k;
    let matvec =
        |layout: MatrixLayout| Matvec::new((layout.n_rows * top_k, layout.n_cols), subgroup_sizes);
    let grid = |params: &ExpertParams, matvec: Matvec| {
        let n_groups = params.n_outputs.div_ceil(matvec.outs_per_group());
        Grid::new(GridExtent::fixed(n_groups), GridExtent::rows_times(params.top_k, 1))
    };
    let (gate, up) = (slot.gate.layout, slot.up.layout);
    let plan = matvec(gate).of_pairs();
    let tiers = compiler.config().tiers;
    let shader = gate_up_few((gate, up), ExpertFfnOptions::of(op), plan).tiers(tiers);
    let step = compiler.step(&shader, gate_up, grid(gate_up, plan))?;
    step.over(Over::Experts(op.layer)).when(rows.clone());
    let plan = matvec(slot.down.layout);
    let shader = down_few(slot.down.layout, ExpertFfnOptions::of(op), plan).tiers(tiers);
    let step = compiler.step(&shader, down, grid(down, plan))?;
    step.over(Over::Experts(op.layer)).when(rows);
    Ok(())
}

/// Method of computing pairs in tiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TileMethod {
    /// In f32.
    Plain,
    /// By cooperative matrices or their emulation, staged in half precision.
    Coop(MatrixUnit),
}

impl TileMethod {
    const fn n_inputs(self) -> u32 {
        match self {
            Self::Plain => TILE.n_inputs(),
            Self::Coop(_) => COOP_TILE.n_inputs(),
        }
    }

    const fn n_groups(self, n_outputs: u32) -> u32 {
        match self {
            Self::Plain => ProductTile::n_groups(n_outputs),
            Self::Coop(_) => CoopTile::n_groups(n_outputs),
        }
    }
}

fn compile_many(
    op: &ExpertFfn,
    compiler: &mut PlanCompiler<'_>,
    ((slot, gate_up, down), tiles): (ExpertOperands<'_>, TileMethod),
    rows: RangeInclusive<u32>,
) -> Result<()> {
    let route = compiler.route();
    let (top_k, n_experts) = (narrow(route.top_k), narrow(route.n_experts));
    let grid = |n_outputs| {
        let n_tiles = GridExtent::rows_times(top_k, tiles.n_inputs()).and(n_experts);
        Grid::new(GridExtent::fixed(tiles.n_groups(n_outputs)), n_tiles)
    };
    let (kinds, options) = ((slot.gate.layout, slot.up.layout), ExpertFfnOptions::of(op));
    let (gate_up_shader, down_shader) = match tiles {
        TileMethod::Plain => (gate_up_many(kinds, options), down_many(slot.down.layout, options)),
        TileMethod::Coop(unit) => {
            (gate_up_coop(unit, kinds, options), down_coop(unit, slot.down.layout, options))
        }
    };
    let sorting = Grid::new(GridExtent::fixed(1), GridExtent::fixed(1));
    for (shader, params, grid) in [
        (sort(n_experts, tiles.n_inputs()), gate_up, sorting),
        (gate_up_shader, gate_up, grid(gate_up.n_outputs * 2)),
        (down_shader, down, grid(down.n_outputs)),
    ] {
        let shader = shader.tiers(compiler.config().tiers);
        let step = compiler.step(&shader, params, grid)?;
        step.over(Over::Experts(op.layer)).when(rows.clone());
    }
    Ok(())
}
