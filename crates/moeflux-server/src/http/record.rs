//! The one line that the log has of each request for an answer.
//!
//! **Invariant:** it is written when the request ends, however that is, and has nothing of a
//! prompt, an answer or a key.

use std::time::Duration;

use moeflux_schedule::{Missed, Times};
use tokio::time::Instant;

use crate::http::reply::{Problem, RequestId};
use moeflux_wire::{Reason, Usage};

/// What is known of a request. Dropping it writes the line.
#[derive(Debug)]
pub(crate) struct Record {
    id: String,
    dialect: &'static str,
    began: Instant,
    /// Of all prompts and answers.
    usage: Usage,
    /// What had been kept of its conversation and was dropped.
    missed: Option<Missed>,
    times: Times,
    ended: &'static str,
    status: u16,
    /// Why it was refused.
    reason: Option<&'static str>,
    /// What was wrong, where it is not the client's.
    problem: String,
    ignored: String,
}

impl Record {
    /// Of a request that has just come.
    pub(crate) fn new(id: &RequestId, dialect: &'static str) -> Self {
        Self {
            id: id.0.clone(),
            dialect,
            began: Instant::now(),
            usage: Usage::default(),
            missed: None,
            times: Times::default(),
            ended: "cancelled",
            status: 200,
            reason: None,
            problem: String::new(),
            ignored: String::new(),
        }
    }

    /// Fields that had no effect.
    pub(crate) fn ignored(&mut self, names: &[String]) {
        self.ignored = names.join(" ");
    }

    /// A prompt is being read.
    pub(crate) fn begun(&mut self, usage: Usage) {
        self.usage.n_prompt_tokens += usage.n_prompt_tokens;
        self.usage.n_cached_tokens += usage.n_cached_tokens;
        self.usage.n_replayed += usage.n_replayed;
    }

    /// The prompt goes on from a session that was dropped.
    pub(crate) fn missed(&mut self, missed: Option<Missed>) {
        self.missed = missed.or(self.missed);
    }

    /// A token of an answer came.
    pub(crate) fn token(&mut self) {
        self.usage.n_answer_tokens += 1;
    }

    /// An answer ended.
    pub(crate) fn finished(&mut self, reason: &Reason, times: &Times) {
        self.ended = reason.name();
        // Answers go on beside each other: the longest counts.
        let all = &mut self.times;
        all.queued = all.queued.max(times.queued);
        all.prompt = all.prompt.max(times.prompt);
        all.answer = all.answer.max(times.answer);
        all.drive_bytes = all.drive_bytes.max(times.drive_bytes);
    }

    /// The client went away, if the request has not failed.
    pub(crate) fn cancelled(&mut self) {
        if self.status == 200 {
            self.ended = "cancelled";
        }
    }

    /// The request was refused or failed.
    pub(crate) fn failed(&mut self, problem: &Problem) {
        let kind = problem.failure.kind;
        self.status = kind.status();
        self.reason = Some(kind.name());
        let is_ours = kind.is_ours();
        self.ended = if is_ours { "failed" } else { "refused" };
        self.problem = if is_ours {
            problem.failure.message.clone()
        } else {
            problem.failure.field.clone().unwrap_or_default()
        };
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        let Usage { n_prompt_tokens, n_cached_tokens, n_replayed, n_answer_tokens, .. } =
            self.usage;
        tracing::info!(
            target: "moeflux::request",
            id = %self.id,
            dialect = self.dialect,
            status = self.status,
            ended = self.ended,
            n_prompt = n_prompt_tokens,
            n_cached = n_cached_tokens,
            n_replayed = Some(n_replayed).filter(|n_turns| *n_turns > 0),
            n_dropped = self.missed.map(|missed| missed.n_tokens),
            dropped = self.missed.map(|missed| missed.reason.text()),
            n_answer = n_answer_tokens,
            queued_ms = ms(self.times.queued),
            prompt_ms = ms(self.times.prompt),
            answer_ms = ms(self.times.answer),
            whole_ms = ms(self.began.elapsed()),
            drive_bytes = self.times.drive_bytes,
            reason = self.reason,
            problem = shown(&self.problem),
            ignored = shown(&self.ignored),
            "request"
        );
    }
}

/// Nothing where there is nothing to say.
fn shown(text: &str) -> Option<&str> {
    Some(text).filter(|text| !text.is_empty())
}

fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
