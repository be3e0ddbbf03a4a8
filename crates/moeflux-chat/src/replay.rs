//! The sampled tokens of answers, for histories that come back.
//!
//! A client sends an answer back as text and calls. The template would write the calls with other
//! whitespace and another order of keys, so everything after them would have to be processed again.
//! Therefore the sampled tokens are kept here, and replace that text (`format/prepare`).
//! **Invariant:** a turn matches only answers with the same content; all answers together stay
//! within a limit of bytes.

use std::collections::VecDeque;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hash, Hasher};
use std::sync::Arc;

use moeflux::TokenId;
use moeflux_schedule::{NewAnswer, Owner, SavedAnswer, SavedAnswers, UsedAnswers};
use serde_json::{Map, Value as Json};

use crate::answer_reader::AnswerStart;
use crate::content;
use crate::conversation::{Assistant, Call};

/// The sampled tokens of answers, least recently used first. A clone shares the answers.
#[derive(Clone, Debug)]
pub(crate) struct ReplayCache {
    n_bytes_max: usize,
    n_bytes: usize,
    random: RandomState,
    /// Where the answers are saved, and whose they are.
    saved: Option<(Arc<SavedAnswers>, Owner)>,
    entries: VecDeque<Arc<CachedAnswer>>,
}

/// Identifies the prompt that an answer belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PromptKey {
    pub(crate) n_tokens: usize,
    hash: u128,
    /// The state in which its answers begin.
    pub(crate) start: AnswerStart,
}

/// An answer and its sampled tokens.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SampledAnswer {
    /// The content as the client received it.
    pub answer: Assistant,
    /// All tokens except the one that ended the answer.
    pub tokens: Vec<TokenId>,
}

/// An answer that may come back.
#[derive(Debug)]
pub(crate) struct CachedAnswer {
    content_hash: u64,
    pub(crate) prompt: PromptKey,
    pub(crate) sampled: SampledAnswer,
}

/// A conversation's prompt in tokens.
#[derive(Clone, Debug)]
pub(crate) struct TokenizedPrompt {
    /// The tokens of the prompt.
    pub tokens: Vec<TokenId>,
    /// The state in which the answer begins.
    pub start: AnswerStart,
    /// Token offsets at which later prompts are likely to diverge.
    pub split_points: Vec<usize>,
    /// The key under which answers to this prompt are kept, if they are.
    pub key: Option<PromptKey>,
    /// The answers whose sampled tokens are part of the prompt.
    pub(crate) replayed: Vec<Arc<CachedAnswer>>,
}

impl TokenizedPrompt {
    /// Returns the number of turns whose tokens are the sampled ones.
    pub(crate) fn n_replayed(&self) -> usize {
        self.replayed.len()
    }
}

impl ReplayCache {
    /// Creates an empty store of at most about `n_bytes_max` bytes.
    pub(crate) fn new(n_bytes_max: usize) -> Self {
        let (random, entries) = (RandomState::new(), VecDeque::new());
        Self { n_bytes_max, n_bytes: 0, random, saved: None, entries }
    }

    /// Creates a store of the answers of an owner that are on a drive, and of later ones, which
    /// [`ReplayCache::keep`] saves there; an empty store if the owner's are not saved.
    pub(crate) fn of_saved(n_bytes_max: usize, saved: &Arc<SavedAnswers>, owner: Owner) -> Self {
        let mut replays = Self::new(n_bytes_max);
        if saved.prompt_hash(owner, &[]).is_none() {
            return replays;
        }
        replays.saved = Some((Arc::clone(saved), owner));
        for SavedAnswer { n_prompt_tokens, prompt_hash: hash, tokens, content } in
            saved.load(owner, n_bytes_max)
        {
            if let Some((answer, start)) = content::of_bytes(&content) {
                let key = PromptKey { n_tokens: n_prompt_tokens, hash, start };
                replays.put(key, SampledAnswer { answer, tokens });
            }
        }
        replays
    }

    /// Returns whether answers are saved on a drive.
    pub(crate) fn is_saved(&self) -> bool {
        self.saved.is_some()
    }

    /// Returns the key of a prompt whose answers begin in the state `start`.
    pub(crate) fn key(&self, tokens: &[TokenId], start: AnswerStart) -> PromptKey {
        PromptKey { n_tokens: tokens.len(), hash: self.hash_of(tokens), start }
    }

    /// Returns whether a key belongs to these tokens.
    pub(crate) fn is_key_of(&self, key: &PromptKey, tokens: &[TokenId]) -> bool {
        key.n_tokens == tokens.len() && key.hash == self.hash_of(tokens)
    }

    fn hash_of(&self, tokens: &[TokenId]) -> u128 {
        let saved =
            self.saved.as_ref().and_then(|(saved, owner)| saved.prompt_hash(*owner, tokens));
        saved.unwrap_or_else(|| u128::from(self.random.hash_one(tokens)))
    }

    /// Keeps an answer to a prompt, and evicts the oldest ones to stay within the limit. The tokens
    /// of the prompt are needed to save the answer.
    pub(crate) fn keep(
        &mut self,
        key: PromptKey,
        prompt: Option<Arc<[TokenId]>>,
        sampled: SampledAnswer,
    ) {
        if let Some(((saved, owner), prompt)) = self.saved.as_ref().zip(prompt) {
            let content = content::to_bytes(&sampled.answer, key.start);
            let tokens = sampled.tokens.clone();
            saved.save(NewAnswer { owner: *owner, prompt, tokens, content });
        }
        self.put(key, sampled);
    }

    fn put(&mut self, prompt: PromptKey, sampled: SampledAnswer) {
        let cached =
            CachedAnswer { content_hash: self.content_hash(&sampled.answer), prompt, sampled };
        if cached.n_bytes() > self.n_bytes_max {
            return;
        }
        self.n_bytes += cached.n_bytes();
        self.entries.push_back(Arc::new(cached));
        while self.n_bytes > self.n_bytes_max {
            let oldest = self.entries.pop_front().expect("what takes bytes is there");
            self.n_bytes -= oldest.n_bytes();
        }
    }

    /// Returns the answers that match a turn, newest first.
    pub(crate) fn find(&self, turn: &Assistant) -> Vec<Arc<CachedAnswer>> {
        let content_hash = self.content_hash(turn);
        let entries =
            self.entries.iter().rev().filter(|cached| cached.content_hash == content_hash);
        entries.filter(|cached| is_same_turn(turn, &cached.sampled.answer)).cloned().collect()
    }

    /// Marks the answers that came back in a prompt as most recently used.
    pub(crate) fn touch(&mut self, prompt: &TokenizedPrompt) {
        for cached in &prompt.replayed {
            if let Some(idx) = self.entries.iter().position(|it| Arc::ptr_eq(it, cached)) {
                self.entries.remove(idx);
                self.entries.push_back(Arc::clone(cached));
            }
        }
        if let Some((saved, owner)) = self.saved.as_ref().filter(|_| !prompt.replayed.is_empty()) {
            let place = |cached: &Arc<CachedAnswer>| {
                let begin = cached.prompt.n_tokens;
                begin..begin + cached.sampled.tokens.len()
            };
            let places = prompt.replayed.iter().map(place).collect();
            let prompt = prompt.tokens.clone();
            saved.mark_used(UsedAnswers { owner: *owner, prompt, places });
        }
    }

    /// Hashes the id of the first call, or the text of an answer without calls.
    fn content_hash(&self, answer: &Assistant) -> u64 {
        let mut hasher = self.random.build_hasher();
        match answer.calls.first() {
            Some(call) => (true, &call.id).hash(&mut hasher),
            None => (false, answer.text.trim()).hash(&mut hasher),
        }
        hasher.finish()
    }
}

impl CachedAnswer {
    fn n_bytes(&self) -> usize {
        let SampledAnswer { answer, tokens, .. } = &self.sampled;
        let of_call = |call: &Call| call.id.len() + call.name.len() + json_bytes(&call.arguments);
        let thoughts = answer.thoughts.as_ref().map_or(0, String::len);
        let texts = answer.text.len() + thoughts + answer.calls.iter().map(of_call).sum::<usize>();
        size_of::<Self>() + texts + size_of_val(&tokens[..])
    }
}

/// Returns the approximate memory of a table in bytes.
fn json_bytes(members: &Map<String, Json>) -> usize {
    members.iter().map(|(key, value)| key.len() + value_bytes(value)).sum()
}

fn value_bytes(value: &Json) -> usize {
    let below = match value {
        Json::String(text) => text.len(),
        Json::Array(values) => values.iter().map(value_bytes).sum(),
        Json::Object(members) => json_bytes(members),
        _ => 0,
    };
    2 * size_of::<Json>() + below
}

/// Returns whether a turn of a history has the content of an answer. Thoughts are compared
/// separately, where the template shows them.
fn is_same_turn(turn: &Assistant, answer: &Assistant) -> bool {
    is_same_content(turn, answer) && has_same_ids(turn, answer)
}

fn has_same_ids(turn: &Assistant, answer: &Assistant) -> bool {
    turn.calls.iter().zip(&answer.calls).all(|(a, b)| a.id == b.id)
}

/// Returns whether text and calls are the same, except for whitespace around the text and for ids.
pub(crate) fn is_same_content(a: &Assistant, b: &Assistant) -> bool {
    let is_same_call =
        |(a, b): (&Call, &Call)| a.name == b.name && are_same_members(&a.arguments, &b.arguments);
    a.text.trim() == b.text.trim()
        && a.calls.len() == b.calls.len()
        && a.calls.iter().zip(&b.calls).all(is_same_call)
}

/// Compares values loosely: some clients read 1.0 and write 1, and keys have no order.
fn is_same_json(a: &Json, b: &Json) -> bool {
    match (a, b) {
        (Json::Number(a), Json::Number(b)) => a == b || a.as_f64() == b.as_f64(),
        (Json::Array(a), Json::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| is_same_json(a, b))
        }
        (Json::Object(a), Json::Object(b)) => are_same_members(a, b),
        _ => a == b,
    }
}

fn are_same_members(a: &Map<String, Json>, b: &Map<String, Json>) -> bool {
    let is_in_b =
        |(key, value): (&String, &Json)| b.get(key).is_some_and(|it| is_same_json(value, it));
    a.len() == b.len() && a.iter().all(is_in_b)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn answer(text: &str, calls: &[(&str, Json)]) -> Assistant {
        let call = |(id, arguments): &(&str, Json)| {
            Call::from_text((*id).to_owned(), "f".to_owned(), &arguments.to_string())
        };
        let calls = calls.iter().map(call).collect();
        Assistant { thoughts: None, text: text.to_owned(), calls }
    }

    fn sampled(answer: Assistant) -> SampledAnswer {
        SampledAnswer { answer, tokens: vec![TokenId(1); 10] }
    }

    #[test]
    fn an_answer_is_found_by_its_contents() {
        let mut replays = ReplayCache::new(1 << 20);
        let key = replays.key(&[TokenId(5)], AnswerStart::Text);
        let said = answer("Text", &[("c1", json!({"a": 1, "b": [2.0, {"c": "x"}]}))]);
        replays.keep(key.clone(), None, sampled(said));
        replays.keep(key, None, sampled(answer("Only text", &[])));
        let is_found = |turn: &Assistant| !replays.find(turn).is_empty();
        assert!(is_found(&answer(" Text\n", &[("c1", json!({"b": [2, {"c": "x"}], "a": 1}))])));
        assert!(is_found(&answer("Only text ", &[])));
        for other in [
            answer("Text", &[("c2", json!({"a": 1, "b": [2.0, {"c": "x"}]}))]),
            answer("Text", &[("c1", json!({"a": 2, "b": [2.0, {"c": "x"}]}))]),
            answer("Text", &[("c1", json!({"a": 1}))]),
            answer("Other", &[("c1", json!({"a": 1, "b": [2.0, {"c": "x"}]}))]),
            answer("Only", &[]),
        ] {
            assert!(!is_found(&other), "{other:?}");
        }
    }

    #[test]
    fn the_least_recently_used_answer_is_dropped() {
        let one = CachedAnswer {
            content_hash: 0,
            prompt: ReplayCache::new(0).key(&[], AnswerStart::Text),
            sampled: sampled(answer("0", &[])),
        };
        let mut replays = ReplayCache::new(3 * one.n_bytes());
        for text in ["0", "1", "2", "3"] {
            let key = replays.key(&[], AnswerStart::Text);
            replays.keep(key, None, sampled(answer(text, &[])));
            let replayed = replays.find(&answer("0", &[]));
            let (start, key) = (AnswerStart::Text, None);
            let (tokens, split_points) = (Vec::new(), Vec::new());
            replays.touch(&TokenizedPrompt { tokens, start, split_points, key, replayed });
        }
        let is_kept = |text: &&str| !replays.find(&answer(text, &[])).is_empty();
        let left: Vec<&str> = ["0", "1", "2", "3"].into_iter().filter(is_kept).collect();
        assert_eq!(left, ["0", "2", "3"]);
        let mut none = ReplayCache::new(10);
        none.keep(none.key(&[], AnswerStart::Text), None, sampled(answer("0", &[])));
        assert!(none.find(&answer("0", &[])).is_empty());
    }
}
