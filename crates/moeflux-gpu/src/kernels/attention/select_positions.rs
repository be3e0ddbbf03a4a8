//! [`SelectPositions`]: stores index keys, scores positions, and lists those with the largest
//! scores.
//!
//! Positions are divided among workgroups. Scores take a bounded amount of memory: the rows of a
//! session are scored as many at a time as fit.

use moeflux::provider::error::{Error, Remedy, Result};
use moeflux::provider::ops::SelectPositions;

use super::attend::fours;
use crate::compiler::PlanCompiler;
use crate::kernels::Kernel;
use crate::params::{Params as _, View, narrow, params};
use crate::shader::{Shader, VectorWidth};
use crate::step::{Grid, GridExtent, Over, ScoreMemory};

pub(crate) const KERNEL: Kernel = Kernel {
    op: "select_positions",
    shaders: || {
        let shapes = [
            SelectionShape { n_heads: 64, key_dim: 128, n_chosen: 2048 },
            SelectionShape { n_heads: 3, key_dim: 30, n_chosen: 7 },
        ];
        shapes.iter().flat_map(SelectionShape::shaders).collect()
    },
};

/// Invocations of the kernel that stores keys, of the one that scores, which has as many positions,
/// and of the one that lists.
const N_LANES: [u32; 3] = [64, 128, 256];
/// Maximum scores in memory at a time: 16 MiB.
const N_SCORES_MAX: u32 = 1 << 22;
/// Maximum workgroup memory of queries, in units of four columns.
const QUERY_FOURS_MAX: u32 = 512;
/// Maximum heads that an invocation multiplies by a key before it reads the next columns.
const N_QUERIES_MAX: u32 = 16;

params! {
    struct SelectPositionsParams {
        q: View,
        k: View,
        weights: View,
        list: View,
        scores: u32,
    }
}

/// The sizes that kernels are compiled for.
#[derive(Clone, Copy, Debug)]
struct SelectionShape {
    n_heads: usize,
    key_dim: usize,
    n_chosen: usize,
}

impl SelectionShape {
    /// Returns the kernels in the order in which they run.
    fn shaders(&self) -> [Shader; 3] {
        let queries = (QUERY_FOURS_MAX / fours(self.key_dim)).clamp(1, N_QUERIES_MAX);
        let shader = |name, text, n_lanes| {
            Shader::new(name, SelectPositionsParams::WGSL, text)
                .with("N_LANES", n_lanes)
                .with("N_HEADS", narrow(self.n_heads))
                .with("KEY_DIM", narrow(self.key_dim))
                .with("KEY_FOURS", fours(self.key_dim))
                .with("N_CHOSEN", narrow(self.n_chosen))
                .with("QUERIES", queries)
                .fragment(include_str!("fours.wgsl"))
                .state(VectorWidth::Four)
        };
        let [append, score, choose] = N_LANES;
        [
            shader("select_positions append", include_str!("select_append.wgsl"), append),
            shader("select_positions score", include_str!("select_score.wgsl"), score),
            shader("select_positions", include_str!("select_choose.wgsl"), choose),
        ]
    }
}

pub(crate) fn compile(op: &SelectPositions, compiler: &mut PlanCompiler<'_>) -> Result<()> {
    let list = &op.chosen.list;
    let (n_heads, key_dim, n_chosen) = (op.q.n_heads, op.k.head_dim, list.head_dim);
    if fours(key_dim) > QUERY_FOURS_MAX {
        let problem = format!(
            "supports index keys of at most {} columns, but layer {} has {key_dim}",
            4 * QUERY_FOURS_MAX,
            op.layer.0
        );
        let (device, remedy) = ("the GPU backend".to_owned(), Some(Remedy::Cpu));
        return Err(Error::Device { device, problem, remedy });
    }
    let n_cols = N_SCORES_MAX.div_ceil(compiler.n_rows_max());
    let params = SelectPositionsParams {
        q: compiler.view(&op.q),
        k: compiler.view(&op.k),
        weights: compiler.view(&op.weights),
        list: compiler.view(list),
        scores: compiler.scratch("scores of positions", n_cols as usize)?.first,
    };
    let [append, score, choose] = SelectionShape { n_heads, key_dim, n_chosen }.shaders();
    let n_groups = GridExtent::fixed(fours(key_dim).div_ceil(N_LANES[0]));
    let grid = Grid::new(n_groups, GridExtent::rows(1));
    compiler.step(&append, &params, grid)?.over(Over::IndexKeys(op.layer));
    let memory = ScoreMemory {
        n_chosen: narrow(n_chosen),
        n_scores_max: N_SCORES_MAX,
        n_positions_each: N_LANES[1],
    };
    let over = Over::Choices(op.layer, memory);
    // The number of positions is known when the steps are recorded.
    let unknown = GridExtent::fixed(0);
    let grid = Grid { x: unknown, y: GridExtent::rows(1), z: unknown };
    compiler.step(&score, &params, grid)?.over(over);
    let grid = Grid::new(GridExtent::rows(1), GridExtent::fixed(1));
    compiler.step(&choose, &params, grid)?.over(over);
    Ok(())
}
