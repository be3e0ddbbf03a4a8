//! What the model samples for an answer, next to what the client is given of it.
//!
//! **Invariant:** an answer is kept only if the model ended it and the client was given all of it.

use moeflux::TokenId;
use moeflux_chat::{Assistant, Call, Sampled};

use crate::wire::{Event, Reason};

/// An answer while it is made.
#[derive(Debug, Default)]
pub(crate) struct Sampling {
    answer: Assistant,
    /// The id, the name and the arguments of the call that began last.
    call: Option<(String, String, String)>,
    tokens: Vec<TokenId>,
    /// Something came that no history tells in its place.
    is_strange: bool,
    has_ended: bool,
}

impl Sampling {
    /// A token was sampled.
    pub(crate) fn token(&mut self, token: TokenId) {
        self.tokens.push(token);
    }

    /// The client is given this of the answer.
    pub(crate) fn given(&mut self, event: &Event) {
        match event {
            Event::Thought { text, .. } => {
                self.answer.thoughts.get_or_insert_default().push_str(text);
            }
            Event::Text { text, .. } => {
                self.is_strange |= !self.answer.calls.is_empty() && !text.trim().is_empty();
                self.answer.text.push_str(text);
            }
            Event::CallBegun { id, name, .. } => {
                self.is_strange |= self.call.is_some();
                self.call = Some((id.clone(), name.clone(), String::new()));
            }
            Event::CallArguments { text, .. } => {
                if let Some((.., arguments)) = &mut self.call {
                    arguments.push_str(text);
                }
            }
            Event::CallEnded { .. } => {
                let whole = self.call.take();
                let call = |(id, name, arguments): (String, String, String)| {
                    Call::from_text(id, name, &arguments)
                };
                self.answer.calls.extend(whole.map(call));
            }
            Event::Finished { reason, .. } => {
                self.has_ended = matches!(reason, Reason::End | Reason::Calls);
            }
            _ => {}
        }
    }

    /// The answer, if it may come back.
    pub(crate) fn whole(self) -> Option<Sampled> {
        let Self { answer, tokens, .. } = self;
        let is_whole = self.has_ended && !self.is_strange && self.call.is_none();
        is_whole.then_some(Sampled { answer, tokens })
    }
}
