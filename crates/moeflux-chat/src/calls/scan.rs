//! Looks ahead in text that is still arriving.
//!
//! **Invariant:** any result but [`Miss::Partial`] stays the same, whatever text follows.

/// Maximum length of whitespace around markers; longer whitespace is text.
pub(crate) const BLANK_BYTES_MAX: usize = 64;

/// What may follow the known text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Coming {
    /// Possibly more text.
    More,
    /// Nothing: the model ended its answer.
    End,
    /// Nothing: the answer was cut.
    Cut,
}

/// The reason why something was not found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Miss {
    /// The text differs.
    No,
    /// More text may complete it.
    Partial,
}

pub(crate) type Found<T> = Result<T, Miss>;

/// A position in a text.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scan<'a> {
    rest: &'a str,
    coming: Coming,
}

impl<'a> Scan<'a> {
    /// Creates a scan at the start of this text.
    pub(crate) fn new(rest: &'a str, coming: Coming) -> Self {
        Self { rest, coming }
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
    pub(crate) fn literal(&mut self, literal: &str) -> Found<()> {
        if let Some(rest) = self.rest.strip_prefix(literal) {
            self.rest = rest;
            return Ok(());
        }
        let may_come = self.coming == Coming::More && literal.starts_with(self.rest);
        Err(if may_come { Miss::Partial } else { Miss::No })
    }

    /// Takes the first of these texts that stands here; empty ones never match.
    pub(crate) fn one_of(&mut self, literals: &[&str]) -> Found<usize> {
        let mut miss = Miss::No;
        for (idx, literal) in literals.iter().enumerate().filter(|(_, it)| !it.is_empty()) {
            match self.literal(literal) {
                Ok(()) => return Ok(idx),
                Err(Miss::Partial) => miss = Miss::Partial,
                Err(Miss::No) => {}
            }
        }
        Err(miss)
    }

    /// Takes one of these characters.
    pub(crate) fn one_character(&mut self, characters: &[char]) -> Found<()> {
        match self.rest.strip_prefix(characters) {
            Some(rest) => self.rest = rest,
            None if self.rest.is_empty() && self.coming == Coming::More => {
                return Err(Miss::Partial);
            }
            None => return Err(Miss::No),
        }
        Ok(())
    }

    /// Takes a text if it stands here. Returns whether it did.
    pub(crate) fn may_take(&mut self, literal: &str) -> Found<bool> {
        match self.literal(literal) {
            Ok(()) => Ok(true),
            Err(Miss::No) => Ok(false),
            Err(Miss::Partial) => Err(Miss::Partial),
        }
    }

    /// Takes whitespace.
    pub(crate) fn blank(&mut self) -> Found<()> {
        let rest = self.rest.trim_start();
        if self.rest.len() - rest.len() > BLANK_BYTES_MAX {
            return Err(Miss::No);
        }
        self.rest = rest;
        Ok(())
    }

    /// Takes at most `n_max` digits.
    pub(crate) fn digits(&mut self, n_max: usize) -> Found<()> {
        let rest = self.rest.trim_start_matches(|it: char| it.is_ascii_digit());
        if self.rest.len() - rest.len() > n_max {
            return Err(Miss::No);
        }
        self.rest = rest;
        Ok(())
    }

    /// Checks that a word ends here.
    pub(crate) fn end_of_word(self) -> Found<()> {
        match self.rest.chars().next() {
            Some(next) if next.is_alphanumeric() || next == '_' => Err(Miss::No),
            None if self.coming == Coming::More => Err(Miss::Partial),
            _ => Ok(()),
        }
    }

    /// Takes one of these texts after whitespace, or the end of the answer.
    pub(crate) fn ends_with(&mut self, literals: &[&str]) -> Found<()> {
        self.blank()?;
        match (self.rest, self.coming) {
            ("", Coming::End) => Ok(()),
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
pub(crate) fn any<T>(found: impl IntoIterator<Item = Found<T>>) -> Found<T> {
    let mut miss = Miss::No;
    for found in found {
        match found {
            Ok(found) => return Ok(found),
            Err(Miss::Partial) => miss = Miss::Partial,
            Err(Miss::No) => {}
        }
    }
    Err(miss)
}
