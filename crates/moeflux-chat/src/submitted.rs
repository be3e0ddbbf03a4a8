//! An answer as an iterator over its parts, from a service that answers many prompts at once.
//!
//! **Invariant:** the parts are those that a session of its own gives for the same prompt.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, channel};

use moeflux::Result;
use moeflux::sample::SamplerConfig;
use moeflux_schedule::{Event, Job, Progress, Refusal, Service, Ticket};

use crate::answer::{Answer, AnswerPart, FinishedAnswer};
use crate::chat::Chat;
use crate::prepared::PreparedPrompt;

/// An answer that a service generates: see [`Chat::submit`]. The iterator ends after an error.
#[derive(Debug)]
pub struct SubmittedAnswer {
    events: Receiver<Event>,
    ticket: Ticket,
    answer: Answer,
    ready: VecDeque<AnswerPart>,
}

impl Chat {
    /// Submits a prompt to a service, and returns an iterator over its answer, of at most
    /// `n_tokens_max` tokens. Each call of `next` waits until a part is available; the service
    /// computes meanwhile, in steps that all its answers share. Dropping the iterator cancels the
    /// answer.
    ///
    /// # Errors
    ///
    /// As [`Service::submit`].
    pub fn submit(
        &self,
        service: &Service,
        prompt: &PreparedPrompt,
        (sampling, n_tokens_max): (SamplerConfig, usize),
    ) -> std::result::Result<SubmittedAnswer, Refusal> {
        let job = Job { n_tokens_max: Some(n_tokens_max), ..prompt.job(sampling) };
        let (sink, events) = channel();
        let ticket = service.submit(job, Box::new(sink))?;
        Ok(SubmittedAnswer { events, ticket, answer: prompt.answer(), ready: VecDeque::new() })
    }
}

impl SubmittedAnswer {
    /// Returns the progress of reading the prompt.
    #[must_use]
    pub fn progress(&self) -> Progress {
        self.ticket.progress()
    }

    /// Returns the answer so far; after the end of the iterator, the whole answer.
    #[must_use]
    pub fn finished(self) -> FinishedAnswer {
        self.answer.finished()
    }
}

impl Iterator for SubmittedAnswer {
    type Item = Result<AnswerPart>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.ready.is_empty() {
            // The service drops the sender after the last event.
            let parts = match self.events.recv().ok()? {
                Event::Token { token, text, .. } => self.answer.token(token.token, &text),
                Event::Finished { rest, finish, .. } => self.answer.end(&rest, finish),
                Event::Failed(error) => return Some(Err(error)),
                _ => Vec::new(),
            };
            self.ready.extend(parts);
        }
        self.ready.pop_front().map(Ok)
    }
}
