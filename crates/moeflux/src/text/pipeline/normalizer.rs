//! Parses `normalizer` into steps that change a text before it is split.
//!
//! The library's steps keep 16 bytes for each byte to track offsets; the steps here work on plain
//! text. The library gets its own steps for the added tokens. **Invariant:** all steps together
//! multiply a text at most `growth` times, apart from Unicode normalisation (a ligature of 3 bytes
//! may become 33).

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;
use tokenizers::NormalizerWrapper;
use tokenizers::normalizers::{Lowercase, NFC, NFD, NFKC, NFKD, Prepend, Replace, Sequence};
use unicode_normalization_alignments::UnicodeNormalization as _;

use crate::text::pipeline::{
    PatternText, add_step, check_length, longest_form, multiplied, part, replaced,
};

/// The steps, if there are any, and their growth factor.
pub(super) struct Normalizer {
    /// Steps for the library.
    pub(super) steps: Option<Sequence>,
    pub(super) changes: Changes,
    pub(super) growth: usize,
}

/// The steps, in order.
#[derive(Clone, Debug, Default)]
pub(in crate::text) struct Changes(Vec<Change>);

#[derive(Clone, Debug)]
enum Change {
    Form(Form),
    Lowercase,
    Prepend(String),
    Replace { from: String, to: String },
}

/// A Unicode normalisation form.
#[derive(Clone, Copy, Debug)]
enum Form {
    Nfc,
    Nfd,
    Nfkc,
    Nfkd,
}

#[derive(Deserialize)]
#[serde(tag = "type")]
enum Step {
    #[serde(rename = "NFC")]
    Nfc,
    #[serde(rename = "NFD")]
    Nfd,
    #[serde(rename = "NFKC")]
    Nfkc,
    #[serde(rename = "NFKD")]
    Nfkd,
    Lowercase,
    Prepend {
        prepend: String,
    },
    Replace {
        pattern: PatternText,
        content: String,
    },
    Sequence {
        normalizers: Vec<Step>,
    },
}

/// Parses the part.
pub(super) fn read(json: Option<&RawValue>) -> Result<Normalizer, String> {
    let mut reader = Reader { steps: Vec::new(), changes: Vec::new(), growth: 1 };
    if let Some(step) = part::<Step>(json)? {
        reader.add(step)?;
    }
    let Reader { steps, changes, growth } = reader;
    let steps = (!steps.is_empty()).then(|| Sequence::new(steps));
    Ok(Normalizer { steps, changes: Changes(changes), growth })
}

struct Reader {
    steps: Vec<NormalizerWrapper>,
    changes: Vec<Change>,
    growth: usize,
}

impl Reader {
    fn add(&mut self, step: Step) -> Result<(), String> {
        let (step, change): (NormalizerWrapper, Change) = match step {
            Step::Nfc => (NFC.into(), Change::Form(Form::Nfc)),
            Step::Nfd => (NFD.into(), Change::Form(Form::Nfd)),
            Step::Nfkc => (NFKC.into(), Change::Form(Form::Nfkc)),
            Step::Nfkd => (NFKD.into(), Change::Form(Form::Nfkd)),
            Step::Lowercase => (Lowercase.into(), Change::Lowercase),
            // The library miscounts characters if the prepended text is empty.
            Step::Prepend { prepend } if prepend.is_empty() => return Ok(()),
            Step::Prepend { prepend } => {
                check_length(&prepend)?;
                // A text between two added tokens may be one byte long.
                self.growth = multiplied(self.growth, longest_form(&prepend) + 1)?;
                (Prepend::new(prepend.clone()).into(), Change::Prepend(prepend))
            }
            Step::Replace { pattern, content } => {
                let (from, factor) = replaced(pattern, &content)?;
                self.growth = multiplied(self.growth, factor)?;
                let step = Replace::new(from.clone(), content.clone());
                let step = step.map_err(|error| error.to_string())?;
                (step.into(), Change::Replace { from, to: content })
            }
            Step::Sequence { normalizers } => {
                return normalizers.into_iter().try_for_each(|step| self.add(step));
            }
        };
        add_step(&mut self.steps, step)?;
        self.changes.push(change);
        Ok(())
    }
}

impl Changes {
    /// Applies all steps to a text.
    pub(in crate::text) fn apply<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let mut text = Cow::Borrowed(text);
        for change in &self.0 {
            if let Some(changed) = change.apply(&text) {
                text = Cow::Owned(changed);
            }
        }
        text
    }
}

impl Change {
    /// Applies the step. Returns `None` if the text is unchanged.
    fn apply(&self, text: &str) -> Option<String> {
        match self {
            // ASCII is in every normalisation form already.
            Self::Form(_) if text.is_ascii() => None,
            Self::Form(Form::Nfc) => Some(text.nfc().map(|(character, _)| character).collect()),
            Self::Form(Form::Nfd) => Some(text.nfd().map(|(character, _)| character).collect()),
            Self::Form(Form::Nfkc) => Some(text.nfkc().map(|(character, _)| character).collect()),
            Self::Form(Form::Nfkd) => Some(text.nfkd().map(|(character, _)| character).collect()),
            // By character: `str::to_lowercase` depends on word boundaries.
            Self::Lowercase => Some(text.chars().flat_map(char::to_lowercase).collect()),
            Self::Prepend(_) if text.is_empty() => None,
            Self::Prepend(prefix) => Some(format!("{prefix}{text}")),
            Self::Replace { from, .. } if !text.contains(from.as_str()) => None,
            Self::Replace { from, to } => Some(text.replace(from.as_str(), to)),
        }
    }
}
