//! Answers whose clients take no more tokens for now: they have given their places back.
//!
//! **Invariant:** a parked answer keeps its tokens, and its session as long as there is memory.
//! Without the session its tokens are read again before it goes on, and its bits are the same.

use std::sync::Arc;

use moeflux::{Session, TokenId};

use crate::line::Line;
use crate::tracked::JobId;

/// What is left of an answer's session.
enum Past {
    /// All of it.
    Session(Session),
    /// The tokens that were in it.
    Tokens(Vec<TokenId>),
    /// These are being read again.
    InReading(Vec<TokenId>),
}

/// An answer without a place.
struct Entry<'e> {
    line: Line<'e>,
    past: Past,
}

/// An answer that can go on.
pub(crate) enum Unparked<'e> {
    /// At once.
    Whole(Box<(Line<'e>, Session)>),
    /// Once these tokens were read. The answer stays parked until [`Parked::take_read`].
    ToRead(ToRead),
}

/// The tokens of an answer that has lost its session.
pub(crate) struct ToRead {
    /// Which answer.
    pub(crate) of: (JobId, usize),
    /// All up to the newest.
    pub(crate) tokens: Arc<[TokenId]>,
    /// Logits that its next token needs; `None`: all.
    pub(crate) n_best: Option<usize>,
}

/// All of them, in the order in which they were parked.
#[derive(Default)]
pub(crate) struct Parked<'e> {
    entries: Vec<Entry<'e>>,
}

impl<'e> Parked<'e> {
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Parks an answer with its session.
    pub(crate) fn put(&mut self, line: Line<'e>, session: Session) {
        self.entries.push(Entry { line, past: Past::Session(session) });
    }

    /// Parks an answer that has no session of its own; `tokens` are those behind which it begins.
    pub(crate) fn put_tokens(&mut self, line: Line<'e>, tokens: Vec<TokenId>) {
        self.entries.push(Entry { line, past: Past::Tokens(tokens) });
    }

    /// Whether one of them may go on, as far as this says.
    pub(crate) fn has_any(&self, mut is_ready: impl FnMut(&Line<'e>) -> bool) -> bool {
        let mut entries = self.entries.iter();
        entries.any(|it| !matches!(it.past, Past::InReading(_)) && is_ready(&it.line))
    }

    /// The first that may go on.
    pub(crate) fn unpark(
        &mut self,
        mut is_ready: impl FnMut(&Line<'e>) -> bool,
    ) -> Option<Unparked<'e>> {
        let is_next = |it: &Entry<'e>| !matches!(it.past, Past::InReading(_)) && is_ready(&it.line);
        let idx = self.entries.iter().position(is_next)?;
        let Entry { line, past } = self.entries.remove(idx);
        let tokens = match past {
            Past::Session(session) => return Some(Unparked::Whole(Box::new((line, session)))),
            Past::Tokens(tokens) | Past::InReading(tokens) => tokens,
        };
        let to_read = ToRead {
            of: (line.job, line.answer_idx),
            tokens: [&tokens[..], &line.tokens].concat().into(),
            n_best: line.generation.n_best_needed(),
        };
        self.entries.insert(idx, Entry { line, past: Past::InReading(tokens) });
        Some(Unparked::ToRead(to_read))
    }

    /// The answer whose tokens were read.
    pub(crate) fn take_read(&mut self, of: (JobId, usize)) -> Option<Line<'e>> {
        let idx = self.position(of)?;
        Some(self.entries.remove(idx).line)
    }

    /// The tokens of an answer were not read to their end.
    pub(crate) fn put_back(&mut self, of: (JobId, usize)) {
        if let Some(idx) = self.position(of) {
            let past = &mut self.entries[idx].past;
            if let Past::InReading(tokens) = past {
                let tokens = std::mem::take(tokens);
                *past = Past::Tokens(tokens);
            }
        }
    }

    fn position(&self, of: (JobId, usize)) -> Option<usize> {
        let is_it = |it: &Entry<'e>| (it.line.job, it.line.answer_idx) == of;
        self.entries.iter().position(is_it)
    }

    /// Gives up the session of the answer that was parked first; whether there was one.
    pub(crate) fn give_up_session(&mut self) -> bool {
        for Entry { past, .. } in &mut self.entries {
            if let Past::Session(session) = past {
                let tokens = session.tokens().to_vec();
                *past = Past::Tokens(tokens);
                return true;
            }
        }
        false
    }

    /// Their sessions.
    pub(crate) fn sessions(&self) -> impl Iterator<Item = &Session> {
        self.entries.iter().filter_map(|entry| match &entry.past {
            Past::Session(session) => Some(session),
            Past::Tokens(_) | Past::InReading(_) => None,
        })
    }

    /// Takes those out of which this is true, with their sessions.
    pub(crate) fn extract(
        &mut self,
        mut is_wanted: impl FnMut(&Line<'e>) -> bool,
    ) -> Vec<(Line<'e>, Option<Session>)> {
        let taken = self.entries.extract_if(.., |entry| is_wanted(&entry.line));
        let whole = taken.map(|Entry { line, past }| match past {
            Past::Session(session) => (line, Some(session)),
            Past::Tokens(_) | Past::InReading(_) => (line, None),
        });
        whole.collect()
    }
}
