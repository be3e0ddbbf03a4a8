//! The last product of routed experts with their sum and the residual, as one step for a few rows
//! whose experts are all in one buffer.
//!
//! **Invariant:** sums are computed in the order of the two ops, bit for bit, row by row.

use moeflux::provider::error::Result;
use moeflux::provider::ops::{Combine, ExpertFfn, Heads, Op};
use moeflux_kernels::MatrixLayout;

use super::combine::{self, SharedExpertTerm};
use super::expert_ffn;
use crate::compiler::{ExpertSlotLayout, PlanCompiler};
use crate::config::Tiers;
use crate::kernels::Kernel;
use crate::kernels::products::decode_matrix::{self, UNIT_COLS, kind_of, reading};
use crate::kernels::products::matvec::{Matvec, N_INVOCATIONS, ROWS_FEW};
use crate::params::{Params, View, narrow, params};
use crate::shader::Shader;
use crate::step::{BufferCount, Grid, GridExtent, Over};

pub(crate) const KERNEL: Kernel = Kernel { op: NAME, shaders };

/// Name of the shader.
const NAME: &str = "expert down and sum";

/// Outputs of a team.
const OUTS: u32 = 2;
/// Units of columns that a workgroup holds of all experts at once.
const N_UNITS_MAX: u32 = 64;
/// Upper bound on the words of workgroup memory for partial sums.
const N_PARTS_MAX: u32 = 2 << 10;

params! {
    struct DownParams {
        /// Head `k` is the output of gate and up of rank `k`.
        inner: View,
        n_words: u32,
        n_outputs: u32,
        n_cols: u32,
        codes: u32,
        scales: u32,
        biases: u32,
        shared_out: View,
        shared_gate: View,
        residual: View,
        out: View,
    }
}

/// Distribution of a row's experts over invocations.
#[derive(Clone, Copy, Debug)]
struct DownDistribution {
    matvec: Matvec,
    top_k: u32,
    units_each: u32,
    /// Experts at once; a power of two.
    ranks: u32,
}

impl DownDistribution {
    /// Returns `None` if workgroup memory is too small.
    fn new(layout: MatrixLayout, top_k: usize, sizes: Option<(u32, u32)>) -> Option<Self> {
        let matvec = Matvec::new((layout.n_rows * top_k, layout.n_cols), sizes);
        let units_each = narrow(layout.n_cols.div_ceil(UNIT_COLS)).div_ceil(matvec.team());
        let n_units = units_each * matvec.team();
        let n_teams = N_INVOCATIONS / matvec.team();
        let top_k = narrow(top_k);
        let most = (N_UNITS_MAX / n_units).min(n_teams).min(top_k.next_power_of_two());
        let ranks = 1 << most.checked_ilog2()?;
        let down = Self { matvec, top_k, units_each, ranks };
        let n_parts = top_k * down.outs_per_group() * (matvec.team() / matvec.width());
        (n_parts <= N_PARTS_MAX).then_some(down)
    }

    const fn outs_per_group(self) -> u32 {
        N_INVOCATIONS / self.matvec.team() / self.ranks * OUTS
    }

    fn shader(self, layout: MatrixLayout, shared: SharedExpertTerm) -> Shader {
        let shader = Shader::new(NAME, DownParams::WGSL, include_str!("fused_down.wgsl"));
        reading(shader, [("KIND", kind_of(layout))])
            .with("N_INVOCATIONS", N_INVOCATIONS)
            .with("TEAM", self.matvec.team())
            .with("WIDTH", self.matvec.width())
            .with("OUTS", OUTS)
            .with("UNITS_EACH", self.units_each)
            .with("RANKS", self.ranks)
            .with("TOP_K", self.top_k)
            .with("HAS_SHARED", shared != SharedExpertTerm::None)
            .with("HAS_GATE", shared == SharedExpertTerm::Gated)
            .fragment(self.matvec.neighbours())
    }
}

/// Experts and their sum.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DownAndSum<'a> {
    experts: &'a ExpertFfn,
    combine: &'a Combine,
    residual: Heads,
    slot: ExpertSlotLayout,
    down: DownDistribution,
}

impl<'a> DownAndSum<'a> {
    /// Number of ops.
    pub(crate) const N_OPS: usize = 2;

    /// Returns the first ops of a list, if they are these.
    pub(crate) fn of(ops: &'a [Op], compiler: &PlanCompiler<'_>) -> Option<Self> {
        let [Op::ExpertFfn(experts), Op::Combine(combine), ..] = ops else {
            return None;
        };
        let residual = combine.residual?;
        if experts.biases.is_some() {
            return None;
        }
        let slot = compiler.slot_layout(experts.layer).ok()?;
        let top_k = compiler.route().top_k;
        let down = DownDistribution::new(slot.down.layout, top_k, compiler.subgroup_sizes())?;
        Some(Self { experts, combine, residual, slot, down })
    }

    /// Appends the steps.
    pub(crate) fn compile_fused(&self, compiler: &mut PlanCompiler<'_>) -> Result<()> {
        let Self { experts, combine, residual, slot, down } = *self;
        let layer = experts.layer;
        let first = compiler.steps.len();
        expert_ffn::compile(experts, compiler)?;
        combine::compile(combine, compiler)?;
        // Several buffers use the steps of each op, and so do more rows.
        let n_few = expert_ffn::rows_few(compiler.route()).min(ROWS_FEW);
        for mut step in compiler.steps.split_off(first) {
            if step.name != expert_ffn::GATE_UP && step.n_rows.contains(&1) {
                let mut few = step.clone();
                few.when(1..=n_few).among(layer, BufferCount::Several);
                compiler.steps.push(few);
                let last = *step.n_rows.end();
                step.when(n_few + 1..=last);
            }
            if !step.n_rows.is_empty() {
                compiler.steps.push(step);
            }
        }
        let residual = compiler.view(&residual);
        let params = DownParams {
            inner: expert_ffn::inner_values(compiler, &slot)?,
            n_words: slot.n_words,
            n_outputs: narrow(slot.down.layout.n_rows),
            n_cols: narrow(slot.down.layout.n_cols),
            codes: slot.down.codes,
            scales: slot.down.scales,
            biases: slot.down.biases,
            shared_out: combine.shared.map_or(residual, |it| compiler.view(&it)),
            shared_gate: combine.shared_gate.map_or(residual, |it| compiler.view(&it)),
            residual,
            out: compiler.view(&combine.out),
        };
        let n_groups = params.n_outputs.div_ceil(down.outs_per_group());
        let grid = Grid::new(GridExtent::fixed(n_groups), GridExtent::rows(1));
        let shader = down.shader(slot.down.layout, combine::shared_of(combine));
        let shader = shader.tiers(compiler.config().tiers);
        let step = compiler.step(&shader, &params, grid)?;
        step.over(Over::Experts(layer)).when(1..=n_few).among(layer, BufferCount::One);
        Ok(())
    }
}

fn shaders() -> Vec<Shader> {
    let mut shaders = Vec::new();
    for layout in decode_matrix::examples() {
        for (sizes, shared) in [
            (None, SharedExpertTerm::Gated),
            (Some((32, 32)), SharedExpertTerm::None),
            (Some((4, 8)), SharedExpertTerm::Plain),
        ] {
            let down = DownDistribution::new(layout, 8, sizes);
            let alone = down.map(|down| down.shader(layout, shared));
            let in_tiers = alone.clone().map(|it| it.tiers(Tiers::DeviceAndHost));
            shaders.extend(alone.into_iter().chain(in_tiers));
        }
    }
    shaders
}
