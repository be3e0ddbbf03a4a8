//! [`PoolKeys`]: stores index keys, and averages those of whole blocks of positions.

use moeflux::provider::error::Result;
use moeflux::provider::ops::PoolKeys;

use super::attend::fours;
use crate::compiler::PlanCompiler;
use crate::kernels::Kernel;
use crate::params::{Params as _, View, narrow, params};
use crate::shader::{Shader, VectorWidth};
use crate::step::{Grid, GridExtent, Over};

pub(crate) const KERNEL: Kernel =
    Kernel { op: "pool_keys", shaders: || [shaders(128, 4), shaders(31, 2)].concat() };

/// Invocations of a workgroup, four columns each.
const N_LANES: u32 = 64;

params! {
    struct PoolKeysParams {
        k: View,
        out: View,
    }
}

/// Returns the kernels in the order in which they run: the second reads keys that the first stores.
fn shaders(key_dim: usize, block: usize) -> [Shader; 2] {
    let shader = |name, text| {
        Shader::new(name, PoolKeysParams::WGSL, text)
            .with("N_LANES", N_LANES)
            .with("KEY_DIM", narrow(key_dim))
            .with("KEY_FOURS", fours(key_dim))
            .with("BLOCK", narrow(block))
            .fragment(include_str!("fours.wgsl"))
            .state(VectorWidth::Four)
    };
    [
        shader("pool_keys store", include_str!("pool_store.wgsl")),
        shader("pool_keys", include_str!("pool_average.wgsl")),
    ]
}

pub(crate) fn compile(op: &PoolKeys, compiler: &mut PlanCompiler<'_>) -> Result<()> {
    let params = PoolKeysParams { k: compiler.view(&op.k), out: compiler.view(&op.out) };
    let key_dim = op.k.head_dim;
    let n_groups = GridExtent::fixed(fours(key_dim).div_ceil(N_LANES));
    for shader in shaders(key_dim, op.block) {
        let grid = Grid::new(n_groups, GridExtent::rows(1));
        compiler.step(&shader, &params, grid)?.over(Over::IndexKeys(op.layer));
    }
    Ok(())
}
