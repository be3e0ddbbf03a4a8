//! Binds FP8 with the scale names of transformers (`weight_scale_inv`), compressed-tensors
//! (`weight_scale`) and DeepSeek V4 (`scale`). All are multipliers.

use moeflux_kernels::{Fp8, Fp8Spread, MatrixKind, ScaleKind};

use super::{StoredMatrix, layout_of};
use crate::error::Result;
use crate::format::DType;
use crate::spec::{NativeFormat, Quantisation};
use crate::weights::bind::table::TensorTable;
use crate::weights::tensors::{FoundTensor, PartNames, RequiredMatrix};

/// Names of scales; the first that exists is used.
pub(in crate::weights::bind) const SCALES: [&str; 3] =
    ["weight_scale_inv", "weight_scale", "scale"];

/// Binds `weight` F8_E4M3 `[rows, cols]` and its scales; the config states what shares a scale.
pub(super) fn bind(
    table: &mut TensorTable<'_>,
    quantisation: &Quantisation,
    required: &RequiredMatrix<'_>,
    weight: &FoundTensor,
) -> Result<StoredMatrix> {
    // Published experts have one tensor each; synthetic ones are stacked, with the same bytes.
    if required.n_stack.is_some() && !table.is_synthetic() {
        return Err(weight.error("is FP8 in three dimensions, which is not supported"));
    }
    weight.expect_shape(&required.shape(required.n_rows, required.n_cols))?;
    let is_there = |name: &&str| table.has_stored(&format!("{}.{name}", required.base));
    let scales_name = SCALES.into_iter().find(is_there).unwrap_or(SCALES[0]);
    let scales = table.take(&format!("{}.{scales_name}", required.base))?;
    let scale = match (scales.float_kind(), scales.dtype) {
        (Some(float), _) => ScaleKind::Float(float),
        (None, DType::F8E8M0) => ScaleKind::E8m0,
        (None, other) => {
            let problem =
                format!("has values of type {other}; FP8 scales are F32, F16, BF16 or F8_E8M0");
            return Err(scales.error(problem));
        }
    };
    let spread = match quantisation.native {
        Some(NativeFormat::Fp8(spread)) => spread,
        _ => Fp8::DEEPSEEK.spread,
    };
    let fp8 = Fp8 { spread, scale };
    check_shape(required, fp8, weight, &scales)?;
    let layout = layout_of(required, MatrixKind::Fp8(fp8), weight)?;
    let names = PartNames { scales: scales_name, ..PartNames::PLAIN };
    let (codes, scales) = (weight.extent, Some(scales.extent));
    Ok(StoredMatrix { layout, codes, scales, biases: None, names })
}

fn check_shape(
    required: &RequiredMatrix<'_>,
    fp8: Fp8,
    weight: &FoundTensor,
    scales: &FoundTensor,
) -> Result<()> {
    let n_rows = required.n_rows.div_ceil(fp8.rows_per_scale());
    let n_cols = fp8.scales_per_row(required.n_cols);
    let shape = required.shape(n_rows, n_cols);
    // Where a dimension has one scale, some tools omit the dimension.
    let of_rows = required.n_stack.is_none() && n_cols == 1 && scales.shape == [n_rows];
    let of_all = fp8.spread == Fp8Spread::Matrix && scales.shape.iter().all(|n| *n == 1);
    if scales.shape == shape || of_rows || of_all && required.n_stack.is_none() {
        return Ok(());
    }
    let (found, whole) = (&scales.shape, &weight.shape);
    let shared = match fp8.spread {
        Fp8Spread::Block { n_rows, n_cols } => format!("blocks of {n_rows} x {n_cols}"),
        Fp8Spread::Row => "rows".to_owned(),
        Fp8Spread::Matrix => "the whole".to_owned(),
    };
    Err(scales.error(format!("has shape {found:?}, but {shared} of {whole:?} make {shape:?}")))
}
