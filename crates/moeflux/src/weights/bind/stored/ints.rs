//! Binds integers of compressed-tensors, which are multiples of a scale: affine codes whose middle
//! code is zero, without biases.

use moeflux_kernels::{Affine, MatrixKind};

use super::{StoredMatrix, layout_of};
use crate::error::Result;
use crate::format::DType;
use crate::spec::{NativeFormat, QuantParams, Quantisation};
use crate::weights::bind::table::TensorTable;
use crate::weights::tensors::{FoundTensor, PartNames, RequiredMatrix};

const NAMES: PartNames = PartNames { codes: "weight_packed", scales: "weight_scale", biases: "" };

/// Advice in errors about weights that are stored in another way.
const WAY_OUT: &str = "use the published bf16 files, or an MLX conversion to affine codes";

/// Binds `weight_packed` I32 `[rows, cols * bits / 32]`, `weight_scale` `[rows, cols / group]` and
/// `weight_shape`, which gives the shape that a packed tensor does not.
pub(super) fn compressed(
    table: &mut TensorTable<'_>,
    quantisation: &Quantisation,
    required: &RequiredMatrix<'_>,
    codes: &FoundTensor,
) -> Result<StoredMatrix> {
    for (part, problem) in [
        ("weight_zero_point", "zero points other than the middle code are not supported"),
        ("weight_g_idx", "activation-order quantisation (g_idx) is not supported"),
    ] {
        let name = format!("{}.{part}", required.base);
        if table.has_stored(&name) {
            return Err(table.take(&name)?.error(format!("{problem}; {WAY_OUT}")));
        }
    }
    let Some(NativeFormat::Ints(QuantParams { bits, group })) = quantisation.native else {
        return Err(codes.error("is packed I32, but config.json does not describe its integers"));
    };
    let n_bits = required.n_cols * usize::from(bits);
    let shape = required.shape(required.n_rows, n_bits / 32);
    if !n_bits.is_multiple_of(32) || codes.shape != shape {
        let (found, full) = (&codes.shape, required.shape(required.n_rows, required.n_cols));
        let problem =
            format!("has packed shape {found:?}, but {bits} bits of {full:?} make {shape:?}");
        return Err(codes.error(problem));
    }
    let scales = table.take(&format!("{}.{}", required.base, NAMES.scales))?;
    let Some(scale) = scales.float_kind() else {
        let problem = format!("has values of type {}; scales are F32, F16 or BF16", scales.dtype);
        return Err(scales.error(problem));
    };
    let shape = required.shape(required.n_rows, required.n_cols / usize::from(group));
    if scales.shape != shape {
        let found = &scales.shape;
        let problem = format!(
            "has shape {found:?}, but groups of {group}, as config.json says, make {shape:?}"
        );
        return Err(scales.error(problem));
    }
    check_shape(table, required)?;
    let kind = MatrixKind::Affine(Affine::symmetric(bits, group, scale));
    let layout = layout_of(required, kind, codes)?;
    let (codes, scales) = (codes.extent, Some(scales.extent));
    Ok(StoredMatrix { layout, codes, scales, biases: None, names: NAMES })
}

/// Takes `weight_shape` and checks its form. Its two numbers are not needed: the shapes of the
/// packed tensors were compared.
fn check_shape(table: &mut TensorTable<'_>, required: &RequiredMatrix<'_>) -> Result<()> {
    let name = format!("{}.weight_shape", required.base);
    if !table.has_stored(&name) {
        return Ok(());
    }
    let shape = table.take(&name)?;
    if matches!(shape.dtype, DType::I64 | DType::I32) && shape.shape == [2] {
        return Ok(());
    }
    let problem = format!("is {} {:?}; expected two numbers", shape.dtype, shape.shape);
    Err(shape.error(problem))
}
