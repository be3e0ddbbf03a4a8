//! Published models by name: their configs, as far as sizes and speeds depend on them.
//!
//! **Invariant:** a config describes the format that users download: FP8, MXFP4 or INT4 if the
//! model was published so, otherwise 4 bits in groups of 64 as in MLX conversions.

mod names;

use std::path::{Path, PathBuf};

use moeflux::{Error, Result};
use moeflux_hub::ModelRef;

use crate::model::bare_config::BareConfig;
use crate::model::hub;

/// A published model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KnownModel {
    /// As written by its makers.
    pub(crate) name: &'static str,
    /// Billions of weights: in total, and used by a token.
    pub(crate) size: &'static str,
    config: &'static str,
    /// A repository on the hub with files like those of the config.
    repository: Option<&'static str>,
}

/// All known models, smallest first.
pub(crate) const KNOWN: [KnownModel; 28] = [
    KnownModel {
        name: "Qwen3.5-4B",
        size: "4B",
        config: include_str!("qwen3.5-4b.json"),
        repository: Some("mlx-community/Qwen3.5-4B-4bit"),
    },
    KnownModel {
        name: "Llama-3.1-8B",
        size: "8B",
        config: include_str!("llama-3.1-8b.json"),
        repository: Some("mlx-community/Meta-Llama-3.1-8B-Instruct-4bit"),
    },
    KnownModel {
        name: "Qwen3-8B",
        size: "8B",
        config: include_str!("qwen3-8b.json"),
        repository: Some("mlx-community/Qwen3-8B-4bit"),
    },
    KnownModel {
        name: "Qwen3.5-9B",
        size: "9B",
        config: include_str!("qwen3.5-9b.json"),
        repository: Some("mlx-community/Qwen3.5-9B-4bit"),
    },
    KnownModel {
        name: "gpt-oss-20b",
        size: "21B-A4B",
        config: include_str!("gpt-oss-20b.json"),
        repository: Some("openai/gpt-oss-20b"),
    },
    KnownModel {
        name: "Qwen3.8-27B",
        size: "27B",
        config: include_str!("qwen3.8-27b.json"),
        repository: Some("mlx-community/Qwen3.8-27B-4bit"),
    },
    KnownModel {
        name: "GLM-4.7-Flash",
        size: "30B-A3B",
        config: include_str!("glm-4.7-flash.json"),
        repository: Some("mlx-community/GLM-4.7-Flash-4bit"),
    },
    KnownModel {
        name: "Qwen3-30B-A3B",
        size: "30B-A3B",
        config: include_str!("qwen3-30b-a3b.json"),
        repository: Some("mlx-community/Qwen3-30B-A3B-4bit"),
    },
    KnownModel {
        name: "Qwen3-Coder-30B-A3B",
        size: "30B-A3B",
        config: include_str!("qwen3-coder-30b-a3b.json"),
        repository: Some("mlx-community/Qwen3-Coder-30B-A3B-Instruct-4bit"),
    },
    KnownModel {
        name: "Qwen3-32B",
        size: "32B",
        config: include_str!("qwen3-32b.json"),
        repository: Some("mlx-community/Qwen3-32B-4bit"),
    },
    KnownModel {
        name: "Qwen3.6-35B-A3B",
        size: "35B-A3B",
        config: include_str!("qwen3.6-35b-a3b.json"),
        repository: Some("mlx-community/Qwen3.6-35B-A3B-4bit"),
    },
    KnownModel {
        name: "Llama-3.3-70B",
        size: "70B",
        config: include_str!("llama-3.3-70b.json"),
        repository: Some("mlx-community/Llama-3.3-70B-Instruct-4bit"),
    },
    KnownModel {
        name: "Qwen3-Next-80B-A3B",
        size: "80B-A3B",
        config: include_str!("qwen3-next-80b-a3b.json"),
        repository: Some("mlx-community/Qwen3-Next-80B-A3B-Instruct-4bit"),
    },
    KnownModel {
        name: "GLM-4.5-Air",
        size: "106B-A12B",
        config: include_str!("glm-4.5-air-106b-a12b.json"),
        repository: Some("mlx-community/GLM-4.5-Air-4bit"),
    },
    KnownModel {
        name: "gpt-oss-120b",
        size: "117B-A5B",
        config: include_str!("gpt-oss-120b.json"),
        repository: Some("openai/gpt-oss-120b"),
    },
    KnownModel {
        name: "Qwen3.8-Flash-Next",
        size: "125B-A6B",
        config: include_str!("qwen3.8-flash-next.json"),
        repository: None,
    },
    KnownModel {
        name: "MiniMax-M2",
        size: "230B-A10B",
        config: include_str!("minimax-m2.json"),
        repository: Some("MiniMaxAI/MiniMax-M2"),
    },
    KnownModel {
        name: "Qwen3-235B-A22B",
        size: "235B-A22B",
        config: include_str!("qwen3-235b-a22b.json"),
        repository: Some("mlx-community/Qwen3-235B-A22B-4bit"),
    },
    KnownModel {
        name: "Hy3",
        size: "295B-A21B",
        config: include_str!("hy3.json"),
        repository: None,
    },
    KnownModel {
        name: "GLM-4.5",
        size: "355B-A32B",
        config: include_str!("glm-4.5-355b-a32b.json"),
        repository: Some("mlx-community/GLM-4.5-4bit"),
    },
    KnownModel {
        name: "Qwen3.5-397B-A17B",
        size: "397B-A17B",
        config: include_str!("qwen3.5-397b-a17b.json"),
        repository: Some("mlx-community/Qwen3.5-397B-A17B-4bit"),
    },
    KnownModel {
        name: "Qwen3-Coder-480B-A35B",
        size: "480B-A35B",
        config: include_str!("qwen3-coder-480b-a35b.json"),
        repository: Some("mlx-community/Qwen3-Coder-480B-A35B-Instruct-4bit"),
    },
    KnownModel {
        name: "DeepSeek-V3",
        size: "671B-A37B",
        config: include_str!("deepseek-v3-671b.json"),
        repository: Some("deepseek-ai/DeepSeek-V3"),
    },
    KnownModel {
        name: "DeepSeek-V3.2",
        size: "671B",
        config: include_str!("deepseek-v3.2.json"),
        repository: Some("deepseek-ai/DeepSeek-V3.2"),
    },
    KnownModel {
        name: "GLM-5",
        size: "743B-A39B",
        config: include_str!("glm-5.json"),
        repository: Some("mlx-community/GLM-5-4bit"),
    },
    KnownModel {
        name: "Kimi-K2",
        size: "1T-A32B",
        config: include_str!("kimi-k2-1t-a32b.json"),
        repository: Some("moonshotai/Kimi-K2-Instruct"),
    },
    KnownModel {
        name: "Kimi-K2.5",
        size: "1T-A32B",
        config: include_str!("kimi-k2.5.json"),
        repository: Some("moonshotai/Kimi-K2.5"),
    },
    KnownModel {
        name: "Qwen3.8-2.4T-A95B",
        size: "2.4T-A95B",
        config: include_str!("qwen3.8-2.4t-a95b.json"),
        repository: None,
    },
];

impl KnownModel {
    /// Returns its config.
    ///
    /// # Errors
    ///
    /// None in practice: tests parse all configs.
    pub(crate) fn config(&self) -> Result<BareConfig> {
        BareConfig::parse(Path::new(self.name), self.config.as_bytes().to_vec())
    }

    /// Returns the repository that has it in the form of the config.
    pub(crate) fn repository(&self) -> Option<ModelRef> {
        self.repository.and_then(|it| it.parse().ok())
    }
}

/// Requested models that moeflux does not run yet, with the words that identify them.
const NOT_YET: [(&str, &[&str]); 16] = [
    ("DeepSeek-V4", &["deepseek", "v4"]),
    ("Gemma", &["gemma"]),
    ("Llama 4", &["llama-4"]),
    ("Mistral", &["mistral"]),
    ("LFM2", &["lfm2"]),
    ("ERNIE 4.5", &["ernie"]),
    ("dots1", &["dots"]),
    ("Laguna", &["laguna"]),
    ("MiMo-V2", &["mimo"]),
    ("MiniMax-M3", &["minimax", "m3"]),
    ("Kimi-Linear", &["kimi", "linear"]),
    ("Kimi-K3", &["kimi", "k3"]),
    ("Nemotron", &["nemotron"]),
    ("Hy4", &["hy4"]),
    ("flint", &["flint"]),
    ("Inkling", &["inkling"]),
];

/// Sizes of models distilled from DeepSeek-R1 and of others whose name is that of a larger one.
const DENSE_SIZES: [&str; 13] =
    ["0.6b", "0.8b", "1.5b", "1.7b", "2b", "4b", "7b", "8b", "9b", "14b", "27b", "32b", "70b"];

/// Models with the shape of a known model, with the words that identify them.
const ALIKE: [(&str, &[&str], &str); 8] = [
    ("DeepSeek-R1", &["deepseek", "r1"], "DeepSeek-V3"),
    ("DeepSeek-V3.1", &["deepseek", "v3.1"], "DeepSeek-V3"),
    ("DeepSeek-V3-0324", &["deepseek", "v3", "0324"], "DeepSeek-V3"),
    ("GLM-4.6", &["glm", "4.6"], "GLM-4.5"),
    ("GLM-4.7", &["glm", "4.7"], "GLM-4.5"),
    ("Kimi-K2-Thinking", &["kimi", "k2", "thinking"], "Kimi-K2.5"),
    ("MiniMax-M2.1", &["minimax", "m2.1"], "MiniMax-M2"),
    ("MiniMax-M2.5", &["minimax", "m2.5"], "MiniMax-M2"),
];

/// Words of models that share a name with those of [`ALIKE`], but not the shape.
const OTHER_SHAPES: [&str; 4] = ["flash", "air", "distill", "lite"];

/// Supported families without a model that is known by name.
const UNNAMED_FAMILIES: [(&str, &str); 12] = [
    ("mixtral", "Mixtral"),
    ("olmoe", "OLMoE"),
    ("qwen3-vl", "Qwen3-VL"),
    ("qwen1.5-moe", "Qwen1.5-MoE"),
    ("qwen2-57b", "Qwen2-57B-A14B"),
    ("hunyuan", "Hunyuan"),
    ("deepseek-v2", "DeepSeek-V2"),
    ("qwen2", "Qwen2"),
    ("qwen3.5", "Qwen3.5"),
    ("qwen3", "Qwen3"),
    ("smollm", "SmolLM"),
    ("llama", "Llama"),
];

/// Returns the models that a text may denote. An existing path takes precedence.
fn meant(path: &Path) -> Vec<&'static KnownModel> {
    let text = path.to_str().filter(|_| !path.exists() && may_be_name(path));
    let found = text.map(|text| names::matching(text, &KNOWN.map(|known| known.name)));
    found.unwrap_or_default().into_iter().map(|idx| &KNOWN[idx]).collect()
}

/// Returns whether a text could be a name or OWNER/NAME, without the extension of a model file.
pub(crate) fn may_be_name(path: &Path) -> bool {
    let Some(text) = path.to_str() else { return false };
    let end = path.extension().unwrap_or_default();
    let is_file = ["json", "safetensors", "gguf"].iter().any(|it| end.eq_ignore_ascii_case(it));
    let is_path = text.starts_with(['.', '/', '~']) || text.contains('\\');
    !is_file && !is_path && text.matches('/').count() <= 1
}

/// Returns the one model that a text denotes. A part of a name is enough if only sizes are missing.
pub(crate) fn named(path: &Path) -> Option<&'static KnownModel> {
    match meant(path).as_slice() {
        [known] if names::is_sure(path.to_str()?, known.name) => Some(*known),
        _ => None,
    }
}

/// Resolves a text to an existing path, the folder of a model in the hub's cache, or a name of
/// [`KNOWN`], in this order.
///
/// # Errors
///
/// Fails if several models have this name, or if moeflux does not run the model of this name.
pub(crate) fn located(path: &Path) -> Result<PathBuf> {
    let found = hub::found(path);
    if found.as_ref().is_ok_and(|it| it.exists()) || named(path).is_some() {
        return Ok(found.unwrap_or_else(|_| path.to_owned()));
    }
    unclear(path).map_or(found, Err)
}

/// Returns the error for a text that could be a name but denotes several models or none.
pub(crate) fn unclear(path: &Path) -> Option<Error> {
    let text = path.to_str().filter(|_| !path.exists() && may_be_name(path))?;
    let several = meant(path);
    if named(path).is_some() {
        return None;
    }
    let lower = text.to_lowercase();
    let problem =
        not_yet(&lower).or_else(|| alike(&lower)).or_else(|| match several.as_slice() {
            [] => unnamed_family(&lower),
            [nearest] => Some(format!(
                "no known model has this name; the nearest is {}: give that name, a folder or \
             OWNER/NAME",
                nearest.name
            )),
            several => {
                let names: Vec<&str> = several.iter().map(|known| known.name).collect();
                Some(format!("is ambiguous; use one of {}", names.join(", ")))
            }
        })?;
    Some(Error::malformed(path, problem))
}

/// Returns whether a text contains all of these words.
fn has_words(lower: &str, words: &[&str]) -> bool {
    words.iter().all(|word| lower.contains(word))
}

fn not_yet(lower: &str) -> Option<String> {
    let (name, _) = NOT_YET.iter().find(|(_, words)| has_words(lower, words))?;
    Some(format!("moeflux does not run {name} yet; `moeflux plan` lists what it runs"))
}

/// Suggests planning a model of the same shape instead. A repository is not replaced by another
/// one.
fn alike(lower: &str) -> Option<String> {
    let name = lower.rsplit('/').next().unwrap_or(lower);
    let of_name: Vec<&str> = name.split(['-', '_', ' ', ':']).collect();
    if of_name.iter().any(|word| OTHER_SHAPES.contains(word) || DENSE_SIZES.contains(word)) {
        return None;
    }
    let is_meant = |words: &[&str]| words.iter().all(|word| of_name.contains(word));
    let (name, _, known) = ALIKE.iter().find(|(_, words, _)| is_meant(words))?;
    Some(format!(
        "{name} has the shape of {known}: `moeflux plan {known}` plans it, and `moeflux pull \
         OWNER/NAME` downloads it"
    ))
}

fn unnamed_family(lower: &str) -> Option<String> {
    let (_, family) = UNNAMED_FAMILIES.iter().find(|(word, _)| lower.contains(word))?;
    Some(format!(
        "moeflux runs {family}, but does not know this model by name: download it with \
         `moeflux pull OWNER/NAME`, or give the path of its config.json"
    ))
}

/// Returns the error for a name that is neither a path nor known.
pub(crate) fn unknown(path: &Path) -> Error {
    unclear(path).unwrap_or_else(|| {
        let names: Vec<&str> = KNOWN.iter().map(|known| known.name).collect();
        let problem = format!(
            "there is no such file or folder, and no known model has this name; known models: {}",
            names.join(", ")
        );
        Error::malformed(path, problem)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_in_any_case() {
        assert_eq!(named(Path::new("qwen3-30b-a3b")).map(|it| it.name), Some("Qwen3-30B-A3B"));
        assert_eq!(named(Path::new("qwen3.6 35b")).map(|it| it.name), Some("Qwen3.6-35B-A3B"));
        assert!(unknown(Path::new("x")).to_string().contains("Kimi-K2"));
    }

    #[test]
    fn repositories_have_names_of_the_hub() {
        for known in KNOWN {
            let wanted = known.repository().map(|it| it.to_string());
            assert_eq!(wanted.as_deref(), known.repository, "{}", known.name);
        }
    }

    #[test]
    fn files_are_not_names() {
        for path in ["./glm-5", "/glm-5", "qwen3-30b-a3b.gguf", "a/b/glm-5", "~/glm-5"] {
            assert_eq!(named(Path::new(path)), None, "{path}");
            assert!(unclear(Path::new(path)).is_none(), "{path}");
        }
    }

    #[test]
    fn a_model_that_is_not_known_by_name_is_not_taken_for_another() {
        let message = |text| unclear(Path::new(text)).unwrap().to_string();
        for (text, words) in [
            ("glm-4.7", "GLM-4.7 has the shape of GLM-4.5:"),
            ("zai-org/GLM-4.6", "GLM-4.6 has the shape of GLM-4.5:"),
            ("deepseek-r1", "`moeflux plan DeepSeek-V3`"),
            ("glm-4.5-a", "the nearest is GLM-4.5-Air"),
            ("qwen3-coder", "use one of Qwen3-Coder-30B-A3B, Qwen3-Coder-480B-A35B"),
            ("mixtral", "runs Mixtral, but does not know"),
            ("OLMoE-1B-7B", "runs OLMoE, but does not know"),
            ("Qwen/Qwen2.5-7B", "runs Qwen2, but does not know"),
            ("SmolLM2-135M", "runs SmolLM, but does not know"),
        ] {
            assert_eq!(named(Path::new(text)), None, "{text}");
            assert!(message(text).contains(words), "{text}: {}", message(text));
        }
        assert!(unclear(Path::new("deepseek-r1:7b")).is_none());
        assert_eq!(named(Path::new("glm-4.7-flash")).unwrap().name, "GLM-4.7-Flash");
        assert_eq!(named(Path::new("gpt-oss:20b")).unwrap().name, "gpt-oss-20b");
        assert_eq!(named(Path::new("minimax-m2")).unwrap().name, "MiniMax-M2");
        assert_eq!(named(Path::new("qwen3.8-27b")).unwrap().name, "Qwen3.8-27B");
    }

    #[test]
    fn models_of_the_same_shape_name_one_that_is_known() {
        for (name, _, known) in ALIKE {
            assert!(KNOWN.iter().any(|it| it.name == known), "{name}");
        }
    }

    #[test]
    fn several_models_are_listed_and_those_that_do_not_run_yet_are_named() {
        let message = |text| unclear(Path::new(text)).unwrap().to_string();
        assert!(message("qwen3").contains("use one of Qwen3.5-4B, Qwen3-8B, "));
        for (text, name) in [
            ("DeepSeek-V4-Flash", "DeepSeek-V4"),
            ("google/gemma-4-26B-A4B", "Gemma"),
            ("Llama-4-Scout", "Llama 4"),
        ] {
            assert!(message(text).contains(&format!("does not run {name} yet")), "{text}");
        }
    }

    /// Billions of weights according to the makers' model cards, without the layers for drafts.
    #[test]
    fn configs_have_the_weights_that_their_makers_state() {
        let stated = [
            4.2, 8.03, 8.19, 8.95, 20.9, 26.9, 30.0, 30.5, 30.5, 32.76, 34.7, 70.55, 79.7, 106.8,
            116.8, 125.0, 228.7, 235.1, 295.0, 352.8, 396.8, 480.2, 671.0, 671.0, 743.0, 1026.0,
            1026.0, 2420.0,
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
            let billions = crate::model::needs::float(n_weights) / 1e9;
            let name = known.name;
            assert!((billions / stated - 1.0).abs() < 0.01, "{name}: {billions:.1}, not {stated}");
        }
    }
}
