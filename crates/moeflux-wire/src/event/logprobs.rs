//! Log-probabilities in the shapes of the dialects.
//!
//! **Invariant:** every number is finite; minus infinity becomes -9999, as in the API of `OpenAI`.

use serde_json::{Map, Value as Json, json};

use crate::event::{TokenLogprob, TokenText};

const IMPOSSIBLE: f32 = -9999.0;

/// Returns the list `content` of Chat Completions, or `logprobs` of Responses. Neither echoes a
/// prompt, so every token has a log-probability.
pub(crate) fn list(tokens: &[TokenLogprob]) -> Vec<Json> {
    let one = |it: &TokenLogprob| {
        let top: Vec<Json> = it.top.iter().map(|(token, logprob)| entry(token, *logprob)).collect();
        let mut found = entry(&it.token, it.logprob.unwrap_or(IMPOSSIBLE));
        found["top_logprobs"] = top.into();
        found
    };
    tokens.iter().map(one).collect()
}

/// Appends the entries of [`list`] to a text, separated by commas.
pub(crate) fn append(tokens: &[TokenLogprob], text: &mut String) {
    for entry in tokens.iter().flat_map(|it| list(std::slice::from_ref(it))) {
        if !text.is_empty() {
            text.push(',');
        }
        text.push_str(&entry.to_string());
    }
}

fn entry(token: &TokenText, logprob: f32) -> Json {
    json!({"token": token.text, "logprob": finite(logprob), "bytes": token.bytes})
}

/// The table of Completions, with one column per token.
#[derive(Clone, Debug, Default)]
pub(crate) struct LogprobColumns {
    tokens: Vec<Json>,
    logprobs: Vec<Json>,
    top: Vec<Json>,
    offsets: Vec<Json>,
    /// The number of characters of all tokens so far.
    offset: usize,
}

impl LogprobColumns {
    /// Appends tokens.
    pub(crate) fn push(&mut self, tokens: &[TokenLogprob]) {
        for it in tokens {
            self.tokens.push(it.token.text.as_str().into());
            self.logprobs.push(it.logprob.map_or(Json::Null, |it| finite(it).into()));
            self.top.push(top(it));
            self.offsets.push(self.offset.into());
            self.offset += it.token.text.chars().count();
        }
    }

    /// Takes the table; the offsets of the next one continue.
    pub(crate) fn take(&mut self) -> Json {
        json!({
            "tokens": std::mem::take(&mut self.tokens),
            "token_logprobs": std::mem::take(&mut self.logprobs),
            "top_logprobs": std::mem::take(&mut self.top),
            "text_offset": std::mem::take(&mut self.offsets),
        })
    }
}

/// Maps texts to log-probabilities, including the chosen token. Of several tokens with the same
/// text, the most likely counts.
fn top(it: &TokenLogprob) -> Json {
    let Some(logprob) = it.logprob else { return Json::Null };
    let mut found = Map::new();
    for (token, logprob) in
        it.top.iter().map(|(token, it)| (token, *it)).chain([(&it.token, logprob)])
    {
        found.entry(token.text.as_str()).or_insert_with(|| finite(logprob).into());
    }
    found.into()
}

fn finite(logprob: f32) -> f32 {
    if logprob.is_finite() { logprob } else { IMPOSSIBLE }
}
