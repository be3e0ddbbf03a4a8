//! An answer as it arrives: turns tokens and their text into parts, and collects the whole answer.
//!
//! **Invariant:** the parts of an answer have the same content as [`FinishedAnswer::said`], in the
//! same order. An answer is kept for later histories only if the model ended it and every part of
//! it can be represented in a history. Cut calls are reported by name and never handed out.

use std::sync::Arc;

use moeflux::{Finish, TokenId};

use crate::answer_reader::{AnswerReader, HiddenMarkers};
use crate::conversation::{Assistant, Call};
use crate::piece::{AnswerPiece, AnswerStage};
use crate::replay::{PromptKey, SampledAnswer};

/// A part of an answer, emitted once it is certain. Calls are counted from 0.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AnswerPart {
    /// More of the thoughts before the answer.
    Thought(String),
    /// More of the answer's text.
    Text(String),
    /// A call of an offered tool begins.
    CallBegun {
        /// The index of the call.
        call_idx: usize,
        /// An id that is unique in the conversation: see [`crate::PreparedPrompt::answer`].
        id: String,
        /// The tool's [`crate::Tool::name`].
        name: String,
    },
    /// More of a call's arguments, which concatenated are one JSON object.
    CallArguments {
        /// The index of the call.
        call_idx: usize,
        /// The next part of the arguments.
        text: String,
    },
    /// A call is complete.
    CallEnded {
        /// The index of the call.
        call_idx: usize,
        /// The tool's [`crate::Tool::name`].
        name: String,
        /// The arguments as JSON, as the model wrote them; empty if it wrote none.
        arguments: String,
    },
    /// A call ends here incomplete. It must not be executed.
    CallCut {
        /// The index of the call.
        call_idx: usize,
        /// The tool's [`crate::Tool::name`].
        name: String,
    },
}

/// An answer that is still arriving.
#[derive(Clone, Debug)]
pub struct Answer {
    reader: AnswerReader,
    markers: HiddenMarkers,
    /// The prefix of call ids, before an underscore and a number.
    call_stem: String,
    /// The number of the first call.
    first_call_number: usize,
    /// Name and arguments of the call that has begun but not ended.
    call: Option<(String, String)>,
    n_calls: usize,
    said: Assistant,
    cut_calls: Vec<String>,
    tokens: Vec<TokenId>,
    n_thought_tokens: usize,
    /// Whether a part cannot be represented in a history.
    is_unreplayable: bool,
    finish: Option<Finish>,
    replay: Option<ReplayKey>,
}

/// The owner and key under which an answer is kept for later histories.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ReplayKey {
    pub(crate) owner: usize,
    pub(crate) key: PromptKey,
    /// The tokens of the prompt, if the answer is to be saved on a drive.
    pub(crate) prompt: Option<Arc<[TokenId]>>,
}

/// A finished answer.
#[derive(Clone, Debug)]
pub struct FinishedAnswer {
    /// The answer as a turn of a history.
    pub said: Assistant,
    /// The names of the tools in incomplete calls.
    pub cut_calls: Vec<String>,
    /// The number of its tokens, without the one that ended it.
    pub n_tokens: usize,
    /// The number of those tokens that belong to thoughts.
    pub n_thought_tokens: usize,
    /// Why it ended; `None` if it was abandoned before its end.
    pub finish: Option<Finish>,
    /// The answer for [`crate::Chat::keep`]; `None` if it must not be kept.
    pub kept: Option<KeptAnswer>,
}

/// An answer with its sampled tokens, for [`crate::Chat::keep`].
#[derive(Clone, Debug)]
pub struct KeptAnswer {
    pub(crate) replay_key: ReplayKey,
    pub(crate) sampled: SampledAnswer,
}

impl Answer {
    /// Creates an answer whose text is parsed by `reader`. The ids of its calls are `call_stem`, an
    /// underscore and a number that counts from 0.
    #[must_use]
    pub fn new(reader: AnswerReader, markers: HiddenMarkers, call_stem: &str) -> Self {
        Self {
            reader,
            markers,
            call_stem: call_stem.to_owned(),
            first_call_number: 0,
            call: None,
            n_calls: 0,
            said: Assistant::default(),
            cut_calls: Vec::new(),
            tokens: Vec::new(),
            n_thought_tokens: 0,
            is_unreplayable: false,
            finish: None,
            replay: None,
        }
    }

    /// Sets the number in the id of the first call.
    pub(crate) fn with_calls_from(self, first_call_number: usize) -> Self {
        Self { first_call_number, ..self }
    }

    /// Sets the owner and key under which the answer is kept for later histories.
    pub(crate) fn kept_at(self, replay: Option<ReplayKey>) -> Self {
        Self { replay, ..self }
    }

    /// Takes a sampled token that does not end the answer; `text` became certain with it.
    pub fn token(&mut self, token: TokenId, text: &str) -> Vec<AnswerPart> {
        let before = self.reader.stage();
        let pieces = self.reader.push(self.markers.text(token).unwrap_or(text));
        self.tokens.push(token);
        if before == AnswerStage::Thought || self.reader.stage() == AnswerStage::Thought {
            self.n_thought_tokens += 1;
        }
        self.parts(pieces)
    }

    /// Takes more text that became certain.
    pub fn text(&mut self, text: &str) -> Vec<AnswerPart> {
        let pieces = self.reader.push(text);
        self.parts(pieces)
    }

    /// Ends the answer, with the text that had been held back.
    pub fn end(&mut self, rest: &str, finish: Finish) -> Vec<AnswerPart> {
        let mut pieces = self.reader.push(rest);
        pieces.extend(match finish {
            Finish::EndToken => self.reader.finish(),
            _ => self.reader.finish_cut(),
        });
        self.finish = Some(finish);
        self.parts(pieces)
    }

    /// Returns the stage that the answer has reached.
    #[must_use]
    pub fn stage(&self) -> AnswerStage {
        self.reader.stage()
    }

    /// Returns whether a call has begun but not ended.
    #[must_use]
    pub fn is_in_call(&self) -> bool {
        self.call.is_some()
    }

    /// Returns the number of calls so far, including cut ones.
    #[must_use]
    pub fn n_calls(&self) -> usize {
        self.n_calls
    }

    /// Returns whether a call was cut.
    #[must_use]
    pub fn has_cut_call(&self) -> bool {
        !self.cut_calls.is_empty()
    }

    /// Returns the number of tokens so far.
    #[must_use]
    pub fn n_tokens(&self) -> usize {
        self.tokens.len()
    }

    /// Returns the number of those tokens that belong to thoughts.
    #[must_use]
    pub fn n_thought_tokens(&self) -> usize {
        self.n_thought_tokens
    }

    /// Takes the answer for later histories, after [`Answer::end`]; `None` if it must not be kept.
    pub fn take_kept(&mut self) -> Option<KeptAnswer> {
        let is_whole =
            self.finish == Some(Finish::EndToken) && !self.is_unreplayable && self.call.is_none();
        let replay_key = self.replay.take().filter(|_| is_whole)?;
        let sampled = SampledAnswer { answer: self.said.clone(), tokens: self.tokens.clone() };
        Some(KeptAnswer { replay_key, sampled })
    }

    /// Returns the whole answer, after [`Answer::end`]; before that, the answer so far.
    #[must_use]
    pub fn finished(mut self) -> FinishedAnswer {
        let kept = self.take_kept();
        let Self { said, cut_calls, tokens, n_thought_tokens, finish, .. } = self;
        FinishedAnswer { said, cut_calls, n_tokens: tokens.len(), n_thought_tokens, finish, kept }
    }

    fn parts(&mut self, pieces: Vec<AnswerPiece>) -> Vec<AnswerPart> {
        pieces.into_iter().filter_map(|piece| self.part(piece)).collect()
    }

    fn part(&mut self, piece: AnswerPiece) -> Option<AnswerPart> {
        match piece {
            AnswerPiece::Thought(text) => {
                self.said.thoughts.get_or_insert_default().push_str(&text);
                Some(AnswerPart::Thought(text))
            }
            AnswerPiece::Text(text) => {
                self.is_unreplayable |= !self.said.calls.is_empty() && !text.trim().is_empty();
                self.said.text.push_str(&text);
                Some(AnswerPart::Text(text))
            }
            AnswerPiece::Call { name, .. } => {
                let call_idx = self.n_calls;
                self.n_calls += 1;
                self.call = Some((name.clone(), String::new()));
                Some(AnswerPart::CallBegun { call_idx, id: self.call_id(call_idx), name })
            }
            AnswerPiece::Arguments(text) => {
                let (_, arguments) = self.call.as_mut()?;
                arguments.push_str(&text);
                Some(AnswerPart::CallArguments { call_idx: self.n_calls - 1, text })
            }
            AnswerPiece::CallEnd => {
                let (name, arguments) = self.call.take()?;
                let call_idx = self.n_calls - 1;
                let call = Call::from_text(self.call_id(call_idx), name.clone(), &arguments);
                self.said.calls.push(call);
                Some(AnswerPart::CallEnded { call_idx, name, arguments })
            }
            AnswerPiece::CallCut => {
                self.is_unreplayable = true;
                let (name, _) = self.call.take()?;
                self.cut_calls.push(name.clone());
                Some(AnswerPart::CallCut { call_idx: self.n_calls - 1, name })
            }
        }
    }

    fn call_id(&self, call_idx: usize) -> String {
        format!("{}_{}", self.call_stem, self.first_call_number + call_idx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answer_reader::AnswerStart;
    use crate::thoughts::ThoughtFormat;

    fn call(name: &str) -> AnswerPiece {
        AnswerPiece::Call { name: name.into(), id: None }
    }

    fn answer() -> Answer {
        let reader = AnswerReader::new(AnswerStart::Open, ThoughtFormat::usual());
        let replays = crate::replay::ReplayCache::new(0);
        let replay_key =
            ReplayKey { owner: 0, key: replays.key(&[], AnswerStart::Open), prompt: None };
        Answer::new(reader, HiddenMarkers::default(), "c").kept_at(Some(replay_key))
    }

    #[test]
    fn what_was_said_is_what_the_parts_say() {
        let mut answer = answer();
        let parts = answer.parts(vec![
            AnswerPiece::Thought("T".into()),
            AnswerPiece::Text("a".into()),
            AnswerPiece::Text("b".into()),
            call("f"),
            AnswerPiece::Arguments("{\"a\":".into()),
            AnswerPiece::Arguments(" 1.50}".into()),
            AnswerPiece::CallEnd,
            AnswerPiece::Text("\n".into()),
        ]);
        let begun = AnswerPart::CallBegun { call_idx: 0, id: "c_0".into(), name: "f".into() };
        let arguments = "{\"a\": 1.50}".to_owned();
        let ended = AnswerPart::CallEnded { call_idx: 0, name: "f".into(), arguments };
        assert_eq!((&parts[3], &parts[6], parts.len()), (&begun, &ended, 8));
        assert!(answer.end("", Finish::EndToken).is_empty());
        let FinishedAnswer { said, cut_calls, kept, .. } = answer.finished();
        assert_eq!((said.thoughts.as_deref(), said.text.as_str()), (Some("T"), "ab\n"));
        assert_eq!(said.calls, [Call::from_text("c_0".into(), "f".into(), "{\"a\": 1.5}")]);
        assert_eq!((cut_calls.len(), kept.unwrap().sampled.answer), (0, said));
    }

    #[test]
    fn what_has_no_place_in_a_history_is_not_kept() {
        let whole = || vec![call("f"), AnswerPiece::CallEnd];
        let cut = || vec![call("f"), AnswerPiece::Arguments("{".into()), AnswerPiece::CallCut];
        for (pieces, finish) in [
            ([whole(), vec![AnswerPiece::Text("x".into())]].concat(), Finish::EndToken),
            (cut(), Finish::EndToken),
            ([cut(), whole()].concat(), Finish::EndToken),
            (vec![AnswerPiece::Text("x".into())], Finish::StopString),
            (vec![AnswerPiece::Text("x".into())], Finish::Cancelled),
            (whole(), Finish::Length),
        ] {
            let mut answer = answer();
            let parts = answer.parts(pieces.clone());
            answer.end("", finish);
            assert!(answer.finished().kept.is_none(), "{pieces:?}");
            let is_cut = parts.iter().any(|it| matches!(it, AnswerPart::CallCut { .. }));
            assert_eq!(is_cut, pieces.contains(&AnswerPiece::CallCut));
        }
    }

    #[test]
    fn a_cut_answer_says_what_came() {
        let mut cut = answer();
        cut.token(TokenId(1), "so f");
        cut.end("ar", Finish::Cancelled);
        let FinishedAnswer { said, n_tokens, finish, .. } = cut.finished();
        assert_eq!((said.text.as_str(), n_tokens), ("so far", 1));
        assert_eq!(finish, Some(Finish::Cancelled));
        assert_eq!(answer().finished().finish, None);
    }

    #[test]
    fn tokens_of_thoughts_are_counted_apart() {
        let mut answer = answer();
        for text in ["<think>", "a", "</think>", "\n\n", "b"] {
            answer.token(TokenId(0), text);
        }
        assert_eq!((answer.n_tokens(), answer.n_thought_tokens()), (5, 3));
    }
}
