//! Parses the quantisation of compressed-tensors: one scheme for all quantised tensors.
//!
//! **Invariant:** every scheme returned is one whose tensors can be read. `targets` and `ignore`
//! are not read, because quantised tensors are recognised by their types.

use moeflux_kernels::Fp8Spread;
use serde_json::Value;

use super::{ADVICE, NativeFormat, QuantParams, Quantisation, block};
use crate::error::Result;
use crate::format::ConfigSection;

/// Upper bound on groups of tensors that are read; published models have one or two.
const GROUPS_MAX: usize = 64;

pub(super) fn parse(section: &ConfigSection<'_>) -> Result<Quantisation> {
    for key in ["kv_cache_scheme", "sparsity_config"] {
        let has_some = section.section(key)?.is_some_and(|it| !it.is_empty());
        if has_some {
            return Err(section.unsupported(key, &format!("is not supported; {ADVICE}")));
        }
    }
    let Some(groups) = section.section("config_groups")? else {
        return Err(section.missing("config_groups"));
    };
    let format = section.str_opt("format")?;
    let mut schemes = Vec::new();
    for (name, _) in groups.entries().take(GROUPS_MAX) {
        let Some(group) = groups.section(name)? else { continue };
        // Configs with mixed formats state it in each group.
        schemes.push(scheme(&group, group.str_opt("format")?.or(format))?);
    }
    match schemes.as_slice() {
        [] => Err(section.wrong("config_groups", "at least one group")),
        [first, rest @ ..] if rest.iter().all(|it| it == first) => {
            Ok(Quantisation::of_native(*first))
        }
        _ => {
            let advice = format!("groups of tensors that differ are not supported; {ADVICE}");
            Err(section.unsupported("config_groups", &advice))
        }
    }
}

/// Returns the format of a group of tensors.
fn scheme(group: &ConfigSection<'_>, format: Option<&str>) -> Result<NativeFormat> {
    let Some(weights) = group.section("weights")? else {
        return Err(group.missing("weights"));
    };
    let refused = |key: &str| {
        weights.unsupported(key, &format!("this quantisation scheme is not supported; {ADVICE}"))
    };
    let bits = weights.usize_at("num_bits")?;
    let strategy = weights.str_opt("strategy")?;
    let group_size = weights.usize_opt("group_size")?;
    match (weights.str_opt("type")?, bits, format) {
        (Some("float"), 4, Some("mxfp4-pack-quantized")) => match (strategy, group_size) {
            (Some("group"), Some(32)) => Ok(NativeFormat::Mxfp4),
            (Some("group"), _) => Err(refused("group_size")),
            _ => Err(refused("strategy")),
        },
        (Some("int"), 4 | 8, Some("pack-quantized")) => {
            if weights.value("actorder").is_some_and(|it| !matches!(it, Value::Bool(false))) {
                return Err(refused("actorder"));
            }
            if weights.bool_opt("symmetric")? == Some(false) {
                return Err(refused("symmetric"));
            }
            let group = group_size.and_then(|group| u8::try_from(group).ok());
            match (strategy, group) {
                (Some("group") | None, Some(group @ (32 | 64 | 128))) => {
                    let bits = if bits == 4 { 4 } else { 8 };
                    Ok(NativeFormat::Ints(QuantParams { bits, group }))
                }
                (Some("group") | None, _) => Err(weights.wrong("group_size", "32, 64 or 128")),
                _ => Err(refused("strategy")),
            }
        }
        (Some("float"), 8, Some("float-quantized" | "naive-quantized")) => match strategy {
            Some("channel") => Ok(NativeFormat::Fp8(Fp8Spread::Row)),
            Some("tensor") => Ok(NativeFormat::Fp8(Fp8Spread::Matrix)),
            Some("block") => {
                let sizes = weights.usize_list_opt("block_structure")?;
                let spread = block(sizes.as_deref()).ok_or_else(|| refused("block_structure"))?;
                Ok(NativeFormat::Fp8(spread))
            }
            _ => Err(refused("strategy")),
        },
        _ => {
            let format = moeflux_io::OneLine::name(format.unwrap_or("nothing"));
            let advice = format!(
                "with `format` {format} and `num_bits` {bits} is not supported (\
                 mxfp4-pack-quantized is, pack-quantized with 4 or 8 bits of int, and \
                 float-quantized with 8); {ADVICE}"
            );
            Err(weights.unsupported("type", &advice))
        }
    }
}
