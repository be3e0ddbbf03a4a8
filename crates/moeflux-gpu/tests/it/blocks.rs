//! Blocks of GGUF files: kernels make the same weights of them as their definition, and a model
//! with others is refused by name.

use std::cmp::Ordering;
use std::ops::ControlFlow;

use moeflux::provider::backend::Backend;
use moeflux::provider::engine::Engine;
use moeflux::provider::error::Error;
use moeflux::provider::ids::{Position, TokenId};
use moeflux::provider::model::Model;
use moeflux::provider::ops::{Batch, Embed, Op, Plan, Row, Workspace};
use moeflux::provider::weights::{OwnedMatrix, Weights};
use moeflux_gpu::backend::GpuBackend;
use moeflux_gpu::config::GpuConfig;
use moeflux_gpu::kernels::BLOCKS;
use moeflux_kernels::{BlockKind, MatrixKind, MatrixLayout, decode_row};
use moeflux_testing::cases::{GoldenCase, golden_dir};
use moeflux_testing::needs_gpu;

use crate::support::{ExpertsAt, config_of, gpu};

/// Golden cases with kinds of blocks that kernels do not read.
pub(crate) const REFUSED_CASES: [&str; 2] = ["gguf-qwen3moe-iq", "gguf-qwen3moe-k"];

/// The blocks of `gguf-blocks.txt`: random ones, and those whose scales or codes are extreme.
fn golden_blocks(kind: BlockKind) -> Vec<u8> {
    let text = std::fs::read_to_string(golden_dir().join("gguf-blocks.txt")).unwrap();
    let lines = text.lines().filter_map(|line| line.strip_prefix(kind.name())?.strip_prefix(' '));
    let digits = lines.flat_map(|line| line.split(' ').next().unwrap().as_bytes().chunks_exact(2));
    digits.map(|it| u8::from_str_radix(str::from_utf8(it).unwrap(), 16).unwrap()).collect()
}

/// Blocks, and the scales of those that have them apart: the first byte of each of MXFP4.
fn blocks_and_scales(kind: BlockKind) -> (Vec<u8>, Vec<u8>) {
    if kind != BlockKind::MXFP4_APART {
        return (golden_blocks(kind), Vec::new());
    }
    let blocks = golden_blocks(BlockKind::MXFP4);
    let (whole, _) = blocks.as_chunks::<17>();
    let codes = whole.iter().flat_map(|block| block[1..].to_vec()).collect();
    (codes, whole.iter().map(|block| block[0]).collect())
}

/// Returns the values of a table of blocks, decoded by the device and by the definition.
fn rows_of(layout: MatrixLayout, blocks: &[u8], scales: &[u8]) -> [Vec<f32>; 2] {
    let mut table = OwnedMatrix::zeroed(layout).unwrap();
    let (to_codes, to_scales, _) = table.parts_mut();
    to_codes.copy_from_slice(blocks);
    to_scales.copy_from_slice(&scales[..to_scales.len()]);
    let mut expected = vec![0.0; layout.n_rows * layout.n_cols];
    for (row_idx, row) in expected.chunks_exact_mut(layout.n_cols).enumerate() {
        decode_row(&table.view(), row_idx, row);
    }
    let (mut weights, mut workspace) = (Weights::default(), Workspace::default());
    let table = weights.push_matrix(table);
    let out = workspace.buffer("out", layout.n_cols);
    let config = GpuConfig::default();
    let mut backend = GpuBackend::new(gpu(), &weights, &workspace, layout.n_rows, config).unwrap();
    let tokens = 0..u32::try_from(layout.n_rows).unwrap();
    let rows = tokens.map(|token| Row { token: TokenId(token), position: Position(0) });
    let batch = Batch { rows: &rows.collect::<Vec<_>>(), segments: &[], outputs: &[] };
    backend.submit(&Plan::new(vec![Op::Embed(Embed { table, out })]), &batch).unwrap();
    let mut values = vec![0.0; expected.len()];
    for (row_idx, row) in values.chunks_exact_mut(layout.n_cols).enumerate() {
        backend.read_row(out.buffer, row_idx, row).unwrap();
    }
    [values, expected]
}

/// Zeros of either sign are equal: a bias of zero is added to weights that have none.
fn is_same(value: f32, expected: f32) -> bool {
    value.partial_cmp(&expected) == Some(Ordering::Equal) || value.is_nan() && expected.is_nan()
}

#[test]
fn weights_are_those_of_the_definition() {
    needs_gpu!();
    for kind in BLOCKS {
        let (blocks, scales) = blocks_and_scales(kind);
        let n_blocks = blocks.len() / kind.block_bytes();
        assert!(n_blocks >= 20, "{n_blocks} blocks of {kind}");
        // Rows that begin at any place of a word.
        for per_row in [1, 3, 5] {
            let (n_rows, n_cols) = (n_blocks / per_row, per_row * kind.block_cols());
            let layout = MatrixLayout::new(MatrixKind::Block(kind), n_rows, n_cols).unwrap();
            let [values, expected] = rows_of(layout, &blocks[..layout.code_bytes()], &scales);
            for (idx, (&value, &expected)) in values.iter().zip(&expected).enumerate() {
                let (row, col) = (idx / n_cols, idx % n_cols);
                let is_same = is_same(value, expected);
                assert!(is_same, "{kind}: row {row}, column {col}: {value:e}, not {expected:e}");
            }
        }
    }
}

#[test]
fn kinds_without_a_kernel_are_refused_by_name() {
    needs_gpu!();
    let refused = BlockKind::ALL.into_iter().filter(|kind| !BLOCKS.contains(kind));
    let refused: Vec<&str> = refused.map(BlockKind::name).collect();
    assert_eq!(refused, ["Q2_K", "Q3_K", "IQ2_XS", "IQ2_S", "IQ3_S"]);
    for name in REFUSED_CASES {
        let case = GoldenCase::load(name);
        for experts in [ExpertsAt::Device, ExpertsAt::Files(9)] {
            let config = config_of(&case.dir, 16, experts);
            let opened = Engine::load(Model::open(&case.dir).unwrap(), &config, &mut |_| {
                ControlFlow::Continue(())
            });
            let Err(error) = opened else { panic!("{name} opens") };
            assert!(matches!(error, Error::Unsupported(_)), "{name}: {error}");
            let text = error.to_string();
            let names = refused.iter().any(|kind| text.contains(&format!("{kind} weights ")));
            assert!(names && text.contains("only on the CPU"), "{name}: {text}");
        }
    }
}
