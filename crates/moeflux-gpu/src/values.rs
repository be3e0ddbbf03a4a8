//! Random weights of any kind, for device checks.
//!
//! **Invariant:** deterministic. In every kind, products with inputs of about 1 are about 1 and
//! finite.

use half::{bf16, f16};
use moeflux::provider::error::Result;
use moeflux::provider::weights::{ExpertLayout, MatrixSpan, OwnedMatrix};
use moeflux_kernels::{
    BlockKind, FloatKind, Matrix, MatrixKind, MatrixLayout, ScaleKind, decode_row,
};

/// Scale at which uniform values from -1 to 1 have a variance of 1.
const UNIT: f32 = 1.732;

/// Blocks sampled to measure the size of a kind's weights.
const N_MEASURED: usize = 16;

/// Typical magnitude of an FP8 code.
const FP8_SIZE: f32 = 128.0;

/// Returns the error of `values` relative to the size of `expected`. NaN if a value is NaN, or if
/// `expected` is all zeros.
pub(crate) fn relative_error(values: &[f32], expected: &[f32]) -> f64 {
    let square = |value: f32| f64::from(value) * f64::from(value);
    let error: f64 = values.iter().zip(expected).map(|(x, y)| square(x - y)).sum();
    let size: f64 = expected.iter().copied().map(square).sum();
    (error / size).sqrt()
}

/// A pseudorandom generator of weights.
#[derive(Debug)]
pub(crate) struct WeightGenerator(u64);

impl WeightGenerator {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Advances the SplitMix64 generator.
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// Returns a value from -1 to 1.
    pub(crate) fn float(&mut self) -> f32 {
        let [low, high, ..] = self.next().to_le_bytes();
        f32::from(u16::from_le_bytes([low, high])) / 32_768.0 - 1.0
    }

    /// Returns a random matrix of this kind and shape.
    ///
    /// # Errors
    ///
    /// [`moeflux::Error::NoRoom`] if memory is exhausted.
    pub(crate) fn matrix(&mut self, layout: MatrixLayout) -> Result<OwnedMatrix> {
        let mut matrix = OwnedMatrix::zeroed(layout)?;
        let (codes, scales, biases) = matrix.parts_mut();
        self.codes(layout, codes);
        self.scales(layout, scales);
        self.biases(layout, biases);
        Ok(matrix)
    }

    /// Fills a record with a random expert.
    pub(crate) fn expert(&mut self, layout: &ExpertLayout, record: &mut [u8]) {
        for MatrixSpan { layout, codes_at, scales_at, biases_at, .. } in
            [layout.gate, layout.up, layout.down]
        {
            self.codes(layout, &mut record[codes_at..][..layout.code_bytes()]);
            self.scales(layout, &mut record[scales_at..][..layout.scale_bytes()]);
            self.biases(layout, &mut record[biases_at..][..layout.bias_bytes()]);
        }
    }

    fn codes(&mut self, layout: MatrixLayout, target: &mut [u8]) {
        let size = weight_size(layout);
        match layout.kind {
            MatrixKind::Float(float) => self.floats(float, UNIT * size, target),
            MatrixKind::Fp8(_) => {
                self.bytes(target);
                // A code of all ones is NaN.
                for code in target.iter_mut().filter(|code| **code & 0x7F == 0x7F) {
                    *code &= 0x80;
                }
            }
            MatrixKind::Affine(_) => self.bytes(target),
            MatrixKind::Block(block) => {
                let factor = size / self.block_size(block);
                self.blocks(block, factor, target);
            }
        }
    }

    fn scales(&mut self, layout: MatrixLayout, target: &mut [u8]) {
        let size = weight_size(layout);
        match layout.kind {
            MatrixKind::Float(_) => {}
            MatrixKind::Fp8(fp8) => match fp8.scale {
                ScaleKind::Float(float) => self.floats(float, UNIT * size / FP8_SIZE, target),
                ScaleKind::E8m0 => target.fill(exponent(size / FP8_SIZE)),
            },
            MatrixKind::Affine(affine) => {
                let n_steps = f32::from((1_u16 << affine.bits) - 1);
                self.floats(affine.scale, 2.0 * UNIT * size / n_steps, target);
            }
            MatrixKind::Block(_) => target.fill(exponent(size)),
        }
    }

    fn biases(&mut self, layout: MatrixLayout, target: &mut [u8]) {
        if let MatrixKind::Affine(affine) = layout.kind {
            self.floats(affine.scale, UNIT * weight_size(layout), target);
        }
    }

    fn bytes(&mut self, target: &mut [u8]) {
        for word in target.chunks_mut(size_of::<u64>()) {
            word.copy_from_slice(&self.next().to_le_bytes()[..word.len()]);
        }
    }

    fn floats(&mut self, kind: FloatKind, most: f32, target: &mut [u8]) {
        for value in target.chunks_exact_mut(kind.bytes()) {
            let float = self.float() * most;
            match kind {
                FloatKind::F32 => value.copy_from_slice(&float.to_le_bytes()),
                FloatKind::F16 => value.copy_from_slice(&f16::from_f32(float).to_le_bytes()),
                FloatKind::Bf16 => value.copy_from_slice(&bf16::from_f32(float).to_le_bytes()),
            }
        }
    }

    /// Fills blocks with arbitrary codes and factors of this size.
    fn blocks(&mut self, kind: BlockKind, factor: f32, target: &mut [u8]) {
        self.bytes(target);
        for block in target.chunks_exact_mut(kind.block_bytes()) {
            if kind == BlockKind::MXFP4 {
                block[0] = exponent(factor);
                continue;
            }
            for &at in kind.factors_at() {
                let value = f16::from_f32(self.float() * UNIT * factor);
                block[at..at + 2].copy_from_slice(&value.to_le_bytes());
            }
        }
    }

    /// Returns the size of the weights of blocks whose factors are about 1.
    fn block_size(&mut self, kind: BlockKind) -> f32 {
        if kind == BlockKind::MXFP4_APART {
            return 1.0;
        }
        let mut bytes = vec![0; N_MEASURED * kind.block_bytes()];
        self.blocks(kind, 1.0, &mut bytes);
        let n_cols = N_MEASURED * kind.block_cols();
        let layout = MatrixLayout { kind: MatrixKind::Block(kind), n_rows: 1, n_cols };
        let mut weights = vec![0.0; n_cols];
        decode_row(&Matrix::new(layout, &bytes, &[], &[]), 0, &mut weights);
        let largest = weights.iter().fold(0.0_f32, |most, weight| most.max(weight.abs()));
        (largest / 2.0).max(f32::MIN_POSITIVE)
    }
}

/// Returns the weight size at which a row's product stays at about 1.
#[expect(clippy::cast_precision_loss, reason = "rows are shorter than 2^24")]
fn weight_size(layout: MatrixLayout) -> f32 {
    1.0 / (layout.n_cols as f32).sqrt()
}

/// Returns the power of two below a value, as an exponent byte.
fn exponent(value: f32) -> u8 {
    let [byte, ..] = (value.to_bits() >> 23).to_le_bytes();
    byte.clamp(1, 254)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_of_every_kind_are_of_the_size_that_keeps_products_at_one() {
        let blocks = crate::kernels::BLOCKS.map(MatrixKind::Block);
        let floats = [FloatKind::F32, FloatKind::F16, FloatKind::Bf16].map(MatrixKind::Float);
        let affine = [2, 4, 8].map(|bits| {
            MatrixKind::Affine(moeflux_kernels::Affine::new(bits, 64, FloatKind::Bf16))
        });
        for kind in blocks.into_iter().chain(floats).chain(affine) {
            let layout = MatrixLayout { kind, n_rows: 4, n_cols: 1024 };
            let matrix = WeightGenerator::new(7).matrix(layout).unwrap();
            let mut row = vec![0.0; 1024];
            let mut squares = 0.0;
            for row_idx in 0..4 {
                decode_row(&matrix.view(), row_idx, &mut row);
                squares += row.iter().map(|weight| f64::from(weight * weight)).sum::<f64>() / 4.0;
            }
            assert!((0.02..20.0).contains(&squares), "{kind}: {squares}");
        }
    }
}
