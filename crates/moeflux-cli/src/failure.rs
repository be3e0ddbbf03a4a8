//! The two ways a command fails, by exit status: a run that failed (1) and wrong use (2).
//!
//! **Invariant:** a run's failure is one line; wrong use that clap cannot see (because it takes the
//! model, or two options together) looks as if clap had seen it.

use std::fmt;
use std::process::ExitCode;

use moeflux::Error;

/// Why a command did not do what was asked.
#[derive(Debug)]
pub(crate) enum Failure {
    /// What was typed can never work.
    Usage(String),
    /// It was understood, and failed.
    Failed(Error),
}

/// The result of a command.
pub(crate) type Outcome<T = ()> = Result<T, Failure>;

impl Failure {
    /// What is said after the message.
    pub(crate) fn hint(&self) -> &'static str {
        match self {
            Self::Usage(_) => "\n\nFor more information, try '--help'.",
            Self::Failed(_) => "",
        }
    }

    /// The status that the shell sees.
    pub(crate) fn exit_code(&self) -> ExitCode {
        match self {
            Self::Usage(_) => ExitCode::from(2),
            Self::Failed(_) => ExitCode::FAILURE,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usage(problem) => write!(f, "{problem}"),
            Self::Failed(error) => write!(f, "{error}"),
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}
