//! Turns `pre_tokenizer` into steps that split a text into the pieces that become tokens.
//!
//! Steps with an expression search with `Pattern`, which counts what it does; the others are the
//! library's.
//! **Invariant:** one step at most turns bytes into characters, and one marks spaces: each of them
//! multiplies a text. All searches in one text share one budget.

use serde::Deserialize;
use serde_json::value::RawValue;
use tokenizers::pattern::Pattern as Find;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::metaspace::{Metaspace, PrependScheme};
use tokenizers::pre_tokenizers::punctuation::Punctuation;
use tokenizers::pre_tokenizers::whitespace::{Whitespace, WhitespaceSplit};
use tokenizers::tokenizer::{PreTokenizedString, PreTokenizer, SplitDelimiterBehavior};
use tokenizers::{OffsetReferential, OffsetType, Offsets, PreTokenizerWrapper};

use crate::text::pattern::{Pattern, Search, Steps};
use crate::text::pipeline::{PatternText, add_step, part};

/// The expression of GPT-2, which a byte-level step has where it names none.
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

/// The steps, in order.
#[derive(Clone, Debug)]
pub(in crate::text) struct PreTokenizers {
    steps: Vec<Step>,
}

#[derive(Clone, Debug)]
enum Step {
    Split { pattern: Pattern, behavior: SplitDelimiterBehavior, is_inverted: bool },
    ByteLevel { adds_space: bool, pattern: Option<Pattern> },
    Library(PreTokenizerWrapper),
}

#[derive(Deserialize)]
#[serde(tag = "type")]
enum StepText {
    Split {
        pattern: PatternText,
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
    Metaspace(MetaspaceText),
    Punctuation {
        behavior: Option<SplitDelimiterBehavior>,
    },
    Whitespace,
    WhitespaceSplit,
    Sequence {
        pretokenizers: Vec<StepText>,
    },
}

#[derive(Deserialize)]
pub(super) struct MetaspaceText {
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
    if let Some(step) = part::<StepText>(json)? {
        add(&mut steps, step)?;
    }
    let is_byte_level = |step: &&Step| matches!(step, Step::ByteLevel { .. });
    let is_metaspace =
        |step: &&Step| matches!(step, Step::Library(PreTokenizerWrapper::Metaspace(_)));
    if steps.iter().filter(is_byte_level).count() > 1 {
        return Err("more than one step of type ByteLevel".to_owned());
    }
    if steps.iter().filter(is_metaspace).count() > 1 {
        return Err("more than one step of type Metaspace".to_owned());
    }
    Ok((!steps.is_empty()).then_some(PreTokenizers { steps }))
}

fn add(steps: &mut Vec<Step>, text: StepText) -> Result<(), String> {
    let step = match text {
        StepText::Split { pattern, behavior, invert } => {
            let pattern = match pattern {
                PatternText::String(text) => Pattern::literal(&text)?,
                PatternText::Regex(expression) => Pattern::new(&expression)?,
            };
            Step::Split { pattern, behavior, is_inverted: invert }
        }
        StepText::ByteLevel { add_prefix_space, use_regex } => {
            let pattern = use_regex.then(|| Pattern::new(GPT2)).transpose()?;
            Step::ByteLevel { adds_space: add_prefix_space, pattern }
        }
        StepText::Digits { individual_digits } => {
            Step::Library(Digits::new(individual_digits).into())
        }
        StepText::Metaspace(text) => Step::Library(metaspace(&text)?.into()),
        StepText::Punctuation { behavior } => {
            let behavior = behavior.unwrap_or(SplitDelimiterBehavior::Isolated);
            Step::Library(Punctuation::new(behavior).into())
        }
        StepText::Whitespace => Step::Library(Whitespace.into()),
        StepText::WhitespaceSplit => Step::Library(WhitespaceSplit.into()),
        StepText::Sequence { pretokenizers } => {
            return pretokenizers.into_iter().try_for_each(|text| add(steps, text));
        }
    };
    add_step(steps, step)
}

/// As the library reads it: an older key decides where a newer one is missing.
pub(super) fn metaspace(text: &MetaspaceText) -> Result<Metaspace, String> {
    let scheme = match (text.add_prefix_space, text.prepend_scheme) {
        (Some(false), None | Some(PrependScheme::Never)) => PrependScheme::Never,
        (Some(false), Some(_)) => {
            return Err("`add_prefix_space` and `prepend_scheme` contradict".to_owned());
        }
        (_, scheme) => scheme.unwrap_or(PrependScheme::Always),
    };
    Ok(Metaspace::new(text.replacement, scheme, text.split.unwrap_or(true)))
}

impl PreTokenizer for PreTokenizers {
    fn pre_tokenize(&self, text: &mut PreTokenizedString) -> tokenizers::Result<()> {
        let pieces = text.get_splits(OffsetReferential::Normalized, OffsetType::Byte);
        let steps_left = Steps::for_bytes(pieces.iter().map(|(piece, ..)| piece.len()).sum());
        self.steps.iter().try_for_each(|step| step.apply(text, &steps_left))
    }
}

/// Matches that were found before.
struct Found(Vec<(Offsets, bool)>);

impl Find for Found {
    fn find_matches(&self, _: &str) -> tokenizers::Result<Vec<(Offsets, bool)>> {
        Ok(self.0.clone())
    }
}

impl Step {
    fn apply(&self, text: &mut PreTokenizedString, steps: &Steps) -> tokenizers::Result<()> {
        match self {
            Self::Split { pattern, behavior, is_inverted } => {
                let search = Search { pattern, steps, is_inverted: *is_inverted };
                text.split(|_, piece| {
                    let mut parts = search.find_matches(piece.get())?;
                    if *behavior == SplitDelimiterBehavior::Isolated {
                        // Empty matches divide, but nothing is left of them.
                        parts.retain(|((start, end), _)| start < end);
                    }
                    // Most pieces of a later step stay whole, and need no copies.
                    if let [(_, is_match)] = parts[..]
                        && !(is_match && *behavior == SplitDelimiterBehavior::Removed)
                    {
                        return Ok(vec![piece]);
                    }
                    piece.split(Found(parts), *behavior)
                })
            }
            Self::ByteLevel { adds_space, pattern } => {
                text.split(|_, mut piece| {
                    if *adds_space && !piece.get().starts_with(' ') {
                        piece.prepend(" ");
                    }
                    let Some(pattern) = pattern else { return Ok(vec![piece]) };
                    let search = Search { pattern, steps, is_inverted: false };
                    piece.split(search, SplitDelimiterBehavior::Isolated)
                })?;
                ByteLevel::new(false, true, false).pre_tokenize(text)
            }
            Self::Library(step) => step.pre_tokenize(text),
        }
    }
}
