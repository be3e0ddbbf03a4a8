//! Blocks against the results of `gguf.quants` of the package `gguf` for the same bytes.

use half::f16;
use moeflux_testing::random::Rng;

use super::same_bits;
use super::strided::{float_product, int_product};
use crate::matrix::blocks::DecodedBlock;
use crate::{
    BlockKind, LayoutError, Matrix, MatrixKind, MatrixLayout, available, decode_row, emulated,
};

/// Returns rng codes with scales of either sign, some of them zero.
pub(super) fn random_blocks(kind: BlockKind, n_blocks: usize, rng: &mut Rng) -> Vec<u8> {
    let places = if kind == BlockKind::MXFP4 { &[] } else { kind.factors_at() };
    let mut blocks = Vec::new();
    for _ in 0..n_blocks {
        let bytes = (0..kind.block_bytes()).map(|_| rng.bits().to_le_bytes()[0]);
        let mut block: Vec<u8> = bytes.collect();
        for &at in places {
            let scale = if rng.bits().is_multiple_of(16) { 0.0 } else { rng.unit() * 0.1 };
            block[at..at + 2].copy_from_slice(&f16::from_f32(scale).to_le_bytes());
        }
        if kind == BlockKind::MXFP4 {
            block[0] = 110 + block[0] % 16;
        }
        blocks.extend(block);
    }
    blocks
}

/// Returns the scales of blocks that store them separately.
pub(super) fn random_scales(kind: BlockKind, n_blocks: usize, rng: &mut Rng) -> Vec<u8> {
    let scales = (0..n_blocks * kind.scale_bytes()).map(|_| rng.bits().to_le_bytes()[0]);
    scales.map(|exponent| 110 + exponent % 16).collect()
}

/// Returns the code, and the scale and bias, of the value at a place in rows of whole blocks.
pub(super) fn parts(
    kind: BlockKind,
    (bytes, scales): (&[u8], &[u8]),
    place: usize,
) -> (i32, [f32; 2]) {
    let (block_idx, col) = (place / kind.block_cols(), place % kind.block_cols());
    let mut decoded = DecodedBlock::ZEROS;
    let of_block = |bytes: &'_ [u8], n: usize| bytes[block_idx * n..][..n].to_vec();
    let block = of_block(bytes, kind.block_bytes());
    decoded.decode(kind, &block, &of_block(scales, kind.scale_bytes()));
    let group_idx = col / kind.group_cols();
    let bias = if kind.has_biases() { decoded.biases[group_idx] } else { 0.0 };
    (i32::from(decoded.codes[col]), [decoded.scales[group_idx], bias])
}

/// Hashes the weights as little-endian f32, each NaN as the quiet one.
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

/// Separates the scales of MXFP4 blocks from their codes.
fn apart(blocks: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let (mut codes, mut scales) = (Vec::new(), Vec::new());
    for block in blocks.chunks_exact(BlockKind::MXFP4.block_bytes()) {
        let (scale, nibbles) = block.split_first().unwrap();
        let code = |col: usize| nibbles[col % 16] >> (col / 16 * 4) & 15;
        codes.extend((0..16).map(|i| code(2 * i) | code(2 * i + 1) << 4));
        scales.push(*scale);
    }
    (codes, scales)
}

#[test]
fn scales_apart_make_the_same_weights_and_the_same_products() {
    let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/../../golden/gguf-blocks.txt");
    let golden = std::fs::read_to_string(golden).unwrap();
    let lines = golden.lines().filter_map(|line| line.strip_prefix("MXFP4 "));
    let digits = lines.flat_map(|line| line.split_once(' ').unwrap().0.as_bytes().chunks(2));
    let digits = digits.map(|it| u8::from_str_radix(str::from_utf8(it).unwrap(), 16).unwrap());
    let blocks: Vec<u8> = digits.collect();
    let n_blocks = blocks.len() / 17;
    let (codes, scales) = apart(&blocks);
    let kind = MatrixKind::Block(BlockKind::MXFP4_APART);
    let layout = MatrixLayout::new(kind, 1, 32 * n_blocks).unwrap();
    let mut out = vec![0.0; 32 * n_blocks];
    decode_row(&Matrix::new(layout, &codes, &scales, &[]), 0, &mut out);
    same_bits(&out, &weights(BlockKind::MXFP4, &blocks), "weights");

    let mut rng = Rng::new(18);
    for (n_rows, n_blocks, n_picks) in [(1, 1, 1), (5, 3, 1), (37, 5, 1), (33, 9, 3), (17, 4, 19)] {
        let mut blocks = random_blocks(BlockKind::MXFP4, n_rows * n_blocks, &mut rng);
        // Some of the smallest and the largest powers of two.
        for (i, block) in blocks.chunks_exact_mut(17).enumerate().filter(|(i, _)| i % 7 == 3) {
            block[0] = [0, 1, 2, 253, 254][i % 5];
        }
        let (codes, scales) = apart(&blocks);
        let layout =
            |kind| MatrixLayout::new(MatrixKind::Block(kind), n_rows, 32 * n_blocks).unwrap();
        let whole = Matrix::new(layout(BlockKind::MXFP4), &blocks, &[], &[]);
        let apart = Matrix::new(layout(BlockKind::MXFP4_APART), &codes, &scales, &[]);
        let x: Vec<_> = (0..n_picks).map(|_| rng.units(32 * n_blocks)).collect();
        for table in available().into_iter().chain(emulated()) {
            for product in [int_product, float_product] {
                let [whole, apart] = [whole, apart].map(|matrix| product(table, matrix, &x));
                same_bits(&apart, &whole, &format!("{}, {n_picks} rows", table.name()));
            }
        }
    }
}

#[test]
fn weights_are_those_of_the_package() {
    let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/../../golden/gguf-blocks.txt");
    let golden = std::fs::read_to_string(golden).unwrap();
    // The package has no blocks with separate scales.
    for kind in BlockKind::ALL.into_iter().filter(|kind| kind.scale_bytes() == 0) {
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
fn an_exponent_of_all_ones_is_nan() {
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
            (two.row_bytes(), two.scale_bytes()),
            (2 * kind.block_bytes(), 3 * 2 * kind.scale_bytes())
        );
        assert_eq!(two.total_bytes(), two.code_bytes() + two.scale_bytes());
        let ragged = block_cols + 16;
        assert_eq!(layout(ragged), Err(LayoutError::RaggedBlock { n_cols: ragged, kind }));
    }
    let error = LayoutError::RaggedBlock { n_cols: 300, kind: BlockKind::Q4_K };
    assert_eq!(error.to_string(), "rows of 300 values are not whole Q4_K blocks of 256");
}

#[test]
fn blocks_that_are_not_finite_are_found_from_any_byte_on() {
    let mut rng = Rng::new(17);
    for kind in BlockKind::ALL {
        let (n_blocks, block_bytes) = (4, kind.block_bytes());
        let blocks = random_blocks(kind, n_blocks, &mut rng);
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
                    assert_eq!(found, expected, "{kind}: {factor_at} after {skipped}");
                }
            }
        }
    }
}
