//! Finds added tokens in a text one at a time, as the library does.
//!
//! **Invariant:** tokens and the text between them are delivered in order, and no matches are
//! stored.

use std::collections::{BTreeMap, HashMap};

use daachorse::{DoubleArrayAhoCorasick, DoubleArrayAhoCorasickBuilder, MatchKind};
use tokenizers::AddedToken;

use crate::text::tokenizer::pattern::{Pattern, StepBudget};
use crate::text::tokenizer::pipeline::normalizer::TextChanges;

/// The added tokens that are searched for together.
pub(in crate::text) struct Finder {
    automaton: Option<DoubleArrayAhoCorasick<u32>>,
    tokens: HashMap<u32, AddedToken>,
    word: Pattern,
}

/// A section of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::text) enum TextSection {
    /// The text between two offsets.
    Text(usize, usize),
    /// An added token.
    Token(u32),
}

impl Finder {
    /// Creates a finder for the tokens that are matched before normalisation, and one for those
    /// that are matched after it.
    ///
    /// # Errors
    /// If the automaton cannot be built.
    pub(in crate::text) fn pair(
        tokens: &BTreeMap<u32, AddedToken>,
        changes: &TextChanges,
    ) -> Result<[Self; 2], String> {
        let of = |is_normalized: bool| {
            let wanted = tokens.iter().filter(|(_, token)| token.normalized == is_normalized);
            wanted.map(|(id, token)| (*id, token.clone())).collect::<HashMap<_, _>>()
        };
        let text = |token: &AddedToken| changes.apply(&token.content).into_owned();
        Ok([Self::new(of(false), |token| token.content.clone())?, Self::new(of(true), text)?])
    }

    /// Creates a finder for tokens in the form that `text` returns.
    fn new(
        tokens: HashMap<u32, AddedToken>,
        text: impl Fn(&AddedToken) -> String,
    ) -> Result<Self, String> {
        let texts = tokens.iter().map(|(id, token)| (text(token), *id));
        let builder = DoubleArrayAhoCorasickBuilder::new().match_kind(MatchKind::LeftmostLongest);
        let automaton = (!tokens.is_empty()).then(|| builder.build_with_values(texts)).transpose();
        let automaton = automaton.map_err(|error| error.to_string())?;
        Ok(Self { automaton, tokens, word: Pattern::new(r"\w")? })
    }

    /// Delivers the sections of a text.
    ///
    /// # Errors
    /// An error of `take`.
    pub(in crate::text) fn sections<E>(
        &self,
        text: &str,
        take: &mut dyn FnMut(TextSection) -> Result<(), E>,
    ) -> Result<(), E> {
        let Some(automaton) = &self.automaton else {
            return take(TextSection::Text(0, text.len()));
        };
        let mut end = 0;
        for found in automaton.leftmost_find_iter(text) {
            let (mut start, mut stop, id) = (found.start(), found.end(), found.value());
            let token = &self.tokens[&id];
            let (before, after) = (&text[..start], &text[stop..]);
            let is_beside_word = before.chars().next_back().is_some_and(|it| self.is_word(it))
                || after.chars().next().is_some_and(|it| self.is_word(it));
            if token.single_word && is_beside_word {
                continue;
            }
            if token.lstrip {
                // The previous token may have taken these spaces.
                let from = end.min(start);
                start = (from + text[from..start].trim_end().len()).max(end);
            }
            if token.rstrip {
                stop += after.len() - after.trim_start().len();
            }
            if end < start {
                take(TextSection::Text(end, start))?;
            }
            take(TextSection::Token(id))?;
            end = stop;
        }
        if end == text.len() { Ok(()) } else { take(TextSection::Text(end, text.len())) }
    }

    fn is_word(&self, character: char) -> bool {
        let budget = StepBudget::new();
        let mut bytes = [0; 4];
        self.word.matches(character.encode_utf8(&mut bytes), &budget).next().is_some()
    }
}

impl std::fmt::Debug for Finder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Finder").field("n_tokens", &self.tokens.len()).finish_non_exhaustive()
    }
}
