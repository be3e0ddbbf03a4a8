//! Looks ahead in text that is still arriving.
//!
//! **Invariant:** any result but [`ScanError::Incomplete`] stays the same, whatever text follows.

/// Maximum length of whitespace around markers; longer whitespace is text.
pub(crate) const BLANK_BYTES_MAX: usize = 64;

/// Whether more text may follow the known text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamState {
    /// Possibly more text.
    More,
    /// Nothing: the model ended its answer.
    End,
    /// Nothing: the answer was cut.
    Cut,
}

/// The reason why something was not found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ScanError {
    /// The text differs.
    Mismatch,
    /// More text may complete it.
    Incomplete,
}

/// The result of a scan.
pub(crate) type ScanResult<T> = Result<T, ScanError>;

/// A position in a text.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scan<'a> {
    rest: &'a str,
    stream: StreamState,
}

impl<'a> Scan<'a> {
    /// Creates a scan at the start of this text.
    pub(crate) fn new(rest: &'a str, stream: StreamState) -> Self {
        Self { rest, stream }
    }

    /// Returns the text between this position and a later one.
    pub(crate) fn until(self, later: Scan<'_>) -> &'a str {
        &self.rest[..self.rest.len() - later.rest.len()]
    }

    /// Returns whether this text stands here, without taking it.
    pub(crate) fn is_at(self, literal: &str) -> bool {
        self.rest.starts_with(literal)
    }

    /// Returns whether no more text is known.
    pub(crate) fn is_at_end(self) -> bool {
        self.rest.is_empty()
    }

    /// Takes this text.
    pub(crate) fn literal(&mut self, literal: &str) -> ScanResult<()> {
        if let Some(rest) = self.rest.strip_prefix(literal) {
            self.rest = rest;
            return Ok(());
        }
        let may_come = self.stream == StreamState::More && literal.starts_with(self.rest);
        Err(if may_come { ScanError::Incomplete } else { ScanError::Mismatch })
    }

    /// Takes the first of these texts that stands here; empty ones never match.
    pub(crate) fn one_of(&mut self, literals: &[&str]) -> ScanResult<usize> {
        let mut error = ScanError::Mismatch;
        for (idx, literal) in literals.iter().enumerate().filter(|(_, it)| !it.is_empty()) {
            match self.literal(literal) {
                Ok(()) => return Ok(idx),
                Err(ScanError::Incomplete) => error = ScanError::Incomplete,
                Err(ScanError::Mismatch) => {}
            }
        }
        Err(error)
    }

    /// Takes one of these characters.
    pub(crate) fn one_character(&mut self, characters: &[char]) -> ScanResult<()> {
        match self.rest.strip_prefix(characters) {
            Some(rest) => self.rest = rest,
            None if self.rest.is_empty() && self.stream == StreamState::More => {
                return Err(ScanError::Incomplete);
            }
            None => return Err(ScanError::Mismatch),
        }
        Ok(())
    }

    /// Takes a text if it stands here. Returns whether it did.
    pub(crate) fn may_take(&mut self, literal: &str) -> ScanResult<bool> {
        match self.literal(literal) {
            Ok(()) => Ok(true),
            Err(ScanError::Mismatch) => Ok(false),
            Err(ScanError::Incomplete) => Err(ScanError::Incomplete),
        }
    }

    /// Takes whitespace.
    pub(crate) fn blank(&mut self) -> ScanResult<()> {
        let rest = self.rest.trim_start();
        if self.rest.len() - rest.len() > BLANK_BYTES_MAX {
            return Err(ScanError::Mismatch);
        }
        self.rest = rest;
        Ok(())
    }

    /// Takes at most `n_max` digits.
    pub(crate) fn digits(&mut self, n_max: usize) -> ScanResult<()> {
        let rest = self.rest.trim_start_matches(|it: char| it.is_ascii_digit());
        if self.rest.len() - rest.len() > n_max {
            return Err(ScanError::Mismatch);
        }
        self.rest = rest;
        Ok(())
    }

    /// Checks that a word ends here.
    pub(crate) fn end_of_word(self) -> ScanResult<()> {
        match self.rest.chars().next() {
            Some(next) if next.is_alphanumeric() || next == '_' => Err(ScanError::Mismatch),
            None if self.stream == StreamState::More => Err(ScanError::Incomplete),
            _ => Ok(()),
        }
    }

    /// Takes one of these texts after whitespace, or the end of the answer.
    pub(crate) fn ends_with(&mut self, literals: &[&str]) -> ScanResult<()> {
        self.blank()?;
        match (self.rest, self.stream) {
            ("", StreamState::End) => Ok(()),
            ("", StreamState::More) => Err(ScanError::Incomplete),
            _ => self.one_of(literals).map(|_| ()),
        }
    }
}

/// Returns the length of a text without the whitespace at its end that may belong to a marker.
pub(crate) fn n_settled(text: &str) -> usize {
    let mut n_settled = text.trim_end().len();
    while text.len() - n_settled > BLANK_BYTES_MAX || !text.is_char_boundary(n_settled) {
        n_settled += 1;
    }
    n_settled
}

/// Returns the length of the longest suffix of the text that begins the marker.
pub(crate) fn n_unfinished(text: &str, marker: &str) -> usize {
    let most = text.len().min(marker.len() - 1);
    let is_end = |n: &usize| text.as_bytes().ends_with(&marker.as_bytes()[..*n]);
    (1..=most).rev().find(is_end).unwrap_or(0)
}

/// Combines several results of which at most one can be a match.
pub(crate) fn any<T>(found: impl IntoIterator<Item = ScanResult<T>>) -> ScanResult<T> {
    let mut error = ScanError::Mismatch;
    for found in found {
        match found {
            Ok(found) => return Ok(found),
            Err(ScanError::Incomplete) => error = ScanError::Incomplete,
            Err(ScanError::Mismatch) => {}
        }
    }
    Err(error)
}
