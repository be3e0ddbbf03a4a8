//! Input of messages: edited lines with a history, or plain lines where editing is not possible.
//!
//! **Invariant:** text is returned as typed, except for the quotes around a message of several
//! lines and the backslashes that end its lines; only this user can read the history file.

use std::io::{BufRead, Read as _, Write as _, stderr, stdin, stdout};
use std::path::PathBuf;

use moeflux::{Error, Result};
use moeflux_io::is_harmful;
use rustyline::completion::{Completer, FilenameCompleter, Pair};
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::FileHistory;
use rustyline::validate::Validator;
use rustyline::{
    Cmd, ConditionalEventHandler, Config, Context, Event, EventContext, EventHandler, Helper,
    KeyCode, KeyEvent, Modifiers, RepeatCount,
};

use crate::commands::chat::commands::{Argument, COMMANDS};
use crate::output::sanitizer::sanitized;
use crate::system::cache;

/// Enclose a message of several lines.
const QUOTES: &str = "\"\"\"";

/// The prompt for further lines of a message.
const MORE: &str = "  ";

/// Upper bound on messages in the history.
const HISTORY_MAX: usize = 1000;

/// Longer messages are assumed to be pasted files, and are not kept.
const HISTORY_BYTES_MAX: usize = 64 << 10;

/// Upper bound on the length of a message.
const MESSAGE_BYTES_MAX: u64 = 64 << 20;

/// The result of reading a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum InputLine {
    Text(String),
    /// Ctrl-C.
    Interrupted,
    /// Ctrl-D, or the end of a file.
    End,
}

/// The source of lines.
pub(crate) enum Editor {
    Interactive(Box<LineEditor>),
    Plain(PromptTarget),
}

/// The destination of prompts for plain lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PromptTarget {
    /// Prompts are not shown.
    Nowhere,
    Stdout,
    Stderr,
}

/// An interactive line editor.
pub(crate) struct LineEditor {
    editor: rustyline::Editor<CommandCompleter, FileHistory>,
    /// `None` if no history is kept.
    history: Option<PathBuf>,
}

impl Editor {
    /// Creates an editor on the terminal.
    pub(crate) fn interactive(keeps_history: bool) -> Result<Self> {
        let config = Config::builder().max_history_size(HISTORY_MAX).map_err(failed)?;
        let config = config.history_ignore_dups(true).map_err(failed)?.build();
        let mut editor = rustyline::Editor::with_config(config).map_err(failed)?;
        editor.set_helper(Some(CommandCompleter(FilenameCompleter::new())));
        let enter = |modifiers| KeyEvent(KeyCode::Enter, modifiers);
        editor.bind_sequence(enter(Modifiers::ALT), EventHandler::Simple(Cmd::Newline));
        let goes_on = EventHandler::Conditional(Box::new(EnterHandler));
        editor.bind_sequence(enter(Modifiers::NONE), goes_on);
        let history = keeps_history.then(|| cache::folder().join("chat-history"));
        if let Some(path) = &history {
            // A missing or damaged file leaves the history empty.
            drop(editor.load_history(path));
        }
        Ok(Self::Interactive(Box::new(LineEditor { editor, history })))
    }

    /// Reads the next message. `initial` is already in the line and can be edited.
    pub(crate) fn read(&mut self, prompt: &str, initial: &str) -> Result<InputLine> {
        match self {
            Self::Interactive(editor) => editor.read(prompt, initial),
            Self::Plain(target) => {
                target.show(prompt)?;
                plain(&mut stdin().lock())
            }
        }
    }

    /// Adds a message that was typed elsewhere to the history.
    pub(crate) fn remember(&mut self, text: &str) {
        if let Self::Interactive(editor) = self {
            editor.remember(text);
        }
    }
}

impl LineEditor {
    fn read(&mut self, prompt: &str, initial: &str) -> Result<InputLine> {
        let mut text = String::new();
        // A question in a loaded conversation may come from an untrusted author.
        let mut line = self.editor.readline_with_initial(prompt, (&sanitized(initial), ""));
        loop {
            match line {
                Ok(more) if more.ends_with('\\') && !more.starts_with(QUOTES) => {
                    text.push_str(&more[..more.len() - 1]);
                    text.push('\n');
                }
                Ok(more) => {
                    text.push_str(&more);
                    self.remember(&text);
                    return Ok(InputLine::Text(unquoted(&text).to_owned()));
                }
                Err(ReadlineError::Interrupted) => return Ok(InputLine::Interrupted),
                // A system error: the terminal is gone.
                Err(ReadlineError::Eof | ReadlineError::Io(_)) => return Ok(InputLine::End),
                #[cfg(unix)]
                Err(ReadlineError::Errno(_)) => return Ok(InputLine::End),
                Err(error) => return Err(failed(error)),
            }
            line = self.editor.readline(MORE);
        }
    }

    /// Adds a message to the history. Failing to write the history does not end the conversation.
    fn remember(&mut self, text: &str) {
        let is_kept = !text.trim().is_empty() && text.len() <= HISTORY_BYTES_MAX;
        let is_new = is_kept && self.editor.add_history_entry(text).unwrap_or(false);
        if let Some(path) = self.history.as_deref().filter(|_| is_new) {
            drop(path.parent().map(std::fs::create_dir_all));
            drop(self.editor.append_history(path));
        }
    }
}

#[expect(clippy::needless_pass_by_value, reason = "for `map_err`")]
fn failed(error: ReadlineError) -> Error {
    Error::Input(format!("cannot read from the terminal: {error}"))
}

impl PromptTarget {
    fn show(self, prompt: &str) -> Result<()> {
        let written = match self {
            Self::Nowhere => Ok(()),
            Self::Stdout => write!(stdout(), "{prompt}").and_then(|()| stdout().flush()),
            Self::Stderr => write!(stderr(), "{prompt}"),
        };
        written.map_err(|error| Error::Input(format!("cannot write a prompt: {error}")))
    }
}

/// Reads a message of one line, or of several lines between quotes or with trailing backslashes.
fn plain(input: &mut dyn BufRead) -> Result<InputLine> {
    let mut text = String::new();
    let mut input = input.take(MESSAGE_BYTES_MAX);
    loop {
        let n_bytes_before = text.len();
        let n_bytes = input.read_line(&mut text);
        let n_bytes =
            n_bytes.map_err(|error| Error::Input(format!("cannot read stdin: {error}")))?;
        if input.limit() == 0 {
            let problem = format!("a message has more than {MESSAGE_BYTES_MAX} bytes");
            return Err(Error::Input(problem));
        }
        if n_bytes == 0 && text.is_empty() {
            return Ok(InputLine::End);
        }
        // Blank lines do not end a message between quotes. They are skipped so that many of them do
        // not cause the whole text to be scanned again for each.
        let is_blank = text[n_bytes_before..].trim().is_empty();
        if n_bytes_before > 0 && n_bytes > 0 && is_blank && text.starts_with(QUOTES) {
            continue;
        }
        let message = text.trim_end_matches(['\r', '\n']);
        if !text.ends_with('\n') || n_bytes == 0 || !is_open(message) {
            return Ok(InputLine::Text(unquoted(message).to_owned()));
        }
        if !text.starts_with(QUOTES) {
            text.truncate(message.len() - 1);
            text.push('\n');
        }
    }
}

/// Returns whether a message continues on another line.
fn is_open(text: &str) -> bool {
    match text.strip_prefix(QUOTES) {
        Some(rest) => !rest.trim_end().ends_with(QUOTES),
        None => text.ends_with('\\'),
    }
}

/// Returns a message without the quotes around it.
fn unquoted(text: &str) -> &str {
    let inner = text.strip_prefix(QUOTES).and_then(|it| it.trim_end().strip_suffix(QUOTES));
    inner.map_or(text, |inner| inner.strip_prefix('\n').unwrap_or(inner).trim_end_matches('\n'))
}

/// Handles Enter inside quotes.
struct EnterHandler;

impl ConditionalEventHandler for EnterHandler {
    fn handle(&self, _: &Event, _: RepeatCount, _: bool, at: &EventContext<'_>) -> Option<Cmd> {
        let goes_on = at.line().starts_with(QUOTES) && is_open(at.line());
        goes_on.then_some(Cmd::Newline)
    }
}

/// Completes commands, and paths after commands that take one.
struct CommandCompleter(FilenameCompleter);

impl Completer for CommandCompleter {
    type Candidate = Pair;

    fn complete(
        &self,
        line: &str,
        at: usize,
        _: &Context<'_>,
    ) -> rustyline::Result<(usize, Vec<Pair>)> {
        let Some((name, _)) = line[..at].split_once(char::is_whitespace) else {
            return Ok((0, commands(&line[..at])));
        };
        let takes_file = |argument| matches!(argument, Argument::File | Argument::OptionalFile(_));
        let name = name.strip_prefix('/');
        let command = COMMANDS.iter().find(|command| name == Some(command.name));
        match command.filter(|command| takes_file(command.argument)) {
            Some(_) => {
                let (begin, found) = self.0.complete_path(line, at)?;
                Ok((begin, without_harmful(found)))
            }
            None => Ok((at, Vec::new())),
        }
    }
}

/// Keeps names that may appear in a line. Other names would affect the terminal, and cannot be
/// escaped without naming another file.
fn without_harmful(mut found: Vec<Pair>) -> Vec<Pair> {
    found.retain(|pair| !pair.replacement.contains(is_harmful));
    found
}

/// Returns the commands that start with `begin`.
fn commands(begin: &str) -> Vec<Pair> {
    let names = COMMANDS.iter().map(|command| format!("/{} ", command.name));
    let found = names.filter(|name| !begin.is_empty() && name.starts_with(begin));
    found.map(|name| Pair { display: name.trim_end().to_owned(), replacement: name }).collect()
}

impl Hinter for CommandCompleter {
    type Hint = String;
}

impl Highlighter for CommandCompleter {}

impl Validator for CommandCompleter {}

impl Helper for CommandCompleter {}

#[cfg(test)]
mod tests {
    use std::fs;

    use moeflux_testing::temp_dir::TempDir;

    use super::*;

    #[track_caller]
    fn check(input: &str, expected: &[&str]) {
        let mut bytes = input.as_bytes();
        for text in expected {
            assert_eq!(
                plain(&mut bytes).unwrap(),
                InputLine::Text((*text).to_owned()),
                "{input:?}"
            );
        }
        assert_eq!(plain(&mut bytes).unwrap(), InputLine::End, "{input:?}");
    }

    #[test]
    fn messages_have_one_line_or_several() {
        check("a\nb\n", &["a", "b"]);
        check("a\r\n\nb", &["a", "", "b"]);
        check("a\\\nb\\\nc\nd", &["a\nb\nc", "d"]);
        check("a\\\\\nb\n", &["a\\\nb"]);
        check("\"\"\"a\nb\"\"\"\nc", &["a\nb", "c"]);
        check("\"\"\"\na\n\n b\\\n\"\"\"\n", &["a\n\n b\\"]);
        check("\"\"\"one\"\"\"\n", &["one"]);
        check("\"\"\"\"\"\"\n", &[""]);
        // The end of the file also ends the message.
        check("\"\"\"a\nb\n", &["\"\"\"a\nb"]);
        check("a\\", &["a\\"]);
        check("", &[]);
    }

    #[test]
    fn invalid_utf8_is_refused() {
        let error = plain(&mut &b"a\xff\n"[..]).unwrap_err().to_string();
        assert!(error.starts_with("cannot read stdin: "), "{error}");
    }

    #[test]
    fn multi_line_input_begins_and_ends_with_quotes() {
        assert!(is_open("\"\"\"") && is_open("\"\"\"a\n") && is_open("a\\"));
        assert!(!is_open("\"\"\"a\"\"\"") && !is_open("a") && !is_open("a\"\"\""));
        assert_eq!(unquoted("a \"\"\"b\"\"\""), "a \"\"\"b\"\"\"");
        assert_eq!(unquoted("\"\"\"\na\nb\n\"\"\""), "a\nb");
    }

    #[test]
    fn names_that_do_something_to_a_terminal_are_not_completed() {
        let dir = TempDir::new();
        let evil =
            ["a\x1b[2J.json", "a\x07.json", "a\u{9b}31m.json", "a\u{202e}nosj.", "a\nb.json"];
        let is_possible = |name: &&&str| fs::write(dir.path().join(name), "").is_ok();
        let n_made = evil.iter().filter(is_possible).count();
        assert!(n_made > 0 || cfg!(windows));
        fs::write(dir.path().join("a \u{e9}.json"), "").unwrap();
        let line = format!("/load {}", dir.path().join("a").display());
        let completion = CommandCompleter(FilenameCompleter::new());
        let history = FileHistory::new();
        let (_, found) = completion.complete(&line, line.len(), &Context::new(&history)).unwrap();
        let shown: Vec<&str> = found.iter().map(|it| it.display.as_str()).collect();
        assert_eq!(shown, ["a \u{e9}.json"]);
    }

    #[test]
    fn commands_are_completed() {
        let found = |begin| commands(begin).into_iter().map(|it| it.display).collect::<Vec<_>>();
        assert_eq!(found("/s"), ["/save", "/stats", "/system"]);
        assert_eq!(found("/reg"), ["/regenerate"]);
        assert!(found("").is_empty() && found("s").is_empty());
    }
}
