//! Parses `post_processor` into the tokens that are added around a text.
//!
//! **Invariant:** each token has the id of its text in the vocabulary. Pairs of texts, and the
//! offsets that some of these parts adjust, are not supported.

use std::collections::HashMap;

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::ids::TokenId;
use crate::text::files::shown;
use crate::text::pipeline::added::AddedTokens;
use crate::text::pipeline::model::Vocabulary;
use crate::text::pipeline::part;

/// Maximum tokens on either side; the published ones have one.
const AROUND_MAX: usize = 64;

/// The tokens before and after a text.
#[derive(Clone, Debug, Default)]
pub(in crate::text) struct Around {
    pub(in crate::text) before: Vec<TokenId>,
    pub(in crate::text) behind: Vec<TokenId>,
    texts: Vec<(TokenId, String)>,
}

#[derive(Deserialize)]
#[serde(tag = "type")]
enum Step {
    // Adjusts offsets only.
    ByteLevel,
    BertProcessing { sep: (String, u32), cls: (String, u32) },
    RobertaProcessing { sep: (String, u32), cls: (String, u32) },
    TemplateProcessing { single: Vec<Piece>, special_tokens: HashMap<String, Special> },
    Sequence { processors: Vec<Step> },
}

#[derive(Deserialize)]
enum Piece {
    Sequence { id: String },
    SpecialToken { id: String },
}

#[derive(Deserialize)]
struct Special {
    ids: Vec<u32>,
    tokens: Vec<String>,
}

/// Parses the part.
pub(super) fn read(json: Option<&RawValue>) -> Result<Around, String> {
    let mut around = Around::default();
    if let Some(step) = part::<Step>(json)? {
        around.add(step)?;
    }
    Ok(around)
}

impl Around {
    fn add(&mut self, step: Step) -> Result<(), String> {
        match step {
            Step::ByteLevel => Ok(()),
            Step::BertProcessing { sep, cls } | Step::RobertaProcessing { sep, cls } => {
                self.put(&[vec![cls], vec![sep]])
            }
            Step::TemplateProcessing { single, special_tokens } => {
                self.put(&template(single, &special_tokens)?)
            }
            Step::Sequence { processors } => {
                processors.into_iter().try_for_each(|step| self.add(step))
            }
        }
    }

    /// Adds tokens around the present ones: the first list before them, the second after them.
    fn put(&mut self, [before, behind]: &[Vec<(String, u32)>; 2]) -> Result<(), String> {
        let ids = |tokens: &[(String, u32)]| tokens.iter().map(|(_, id)| TokenId(*id)).collect();
        let mut outer: Vec<TokenId> = ids(before);
        outer.append(&mut self.before);
        self.before = outer;
        self.behind.extend::<Vec<TokenId>>(ids(behind));
        if self.before.len() > AROUND_MAX || self.behind.len() > AROUND_MAX {
            return Err(format!("more than {AROUND_MAX} tokens before or behind a text"));
        }
        let texts = before.iter().chain(behind).map(|(text, id)| (TokenId(*id), text.clone()));
        self.texts.extend(texts);
        Ok(())
    }

    /// Checks the tokens against the vocabulary.
    pub(super) fn check(&self, vocabulary: &Vocabulary, added: &AddedTokens) -> Result<(), String> {
        for (id, text) in &self.texts {
            let known = added.id_of(text).or_else(|| vocabulary.id_of(text));
            if known != Some(*id) {
                return Err(format!(
                    "token `{}` should have id {}, but {}",
                    shown(text),
                    id.0,
                    known.map_or("there is none".to_owned(), |id| format!("it has {}", id.0))
                ));
            }
        }
        Ok(())
    }
}

/// Returns the tokens before and after the text in a template.
fn template(
    pieces: Vec<Piece>,
    special: &HashMap<String, Special>,
) -> Result<[Vec<(String, u32)>; 2], String> {
    let mut before = Vec::new();
    let mut behind = None;
    for piece in pieces {
        match piece {
            Piece::Sequence { id } if id == "A" && behind.is_none() => behind = Some(Vec::new()),
            Piece::Sequence { id } => {
                return Err(format!(
                    "a template for one text that has text `{}` as well",
                    shown(&id)
                ));
            }
            Piece::SpecialToken { id } => {
                let Some(token) = special.get(&id) else {
                    return Err(format!(
                        "its template names `{}`, which it does not define",
                        shown(&id)
                    ));
                };
                if token.ids.len() != token.tokens.len() {
                    return Err(format!("`{}` has unequal numbers of ids and tokens", shown(&id)));
                }
                let side = behind.as_mut().unwrap_or(&mut before);
                side.extend(token.tokens.iter().cloned().zip(token.ids.iter().copied()));
            }
        }
    }
    behind.map(|behind| [before, behind]).ok_or_else(|| "a template without a text".to_owned())
}
