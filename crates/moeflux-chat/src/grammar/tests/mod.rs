//! Checks token by token which answers are allowed: thoughts, schemas, grammars, calls.

mod bare;
mod calls;
mod forms;
mod harmony;
mod random;
mod repeats;
mod schemas;
mod thoughts;

use std::path::Path;
use std::sync::Arc;

use moeflux::provider::text::{byte_tokenizer_config_json, byte_tokenizer_json};
use moeflux::sample::LogitMask;
use moeflux::{ModelText, TokenId};
use moeflux_testing::temp_dir::TempDir;
use serde_json::Value as Json;

use super::*;

/// Rows of the embedding; checkpoints pad them beyond the number of tokens.
const N_LOGITS: usize = 300;
/// The token that ends answers. Token n below 256 is byte n.
const END: TokenId = TokenId(256);
const END_TEXT: &str = "<|im_end|>";

/// Creates a model with a token per byte, then `<|im_end|>`, then these special and visible tokens.
fn model_of(special: &[&str], visible: &[&str]) -> Arc<ModelText> {
    model_of_config(special, visible, &json!({}))
}

fn model_of_config(special: &[&str], visible: &[&str], config: &Json) -> Arc<ModelText> {
    let folder = TempDir::new();
    let added: Vec<&str> = [END_TEXT].iter().chain(special).chain(visible).copied().collect();
    let mut tokenizer = byte_tokenizer_json(N_LOGITS, &added);
    for token in
        tokenizer["added_tokens"].as_array_mut().unwrap().iter_mut().skip(1 + special.len())
    {
        token["special"] = Json::Bool(false);
    }
    folder.write("tokenizer.json", tokenizer.to_string());
    folder.write("config.json", config.to_string());
    let tokenizer_config = byte_tokenizer_config_json(Some(END_TEXT));
    folder.write("tokenizer_config.json", tokenizer_config.to_string());
    Arc::new(ModelText::open(folder.path(), N_LOGITS).unwrap())
}

/// Creates a model of which these tokens end answers as well.
fn model_with_ends(special: &[&str], ends: &[&str]) -> Arc<ModelText> {
    let ids = ends.iter().map(|end| 257 + special.iter().position(|it| it == end).unwrap());
    model_of_config(special, &[], &json!({"eos_token_id": ids.collect::<Vec<_>>()}))
}

/// Rows of the demo model's embedding.
const DEMO_VOCAB: usize = 8_192;

/// Opens the bundled model, which has longer tokens, and markers of calls that are not tokens.
fn demo() -> Arc<ModelText> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../moeflux-demo/model");
    Arc::new(ModelText::open(&folder, DEMO_VOCAB).unwrap())
}

fn plain(text: &str) -> Vec<TokenId> {
    text.bytes().map(|byte| TokenId(byte.into())).collect()
}

/// Returns the tokens that may come next.
fn allowed(constraint: &mut Constraint, n_logits: usize) -> Vec<TokenId> {
    let mut logits = vec![0.0; n_logits];
    constraint.apply(&mut logits);
    assert_eq!(constraint.failure(), None);
    let ids = (0..).map(TokenId).zip(&logits);
    ids.filter(|(_, logit)| **logit > f32::NEG_INFINITY).map(|(token, _)| token).collect()
}

/// The outcome of offering tokens to a constraint.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Fate {
    /// All tokens were accepted, and the answer may end there.
    Whole,
    /// All tokens were accepted, and the answer may not end yet.
    Unfinished,
    /// A token was rejected after this number of accepted ones.
    Stopped(usize),
}

/// Offers tokens in turn.
fn offer(constraint: &mut Constraint, tokens: &[TokenId], n_logits: usize) -> Fate {
    for (n_taken, token) in tokens.iter().enumerate() {
        let mut logits = vec![0.0; n_logits];
        constraint.apply(&mut logits);
        if constraint.failure().is_some() || logits[token.0 as usize] == f32::NEG_INFINITY {
            return Fate::Stopped(n_taken);
        }
        constraint.accept(*token);
        assert_eq!(constraint.failure(), None, "a token that was allowed is taken");
    }
    if constraint.may_end() { Fate::Whole } else { Fate::Unfinished }
}

fn forced(constraint: &mut Constraint) -> Vec<TokenId> {
    let mut tokens = Vec::new();
    constraint.forced(&mut tokens);
    tokens
}

fn text_of(model: &ModelText, tokens: &[TokenId]) -> String {
    let bytes = tokens.iter().flat_map(|it| model.tokenizer().token_bytes(*it)).collect();
    String::from_utf8(bytes).unwrap()
}

/// Creates a constraint on the form alone.
fn form_constraint(model: &Arc<ModelText>, form: AnswerForm) -> Constraint {
    let rules = AnswerRules { form, ..AnswerRules::default() };
    let grammars = Grammars::new(model.clone(), None);
    grammars.constraint(&rules, &[], AnswerStart::Text).unwrap().unwrap()
}
