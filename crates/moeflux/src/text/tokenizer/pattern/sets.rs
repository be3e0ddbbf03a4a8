//! Sets of characters, each compiled once per expression.
//!
//! **Invariant:** ranges are in ascending order and do not touch; characters below 128 are also in
//! a bit mask.

use std::collections::HashMap;

use regex_syntax::ParserBuilder;
use regex_syntax::hir::{Class, ClassUnicode, ClassUnicodeRange, HirKind};

/// Maximum sets of an expression; the published ones have about 15. Case folding of a large class
/// takes milliseconds.
const SETS_MAX: usize = 128;

/// A set of characters.
#[derive(Clone, Debug)]
pub(super) struct CharSet {
    ascii: u128,
    ranges: Vec<(char, char)>,
}

impl CharSet {
    pub(super) fn contains(&self, character: char) -> bool {
        if character.is_ascii() {
            return self.ascii >> u32::from(character) & 1 != 0;
        }
        let n_before = self.ranges.partition_point(|(_, last)| *last < character);
        self.ranges.get(n_before).is_some_and(|(first, _)| *first <= character)
    }

    fn new(class: &ClassUnicode) -> Self {
        let ranges: Vec<_> = class.iter().map(|range| (range.start(), range.end())).collect();
        let is_in = |code: &u8| {
            let character = char::from(*code);
            ranges.iter().any(|(first, last)| (*first..=*last).contains(&character))
        };
        let ascii = (0..128).filter(is_in).fold(0, |mask, code| mask | 1_u128 << code);
        Self { ascii, ranges }
    }
}

/// The sets of an expression during compilation.
#[derive(Default)]
pub(super) struct CharSets {
    sets: Vec<CharSet>,
    indices: HashMap<(String, bool), usize>,
}

impl CharSets {
    pub(super) fn into_vec(self) -> Vec<CharSet> {
        self.sets
    }

    /// Adds the set of one character, with its other cases if `ignores_case`.
    pub(super) fn character(&mut self, it: char, ignores_case: bool) -> Result<usize, String> {
        self.class(&fancy_regex::escape(&it.to_string()), ignores_case)
    }

    /// Adds the set of an expression for one character: `[^\s\p{L}]`, `\d`, `.`.
    pub(super) fn class(&mut self, source: &str, ignores_case: bool) -> Result<usize, String> {
        let key = (source.to_owned(), ignores_case);
        if let Some(index) = self.indices.get(&key) {
            return Ok(*index);
        }
        if self.sets.len() >= SETS_MAX {
            return Err(format!("an expression of more than {SETS_MAX} sets of characters"));
        }
        self.sets.push(CharSet::new(&parsed(source, ignores_case)?));
        self.indices.insert(key, self.sets.len() - 1);
        Ok(self.sets.len() - 1)
    }
}

fn parsed(source: &str, ignores_case: bool) -> Result<ClassUnicode, String> {
    let mut parser = ParserBuilder::new().case_insensitive(ignores_case).build();
    let hir = parser.parse(source).map_err(|error| match error {
        regex_syntax::Error::Parse(error) => error.kind().to_string(),
        regex_syntax::Error::Translate(error) => error.kind().to_string(),
        other => other.to_string(),
    })?;
    let one = |literal: &[u8]| {
        let mut characters = std::str::from_utf8(literal).ok()?.chars();
        let range = characters.next().map(|it| ClassUnicodeRange::new(it, it))?;
        characters.next().is_none().then(|| ClassUnicode::new([range]))
    };
    match hir.kind() {
        HirKind::Class(Class::Unicode(class)) => Some(class.clone()),
        HirKind::Class(Class::Bytes(class)) => class.to_unicode_class(),
        HirKind::Literal(literal) => one(&literal.0),
        _ => None,
    }
    .ok_or_else(|| format!("`{source}` is not a set of characters"))
}
