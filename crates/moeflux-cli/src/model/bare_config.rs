//! A `config.json` without weights, as the checkpoint that it describes or would produce.
//!
//! **Invariant:** the config's quantisation applies unless other bits are requested.

use std::path::{Path, PathBuf};

use moeflux::provider::blueprint::Blueprint;
use moeflux::provider::format::{RawConfig, parse_json, read_file};
use moeflux::provider::spec::{ModelSpec, NativeFormat, QuantParams};
use moeflux::provider::weights::{SyntheticCheckpoint, SyntheticKind};
use moeflux::{Error, Result};
use serde_json::{Map, Value, json};

/// Published configs with an entry per quantised tensor have about 1 MB.
const CONFIG_BYTES_MAX: u64 = 16 << 20;

/// Keys that describe quantisation: tools write either, some both.
const QUANTISATION_KEYS: [&str; 2] = ["quantization", "quantization_config"];

/// Default bits per weight.
pub(crate) const BITS_DEFAULT: u8 = 4;

/// Default number of columns that share a scale.
pub(crate) const GROUP_DEFAULT: u8 = 64;

/// A config without weights.
#[derive(Clone, Debug)]
pub(crate) struct BareConfig {
    path: PathBuf,
    /// Without its quantisation.
    root: Map<String, Value>,
    /// As it was read.
    bytes: Vec<u8>,
}

impl BareConfig {
    /// Reads a config file, or the one in a folder.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if it cannot be read; [`Error::Malformed`] if it is not a JSON object.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let path = if path.is_dir() { path.join("config.json") } else { path.to_owned() };
        Self::parse(&path, read_file(&path, CONFIG_BYTES_MAX)?)
    }

    /// Parses the bytes of a config; `path` names it in messages.
    ///
    /// # Errors
    ///
    /// [`Error::Malformed`] if it is not a JSON object.
    pub(crate) fn parse(path: &Path, bytes: Vec<u8>) -> Result<Self> {
        let path = path.to_owned();
        let value = parse_json(&bytes)
            .map_err(|error| Error::malformed(&path, format!("is not JSON: {error}")))?;
        let Value::Object(mut root) = value else {
            return Err(Error::malformed(&path, "is not a JSON object, so it is not a config"));
        };
        forget_quantisation(&mut root);
        if let Some(Value::Object(text)) = root.get_mut("text_config") {
            forget_quantisation(text);
        }
        Ok(Self { path, root, bytes })
    }

    /// Returns the format of the files that the config was published with.
    ///
    /// # Errors
    ///
    /// Fails if the config is invalid.
    pub(crate) fn published_kind(&self) -> Result<SyntheticKind> {
        let raw = RawConfig::parse(&self.path, &self.bytes)?;
        let quantisation = ModelSpec::from_config(&raw)?.quantisation;
        Ok(match (quantisation.default, quantisation.native) {
            (Some(params), _) => SyntheticKind::Affine(params),
            (None, Some(NativeFormat::Fp8(_))) => SyntheticKind::Fp8,
            (None, Some(NativeFormat::Mxfp4)) => SyntheticKind::Mxfp4,
            (None, Some(NativeFormat::Ints(params))) => SyntheticKind::Ints(params),
            (None, None) => SyntheticKind::Float,
        })
    }

    /// Returns the requested quantisation, or else that of the published files.
    ///
    /// # Errors
    ///
    /// Fails if the config is invalid.
    pub(crate) fn kind(&self, bits: Option<u8>, group: Option<u8>) -> Result<SyntheticKind> {
        match (bits, group) {
            (None, None) => self.published_kind(),
            (bits, group) => Ok(SyntheticKind::Affine(QuantParams {
                bits: bits.unwrap_or(BITS_DEFAULT),
                group: group.unwrap_or(GROUP_DEFAULT),
            })),
        }
    }

    /// Returns the model stored in this way. The config's entries for single tensors apply only if
    /// the published files are stored in the same way.
    ///
    /// # Errors
    ///
    /// Fails if the config is invalid.
    pub(crate) fn blueprint(&self, kind: SyntheticKind) -> Result<Blueprint> {
        let is_published = self.published_kind().is_ok_and(|published| published == kind);
        let raw =
            if is_published { RawConfig::parse(&self.path, &self.bytes)? } else { self.raw()? };
        Blueprint::synthetic(&raw, kind)
    }

    /// Returns the model stored in this way, regardless of the config's quantisation.
    ///
    /// # Errors
    ///
    /// Fails if the config is invalid.
    pub(crate) fn blueprint_as(&self, kind: SyntheticKind) -> Result<Blueprint> {
        Blueprint::synthetic(&self.raw()?, kind)
    }

    /// Returns the model type in the config.
    pub(crate) fn model_type(&self) -> &str {
        self.root.get("model_type").and_then(Value::as_str).unwrap_or_default()
    }

    /// Returns the config of a checkpoint stored in this way.
    pub(crate) fn quantised(&self, kind: SyntheticKind, checkpoint: &SyntheticCheckpoint) -> Value {
        match kind {
            SyntheticKind::Affine(params) | SyntheticKind::AffineExperts(params) => {
                self.of_mlx(params, "affine", checkpoint)
            }
            SyntheticKind::Mxfp4 => {
                self.of_mlx(QuantParams { bits: 4, group: 32 }, "mxfp4", checkpoint)
            }
            SyntheticKind::Ints(params) => self.of_ints(params),
            SyntheticKind::Fp8 | SyntheticKind::Float | SyntheticKind::Gguf(_) => {
                Value::Object(self.root.clone())
            }
        }
    }

    /// Describes integers in the format of compressed-tensors.
    fn of_ints(&self, QuantParams { bits, group }: QuantParams) -> Value {
        let weights = json!({"num_bits": bits, "type": "int", "strategy": "group",
            "group_size": group, "symmetric": true, "actorder": null});
        let section = json!({"quant_method": "compressed-tensors", "format": "pack-quantized",
            "quantization_status": "compressed",
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
            "ignore": ["lm_head", "re:.*self_attn.*", "re:.*shared_expert.*", "re:.*mlp.gate$"]});
        let mut root = self.root.clone();
        root.insert("quantization_config".to_owned(), section);
        Value::Object(root)
    }

    fn of_mlx(&self, params: QuantParams, mode: &str, checkpoint: &SyntheticCheckpoint) -> Value {
        let entry = |params: QuantParams| json!({"group_size": params.group, "bits": params.bits});
        let mut section = Map::new();
        section.insert("group_size".to_owned(), json!(params.group));
        section.insert("bits".to_owned(), json!(params.bits));
        section.insert("mode".to_owned(), json!(mode));
        for (base, params) in &checkpoint.overrides {
            section.insert(base.clone(), entry(*params));
        }
        let mut root = self.root.clone();
        for key in QUANTISATION_KEYS {
            root.insert(key.to_owned(), Value::Object(section.clone()));
        }
        Value::Object(root)
    }

    fn raw(&self) -> Result<RawConfig> {
        let bytes = Value::Object(self.root.clone()).to_string();
        RawConfig::parse(&self.path, bytes.as_bytes())
    }
}

fn forget_quantisation(map: &mut Map<String, Value>) {
    for key in QUANTISATION_KEYS {
        map.shift_remove(key);
    }
}

/// Parses the bits per weight.
pub(crate) fn parse_bits(text: &str) -> std::result::Result<u8, String> {
    one_of(text, &[2, 3, 4, 5, 6, 8])
}

/// Parses the number of columns that share a scale.
pub(crate) fn parse_group(text: &str) -> std::result::Result<u8, String> {
    one_of(text, &[32, 64, 128])
}

fn one_of(text: &str, known: &[u8]) -> std::result::Result<u8, String> {
    let parsed = text.parse().ok().filter(|n| known.contains(n));
    parsed.ok_or_else(|| {
        let known: Vec<String> = known.iter().map(u8::to_string).collect();
        format!("choose one of {}", known.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_known_bits_and_groups_are_accepted() {
        assert_eq!(parse_bits("4"), Ok(4));
        assert_eq!(parse_group("128"), Ok(128));
        for text in ["7", "", "x", "-4", "260"] {
            assert_eq!(parse_bits(text), Err("choose one of 2, 3, 4, 5, 6, 8".to_owned()));
        }
        assert_eq!(parse_group("48"), Err("choose one of 32, 64, 128".to_owned()));
    }
}
