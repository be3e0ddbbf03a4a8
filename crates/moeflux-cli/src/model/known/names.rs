//! Finds the model that a name denotes: abbreviated, in any case, with blanks, or as a repository.
//!
//! **Invariant:** pure. An exact name takes precedence over names that contain it.

/// Suffixes of repository names that do not change a model's sizes. `FP8`, `8bit` and others that
/// do are not listed.
const HARMLESS_ENDS: [&str; 6] = ["instruct", "chat", "hf", "gguf", "mlx", "4bit"];

/// Number of digits of a release month, as in `Qwen3-30B-A3B-Instruct-2507`.
const N_MONTH_DIGITS: usize = 4;

/// Shorter parts occur in too many names.
const PART_LEN_MIN: usize = 2;

/// Returns the indices of the names that a text may denote.
pub(super) fn matching(text: &str, names: &[&str]) -> Vec<usize> {
    let text = text.rsplit('/').next().unwrap_or(text);
    let wanted = words(text).concat();
    let indices = |is_meant: &dyn Fn(&str) -> bool| -> Vec<usize> {
        (0..names.len()).filter(|&idx| is_meant(names[idx])).collect()
    };
    let same = indices(&|name| words(name).concat() == wanted);
    if !same.is_empty() || wanted.len() < PART_LEN_MIN {
        return same;
    }
    let begun = indices(&|name| is_release_of(text, name));
    if !begun.is_empty() {
        return begun;
    }
    let parts = indices(&|name| words(name).concat().contains(&wanted));
    // `qwen36` means Qwen3.6, but `qwen3.2` does not mean Qwen3-235B.
    if !parts.is_empty() || wanted.contains('.') {
        return parts;
    }
    indices(&|name| words(name).concat().replace('.', "").contains(&wanted))
}

/// Returns whether a text that occurs in only one name denotes that model: the rest of the name
/// must consist of sizes.
pub(super) fn is_sure(text: &str, name: &str) -> bool {
    let text = text.rsplit('/').next().unwrap_or(text);
    let without_dots = |it: &str| words(it).concat().replace('.', "");
    let (wanted, whole) = (without_dots(text), without_dots(name));
    if is_release_of(text, name) {
        return true;
    }
    let Some((_, rest)) = whole.split_once(&wanted) else { return false };
    // A size may be cut off, as in `qwen3-30b`.
    let sizes: String = words(name).into_iter().filter(|word| is_size(word)).collect();
    sizes.replace('.', "").ends_with(rest)
}

/// Recognises `235B`, `A22B`, `2.4T`.
fn is_size(word: &str) -> bool {
    let digits = word.strip_prefix('a').unwrap_or(word);
    digits.strip_suffix(['b', 't']).is_some_and(|it| it.parse::<f64>().is_ok())
}

/// Splits a text into lower-case words at blanks, hyphens, underscores, and the colon that Ollama
/// writes before a size.
fn words(text: &str) -> Vec<String> {
    let cut = |it: char| it.is_whitespace() || matches!(it, '-' | '_' | ':');
    text.split(cut).filter(|it| !it.is_empty()).map(str::to_lowercase).collect()
}

/// Returns whether a repository's name is the model's, plus words that do not change its sizes.
fn is_release_of(text: &str, name: &str) -> bool {
    let (text, name) = (words(text), words(name));
    let Some(rest) = text.strip_prefix(name.as_slice()) else { return false };
    rest.iter().all(|word| {
        let is_month = word.len() == N_MONTH_DIGITS && word.bytes().all(|it| it.is_ascii_digit());
        is_month || HARMLESS_ENDS.contains(&word.as_str())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: [&str; 7] = [
        "Qwen3-30B-A3B",
        "Qwen3.6-35B-A3B",
        "Qwen3-235B-A22B",
        "GLM-4.5-Air",
        "GLM-4.5",
        "Kimi-K2",
        "Kimi-K2.5",
    ];

    fn check(text: &str, expected: &[&str]) {
        let found: Vec<&str> = matching(text, &NAMES).into_iter().map(|it| NAMES[it]).collect();
        assert_eq!(found, expected, "{text}");
    }

    #[test]
    fn names_are_found_by_part_case_blanks_and_dots() {
        for text in ["Qwen3.6", "qwen3.6 35b", "QWEN3.6_35B_A3B", "qwen36", "3.6"] {
            check(text, &["Qwen3.6-35B-A3B"]);
        }
        check("qwen3-30b", &["Qwen3-30B-A3B"]);
        check("qwen3:30b", &["Qwen3-30B-A3B"]);
        check("qwen3:30b-a3b", &["Qwen3-30B-A3B"]);
        check("qwen3", &["Qwen3-30B-A3B", "Qwen3.6-35B-A3B", "Qwen3-235B-A22B"]);
        check("kimi", &["Kimi-K2", "Kimi-K2.5"]);
    }

    #[test]
    fn a_name_that_is_written_out_wins() {
        check("glm-4.5", &["GLM-4.5"]);
        check("kimi k2", &["Kimi-K2"]);
    }

    #[test]
    fn repositories_are_those_of_the_same_sizes() {
        check("Qwen/Qwen3-30B-A3B", &["Qwen3-30B-A3B"]);
        check("Qwen/Qwen3-30B-A3B-Instruct-2507", &["Qwen3-30B-A3B"]);
        check("some/GLM-4.5-Air-4bit", &["GLM-4.5-Air"]);
        check("some/GLM-4.5-FP8", &[]);
        check("some/GLM-4.5V", &[]);
        check("Qwen/Qwen3-Coder-30B-A3B-Instruct", &[]);
    }

    #[test]
    fn a_part_is_sure_if_only_sizes_are_missing() {
        let sure = [
            ("qwen3.6", "Qwen3.6-35B-A3B"),
            ("qwen36", "Qwen3.6-35B-A3B"),
            ("3.6", "Qwen3.6-35B-A3B"),
            ("qwen3:30b", "Qwen3-30B-A3B"),
            ("Qwen/Qwen3-30B-A3B-Instruct-2507", "Qwen3-30B-A3B"),
            ("qwen3.8", "Qwen3.8-2.4T-A95B"),
            ("gpt-oss:20b", "gpt-oss-20b"),
            ("air", "GLM-4.5-Air"),
        ];
        for (text, name) in sure {
            assert!(is_sure(text, name), "{text}");
        }
        for (text, name) in [("glm-4.7", "GLM-4.7-Flash"), ("glm-4.5-a", "GLM-4.5-Air")] {
            assert!(!is_sure(text, name), "{text}");
        }
    }

    #[test]
    fn texts_that_match_no_name_find_nothing() {
        for text in ["", "/", "-", "q", "Qwen9", "llama", "a/", "Qwen3.2"] {
            check(text, &[]);
        }
    }
}
