//! One answer, from the conversation to its end: the prompt, the job and its events.
//!
//! **Invariant:** when an answer has ended, its job has ended too.

use std::io::Stdout;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use moeflux::{Error, Finish, StopStrings};
use moeflux_chat::{
    Answer, AnswerRules, AskError, Assistant, ChatOptions, FinishedAnswer, PreparedPrompt,
};
use moeflux_schedule::{Event, Job, Masks, Progress, Refusal, Sink, Ticket};

use crate::chat::display::Display;
use crate::chat::opened::Opened;
use crate::chat::status::Took;
use crate::chat::talk::Talk;
use crate::chat::terminal::{Heard, Terminal, Waker};
use crate::chat::typed::Typed;
use crate::chat::wishes::{Stage, Wishes};
use crate::clock;
use crate::failure::{Failure, Outcome};
use crate::progress::Bar;
use crate::sampling::SamplingArgs;
use crate::screen::{Screen, cut_start, device};

/// The longest interval between updates of the footer.
const TICK: Duration = Duration::from_millis(100);

/// Progress is shown only after a wait longer than this.
const PATIENCE: Duration = Duration::from_millis(300);

/// Settings for answers.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) sampling: SamplingArgs,
    pub(crate) n_tokens_max: Option<usize>,
    pub(crate) stops: StopStrings,
    /// `None` leaves the choice to the template.
    pub(crate) thinking: Option<bool>,
    /// Number of answers so far, added to the seed so that each answer has its own random numbers.
    pub(crate) n_asked: u64,
}

/// Everything needed for one answer.
pub(crate) struct Asking<'a> {
    pub(crate) opened: &'a Opened,
    pub(crate) talk: &'a Talk,
    pub(crate) settings: &'a Settings,
    pub(crate) terminal: &'a Terminal,
    pub(crate) screen: &'a mut Screen<Stdout>,
    pub(crate) typed: &'a mut Typed,
    pub(crate) wishes: &'a Wishes,
}

/// How an answer ended.
#[derive(Debug)]
pub(crate) enum Ended {
    Finished(Finish),
    /// The user stopped it.
    Stopped,
    Failed(Failure),
}

/// The result of one request to the model.
#[derive(Debug)]
pub(crate) struct Reply {
    /// `None` if the answer is empty.
    pub(crate) said: Option<Assistant>,
    pub(crate) ended: Ended,
    /// Names of tools whose calls were cut short.
    pub(crate) cut_calls: Vec<String>,
    pub(crate) took: Took,
}

/// Forwards events of a job and wakes the terminal.
struct Passed {
    events: Sender<Event>,
    waker: Waker,
}

impl Sink for Passed {
    fn put(&mut self, event: Event) {
        // The receiver may be gone.
        drop(self.events.send(event));
        self.waker.wake();
    }
}

/// An answer in progress.
struct Coming {
    answer: Answer,
    display: Display,
    took: Took,
    asked: Instant,
    /// The progress bar where there is no footer.
    bar: Option<Bar>,
}

impl Asking<'_> {
    /// Requests the next answer and shows it.
    pub(crate) fn run(mut self) -> Outcome<Reply> {
        let prompt = self.prepare()?;
        let answer = prompt.answer(&self.talk.call_stem());
        let job = self.job(prompt);
        let took = Took::begin(job.prompt.len(), &self.opened.service.stats());
        let asked = clock::instant();
        let mut coming = Coming { answer, display: Display::default(), took, asked, bar: None };
        let (events, heard) = channel();
        let sink = Box::new(Passed { events, waker: self.terminal.waker() });
        self.wishes.enter(Stage::Answering);
        let ticket = self.opened.service.submit(job, sink);
        let ticket = ticket.map_err(refused)?;
        let ended = self.hear(&heard, ticket, &mut coming)?;
        self.end(coming, ended)
    }

    fn prepare(&self) -> Outcome<PreparedPrompt> {
        let options = ChatOptions {
            thinking: self.settings.thinking,
            now_seconds: Some(clock::seconds_since_1970()),
            ..ChatOptions::default()
        };
        let conversation = self.talk.conversation();
        let prompt = self.opened.chat.ask(&conversation, &AnswerRules::default(), &options);
        Ok(prompt.map_err(|error| match error {
            AskError::Prompt(error) => error,
            other => Error::Unsupported(other.to_string()),
        })?)
    }

    fn job(&self, prompt: PreparedPrompt) -> Job {
        let Settings { sampling, n_tokens_max, stops, n_asked, .. } = self.settings;
        let mut sampling = sampling.config(self.opened.chat.text());
        sampling.seed = sampling.seed.wrapping_add(*n_asked);
        Job {
            split_points: prompt.split_points,
            n_tokens_max: *n_tokens_max,
            stops: stops.clone(),
            masks: prompt.mask.map(|mask| mask as Arc<dyn Masks>),
            ..Job::new(prompt.tokens, sampling)
        }
    }

    fn hear(
        &mut self,
        events: &Receiver<Event>,
        ticket: Ticket,
        coming: &mut Coming,
    ) -> Outcome<Ended> {
        loop {
            let mut stops = false;
            match self.terminal.wait(events, TICK) {
                Heard::Event(event) => {
                    if let Some(ended) = self.event(event, coming)? {
                        return Ok(ended);
                    }
                }
                Heard::Typed(bytes) => stops = self.typed.push(&bytes),
                Heard::HungUp => self.end_process(),
                Heard::Over => return Ok(Ended::Failed(stopped())),
                Heard::Quiet => {}
            }
            if stops || self.wishes.is_wished() || !self.screen.has_reader() {
                drop(ticket);
                self.wait_for_end()?;
                return Ok(Ended::Stopped);
            }
            self.refresh(coming, ticket.progress())?;
        }
    }

    /// Handles an event of the job. Returns how the answer ended, if it did.
    fn event(&mut self, event: Event, coming: &mut Coming) -> Outcome<Option<Ended>> {
        let Coming { answer, display, took, .. } = coming;
        let parts = match event {
            Event::Begun { n_cached_tokens, missed } => {
                (took.n_cached_tokens, took.missed) = (n_cached_tokens, missed);
                return Ok(None);
            }
            Event::Token { token, text, .. } => {
                coming.bar = None;
                took.token();
                answer.token(token.token, &text)
            }
            Event::Finished { finish, rest, .. } => {
                let parts = answer.end(&rest, finish);
                display.show(parts, self.screen)?;
                return Ok(Some(Ended::Finished(finish)));
            }
            Event::Failed(error) => return Ok(Some(Ended::Failed(error.into()))),
            _ => return Ok(None),
        };
        display.show(parts, self.screen)?;
        Ok(None)
    }

    /// Waits for the current step to end. A second Ctrl-C ends the process instead.
    fn wait_for_end(&mut self) -> Outcome {
        self.wishes.enter(Stage::Stopping);
        let (_sender, nothing) = channel();
        let began = clock::instant();
        while !self.opened.service.is_idle() {
            match self.terminal.wait(&nothing, TICK / 10) {
                Heard::Typed(bytes) if self.typed.push(&bytes) => self.end_process(),
                Heard::HungUp => self.end_process(),
                _ => {}
            }
            if began.elapsed() > PATIENCE {
                let line = "stopping; press Ctrl-C again to end the chat".to_owned();
                self.set_foot(Some(line))?;
            }
        }
        Ok(())
    }

    fn end_process(&mut self) -> ! {
        // If the screen cannot be written to, there is no last line to end.
        drop(self.screen.set_foot(Vec::new()));
        drop(self.screen.end_line());
        self.wishes.end_process()
    }

    fn refresh(&mut self, coming: &mut Coming, progress: Progress) -> Outcome {
        let is_slow = coming.answer.n_tokens() == 0 && coming.asked.elapsed() > PATIENCE;
        if is_slow && !self.screen.is_terminal() {
            let bar = coming.bar.get_or_insert_with(|| Bar::tokens("reading", progress.n_total));
            bar.set(progress.n_done as u64);
        }
        self.set_foot(is_slow.then(|| reading(progress)))
    }

    /// Shows the current activity and the typed text in the footer.
    fn set_foot(&mut self, line: Option<String>) -> Outcome {
        if !self.screen.has_foot() {
            return Ok(());
        }
        self.screen.set_columns(device::n_columns());
        let end = if self.typed.is_whole() { "  (sent next)" } else { "" };
        let n_columns = self.screen.n_columns().saturating_sub(3 + end.len());
        let typed = self.typed.last_line();
        let typed = typed.map(|line| format!("> {}{end}", cut_start(line, n_columns)));
        let end = self.typed.is_end().then(|| "> (the chat ends after this answer)".to_owned());
        let typed = typed.or(end);
        Ok(self.screen.set_foot(line.into_iter().chain(typed).collect())?)
    }

    fn end(self, coming: Coming, ended: Ended) -> Outcome<Reply> {
        let Coming { mut answer, mut display, mut took, bar, .. } = coming;
        drop(bar);
        if !matches!(ended, Ended::Finished(_)) {
            let rest = answer.end("", Finish::Cancelled);
            display.show(rest, self.screen)?;
        }
        self.screen.set_foot(Vec::new())?;
        display.end(self.screen)?;
        took.end(&self.opened.service.stats());
        let is_said = answer.n_tokens() > 0 || matches!(ended, Ended::Finished(_));
        let FinishedAnswer { said, cut_calls, kept, .. } = answer.finished();
        if let Some(kept) = kept {
            self.opened.chat.keep(kept);
        }
        Ok(Reply { said: is_said.then_some(said), ended, cut_calls, took })
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

fn refused(refusal: Refusal) -> Failure {
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

fn stopped() -> Failure {
    let problem = "the engine has stopped: /model with the name of a model opens it again";
    Error::Stopped(problem.to_owned()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_says_how_long_it_takes() {
        let said = |seconds: Option<u64>| {
            let left = seconds.map(Duration::from_secs);
            reading(Progress { n_done: 5, n_total: 9, left })
        };
        assert_eq!(said(None), "reading 5 of 9 tokens");
        assert_eq!(said(Some(0)), "reading 5 of 9 tokens, less than 1 s left");
        assert_eq!(said(Some(119)), "reading 5 of 9 tokens, 119 s left");
        assert_eq!(said(Some(600)), "reading 5 of 9 tokens, 10 min left");
    }
}
