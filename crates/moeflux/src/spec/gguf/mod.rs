//! Parses the metadata of a GGUF file into a [`ModelSpec`]. The metadata is translated into the
//! config that the model was published with, which is then parsed like any other.
//!
//! **Invariant:** unknown architectures and unknown keys of an architecture are refused, because
//! they may change the computation; the error names them. Keys in messages are those of the file.

mod keys;
mod architectures;
mod new;
#[cfg(test)]
mod tests;

use serde_json::Value as Json;

use super::{AttentionBias, HeadOrder, MixerSpec, ModelSpec, Pairing, RopeScaling};
use crate::error::{Error, Result};
use crate::format::{Checkpoint, Gguf};

use architectures::{Architecture, OUT_BIAS, known_names};
use keys::ArchitectureKeys;

/// Key under which the pack of a GGUF file describes requantised matrices: the section
/// `quantization` of a `config.json`.
pub(crate) const QUANTISATION_KEY: &str = "moeflux.quantization";

/// Tensor with the divisors of the frequencies of [`RopeScaling::Stored`].
pub(crate) const FREQUENCY_DIVISORS: &str = "rope_freqs.weight";

impl ModelSpec {
    /// Parses the model that a GGUF file's metadata describes.
    ///
    /// # Errors
    ///
    /// As [`ModelSpec::from_config`].
    ///
    /// # Panics
    ///
    /// If the checkpoint is not a GGUF file.
    pub fn from_gguf(checkpoint: &Checkpoint) -> Result<Self> {
        let gguf = checkpoint.gguf.as_ref().expect("a GGUF file has metadata");
        let architecture = architecture(gguf)?;
        let mut keys = ArchitectureKeys::new(gguf);
        architecture.translate(&mut keys, checkpoint)?;
        if let Some(text) = gguf.metadata.text(QUANTISATION_KEY) {
            let section: Json = serde_json::from_str(text).map_err(|error| {
                let problem = format!("`{QUANTISATION_KEY}` is not JSON: {error}");
                Error::malformed(&gguf.path, problem)
            })?;
            keys.set("quantization", section);
        }
        let raw = keys.into_config()?;
        let mut spec = Self::from_config(&raw)?;
        for layer in &mut spec.layers {
            match (&mut layer.mixer, architecture) {
                (MixerSpec::GatedDelta(delta), Architecture::Qwen35Moe | Architecture::Qwen35) => {
                    delta.order = HeadOrder::Tiled;
                }
                // Rows of queries and keys were reordered for the other pairing.
                (MixerSpec::Attention(attention), Architecture::Llama) => {
                    attention.rope.pairing = Pairing::Neighbours;
                    attention.bias = bias_of(attention.bias, checkpoint);
                    attention.rope.scaling =
                        scaling_of(attention.rope.scaling.clone(), checkpoint)?;
                }
                (MixerSpec::Attention(attention), Architecture::Qwen3) => {
                    attention.bias = bias_of(attention.bias, checkpoint);
                }
                _ => {}
            }
        }
        Ok(spec)
    }
}

/// Returns the biases of an attention whose output has one only if the file says so.
fn bias_of(bias: AttentionBias, checkpoint: &Checkpoint) -> AttentionBias {
    match bias {
        AttentionBias::QkvAndOut if !checkpoint.tensors.contains_key(OUT_BIAS) => {
            AttentionBias::Qkv
        }
        bias => bias,
    }
}

/// Returns the scaling of a rope whose frequencies the file may divide.
fn scaling_of(scaling: RopeScaling, checkpoint: &Checkpoint) -> Result<RopeScaling> {
    if !checkpoint.tensors.contains_key(FREQUENCY_DIVISORS) {
        return Ok(scaling);
    }
    if scaling == RopeScaling::None {
        return Ok(RopeScaling::Stored);
    }
    let problem = "divides frequencies that `rope.scaling.type` scales, too; only one of the two \
                   is supported";
    Err(Error::tensor(FREQUENCY_DIVISORS, problem))
}

fn architecture(gguf: &Gguf) -> Result<Architecture> {
    let name = gguf.architecture.as_str();
    let path = gguf.path.display();
    if let Some(known) = Architecture::of_name(name) {
        return Ok(known);
    }
    let what = if name == "clip" {
        "is the vision encoder of a model (mmproj), not the model: name the GGUF file of the model \
         itself; moeflux reads text only"
            .to_owned()
    } else {
        let name = name.escape_debug().to_string();
        let name: String = name.chars().take(60).collect();
        format!(
            "`general.architecture` is \"{name}\": this architecture is not supported; supported \
             are {}",
            known_names()
        )
    };
    Err(Error::Unsupported(format!("{path}: {what}")))
}
