//! Published models by name: their configs, as far as sizes and speeds depend on them.
//!
//! **Invariant:** a config says how the files are stored that people download: FP8, MXFP4 or INT4
//! where the model was published so, otherwise 4 bits in groups of 64, as MLX conversions have it.

use std::path::Path;

use moeflux::{Error, Result};

use crate::bare_config::BareConfig;

/// A published model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Known {
    /// As its makers write it.
    pub(crate) name: &'static str,
    /// Billions of weights: all, and those that a token uses.
    pub(crate) size: &'static str,
    config: &'static str,
}

/// All of them, the smallest first.
pub(crate) const KNOWN: [Known; 19] = [
    Known { name: "gpt-oss-20b", size: "21B-A4B", config: include_str!("gpt-oss-20b.json") },
    Known { name: "GLM-4.7-Flash", size: "30B-A3B", config: include_str!("glm-4.7-flash.json") },
    Known { name: "Qwen3-30B-A3B", size: "30B-A3B", config: include_str!("qwen3-30b-a3b.json") },
    Known {
        name: "Qwen3.6-35B-A3B",
        size: "35B-A3B",
        config: include_str!("qwen3.6-35b-a3b.json"),
    },
    Known {
        name: "Qwen3-Next-80B-A3B",
        size: "80B-A3B",
        config: include_str!("qwen3-next-80b-a3b.json"),
    },
    Known {
        name: "GLM-4.5-Air",
        size: "106B-A12B",
        config: include_str!("glm-4.5-air-106b-a12b.json"),
    },
    Known { name: "gpt-oss-120b", size: "117B-A5B", config: include_str!("gpt-oss-120b.json") },
    Known { name: "MiniMax-M2", size: "230B-A10B", config: include_str!("minimax-m2.json") },
    Known {
        name: "Qwen3-235B-A22B",
        size: "235B-A22B",
        config: include_str!("qwen3-235b-a22b.json"),
    },
    Known { name: "Hy3", size: "295B-A21B", config: include_str!("hy3.json") },
    Known { name: "GLM-4.5", size: "355B-A32B", config: include_str!("glm-4.5-355b-a32b.json") },
    Known {
        name: "Qwen3.5-397B-A17B",
        size: "397B-A17B",
        config: include_str!("qwen3.5-397b-a17b.json"),
    },
    Known {
        name: "Qwen3-Coder-480B-A35B",
        size: "480B-A35B",
        config: include_str!("qwen3-coder-480b-a35b.json"),
    },
    Known { name: "DeepSeek-V3", size: "671B-A37B", config: include_str!("deepseek-v3-671b.json") },
    Known { name: "DeepSeek-V3.2", size: "671B", config: include_str!("deepseek-v3.2.json") },
    Known { name: "GLM-5", size: "743B-A39B", config: include_str!("glm-5.json") },
    Known { name: "Kimi-K2", size: "1T-A32B", config: include_str!("kimi-k2-1t-a32b.json") },
    Known { name: "Kimi-K2.5", size: "1T-A32B", config: include_str!("kimi-k2.5.json") },
    Known {
        name: "Qwen3.8-2.4T-A95B",
        size: "2.4T-A95B",
        config: include_str!("qwen3.8-2.4t-a95b.json"),
    },
];

impl Known {
    /// Its config.
    ///
    /// # Errors
    ///
    /// None: tests read all of them.
    pub(crate) fn config(&self) -> Result<BareConfig> {
        BareConfig::parse(Path::new(self.name), self.config.as_bytes().to_vec())
    }
}

/// The model of this name in any case, if the name is that of nothing here.
pub(crate) fn named(path: &Path) -> Option<&'static Known> {
    let text = path.to_str()?;
    let known = KNOWN.iter().find(|known| known.name.eq_ignore_ascii_case(text));
    known.filter(|_| !path.exists())
}

/// An error about a name that is neither a path nor known.
pub(crate) fn unknown(path: &Path) -> Error {
    let names: Vec<&str> = KNOWN.iter().map(|known| known.name).collect();
    Error::malformed(
        path,
        format!(
            "there is no such file or folder, and it is none of the models known by name: {}",
            names.join(", ")
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_in_any_case() {
        assert_eq!(named(Path::new("qwen3-30b-a3b")).map(|it| it.name), Some("Qwen3-30B-A3B"));
        assert_eq!(named(Path::new("Qwen3-30B")), None);
        assert!(unknown(Path::new("x")).to_string().contains("Kimi-K2"));
    }

    /// Billions of weights by the makers' model cards, without the layers for drafts.
    #[test]
    fn configs_have_the_weights_that_their_makers_state() {
        let stated = [
            20.9, 30.0, 30.5, 34.7, 79.7, 106.8, 116.8, 228.7, 235.1, 295.0, 352.8, 396.8, 480.2,
            671.0, 671.0, 743.0, 1026.0, 1026.0, 2420.0,
        ];
        for (known, stated) in KNOWN.iter().zip(stated) {
            let config = known.config().unwrap();
            let kind = config.kind(None, None).unwrap();
            let blueprint = config.blueprint(kind).unwrap();
            let manifest = &blueprint.manifest;
            let mut n_weights = 0_u64;
            for matrix in &manifest.matrices {
                n_weights += (matrix.layout.n_rows * matrix.layout.n_cols) as u64;
            }
            for bank in &manifest.banks {
                let spans = [bank.layout.gate, bank.layout.up, bank.layout.down];
                let of_expert: usize =
                    spans.iter().map(|span| span.layout.n_rows * span.layout.n_cols).sum();
                n_weights += (of_expert * bank.n_experts) as u64;
            }
            let billions = crate::needs::float(n_weights) / 1e9;
            let name = known.name;
            assert!((billions / stated - 1.0).abs() < 0.01, "{name}: {billions:.1}, not {stated}");
        }
    }
}
