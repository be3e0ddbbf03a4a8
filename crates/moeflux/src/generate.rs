//! A prompt becomes an answer, token by token: feed, sample, decode, until something ends it.
//!
//! **Invariant:** the session holds the prompt and every token that was reported and fed; a token
//! that ends the answer is neither. Knows no clock: who listens takes the time.

use std::fmt;
use std::ops::ControlFlow;

use crate::error::{Error, Result};
use crate::forward::{Logits, StepProgress};
use crate::ids::TokenId;
use crate::sample::{LogitMask, Sampler};
use crate::session::Session;
use crate::text::{EndTokens, StopStrings, TextStream};

/// Everything one answer is made with.
pub struct Generation<'a> {
    /// Where tokens are fed.
    pub session: &'a mut Session,
    /// Chooses tokens.
    pub sampler: &'a mut Sampler,
    /// Forbids some.
    pub mask: Option<&'a mut dyn LogitMask>,
    /// Turns them into text.
    pub stream: TextStream<'a>,
    /// Strings that end the answer.
    pub stops: StopStrings,
    /// Tokens that end the answer.
    pub end_tokens: &'a EndTokens,
    /// Tokens of the answer at most.
    pub n_tokens_max: usize,
}

/// What happens on the way.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Event<'a> {
    /// A part of the prompt was computed.
    Reading(StepProgress),
    /// The whole prompt was computed.
    PromptRead,
    /// A token of the answer was chosen.
    Token {
        /// Which.
        token: TokenId,
        /// Its log-probability, where the sampler was asked for it.
        logprob: Option<f32>,
        /// The most likely tokens, where the sampler was asked for them.
        top: &'a [(TokenId, f32)],
    },
    /// More of the answer's text is certain.
    Text(&'a str),
    /// A layer of the answer's next token was computed: nothing to see, but a chance to end.
    Working,
}

/// Hears of events; `Break` ends the answer. The text of a token that was heard of follows even so.
pub type Listener<'a> = dyn FnMut(Event<'_>) -> ControlFlow<()> + 'a;

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// The model ended it.
    EndToken,
    /// A stop string came up.
    StopString,
    /// It has as many tokens as were asked for.
    Length,
    /// The session has no room for more.
    ContextFull,
    /// The listener asked for it.
    Cancelled,
}

impl Finish {
    /// One word for machines.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::EndToken => "end",
            Self::StopString => "stop",
            Self::Length => "length",
            Self::ContextFull => "context",
            Self::Cancelled => "cancelled",
        }
    }
}

impl fmt::Debug for Generation<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Generation");
        shown.field("session", &self.session).field("sampler", &self.sampler);
        shown.field("has_mask", &self.mask.is_some());
        shown.field("stops", &self.stops).field("end_tokens", &self.end_tokens);
        shown.field("n_tokens_max", &self.n_tokens_max).finish_non_exhaustive()
    }
}

/// The logits of the last token, all or the best: one of both is empty.
#[derive(Debug, Default)]
struct LastLogits {
    all: Vec<f32>,
    best: Vec<(TokenId, f32)>,
}

impl LastLogits {
    fn keep(&mut self, logits: Logits<'_>) {
        self.all.clear();
        self.best.clear();
        match logits {
            Logits::All(row) => self.all.extend_from_slice(row),
            Logits::Best(best) => self.best.extend_from_slice(best),
        }
    }
}

impl Generation<'_> {
    /// Feeds the prompt and generates the answer.
    ///
    /// # Errors
    ///
    /// What feeding or sampling reports; being asked to stop is no error.
    pub fn run(mut self, prompt: &[TokenId], listener: &mut Listener<'_>) -> Result<Finish> {
        let mut logits = LastLogits::default();
        let n_best = self.n_best_needed();
        let watch = &mut |progress| listener(Event::Reading(progress));
        let keep = &mut |found: Logits<'_>| logits.keep(found);
        match self.session.feed_to_choose(prompt, n_best, watch, keep) {
            Err(Error::Cancelled) => return Ok(Finish::Cancelled),
            other => other?,
        }
        if listener(Event::PromptRead).is_break() {
            return Ok(Finish::Cancelled);
        }
        let finish = self.answer(&mut logits, listener)?;
        let rest = self.stops.push(self.stream.finish()).to_owned() + self.stops.finish();
        if !rest.is_empty() {
            // Whether to go on is no question any more.
            let _: ControlFlow<()> = listener(Event::Text(&rest));
        }
        Ok(finish)
    }

    /// A mask may forbid any of the best.
    fn n_best_needed(&self) -> Option<usize> {
        self.sampler.n_best_needed().filter(|_| self.mask.is_none())
    }

    fn answer(&mut self, logits: &mut LastLogits, listener: &mut Listener<'_>) -> Result<Finish> {
        let n_best = self.n_best_needed();
        for n_tokens in 1..=self.n_tokens_max {
            let mask = self.mask.as_mut().map(|mask| &mut **mask as &mut dyn LogitMask);
            let choice = if logits.best.is_empty() {
                self.sampler.sample(&logits.all, self.session.tokens(), mask)?
            } else {
                self.sampler.sample_best(&logits.best)?
            };
            let token = choice.token;
            if self.end_tokens.contains(token) {
                return Ok(Finish::EndToken);
            }
            let event = Event::Token { token, logprob: choice.logprob, top: choice.top };
            let mut is_asked_to_end = listener(event).is_break();
            let text = self.stops.push(self.stream.push(token));
            if !text.is_empty() {
                is_asked_to_end |= listener(Event::Text(text)).is_break();
            }
            if is_asked_to_end {
                return Ok(Finish::Cancelled);
            }
            if self.stops.stopped().is_some() {
                return Ok(Finish::StopString);
            }
            if n_tokens == self.n_tokens_max {
                return Ok(Finish::Length);
            }
            if self.session.tokens().len() == self.session.context() {
                return Ok(Finish::ContextFull);
            }
            let watch = &mut |_| listener(Event::Working);
            let keep = &mut |found: Logits<'_>| logits.keep(found);
            match self.session.feed_to_choose(&[token], n_best, watch, keep) {
                Err(Error::Cancelled) => return Ok(Finish::Cancelled),
                other => other?,
            }
        }
        Ok(Finish::Length)
    }
}
