//! Cuts a streamed text before the first stop string.
//!
//! **Invariant:** the result does not depend on the division of the text into pieces. The stop
//! string that ends first counts, and of several that end at the same place the longest. Text that
//! may become a stop string is held back, so that no part of one is output. This module knows no
//! tokens.

use crate::error::{Error, Result};

/// Maximum stop strings per request: each is compared at each byte.
pub(crate) const STOP_STRINGS_MAX: usize = 16;
/// Maximum bytes of a stop string, and thus of the text held back.
pub const STOP_STRING_BYTES_MAX: usize = 1_024;

/// The stop strings, and the text held back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StopStrings {
    strings: Vec<String>,
    waiting: String,
    text: String,
    stopped: Option<usize>,
}

impl StopStrings {
    /// Creates a filter for these stop strings. An empty list never stops.
    ///
    /// # Errors
    /// If there are too many strings, or one is empty or too long.
    pub fn new(strings: Vec<String>) -> Result<Self> {
        if strings.len() > STOP_STRINGS_MAX {
            let n_strings = strings.len();
            return Err(Error::Input(format!(
                "{n_strings} stop strings are too many; the limit is {STOP_STRINGS_MAX}"
            )));
        }
        for (number, string) in (1..).zip(&strings) {
            if string.is_empty() || string.len() > STOP_STRING_BYTES_MAX {
                return Err(Error::Input(format!(
                    "stop string {number} has {} bytes: give 1 to {STOP_STRING_BYTES_MAX}",
                    string.len()
                )));
            }
        }
        Ok(Self { strings, waiting: String::new(), text: String::new(), stopped: None })
    }

    /// Adds a piece. Returns the text that certainly precedes any stop string; empty after a stop.
    pub fn push(&mut self, piece: &str) -> &str {
        self.text.clear();
        if self.stopped.is_some() {
            return &self.text;
        }
        let n_seen = self.waiting.len();
        self.waiting.push_str(piece);
        if let Some((start, string)) = self.first_match(n_seen) {
            self.waiting.truncate(start);
            self.stopped = Some(string);
            std::mem::swap(&mut self.text, &mut self.waiting);
        } else {
            let n_certain = self.waiting.len() - self.n_unfinished();
            self.text.extend(self.waiting.drain(..n_certain));
        }
        &self.text
    }

    /// Returns the result of the last push.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Ends the text. Returns the text held back, which is not a stop string. The next push starts
    /// a new text.
    pub fn finish(&mut self) -> &str {
        self.text.clear();
        std::mem::swap(&mut self.text, &mut self.waiting);
        self.stopped = None;
        &self.text
    }

    /// Returns the stop string that was found.
    #[must_use]
    pub fn stopped(&self) -> Option<&str> {
        self.stopped.map(|string| self.strings[string].as_str())
    }

    /// Returns start and index of the first match that ends after `n_seen` bytes.
    fn first_match(&self, n_seen: usize) -> Option<(usize, usize)> {
        let bytes = self.waiting.as_bytes();
        let ending_at = |end: usize| {
            let matches = (0..).zip(&self.strings).filter_map(|(index, string)| {
                let start = end.checked_sub(string.len())?;
                (bytes[start..end] == *string.as_bytes()).then_some((start, index))
            });
            matches.min()
        };
        (n_seen + 1..=bytes.len()).find_map(ending_at)
    }

    /// Returns the length of the longest suffix of the held text that is a prefix of a stop string.
    /// Both consist of whole characters, so the suffix starts at a character.
    fn n_unfinished(&self) -> usize {
        let bytes = self.waiting.as_bytes();
        let unfinished = |string: &String| {
            let most = bytes.len().min(string.len() - 1);
            (1..=most).rev().find(|n| bytes.ends_with(&string.as_bytes()[..*n])).unwrap_or(0)
        };
        self.strings.iter().map(unfinished).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use moeflux_testing::random::Rng;

    use super::*;

    /// Checks the output for each piece, and that of `finish`.
    fn check(strings: &[&str], steps: &[(&str, &str)], rest: &str, stopped: Option<&str>) {
        let strings = strings.iter().map(|string| (*string).to_owned()).collect();
        let mut stops = StopStrings::new(strings).unwrap();
        for (piece, expected) in steps {
            assert_eq!(stops.push(piece), *expected, "{piece}");
        }
        assert_eq!(stops.stopped(), stopped);
        assert_eq!(stops.finish(), rest);
    }

    #[test]
    fn tables() {
        check(&[], &[("ab", "ab"), ("", "")], "", None);
        check(&["stop"], &[("a st", "a "), ("op b", ""), ("more", "")], "", Some("stop"));
        check(&["stop"], &[("a st", "a "), ("art", "start")], "", None);
        check(&["stop"], &[("a sto", "a ")], "sto", None);
        check(&["abcd", "bc"], &[("a", ""), ("b", ""), ("cd", "a")], "", Some("bc"));
        check(&["bc", "abc"], &[("xabc", "x")], "", Some("abc"));
        check(&["aab"], &[("aaa", "a"), ("ab", "a")], "", Some("aab"));
        check(&["\n\n"], &[("x\n", "x"), ("y\n\nz", "\ny")], "", Some("\n\n"));
        check(&["終わり"], &[("終", ""), ("わ", ""), ("る終", "終わる")], "終", None);
        check(&["é"], &[("è", "è"), ("éa", "")], "", Some("é"));
    }

    #[test]
    fn limits() {
        let refused = |strings| StopStrings::new(strings).unwrap_err().to_string();
        assert!(StopStrings::new(vec!["x".repeat(STOP_STRING_BYTES_MAX); 16]).is_ok());
        assert_eq!(refused(vec!["x".into(); 17]), "17 stop strings are too many; the limit is 16");
        assert_eq!(
            refused(vec!["a".into(), String::new()]),
            "stop string 2 has 0 bytes: give 1 to 1024"
        );
        assert!(refused(vec!["x".repeat(1_025)]).contains("has 1025 bytes"));
    }

    /// The definition, applied to the whole text.
    fn naive(strings: &[String], text: &str) -> String {
        for end in 1..=text.len() {
            let matched = strings.iter().filter(|s| text.as_bytes()[..end].ends_with(s.as_bytes()));
            if let Some(longest) = matched.map(String::len).max() {
                return text[..end - longest].to_owned();
            }
        }
        text.to_owned()
    }

    #[test]
    fn equals_the_definition_for_any_division_into_pieces() {
        let mut rng = Rng::new(0x5eed);
        let mut below = |n: usize| rng.below(n);
        let alphabet = ["a", "b", "é", "語"];
        for _ in 0..3_000 {
            let mut word =
                |most: usize| -> String { (0..=below(most)).map(|_| alphabet[below(4)]).collect() };
            let strings: Vec<String> = vec![word(3), word(4)];
            let pieces: Vec<String> = (0..8).map(|_| word(3)).collect();
            let mut stops = StopStrings::new(strings.clone()).unwrap();
            let mut got = String::new();
            for piece in &pieces {
                got.push_str(stops.push(piece));
            }
            got.push_str(stops.finish());
            assert_eq!(got, naive(&strings, &pieces.concat()), "{strings:?} {pieces:?}");
        }
    }
}
