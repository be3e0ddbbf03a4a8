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

use crate::text::tokenizer::pipeline::{
    PatternJson, add_step, check_length, longest_form, multiplied, part, replaced,
};

/// The steps, if there are any, and their growth factor.
pub(super) struct Normalizer {
    /// Steps for the library.
    pub(super) steps: Option<Sequence>,
    pub(super) changes: TextChanges,
    pub(super) growth: usize,
}

/// The steps that change a text before it is split, in order.
#[derive(Clone, Debug, Default)]
pub(in crate::text) struct TextChanges(Vec<TextChange>);

/// One step.
#[derive(Clone, Debug)]
enum TextChange {
    Form(NormalizationForm),
    Lowercase,
    Prepend(String),
    Replace { from: String, to: String },
}

/// A Unicode normalisation form.
#[derive(Clone, Copy, Debug)]
enum NormalizationForm {
    Nfc,
    Nfd,
    Nfkc,
    Nfkd,
}

/// A step in its JSON form.
#[derive(Deserialize)]
#[serde(tag = "type")]
enum NormalizerJson {
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
        pattern: PatternJson,
        content: String,
    },
    Sequence {
        normalizers: Vec<NormalizerJson>,
    },
}

/// Parses the part.
pub(super) fn read(json: Option<&RawValue>) -> Result<Normalizer, String> {
    let mut builder = NormalizerBuilder { steps: Vec::new(), changes: Vec::new(), growth: 1 };
    if let Some(step) = part::<NormalizerJson>(json)? {
        builder.add(step)?;
    }
    let NormalizerBuilder { steps, changes, growth } = builder;
    let steps = (!steps.is_empty()).then(|| Sequence::new(steps));
    Ok(Normalizer { steps, changes: TextChanges(changes), growth })
}

/// Collects steps in both forms.
struct NormalizerBuilder {
    steps: Vec<NormalizerWrapper>,
    changes: Vec<TextChange>,
    growth: usize,
}

impl NormalizerBuilder {
    fn add(&mut self, step: NormalizerJson) -> Result<(), String> {
        let (step, change): (NormalizerWrapper, TextChange) = match step {
            NormalizerJson::Nfc => (NFC.into(), TextChange::Form(NormalizationForm::Nfc)),
            NormalizerJson::Nfd => (NFD.into(), TextChange::Form(NormalizationForm::Nfd)),
            NormalizerJson::Nfkc => (NFKC.into(), TextChange::Form(NormalizationForm::Nfkc)),
            NormalizerJson::Nfkd => (NFKD.into(), TextChange::Form(NormalizationForm::Nfkd)),
            NormalizerJson::Lowercase => (Lowercase.into(), TextChange::Lowercase),
            // The library miscounts characters if the prepended text is empty.
            NormalizerJson::Prepend { prepend } if prepend.is_empty() => return Ok(()),
            NormalizerJson::Prepend { prepend } => {
                check_length(&prepend)?;
                // A text between two added tokens may be one byte long.
                self.growth = multiplied(self.growth, longest_form(&prepend) + 1)?;
                (Prepend::new(prepend.clone()).into(), TextChange::Prepend(prepend))
            }
            NormalizerJson::Replace { pattern, content } => {
                let (from, factor) = replaced(pattern, &content)?;
                self.growth = multiplied(self.growth, factor)?;
                let step = Replace::new(from.clone(), content.clone());
                let step = step.map_err(|error| error.to_string())?;
                (step.into(), TextChange::Replace { from, to: content })
            }
            NormalizerJson::Sequence { normalizers } => {
                return normalizers.into_iter().try_for_each(|step| self.add(step));
            }
        };
        add_step(&mut self.steps, step)?;
        self.changes.push(change);
        Ok(())
    }
}

impl TextChanges {
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

impl TextChange {
    /// Applies the step. Returns `None` if the text is unchanged.
    fn apply(&self, text: &str) -> Option<String> {
        match self {
            // ASCII is in every normalisation form already.
            Self::Form(_) if text.is_ascii() => None,
            Self::Form(NormalizationForm::Nfc) => {
                Some(text.nfc().map(|(character, _)| character).collect())
            }
            Self::Form(NormalizationForm::Nfd) => {
                Some(text.nfd().map(|(character, _)| character).collect())
            }
            Self::Form(NormalizationForm::Nfkc) => {
                Some(text.nfkc().map(|(character, _)| character).collect())
            }
            Self::Form(NormalizationForm::Nfkd) => {
                Some(text.nfkd().map(|(character, _)| character).collect())
            }
            // By character: `str::to_lowercase` depends on word boundaries.
            Self::Lowercase => Some(text.chars().flat_map(char::to_lowercase).collect()),
            Self::Prepend(_) if text.is_empty() => None,
            Self::Prepend(prefix) => Some(format!("{prefix}{text}")),
            Self::Replace { from, .. } if !text.contains(from.as_str()) => None,
            Self::Replace { from, to } => Some(text.replace(from.as_str(), to)),
        }
    }
}
