//! Kinds of matrices as constants of kernels, decoded by `decode_matrix.wgsl`.
//!
//! Bits 0..4 are the form of values; bit 16 is set if rows are whole units of 32 columns. For
//! affine codes, bits 4..8 are the bits per code, 8..12 the units per scale, 12..16 the form of
//! scales, and bit 17 is set if biases are implied. For FP8, bits 4..8 are the units per scale (0
//! for a whole row), 8..12 the logarithm of its rows, and 12..16 the form of scales. For blocks
//! that carry their own scales, bits 4..8 are the kind's index, 8..12 the units per block, and bits
//! 20.. its bytes. **Invariant:** two kinds have the same constant only if the same code reads
//! them.

use moeflux_kernels::{
    Affine, Biases, FloatKind, Fp8, Fp8Spread, MatrixKind, MatrixLayout, ScaleKind,
};

use crate::kernels::BLOCKS;
use crate::params::narrow;
use crate::shader::{Shader, VectorWidth};

/// Columns that kernels process at once.
pub(crate) const UNIT_COLS: usize = 32;

const TEXT: &str = include_str!("decode_matrix.wgsl");
const TEXT_OF_BLOCKS: &str = include_str!("decode_blocks.wgsl");

const FORM_FP8: u32 = 3;
/// Form of scales only.
const FORM_E8M0: u32 = 3;
/// Stands for the logarithm of the rows if one scale covers all of them.
const ALL_ROWS: u32 = 15;
const FORM_AFFINE: u32 = 4;
const FORM_BLOCK: u32 = 5;

const fn form_of(float: FloatKind) -> u32 {
    match float {
        FloatKind::F32 => 0,
        FloatKind::F16 => 1,
        FloatKind::Bf16 => 2,
    }
}

/// Returns the constant for matrices of this layout.
pub(crate) fn kind_of(layout: MatrixLayout) -> u32 {
    let is_whole = u32::from(layout.n_cols.is_multiple_of(UNIT_COLS)) << 16;
    match layout.kind {
        MatrixKind::Float(float) => form_of(float) | is_whole,
        MatrixKind::Fp8(fp8) => FORM_FP8 | of_fp8(fp8) | is_whole,
        MatrixKind::Affine(Affine { bits, group, scale, biases }) => {
            let units_per_group = u32::from(group) / 32;
            let scales = form_of(scale) << 12 | u32::from(biases == Biases::Implied) << 17;
            FORM_AFFINE | u32::from(bits) << 4 | units_per_group << 8 | scales | is_whole
        }
        MatrixKind::Block(block) => {
            let number = BLOCKS.iter().position(|it| *it == block);
            let number = narrow(number.expect("a model with other blocks is refused"));
            let n_units = narrow(block.block_cols() / UNIT_COLS);
            FORM_BLOCK | number << 4 | n_units << 8 | is_whole | narrow(block.block_bytes()) << 20
        }
    }
}

/// Encodes the extent and form of FP8 scales.
fn of_fp8(Fp8 { spread, scale }: Fp8) -> u32 {
    let (units, rows) = match spread {
        Fp8Spread::Block { n_rows, n_cols } => (u32::from(n_cols) / 32, n_rows.trailing_zeros()),
        Fp8Spread::Row => (0, 0),
        Fp8Spread::Matrix => (0, ALL_ROWS),
    };
    let form = match scale {
        ScaleKind::Float(float) => form_of(float),
        ScaleKind::E8m0 => FORM_E8M0,
    };
    units << 4 | rows << 8 | form << 12
}

/// Returns a shader that reads matrices of these kinds, defined as constants of these names.
/// Kernels without blocks omit the text for them, which would cost drivers a fifth more time.
pub(crate) fn reading<const N: usize>(
    mut shader: Shader,
    kinds: [(&'static str, u32); N],
) -> Shader {
    for (name, kind) in kinds {
        shader = shader.with(name, kind);
    }
    let has_blocks = kinds.iter().any(|(_, kind)| kind & 15 == FORM_BLOCK);
    let blocks = if has_blocks { TEXT_OF_BLOCKS } else { include_str!("decode_no_blocks.wgsl") };
    shader.fragment(TEXT).fragment(blocks).weights(VectorWidth::Four)
}

/// Returns layouts that together cover every path through the text, for tests without a GPU.
pub(crate) fn examples() -> Vec<MatrixLayout> {
    let affine =
        |bits, group, scale| (MatrixKind::Affine(Affine::new(bits, group, scale)), UNIT_COLS * 4);
    let fp8 = |spread, scale, n_cols| (MatrixKind::Fp8(Fp8 { spread, scale }), n_cols);
    let [f32, f16, bf16] = [FloatKind::F32, FloatKind::F16, FloatKind::Bf16];
    let others = [
        (MatrixKind::Float(f32), 64),
        (MatrixKind::Float(f32), 33),
        (MatrixKind::Float(f16), 64),
        (MatrixKind::Float(f16), 33),
        (MatrixKind::Float(bf16), 64),
        fp8(Fp8Spread::Block { n_rows: 128, n_cols: 128 }, ScaleKind::Float(f32), 64),
        fp8(Fp8Spread::Block { n_rows: 128, n_cols: 128 }, ScaleKind::Float(f32), 33),
        fp8(Fp8Spread::Block { n_rows: 32, n_cols: 64 }, ScaleKind::E8m0, 64),
        fp8(Fp8Spread::Row, ScaleKind::Float(bf16), 33),
        fp8(Fp8Spread::Matrix, ScaleKind::Float(f16), 64),
        affine(2, 32, f32),
        affine(3, 64, f16),
        affine(4, 64, bf16),
        affine(5, 128, bf16),
        affine(6, 64, f16),
        affine(8, 32, bf16),
        (MatrixKind::Affine(Affine::symmetric(4, 32, bf16)), UNIT_COLS * 4),
    ];
    let blocks = BLOCKS.map(|block| (MatrixKind::Block(block), 256));
    let layout = |(kind, n_cols)| MatrixLayout { kind, n_rows: 64, n_cols };
    others.into_iter().chain(blocks).map(layout).collect()
}

#[cfg(test)]
mod tests {
    use crate::memory::codebooks::CODEBOOKS;
    use moeflux_kernels::BlockKind;
    use moeflux_kernels::MatrixKind as Kind;

    use super::*;

    #[test]
    fn the_wgsl_has_the_same_constants() {
        for line in [
            format!("const UNIT_COLS: u32 = {UNIT_COLS}u;"),
            format!("const FORM_F32: u32 = {}u;", form_of(FloatKind::F32)),
            format!("const FORM_F16: u32 = {}u;", form_of(FloatKind::F16)),
            format!("const FORM_BF16: u32 = {}u;", form_of(FloatKind::Bf16)),
            format!("const FORM_FP8: u32 = {FORM_FP8}u;"),
            format!("const FORM_AFFINE: u32 = {FORM_AFFINE}u;"),
            format!("const FORM_BLOCK: u32 = {FORM_BLOCK}u;"),
            format!("const FORM_E8M0: u32 = {FORM_E8M0}u;"),
            format!("const ALL_ROWS: u32 = {ALL_ROWS}u;"),
        ] {
            assert!(TEXT.contains(&line), "{line}");
        }
        for (number, block) in BLOCKS.iter().enumerate() {
            let line = format!("const BLOCK_{block:?}: u32 = {number}u;");
            assert!(TEXT_OF_BLOCKS.contains(&line), "{line}");
        }
        for (name, first, _) in CODEBOOKS {
            let line = format!("const {name}: u32 = {first}u;");
            assert!(TEXT_OF_BLOCKS.contains(&line), "{line}");
        }
    }

    #[test]
    fn every_kind_has_its_own_code() {
        let layout = |kind, n_cols| MatrixLayout { kind, n_rows: 1, n_cols };
        let affine = Kind::Affine(Affine::new(5, 128, FloatKind::Bf16));
        assert_eq!(kind_of(layout(affine, 256)), 4 | 5 << 4 | 4 << 8 | 2 << 12 | 1 << 16);
        let symmetric = Kind::Affine(Affine::symmetric(4, 32, FloatKind::F32));
        assert_eq!(kind_of(layout(symmetric, 64)), 4 | 4 << 4 | 1 << 8 | 1 << 16 | 1 << 17);
        assert_eq!(kind_of(layout(Kind::Float(FloatKind::F16), 33)), 1);
        let fp8 = layout(Kind::Fp8(Fp8::DEEPSEEK), 64);
        assert_eq!(kind_of(fp8), 3 | 4 << 4 | 7 << 8 | 1 << 16);
        let rows = Kind::Fp8(Fp8 { spread: Fp8Spread::Row, scale: ScaleKind::E8m0 });
        assert_eq!(kind_of(layout(rows, 33)), 3 | 3 << 12);
        let block = layout(Kind::Block(BlockKind::Q6_K), 512);
        assert_eq!(kind_of(block), 5 | 7 << 4 | 8 << 8 | 1 << 16 | 210 << 20);
    }
}
