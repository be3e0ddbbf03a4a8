//! Random blocks of GGUF files: arbitrary codes, with factors that give weights of the wanted size.
//!
//! **Invariant:** weights have zero mean: where a block has a minimum, it moves the middle of the
//! codes to zero, and factors have either sign. Handles one block at a time.

use half::f16;
use moeflux::provider::kernels::{BlockKind, Matrix, MatrixKind, MatrixLayout, decode_row};

use crate::random::RandomStream;

/// Relative spread of a matrix's scales around their mean: real scales vary, too.
pub(super) const SCALE_SPREAD: f32 = 0.25;

/// Blocks whose weights are measured: enough for a deviation within some percent.
const N_MEASURED: usize = 64;

const WORD_BYTES: usize = size_of::<u64>();

/// A generator of blocks of one kind.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct BlockGenerator {
    kind: BlockKind,
    /// The approximate magnitude of block factors.
    factor: f32,
}

impl BlockGenerator {
    /// Returns a generator of blocks whose weights have this standard deviation.
    pub(super) fn new(kind: BlockKind, deviation: f32) -> Self {
        let unit = Self { kind, factor: 1.0 };
        let stream = RandomStream::new(0, kind.name());
        let mut bytes = vec![0; N_MEASURED * kind.block_bytes()];
        for (idx, block) in (0..).zip(bytes.chunks_exact_mut(kind.block_bytes())) {
            unit.fill(&stream, idx, block);
        }
        let n_cols = N_MEASURED * kind.block_cols();
        let layout = MatrixLayout::new(MatrixKind::Block(kind), 1, n_cols);
        let layout = layout.expect("whole blocks of a small row");
        let mut weights = vec![0.0; n_cols];
        decode_row(&Matrix::new(layout, &bytes, &[], &[]), 0, &mut weights);
        let squares: f32 = weights.iter().map(|weight| weight * weight).sum();
        Self { kind, factor: deviation / (squares / n_cols as f32).sqrt() }
    }

    /// Returns the bytes of a block.
    pub(super) fn block_bytes(&self) -> usize {
        self.kind.block_bytes()
    }

    /// Writes the block at an index of its tensor.
    pub(super) fn fill(&self, stream: &RandomStream, block_idx: u64, target: &mut [u8]) {
        // One more word for the factors.
        let n_words = (target.len().div_ceil(WORD_BYTES) + 1) as u64;
        let first = block_idx * n_words;
        for (idx, bytes) in (first + 1..).zip(target.chunks_mut(WORD_BYTES)) {
            bytes.copy_from_slice(&stream.word(idx).to_le_bytes()[..bytes.len()]);
        }
        if self.kind == BlockKind::MXFP4 {
            target[0] = self.exponent(stream.uniform(first));
            return;
        }
        let spread = 1.0 + SCALE_SPREAD * (2.0 * stream.uniform(first) - 1.0);
        let factor = self.factor * spread * stream.sign(first);
        let [scale, minimum] = [factor, factor * minimum_per_scale(self.kind)];
        for (at, value) in self.kind.factors_at().iter().zip([scale, minimum]) {
            target[*at..*at + 2].copy_from_slice(&f16::from_f32(value).to_le_bytes());
        }
    }

    /// Returns one of the two powers of two around the factor, with probabilities that give squares
    /// the right mean.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a whole number from 0 to 254"
    )]
    fn exponent(&self, uniform: f32) -> u8 {
        let power = self.factor.log2().floor();
        let square = (self.factor / power.exp2()).powi(2);
        let is_larger = uniform < (square - 1.0) / 3.0;
        (127.0 + power + f32::from(u8::from(is_larger))).clamp(0.0, 254.0) as u8
    }
}

/// Returns the middle of the codes, with the sign with which the minimum enters a weight.
fn minimum_per_scale(kind: BlockKind) -> f32 {
    match kind {
        BlockKind::Q4_1 => -7.5,
        BlockKind::Q5_1 => -15.5,
        BlockKind::Q2_K => 1.5,
        BlockKind::Q4_K => 7.5,
        BlockKind::Q5_K => 15.5,
        _ => 0.0,
    }
}
