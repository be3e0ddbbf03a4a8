//! Chooses the type of each matrix of a GGUF file, as llama.cpp's quantiser does.
//!
//! **Invariant:** a row consists of whole blocks of its type. This module knows names and widths,
//! never values.

use std::fmt;

use crate::format::{BlockType, DType};
use crate::weights::tensors::block_kind;

/// Storage types of the matrices of a GGUF file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GgufTypes {
    /// One type, wherever its blocks fit.
    All(BlockType),
    /// Q4_K, with Q6_K for the matrices to which llama.cpp's mix of the same name gives it.
    Q4KM,
}

const Q4_K_M: &str = "Q4_K_M";

impl GgufTypes {
    /// Returns the types of this name, ignoring case, if kernels support them.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        if name.eq_ignore_ascii_case(Q4_K_M) {
            return Some(Self::Q4KM);
        }
        BlockType::from_name(name).filter(|block| block_kind(*block).is_some()).map(Self::All)
    }

    /// Returns the type of a matrix with this canonical name, without `.weight`.
    pub(super) fn of_matrix(self, base: &str, n_cols: usize, n_layers: usize) -> DType {
        if base.ends_with(".mlp.gate") || base.ends_with(".shared_expert_gate") {
            return DType::F32;
        }
        let block = match self {
            Self::All(block) => block,
            Self::Q4KM if has_more_bits(base, n_layers) => BlockType::Q6_K,
            Self::Q4KM => BlockType::Q4_K,
        };
        let fitting = [block, narrow(block)];
        let fitting = fitting.into_iter().find(|it| (n_cols as u64).is_multiple_of(it.n_values()));
        fitting.map_or(DType::F16, DType::Block)
    }
}

impl fmt::Display for GgufTypes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All(block) => f.write_str(block.name()),
            Self::Q4KM => f.write_str(Q4_K_M),
        }
    }
}

/// Returns whether a matrix gets Q6_K: the head; and the most sensitive matrices in the first and
/// last eighth of the layers and every third layer in between.
fn has_more_bits(base: &str, n_layers: usize) -> bool {
    if base == "lm_head" {
        return true;
    }
    let is_sensitive = base.ends_with("_proj") && (base.ends_with(".v_proj") || is_down(base));
    let layer = base.strip_prefix("model.layers.").and_then(|rest| rest.split_once('.'));
    let layer: Option<usize> = layer.and_then(|(layer, _)| layer.parse().ok());
    let Some(layer) = layer.filter(|_| is_sensitive) else { return false };
    let eighth = n_layers / 8;
    layer < eighth || layer >= 7 * n_layers / 8 || (layer - eighth) % 3 == 2
}

fn is_down(base: &str) -> bool {
    base.ends_with(".down_proj")
}

/// Returns the type for rows that are not whole blocks of 256.
fn narrow(block: BlockType) -> BlockType {
    match block {
        BlockType::Q4_K => BlockType::Q5_0,
        BlockType::Q5_K => BlockType::Q5_1,
        BlockType::Q6_K => BlockType::Q8_0,
        _ => BlockType::IQ4_NL,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(types: &str, base: &str, n_cols: usize, expected: &str) {
        let types = GgufTypes::from_name(types).unwrap();
        assert_eq!(types.of_matrix(base, n_cols, 16).name(), expected, "{base}");
    }

    #[test]
    fn types_follow_names_and_widths() {
        let experts = "model.layers.1.mlp.switch_mlp.down_proj";
        check("q4_0", experts, 64, "Q4_0");
        check("Q4_K", experts, 512, "Q4_K");
        check("Q4_K", experts, 96, "Q5_0");
        check("iq2_xxs", experts, 96, "IQ4_NL");
        check("Q8_0", experts, 48, "F16");
        check("Q8_0", "model.layers.1.mlp.gate", 64, "F32");
        check("Q4_K_M", experts, 512, "Q6_K");
        check("Q4_K_M", "model.layers.3.mlp.switch_mlp.down_proj", 512, "Q4_K");
        check("Q4_K_M", "model.layers.4.self_attn.v_proj", 512, "Q6_K");
        check("Q4_K_M", "model.layers.4.self_attn.q_proj", 512, "Q4_K");
        check("Q4_K_M", "lm_head", 512, "Q6_K");
    }

    #[test]
    fn types_without_a_kernel_have_no_name() {
        assert_eq!(GgufTypes::from_name("IQ1_S"), None);
        assert_eq!(GgufTypes::from_name("Q8_1"), None);
        assert_eq!(GgufTypes::from_name("F16"), None);
    }
}
