//! Patterns of file names: `*` for any text, including `/`, `?` for a character, `[ab]` and `[!ab]`
//! for a set of characters. These are the patterns of `huggingface_hub`.
//!
//! **Invariant:** the time of a match is at most proportional to the pattern's length times the
//! name's.

use crate::error::{Error, Result};

/// Maximum length of a pattern in characters.
const N_CHARS_MAX: usize = 1024;

/// A pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Glob {
    text: String,
    tokens: Vec<GlobToken>,
}

/// An element of a pattern, which matches one character or any text.
#[derive(Clone, Debug, PartialEq, Eq)]
enum GlobToken {
    Any,
    One,
    Char(char),
    Class { is_negated: bool, ranges: Vec<(char, char)> },
}

impl Glob {
    /// Parses a pattern.
    ///
    /// # Errors
    ///
    /// [`Error::Asked`] if it is empty or too long.
    pub fn new(text: &str) -> Result<Self> {
        let n_chars = text.chars().count();
        if n_chars == 0 || n_chars > N_CHARS_MAX {
            let problem = format!("a pattern of files has 1 to {N_CHARS_MAX} characters");
            return Err(Error::Asked(problem));
        }
        let chars: Vec<char> = text.chars().collect();
        let mut tokens = Vec::with_capacity(n_chars);
        let mut at = 0;
        while at < chars.len() {
            let (token, n_taken) = token(&chars[at..]);
            // Consecutive stars are equivalent to one.
            if token != GlobToken::Any || tokens.last() != Some(&GlobToken::Any) {
                tokens.push(token);
            }
            at += n_taken;
        }
        // `folder/` matches everything below it.
        if text.ends_with('/') {
            tokens.push(GlobToken::Any);
        }
        Ok(Self { text: text.to_owned(), tokens })
    }

    /// Returns the pattern as it was written.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns whether the pattern matches a path of a repository.
    #[must_use]
    pub fn matches(&self, path: &str) -> bool {
        let chars: Vec<char> = path.chars().collect();
        // The positions in the path that the parts so far can reach.
        let mut reached = vec![false; chars.len() + 1];
        reached[0] = true;
        for token in &self.tokens {
            if *token == GlobToken::Any {
                let first = reached.iter().position(|it| *it).unwrap_or(reached.len());
                reached[first..].fill(true);
                continue;
            }
            for at in (0..chars.len()).rev() {
                reached[at + 1] = reached[at] && token.takes(chars[at]);
            }
            reached[0] = false;
        }
        reached[chars.len()]
    }
}

impl GlobToken {
    fn takes(&self, it: char) -> bool {
        match self {
            Self::Any | Self::One => true,
            Self::Char(wanted) => *wanted == it,
            Self::Class { is_negated, ranges } => {
                ranges.iter().any(|(first, last)| (*first..=*last).contains(&it)) != *is_negated
            }
        }
    }
}

/// Parses the first part of a non-empty pattern. Returns it with the number of its characters.
fn token(chars: &[char]) -> (GlobToken, usize) {
    match chars[0] {
        '*' => (GlobToken::Any, 1),
        '?' => (GlobToken::One, 1),
        '[' => class(chars).unwrap_or((GlobToken::Char('['), 1)),
        it => (GlobToken::Char(it), 1),
    }
}

/// Parses `[a-c]`; `None` if it is not closed, in which case `[` is a literal.
fn class(chars: &[char]) -> Option<(GlobToken, usize)> {
    let is_negated = chars.get(1) == Some(&'!');
    let begin = if is_negated { 2 } else { 1 };
    // A `]` right at the beginning is a member of the set.
    let len = chars.get(begin + 1..)?.iter().position(|it| *it == ']')? + 1;
    let mut ranges = Vec::new();
    let mut rest = &chars[begin..begin + len];
    while let Some(first) = rest.first() {
        match rest {
            [_, '-', last, ..] => {
                ranges.push((*first, *last));
                rest = &rest[3..];
            }
            _ => {
                ranges.push((*first, *first));
                rest = &rest[1..];
            }
        }
    }
    Some((GlobToken::Class { is_negated, ranges }, begin + len + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(pattern: &str, yes: &[&str], no: &[&str]) {
        let glob = Glob::new(pattern).unwrap();
        for path in yes {
            assert!(glob.matches(path), "{pattern} {path}");
        }
        for path in no {
            assert!(!glob.matches(path), "{pattern} {path}");
        }
    }

    #[test]
    fn patterns_match_as_those_of_the_hub_s_own_tools() {
        check("*.gguf", &["a.gguf", "sub/a.gguf", ".gguf"], &["a.gguf.txt", "agguf", ""]);
        check("*Q4_K_M*", &["x-Q4_K_M.gguf", "Q4_K_M/x-1.gguf"], &["x-q4_k_m.gguf"]);
        check("a?c", &["abc", "a/c", "aéc"], &["ac", "abbc"]);
        check("[a-c]x[!0-9]", &["axy", "bx-"], &["dxy", "ax5", "ax"]);
        check("[]x]y", &["]y", "xy"], &["y"]);
        check("a[b", &["a[b"], &["ab"]);
        check("sub/", &["sub/x", "sub/y/z"], &["sub", "asub/x"]);
        check("a**b*", &["ab", "axxb", "abab"], &["ba"]);
        check("exact.json", &["exact.json"], &["exactajson", "sub/exact.json"]);
    }

    #[test]
    fn a_pattern_of_stars_ends_soon() {
        let glob = Glob::new(&"*a".repeat(500)).unwrap();
        assert!(!glob.matches(&"a".repeat(499)));
        assert!(glob.matches(&"a".repeat(1000)));
        assert!(Glob::new("").is_err());
        assert!(Glob::new(&"a".repeat(1025)).is_err());
    }
}
