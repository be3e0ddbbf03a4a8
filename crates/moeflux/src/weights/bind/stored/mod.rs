//! Determines the kind of a matrix from the tensors under one name, and where its parts are stored.
//!
//! **Invariant:** a [`StoredMatrix`] has parts of exactly the lengths that its kind and shape
//! require. The file's types determine the kind, and its shapes the bits and groups of packed
//! codes, unless `config.json` has an entry for the tensor: then they must fit.

pub(super) mod fp8;
mod ints;
mod mxfp4;

use moeflux_kernels::{Affine, FloatKind, MatrixKind, MatrixLayout};

use crate::error::{Error, Result};
use crate::format::DType;
use crate::spec::{NativeFormat, QuantParams, Quantisation};
use crate::weights::bind::table::TensorTable;
use crate::weights::tensors::{FileExtent, FoundTensor, PartNames, RequiredMatrix, block_kind};

pub(super) use mxfp4::of_gpt_oss;

/// A matrix, or a stack of matrices, as stored.
#[derive(Clone, Copy, Debug)]
pub(super) struct StoredMatrix {
    /// Layout of a single matrix of the stack.
    pub(super) layout: MatrixLayout,
    pub(super) codes: FileExtent,
    pub(super) scales: Option<FileExtent>,
    pub(super) biases: Option<FileExtent>,
    pub(super) names: PartNames,
}

impl StoredMatrix {
    /// Binds the tensor `base.weight` and those that belong to it.
    pub(super) fn bind(
        table: &mut TensorTable<'_>,
        quantisation: &Quantisation,
        required: &RequiredMatrix<'_>,
    ) -> Result<Self> {
        if table.has_stored(&format!("{}.weight_packed", required.base)) {
            return compressed(table, quantisation, required);
        }
        let weight = table.take(&format!("{}.weight", required.base))?;
        match weight.dtype {
            DType::U32 if mxfp4::is_of_mlx(table, required.base) => {
                mxfp4::of_mlx(table, required, &weight)
            }
            DType::U32 => Self::affine(table, quantisation, required, &weight),
            DType::F8E4M3 => fp8::bind(table, quantisation, required, &weight),
            DType::I8 => mxfp4::of_deepseek(table, required, &weight),
            _ => Self::whole(required, &weight),
        }
    }

    /// Binds one tensor with all values: floats, or blocks that contain their scales.
    pub(super) fn whole(required: &RequiredMatrix<'_>, weight: &FoundTensor) -> Result<Self> {
        let kind = kind_of(weight)?;
        weight.expect_shape(&required.shape(required.n_rows, required.n_cols))?;
        let layout = layout_of(required, kind, weight)?;
        let names = PartNames::PLAIN;
        Ok(Self { layout, codes: weight.extent, scales: None, biases: None, names })
    }

    fn affine(
        table: &mut TensorTable<'_>,
        quantisation: &Quantisation,
        required: &RequiredMatrix<'_>,
        weight: &FoundTensor,
    ) -> Result<Self> {
        let scales = table.take(&format!("{}.scales", required.base))?;
        let params = params_of(quantisation, required, (weight, &scales))?;
        check_packed(required, params, weight)?;
        let biases = table.take(&format!("{}.biases", required.base))?;
        let scale = check_scales(required, params, &scales)?;
        if (biases.dtype, &biases.shape) != (scales.dtype, &scales.shape) {
            return Err(biases.error(format!(
                "is {} {:?}, but the scales are {} {:?}: they must match",
                biases.dtype, biases.shape, scales.dtype, scales.shape
            )));
        }
        let affine = Affine::new(params.bits, params.group, scale);
        let layout = layout_of(required, MatrixKind::Affine(affine), weight)?;
        let (scales, biases) = (Some(scales.extent), Some(biases.extent));
        let names = PartNames { scales: "scales", biases: "biases", ..PartNames::PLAIN };
        Ok(Self { layout, codes: weight.extent, scales, biases, names })
    }
}

/// Binds a matrix packed by compressed-tensors; the type of the codes determines the format.
fn compressed(
    table: &mut TensorTable<'_>,
    quantisation: &Quantisation,
    required: &RequiredMatrix<'_>,
) -> Result<StoredMatrix> {
    let codes = table.take(&format!("{}.weight_packed", required.base))?;
    match codes.dtype {
        DType::I32 => ints::compressed(table, quantisation, required, &codes),
        _ => mxfp4::compressed(table, required, &codes),
    }
}

fn kind_of(weight: &FoundTensor) -> Result<MatrixKind> {
    if let DType::Block(block) = weight.dtype {
        let kind = block_kind(block).map(MatrixKind::Block);
        return kind.ok_or_else(|| {
            let name = block.name();
            let problem = format!("is {name}, which is not supported: use another quantisation");
            weight.error(problem)
        });
    }
    weight.float_kind().map(MatrixKind::Float).ok_or_else(|| {
        weight.error(format!(
            "has values of type {}, which is not supported here: use F32, F16 or BF16 or, unless \
             experts are fused, F8_E4M3 or packed U32",
            weight.dtype
        ))
    })
}

/// Returns the parameters of packed codes, as mlx-lm 0.32 finds them.
fn params_of(
    quantisation: &Quantisation,
    required: &RequiredMatrix<'_>,
    (weight, scales): (&FoundTensor, &FoundTensor),
) -> Result<QuantParams> {
    let params = match quantisation.overrides.get(required.base) {
        Some(params) => *params,
        None if quantisation.is_of_mlx() => {
            // Shapes that fit nothing are reported with the stated parameters.
            fitting(required.n_cols, weight, scales).or(quantisation.default)
        }
        None => None,
    };
    params.ok_or_else(|| {
        weight.error(match quantisation.native {
            Some(NativeFormat::Mxfp4) => {
                "is packed U32, but its scales are not those of mxfp4, which config.json requires"
            }
            _ => "is packed U32, but config.json does not describe its quantisation",
        })
    })
}

/// Returns the parameters that follow from the widths of codes and scales.
fn fitting(n_cols: usize, weight: &FoundTensor, scales: &FoundTensor) -> Option<QuantParams> {
    let (n_words, n_groups) = (*weight.shape.last()?, *scales.shape.last()?);
    let fits_bits = |bits: &u8| {
        n_cols.checked_mul((*bits).into()).is_some_and(|it| Some(it) == n_words.checked_mul(32))
    };
    let fits_group = |group: &u8| n_groups.checked_mul((*group).into()) == Some(n_cols);
    let bits = [2_u8, 3, 4, 5, 6, 8].into_iter().find(fits_bits)?;
    let group = [32_u8, 64, 128].into_iter().find(fits_group)?;
    Some(QuantParams { bits, group })
}

/// Checks the width of packed codes; the error states which bits would fit.
fn check_packed(
    required: &RequiredMatrix<'_>,
    params: QuantParams,
    weight: &FoundTensor,
) -> Result<()> {
    let n_bits = required.n_cols * usize::from(params.bits);
    let is_packed = n_bits.is_multiple_of(32);
    if is_packed && weight.shape == required.shape(required.n_rows, n_bits / 32) {
        return Ok(());
    }
    let packed = weight.shape.last().copied().unwrap_or(0);
    let would_fit = [2_usize, 3, 4, 5, 6, 8].into_iter().find(|bits| {
        required.n_cols * bits == packed.saturating_mul(32)
            && weight.shape == required.shape(required.n_rows, packed)
    });
    let QuantParams { bits, group } = params;
    Err(weight.error(match would_fit {
        Some(fitting) => format!(
            "packed width {packed} fits {fitting} bits; config.json says {bits} bits in groups of \
             {group} for `{}`",
            required.base
        ),
        None => format!(
            "has packed shape {:?}, but {bits} bits of {:?} make {:?}",
            weight.shape,
            required.shape(required.n_rows, required.n_cols),
            required.shape(required.n_rows, n_bits.div_ceil(32))
        ),
    }))
}

/// Checks the scales; the error states which groups would fit.
fn check_scales(
    required: &RequiredMatrix<'_>,
    params: QuantParams,
    scales: &FoundTensor,
) -> Result<FloatKind> {
    let Some(kind) = scales.float_kind() else {
        return Err(scales.error(format!(
            "has values of type {}; scales of affine quantisation are F32, F16 or BF16",
            scales.dtype
        )));
    };
    let group = usize::from(params.group);
    let n_groups = required.n_cols / group.max(1);
    if scales.shape == required.shape(required.n_rows, n_groups) {
        return Ok(kind);
    }
    let width = scales.shape.last().copied().unwrap_or(0);
    let would_fit = [32_usize, 64, 128].into_iter().find(|it| {
        required.n_cols == it.saturating_mul(width)
            && scales.shape == required.shape(required.n_rows, width)
    });
    Err(scales.error(match would_fit {
        Some(fitting) => format!(
            "width {width} fits groups of {fitting}; config.json says {group} for `{}`",
            required.base
        ),
        None => format!(
            "has shape {:?}, but groups of {group} of {:?} make {:?}",
            scales.shape,
            required.shape(required.n_rows, required.n_cols),
            required.shape(required.n_rows, n_groups)
        ),
    }))
}

fn layout_of(
    required: &RequiredMatrix<'_>,
    kind: MatrixKind,
    weight: &FoundTensor,
) -> Result<MatrixLayout> {
    let layout = MatrixLayout::new(kind, required.n_rows, required.n_cols)
        .map_err(|error| weight.error(error.to_string()))?;
    let n_bytes = layout.code_bytes() as u64 * required.n_stack.unwrap_or(1) as u64;
    assert_eq!(n_bytes, weight.extent.len_bytes, "the header's check of `{}`", weight.name);
    Ok(layout)
}

/// Returns the layout of the stacked matrices as one matrix with all their rows.
pub(super) fn unstacked(layout: MatrixLayout, n_stack: usize, base: &str) -> Result<MatrixLayout> {
    let n_rows = layout.n_rows.saturating_mul(n_stack);
    MatrixLayout::new(layout.kind, n_rows, layout.n_cols)
        .map_err(|error| Error::tensor(base, error.to_string()))
}
