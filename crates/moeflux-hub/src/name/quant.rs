//! Kinds of GGUF files, such as `Q4_K_M` in `OWNER/NAME:Q4_K_M`, in the notation of llama.cpp and
//! Ollama.
//!
//! Publishers put the kind into the name of the file or of its folder: `NAME-UD-Q4_K_M.gguf`,
//! `Q4_K_M/NAME-00001-of-00002.gguf`.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use crate::error::{Error, Result};

/// Maximum length of a kind. The longest in use has 14 characters: `UD-Q4_K_XL-MTP`.
const CHARS_MAX: usize = 32;

/// A kind of GGUF file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Quant(String);

impl Quant {
    /// Returns the kind in the name of a GGUF file or of its folders.
    #[must_use]
    pub fn of_file(path: &str) -> Option<Self> {
        let mut parts = path.rsplit('/');
        let stem = parts.next().and_then(model_of)?;
        let found = std::iter::once(stem).chain(parts).find_map(kind_in);
        found.and_then(|it| it.parse().ok())
    }

    /// Selects the GGUF files of this kind among these paths: one model, or several if the kind is
    /// ambiguous. Exact names take precedence over `UD-Q4_K_M` and the like.
    #[must_use]
    pub fn of<'a>(&self, paths: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
        let ggufs: Vec<&str> = paths.filter(|path| is_model(path)).collect();
        let is_exact =
            |path: &&str| Self::of_file(path).is_some_and(|it| it.0.eq_ignore_ascii_case(&self.0));
        let exact: Vec<&str> = ggufs.iter().copied().filter(is_exact).collect();
        if !exact.is_empty() {
            return exact;
        }
        ggufs.into_iter().filter(|path| path.split('/').any(|part| self.is_word_of(part))).collect()
    }

    fn is_word_of(&self, part: &str) -> bool {
        let (part, word) = (part.to_ascii_lowercase(), self.0.to_ascii_lowercase());
        let is_edge =
            |letter: Option<char>| letter.is_none_or(|it| !it.is_ascii_alphanumeric() && it != '_');
        part.match_indices(&word).any(|(at, _)| {
            let (before, after) = (&part[..at], &part[at + word.len()..]);
            is_edge(before.chars().next_back()) && is_edge(after.chars().next())
        })
    }
}

impl FromStr for Quant {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let is_valid = (1..=CHARS_MAX).contains(&text.len())
            && text.chars().all(|it| it.is_ascii_alphanumeric() || "-_.".contains(it))
            && text.starts_with(|it: char| it.is_ascii_alphanumeric());
        if is_valid {
            return Ok(Self(text.to_owned()));
        }
        Err(Error::Asked(format!(
            "`{}` is not a kind of GGUF file: write one after the colon, such as Q4_K_M",
            text.escape_debug()
        )))
    }
}

impl fmt::Display for Quant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Returns the models that GGUF files belong to, as paths without the number of a part.
pub(crate) fn models<'a>(paths: &[&'a str]) -> BTreeSet<&'a str> {
    paths.iter().filter_map(|path| model_of(path)).collect()
}

/// Returns whether a file contains a model or a part of one, rather than an image encoder or the
/// data for quantisation.
fn is_model(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path).to_ascii_lowercase();
    model_of(&name).is_some() && !name.contains("mmproj") && !name.contains("imatrix")
}

/// Returns the path of a GGUF file without its extension and without the number of a part.
fn model_of(path: &str) -> Option<&str> {
    let (stem, end) = path.rsplit_once('.')?;
    if !end.eq_ignore_ascii_case("gguf") {
        return None;
    }
    let is_number = |text: &str| text.len() == 5 && text.bytes().all(|it| it.is_ascii_digit());
    let of_parts = stem.rsplit_once("-of-").filter(|(_, n_parts)| is_number(n_parts));
    let numbered = of_parts.and_then(|(rest, _)| rest.rsplit_once('-'));
    Some(numbered.filter(|(_, number)| is_number(number)).map_or(stem, |(model, _)| model))
}

/// Returns the last word that is a kind, with a `UD` before it.
fn kind_in(text: &str) -> Option<&str> {
    let mut end = text.len();
    loop {
        let begin = text[..end].rfind(['-', '.']).map_or(0, |at| at + 1);
        if is_kind(&text[begin..end]) {
            let before = text[..begin].strip_suffix('-').unwrap_or_default();
            let of_unsloth = before.len().checked_sub(2).and_then(|at| before.get(at..));
            let is_ud = of_unsloth.is_some_and(|it| it.eq_ignore_ascii_case("ud"))
                && (begin == 3 || matches!(text.as_bytes()[begin - 4], b'-' | b'.'));
            return Some(&text[if is_ud { begin - 3 } else { begin }..end]);
        }
        end = begin.checked_sub(1)?;
    }
}

fn is_kind(word: &str) -> bool {
    let word = word.to_ascii_lowercase();
    let is_number = |rest: &str| rest.starts_with(|it: char| it.is_ascii_digit());
    ["q", "iq", "tq"].iter().any(|it| word.strip_prefix(it).is_some_and(is_number))
        || ["bf16", "f16", "f32", "mxfp4", "mxfp4_moe", "nvfp4"].contains(&word.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_files_tell_their_kind() {
        for (path, kind) in [
            ("Qwen3-30B-A3B-Q4_K_M.gguf", Some("Q4_K_M")),
            ("Qwen3.6-35B-A3B-UD-Q4_K_XL.gguf", Some("UD-Q4_K_XL")),
            ("UD-IQ2_XXS/x-UD-IQ2_XXS-00001-of-00003.gguf", Some("UD-IQ2_XXS")),
            ("Q8_0/model-00001-of-00003.gguf", Some("Q8_0")),
            ("mixtral-8x7b.Q5_0.GGUF", Some("Q5_0")),
            ("a-bf16.gguf", Some("bf16")),
            ("gpt-oss-20b-MXFP4.gguf", Some("MXFP4")),
            ("ud-q2_k.gguf", Some("ud-q2_k")),
            ("cloud-q2_k.gguf", Some("q2_k")),
            ("qwen3.gguf", None),
            ("\u{e9}-\u{8a9e}.gguf", None),
            ("-.gguf", None),
            (".gguf", None),
            ("x-Q4_0.safetensors", None),
        ] {
            assert_eq!(Quant::of_file(path).map(|it| it.0).as_deref(), kind, "{path}");
        }
    }

    #[test]
    fn a_kind_finds_its_files() {
        let paths = [
            "README.md",
            "mmproj-F16.gguf",
            "imatrix-Q4_0.gguf",
            "x-F16.gguf",
            "x-Q4_0.gguf",
            "x-Q4_K.gguf",
            "x-Q4_K_M.gguf",
            "x-UD-Q4_K_M.gguf",
            "x-UD-Q4_K_XL-MTP.gguf",
            "Q8_0/x-00001-of-00002.gguf",
            "Q8_0/x-00002-of-00002.gguf",
        ];
        let check = |kind: &str, expected: &[&str]| {
            let found = kind.parse::<Quant>().unwrap().of(paths.iter().copied());
            assert_eq!(found, expected, "{kind}");
        };
        check("Q4_K_M", &["x-Q4_K_M.gguf"]);
        check("q4_k_m", &["x-Q4_K_M.gguf"]);
        check("UD-Q4_K_M", &["x-UD-Q4_K_M.gguf"]);
        check("Q4_K_XL", &["x-UD-Q4_K_XL-MTP.gguf"]);
        check("Q4_K", &["x-Q4_K.gguf"]);
        check("F16", &["x-F16.gguf"]);
        check("Q8_0", &paths[9..]);
        check("Q4", &[]);
        assert_eq!(models(&paths[9..]).into_iter().collect::<Vec<_>>(), ["Q8_0/x"]);
    }

    #[test]
    fn invalid_kinds_are_refused() {
        for text in ["", "-", "../x", "a/b", "a b", "a\n", "\u{e9}", &"Q".repeat(33)] {
            let error = text.parse::<Quant>().unwrap_err().to_string();
            assert!(error.contains("Q4_K_M") && !error.contains('\n'), "{error}");
        }
    }
}
