//! The log line of a request for an answer.
//!
//! **Invariant:** it is written once, whenever and however the request ends, and contains nothing
//! of a prompt, an answer or a key.

use std::time::Duration;

use moeflux_schedule::{Missed, PromptLookup, PromptOutcome, Times};
use tokio::time::Instant;

use crate::http::reply::{Problem, RequestId};
use moeflux_wire::{Reason, Usage};

/// The data of a request's log line. Dropping it writes the line.
#[derive(Debug)]
pub(crate) struct Record {
    id: String,
    dialect: &'static str,
    began: Instant,
    /// Totals of all prompts and answers.
    usage: Usage,
    /// The session of its conversation, if that was kept and then dropped.
    missed: Option<Missed>,
    /// What its last prompt found.
    outcome: Option<PromptOutcome>,
    /// If it diverged from a conversation: the tokens that both share, and those of the latter.
    diverged: Option<(usize, usize)>,
    times: Times,
    ended: &'static str,
    status: u16,
    /// Why it was refused or failed.
    reason: Option<&'static str>,
    /// The message of a failure that is not the client's, or else the name of the refused field.
    problem: String,
    ignored: String,
}

impl Record {
    /// Begins the record of a new request.
    pub(crate) fn new(id: &RequestId, dialect: &'static str) -> Self {
        Self {
            id: id.0.clone(),
            dialect,
            began: Instant::now(),
            usage: Usage::default(),
            missed: None,
            outcome: None,
            diverged: None,
            times: Times::default(),
            ended: "cancelled",
            status: 200,
            reason: None,
            problem: String::new(),
            ignored: String::new(),
        }
    }

    /// Notes fields that had no effect.
    pub(crate) fn ignored(&mut self, names: &[String]) {
        self.ignored = names.join(" ");
    }

    /// Adds a prompt that is being read.
    pub(crate) fn begun(&mut self, usage: Usage) {
        self.usage.n_prompt_tokens += usage.n_prompt_tokens;
        self.usage.n_cached_tokens += usage.n_cached_tokens;
        self.usage.n_cached_drive_tokens += usage.n_cached_drive_tokens;
        self.usage.n_replayed += usage.n_replayed;
    }

    /// Returns the request's id.
    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// Notes what a prompt found, and the dropped session that it continues.
    pub(crate) fn found(&mut self, missed: Option<Missed>, lookup: Option<&PromptLookup>) {
        self.missed = missed.or(self.missed);
        self.outcome = lookup.map(|it| it.outcome);
        let diverged = lookup.filter(|it| it.outcome == PromptOutcome::Diverged);
        self.diverged = diverged.map(|it| (it.n_shared, it.n_nearest));
    }

    /// Counts a token of an answer.
    pub(crate) fn token(&mut self) {
        self.usage.n_answer_tokens += 1;
    }

    /// Notes the end of an answer.
    pub(crate) fn finished(&mut self, reason: &Reason, times: &Times) {
        self.ended = reason.name();
        // Answers run concurrently, so the longest times count.
        let all = &mut self.times;
        all.queued = all.queued.max(times.queued);
        all.prompt = all.prompt.max(times.prompt);
        all.answer = all.answer.max(times.answer);
        all.drive_bytes = all.drive_bytes.max(times.drive_bytes);
    }

    /// Notes that the client went away, unless the request failed before.
    pub(crate) fn cancelled(&mut self) {
        if self.status == 200 {
            self.ended = "cancelled";
        }
    }

    /// Notes that the request was refused or failed.
    pub(crate) fn failed(&mut self, problem: &Problem) {
        let kind = problem.failure.kind;
        self.status = kind.status();
        self.reason = Some(kind.name());
        let is_server_fault = kind.is_server_fault();
        self.ended = if is_server_fault { "failed" } else { "refused" };
        self.problem = if is_server_fault {
            problem.failure.message.clone()
        } else {
            problem.failure.field.clone().unwrap_or_default()
        };
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        let usage = self.usage;
        tracing::info!(
            target: "moeflux::request",
            id = %self.id,
            dialect = self.dialect,
            status = self.status,
            ended = self.ended,
            n_prompt = usage.n_prompt_tokens,
            n_cached = usage.n_cached_tokens,
            n_cached_drive = usage.n_cached_drive_tokens,
            found = self.outcome.map(PromptOutcome::name),
            n_shared = self.diverged.map(|(n_shared, _)| n_shared),
            n_nearest = self.diverged.map(|(_, n_nearest)| n_nearest),
            n_replayed = Some(usage.n_replayed).filter(|n_turns| *n_turns > 0),
            n_dropped = self.missed.map(|missed| missed.n_tokens),
            dropped = self.missed.map(|missed| missed.reason.text()),
            n_answer = usage.n_answer_tokens,
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

/// Returns `None` for an empty text, which is not logged.
fn shown(text: &str) -> Option<&str> {
    Some(text).filter(|text| !text.is_empty())
}

fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
