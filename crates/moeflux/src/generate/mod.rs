//! Generates an answer to a prompt, token by token: sample, decode, until something ends it.
//!
//! A [`Generation`] takes the logits of the last token and chooses the next token, and the tokens
//! that a mask forces after it. The caller feeds them, alone or with other sessions in one step;
//! [`Generation::run`] is the loop for one session.
//! **Invariant:** the session holds the prompt and every token that was reported and fed. A token
//! that ends the answer is neither reported nor fed. Nothing here measures time; listeners do.

mod bound;
mod stream;

pub use stream::{AnswerTokens, Generated};

use std::fmt;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::{Error, Result};
use crate::forward::{Logits, StepProgress};
use crate::generate::bound::ForcingMask;
use crate::ids::TokenId;
use crate::sample::{Choice, LogitMask, Sampler};
use crate::session::{Feed, Session, StepOutput, Wanted, step};
use crate::text::{EndTokens, SpecialText, StopStrings, TextStream, Tokenizer};

/// One answer in progress.
pub struct Generation<'a> {
    sampler: Sampler,
    mask: Option<ForcingMask<'a>>,
    answer: AnswerState<'a>,
    end_tokens: &'a EndTokens,
    cancel: Option<&'a AtomicBool>,
}

/// The text and the tokens of an answer so far, and whether it has ended.
struct AnswerState<'a> {
    stream: TextStream<'a>,
    stops: StopStrings,
    n_tokens: usize,
    /// The last of these, which the session does not hold yet.
    n_unfed: usize,
    n_tokens_max: usize,
    /// Whether the model ended the answer; otherwise it may end inside a character.
    has_ended: bool,
}

/// The result of choosing a token.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Chosen<'g> {
    /// The chosen token, which may end the answer.
    pub choice: Choice<'g>,
    /// The next part of the answer's text that is final.
    pub text: &'g str,
    /// Why the answer ends here. If `None`, the token must be fed, followed by the tokens from
    /// [`Generation::take_forced`]; the logits of the last one are needed next.
    pub finish: Option<Finish>,
}

/// Something that happens during [`Generation::run`].
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
        /// The token.
        token: TokenId,
        /// Its log-probability, if the sampler is configured to compute it.
        logprob: Option<f32>,
        /// The most likely tokens, if the sampler is configured to return them.
        top: &'a [(TokenId, f32)],
    },
    /// The next part of the answer's text is final.
    Text(&'a str),
}

/// Receives events. `Break` ends the answer; the text of a token that was reported still follows.
pub type Listener<'a> = dyn FnMut(Event<'_>) -> ControlFlow<()> + 'a;

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Finish {
    /// An end token was chosen.
    EndToken,
    /// A stop string was found.
    StopString,
    /// The maximum number of tokens was reached.
    Length,
    /// The session is full.
    ContextFull,
    /// The listener or the flag of [`Generation::cancelled_by`] cancelled it.
    Cancelled,
}

impl Finish {
    /// Returns the reason as one word for machines.
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
        let AnswerState { stops, n_tokens, n_tokens_max, .. } = &self.answer;
        shown.field("stops", stops).field("end_tokens", &self.end_tokens);
        shown.field("n_tokens", n_tokens).field("n_tokens_max", n_tokens_max);
        shown.finish_non_exhaustive()
    }
}

impl AnswerState<'_> {
    /// Appends a token other than an end token. Returns why the answer ends with it, if it does.
    fn take(&mut self, token: TokenId, session: &Session) -> Option<Finish> {
        let n_before = session.tokens().len() + self.n_unfed;
        self.n_tokens += 1;
        self.n_unfed += 1;
        self.stops.push(self.stream.push(token));
        if self.stops.stopped().is_some() {
            Some(Finish::StopString)
        } else if self.n_tokens >= self.n_tokens_max {
            Some(Finish::Length)
        } else if n_before == session.context() {
            Some(Finish::ContextFull)
        } else {
            None
        }
    }
}

impl<'a> Generation<'a> {
    /// Creates a generation of at most `n_tokens_max` tokens.
    #[must_use]
    pub fn new(
        sampler: Sampler,
        tokenizer: &'a Tokenizer,
        end_tokens: &'a EndTokens,
        n_tokens_max: usize,
    ) -> Self {
        let stream = TextStream::new(tokenizer, SpecialText::Hidden);
        let stops = StopStrings::default();
        let (n_tokens, n_unfed, has_ended) = (0, 0, false);
        let answer = AnswerState { stream, stops, n_tokens, n_unfed, n_tokens_max, has_ended };
        Self { sampler, mask: None, answer, end_tokens, cancel: None }
    }

    /// Restricts the choice to tokens that the mask allows. Forced tokens are taken without drawing
    /// a random number.
    #[must_use]
    pub fn with_mask(self, mask: impl LogitMask + 'a) -> Self {
        Self { mask: Some(ForcingMask::new(Box::new(mask))), ..self }
    }

    /// Includes special tokens in the text as they are written in the vocabulary. By default they
    /// have no text.
    #[must_use]
    pub fn with_special_text(self) -> Self {
        let stream = self.answer.stream.with_special(SpecialText::Shown);
        Self { answer: AnswerState { stream, ..self.answer }, ..self }
    }

    /// Ends the answer before any of these strings.
    #[must_use]
    pub fn with_stops(self, stops: StopStrings) -> Self {
        Self { answer: AnswerState { stops, ..self.answer }, ..self }
    }

    /// Cancels the answer once the flag is set. It is checked between the layers of a step, while
    /// the prompt is read and while the answer is computed.
    #[must_use]
    pub fn cancelled_by(self, flag: &'a AtomicBool) -> Self {
        Self { cancel: Some(flag), ..self }
    }

    /// Returns how many of the largest logits [`Generation::accept`] needs; `None` if all.
    #[must_use]
    pub fn n_best_needed(&self) -> Option<usize> {
        // A mask may forbid any of the largest logits.
        self.sampler.n_best_needed().filter(|_| self.mask.is_none())
    }

    /// Chooses a token from the logits of the session's last one.
    ///
    /// # Errors
    ///
    /// Errors of sampling; [`Error::Input`] if there is a mask and not all logits are given, or if
    /// the mask fails.
    pub fn accept(&mut self, logits: Logits<'_>, session: &Session) -> Result<Chosen<'_>> {
        let Self { sampler, mask, answer, end_tokens, .. } = self;
        answer.n_unfed = 0;
        let history = session.tokens();
        let choice = match (logits, mask) {
            (Logits::Best(_), Some(_)) => {
                let problem = "an answer with a mask needs all logits: see `n_best_needed`";
                return Err(Error::Input(problem.to_owned()));
            }
            (Logits::Best(best), None) => sampler.sample_best(best)?,
            (Logits::All(logits), None) => sampler.sample(logits, history, None)?,
            (Logits::All(logits), Some(mask)) => match mask.take_forced()? {
                Some(token) => sampler.given(logits, token)?,
                None => mask.choose((sampler, end_tokens), logits, history)?,
            },
        };
        if end_tokens.contains(choice.token) {
            answer.has_ended = true;
            return Ok(Chosen { choice, text: "", finish: Some(Finish::EndToken) });
        }
        let finish = answer.take(choice.token, session);
        Ok(Chosen { choice, text: answer.stops.text(), finish })
    }

    /// Returns the token that must follow those chosen and taken since the session grew. It is fed
    /// with them, in one step or in several. Returns `None` if the mask leaves a choice, or if
    /// log-probabilities are requested, which need the logits before each token.
    ///
    /// # Errors
    ///
    /// [`Error::Input`] if the mask fails.
    pub fn take_forced(&mut self, session: &Session) -> Result<Option<Chosen<'_>>> {
        let Some(mask) = &mut self.mask else { return Ok(None) };
        if self.sampler.config().n_logprobs.is_some() {
            return Ok(None);
        }
        let Some(token) = mask.take_forced()? else { return Ok(None) };
        let choice = Choice { token, logprob: None, top: &[] };
        if self.end_tokens.contains(token) {
            self.answer.has_ended = true;
            return Ok(Some(Chosen { choice, text: "", finish: Some(Finish::EndToken) }));
        }
        let finish = self.answer.take(token, session);
        Ok(Some(Chosen { choice, text: self.answer.stops.text(), finish }))
    }

    /// Returns the stop string that ended the answer. Must be called before [`Generation::rest`].
    #[must_use]
    pub fn stopped(&self) -> Option<&str> {
        self.answer.stops.stopped()
    }

    /// Returns the text that was held back, once the answer has ended. An answer that was cut
    /// inside a character ends before that character.
    pub fn rest(&mut self) -> String {
        let AnswerState { stream, stops, has_ended, .. } = &mut self.answer;
        let rest = if *has_ended { stream.finish() } else { stream.finish_cut() };
        stops.push(rest).to_owned() + stops.finish()
    }

    /// Feeds the prompt, generates the answer, and returns its text.
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

    /// Feeds the prompt and generates the answer, reporting events to `listener` as they happen.
    ///
    /// # Errors
    ///
    /// Errors of feeding or sampling. Cancellation is not an error.
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
            // The answer has ended, so the reply does not matter.
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
        let cancel = self.cancel;
        let watch = &mut |progress| match is_set(cancel) {
            true => ControlFlow::Break(()),
            false => listener(Event::Reading(progress)),
        };
        session.feed_to_choose(prompt, n_best, watch, &mut output)?;
        if listener(Event::PromptRead).is_break() {
            return Ok(Finish::Cancelled);
        }
        if self.answer.n_tokens_max == 0 {
            return Ok(Finish::Length);
        }
        let mut tokens = Vec::new();
        loop {
            let logits = output.last_of(0).expect("the last row's logits are wanted");
            let chosen = self.accept(logits, session)?;
            if let Some(finish) = report(chosen, listener, &mut tokens) {
                return Ok(finish);
            }
            if let Some(finish) = self.report_forced(session, listener, &mut tokens)? {
                return Ok(finish);
            }
            self.feed(session, &tokens, &mut output)?;
            tokens.clear();
        }
    }

    /// Takes and reports the tokens forced after a token. Returns why the answer ends with them, if
    /// it does.
    fn report_forced(
        &mut self,
        session: &Session,
        listener: &mut Listener<'_>,
        tokens: &mut Vec<TokenId>,
    ) -> Result<Option<Finish>> {
        while let Some(chosen) = self.take_forced(session)? {
            if let Some(finish) = report(chosen, listener, tokens) {
                return Ok(Some(finish));
            }
        }
        Ok(None)
    }

    fn feed(
        &self,
        session: &mut Session,
        tokens: &[TokenId],
        output: &mut StepOutput,
    ) -> Result<()> {
        let n_rows_max = session.n_answer_rows_max()?;
        let mut rest = tokens;
        while !rest.is_empty() {
            let (run, after) = rest.split_at(rest.len().min(n_rows_max));
            rest = after;
            let wanted = if rest.is_empty() { Wanted::Last } else { Wanted::None };
            let feed = Feed::answer_run(session, run).wanting(wanted);
            let mut feeds = [feed.best(self.n_best_needed()).cancelled_by(self.cancel)];
            step(&mut feeds, output)?;
            feeds[0].outcome()?;
        }
        Ok(())
    }
}

fn is_set(flag: Option<&AtomicBool>) -> bool {
    flag.is_some_and(|it| it.load(Ordering::Relaxed))
}

/// Reports a token and collects it in `tokens` to be fed. Returns why the answer ends with it, if
/// it does.
fn report(
    chosen: Chosen<'_>,
    listener: &mut Listener<'_>,
    tokens: &mut Vec<TokenId>,
) -> Option<Finish> {
    let Chosen { choice, text, finish } = chosen;
    let token = choice.token;
    if finish == Some(Finish::EndToken) {
        return finish;
    }
    tokens.push(token);
    let event = Event::Token { token, logprob: choice.logprob, top: choice.top };
    let mut is_asked_to_end = listener(event).is_break();
    if !text.is_empty() {
        is_asked_to_end |= listener(Event::Text(text)).is_break();
    }
    if is_asked_to_end { Some(Finish::Cancelled) } else { finish }
}
