//! Parses `pre_tokenizer` into steps that split a text into pieces.
//!
//! The steps match those of the library, which stores all pieces of a text at some hundred bytes
//! each; here each piece passes through all steps before the next. **Invariant:** at most one step
//! turns bytes into characters, and at most one marks spaces, because each multiplies a text. All
//! searches in a text share one budget.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;
use tokenizers::pre_tokenizers::metaspace::{Metaspace, PrependScheme};
use tokenizers::tokenizer::SplitDelimiterBehavior;
use unicode_categories::UnicodeCategories as _;

use crate::text::tokenizer::byte_level::Alphabet;
use crate::text::tokenizer::pattern::{Pattern, StepBudget};
use crate::text::tokenizer::pipeline::groups::MatchGroups;
use crate::text::tokenizer::pipeline::{PatternJson, add_step, part};

/// The expression of GPT-2, the default of a byte-level step.
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

/// The expression of the library's step `Whitespace`.
const WORDS: &str = r"\w+|[^\w\s]+";

/// The steps that split a text into pieces, in order.
#[derive(Clone, Debug)]
pub(in crate::text) struct PreTokenizers {
    steps: Vec<PreTokenizerStep>,
}

/// A step that is ready to run.
#[derive(Clone, Debug)]
enum PreTokenizerStep {
    Split {
        pattern: Pattern,
        behavior: SplitDelimiterBehavior,
        is_inverted: bool,
    },
    /// Characters matched by a predicate.
    Characters {
        is_match: fn(char) -> bool,
        behavior: SplitDelimiterBehavior,
    },
    ByteLevel {
        adds_space: bool,
        pattern: Option<Pattern>,
        alphabet: Box<Alphabet>,
    },
    Metaspace(Metaspace),
}

/// A step in its JSON form.
#[derive(Deserialize)]
#[serde(tag = "type")]
enum PreTokenizerJson {
    Split {
        pattern: PatternJson,
        behavior: SplitDelimiterBehavior,
        invert: bool,
    },
    ByteLevel {
        add_prefix_space: bool,
        #[serde(default = "yes")]
        use_regex: bool,
    },
    Digits {
        individual_digits: bool,
    },
    Metaspace(MetaspaceJson),
    Punctuation {
        behavior: Option<SplitDelimiterBehavior>,
    },
    Whitespace,
    WhitespaceSplit,
    Sequence {
        pretokenizers: Vec<PreTokenizerJson>,
    },
}

/// A metaspace step in its JSON form.
#[derive(Deserialize)]
pub(super) struct MetaspaceJson {
    replacement: char,
    add_prefix_space: Option<bool>,
    prepend_scheme: Option<PrependScheme>,
    split: Option<bool>,
}

fn yes() -> bool {
    true
}

/// Reads the part.
pub(super) fn read(json: Option<&RawValue>) -> Result<Option<PreTokenizers>, String> {
    let mut steps = Vec::new();
    if let Some(step) = part::<PreTokenizerJson>(json)? {
        add(&mut steps, step)?;
    }
    let is_byte_level =
        |step: &&PreTokenizerStep| matches!(step, PreTokenizerStep::ByteLevel { .. });
    let is_metaspace = |step: &&PreTokenizerStep| matches!(step, PreTokenizerStep::Metaspace(_));
    if steps.iter().filter(is_byte_level).count() > 1 {
        return Err("more than one step of type ByteLevel".to_owned());
    }
    if steps.iter().filter(is_metaspace).count() > 1 {
        return Err("more than one step of type Metaspace".to_owned());
    }
    let after = steps.iter().skip(1).filter(is_metaspace);
    if after.filter(|step| step.marks_first()).count() > 0 {
        return Err("Metaspace with `prepend_scheme` first after another step".to_owned());
    }
    Ok((!steps.is_empty()).then_some(PreTokenizers { steps }))
}

fn add(steps: &mut Vec<PreTokenizerStep>, text: PreTokenizerJson) -> Result<(), String> {
    let step = match text {
        PreTokenizerJson::Split { pattern, behavior, invert } => {
            let pattern = match pattern {
                PatternJson::String(text) => Pattern::literal(&text)?,
                PatternJson::Regex(expression) => Pattern::new(&expression)?,
            };
            PreTokenizerStep::Split { pattern, behavior, is_inverted: invert }
        }
        PreTokenizerJson::ByteLevel { add_prefix_space, use_regex } => {
            let pattern = use_regex.then(|| Pattern::new(GPT2)).transpose()?;
            let alphabet = Box::new(Alphabet::new());
            PreTokenizerStep::ByteLevel { adds_space: add_prefix_space, pattern, alphabet }
        }
        PreTokenizerJson::Digits { individual_digits } => {
            let behavior = match individual_digits {
                true => SplitDelimiterBehavior::Isolated,
                false => SplitDelimiterBehavior::Contiguous,
            };
            PreTokenizerStep::Characters { is_match: char::is_numeric, behavior }
        }
        PreTokenizerJson::Metaspace(text) => PreTokenizerStep::Metaspace(metaspace(&text)?),
        PreTokenizerJson::Punctuation { behavior } => {
            let behavior = behavior.unwrap_or(SplitDelimiterBehavior::Isolated);
            PreTokenizerStep::Characters { is_match: is_punctuation, behavior }
        }
        PreTokenizerJson::Whitespace => PreTokenizerStep::Split {
            pattern: Pattern::new(WORDS)?,
            behavior: SplitDelimiterBehavior::Removed,
            is_inverted: true,
        },
        PreTokenizerJson::WhitespaceSplit => PreTokenizerStep::Characters {
            is_match: char::is_whitespace,
            behavior: SplitDelimiterBehavior::Removed,
        },
        PreTokenizerJson::Sequence { pretokenizers } => {
            return pretokenizers.into_iter().try_for_each(|text| add(steps, text));
        }
    };
    add_step(steps, step)
}

/// Builds a metaspace step. As in the library, the older key applies if the newer one is missing.
pub(super) fn metaspace(text: &MetaspaceJson) -> Result<Metaspace, String> {
    let scheme = match (text.add_prefix_space, text.prepend_scheme) {
        (Some(false), None | Some(PrependScheme::Never)) => PrependScheme::Never,
        (Some(false), Some(_)) => {
            return Err("`add_prefix_space` and `prepend_scheme` contradict".to_owned());
        }
        (_, scheme) => scheme.unwrap_or(PrependScheme::Always),
    };
    Ok(Metaspace::new(text.replacement, scheme, text.split.unwrap_or(true)))
}

fn is_punctuation(character: char) -> bool {
    character.is_ascii_punctuation() || character.is_punctuation()
}

/// A part of a text between steps.
#[derive(Clone, Copy, Debug)]
pub(in crate::text) struct TextPart<'a> {
    pub(in crate::text) text: &'a str,
    /// Whether it is at the beginning of the whole text.
    pub(in crate::text) is_first: bool,
}

/// Receives the resulting pieces in order. It may stop with an error of its own.
pub(in crate::text) type PieceSink<'a, E> = dyn FnMut(&str) -> Result<(), E> + 'a;

impl PreTokenizers {
    /// Splits a part of a text by all steps.
    ///
    /// # Errors
    /// If an expression takes too many steps; an error of `take`.
    pub(in crate::text) fn split<E: From<String>>(
        &self,
        part: TextPart<'_>,
        budget: &StepBudget,
        take: &mut PieceSink<'_, E>,
    ) -> Result<(), E> {
        split(&self.steps, part, budget, take)
    }
}

fn split<E: From<String>>(
    all: &[PreTokenizerStep],
    part: TextPart<'_>,
    budget: &StepBudget,
    take: &mut PieceSink<'_, E>,
) -> Result<(), E> {
    if part.text.is_empty() {
        return Ok(());
    }
    let Some((step, later)) = all.split_first() else { return take(part.text) };
    let text = part.text;
    match step {
        PreTokenizerStep::Split { pattern, behavior, is_inverted } => {
            let search = SplitSearch { pattern, behavior: *behavior, is_inverted: *is_inverted };
            search.split(part, budget, &mut |part| split(later, part, budget, take))
        }
        PreTokenizerStep::Characters { is_match, behavior } => {
            let mut groups = MatchGroups::new(*behavior);
            let mut end = 0;
            let mut next = |group: Option<(usize, usize)>| match group {
                Some(group) => split(later, part.at(group), budget, take),
                None => Ok(()),
            };
            for (start, character) in text.char_indices().filter(|(_, it)| is_match(*it)) {
                if end < start {
                    next(groups.add((end, start), false))?;
                }
                end = start + character.len_utf8();
                next(groups.add((start, end), true))?;
            }
            if end < text.len() {
                next(groups.add((end, text.len()), false))?;
            }
            next(groups.end())
        }
        PreTokenizerStep::ByteLevel { adds_space, pattern, alphabet } => {
            let text = match *adds_space && !text.starts_with(' ') {
                true => Cow::Owned(format!(" {text}")),
                false => Cow::Borrowed(text),
            };
            let part = TextPart { text: &text, ..part };
            let mut next = |part: TextPart<'_>| {
                let text = alphabet.text_of(part.text);
                split(later, TextPart { text: &text, ..part }, budget, take)
            };
            let Some(pattern) = pattern else { return next(part) };
            let behavior = SplitDelimiterBehavior::Isolated;
            SplitSearch { pattern, behavior, is_inverted: false }.split(part, budget, &mut next)
        }
        PreTokenizerStep::Metaspace(step) => {
            let mark = step.get_replacement();
            let mut text = text.replace(' ', mark.encode_utf8(&mut [0; 4]));
            let is_marked = match step.prepend_scheme {
                PrependScheme::Always => true,
                PrependScheme::First => part.is_first,
                PrependScheme::Never => false,
            };
            if is_marked && !text.starts_with(mark) {
                text.insert(0, mark);
            }
            let part = TextPart { text: &text, ..part };
            if !step.get_split() {
                return split(later, part, budget, take);
            }
            // A mark begins a piece with the text after it; a mark before another mark is a
            // separate piece.
            let mut start = 0;
            for (at, _) in text.match_indices(mark).filter(|(at, _)| *at > 0) {
                split(later, part.at((start, at)), budget, take)?;
                start = at;
            }
            split(later, part.at((start, text.len())), budget, take)
        }
    }
}

impl PreTokenizerStep {
    /// Returns whether the step treats the beginning of the text differently.
    fn marks_first(&self) -> bool {
        matches!(self, Self::Metaspace(step) if step.prepend_scheme == PrependScheme::First)
    }
}

impl<'a> TextPart<'a> {
    fn at(&self, (start, end): (usize, usize)) -> TextPart<'a> {
        TextPart { text: &self.text[start..end], is_first: self.is_first && start == 0 }
    }
}

/// A search for the places at which a text is split.
struct SplitSearch<'a> {
    pattern: &'a Pattern,
    behavior: SplitDelimiterBehavior,
    /// Whether the text between matches is treated as the match.
    is_inverted: bool,
}

impl SplitSearch<'_> {
    fn split<E: From<String>>(
        &self,
        part: TextPart<'_>,
        budget: &StepBudget,
        next: &mut dyn FnMut(TextPart<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let n_bytes = part.text.len();
        let mut groups = MatchGroups::new(self.behavior);
        let mut add = |range, is_match| match groups.add(range, is_match != self.is_inverted) {
            Some(group) => next(part.at(group)),
            None => Ok(()),
        };
        let mut last = 0;
        for found in self.pattern.matches(part.text, budget) {
            let (start, end) = found?;
            if last < start {
                add((last, start), false)?;
            }
            add((start, end), true)?;
            last = end;
        }
        if last < n_bytes {
            add((last, n_bytes), false)?;
        }
        groups.end().map_or(Ok(()), |group| next(part.at(group)))
    }
}
