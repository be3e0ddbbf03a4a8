//! The ways a command fails, by exit status: a failed run (1), wrong usage (2), Ctrl-C (130).
//!
//! **Invariant:** a run's failure is one line; wrong usage that clap cannot detect (because it
//! depends on the model, or on two options together) looks like an error of clap.

use std::fmt;
use std::process::ExitCode;

use moeflux::{Error, Remedy};
use moeflux_io::OneLine;

/// Why a command failed.
#[derive(Debug)]
pub(crate) enum CommandFailure {
    /// The command line can never work.
    Usage(String),
    /// The command was understood and failed.
    Failed(Error),
    /// Ctrl-C ended it: its results so far were printed, or are kept.
    Interrupted(String),
}

/// The conventional exit code of a command ended by Ctrl-C.
pub(crate) const EXIT_CODE_OF_INTERRUPT: u8 = 130;

/// The result of a command.
pub(crate) type CommandResult<T = ()> = Result<T, CommandFailure>;

impl CommandFailure {
    /// An interruption without further explanation.
    pub(crate) fn interrupted() -> Self {
        Self::Interrupted("interrupted".to_owned())
    }

    /// Returns the message, with the newline.
    pub(crate) fn line(&self) -> String {
        match self {
            Self::Interrupted(_) => format!("{self}\n"),
            failure => format!("error: {failure}{}\n", failure.hint()),
        }
    }

    /// Returns the text after the message.
    fn hint(&self) -> &'static str {
        match self {
            Self::Usage(_) => "\n\nFor more information, try '--help'.",
            Self::Failed(_) | Self::Interrupted(_) => "",
        }
    }

    /// Returns the exit status.
    pub(crate) fn exit_code(&self) -> ExitCode {
        match self {
            Self::Usage(_) => ExitCode::from(2),
            Self::Failed(_) => ExitCode::FAILURE,
            Self::Interrupted(_) => ExitCode::from(EXIT_CODE_OF_INTERRUPT),
        }
    }
}

impl fmt::Display for CommandFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usage(problem) | Self::Interrupted(problem) => {
                write!(f, "{}", OneLine::message(problem))
            }
            Self::Failed(error) => write!(f, "{error}{}", error.remedy().map_or("", options)),
        }
    }
}

/// Returns the options that apply a remedy; the library does not know the command line.
fn options(remedy: Remedy) -> &'static str {
    match remedy {
        Remedy::SmallerSteps => " (--chunk)",
        Remedy::ShorterContext => " (--context)",
        Remedy::SmallerBudget | Remedy::FewerSessions => " (--memory)",
        Remedy::LargerBudget | Remedy::LargerBudgetOrFewerBits => " (--context, --chunk, --memory)",
        Remedy::Cpu => " (--backend cpu)",
        Remedy::AnotherDevice => " (--gpu takes a number or a part of a name)",
        Remedy::TokenizerFile => " (--tokenizer)",
        Remedy::SoundWeights => " (`moeflux verify` reads all weights; --precise computes in f32)",
        Remedy::AcceptedEdits => " (`moeflux verify --accept-edits`)",
        _ => "",
    }
}

impl From<Error> for CommandFailure {
    fn from(error: Error) -> Self {
        if matches!(error, Error::Cancelled) { Self::interrupted() } else { Self::Failed(error) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_one_harmless_line() {
        for failure in [
            CommandFailure::Usage("a\x1b[2J\nb\u{202e}".to_owned()),
            CommandFailure::Interrupted("a\x1b[2J\nb\u{202e}".to_owned()),
            CommandFailure::Failed(Error::Input("a\x1b[2J\nb\u{202e}".to_owned())),
        ] {
            assert_eq!(failure.to_string(), "a\\u{1b}[2J\\nb\\u{202e}");
        }
    }

    #[test]
    fn a_remedy_is_followed_by_its_options() {
        let message = |remedy| CommandFailure::from(Error::no_room("x", 5, remedy)).to_string();
        let smaller = "x: needs 5 bytes; use smaller steps (--chunk)";
        assert_eq!(message(Remedy::SmallerSteps), smaller);
        assert!(message(Remedy::LargerBudget).ends_with(" (--context, --chunk, --memory)"));
        assert_eq!(message(Remedy::FreeMemory), "x: needs 5 bytes; close other programs");
    }
}
