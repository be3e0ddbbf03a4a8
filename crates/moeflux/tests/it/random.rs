//! Random numbers and weights from a seed: the same on every machine, so that a failure's seed
//! is all that is needed to see it again.

use std::ops::Range;

use half::{bf16, f16};
use moeflux_kernels::{
    Affine, Biases, BlockKind, FloatKind, Fp8, Fp8Spread, MatrixKind, MatrixLayout, ScaleKind,
};

/// Seeds of a suite that draws `n` of them in `./test.sh`. With `MOEFLUX_SEEDS`, a suite that draws
/// 200 draws so many instead, and others more in proportion.
#[expect(clippy::disallowed_methods, reason = "a test's own variable: see TESTING.md")]
pub(crate) fn seeds(n: u64) -> Range<u64> {
    const USUAL: u64 = 200;
    let wanted = std::env::var("MOEFLUX_SEEDS").map_or(USUAL, |it| it.parse().expect("a number"));
    0..(n * wanted.max(USUAL)).div_ceil(USUAL)
}

/// The SplitMix64 generator.
#[derive(Debug)]
pub(crate) struct Rng {
    state: u64,
}

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    pub(crate) fn bits(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number in `0 .. n`.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        let rest = self.bits() % u64::try_from(n).expect("a small count");
        usize::try_from(rest).expect("less than a count")
    }

    /// A number in `first ..= last`.
    pub(crate) fn between(&mut self, first: usize, last: usize) -> usize {
        first + self.below(last - first + 1)
    }

    pub(crate) fn coin(&mut self) -> bool {
        self.below(2) == 1
    }

    pub(crate) fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    /// A number in `0.0 .. 1.0`, of 24 bits.
    pub(crate) fn fraction(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1_u32 << 24) as f32
    }

    /// Mean 0, variance 1, within a few deviations.
    pub(crate) fn normal(&mut self) -> f32 {
        // The sum of 12 fractions has variance 1.
        (0..12).map(|_| self.fraction()).sum::<f32>() - 6.0
    }

    pub(crate) fn normals(&mut self, n: usize, factor: f32) -> Vec<f32> {
        (0..n).map(|_| self.normal() * factor).collect()
    }

    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for idx in (1..items.len()).rev() {
            items.swap(idx, self.below(idx + 1));
        }
    }
}

/// Every way that weights can be stored but in blocks that carry their own scales.
pub(crate) fn all_kinds() -> Vec<MatrixKind> {
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
pub(crate) fn fitting_cols(kind: MatrixKind, n_cols: usize) -> usize {
    match kind {
        MatrixKind::Affine(affine) => n_cols.next_multiple_of(usize::from(affine.group)),
        MatrixKind::Block(block) => n_cols.next_multiple_of(block.block_cols()),
        MatrixKind::Float(_) | MatrixKind::Fp8(_) => n_cols,
    }
}

/// Codes, scales and biases whose products with normal inputs are about normal.
pub(crate) fn matrix_parts(rng: &mut Rng, layout: MatrixLayout) -> [Vec<u8>; 3] {
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
