//! Binds MXFP4 in four equivalent formats: 4-bit codes, two in a byte, even columns in the low
//! half; and for each 32 columns the exponent of a power of two.

use moeflux_kernels::{BlockKind, MatrixKind};

use super::{StoredMatrix, layout_of};
use crate::error::Result;
use crate::format::DType;
use crate::weights::bind::table::TensorTable;
use crate::weights::tensors::{FoundTensor, PartNames, RequiredMatrix};

const KIND: BlockKind = BlockKind::MXFP4_APART;

/// Advice in errors about other quantisations stored where MXFP4 would be.
const WAY_OUT: &str = "the only supported 4-bit float format is MXFP4: codes of 4 bits in U8, and \
                       an exponent for each 32 columns in U8 or F8_E8M0";

/// Binds the format of compressed-tensors: `weight_packed` U8 `[rows, cols / 2]`, `weight_scale`.
pub(super) fn compressed(
    table: &mut TensorTable<'_>,
    required: &RequiredMatrix<'_>,
    codes: &FoundTensor,
) -> Result<StoredMatrix> {
    let names = PartNames { codes: "weight_packed", scales: "weight_scale", biases: "" };
    check_type(codes, &[DType::U8])?;
    bound(table, required, (codes, 2), names)
}

/// Binds the format of DeepSeek: `weight` I8 `[rows, cols / 2]`, `scale`.
pub(super) fn of_deepseek(
    table: &mut TensorTable<'_>,
    required: &RequiredMatrix<'_>,
    codes: &FoundTensor,
) -> Result<StoredMatrix> {
    if !table.has_stored(&format!("{}.scale", required.base)) {
        return Err(codes.error(format!("has values of type I8 without a `scale`; {WAY_OUT}")));
    }
    bound(table, required, (codes, 2), PartNames { scales: "scale", ..PartNames::PLAIN })
}

/// Returns whether the scales are bytes and there are no biases. Which of MLX's modes without
/// biases it is follows from the shapes.
pub(super) fn is_of_mlx(table: &TensorTable<'_>, base: &str) -> bool {
    let has_bytes = table.dtype(&format!("{base}.scales")) == Some(DType::U8);
    has_bytes && !table.has_stored(&format!("{base}.biases"))
}

/// Binds the format of MLX: `weight` U32 `[rows, cols / 8]`, `scales`.
pub(super) fn of_mlx(
    table: &mut TensorTable<'_>,
    required: &RequiredMatrix<'_>,
    codes: &FoundTensor,
) -> Result<StoredMatrix> {
    bound(table, required, (codes, 8), PartNames { scales: "scales", ..PartNames::PLAIN })
}

/// Binds the format of gpt-oss: `{base}_blocks` U8 `[rows, cols / 32, 16]`, `{base}_scales`.
pub(in crate::weights) fn of_gpt_oss(
    table: &mut TensorTable<'_>,
    required: &RequiredMatrix<'_>,
) -> Result<StoredMatrix> {
    let names = PartNames { codes: "_blocks", scales: "_scales", biases: "" };
    let codes = table.take(&format!("{}{}", required.base, names.codes))?;
    check_type(&codes, &[DType::U8])?;
    let n_blocks = required.n_cols / KIND.block_cols();
    let mut shape = required.shape(required.n_rows, n_blocks);
    shape.push(KIND.block_bytes());
    codes.expect_shape(&shape)?;
    let layout = layout_of(required, MatrixKind::Block(KIND), &codes)?;
    let scales = table.take(&format!("{}{}", required.base, names.scales))?;
    check_scales(required, &scales)?;
    Ok(StoredMatrix {
        layout,
        codes: codes.extent,
        scales: Some(scales.extent),
        biases: None,
        names,
    })
}

/// Binds codes and scales; each value of the tensor of codes holds `n_packed` codes.
fn bound(
    table: &mut TensorTable<'_>,
    required: &RequiredMatrix<'_>,
    (codes, n_packed): (&FoundTensor, usize),
    names: PartNames,
) -> Result<StoredMatrix> {
    codes.expect_shape(&required.shape(required.n_rows, required.n_cols / n_packed))?;
    let layout = layout_of(required, MatrixKind::Block(KIND), codes)?;
    let scales = table.take(&format!("{}.{}", required.base, names.scales))?;
    check_scales(required, &scales)?;
    let (codes, scales) = (codes.extent, Some(scales.extent));
    Ok(StoredMatrix { layout, codes, scales, biases: None, names })
}

fn check_scales(required: &RequiredMatrix<'_>, scales: &FoundTensor) -> Result<()> {
    check_type(scales, &[DType::U8, DType::F8E8M0])?;
    let shape = required.shape(required.n_rows, required.n_cols / KIND.block_cols());
    if scales.shape == shape {
        return Ok(());
    }
    let found = &scales.shape;
    Err(scales.error(format!("has shape {found:?}, but MXFP4 requires {shape:?}; {WAY_OUT}")))
}

fn check_type(found: &FoundTensor, known: &[DType]) -> Result<()> {
    if known.contains(&found.dtype) {
        return Ok(());
    }
    Err(found.error(format!("has values of type {}; {WAY_OUT}", found.dtype)))
}
