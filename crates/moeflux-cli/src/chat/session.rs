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
use crate::chat::asking::{Asking, Ended, Reply, Settings};
use crate::chat::commands::{self, Action, Command, Typed as Parsed};
use crate::chat::display::Display;
use crate::chat::editor::{Editor, Line};
use crate::chat::file;
use crate::chat::opened::{Checked, Opened};
use crate::chat::status::Took;
use crate::chat::talk::Talk;
use crate::chat::terminal::Terminal;
use crate::chat::typed::Typed;
use crate::chat::wishes::{Stage, Wishes};
use crate::failure::{Failure, Outcome};
use crate::harmless::harmless;
use crate::print;
use crate::screen::style::Style;
use crate::screen::{Screen, cut, device};

/// The prompt for messages.
const PROMPT: &str = "> ";

/// Upper bound on the columns shown of a question that is taken back.
const QUESTION_COLUMNS: usize = 50;

/// A chat.
pub(crate) struct Chat {
    pub(crate) model: ModelArgs,
    pub(crate) context: Option<NonZeroUsize>,
    pub(crate) settings: Settings,
    pub(crate) talk: Talk,
    terminal: Terminal,
    screen: Screen<Stdout>,
    editor: Editor,
    wishes: Wishes,
    opened: Option<Opened>,
    typed: Typed,
    /// The file that the conversation was last written to or read from.
    file: Option<PathBuf>,
    /// Initial text of the next prompt.
    initial: String,
    /// Whether `initial` is a question that has no answer.
    is_question_back: bool,
    /// A line that was typed ahead and is processed next.
    queued: Option<Line>,
    /// Whether the model speaks next.
    is_due: bool,
    last: Option<Took>,
}

/// Lines shown of the last answer of a loaded conversation.
const N_LINES_OF_END: usize = 12;

/// Whether the chat continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    GoOn,
    Quit,
}

impl Chat {
    /// Creates a chat without a model.
    pub(crate) fn new(
        (model, context): (ModelArgs, Option<NonZeroUsize>),
        settings: Settings,
        (terminal, editor): (Terminal, Editor),
    ) -> Self {
        let screen = Screen::new(stdout(), terminal.abilities, device::n_columns());
        let wishes = Wishes::listen(&terminal);
        Self {
            model,
            context,
            settings,
            talk: Talk::default(),
            terminal,
            screen,
            editor,
            wishes,
            opened: None,
            typed: Typed::default(),
            file: None,
            initial: String::new(),
            is_question_back: false,
            queued: None,
            is_due: false,
            last: None,
        }
    }

    /// Opens the named model, or the built-in one.
    pub(crate) fn open(&mut self, named: Option<&Path>) -> Outcome {
        let checked = Checked::new(named, &self.model, self.context)?;
        self.opened = None;
        self.wishes.enter(Stage::Loading);
        self.terminal.turn_signals_on();
        let opened = checked.open(&self.model, &self.wishes.interrupt);
        self.terminal.turn_signals_off();
        self.wishes.enter(Stage::Prompt);
        let opened = self.opened.insert(opened?);
        if !opened.chat.reads_calls() && !self.talk.tools().is_empty() {
            self.note("tool calls stay text: the chat template has no known call format")?;
        }
        Ok(())
    }

    /// Runs until the user ends the chat.
    pub(crate) fn run(mut self) -> Outcome {
        if self.terminal.is_typed && self.screen.is_terminal() {
            let name = self.opened.as_ref().map_or("no model", |opened| &opened.name);
            let greeting = format!("{name}; /help lists the commands, Ctrl-D ends the chat");
            self.screen.line(Style::DIM, &greeting)?;
        }
        loop {
            if !self.screen.has_reader() {
                return Ok(());
            }
            if std::mem::take(&mut self.is_due) {
                self.answer()?;
                continue;
            }
            match self.read()? {
                Line::End => return Ok(()),
                Line::Interrupted => self.say("Ctrl-D or /quit ends the chat")?,
                Line::Text(text) => {
                    let next = self.take(&text);
                    if self.survive(next)? == Some(Next::Quit) {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Returns the next line: typed ahead, or read now.
    fn read(&mut self) -> Outcome<Line> {
        if let Some(line) = self.queued.take() {
            if let Line::Text(text) = &line {
                self.screen.line(Style::PLAIN, &format!("{PROMPT}{text}"))?;
                self.editor.remember(text);
            }
            return Ok(line);
        }
        let prompt = match self.talk.open_call() {
            Some(call) => format!("result of {}> ", OneLine::name(&call.name)),
            None => PROMPT.to_owned(),
        };
        self.screen.end_line()?;
        let initial = std::mem::take(&mut self.initial);
        self.wishes.enter(Stage::Prompt);
        let line = self.editor.read(&prompt, &initial);
        self.screen.is_at_line_start();
        self.screen.set_columns(device::n_columns());
        Ok(line?)
    }

    fn take(&mut self, text: &str) -> Outcome<Next> {
        match commands::parse(text) {
            Parsed::Message(text) if text.trim().is_empty() => {}
            Parsed::Message(text) => {
                self.talk.say(text.to_owned());
                self.is_due = self.talk.is_unanswered();
            }
            Parsed::Command(Action::Quit, _) => return Ok(Next::Quit),
            Parsed::Command(action, argument) => self.act(action, argument)?,
            Parsed::Unknown(name) => {
                let problem = format!("there is no command /{name}: /help lists them");
                return Err(Error::Input(problem).into());
            }
            Parsed::Misused(command) => return Err(misused(&command)),
        }
        Ok(Next::GoOn)
    }

    /// Reports a failure and continues if input is interactive.
    fn survive<T>(&mut self, outcome: Outcome<T>) -> Outcome<Option<T>> {
        match outcome {
            Ok(done) => Ok(Some(done)),
            Err(failure) if self.terminal.is_typed => {
                self.tell("error", &failure.to_string())?;
                Ok(None)
            }
            Err(failure) => Err(failure),
        }
    }

    /// Queries the model. If that fails, says how to try again.
    fn answer(&mut self) -> Outcome {
        let asked = self.ask();
        if self.survive(asked)?.is_some() {
            return Ok(());
        }
        if self.talk.is_unanswered() {
            return self.note("/regenerate tries again");
        }
        let is_back = self.is_question_back;
        self.note(if is_back { "Enter tries again" } else { "the question is in the history" })
    }

    fn ask(&mut self) -> Outcome {
        let Some(opened) = &self.opened else {
            self.withdraw();
            return Err(Error::Input("there is no model: /model NAME opens one".into()).into());
        };
        let asking = Asking {
            opened,
            talk: &self.talk,
            settings: &self.settings,
            terminal: &self.terminal,
            screen: &mut self.screen,
            typed: &mut self.typed,
            wishes: &self.wishes,
        };
        let reply = asking.run();
        self.settings.n_asked += 1;
        match reply {
            Ok(reply) => self.heard(reply),
            Err(failure) => {
                self.take_typed(true);
                self.withdraw();
                Err(failure)
            }
        }
    }

    fn heard(&mut self, reply: Reply) -> Outcome {
        let Reply { said, ended, cut_calls, took } = reply;
        let is_said = said.is_some();
        if let Some(said) = said {
            self.talk.answer(said);
        }
        self.take_typed(!matches!(ended, Ended::Finished(_)) || self.talk.open_call().is_some());
        if is_said {
            self.report(&ended, &cut_calls, &took)?;
        } else {
            self.withdraw();
        }
        self.last = Some(took);
        match ended {
            Ended::Finished(_) => Ok(()),
            Ended::Stopped if self.terminal.is_typed => Ok(()),
            Ended::Stopped if !self.screen.has_reader() => Ok(()),
            Ended::Stopped => self.wishes.end_process(),
            Ended::Failed(failure) => Err(failure),
        }
    }

    /// Prints the notes below an answer.
    fn report(&mut self, ended: &Ended, cut_calls: &[String], took: &Took) -> Outcome {
        for name in cut_calls {
            let name = OneLine::name(name);
            self.note(&format!("an incomplete call of `{name}` was dropped"))?;
        }
        match ended {
            Ended::Finished(Finish::Length) => self.note("the answer reached the -n limit")?,
            Ended::Finished(Finish::ContextFull) => {
                let context = self.opened.as_ref().map_or(0, |it| it.service.context());
                self.note(&format!(
                    "the context of {context} tokens is full: /undo or /clear makes room, \
                     --context sets it"
                ))?;
            }
            _ => {}
        }
        if self.terminal.is_typed && self.screen.is_terminal() {
            self.screen.line(Style::DIM, &took.line(self.screen.n_columns()))?;
            self.screen.line(Style::PLAIN, "")?;
        }
        Ok(())
    }

    /// Puts text typed ahead into the next prompt, or queues it if Enter was pressed and nothing
    /// unexpected happened. Ctrl-D ends the chat in any case.
    fn take_typed(&mut self, is_kept: bool) {
        let is_end = self.typed.is_end();
        let (text, is_whole) = self.typed.take();
        if is_end {
            self.queued = Some(Line::End);
        } else if is_whole && !is_kept {
            self.queued = Some(Line::Text(text));
        } else if !text.is_empty() {
            self.initial = text;
        }
    }

    /// Moves an unanswered question back into the prompt, or leaves it in the history if other text
    /// was typed since.
    fn withdraw(&mut self) {
        let question = self.talk.withdraw().unwrap_or_default();
        self.is_question_back = self.initial.is_empty();
        if self.is_question_back {
            self.initial = question;
        }
    }

    fn act(&mut self, action: Action, argument: &str) -> Outcome {
        match action {
            Action::Help => self.say(&commands::help()),
            Action::Clear => {
                self.talk.clear();
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
    pub(crate) fn load(&mut self, path: &Path) -> Outcome {
        self.talk.replace(file::load(path)?);
        self.file = Some(path.to_owned());
        let messages = self.messages();
        let hint =
            if self.talk.is_unanswered() { "; /regenerate answers the last one" } else { "" };
        self.confirm(&format!("{messages}{hint}"))?;
        self.show_end()
    }

    /// Shows the end of a loaded conversation as a reminder.
    fn show_end(&mut self) -> Outcome {
        let (question, answer) = self.talk.end(N_LINES_OF_END);
        let question = question.map(|text| format!("> {}", harmless(text)));
        if let Some(question) = question.filter(|_| self.screen.is_terminal()) {
            let question = cut(&question, self.screen.n_columns() - 1).to_owned();
            self.screen.line(Style::PLAIN, &question)?;
            let mut display = Display::default();
            display.show(vec![AnswerPart::Text(answer)], &mut self.screen)?;
            display.end(&mut self.screen)?;
        }
        Ok(())
    }

    fn save(&mut self, path: PathBuf) -> Outcome {
        if self.talk.turns().is_empty() {
            return Err(Error::Input("there is no conversation to save yet".into()).into());
        }
        let is_other = self.file.as_deref() != Some(&path) && path.is_file();
        let question = format!("{} exists: overwrite it? [y/N] ", path.display());
        let own = match is_other && self.terminal.is_edited() && self.agrees(&question)? {
            true => Some(path.clone()),
            false => self.file.clone(),
        };
        file::save(&self.talk, &path, own.as_deref())?;
        self.confirm(&format!("{} in {}", self.messages(), path.display()))?;
        self.file = Some(path);
        Ok(())
    }

    fn agrees(&mut self, question: &str) -> Outcome<bool> {
        self.screen.end_line()?;
        let answer = self.editor.read(&harmless(question), "");
        self.screen.is_at_line_start();
        let answer = answer?;
        Ok(matches!(answer, Line::Text(text) if means_yes(&text, ask::Default::No)))
    }

    fn messages(&self) -> String {
        match self.talk.turns().len() {
            1 => "1 message".to_owned(),
            n_turns => format!("{n_turns} messages"),
        }
    }

    /// Opens another model. If that fails, the previous one is opened again.
    fn change_model(&mut self, named: &str) -> Outcome {
        let before = self.opened.as_ref().map(|opened| opened.named.clone());
        if named.is_empty() {
            let none = || "there is no model: /model NAME opens one".to_owned();
            let name = |it: &Opened| format!("{}, in {}", it.name, it.dir.display());
            return self.say(&self.opened.as_ref().map_or_else(none, name));
        }
        if let Err(failure) = self.open(Some(&file::path(named))) {
            if self.opened.is_none()
                && let Some(before) = before
            {
                self.open(before.as_deref())?;
            }
            return Err(failure);
        }
        let name = self.opened.as_ref().map_or_else(String::new, |opened| opened.name.clone());
        self.confirm(&format!("continuing with {name}"))
    }

    fn stats(&mut self) -> Outcome {
        let Some((last, opened)) = self.last.as_ref().zip(self.opened.as_ref()) else {
            return self.say("there is no answer yet");
        };
        let mut lines = vec![format!("model     {}", opened.name)];
        lines.extend(last.lines(opened.service.context()));
        self.say(&lines.join("\n"))
    }

    fn system(&mut self, argument: &str) -> Outcome {
        match argument {
            "" => {
                let none = || "there is no system message".to_owned();
                self.say(&self.talk.system().unwrap_or_else(none))
            }
            "off" => {
                self.talk.set_system(None);
                self.confirm("no system message")
            }
            text => {
                self.talk.set_system(Some(text.to_owned()));
                self.confirm("the system message is set; the next answer follows it")
            }
        }
    }

    fn think(&mut self, argument: &str) -> Outcome {
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

    fn tools(&mut self, argument: &str) -> Outcome {
        match argument {
            "" => {}
            "off" => self.talk.set_tools(Vec::new()),
            name => self.offer_tools(&file::path(name))?,
        }
        let names: Vec<&str> = self.talk.tools().iter().map(|tool| tool.name.as_str()).collect();
        let names = names.join(", ");
        self.say(&if names.is_empty() { "no tools".to_owned() } else { format!("tools: {names}") })
    }

    /// Sets the tools that answers may call from now on.
    pub(crate) fn offer_tools(&mut self, path: &Path) -> Outcome {
        self.talk.set_tools(file::tools(path)?);
        if self.opened.as_ref().is_some_and(|opened| !opened.chat.reads_calls()) {
            self.note("tool calls stay text: the chat template has no known call format")?;
        }
        Ok(())
    }

    fn undo(&mut self) -> Outcome {
        let Some(question) = self.talk.undo() else {
            return Err(Error::Input("there is nothing to take back".into()).into());
        };
        let begin = cut(&question, QUESTION_COLUMNS);
        let dots = if begin.len() < question.len() { ".." } else { "" };
        self.confirm(&format!("taken back: {begin}{dots}"))
    }

    fn regenerate(&mut self) -> Outcome {
        if !self.talk.take_back_answer() {
            return Err(Error::Input("there is no question to answer".into()).into());
        }
        self.is_due = true;
        let text = self.opened.as_ref().map(|opened| opened.chat.text());
        if text.is_some_and(|text| self.settings.sampling.config(text).temperature <= 0.0) {
            self.note("at temperature 0 the answer is likely to be the same")?;
        }
        Ok(())
    }

    /// Confirms an action, if output is interactive.
    fn confirm(&mut self, text: &str) -> Outcome {
        if self.screen.is_terminal() { self.say(text) } else { Ok(()) }
    }

    /// Prints the output of a command.
    fn say(&mut self, text: &str) -> Outcome {
        Ok(self.screen.line(Style::PLAIN, text)?)
    }

    fn note(&mut self, text: &str) -> Outcome {
        self.tell("note", text)
    }

    /// Prints a line that is not part of the result.
    fn tell(&mut self, kind: &str, text: &str) -> Outcome {
        if self.screen.is_terminal() {
            return Ok(self.screen.line(Style::PLAIN, &format!("{kind}: {text}"))?);
        }
        self.screen.end_line()?;
        print::aside(&format!("{kind}: {text}"));
        Ok(())
    }
}

fn misused(command: &Command) -> Failure {
    Error::Input(format!("write {}; /help lists all commands", command.usage())).into()
}
