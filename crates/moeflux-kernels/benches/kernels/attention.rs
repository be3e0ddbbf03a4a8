//! Lines of the kernels of attention and of the choice of positions.
//!
//! Keys and values are f16. They come from memory, as they do after a long context: no block of
//! them is used twice in a row.

use moeflux_kernels::{
    BLOCK_POSITIONS, CachedRows, CachedValues, ChoiceInputs, ChoiceQueries, KernelTable,
    ScoreInputs, ScorePart, StridedRows, WeightedRows,
};

use crate::limits::{MachineLimits, Operands};
use crate::timing::{Effort, per_second};
use crate::{activations, share};

/// A kernel that multiplies heads with a block of positions.
pub(crate) struct AttentionKernel {
    pub(crate) name: &'static str,
    prepare: fn(&'static KernelTable, HeadShape) -> RunBlock,
}

/// Runs the kernel over one block.
type RunBlock = Box<dyn FnMut(CachedRows<'_>)>;

/// Heads that share keys or values, and their columns.
#[derive(Clone, Copy)]
struct HeadShape {
    n_heads: usize,
    n_cols: usize,
}

/// A new kernel is one more line.
pub(crate) const KERNELS: [AttentionKernel; 3] = [
    AttentionKernel { name: "scores", prepare: scores },
    AttentionKernel { name: "values", prepare: values },
    AttentionKernel { name: "choice", prepare: choice },
];

/// Grouped heads, an indexer, latents.
const SHAPES: [HeadShape; 3] = [
    HeadShape { n_heads: 8, n_cols: 128 },
    HeadShape { n_heads: 32, n_cols: 128 },
    HeadShape { n_heads: 32, n_cols: 512 },
];

/// Prints the lines of a kernel and an instruction set.
pub(crate) fn print(
    kernel: &AttentionKernel,
    table: &'static KernelTable,
    (limits, effort): (&MachineLimits, Effort),
) {
    // Numbers near 1.
    let memory = vec![0x3c3c_u16; effort.pool_bytes / 4];
    for shape in SHAPES {
        let HeadShape { n_heads, n_cols } = shape;
        let n_values = BLOCK_POSITIONS * n_cols;
        let blocks: Vec<&[u16]> = memory.chunks_exact(n_values).collect();
        for (n_threads, memory_bytes_per_s) in limits.memory() {
            let blocks_per_s = per_second(n_threads, effort, &|thread_idx| {
                let mut run = (kernel.prepare)(table, shape);
                let (blocks, mut block_idx) = (&blocks, thread_idx);
                Box::new(move || {
                    let values = CachedValues::F16(blocks[block_idx % blocks.len()]);
                    let (n_rows, row_len) = (BLOCK_POSITIONS, n_cols);
                    run(CachedRows { values, n_rows, row_len, stride: n_cols });
                    block_idx += n_threads;
                    1
                })
            });
            let bytes_per_s = blocks_per_s * (n_values * size_of::<u16>()) as f64;
            let ops_per_s = blocks_per_s * (2 * n_values * n_heads) as f64;
            let isa = table.name();
            println!(
                "{:<8}{isa:<12}{:<8}{:>11}{n_heads:>6}{n_threads:>9}{:>9.2}{:>11}{:>9.1}{:>9}",
                kernel.name,
                "f16",
                format!("{BLOCK_POSITIONS}x{n_cols}"),
                bytes_per_s / 1e9,
                share(bytes_per_s, Some(memory_bytes_per_s)),
                ops_per_s / 1e9,
                share(ops_per_s, limits.peak(isa, Operands::F32, n_threads)),
            );
        }
    }
}

fn heads(values: &[f32], shape: HeadShape) -> StridedRows<'_> {
    let HeadShape { n_heads, n_cols } = shape;
    StridedRows { values, n_rows: n_heads, row_len: n_cols, stride: n_cols }
}

fn scores(table: &'static KernelTable, shape: HeadShape) -> RunBlock {
    let queries = activations(shape.n_heads * shape.n_cols);
    let mut out = vec![0.0; shape.n_heads * BLOCK_POSITIONS];
    Box::new(move |keys| {
        let parts = [ScorePart { queries: heads(&queries, shape), keys }];
        table.scores(&ScoreInputs { parts: &parts, next: None }, &mut out);
        std::hint::black_box(&out);
    })
}

fn values(table: &'static KernelTable, shape: HeadShape) -> RunBlock {
    let weights = activations(shape.n_heads * BLOCK_POSITIONS);
    let factors = vec![0.5; shape.n_heads];
    let mut out = vec![0.0; shape.n_heads * shape.n_cols];
    Box::new(move |rows| {
        let (weights, factors) = (&weights, &factors);
        table.add_weighted(&WeightedRows { weights, factors, rows, next: None }, &mut out);
        std::hint::black_box(&out);
    })
}

fn choice(table: &'static KernelTable, shape: HeadShape) -> RunBlock {
    let queries = activations(shape.n_heads * shape.n_cols);
    let mut packed = vec![0.0; ChoiceQueries::n_values(shape.n_heads, shape.n_cols)];
    ChoiceQueries::pack(&heads(&queries, shape), None, &mut packed);
    let mut out = vec![0.0; BLOCK_POSITIONS];
    Box::new(move |keys| {
        let queries = ChoiceQueries::new(&packed, shape.n_cols);
        table.choice_scores(&ChoiceInputs { queries, keys }, &mut out);
        std::hint::black_box(&out);
    })
}
