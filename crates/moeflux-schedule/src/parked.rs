//! Parked answers: their clients take no tokens for now, and other jobs use their places.
//!
//! **Invariant:** a parked answer keeps its tokens, and its session as long as there is memory.
//! Without the session, its tokens are read again before it resumes, and its bits are the same.

use std::sync::Arc;

use moeflux::{Session, TokenId};

use crate::line::Line;
use crate::tracked::JobId;

/// The state of a parked answer's session.
enum Past {
    /// The whole session.
    Session(Session),
    /// The tokens of the dropped session.
    Tokens(Vec<TokenId>),
    /// The tokens of the dropped session, which are being read again.
    InReading(Vec<TokenId>),
}

/// A parked answer.
struct Entry<'e> {
    line: Line<'e>,
    past: Past,
}

/// An answer that can resume.
pub(crate) enum Unparked<'e> {
    /// It resumes at once.
    Whole(Box<(Line<'e>, Session)>),
    /// It resumes after these tokens were read. The answer stays parked until
    /// [`Parked::take_read`].
    ToRead(ToRead),
}

/// The tokens of an answer that has lost its session.
pub(crate) struct ToRead {
    /// The job and the index of the answer.
    pub(crate) of: (JobId, usize),
    /// All tokens, including the newest.
    pub(crate) tokens: Arc<[TokenId]>,
    /// The number of best logits that its next token needs; `None`: all.
    pub(crate) n_best: Option<usize>,
}

/// All parked answers, in the order in which they were parked.
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

    /// Parks an answer without a session of its own; `tokens` are those that precede it.
    pub(crate) fn put_tokens(&mut self, line: Line<'e>, tokens: Vec<TokenId>) {
        self.entries.push(Entry { line, past: Past::Tokens(tokens) });
    }

    /// Whether any answer can resume and satisfies `is_ready`.
    pub(crate) fn has_any(&self, mut is_ready: impl FnMut(&Line<'e>) -> bool) -> bool {
        let mut entries = self.entries.iter();
        entries.any(|it| !matches!(it.past, Past::InReading(_)) && is_ready(&it.line))
    }

    /// Takes the first answer that can resume and satisfies `is_ready`.
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

    /// Removes the answer whose tokens were read.
    pub(crate) fn take_read(&mut self, of: (JobId, usize)) -> Option<Line<'e>> {
        let idx = self.position(of)?;
        Some(self.entries.remove(idx).line)
    }

    /// Returns an answer to the parked state because its tokens were not read completely.
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

    /// Drops the session of the answer that was parked first and still has one. Returns whether one
    /// was dropped.
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

    /// Returns the sessions of parked answers.
    pub(crate) fn sessions(&self) -> impl Iterator<Item = &Session> {
        self.entries.iter().filter_map(|entry| match &entry.past {
            Past::Session(session) => Some(session),
            Past::Tokens(_) | Past::InReading(_) => None,
        })
    }

    /// Removes the answers that satisfy `is_wanted`, with their sessions.
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
