//! The commands of a conversation: a table of their names, arguments and purposes.
//!
//! **Invariant:** a message that begins with a slash and letters is a command or is refused by
//! name; it is never sent to the model by mistake.

/// The effect of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Help,
    Clear,
    Load,
    Model,
    Quit,
    Regenerate,
    Save,
    Stats,
    System,
    Think,
    Tools,
    Undo,
}

/// The argument that a command accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Argument {
    None,
    /// No argument, or one with this placeholder.
    Optional(&'static str),
    /// A path.
    File,
    /// No argument, or a path with this placeholder.
    OptionalFile(&'static str),
}

/// A command of the chat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChatCommand {
    pub(crate) name: &'static str,
    pub(crate) argument: Argument,
    help: &'static str,
    pub(crate) action: Action,
}

/// All commands, sorted by name.
pub(crate) const COMMANDS: [ChatCommand; 12] = {
    use Argument::{File, None, Optional, OptionalFile};
    const fn command(
        name: &'static str,
        argument: Argument,
        help: &'static str,
        action: Action,
    ) -> ChatCommand {
        ChatCommand { name, argument, help, action }
    }
    [
        command("clear", None, "forget the conversation; the system message stays", Action::Clear),
        command("help", None, "show this list", Action::Help),
        command("load", File, "continue a saved conversation", Action::Load),
        command("model", OptionalFile("NAME"), "continue with another model", Action::Model),
        command("quit", None, "end the chat, like Ctrl-D", Action::Quit),
        command("regenerate", None, "answer again", Action::Regenerate),
        command("save", File, "write the conversation, for `generate --messages`", Action::Save),
        command("stats", None, "show speed and memory of the last answer", Action::Stats),
        command("system", Optional("TEXT|off"), "set or show the system message", Action::System),
        command("think", Optional("on|off"), "ask for thoughts before answers", Action::Think),
        command("tools", OptionalFile("FILE|off"), "offer tools, or list them", Action::Tools),
        command("undo", None, "take back the last question and all after it", Action::Undo),
    ]
};

/// Names for the same commands in other programs.
const ALIASES: [(&str, &str); 4] =
    [("?", "help"), ("bye", "quit"), ("exit", "quit"), ("retry", "regenerate")];

/// The help text for keys, below the list of commands.
const KEYS: &str = "\
Enter sends a message. Alt-Enter, or a backslash before Enter, begins a new
line of it; a message between two \"\"\" has as many lines as you like, and so
has one that is pasted. A blank before a slash sends a message that begins with
one. Ctrl-C stops an answer, Ctrl-D ends the chat, also after the answer that
comes. What you type while an answer comes is the start of the next message;
after Enter, it is sent as soon as the answer has ended.";

/// The interpretation of a typed line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChatInput<'t> {
    Message(&'t str),
    Command(Action, &'t str),
    /// No command has this name.
    Unknown(&'t str),
    /// A required argument is missing, or there is one too many.
    Misused(ChatCommand),
}

/// Distinguishes commands from messages.
pub(crate) fn parse(text: &str) -> ChatInput<'_> {
    let Some(rest) = text.strip_prefix('/') else { return ChatInput::Message(text) };
    let (name, argument) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
    let is_name = |it: &str| it == "?" || it.chars().all(|letter| letter.is_ascii_alphabetic());
    // `/usr/bin` and `/* a comment */` are messages; a lone slash is a command half typed.
    if !is_name(name) {
        return ChatInput::Message(text);
    }
    let name = ALIASES.iter().find(|(alias, _)| *alias == name).map_or(name, |(_, name)| name);
    let Some(command) = COMMANDS.iter().find(|it| it.name == name) else {
        return ChatInput::Unknown(name);
    };
    let argument = argument.trim();
    let is_right = match command.argument {
        Argument::None => argument.is_empty(),
        Argument::File => !argument.is_empty(),
        Argument::Optional(_) | Argument::OptionalFile(_) => true,
    };
    if is_right {
        ChatInput::Command(command.action, argument)
    } else {
        ChatInput::Misused(*command)
    }
}

impl ChatCommand {
    /// Returns the command with its argument's placeholder, as shown in the help.
    pub(crate) fn usage(&self) -> String {
        let argument = match self.argument {
            Argument::None => String::new(),
            Argument::File => " FILE".to_owned(),
            Argument::Optional(what) | Argument::OptionalFile(what) => format!(" [{what}]"),
        };
        format!("/{}{argument}", self.name)
    }
}

/// Returns the list of commands and keys.
pub(crate) fn help() -> String {
    let usages = COMMANDS.map(|command| command.usage());
    let n_columns = usages.iter().map(String::len).max().unwrap_or(0);
    let line = |(usage, command): (&String, &ChatCommand)| {
        format!("{usage:n_columns$}  {}\n", command.help)
    };
    let lines: String = usages.iter().zip(&COMMANDS).map(line).collect();
    format!("{lines}\n{KEYS}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_distinguished_from_messages() {
        assert_eq!(parse("/help"), ChatInput::Command(Action::Help, ""));
        assert_eq!(parse("/help "), ChatInput::Command(Action::Help, ""));
        let system = ChatInput::Command(Action::System, "You are\n terse.");
        assert_eq!(parse("/system  You are\n terse. "), system);
        assert_eq!(parse("/think"), ChatInput::Command(Action::Think, ""));
        assert_eq!(parse("/?"), ChatInput::Command(Action::Help, ""));
        assert_eq!(parse("/bye"), ChatInput::Command(Action::Quit, ""));
        assert_eq!(parse("/hlep me"), ChatInput::Unknown("hlep"));
        assert_eq!(parse("/"), ChatInput::Unknown(""));
        assert_eq!(parse("/Help"), ChatInput::Unknown("Help"));
        assert!(matches!(parse("/save"), ChatInput::Misused(it) if it.usage() == "/save FILE"));
        assert!(matches!(parse("/undo 2"), ChatInput::Misused(it) if it.usage() == "/undo"));
        for message in ["hello", " /help", "/usr/bin is", "/* a */", "//", "", "a /help", "/1"] {
            assert_eq!(parse(message), ChatInput::Message(message));
        }
    }

    #[test]
    fn help_fits_a_terminal_and_names_all() {
        let help = help();
        assert!(help.lines().all(|line| line.len() <= 80), "{help}");
        for command in COMMANDS {
            let line = format!("\n{}", command.usage());
            assert!(format!("\n{help}").contains(&line), "{line}");
        }
        assert!(COMMANDS.is_sorted_by_key(|command| command.name));
        for (alias, name) in ALIASES {
            assert!(COMMANDS.iter().any(|command| command.name == name), "{alias}");
        }
    }
}
