//! Parses the quantisation that a config declares: MLX affine, FP8 blocks, MXFP4, or
//! compressed-tensors.
//!
//! **Invariant:** an unknown kind is refused, and the error names it. The tensors of the checkpoint
//! are not known here; parameters are looked up by canonical name.

mod compressed;

use std::collections::BTreeMap;

use moeflux_kernels::Fp8Spread;
use serde_json::Value;

use super::config::CheckedConfig;
use super::{NativeFormat, QuantParams, Quantisation};
use crate::error::{Error, Result};
use crate::format::{ConfigSection, canonical_module};

/// Keys of an MLX section that do not name tensors.
const SETTINGS: [&str; 4] = ["group_size", "bits", "mode", "quant_method"];

const ADVICE: &str = "use the published bf16, fp8 or mxfp4 files, or an MLX conversion to affine \
                       2 to 8 bits";

pub(super) fn parse(config: &CheckedConfig<'_>) -> Result<Quantisation> {
    // MLX writes the section twice, and leaves that of a wrapped model inside.
    let places = [
        (&config.root, "quantization"),
        (&config.root, "quantization_config"),
        (&config.text, "quantization"),
        (&config.text, "quantization_config"),
    ];
    for (place, key) in places {
        if let Some(section) = place.section(key)? {
            return match section.str_opt("quant_method")? {
                None | Some("affine") => mlx(&section),
                Some("fp8") => fp8(&section),
                // The tensors that have it are recognised by their types.
                Some("mxfp4") => Ok(Quantisation::of_native(NativeFormat::Mxfp4)),
                Some("compressed-tensors") => compressed::parse(&section),
                Some(_) => Err(refused(&section, "quant_method")),
            };
        }
    }
    Ok(Quantisation::default())
}

fn refused(section: &ConfigSection<'_>, key: &str) -> Error {
    section.unsupported(key, &format!("this quantisation is not supported; {ADVICE}"))
}

fn fp8(section: &ConfigSection<'_>) -> Result<Quantisation> {
    let Some(spread) = block(section.usize_list_opt("weight_block_size")?.as_deref()) else {
        let advice = format!("FP8 weights need blocks of 32, 64 or 128 rows and columns; {ADVICE}");
        return Err(section.unsupported("weight_block_size", &advice));
    };
    for (key, known) in [("fmt", "e4m3"), ("activation_scheme", "dynamic")] {
        if section.str_opt(key)?.is_some_and(|name| name != known) {
            let advice = format!("of FP8, only \"{known}\" is supported; {ADVICE}");
            return Err(section.unsupported(key, &advice));
        }
    }
    Ok(Quantisation::of_native(NativeFormat::Fp8(spread)))
}

/// Returns the FP8 blocks of these sizes, if they are supported.
fn block(sizes: Option<&[usize]>) -> Option<Fp8Spread> {
    let size = |n: usize| u8::try_from(n).ok().filter(|n| matches!(n, 32 | 64 | 128));
    let &[n_rows, n_cols] = sizes? else { return None };
    Some(Fp8Spread::Block { n_rows: size(n_rows)?, n_cols: size(n_cols)? })
}

fn mlx(section: &ConfigSection<'_>) -> Result<Quantisation> {
    let bits = section.usize_at("bits")?;
    let group = section.usize_at("group_size")?;
    let default = params(section, bits, group)?;
    let mut native = if default.is_none() { Some(NativeFormat::Mxfp4) } else { None };
    let mut overrides = BTreeMap::new();
    for (key, value) in section.entries().filter(|(key, _)| !SETTINGS.contains(key)) {
        let params = match value {
            Value::Bool(false) => None,
            Value::Bool(true) => default,
            Value::Object(_) => {
                let params = one_tensor(section, key)?;
                native = native.or(params.is_none().then_some(NativeFormat::Mxfp4));
                params
            }
            _ => return Err(section.wrong(key, "an object with bits and group_size, or false")),
        };
        let name = canonical_module(key);
        if overrides.insert(name, params).is_some_and(|other| other != params) {
            return Err(section.wrong(key, "the same value as under the tensor's other name"));
        }
    }
    Ok(Quantisation { default, overrides, native })
}

/// Returns the parameters of one tensor. As in mlx-lm, what its entry lacks is not that of the
/// whole section: without `mode` it is affine, and each mode has sizes of its own.
fn one_tensor(section: &ConfigSection<'_>, key: &str) -> Result<Option<QuantParams>> {
    let Some(tensor) = section.section(key)? else { return Ok(None) };
    let default_group = if tensor.str_opt("mode")? == Some("mxfp4") { 32 } else { 64 };
    let bits = tensor.usize_opt("bits")?.unwrap_or(4);
    let group = tensor.usize_opt("group_size")?.unwrap_or(default_group);
    params(&tensor, bits, group)
}

/// Returns bits and group of affine weights; `None` for MXFP4, whose values are fixed.
fn params(section: &ConfigSection<'_>, bits: usize, group: usize) -> Result<Option<QuantParams>> {
    match section.str_opt("mode")? {
        None | Some("affine") => {}
        Some("mxfp4") if (bits, group) == (4, 32) => return Ok(None),
        Some("mxfp4") if bits != 4 => return Err(section.wrong("bits", "4, as required by MXFP4")),
        Some("mxfp4") => return Err(section.wrong("group_size", "32, as required by MXFP4")),
        Some(_) => return Err(refused(section, "mode")),
    }
    let bits = u8::try_from(bits).ok().filter(|bits| matches!(bits, 2 | 3 | 4 | 5 | 6 | 8));
    let group = u8::try_from(group).ok().filter(|group| matches!(group, 32 | 64 | 128));
    match (bits, group) {
        (Some(bits), Some(group)) => Ok(Some(QuantParams { bits, group })),
        (None, _) => Err(section.wrong("bits", "2, 3, 4, 5, 6 or 8")),
        (_, None) => Err(section.wrong("group_size", "32, 64 or 128")),
    }
}
