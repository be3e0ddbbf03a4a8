//! Constrains an answer by its rules: thoughts of bounded length, then a grammar.
//!
//! * Tokens of a thought are free until `</think>` is written; then the body begins. In answers of
//!   messages another thought may come instead.
//! * When thoughts reach their token limit, their end is forced.
//! * While a thought may still open, the body's tokens and those of `<think>` are allowed.
//!
//! **Invariant:** a token that [`LogitMask::apply`] allows is accepted by [`LogitMask::accept`];
//! forced tokens are those that `apply` would leave as the only choice, one by one. An internal
//! failure becomes a failure of the answer, reported by [`LogitMask::failure`]. This module is
//! independent of tools and schemas.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use moeflux::TokenId;
use moeflux::sample::LogitMask;

use crate::answer_reader::{AnswerReader, AnswerStart};
use crate::grammar::body::BodyConstraint;
use crate::grammar::marker::Matched;
use crate::grammar::model::{GrammarModel, forbid_all_but_one};
use crate::thoughts::{Opening, ThoughtFormat};

/// The constraint on one answer. A mask for [`moeflux::Generation::with_mask`].
///
/// Forced text is tokenized by the model's own tokenizer, or greedily into the longest tokens where
/// the tokenizer would change the text. Forced tokens end where a longer token could continue with
/// text that is not forced. They depend only on the tokens so far.
#[derive(Clone)]
pub struct Constraint {
    model: Arc<GrammarModel>,
    phase: ConstraintPhase,
    /// At its start, except in [`ConstraintPhase::Body`].
    body: BodyConstraint,
    thoughts: ThoughtConstraint,
    n_thought_tokens: usize,
    /// Tokens that must come next.
    pending: VecDeque<TokenId>,
    may_end: bool,
    /// Reads the answer, to end it when a call is repeated.
    reader: Option<Box<AnswerReader>>,
    /// The bytes of an unfinished character that the reader has not received yet.
    unread: Vec<u8>,
    failure: Option<String>,
}

/// The constraint on thoughts.
#[derive(Clone, Debug, Default)]
pub(crate) struct ThoughtConstraint {
    pub(crate) n_tokens_max: Option<usize>,
    /// Tokens that end a thought, as the template writes it.
    pub(crate) closing: Vec<TokenId>,
    /// The text of the closing after its marker: whitespace, or the start of the next message.
    pub(crate) after: String,
}

/// The stage that the answer has reached.
#[derive(Clone)]
enum ConstraintPhase {
    /// A thought may still come first: the text so far, and the body if it can continue from there.
    Start(Vec<u8>, Option<BodyConstraint>),
    Thought(Matched),
    /// Forced text after the end of a thought is still to come.
    After,
    Body,
}

impl fmt::Debug for Constraint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Constraint");
        shown.field("body", &self.body).field("thoughts", &self.thoughts);
        shown.field("n_pending", &self.pending.len()).field("failure", &self.failure);
        shown.finish_non_exhaustive()
    }
}

impl Constraint {
    pub(crate) fn new(
        model: Arc<GrammarModel>,
        start: AnswerStart,
        mut body: BodyConstraint,
        thoughts: ThoughtConstraint,
    ) -> Self {
        if let Some(next) = model.thoughts.next().filter(|_| start != AnswerStart::Text) {
            body.begin_after(next);
        }
        let phase = match start {
            AnswerStart::Thought => ConstraintPhase::Thought(Matched::default()),
            AnswerStart::Open | AnswerStart::Text => ConstraintPhase::Body,
        };
        let (n_thought_tokens, pending, failure) = (0, VecDeque::new(), None);
        let mut new = Self {
            model,
            phase,
            body,
            thoughts,
            n_thought_tokens,
            pending,
            may_end: false,
            reader: None,
            unread: Vec::new(),
            failure,
        };
        if start == AnswerStart::Open {
            new.begin();
        }
        new.force_close();
        new.may_end = new.find_may_end();
        new
    }

    /// Ends the answer when a call is repeated, as determined by this reader.
    pub(crate) fn ending_repeats(self, reader: AnswerReader) -> Self {
        let reader = Some(Box::new(reader)).filter(|_| self.model.vocabulary.has_end());
        Self { reader, ..self }
    }

    fn is_over(&self) -> bool {
        self.reader.as_ref().is_some_and(|it| it.is_over())
    }

    fn look_for_repeats(&mut self, bytes: &[u8]) {
        let Some(reader) = &mut self.reader else { return };
        self.unread.extend_from_slice(bytes);
        let n_whole = match std::str::from_utf8(&self.unread) {
            Err(error) if error.error_len().is_none() => error.valid_up_to(),
            _ => self.unread.len(),
        };
        let whole: Vec<u8> = self.unread.drain(..n_whole).collect();
        reader.push(&String::from_utf8_lossy(&whole));
    }

    /// Begins a message: a thought may come, or the body.
    fn begin(&mut self) {
        let is_message = self.model.thoughts.next().is_some();
        // If thoughts are messages, one is opened only if it may have a token.
        self.phase = match is_message && self.is_thought_over() {
            true => ConstraintPhase::Body,
            false => ConstraintPhase::Start(Vec::new(), Some(self.body.clone())),
        };
    }

    fn is_thought_over(&self) -> bool {
        self.thoughts.n_tokens_max.is_some_and(|most| self.n_thought_tokens >= most)
    }

    /// Forces the end of a thought that has reached its limit.
    fn force_close(&mut self) {
        if matches!(self.phase, ConstraintPhase::Thought(_))
            && self.is_thought_over()
            && self.pending.is_empty()
        {
            self.pending.extend(&self.thoughts.closing);
        }
    }

    fn find_may_end(&mut self) -> bool {
        match &mut self.phase {
            ConstraintPhase::Start(_, body) => body.as_mut().is_some_and(BodyConstraint::may_end),
            ConstraintPhase::Thought(_) | ConstraintPhase::After => !self.body.is_bound(),
            ConstraintPhase::Body => self.body.may_end(),
        }
    }

    fn find_pending(&mut self) -> Result<(), String> {
        if self.pending.is_empty() && matches!(self.phase, ConstraintPhase::Body) {
            self.pending.extend(self.body.forced()?);
        }
        Ok(())
    }

    fn try_apply(&mut self, logits: &mut [f32]) -> Result<(), String> {
        if self.is_over() {
            self.model.vocabulary.forbid_all_but_ends(logits);
            return Ok(());
        }
        self.find_pending()?;
        if let Some(token) = self.pending.front() {
            forbid_all_but_one(*token, logits);
            return Ok(());
        }
        let Self { model, phase, body, .. } = self;
        match phase {
            ConstraintPhase::Start(text, alive) => apply_at_start(model, (text, alive), logits)?,
            ConstraintPhase::Thought(matched) => {
                model.vocabulary.forbid_padding(logits);
                for (token, rest) in model.close.completions(*matched, &model.vocabulary) {
                    let rest = rest.trim_ascii_start();
                    let is_taken = rest.is_empty() || body.may_take(model, rest);
                    if let Some(logit) = logits.get_mut(token.0 as usize).filter(|_| !is_taken) {
                        *logit = f32::NEG_INFINITY;
                    }
                }
            }
            ConstraintPhase::After => {}
            ConstraintPhase::Body => body.apply(model, logits)?,
        }
        Ok(())
    }

    fn try_accept(&mut self, token: TokenId) -> Result<(), String> {
        let is_pending = self.pending.front() == Some(&token);
        if is_pending {
            self.pending.pop_front();
        } else {
            self.pending.clear();
        }
        let model = self.model.clone();
        let bytes = model.vocabulary.bytes(token);
        match &mut self.phase {
            ConstraintPhase::Start(text, alive) => {
                text.extend_from_slice(bytes);
                let is_taken = alive.as_mut().is_some_and(|it| it.accept(&model, token).is_ok());
                if !is_taken {
                    *alive = None;
                }
                self.find_thought()?;
            }
            ConstraintPhase::Thought(_) => self.think(bytes)?,
            ConstraintPhase::After if !is_pending => {
                return Err(format!("token {} is not the one that was forced", token.0));
            }
            ConstraintPhase::After => {}
            ConstraintPhase::Body => self.body.accept(&model, token)?,
        }
        if matches!(self.phase, ConstraintPhase::After) && self.pending.is_empty() {
            self.begin_after_thought();
        }
        self.force_close();
        self.look_for_repeats(bytes);
        self.may_end = self.is_over() || self.find_may_end();
        Ok(())
    }

    /// At the start: checks whether the text has become a thought or something else.
    fn find_thought(&mut self) -> Result<(), String> {
        let ConstraintPhase::Start(text, alive) = &mut self.phase else { return Ok(()) };
        match opening(self.model.thoughts, text) {
            Opening::Unknown => Ok(()),
            Opening::Opened(n_bytes) => {
                let rest = text[n_bytes..].to_vec();
                self.phase = ConstraintPhase::Thought(Matched::default());
                self.push_thought(&rest)
            }
            Opening::Closed(n_bytes) => {
                let rest = text[n_bytes..].to_vec();
                self.leave_thought(&rest)
            }
            Opening::None => {
                let alive = alive.take();
                self.body = alive.ok_or("the answer begins with what its grammar forbids")?;
                self.phase = ConstraintPhase::Body;
                Ok(())
            }
        }
    }

    fn think(&mut self, bytes: &[u8]) -> Result<(), String> {
        self.n_thought_tokens += 1;
        self.push_thought(bytes)
    }

    fn push_thought(&mut self, bytes: &[u8]) -> Result<(), String> {
        let ConstraintPhase::Thought(matched) = &mut self.phase else { return Ok(()) };
        match self.model.close.push(matched, bytes) {
            Some(end) => self.leave_thought(&bytes[end..]),
            None => Ok(()),
        }
    }

    /// Begins the body after a thought and the rest of its last token.
    fn leave_thought(&mut self, rest: &[u8]) -> Result<(), String> {
        let text = rest.trim_ascii_start();
        if !text.is_empty() {
            self.pending.clear();
            self.phase = ConstraintPhase::Body;
            return self.body.accept_bytes(&self.model.clone(), text);
        }
        // Before a grammar, the text of the template is forced, because the grammar has no other
        // place for it. The start of a message is always the same.
        let is_message = self.model.thoughts.next().is_some();
        if self.pending.is_empty() && (self.body.is_bound() || is_message) {
            let after = self.thoughts.after.as_bytes().strip_prefix(rest).unwrap_or_default();
            let after = std::str::from_utf8(after).expect("the text after a thought is ASCII");
            self.pending.extend(self.model.vocabulary.encode(after, is_message));
        }
        self.phase = ConstraintPhase::After;
        if self.pending.is_empty() {
            self.begin_after_thought();
        }
        Ok(())
    }

    fn begin_after_thought(&mut self) {
        self.phase = ConstraintPhase::Body;
        if self.model.thoughts.next().is_some() {
            self.begin();
        }
    }

    fn fail(&mut self, problem: &str) {
        let problem = format!("the grammar of the answer failed: {problem}");
        self.failure.get_or_insert(problem);
    }
}

impl LogitMask for Constraint {
    fn apply(&mut self, logits: &mut [f32]) {
        if self.failure.is_none()
            && let Err(problem) = self.try_apply(logits)
        {
            self.fail(&problem);
        }
        if self.failure.is_some() {
            logits.fill(f32::NEG_INFINITY);
        }
    }

    fn accept(&mut self, token: TokenId) {
        if self.failure.is_none()
            && let Err(problem) = self.try_accept(token)
        {
            self.fail(&problem);
        }
    }

    fn may_end(&self) -> bool {
        self.may_end
    }

    fn forced(&mut self, forced: &mut Vec<TokenId>) {
        if self.failure.is_some() || self.is_over() {
            return;
        }
        match self.find_pending() {
            Ok(()) => forced.extend(&self.pending),
            Err(problem) => self.fail(&problem),
        }
    }

    fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }
}

/// Returns the opening of an answer with these bytes. The last character may be unfinished.
fn opening(thoughts: &ThoughtFormat, bytes: &[u8]) -> Opening {
    let (text, is_blank_possible) = match std::str::from_utf8(bytes) {
        Ok(text) => return thoughts.opening(text),
        Err(error) => {
            let text = std::str::from_utf8(&bytes[..error.valid_up_to()]).unwrap_or_default();
            (text, error.error_len().is_none() && text.trim_start().is_empty())
        }
    };
    match thoughts.opening(text) {
        // No marker continues with such a byte.
        Opening::Unknown if !is_blank_possible => Opening::None,
        known => known,
    }
}

/// Allows the body's tokens and those that open a thought.
fn apply_at_start(
    model: &GrammarModel,
    (text, alive): (&[u8], &mut Option<BodyConstraint>),
    logits: &mut [f32],
) -> Result<(), String> {
    let opening = opening_tokens(model, text);
    let kept: Vec<(TokenId, f32)> =
        opening.filter_map(|token| Some((token, *logits.get(token.0 as usize)?))).collect();
    match alive {
        Some(body) => body.apply(model, logits)?,
        None => logits.fill(f32::NEG_INFINITY),
    }
    for (token, logit) in kept {
        logits[token.0 as usize] = logit;
    }
    Ok(())
}

/// Returns the tokens that continue the start of a thought, without whitespace in front of it.
fn opening_tokens<'m>(
    model: &'m GrammarModel,
    text: &'m [u8],
) -> impl Iterator<Item = TokenId> + 'm {
    let rest = model.thoughts.open.as_bytes().strip_prefix(text).unwrap_or_default();
    let n_ids = u32::try_from(model.vocabulary.trie().vocab_size()).unwrap_or(u32::MAX);
    (0..n_ids).map(TokenId).filter(move |token| {
        let bytes = model.vocabulary.bytes(*token);
        !bytes.is_empty() && (rest.starts_with(bytes) || is_opened(rest, bytes))
    })
}

/// Returns whether a token completes the marker, with only whitespace after it.
fn is_opened(rest: &[u8], token: &[u8]) -> bool {
    let after = token.strip_prefix(rest).filter(|_| !rest.is_empty());
    after.is_some_and(|it| it.trim_ascii_start().is_empty())
}
