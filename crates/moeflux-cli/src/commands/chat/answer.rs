//! One answer, from the conversation to its end: the prompt, the job and its events.
//!
//! **Invariant:** when an answer has ended, its job has ended too.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use moeflux::{Error, Finish, StopStrings};
use moeflux_chat::{
    Answer, AnswerRules, AskError, Assistant, ChatOptions, FinishedAnswer, PreparedPrompt,
};
use moeflux_schedule::{Event, Job, Progress, Refusal, Sink, Ticket};

use crate::commands::chat::console::ChatConsole;
use crate::commands::chat::display::AnswerDisplay;
use crate::commands::chat::model::ChatModel;
use crate::commands::chat::signals::ChatActivity;
use crate::commands::chat::stats::AnswerStats;
use crate::commands::chat::terminal::{ChatEvent, TerminalWaker};
use crate::commands::chat::transcript::Transcript;
use crate::commands::chat::type_ahead::TypeAhead;
use crate::failure::{CommandFailure, CommandResult};
use crate::options::sampling::SamplingArgs;
use crate::output::progress::Bar;
use crate::output::screen::{cut_start, device};
use crate::system::clock;

/// The longest interval between updates of the footer.
const TICK: Duration = Duration::from_millis(100);

/// Progress is shown only after a wait longer than this.
const PROGRESS_DELAY: Duration = Duration::from_millis(300);

/// Settings for answers.
#[derive(Debug)]
pub(crate) struct AnswerSettings {
    pub(crate) sampling: SamplingArgs,
    pub(crate) n_tokens_max: Option<usize>,
    pub(crate) stops: StopStrings,
    /// `None` leaves the choice to the template.
    pub(crate) thinking: Option<bool>,
    /// Number of answers so far, added to the seed so that each answer has its own random numbers.
    pub(crate) n_answers: u64,
}

/// One request to the model, with everything that it needs.
pub(crate) struct AnswerRun<'a> {
    pub(crate) loaded: &'a ChatModel,
    pub(crate) transcript: &'a Transcript,
    pub(crate) settings: &'a AnswerSettings,
    pub(crate) console: &'a mut ChatConsole,
    pub(crate) type_ahead: &'a mut TypeAhead,
}

/// How an answer ended.
#[derive(Debug)]
pub(crate) enum AnswerEnd {
    Finished(Finish),
    /// The user stopped it.
    Stopped,
    Failed(CommandFailure),
}

/// The result of one request to the model.
#[derive(Debug)]
pub(crate) struct Reply {
    /// `None` if the answer is empty.
    pub(crate) message: Option<Assistant>,
    pub(crate) ended: AnswerEnd,
    /// Names of tools whose calls were cut short.
    pub(crate) cut_calls: Vec<String>,
    pub(crate) stats: AnswerStats,
}

/// Forwards events of a job and wakes the terminal.
struct EventForwarder {
    events: Sender<Event>,
    waker: TerminalWaker,
}

impl Sink for EventForwarder {
    fn put(&mut self, event: Event) {
        // The receiver may be gone.
        drop(self.events.send(event));
        self.waker.wake();
    }
}

/// An answer in progress.
struct PendingAnswer {
    answer: Answer,
    display: AnswerDisplay,
    stats: AnswerStats,
    asked_at: Instant,
    /// The progress bar, shown if there is no footer.
    bar: Option<Bar>,
}

impl AnswerRun<'_> {
    /// Requests the next answer and shows it.
    pub(crate) fn run(mut self) -> CommandResult<Reply> {
        let prompt = self.prepare()?;
        let answer = prompt.answer_with_ids(&self.transcript.call_id_prefix());
        let job = self.job(&prompt);
        let stats = AnswerStats::begin(job.prompt.len(), &self.loaded.service.stats());
        let asked_at = clock::instant();
        let mut pending =
            PendingAnswer { answer, display: AnswerDisplay::default(), stats, asked_at, bar: None };
        let (events, receiver) = channel();
        let sink = Box::new(EventForwarder { events, waker: self.console.terminal.waker() });
        self.console.signals.enter(ChatActivity::Answering);
        let ticket = self.loaded.service.submit(job, sink);
        let ticket = ticket.map_err(refused)?;
        let ended = self.receive(&receiver, ticket, &mut pending)?;
        self.end(pending, ended)
    }

    fn prepare(&self) -> CommandResult<PreparedPrompt> {
        let options = ChatOptions {
            thinking: self.settings.thinking,
            now_seconds: Some(clock::seconds_since_1970()),
            ..ChatOptions::default()
        };
        let conversation = self.transcript.conversation();
        let prompt = self.loaded.chat.ask(&conversation, &AnswerRules::default(), &options);
        Ok(prompt.map_err(|error| match error {
            AskError::Prompt(error) => error,
            other => Error::Unsupported(other.to_string()),
        })?)
    }

    fn job(&self, prompt: &PreparedPrompt) -> Job {
        let AnswerSettings { sampling, n_tokens_max, stops, n_answers, .. } = self.settings;
        let mut sampling = sampling.config(self.loaded.chat.text());
        sampling.seed = sampling.seed.wrapping_add(*n_answers);
        Job { n_tokens_max: *n_tokens_max, stops: stops.clone(), ..prompt.job(sampling) }
    }

    fn receive(
        &mut self,
        events: &Receiver<Event>,
        ticket: Ticket,
        pending: &mut PendingAnswer,
    ) -> CommandResult<AnswerEnd> {
        loop {
            let mut is_stop_typed = false;
            match self.console.terminal.wait(events, TICK) {
                ChatEvent::Event(event) => {
                    if let Some(ended) = self.handle_event(event, pending)? {
                        return Ok(ended);
                    }
                }
                ChatEvent::Keys(bytes) => is_stop_typed = self.type_ahead.push(&bytes),
                ChatEvent::HungUp => self.end_process(),
                ChatEvent::Closed => return Ok(AnswerEnd::Failed(stopped())),
                ChatEvent::Nothing => {}
            }
            if is_stop_typed
                || self.console.signals.is_stop_requested()
                || !self.console.screen.has_reader()
            {
                drop(ticket);
                self.wait_for_end()?;
                return Ok(AnswerEnd::Stopped);
            }
            self.refresh(pending, ticket.progress())?;
        }
    }

    /// Handles an event of the job. Returns how the answer ended, if it has.
    fn handle_event(
        &mut self,
        event: Event,
        pending: &mut PendingAnswer,
    ) -> CommandResult<Option<AnswerEnd>> {
        let PendingAnswer { answer, display, stats, .. } = pending;
        let parts = match event {
            Event::Begun { n_cached_tokens, n_cached_drive_tokens, missed, .. } => {
                (stats.n_cached_tokens, stats.missed) = (n_cached_tokens, missed);
                stats.n_cached_drive_tokens = n_cached_drive_tokens;
                return Ok(None);
            }
            Event::Token { token, text, .. } => {
                pending.bar = None;
                stats.token();
                answer.token(token.token, &text)
            }
            Event::Finished { finish, rest, .. } => {
                let parts = answer.end(&rest, finish);
                display.show(parts, &mut self.console.screen)?;
                return Ok(Some(AnswerEnd::Finished(finish)));
            }
            Event::Failed(error) => return Ok(Some(AnswerEnd::Failed(error.into()))),
            _ => return Ok(None),
        };
        display.show(parts, &mut self.console.screen)?;
        Ok(None)
    }

    /// Waits for the current step to end. A second Ctrl-C ends the process instead.
    fn wait_for_end(&mut self) -> CommandResult {
        self.console.signals.enter(ChatActivity::Stopping);
        let (_sender, no_events) = channel();
        let began = clock::instant();
        while !self.loaded.service.is_idle() {
            match self.console.terminal.wait(&no_events, TICK / 10) {
                ChatEvent::Keys(bytes) if self.type_ahead.push(&bytes) => self.end_process(),
                ChatEvent::HungUp => self.end_process(),
                _ => {}
            }
            if began.elapsed() > PROGRESS_DELAY {
                let line = "stopping; press Ctrl-C again to end the chat".to_owned();
                self.set_footer(Some(line))?;
            }
        }
        Ok(())
    }

    fn end_process(&mut self) -> ! {
        // If the screen cannot be written to, there is no last line to end.
        drop(self.console.screen.set_footer(Vec::new()));
        drop(self.console.screen.end_line());
        self.console.signals.end_process()
    }

    fn refresh(&mut self, pending: &mut PendingAnswer, progress: Progress) -> CommandResult {
        let is_slow = pending.answer.n_tokens() == 0 && pending.asked_at.elapsed() > PROGRESS_DELAY;
        if is_slow && !self.console.screen.is_terminal() {
            let bar = pending.bar.get_or_insert_with(|| Bar::tokens("reading", progress.n_total));
            bar.set(progress.n_done as u64);
        }
        self.set_footer(is_slow.then(|| reading(progress)))
    }

    /// Shows the current activity and the typed text in the footer.
    fn set_footer(&mut self, line: Option<String>) -> CommandResult {
        if !self.console.screen.has_footer() {
            return Ok(());
        }
        self.console.screen.set_columns(device::n_columns());
        let end = if self.type_ahead.is_whole() { "  (sent next)" } else { "" };
        let n_columns = self.console.screen.n_columns().saturating_sub(3 + end.len());
        let typed = self.type_ahead.last_line();
        let typed = typed.map(|line| format!("> {}{end}", cut_start(line, n_columns)));
        let end =
            self.type_ahead.is_end().then(|| "> (the chat ends after this answer)".to_owned());
        let typed = typed.or(end);
        Ok(self.console.screen.set_footer(line.into_iter().chain(typed).collect())?)
    }

    fn end(self, pending: PendingAnswer, ended: AnswerEnd) -> CommandResult<Reply> {
        let PendingAnswer { mut answer, mut display, mut stats, bar, .. } = pending;
        drop(bar);
        if !matches!(ended, AnswerEnd::Finished(_)) {
            let rest = answer.end("", Finish::Cancelled);
            display.show(rest, &mut self.console.screen)?;
        }
        self.console.screen.set_footer(Vec::new())?;
        display.end(&mut self.console.screen)?;
        stats.end(&self.loaded.service.stats());
        let is_answered = answer.n_tokens() > 0 || matches!(ended, AnswerEnd::Finished(_));
        let FinishedAnswer { said, cut_calls, kept, .. } = answer.finished();
        if let Some(kept) = kept {
            self.loaded.chat.keep(kept);
        }
        Ok(Reply { message: is_answered.then_some(said), ended, cut_calls, stats })
    }
}

/// Returns the progress message shown while a prompt is processed.
fn reading(progress: Progress) -> String {
    let Progress { n_done, n_total, left } = progress;
    let left = left.map(|left| match left.as_secs() {
        0 => ", less than 1 s left".to_owned(),
        seconds @ 1..120 => format!(", {seconds} s left"),
        seconds => format!(", {} min left", seconds / 60),
    });
    format!("reading {n_done} of {n_total} tokens{}", left.unwrap_or_default())
}

fn refused(refusal: Refusal) -> CommandFailure {
    let problem = match refusal {
        Refusal::TooLong { n_prompt_tokens, n_context, .. } => format!(
            "the conversation has {n_prompt_tokens} tokens, and the context holds {n_context} with \
             the answer: /undo or /clear makes room, --context sets it"
        ),
        Refusal::Invalid(error) => return error.into(),
        _ => return stopped(),
    };
    Error::Input(problem).into()
}

fn stopped() -> CommandFailure {
    let problem = "the engine has stopped: /model with the name of a model opens it again";
    Error::Stopped(problem.to_owned()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_states_the_time_left() {
        let note = |seconds: Option<u64>| {
            let left = seconds.map(Duration::from_secs);
            reading(Progress { n_done: 5, n_total: 9, left })
        };
        assert_eq!(note(None), "reading 5 of 9 tokens");
        assert_eq!(note(Some(0)), "reading 5 of 9 tokens, less than 1 s left");
        assert_eq!(note(Some(119)), "reading 5 of 9 tokens, 119 s left");
        assert_eq!(note(Some(600)), "reading 5 of 9 tokens, 10 min left");
    }
}
