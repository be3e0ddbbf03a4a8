//! Parses `post_processor` into the tokens that are added around a text.
//!
//! **Invariant:** each token has the id of its text in the vocabulary. Pairs of texts, and the
//! offsets that some of these parts adjust, are not supported.

use std::collections::HashMap;

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::ids::TokenId;
use crate::text::files::shortened;
use crate::text::tokenizer::pipeline::added::AddedTokens;
use crate::text::tokenizer::pipeline::model::VocabularyMap;
use crate::text::tokenizer::pipeline::part;

/// Maximum tokens on either side; the published ones have one.
const SURROUNDING_MAX: usize = 64;

/// The tokens before and after a text.
#[derive(Clone, Debug, Default)]
pub(in crate::text) struct SurroundingTokens {
    pub(in crate::text) before: Vec<TokenId>,
    pub(in crate::text) after: Vec<TokenId>,
    texts: Vec<(TokenId, String)>,
}

/// A step in its JSON form.
#[derive(Deserialize)]
#[serde(tag = "type")]
enum PostProcessorJson {
    // Adjusts offsets only.
    ByteLevel,
    BertProcessing {
        sep: (String, u32),
        cls: (String, u32),
    },
    RobertaProcessing {
        sep: (String, u32),
        cls: (String, u32),
    },
    TemplateProcessing {
        single: Vec<TemplatePiece>,
        special_tokens: HashMap<String, SpecialTokenJson>,
    },
    Sequence {
        processors: Vec<PostProcessorJson>,
    },
}

/// A piece of a template: the text or a token.
#[derive(Deserialize)]
enum TemplatePiece {
    Sequence { id: String },
    SpecialToken { id: String },
}

/// A token of a template in its JSON form.
#[derive(Deserialize)]
struct SpecialTokenJson {
    ids: Vec<u32>,
    tokens: Vec<String>,
}

/// Parses the part.
pub(super) fn read(json: Option<&RawValue>) -> Result<SurroundingTokens, String> {
    let mut surrounding = SurroundingTokens::default();
    if let Some(step) = part::<PostProcessorJson>(json)? {
        surrounding.add(step)?;
    }
    Ok(surrounding)
}

impl SurroundingTokens {
    fn add(&mut self, step: PostProcessorJson) -> Result<(), String> {
        match step {
            PostProcessorJson::ByteLevel => Ok(()),
            PostProcessorJson::BertProcessing { sep, cls }
            | PostProcessorJson::RobertaProcessing { sep, cls } => {
                self.put(&[vec![cls], vec![sep]])
            }
            PostProcessorJson::TemplateProcessing { single, special_tokens } => {
                self.put(&template(single, &special_tokens)?)
            }
            PostProcessorJson::Sequence { processors } => {
                processors.into_iter().try_for_each(|step| self.add(step))
            }
        }
    }

    /// Adds tokens around the present ones: the first list before them, the second after them.
    fn put(&mut self, [before, after]: &[Vec<(String, u32)>; 2]) -> Result<(), String> {
        let ids = |tokens: &[(String, u32)]| tokens.iter().map(|(_, id)| TokenId(*id)).collect();
        let mut outer: Vec<TokenId> = ids(before);
        outer.append(&mut self.before);
        self.before = outer;
        self.after.extend::<Vec<TokenId>>(ids(after));
        if self.before.len() > SURROUNDING_MAX || self.after.len() > SURROUNDING_MAX {
            return Err(format!("more than {SURROUNDING_MAX} tokens before or after a text"));
        }
        let texts = before.iter().chain(after).map(|(text, id)| (TokenId(*id), text.clone()));
        self.texts.extend(texts);
        Ok(())
    }

    /// Checks the tokens against the vocabulary.
    pub(super) fn check(
        &self,
        vocabulary: &VocabularyMap,
        added: &AddedTokens,
    ) -> Result<(), String> {
        for (id, text) in &self.texts {
            let known = added.id_of(text).or_else(|| vocabulary.id_of(text));
            if known != Some(*id) {
                return Err(format!(
                    "token `{}` should have id {}, but {}",
                    shortened(text),
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
    pieces: Vec<TemplatePiece>,
    special: &HashMap<String, SpecialTokenJson>,
) -> Result<[Vec<(String, u32)>; 2], String> {
    let mut before = Vec::new();
    let mut after = None;
    for piece in pieces {
        match piece {
            TemplatePiece::Sequence { id } if id == "A" && after.is_none() => {
                after = Some(Vec::new());
            }
            TemplatePiece::Sequence { id } => {
                return Err(format!(
                    "a template for one text that has text `{}` as well",
                    shortened(&id)
                ));
            }
            TemplatePiece::SpecialToken { id } => {
                let Some(token) = special.get(&id) else {
                    return Err(format!(
                        "its template names `{}`, which it does not define",
                        shortened(&id)
                    ));
                };
                if token.ids.len() != token.tokens.len() {
                    return Err(format!(
                        "`{}` has unequal numbers of ids and tokens",
                        shortened(&id)
                    ));
                }
                let side = after.as_mut().unwrap_or(&mut before);
                side.extend(token.tokens.iter().cloned().zip(token.ids.iter().copied()));
            }
        }
    }
    after.map(|after| [before, after]).ok_or_else(|| "a template without a text".to_owned())
}
