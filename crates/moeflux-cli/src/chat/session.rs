//! The chat itself: reads input, carries out commands, and queries the model.
//!
//! **Invariant:** after a failure, the conversation is as it was before the failed action. Without
//! interactive input, the first failure ends the chat instead.

use std::io::{Stdout, stdout};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use moeflux::{Error, Finish};
use moeflux_chat::AnswerPart;
use moeflux_io::OneLine;

use crate::args::ModelArgs;
use crate::ask::{self, means_yes};
use crate::chat::asking::{AnswerEnd, AnswerRun, AnswerSettings, Reply};
use crate::chat::commands::{self, Action, ChatCommand, ChatInput};
use crate::chat::display::AnswerDisplay;
use crate::chat::editor::{Editor, InputLine};
use crate::chat::file;
use crate::chat::opened::{ChatModel, CheckedModel};
use crate::chat::status::AnswerStats;
use crate::chat::talk::Transcript;
use crate::chat::terminal::Terminal;
use crate::chat::typed::TypeAhead;
use crate::chat::wishes::{ChatActivity, SignalState};
use crate::failure::{CommandFailure, CommandResult};
use crate::harmless::sanitized;
use crate::print;
use crate::screen::style::Style;
use crate::screen::{Screen, cut, device};

/// The prompt for messages.
const PROMPT: &str = "> ";

/// Upper bound on the columns shown of a question that is taken back.
const QUESTION_COLUMNS: usize = 50;

/// A chat in the terminal: the conversation, the model, and the input and output.
pub(crate) struct TerminalChat {
    pub(crate) model: ModelArgs,
    pub(crate) context: Option<NonZeroUsize>,
    pub(crate) settings: AnswerSettings,
    pub(crate) transcript: Transcript,
    terminal: Terminal,
    screen: Screen<Stdout>,
    editor: Editor,
    signals: SignalState,
    loaded: Option<ChatModel>,
    type_ahead: TypeAhead,
    /// The file that the conversation was last written to or read from.
    file: Option<PathBuf>,
    /// Initial text of the next prompt.
    initial: String,
    /// Whether `initial` is a question that has no answer.
    is_question_back: bool,
    /// A line that was typed ahead and is processed next.
    queued: Option<InputLine>,
    /// Whether the model speaks next.
    answers_next: bool,
    last: Option<AnswerStats>,
}

/// Lines shown of the last answer of a loaded conversation.
const N_LINES_OF_END: usize = 12;

/// Whether the chat continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChatControl {
    Continue,
    Quit,
}

impl TerminalChat {
    /// Creates a chat without a model.
    pub(crate) fn new(
        (model, context): (ModelArgs, Option<NonZeroUsize>),
        settings: AnswerSettings,
        (terminal, editor): (Terminal, Editor),
    ) -> Self {
        let screen = Screen::new(stdout(), terminal.abilities, device::n_columns());
        let signals = SignalState::listen(&terminal);
        Self {
            model,
            context,
            settings,
            transcript: Transcript::default(),
            terminal,
            screen,
            editor,
            signals,
            loaded: None,
            type_ahead: TypeAhead::default(),
            file: None,
            initial: String::new(),
            is_question_back: false,
            queued: None,
            answers_next: false,
            last: None,
        }
    }

    /// Opens the named model, or the built-in one.
    pub(crate) fn open(&mut self, named: Option<&Path>) -> CommandResult {
        let checked = CheckedModel::new(named, &self.model, self.context)?;
        self.loaded = None;
        self.signals.enter(ChatActivity::Loading);
        self.terminal.turn_signals_on();
        let loaded = checked.open(&self.model, &self.signals.interrupt);
        self.terminal.turn_signals_off();
        self.signals.enter(ChatActivity::Prompt);
        let loaded = self.loaded.insert(loaded?);
        if !loaded.chat.reads_calls() && !self.transcript.tools().is_empty() {
            self.note("tool calls stay text: the chat template has no known call format")?;
        }
        Ok(())
    }

    /// Runs until the user ends the chat.
    pub(crate) fn run(mut self) -> CommandResult {
        if self.terminal.is_typed && self.screen.is_terminal() {
            let name = self.loaded.as_ref().map_or("no model", |loaded| &loaded.name);
            let greeting = format!("{name}; /help lists the commands, Ctrl-D ends the chat");
            self.screen.line(Style::DIM, &greeting)?;
        }
        loop {
            if !self.screen.has_reader() {
                return Ok(());
            }
            if std::mem::take(&mut self.answers_next) {
                self.answer()?;
                continue;
            }
            match self.read()? {
                InputLine::End => return Ok(()),
                InputLine::Interrupted => self.say("Ctrl-D or /quit ends the chat")?,
                InputLine::Text(text) => {
                    let next = self.take(&text);
                    if self.recover(next)? == Some(ChatControl::Quit) {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Returns the next line: typed ahead, or read now.
    fn read(&mut self) -> CommandResult<InputLine> {
        if let Some(line) = self.queued.take() {
            if let InputLine::Text(text) = &line {
                self.screen.line(Style::PLAIN, &format!("{PROMPT}{text}"))?;
                self.editor.remember(text);
            }
            return Ok(line);
        }
        let prompt = match self.transcript.pending_call() {
            Some(call) => format!("result of {}> ", OneLine::name(&call.name)),
            None => PROMPT.to_owned(),
        };
        self.screen.end_line()?;
        let initial = std::mem::take(&mut self.initial);
        self.signals.enter(ChatActivity::Prompt);
        let line = self.editor.read(&prompt, &initial);
        self.screen.is_at_line_start();
        self.screen.set_columns(device::n_columns());
        Ok(line?)
    }

    fn take(&mut self, text: &str) -> CommandResult<ChatControl> {
        match commands::parse(text) {
            ChatInput::Message(text) if text.trim().is_empty() => {}
            ChatInput::Message(text) => {
                self.transcript.add_input(text.to_owned());
                self.answers_next = self.transcript.is_unanswered();
            }
            ChatInput::Command(Action::Quit, _) => return Ok(ChatControl::Quit),
            ChatInput::Command(action, argument) => self.act(action, argument)?,
            ChatInput::Unknown(name) => {
                let problem = format!("there is no command /{name}: /help lists them");
                return Err(Error::Input(problem).into());
            }
            ChatInput::Misused(command) => return Err(misused(&command)),
        }
        Ok(ChatControl::Continue)
    }

    /// Reports a failure and continues if input is interactive.
    fn recover<T>(&mut self, outcome: CommandResult<T>) -> CommandResult<Option<T>> {
        match outcome {
            Ok(done) => Ok(Some(done)),
            Err(failure) if self.terminal.is_typed => {
                self.print_message("error", &failure.to_string())?;
                Ok(None)
            }
            Err(failure) => Err(failure),
        }
    }

    /// Queries the model. If that fails, says how to try again.
    fn answer(&mut self) -> CommandResult {
        let asked = self.ask();
        if self.recover(asked)?.is_some() {
            return Ok(());
        }
        if self.transcript.is_unanswered() {
            return self.note("/regenerate tries again");
        }
        let is_back = self.is_question_back;
        self.note(if is_back { "Enter tries again" } else { "the question is in the history" })
    }

    fn ask(&mut self) -> CommandResult {
        let Some(loaded) = &self.loaded else {
            self.withdraw();
            return Err(Error::Input("there is no model: /model NAME opens one".into()).into());
        };
        let run = AnswerRun {
            loaded,
            transcript: &self.transcript,
            settings: &self.settings,
            terminal: &self.terminal,
            screen: &mut self.screen,
            type_ahead: &mut self.type_ahead,
            signals: &self.signals,
        };
        let reply = run.run();
        self.settings.n_asked += 1;
        match reply {
            Ok(reply) => self.accept_reply(reply),
            Err(failure) => {
                self.take_type_ahead(true);
                self.withdraw();
                Err(failure)
            }
        }
    }

    fn accept_reply(&mut self, reply: Reply) -> CommandResult {
        let Reply { message, ended, cut_calls, stats } = reply;
        let is_answered = message.is_some();
        if let Some(message) = message {
            self.transcript.add_answer(message);
        }
        self.take_type_ahead(
            !matches!(ended, AnswerEnd::Finished(_)) || self.transcript.pending_call().is_some(),
        );
        if is_answered {
            self.report(&ended, &cut_calls, &stats)?;
        } else {
            self.withdraw();
        }
        self.last = Some(stats);
        match ended {
            AnswerEnd::Finished(_) => Ok(()),
            AnswerEnd::Stopped if self.terminal.is_typed => Ok(()),
            AnswerEnd::Stopped if !self.screen.has_reader() => Ok(()),
            AnswerEnd::Stopped => self.signals.end_process(),
            AnswerEnd::Failed(failure) => Err(failure),
        }
    }

    /// Prints the notes below an answer.
    fn report(
        &mut self,
        ended: &AnswerEnd,
        cut_calls: &[String],
        stats: &AnswerStats,
    ) -> CommandResult {
        for name in cut_calls {
            let name = OneLine::name(name);
            self.note(&format!("an incomplete call of `{name}` was dropped"))?;
        }
        match ended {
            AnswerEnd::Finished(Finish::Length) => self.note("the answer reached the -n limit")?,
            AnswerEnd::Finished(Finish::ContextFull) => {
                let context = self.loaded.as_ref().map_or(0, |it| it.service.context());
                self.note(&format!(
                    "the context of {context} tokens is full: /undo or /clear makes room, \
                     --context sets it"
                ))?;
            }
            _ => {}
        }
        if self.terminal.is_typed && self.screen.is_terminal() {
            self.screen.line(Style::DIM, &stats.line(self.screen.n_columns()))?;
            self.screen.line(Style::PLAIN, "")?;
        }
        Ok(())
    }

    /// Puts text typed ahead into the next prompt, or queues it if Enter was pressed and nothing
    /// unexpected happened. Ctrl-D ends the chat in any case.
    fn take_type_ahead(&mut self, is_kept: bool) {
        let is_end = self.type_ahead.is_end();
        let (text, is_whole) = self.type_ahead.take();
        if is_end {
            self.queued = Some(InputLine::End);
        } else if is_whole && !is_kept {
            self.queued = Some(InputLine::Text(text));
        } else if !text.is_empty() {
            self.initial = text;
        }
    }

    /// Moves an unanswered question back into the prompt, or leaves it in the history if other text
    /// was typed since.
    fn withdraw(&mut self) {
        let question = self.transcript.withdraw().unwrap_or_default();
        self.is_question_back = self.initial.is_empty();
        if self.is_question_back {
            self.initial = question;
        }
    }

    fn act(&mut self, action: Action, argument: &str) -> CommandResult {
        match action {
            Action::Help => self.say(&commands::help()),
            Action::Clear => {
                self.transcript.clear();
                self.confirm("the conversation is forgotten")
            }
            Action::Load => self.load(&file::path(argument)),
            Action::Save => self.save(file::path(argument)),
            Action::Model => self.change_model(argument),
            Action::Stats => self.stats(),
            Action::System => self.system(argument),
            Action::Think => self.think(argument),
            Action::Tools => self.tools(argument),
            Action::Undo => self.undo(),
            Action::Regenerate => self.regenerate(),
            Action::Quit => unreachable!("it is no action of a chat that goes on"),
        }
    }

    /// Loads a conversation and continues it.
    pub(crate) fn load(&mut self, path: &Path) -> CommandResult {
        self.transcript.replace(file::load(path)?);
        self.file = Some(path.to_owned());
        let messages = self.messages();
        let hint =
            if self.transcript.is_unanswered() { "; /regenerate answers the last one" } else { "" };
        self.confirm(&format!("{messages}{hint}"))?;
        self.show_end()
    }

    /// Shows the end of a loaded conversation as a reminder.
    fn show_end(&mut self) -> CommandResult {
        let (question, answer) = self.transcript.tail(N_LINES_OF_END);
        let question = question.map(|text| format!("> {}", sanitized(text)));
        if let Some(question) = question.filter(|_| self.screen.is_terminal()) {
            let question = cut(&question, self.screen.n_columns() - 1).to_owned();
            self.screen.line(Style::PLAIN, &question)?;
            let mut display = AnswerDisplay::default();
            display.show(vec![AnswerPart::Text(answer)], &mut self.screen)?;
            display.end(&mut self.screen)?;
        }
        Ok(())
    }

    fn save(&mut self, path: PathBuf) -> CommandResult {
        if self.transcript.turns().is_empty() {
            return Err(Error::Input("there is no conversation to save yet".into()).into());
        }
        let is_other = self.file.as_deref() != Some(&path) && path.is_file();
        let question = format!("{} exists: overwrite it? [y/N] ", path.display());
        let own = match is_other && self.terminal.is_edited() && self.ask_yes_no(&question)? {
            true => Some(path.clone()),
            false => self.file.clone(),
        };
        file::save(&self.transcript, &path, own.as_deref())?;
        self.confirm(&format!("{} in {}", self.messages(), path.display()))?;
        self.file = Some(path);
        Ok(())
    }

    fn ask_yes_no(&mut self, question: &str) -> CommandResult<bool> {
        self.screen.end_line()?;
        let answer = self.editor.read(&sanitized(question), "");
        self.screen.is_at_line_start();
        let answer = answer?;
        Ok(matches!(answer, InputLine::Text(text) if means_yes(&text, ask::DefaultAnswer::No)))
    }

    fn messages(&self) -> String {
        match self.transcript.turns().len() {
            1 => "1 message".to_owned(),
            n_turns => format!("{n_turns} messages"),
        }
    }

    /// Opens another model. If that fails, the previous one is opened again.
    fn change_model(&mut self, named: &str) -> CommandResult {
        let before = self.loaded.as_ref().map(|loaded| loaded.named.clone());
        if named.is_empty() {
            let none = || "there is no model: /model NAME opens one".to_owned();
            let name = |it: &ChatModel| format!("{}, in {}", it.name, it.dir.display());
            return self.say(&self.loaded.as_ref().map_or_else(none, name));
        }
        if let Err(failure) = self.open(Some(&file::path(named))) {
            if self.loaded.is_none()
                && let Some(before) = before
            {
                self.open(before.as_deref())?;
            }
            return Err(failure);
        }
        let name = self.loaded.as_ref().map_or_else(String::new, |loaded| loaded.name.clone());
        self.confirm(&format!("continuing with {name}"))
    }

    fn stats(&mut self) -> CommandResult {
        let Some((last, loaded)) = self.last.as_ref().zip(self.loaded.as_ref()) else {
            return self.say("there is no answer yet");
        };
        let mut lines = vec![format!("model     {}", loaded.name)];
        lines.extend(last.lines(loaded.service.context()));
        self.say(&lines.join("\n"))
    }

    fn system(&mut self, argument: &str) -> CommandResult {
        match argument {
            "" => {
                let none = || "there is no system message".to_owned();
                self.say(&self.transcript.system().unwrap_or_else(none))
            }
            "off" => {
                self.transcript.set_system(None);
                self.confirm("no system message")
            }
            text => {
                self.transcript.set_system(Some(text.to_owned()));
                self.confirm("the system message is set; the next answer follows it")
            }
        }
    }

    fn think(&mut self, argument: &str) -> CommandResult {
        match argument {
            "" => {}
            "on" => self.settings.thinking = Some(true),
            "off" => self.settings.thinking = Some(false),
            other => {
                let problem = format!("/think takes on or off, not `{}`", other.escape_debug());
                return Err(Error::Input(problem).into());
            }
        }
        self.say(match self.settings.thinking {
            None => "whether to think is left to the model",
            Some(true) => "answers begin with thoughts, if the model has any",
            Some(false) => "answers come without thoughts",
        })
    }

    fn tools(&mut self, argument: &str) -> CommandResult {
        match argument {
            "" => {}
            "off" => self.transcript.set_tools(Vec::new()),
            name => self.offer_tools(&file::path(name))?,
        }
        let names: Vec<&str> =
            self.transcript.tools().iter().map(|tool| tool.name.as_str()).collect();
        let names = names.join(", ");
        self.say(&if names.is_empty() { "no tools".to_owned() } else { format!("tools: {names}") })
    }

    /// Sets the tools that answers may call from now on.
    pub(crate) fn offer_tools(&mut self, path: &Path) -> CommandResult {
        self.transcript.set_tools(file::tools(path)?);
        if self.loaded.as_ref().is_some_and(|loaded| !loaded.chat.reads_calls()) {
            self.note("tool calls stay text: the chat template has no known call format")?;
        }
        Ok(())
    }

    fn undo(&mut self) -> CommandResult {
        let Some(question) = self.transcript.undo() else {
            return Err(Error::Input("there is nothing to take back".into()).into());
        };
        let begin = cut(&question, QUESTION_COLUMNS);
        let dots = if begin.len() < question.len() { ".." } else { "" };
        self.confirm(&format!("taken back: {begin}{dots}"))
    }

    fn regenerate(&mut self) -> CommandResult {
        if !self.transcript.take_back_answer() {
            return Err(Error::Input("there is no question to answer".into()).into());
        }
        self.answers_next = true;
        let text = self.loaded.as_ref().map(|loaded| loaded.chat.text());
        if text.is_some_and(|text| self.settings.sampling.config(text).temperature <= 0.0) {
            self.note("at temperature 0 the answer is likely to be the same")?;
        }
        Ok(())
    }

    /// Confirms an action, if output is interactive.
    fn confirm(&mut self, text: &str) -> CommandResult {
        if self.screen.is_terminal() { self.say(text) } else { Ok(()) }
    }

    /// Prints the output of a command.
    fn say(&mut self, text: &str) -> CommandResult {
        Ok(self.screen.line(Style::PLAIN, text)?)
    }

    fn note(&mut self, text: &str) -> CommandResult {
        self.print_message("note", text)
    }

    /// Prints a line that is not part of the result.
    fn print_message(&mut self, kind: &str, text: &str) -> CommandResult {
        if self.screen.is_terminal() {
            return Ok(self.screen.line(Style::PLAIN, &format!("{kind}: {text}"))?);
        }
        self.screen.end_line()?;
        print::stderr_line(&format!("{kind}: {text}"));
        Ok(())
    }
}

fn misused(command: &ChatCommand) -> CommandFailure {
    Error::Input(format!("write {}; /help lists all commands", command.usage())).into()
}
