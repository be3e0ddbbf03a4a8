//! The chat itself: reads input, carries out commands, and queries the model.
//!
//! **Invariant:** after a failure, the conversation is as it was before the failed action. Without
//! interactive input, the first failure ends the chat instead.

use std::path::Path;

use moeflux::{Error, Finish};
use moeflux_chat::AnswerPart;
use moeflux_io::OneLine;

use crate::commands::chat::answer::{AnswerEnd, AnswerRun, AnswerSettings, Reply};
use crate::commands::chat::commands::{self, Action, ChatCommand, ChatInput};
use crate::commands::chat::console::{ChatConsole, PROMPT};
use crate::commands::chat::conversation::ChatConversation;
use crate::commands::chat::display::AnswerDisplay;
use crate::commands::chat::editor::InputLine;
use crate::commands::chat::file;
use crate::commands::chat::model::{ChatModel, ModelSlot};
use crate::commands::chat::next_input::NextInput;
use crate::commands::chat::stats::AnswerStats;
use crate::failure::{CommandFailure, CommandResult};
use crate::output::sanitizer::sanitized;
use crate::output::screen::cut;
use crate::output::screen::style::Style;

/// Upper bound on the columns shown of a question that is taken back.
const QUESTION_COLUMNS: usize = 50;

/// Lines shown of the last answer of a loaded conversation.
const N_LINES_OF_END: usize = 12;

/// A chat in the terminal: the conversation, the model, and the input and output.
pub(crate) struct TerminalChat {
    settings: AnswerSettings,
    conversation: ChatConversation,
    // Above the model: the terminal is restored before the engine ends.
    console: ChatConsole,
    input: NextInput,
    model: ModelSlot,
    /// The statistics of the last answer.
    last: Option<AnswerStats>,
}

/// Whether the chat continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChatControl {
    Continue,
    Quit,
}

impl TerminalChat {
    /// Creates a chat without a conversation.
    pub(crate) fn new(model: ModelSlot, settings: AnswerSettings, console: ChatConsole) -> Self {
        let (conversation, input) = (ChatConversation::default(), NextInput::default());
        Self { settings, conversation, console, input, model, last: None }
    }

    /// Opens the named model, or the built-in one.
    pub(crate) fn open(&mut self, named: Option<&Path>) -> CommandResult {
        self.model.open(named, &self.console)?;
        if self.conversation.transcript.tools().is_empty() {
            return Ok(());
        }
        self.note_unread_calls()
    }

    /// Replaces the system message.
    pub(crate) fn set_system(&mut self, text: &str) {
        self.conversation.transcript.set_system(Some(text.to_owned()));
    }

    /// Runs until the user ends the chat. `cache_line` says where conversations are saved.
    pub(crate) fn run(mut self, cache_line: Option<&str>) -> CommandResult {
        if self.console.is_interactive() {
            let name = self.model.get().map_or("no model", |loaded| &loaded.name);
            let greeting = format!("{name}; /help lists the commands, Ctrl-D ends the chat");
            self.console.screen.line(Style::DIM, &greeting)?;
            if let Some(line) = cache_line {
                self.console.screen.line(Style::DIM, line)?;
            }
        }
        loop {
            if !self.console.screen.has_reader() {
                return Ok(());
            }
            if self.conversation.take_turn_of_model() {
                self.answer()?;
                continue;
            }
            match self.read()? {
                InputLine::End => return Ok(()),
                InputLine::Interrupted => self.console.say("Ctrl-D or /quit ends the chat")?,
                InputLine::Text(text) => {
                    let next = self.take(&text);
                    if self.console.recover(next)? == Some(ChatControl::Quit) {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Returns the next line: typed ahead, or read now.
    fn read(&mut self) -> CommandResult<InputLine> {
        if let Some(line) = self.input.take_queued() {
            if let InputLine::Text(text) = &line {
                self.console.echo(text)?;
            }
            return Ok(line);
        }
        let prompt = match self.conversation.transcript.pending_call() {
            Some(call) => format!("result of {}> ", OneLine::name(&call.name)),
            None => PROMPT.to_owned(),
        };
        self.console.read(&prompt, &self.input.take_initial())
    }

    fn take(&mut self, text: &str) -> CommandResult<ChatControl> {
        match commands::parse(text) {
            ChatInput::Message(text) if text.trim().is_empty() => {}
            ChatInput::Message(text) => self.conversation.add_input(text),
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

    /// Queries the model. If that fails, says how to try again.
    fn answer(&mut self) -> CommandResult {
        let asked = self.ask();
        if self.console.recover(asked)?.is_some() {
            return Ok(());
        }
        if self.conversation.transcript.is_unanswered() {
            return self.console.note("/regenerate tries again");
        }
        self.console.note(match self.input.is_question_back() {
            true => "Enter tries again",
            false => "the question is in the history",
        })
    }

    fn ask(&mut self) -> CommandResult {
        let Some(loaded) = self.model.get() else {
            self.withdraw();
            return Err(Error::Input("there is no model: /model NAME opens one".into()).into());
        };
        let run = AnswerRun {
            loaded,
            transcript: &self.conversation.transcript,
            settings: &self.settings,
            console: &mut self.console,
            type_ahead: &mut self.input.type_ahead,
        };
        let reply = run.run();
        self.settings.n_answers += 1;
        match reply {
            Ok(reply) => self.accept_reply(reply),
            Err(failure) => {
                self.input.take_type_ahead(true);
                self.withdraw();
                Err(failure)
            }
        }
    }

    fn accept_reply(&mut self, reply: Reply) -> CommandResult {
        let Reply { message, ended, cut_calls, stats } = reply;
        let is_answered = message.is_some();
        if let Some(message) = message {
            self.conversation.transcript.add_answer(message);
        }
        let is_finished = matches!(ended, AnswerEnd::Finished(_));
        let waits_for_result = self.conversation.transcript.pending_call().is_some();
        self.input.take_type_ahead(!is_finished || waits_for_result);
        if is_answered {
            self.report(&ended, &cut_calls, &stats)?;
        } else {
            self.withdraw();
        }
        self.last = Some(stats);
        match ended {
            AnswerEnd::Finished(_) => Ok(()),
            AnswerEnd::Stopped if self.console.terminal.is_typed => Ok(()),
            AnswerEnd::Stopped if !self.console.screen.has_reader() => Ok(()),
            AnswerEnd::Stopped => self.console.signals.end_process(),
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
            self.console.note(&format!("an incomplete call of `{name}` was dropped"))?;
        }
        match ended {
            AnswerEnd::Finished(Finish::Length) => {
                self.console.note("the answer reached the -n limit")?;
            }
            AnswerEnd::Finished(Finish::ContextFull) => {
                let context = self.model.get().map_or(0, |it| it.service.context());
                self.console.note(&format!(
                    "the context of {context} tokens is full: /undo or /clear makes room, \
                     --context sets it"
                ))?;
            }
            _ => {}
        }
        if self.console.is_interactive() {
            let screen = &mut self.console.screen;
            screen.line(Style::DIM, &stats.line(screen.n_columns()))?;
            screen.line(Style::PLAIN, "")?;
        }
        Ok(())
    }

    /// Takes an unanswered question back into the prompt.
    fn withdraw(&mut self) {
        let question = self.conversation.transcript.withdraw().unwrap_or_default();
        self.input.put_back(question);
    }

    fn act(&mut self, action: Action, argument: &str) -> CommandResult {
        match action {
            Action::Help => self.console.say(&commands::help()),
            Action::Clear => {
                self.conversation.transcript.clear();
                self.console.confirm("the conversation is forgotten")
            }
            Action::Load => self.load(&file::path(argument)),
            Action::Save => self.save(&file::path(argument)),
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
        self.conversation.load(path)?;
        let length = self.conversation.length();
        let hint = match self.conversation.transcript.is_unanswered() {
            true => "; /regenerate answers the last one",
            false => "",
        };
        self.console.confirm(&format!("{length}{hint}"))?;
        self.show_end()
    }

    /// Shows the end of a loaded conversation as a reminder.
    fn show_end(&mut self) -> CommandResult {
        let (question, answer) = self.conversation.transcript.tail(N_LINES_OF_END);
        let question = question.map(|text| format!("> {}", sanitized(text)));
        let screen = &mut self.console.screen;
        if let Some(question) = question.filter(|_| screen.is_terminal()) {
            screen.line(Style::PLAIN, cut(&question, screen.n_columns() - 1))?;
            let mut display = AnswerDisplay::default();
            display.show(vec![AnswerPart::Text(answer)], screen)?;
            display.end(screen)?;
        }
        Ok(())
    }

    fn save(&mut self, path: &Path) -> CommandResult {
        if self.conversation.transcript.turns().is_empty() {
            return Err(Error::Input("there is no conversation to save yet".into()).into());
        }
        let is_asked = self.conversation.is_foreign(path) && self.console.terminal.is_edited();
        let question = format!("{} exists: overwrite it? [y/N] ", path.display());
        if is_asked && self.console.ask_yes_no(&question)? {
            self.conversation.overwrite(path)?;
        } else {
            self.conversation.save(path)?;
        }
        let length = self.conversation.length();
        self.console.confirm(&format!("{length} in {}", path.display()))
    }

    /// Opens another model. If that fails, the previous one is opened again.
    fn change_model(&mut self, named: &str) -> CommandResult {
        let before = self.model.get().map(|loaded| loaded.named.clone());
        if named.is_empty() {
            let none = || "there is no model: /model NAME opens one".to_owned();
            let name = |it: &ChatModel| format!("{}, in {}", it.name, it.dir.display());
            return self.console.say(&self.model.get().map_or_else(none, name));
        }
        if let Err(failure) = self.open(Some(&file::path(named))) {
            if self.model.get().is_none()
                && let Some(before) = before
            {
                self.open(before.as_deref())?;
            }
            return Err(failure);
        }
        let name = self.model.get().map_or_else(String::new, |loaded| loaded.name.clone());
        self.console.confirm(&format!("continuing with {name}"))
    }

    fn stats(&mut self) -> CommandResult {
        let Some((last, loaded)) = self.last.as_ref().zip(self.model.get()) else {
            return self.console.say("there is no answer yet");
        };
        let mut lines = vec![format!("model     {}", loaded.name)];
        lines.extend(last.lines(loaded.service.context()));
        self.console.say(&lines.join("\n"))
    }

    fn system(&mut self, argument: &str) -> CommandResult {
        match argument {
            "" => {
                let none = || "there is no system message".to_owned();
                self.console.say(&self.conversation.transcript.system().unwrap_or_else(none))
            }
            "off" => {
                self.conversation.transcript.set_system(None);
                self.console.confirm("no system message")
            }
            text => {
                self.set_system(text);
                self.console.confirm("the system message is set; the next answer follows it")
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
        self.console.say(match self.settings.thinking {
            None => "whether to think is left to the model",
            Some(true) => "answers begin with thoughts, if the model has any",
            Some(false) => "answers come without thoughts",
        })
    }

    fn tools(&mut self, argument: &str) -> CommandResult {
        match argument {
            "" => {}
            "off" => self.conversation.transcript.set_tools(Vec::new()),
            name => self.offer_tools(&file::path(name))?,
        }
        let tools = self.conversation.transcript.tools();
        let names: Vec<&str> = tools.iter().map(|tool| tool.name.as_str()).collect();
        self.console.say(&match names.is_empty() {
            true => "no tools".to_owned(),
            false => format!("tools: {}", names.join(", ")),
        })
    }

    /// Sets the tools that answers may call from now on.
    pub(crate) fn offer_tools(&mut self, path: &Path) -> CommandResult {
        self.conversation.transcript.set_tools(file::tools(path)?);
        self.note_unread_calls()
    }

    /// Says so if the model's calls of tools are not recognised.
    fn note_unread_calls(&mut self) -> CommandResult {
        if self.model.get().is_none_or(|loaded| loaded.chat.reads_calls()) {
            return Ok(());
        }
        self.console.note("tool calls stay text: the chat template has no known call format")
    }

    fn undo(&mut self) -> CommandResult {
        let Some(question) = self.conversation.transcript.undo() else {
            return Err(Error::Input("there is nothing to take back".into()).into());
        };
        let begin = cut(&question, QUESTION_COLUMNS);
        let dots = if begin.len() < question.len() { ".." } else { "" };
        self.console.confirm(&format!("taken back: {begin}{dots}"))
    }

    fn regenerate(&mut self) -> CommandResult {
        if !self.conversation.take_back_answer() {
            return Err(Error::Input("there is no question to answer".into()).into());
        }
        let text = self.model.get().map(|loaded| loaded.chat.text());
        if text.is_some_and(|text| self.settings.sampling.config(text).temperature <= 0.0) {
            self.console.note("at temperature 0 the answer is likely to be the same")?;
        }
        Ok(())
    }
}

fn misused(command: &ChatCommand) -> CommandFailure {
    Error::Input(format!("write {}; /help lists all commands", command.usage())).into()
}
