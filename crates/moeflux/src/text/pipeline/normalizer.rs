//! Turns `normalizer` into steps of the library that change a text before it is split.
//!
//! **Invariant:** all steps together multiply a text at most `growth` times, besides what Unicode's
//! own forms do (a ligature of 3 bytes may become 33).

use serde::Deserialize;
use serde_json::value::RawValue;
use tokenizers::NormalizerWrapper;
use tokenizers::normalizers::{Lowercase, NFC, NFD, NFKC, NFKD, Prepend, Replace, Sequence};

use crate::text::pipeline::{
    PatternText, add_step, check_length, longest_form, multiplied, part, replaced,
};

/// The steps, if there are any, and how often they multiply a text.
pub(super) struct Normalizer {
    pub(super) steps: Option<Sequence>,
    pub(super) growth: usize,
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

/// Reads the part.
pub(super) fn read(json: Option<&RawValue>) -> Result<Normalizer, String> {
    let mut steps = Vec::new();
    let mut growth = 1;
    if let Some(step) = part::<Step>(json)? {
        add(&mut steps, &mut growth, step)?;
    }
    let steps = (!steps.is_empty()).then(|| Sequence::new(steps));
    Ok(Normalizer { steps, growth })
}

fn add(steps: &mut Vec<NormalizerWrapper>, growth: &mut usize, step: Step) -> Result<(), String> {
    let step: NormalizerWrapper = match step {
        Step::Nfc => NFC.into(),
        Step::Nfd => NFD.into(),
        Step::Nfkc => NFKC.into(),
        Step::Nfkd => NFKD.into(),
        Step::Lowercase => Lowercase.into(),
        // The library loses count of its characters when nothing is put in front.
        Step::Prepend { prepend } if prepend.is_empty() => return Ok(()),
        Step::Prepend { prepend } => {
            check_length(&prepend)?;
            // A text between two added tokens may be one byte long.
            *growth = multiplied(*growth, longest_form(&prepend) + 1)?;
            Prepend::new(prepend).into()
        }
        Step::Replace { pattern, content } => {
            let (pattern, factor) = replaced(pattern, &content)?;
            *growth = multiplied(*growth, factor)?;
            Replace::new(pattern, content).map_err(|error| error.to_string())?.into()
        }
        Step::Sequence { normalizers } => {
            return normalizers.into_iter().try_for_each(|step| add(steps, growth, step));
        }
    };
    add_step(steps, step)
}
