//! The choice of files in a repository.

use crate::listing::Listing;
use crate::name::ModelRef;
use crate::name::glob::Glob;
use crate::name::quant::Quant;

/// Files besides weights: the configuration of the model and its tokenizer.
const USUAL: [&str; 16] = [
    "config.json",
    "generation_config.json",
    "model.safetensors.index.json",
    "moeflux-sums.json",
    "moeflux-pack.json",
    "moeflux-metadata.gguf",
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "tiktoken.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
];

/// The folder of further templates.
const TEMPLATES: &str = "additional_chat_templates/";

/// The prefix of a second copy of the weights, under the names of their original publisher.
const DUPLICATES: &str = "consolidated";

/// The files of a repository that are to be downloaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FileSelection {
    /// The files for running a model in safetensors.
    Usual,
    /// GGUF files of this kind.
    Quant(Quant),
    /// Files whose paths match one of these patterns.
    Matching(Vec<Glob>),
}

impl From<&ModelRef> for FileSelection {
    fn from(model: &ModelRef) -> Self {
        model.quant().map_or(Self::Usual, |quant| Self::Quant(quant.clone()))
    }
}

impl FileSelection {
    /// Returns the paths of the chosen files, sorted.
    #[must_use]
    pub fn of<'a>(&self, listing: &'a Listing) -> Vec<&'a str> {
        let paths = || listing.files().map(|(path, _)| path);
        match self {
            Self::Matching(globs) => {
                paths().filter(|path| globs.iter().any(|glob| glob.matches(path))).collect()
            }
            Self::Quant(quant) => quant.of(paths()),
            Self::Usual => {
                let has_others =
                    paths().any(|path| is_weights(path) && !path.starts_with(DUPLICATES));
                let is_duplicate = |path: &str| has_others && path.starts_with(DUPLICATES);
                let is_usual = |path: &&str| {
                    USUAL.contains(path)
                        || path.strip_prefix(TEMPLATES).is_some_and(|it| it.ends_with(".jinja"))
                        || is_weights(path) && !is_duplicate(path)
                };
                paths().filter(is_usual).collect()
            }
        }
    }
}

/// Returns whether a path is a weight file for running a model.
#[must_use]
pub(crate) fn is_weights(path: &str) -> bool {
    path.ends_with(".safetensors") && !path.contains('/') && !path.starts_with('.')
}

/// Returns whether a path is a weight file in the format of llama.cpp.
#[must_use]
pub(crate) fn is_gguf(path: &str) -> bool {
    path.to_ascii_lowercase().ends_with(".gguf")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usual_files_are_those_that_a_model_needs() {
        let listing = Listing::of(&[
            (".gitattributes", 1),
            ("._model.safetensors", 1),
            ("README.md", 1),
            ("additional_chat_templates/tool.jinja", 1),
            ("chat_template.jinja", 1),
            ("config.json", 1),
            ("consolidated.safetensors", 1),
            ("model-00001-of-00001.safetensors", 1),
            ("model.safetensors.index.json", 1),
            ("moeflux-metadata.gguf", 1),
            ("moeflux-pack.json", 1),
            ("mtp.safetensors", 1),
            ("onnx/model.safetensors", 1),
            ("pytorch_model.bin", 1),
            ("tokenizer.json", 1),
            ("x-Q4_K_M.gguf", 1),
        ]);
        assert_eq!(
            FileSelection::Usual.of(&listing),
            [
                "additional_chat_templates/tool.jinja",
                "chat_template.jinja",
                "config.json",
                "model-00001-of-00001.safetensors",
                "model.safetensors.index.json",
                "moeflux-metadata.gguf",
                "moeflux-pack.json",
                "mtp.safetensors",
                "tokenizer.json",
            ]
        );
        let globs = ["*Q4*", "README.md"].map(|it| Glob::new(it).unwrap()).to_vec();
        assert_eq!(FileSelection::Matching(globs).of(&listing), ["README.md", "x-Q4_K_M.gguf"]);
    }

    #[test]
    fn consolidated_weights_are_selected_if_there_are_no_others() {
        let listing = Listing::of(&[("config.json", 1), ("consolidated.safetensors", 1)]);
        assert_eq!(FileSelection::Usual.of(&listing).len(), 2);
    }
}
