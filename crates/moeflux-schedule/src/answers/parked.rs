//! Parked answers: their clients take no tokens for now, and other jobs use their session slots.
//!
//! **Invariant:** a parked answer keeps its tokens, and its session as long as there is memory.
//! Without the session, its tokens are read again before it resumes, and its bits are the same.

use std::sync::Arc;

use moeflux::{Session, TokenId};

use crate::answers::decode::DecodeState;
use crate::tracked::JobId;

/// The state of a parked answer's session.
enum ParkedSession {
    /// The whole session.
    InMemory(Session),
    /// The tokens of the dropped session.
    Evicted(Vec<TokenId>),
    /// The tokens of the dropped session, which are being read again.
    Recomputing(Vec<TokenId>),
}

/// A parked answer, with its session or the tokens of it.
struct ParkedAnswer<'e> {
    decode: DecodeState<'e>,
    session: ParkedSession,
}

/// An answer that can resume.
pub(crate) enum Unparked<'e> {
    /// It resumes at once.
    WithSession(Box<(DecodeState<'e>, Session)>),
    /// It resumes after these tokens were read. The answer stays parked until
    /// [`Parked::take_recomputed`].
    Recompute(RecomputeRequest),
}

/// The tokens of an answer that has lost its session.
pub(crate) struct RecomputeRequest {
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
    answers: Vec<ParkedAnswer<'e>>,
}

impl<'e> Parked<'e> {
    pub(crate) fn len(&self) -> usize {
        self.answers.len()
    }

    /// Parks an answer with its session.
    pub(crate) fn put(&mut self, decode: DecodeState<'e>, session: Session) {
        self.answers.push(ParkedAnswer { decode, session: ParkedSession::InMemory(session) });
    }

    /// Parks an answer without a session of its own; `tokens` are those that precede it.
    pub(crate) fn put_tokens(&mut self, decode: DecodeState<'e>, tokens: Vec<TokenId>) {
        self.answers.push(ParkedAnswer { decode, session: ParkedSession::Evicted(tokens) });
    }

    /// Whether any answer can resume and satisfies `is_ready`.
    pub(crate) fn has_any(&self, mut is_ready: impl FnMut(&DecodeState<'e>) -> bool) -> bool {
        let mut answers = self.answers.iter();
        answers
            .any(|it| !matches!(it.session, ParkedSession::Recomputing(_)) && is_ready(&it.decode))
    }

    /// Takes the first answer that can resume and satisfies `is_ready`.
    pub(crate) fn unpark(
        &mut self,
        mut is_ready: impl FnMut(&DecodeState<'e>) -> bool,
    ) -> Option<Unparked<'e>> {
        let is_next = |it: &ParkedAnswer<'e>| {
            !matches!(it.session, ParkedSession::Recomputing(_)) && is_ready(&it.decode)
        };
        let idx = self.answers.iter().position(is_next)?;
        let ParkedAnswer { decode, session } = self.answers.remove(idx);
        let tokens = match session {
            ParkedSession::InMemory(session) => {
                return Some(Unparked::WithSession(Box::new((decode, session))));
            }
            ParkedSession::Evicted(tokens) | ParkedSession::Recomputing(tokens) => tokens,
        };
        let recompute = RecomputeRequest {
            of: (decode.job, decode.answer_idx),
            tokens: [&tokens[..], &decode.tokens].concat().into(),
            n_best: decode.generation.n_best_needed(),
        };
        self.answers
            .insert(idx, ParkedAnswer { decode, session: ParkedSession::Recomputing(tokens) });
        Some(Unparked::Recompute(recompute))
    }

    /// Removes the answer whose tokens were read.
    pub(crate) fn take_recomputed(&mut self, of: (JobId, usize)) -> Option<DecodeState<'e>> {
        let idx = self.position(of)?;
        Some(self.answers.remove(idx).decode)
    }

    /// Returns an answer to the parked state because its tokens were not read completely.
    pub(crate) fn put_back(&mut self, of: (JobId, usize)) {
        if let Some(idx) = self.position(of) {
            let session = &mut self.answers[idx].session;
            if let ParkedSession::Recomputing(tokens) = session {
                let tokens = std::mem::take(tokens);
                *session = ParkedSession::Evicted(tokens);
            }
        }
    }

    fn position(&self, of: (JobId, usize)) -> Option<usize> {
        let is_it = |it: &ParkedAnswer<'e>| (it.decode.job, it.decode.answer_idx) == of;
        self.answers.iter().position(is_it)
    }

    /// Drops the session of the answer that was parked first and still has one. Returns whether one
    /// was dropped.
    pub(crate) fn evict_session(&mut self) -> bool {
        for ParkedAnswer { session: parked, .. } in &mut self.answers {
            if let ParkedSession::InMemory(session) = parked {
                let tokens = session.tokens().to_vec();
                *parked = ParkedSession::Evicted(tokens);
                return true;
            }
        }
        false
    }

    /// Returns the sessions of parked answers.
    pub(crate) fn sessions(&self) -> impl Iterator<Item = &Session> {
        self.answers.iter().filter_map(|entry| match &entry.session {
            ParkedSession::InMemory(session) => Some(session),
            ParkedSession::Evicted(_) | ParkedSession::Recomputing(_) => None,
        })
    }

    /// Removes the answers that satisfy `is_wanted`, with their sessions.
    pub(crate) fn extract(
        &mut self,
        mut is_wanted: impl FnMut(&DecodeState<'e>) -> bool,
    ) -> Vec<(DecodeState<'e>, Option<Session>)> {
        let taken = self.answers.extract_if(.., |entry| is_wanted(&entry.decode));
        let whole = taken.map(|ParkedAnswer { decode, session }| match session {
            ParkedSession::InMemory(session) => (decode, Some(session)),
            ParkedSession::Evicted(_) | ParkedSession::Recomputing(_) => (decode, None),
        });
        whole.collect()
    }
}
