//! The terminal side of a chat: reads lines, and prints what commands answer, notes and errors.
//!
//! **Invariant:** if stdout is not a terminal, it gets only requested output; notes and errors go
//! to stderr. This module is independent of models and conversations.

use std::io::{Stdout, stdout};

use crate::commands::chat::editor::{Editor, InputLine};
use crate::commands::chat::signals::{ChatActivity, SignalState};
use crate::commands::chat::terminal::Terminal;
use crate::failure::CommandResult;
use crate::output::ask::{self, means_yes};
use crate::output::print;
use crate::output::sanitizer::sanitized;
use crate::output::screen::style::Style;
use crate::output::screen::{Screen, device};
use crate::system::interrupt::Interrupt;

/// The prompt for messages.
pub(crate) const PROMPT: &str = "> ";

/// The input and output of a chat.
pub(crate) struct ChatConsole {
    pub(crate) terminal: Terminal,
    pub(crate) screen: Screen<Stdout>,
    editor: Editor,
    pub(crate) signals: SignalState,
}

impl ChatConsole {
    /// Creates the screen for the terminal, and starts to listen to signals.
    pub(crate) fn new(terminal: Terminal, editor: Editor) -> Self {
        let screen = Screen::new(stdout(), terminal.abilities, device::n_columns());
        let signals = SignalState::listen(&terminal);
        Self { terminal, screen, editor, signals }
    }

    /// Returns whether both input and output are a terminal.
    pub(crate) fn is_interactive(&self) -> bool {
        self.terminal.is_typed && self.screen.is_terminal()
    }

    /// Reads the next line. `initial` is already in it and can be edited.
    pub(crate) fn read(&mut self, prompt: &str, initial: &str) -> CommandResult<InputLine> {
        self.screen.end_line()?;
        self.signals.enter(ChatActivity::Prompt);
        let line = self.editor.read(prompt, initial);
        self.screen.is_at_line_start();
        self.screen.set_columns(device::n_columns());
        Ok(line?)
    }

    /// Shows a message that was typed ahead as if it had been read.
    pub(crate) fn echo(&mut self, text: &str) -> CommandResult {
        self.screen.line(Style::PLAIN, &format!("{PROMPT}{text}"))?;
        self.editor.remember(text);
        Ok(())
    }

    /// Asks a question whose answer is no by default.
    pub(crate) fn ask_yes_no(&mut self, question: &str) -> CommandResult<bool> {
        self.screen.end_line()?;
        let answer = self.editor.read(&sanitized(question), "");
        self.screen.is_at_line_start();
        let answer = answer?;
        Ok(matches!(answer, InputLine::Text(text) if means_yes(&text, ask::DefaultAnswer::No)))
    }

    /// Runs `load`, which a signal or Ctrl-C can interrupt.
    pub(crate) fn load<T>(&self, load: impl FnOnce(&Interrupt) -> T) -> T {
        self.signals.enter(ChatActivity::Loading);
        self.terminal.turn_signals_on();
        let loaded = load(&self.signals.interrupt);
        self.terminal.turn_signals_off();
        self.signals.enter(ChatActivity::Prompt);
        loaded
    }

    /// Confirms an action, if output is interactive.
    pub(crate) fn confirm(&mut self, text: &str) -> CommandResult {
        if self.screen.is_terminal() { self.say(text) } else { Ok(()) }
    }

    /// Prints the output of a command.
    pub(crate) fn say(&mut self, text: &str) -> CommandResult {
        Ok(self.screen.line(Style::PLAIN, text)?)
    }

    /// Prints a note, which is not part of the result.
    pub(crate) fn note(&mut self, text: &str) -> CommandResult {
        self.print_message("note", text)
    }

    /// Reports a failure and returns `None` if input is interactive, and fails otherwise.
    pub(crate) fn recover<T>(&mut self, outcome: CommandResult<T>) -> CommandResult<Option<T>> {
        match outcome {
            Ok(done) => Ok(Some(done)),
            Err(failure) if self.terminal.is_typed => {
                self.print_message("error", &failure.to_string())?;
                Ok(None)
            }
            Err(failure) => Err(failure),
        }
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
