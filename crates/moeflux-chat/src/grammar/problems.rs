//! Rewrites llguidance's errors as sentences.
//!
//! Its errors have several lines, of which the first states the problem. Some of these are names
//! from its code, and some give advice that a client cannot follow. **Invariant:** one line of
//! bounded length. This module is independent of grammars.

use std::fmt;

/// Maximum length of a reported error in characters.
const CHARACTERS_MAX: usize = 300;

const NOTHING_FITS: &str = "no token can come next: what the grammar requires here cannot be \
                            written with this model's vocabulary";
const TOO_MUCH: &str = "the regular expressions are too complex: make them shorter";

/// Beginnings of errors, and their replacements. Each `{}` stands for the next number in the error;
/// surplus numbers are dropped.
const REPLACEMENTS: [(&str, &str); 15] = [
    ("NoExtension", NOTHING_FITS),
    ("NoExtensionBias", NOTHING_FITS),
    ("LexerTooComplex", TOO_MUCH),
    ("ParserTooComplex", "too many ways to read one text: make the grammar less ambiguous"),
    ("InternalError", "llguidance failed: please report it"),
    (
        "Current row has",
        "the grammar reads the text up to here in {} ways, and the limit is {}: make it less \
         ambiguous, and write recursive rules left-recursively",
    ),
    (
        "Too many items",
        "one token takes more than {} steps of the grammar: use longer terminals, or make it less \
         ambiguous",
    ),
    ("fuel exhausted when checking relevance of lexemes", TOO_MUCH),
    ("lexer precomputation failed", TOO_MUCH),
    ("initial lexer configuration (grammar) too big", TOO_MUCH),
    ("too many expressions constructed", TOO_MUCH),
    ("too many states", "the regular expressions have {} states or more: make them shorter"),
    ("DNF too large", "the conditions are too complex: use fewer of them"),
    (
        "grammar size (number of symbols) too big",
        "the grammar has more than {} symbols: make it smaller",
    ),
    ("schema too large", "the schema is too large: make it smaller"),
];

/// Describes an error in one line.
pub(crate) fn sentence(error: &impl fmt::Display) -> String {
    let text = error.to_string();
    let line = text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or("no reason");
    let of_part = |part: &str| line.strip_prefix(part).map(str::trim_start);
    let problem = of_part("lexer error:").or_else(|| of_part("parser error:")).unwrap_or(line);
    // Names from the code must match the whole line.
    let is_meant = |start: &str| match start.contains(' ') {
        true => problem.starts_with(start),
        false => problem == start,
    };
    let replacement = REPLACEMENTS.iter().find(|(start, _)| is_meant(start));
    let replacement = replacement
        .map_or_else(|| line.to_owned(), |(_, replacement)| with_numbers(replacement, problem));
    replacement.chars().take(CHARACTERS_MAX).collect()
}

fn with_numbers(replacement: &str, problem: &str) -> String {
    let numbers = problem.split(|it: char| !it.is_ascii_digit()).filter(|it| !it.is_empty());
    numbers
        .fold(replacement.to_owned(), |replacement, number| replacement.replacen("{}", number, 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_become_sentences() {
        for (error, expected) in [
            ("NoExtensionBias\n<non-verbose/>", NOTHING_FITS),
            ("\n  LexerTooComplex", TOO_MUCH),
            ("lexer error: too many states: 50000 >= 50000", "have 50000 states or more"),
            (
                "Current row has 4000 items; max is 500; consider making your grammar \
                 left-recursive if it's right-recursive",
                "in 4000 ways, and the limit is 500: make",
            ),
            (
                "parser error: Too many items (limit 50000; mask); try avoiding single-byte/short \
                 lexemes",
                "takes more than 50000 steps",
            ),
            ("NoExtensionBiasing", "NoExtensionBiasing"),
            ("unknown name: \"x\"\nmore", "unknown name: \"x\""),
            ("", "no reason"),
        ] {
            let found = sentence(&error);
            assert!(found.contains(expected), "{error}: {found}");
            assert!(!found.contains("{}") && !found.contains('\n'), "{found}");
        }
        assert_eq!(sentence(&"x".repeat(1_000)).len(), CHARACTERS_MAX);
    }
}
