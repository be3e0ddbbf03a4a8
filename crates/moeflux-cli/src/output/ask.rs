//! A question to the user at the terminal.

use std::io::{BufRead as _, IsTerminal as _, Write as _};

use moeflux::Error;
use moeflux_io::OneLine;

use crate::failure::{CommandFailure, CommandResult};

/// The meaning of Enter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DefaultAnswer {
    Yes,
    No,
}

/// Asks a question. Without a terminal, names the option that answers it.
///
/// # Errors
///
/// [`CommandFailure::Usage`] if there is no terminal.
pub(crate) fn confirm(question: &str, default: DefaultAnswer) -> CommandResult<bool> {
    let (stdin, mut stderr) = (std::io::stdin(), std::io::stderr());
    if !stdin.is_terminal() || !stderr.is_terminal() {
        let problem = format!("{question} No terminal to ask on: pass --yes to confirm");
        return Err(CommandFailure::Usage(problem));
    }
    let choice = if default == DefaultAnswer::Yes { "[Y/n]" } else { "[y/N]" };
    let asked =
        write!(stderr, "{} {choice} ", OneLine::message(question)).and_then(|()| stderr.flush());
    let mut line = String::new();
    let read = asked.and_then(|()| stdin.lock().read_line(&mut line));
    let n_bytes = read.map_err(|error| Error::Input(format!("cannot ask: {error}")))?;
    // The end of the input is not an answer.
    Ok(n_bytes > 0 && means_yes(&line, default))
}

/// Returns whether a typed line means yes.
pub(crate) fn means_yes(line: &str, default: DefaultAnswer) -> bool {
    match line.trim().to_ascii_lowercase().as_str() {
        "" => default == DefaultAnswer::Yes,
        answer => answer == "y" || answer == "yes",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_yes_is_yes() {
        for line in ["y\n", "Y", "yes\r\n", " YES "] {
            assert!(
                means_yes(line, DefaultAnswer::No) && means_yes(line, DefaultAnswer::Yes),
                "{line}"
            );
        }
        for line in ["n\n", "no", "q", "yess", "0"] {
            assert!(
                !means_yes(line, DefaultAnswer::No) && !means_yes(line, DefaultAnswer::Yes),
                "{line}"
            );
        }
        assert!(means_yes("\n", DefaultAnswer::Yes) && !means_yes("\n", DefaultAnswer::No));
    }
}
