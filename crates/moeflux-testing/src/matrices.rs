//! Random weights from a seed, in every kind of storage.

use half::{bf16, f16};
use moeflux_kernels::{
    Affine, Biases, BlockKind, FloatKind, Fp8, Fp8Spread, MatrixKind, MatrixLayout, ScaleKind,
};

use crate::random::Rng;

/// Every way that weights can be stored but in blocks that carry their own scales.
pub fn all_kinds() -> Vec<MatrixKind> {
    const FLOATS: [FloatKind; 3] = [FloatKind::F32, FloatKind::F16, FloatKind::Bf16];
    let mut kinds: Vec<MatrixKind> = FLOATS.map(MatrixKind::Float).to_vec();
    let block = |(n_rows, n_cols)| Fp8Spread::Block { n_rows, n_cols };
    let [f32, _, bf16] = FLOATS.map(ScaleKind::Float);
    for (spread, scale) in [
        (block((128, 128)), f32),
        (block((32, 32)), ScaleKind::E8m0),
        (block((128, 128)), ScaleKind::E8m0),
        (block((64, 32)), bf16),
        (Fp8Spread::Row, bf16),
        (Fp8Spread::Matrix, f32),
    ] {
        kinds.push(MatrixKind::Fp8(Fp8 { spread, scale }));
    }
    for bits in [2, 3, 4, 5, 6, 8] {
        for group in [32, 64, 128] {
            let affine = FLOATS.map(|scale| MatrixKind::Affine(Affine::new(bits, group, scale)));
            kinds.extend(affine);
        }
    }
    for (bits, group, scale) in [(4, 32, FLOATS[2]), (8, 64, FLOATS[1]), (4, 128, FLOATS[0])] {
        kinds.push(MatrixKind::Affine(Affine::symmetric(bits, group, scale)));
    }
    kinds
}

/// A number of columns near `n_cols` that rows of this kind can have.
pub fn fitting_cols(kind: MatrixKind, n_cols: usize) -> usize {
    match kind {
        MatrixKind::Affine(affine) => n_cols.next_multiple_of(usize::from(affine.group)),
        MatrixKind::Block(block) => n_cols.next_multiple_of(block.block_cols()),
        MatrixKind::Float(_) | MatrixKind::Fp8(_) => n_cols,
    }
}

/// Codes, scales and biases whose products with normal inputs are about normal.
pub fn matrix_parts(rng: &mut Rng, layout: MatrixLayout) -> [Vec<u8>; 3] {
    let factor = 1.0 / (layout.n_cols as f32).sqrt();
    let n_values = layout.n_rows * layout.n_cols;
    match layout.kind {
        MatrixKind::Float(kind) => {
            let values = rng.normals(n_values, factor);
            [encoded(kind, &values), Vec::new(), Vec::new()]
        }
        MatrixKind::Fp8(fp8) => {
            let codes = (0..n_values).map(|_| fp8_code(rng)).collect();
            let n_scales = layout.scale_bytes() / fp8.scale.bytes();
            let ScaleKind::Float(float) = fp8.scale else {
                // A power of two about as large as the others.
                let [middle, ..] = ((factor / 100.0).to_bits() >> 23).to_le_bytes();
                let scales = (0..n_scales).map(|_| middle + rng.bits().to_le_bytes()[0] % 2);
                return [codes, scales.collect(), Vec::new()];
            };
            let scales: Vec<f32> =
                (0..n_scales).map(|_| (rng.fraction() + 0.5) * factor / 100.0).collect();
            [codes, encoded(float, &scales), Vec::new()]
        }
        MatrixKind::Affine(affine) => {
            let codes = (0..layout.code_bytes()).map(|_| rng.bits().to_le_bytes()[0]).collect();
            let steps = f32::from((1_u16 << affine.bits) - 1);
            let n_groups = n_values / usize::from(affine.group);
            // Either end of a group can be the edge: about half of all scales are negative.
            let scales: Vec<f32> = (0..n_groups)
                .map(|_| (rng.fraction() + 0.5) * rng.pick(&[3.4, -3.4]) * factor / steps)
                .collect();
            let biases: Vec<f32> =
                scales.iter().map(|scale| -scale * steps * (0.4 + 0.2 * rng.fraction())).collect();
            let biases = match affine.biases {
                Biases::Stored => encoded(affine.scale, &biases),
                Biases::Implied => Vec::new(),
            };
            [codes, encoded(affine.scale, &scales), biases]
        }
        MatrixKind::Block(block) => {
            let n_blocks = layout.code_bytes() / block.block_bytes();
            let blocks = (0..n_blocks).flat_map(|_| random_block(rng, block, factor));
            let blocks = blocks.collect();
            let n_scales = n_blocks * block.scale_bytes();
            let scales = (0..n_scales).map(|_| 122 + rng.bits().to_le_bytes()[0] % 3).collect();
            [blocks, scales, Vec::new()]
        }
    }
}

/// Random codes, under scales that make weights of about `factor`.
fn random_block(rng: &mut Rng, kind: BlockKind, factor: f32) -> Vec<u8> {
    let mut block: Vec<u8> = (0..kind.block_bytes()).map(|_| rng.bits().to_le_bytes()[0]).collect();
    // Where scales stand, and how large codes under one of 1 are.
    let (places, size): (&[usize], f32) = match kind {
        BlockKind::Q4_0 => (&[0], 4.6),
        BlockKind::Q4_1 => (&[0, 2], 8.0),
        BlockKind::Q5_0 => (&[0], 9.2),
        BlockKind::Q5_1 => (&[0, 2], 16.0),
        BlockKind::Q8_0 => (&[0], 74.0),
        BlockKind::Q2_K => (&[80, 82], 14.0),
        BlockKind::Q3_K => (&[108], 42.0),
        BlockKind::Q4_K | BlockKind::Q5_K => (&[0, 2], 300.0),
        BlockKind::Q6_K => (&[208], 1400.0),
        BlockKind::IQ2_XXS | BlockKind::IQ2_XS | BlockKind::IQ2_S => (&[0], 50.0),
        BlockKind::IQ3_XXS => (&[0], 130.0),
        BlockKind::IQ3_S => (&[0], 140.0),
        BlockKind::IQ4_NL => (&[0], 70.0),
        BlockKind::IQ4_XS => (&[0], 1300.0),
        BlockKind::MXFP4 => {
            block[0] = 122 + block[0] % 3;
            return block;
        }
        BlockKind::MXFP4_APART => return block,
    };
    for &at in places {
        let scale = (rng.fraction() + 0.5) * rng.pick(&[1.0, -1.0]) * factor / size;
        block[at..at + 2].copy_from_slice(&f16::from_f32(scale).to_le_bytes());
    }
    block
}

/// Any code but NaN.
fn fp8_code(rng: &mut Rng) -> u8 {
    let code = rng.bits().to_le_bytes()[0];
    if code & 0x7F == 0x7F { code & 0x80 } else { code }
}

fn encoded(kind: FloatKind, values: &[f32]) -> Vec<u8> {
    match kind {
        FloatKind::F32 => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
        FloatKind::F16 => {
            values.iter().flat_map(|&value| f16::from_f32(value).to_le_bytes()).collect()
        }
        FloatKind::Bf16 => {
            values.iter().flat_map(|&value| bf16::from_f32(value).to_le_bytes()).collect()
        }
    }
}
