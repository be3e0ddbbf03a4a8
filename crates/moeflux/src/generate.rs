//! A prompt becomes an answer, token by token: feed, sample, decode, until something ends it.
//!
//! **Invariant:** the session holds the prompt and every token that was reported and fed; a token
//! that ends the answer is neither. Knows no clock: who listens takes the time.

use std::ops::ControlFlow;

use crate::error::{Error, Result};
use crate::forward::StepProgress;
use crate::ids::TokenId;
use crate::sample::Sampler;
use crate::session::{Session, Wanted};
use crate::text::{EndTokens, StopStrings, TextStream};

/// Everything one answer is made with.
#[derive(Debug)]
pub struct Generation<'a> {
    /// Where tokens are fed.
    pub session: &'a mut Session,
    /// Chooses tokens.
    pub sampler: &'a mut Sampler,
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
}

/// Hears of events; `Break` ends the answer.
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

impl Generation<'_> {
    /// Feeds the prompt and generates the answer.
    ///
    /// # Errors
    ///
    /// What feeding or sampling reports; being asked to stop is no error.
    pub fn run(mut self, prompt: &[TokenId], listener: &mut Listener<'_>) -> Result<Finish> {
        let mut logits = Vec::new();
        let watch = &mut |progress| listener(Event::Reading(progress));
        let fed = self.session.feed(prompt, Wanted::Last, watch, &mut |_, row| {
            logits.extend_from_slice(row);
            Ok(())
        });
        match fed {
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

    fn answer(&mut self, logits: &mut [f32], listener: &mut Listener<'_>) -> Result<Finish> {
        for n_tokens in 1..=self.n_tokens_max {
            let choice = self.sampler.sample(logits, self.session.tokens(), None)?;
            let token = choice.token;
            if self.end_tokens.contains(token) {
                return Ok(Finish::EndToken);
            }
            let event = Event::Token { token, logprob: choice.logprob, top: choice.top };
            if listener(event).is_break() {
                return Ok(Finish::Cancelled);
            }
            let text = self.stops.push(self.stream.push(token));
            if !text.is_empty() && listener(Event::Text(text)).is_break() {
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
            let watch = &mut |_| ControlFlow::Continue(());
            self.session.feed(&[token], Wanted::Last, watch, &mut |_, row| {
                logits.copy_from_slice(row);
                Ok(())
            })?;
        }
        Ok(Finish::Length)
    }
}
