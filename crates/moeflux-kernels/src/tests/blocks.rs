//! Blocks against what `gguf.quants` of the package `gguf` makes of the same bytes.

use half::f16;

use super::Random;
use crate::blocks::Apart;
use crate::{BlockKind, LayoutError, Matrix, MatrixKind, MatrixLayout, decode_row};

/// Random codes under scales of either sign, of which some are zero.
pub(super) fn random_blocks(kind: BlockKind, n_blocks: usize, random: &mut Random) -> Vec<u8> {
    let places = if kind == BlockKind::MXFP4 { &[] } else { kind.factors_at() };
    let mut blocks = Vec::new();
    for _ in 0..n_blocks {
        let bytes = (0..kind.block_bytes()).map(|_| random.bits().to_le_bytes()[0]);
        let mut block: Vec<u8> = bytes.collect();
        for &at in places {
            let scale = if random.bits().is_multiple_of(16) { 0.0 } else { random.unit() * 0.1 };
            block[at..at + 2].copy_from_slice(&f16::from_f32(scale).to_le_bytes());
        }
        if kind == BlockKind::MXFP4 {
            block[0] = 110 + block[0] % 16;
        }
        blocks.extend(block);
    }
    blocks
}

/// The code, and the scale and bias, of the value at a place of rows of whole blocks.
pub(super) fn parts(kind: BlockKind, bytes: &[u8], place: usize) -> (i32, [f32; 2]) {
    let (block_idx, col) = (place / kind.block_cols(), place % kind.block_cols());
    let mut apart = Apart::ZEROS;
    apart.take(kind, &bytes[block_idx * kind.block_bytes()..][..kind.block_bytes()]);
    let group_idx = col / kind.group_cols();
    let bias = if kind.has_biases() { apart.biases[group_idx] } else { 0.0 };
    (i32::from(apart.codes[col]), [apart.scales[group_idx], bias])
}

/// Of the weights as little-endian f32, each NaN as the quiet one.
fn hash(weights: &[f32]) -> u64 {
    let bits = |it: &f32| if it.is_nan() { 0x7fc0_0000 } else { it.to_bits() };
    let bytes = weights.iter().flat_map(|it| bits(it).to_le_bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

fn weights(kind: BlockKind, blocks: &[u8]) -> Vec<f32> {
    let n_cols = blocks.len() / kind.block_bytes() * kind.block_cols();
    let layout = MatrixLayout::new(MatrixKind::Block(kind), 1, n_cols).unwrap();
    let mut weights = vec![0.0; n_cols];
    decode_row(&Matrix::new(layout, blocks, &[], &[]), 0, &mut weights);
    weights
}

#[test]
fn weights_are_those_of_the_package() {
    let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/../../golden/gguf-blocks.txt");
    let golden = std::fs::read_to_string(golden).unwrap();
    for kind in BlockKind::ALL {
        let lines = golden.lines().filter_map(|line| line.strip_prefix(kind.name()));
        let mut all = Vec::new();
        for (i, line) in lines.filter_map(|line| line.strip_prefix(' ')).enumerate() {
            let (block, expected) = line.split_once(' ').unwrap();
            let digits = block.as_bytes().chunks(2).map(|it| str::from_utf8(it).unwrap());
            let block: Vec<u8> = digits.map(|it| u8::from_str_radix(it, 16).unwrap()).collect();
            let expected = u64::from_str_radix(expected, 16).unwrap();
            assert_eq!(hash(&weights(kind, &block)), expected, "block {i} of {kind}: {line}");
            all.extend(block);
        }
        let n_blocks = all.len() / kind.block_bytes();
        assert!(n_blocks >= 20, "{n_blocks} blocks of {kind}");
        // As one row.
        let blocks = all.chunks(kind.block_bytes()).flat_map(|block| weights(kind, block));
        assert_eq!(hash(&weights(kind, &all)), hash(&blocks.collect::<Vec<_>>()), "{kind}");
    }
}

#[test]
fn an_exponent_of_all_ones_is_no_number() {
    let mut block = [0x21; 17];
    block[0] = 255;
    assert!(weights(BlockKind::MXFP4, &block).iter().all(|it| it.is_nan()));
    block[0] = 254;
    assert!(weights(BlockKind::MXFP4, &block).iter().all(|it| it.is_finite()));
}

#[test]
fn rows_are_whole_blocks() {
    for kind in BlockKind::ALL {
        let block_cols = kind.block_cols();
        let layout = |n_cols| MatrixLayout::new(MatrixKind::Block(kind), 3, n_cols);
        let two = layout(2 * block_cols).unwrap();
        assert_eq!(
            (two.row_bytes(), two.total_bytes()),
            (2 * kind.block_bytes(), two.code_bytes())
        );
        let ragged = block_cols + 16;
        assert_eq!(layout(ragged), Err(LayoutError::RaggedBlock { n_cols: ragged, kind }));
    }
    let error = LayoutError::RaggedBlock { n_cols: 300, kind: BlockKind::Q4_K };
    assert_eq!(error.to_string(), "rows of 300 values are not whole Q4_K blocks of 256");
}

#[test]
fn blocks_that_are_not_finite_are_found_from_any_byte_on() {
    let mut random = Random(17);
    for kind in BlockKind::ALL {
        let (n_blocks, block_bytes) = (4, kind.block_bytes());
        let blocks = random_blocks(kind, n_blocks, &mut random);
        assert_eq!(kind.first_non_finite(0, &blocks), None, "{kind}");
        for &factor_at in kind.factors_at() {
            for value in [f16::NAN, f16::INFINITY, f16::NEG_INFINITY] {
                let mut blocks = blocks.clone();
                let at = 2 * block_bytes + factor_at;
                if kind == BlockKind::MXFP4 {
                    blocks[at] = 0xff;
                } else {
                    blocks[at..at + 2].copy_from_slice(&value.to_le_bytes());
                }
                assert!(weights(kind, &blocks).iter().any(|it| !it.is_finite()), "{kind}");
                let decisive = if kind == BlockKind::MXFP4 { at } else { at + 1 };
                for skipped in 0..blocks.len() {
                    let found = kind.first_non_finite(skipped, &blocks[skipped..]);
                    let expected = (skipped <= decisive).then_some(2);
                    assert_eq!(found, expected, "{kind}: {factor_at} behind {skipped}");
                }
            }
        }
    }
}
