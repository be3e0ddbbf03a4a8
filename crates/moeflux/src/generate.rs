//! A prompt becomes an answer, token by token: sample, decode, until something ends it.
//!
//! A [`Generation`] takes the logits behind a token and says which token is next. The caller feeds
//! it, alone or with others in one step; [`Generation::run`] is the loop for one session.
//! **Invariant:** the session holds the prompt and every token that was reported and fed; a token
//! that ends the answer is neither. Knows no clock: who listens takes the time.

use std::fmt;
use std::ops::ControlFlow;
use std::sync::atomic::AtomicBool;

use crate::error::{Error, Result};
use crate::forward::{Logits, StepProgress};
use crate::ids::TokenId;
use crate::sample::{Choice, LogitMask, Sampler};
use crate::session::{Feed, Session, StepOutput, step};
use crate::text::{EndTokens, SpecialText, StopStrings, TextStream, Tokenizer};

/// One answer while it is made.
pub struct Generation<'a> {
    sampler: Sampler,
    mask: Option<&'a mut dyn LogitMask>,
    stream: TextStream<'a>,
    stops: StopStrings,
    end_tokens: &'a EndTokens,
    n_tokens_max: usize,
    cancel: Option<&'a AtomicBool>,
    /// Tokens of the answer so far.
    n_tokens: usize,
}

/// What the logits behind a token gave.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Chosen<'g> {
    /// What was chosen; also a token that ends the answer.
    pub choice: Choice<'g>,
    /// More of the answer's text that is certain.
    pub text: &'g str,
    /// Why the answer ends here. Otherwise the chosen token is to be fed, and the logits behind it
    /// are wanted.
    pub finish: Option<Finish>,
}

/// What happens on the way.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Event<'a> {
    /// A part of the prompt was computed.
    Reading(StepProgress),
    /// The whole prompt was computed.
    PromptRead,
    /// A token of the answer was chosen.
    #[non_exhaustive]
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

/// Hears of events; `Break` ends the answer. The text of a token that was heard of follows even so.
pub type Listener<'a> = dyn FnMut(Event<'_>) -> ControlFlow<()> + 'a;

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
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
        shown.field("sampler", &self.sampler).field("has_mask", &self.mask.is_some());
        shown.field("stops", &self.stops).field("end_tokens", &self.end_tokens);
        shown.field("n_tokens", &self.n_tokens).field("n_tokens_max", &self.n_tokens_max);
        shown.finish_non_exhaustive()
    }
}

/// A mask that does not let an answer end before it may.
struct Unfinished<'m> {
    mask: &'m mut dyn LogitMask,
    end_tokens: &'m EndTokens,
}

impl LogitMask for Unfinished<'_> {
    fn apply(&mut self, logits: &mut [f32]) {
        self.mask.apply(logits);
        if !self.mask.may_end() {
            for token in self.end_tokens.tokens() {
                if let Some(logit) = logits.get_mut(token.0 as usize) {
                    *logit = f32::NEG_INFINITY;
                }
            }
        }
    }
}

impl<'a> Generation<'a> {
    /// An answer of at most this many tokens.
    #[must_use]
    pub fn new(
        sampler: Sampler,
        tokenizer: &'a Tokenizer,
        end_tokens: &'a EndTokens,
        n_tokens_max: usize,
    ) -> Self {
        let stream = TextStream::new(tokenizer, SpecialText::Hidden);
        let (mask, stops, cancel) = (None, StopStrings::default(), None);
        Self { sampler, mask, stream, stops, end_tokens, n_tokens_max, cancel, n_tokens: 0 }
    }

    /// Forbids tokens.
    #[must_use]
    pub fn with_mask(self, mask: Option<&'a mut dyn LogitMask>) -> Self {
        Self { mask, ..self }
    }

    /// Writes special tokens as they stand in the vocabulary; otherwise they have no text.
    #[must_use]
    pub fn with_special_text(self) -> Self {
        let stream = self.stream.with_special(SpecialText::Shown);
        Self { stream, ..self }
    }

    /// Ends the answer before any of these strings.
    #[must_use]
    pub fn with_stops(self, stops: StopStrings) -> Self {
        Self { stops, ..self }
    }

    /// Lets [`Generation::run`] end once the flag is set. It is looked at between layers.
    #[must_use]
    pub fn cancelled_by(self, flag: &'a AtomicBool) -> Self {
        Self { cancel: Some(flag), ..self }
    }

    /// How many of the best logits [`Generation::accept`] needs; `None`: all of them.
    #[must_use]
    pub fn n_best_needed(&self) -> Option<usize> {
        // A mask may forbid any of the best.
        self.sampler.n_best_needed().filter(|_| self.mask.is_none())
    }

    /// Chooses a token by the logits behind the session's last one.
    ///
    /// # Errors
    ///
    /// What sampling reports; [`Error::Input`] for the best logits alone where there is a mask, and
    /// for a mask that failed.
    pub fn accept(&mut self, logits: Logits<'_>, session: &Session) -> Result<Chosen<'_>> {
        let Self { sampler, mask, stream, stops, end_tokens, .. } = self;
        let choice = match (logits, mask) {
            (Logits::Best(_), Some(_)) => {
                let problem = "an answer with a mask needs all logits: see `n_best_needed`";
                return Err(Error::Input(problem.to_owned()));
            }
            (Logits::Best(best), None) => sampler.sample_best(best)?,
            (Logits::All(logits), None) => sampler.sample(logits, session.tokens(), None)?,
            (Logits::All(logits), Some(mask)) => {
                let mut unfinished = Unfinished { mask: &mut **mask, end_tokens };
                let choice = sampler.sample(logits, session.tokens(), Some(&mut unfinished));
                if let Ok(choice) = choice
                    && !end_tokens.contains(choice.token)
                {
                    mask.accept(choice.token);
                }
                // It explains why no token was left, which is all that the sampler can say.
                if let Some(problem) = mask.failure() {
                    return Err(Error::Input(problem.to_owned()));
                }
                choice?
            }
        };
        if end_tokens.contains(choice.token) {
            return Ok(Chosen { choice, text: "", finish: Some(Finish::EndToken) });
        }
        self.n_tokens += 1;
        let piece = stream.push(choice.token);
        stops.push(piece);
        let finish = if stops.stopped().is_some() {
            Some(Finish::StopString)
        } else if self.n_tokens >= self.n_tokens_max {
            Some(Finish::Length)
        } else if session.tokens().len() == session.context() {
            Some(Finish::ContextFull)
        } else {
            None
        };
        Ok(Chosen { choice, text: stops.text(), finish })
    }

    /// The stop string that ended the answer; asked before [`Generation::rest`].
    #[must_use]
    pub fn stopped(&self) -> Option<&str> {
        self.stops.stopped()
    }

    /// Text that was held back, once the answer has ended.
    pub fn rest(&mut self) -> String {
        self.stops.push(self.stream.finish()).to_owned() + self.stops.finish()
    }

    /// Feeds the prompt and generates the answer: its text.
    ///
    /// # Errors
    ///
    /// As [`Generation::run`].
    pub fn answer(self, session: &mut Session, prompt: &[TokenId]) -> Result<String> {
        let mut answer = String::new();
        self.run(session, prompt, &mut |event| {
            if let Event::Text(text) = event {
                answer.push_str(text);
            }
            ControlFlow::Continue(())
        })?;
        Ok(answer)
    }

    /// Feeds the prompt and generates the answer, which is heard of as it comes.
    ///
    /// # Errors
    ///
    /// What feeding or sampling reports; being asked to stop is no error.
    pub fn run(
        mut self,
        session: &mut Session,
        prompt: &[TokenId],
        listener: &mut Listener<'_>,
    ) -> Result<Finish> {
        let finish = match self.run_to_end(session, prompt, listener) {
            Err(Error::Cancelled) => Finish::Cancelled,
            other => other?,
        };
        let rest = self.rest();
        if !rest.is_empty() {
            // Whether to go on is no question any more.
            let _: ControlFlow<()> = listener(Event::Text(&rest));
        }
        Ok(finish)
    }

    fn run_to_end(
        &mut self,
        session: &mut Session,
        prompt: &[TokenId],
        listener: &mut Listener<'_>,
    ) -> Result<Finish> {
        let n_best = self.n_best_needed();
        let mut output = StepOutput::default();
        let watch = &mut |progress| listener(Event::Reading(progress));
        session.feed_to_choose(prompt, n_best, watch, &mut output)?;
        if listener(Event::PromptRead).is_break() {
            return Ok(Finish::Cancelled);
        }
        if self.n_tokens_max == 0 {
            return Ok(Finish::Length);
        }
        loop {
            let logits = output.last_of(0).expect("the last row's logits are wanted");
            let Chosen { choice, text, finish } = self.accept(logits, session)?;
            let token = choice.token;
            if finish == Some(Finish::EndToken) {
                return Ok(Finish::EndToken);
            }
            let event = Event::Token { token, logprob: choice.logprob, top: choice.top };
            let mut is_asked_to_end = listener(event).is_break();
            if !text.is_empty() {
                is_asked_to_end |= listener(Event::Text(text)).is_break();
            }
            match finish {
                _ if is_asked_to_end => return Ok(Finish::Cancelled),
                Some(finish) => return Ok(finish),
                None => {}
            }
            let mut feeds = [Feed::answer(session, &token).best(n_best).cancelled_by(self.cancel)];
            step(&mut feeds, &mut output)?;
            feeds[0].outcome()?;
        }
    }
}
