//! The abilities and the width of the terminal on stdout.

use std::io::{IsTerminal as _, stdout};

use terminal_size::terminal_size_of;

use crate::output::screen::Abilities;

/// The assumed width of a terminal that does not report it.
const N_COLUMNS_DEFAULT: usize = 80;

/// Returns `None` if stdout is not a terminal.
pub(crate) fn abilities() -> Option<Abilities> {
    // A Windows console interprets escape sequences only on request; elsewhere this is `None`.
    let obeys = anstyle_query::windows::enable_ansi_colors();
    let is_dumb = match variable("TERM") {
        Some(kind) => kind == "dumb",
        None => obeys != Some(true),
    };
    let is_dumb = is_dumb || !shows_no_sequence();
    let has_styles = !is_dumb && variable("NO_COLOR").is_none();
    stdout().is_terminal().then_some(Abilities { has_styles, moves_cursor: !is_dumb })
}

/// Tests whether an escape sequence leaves the cursor in place: some consoles claim to interpret
/// sequences but print them, such as Wine's of version 8.
#[cfg(windows)]
pub(crate) fn shows_no_sequence() -> bool {
    use std::io::Write as _;
    use std::sync::OnceLock;

    use crossterm::cursor::position;

    static FOUND: OnceLock<bool> = OnceLock::new();
    let look = || {
        let (column, row) = position().ok().filter(|(column, _)| *column == 0)?;
        let mut stdout = stdout();
        write!(stdout, "\x1b[0m").and_then(|()| stdout.flush()).ok()?;
        let stays = position().ok()? == (column, row);
        if !stays {
            // Erases the printed sequence.
            write!(stdout, "\r    \r").and_then(|()| stdout.flush()).ok()?;
        }
        Some(stays)
    };
    *FOUND.get_or_init(|| !stdout().is_terminal() || look().unwrap_or(true))
}

/// Escape sequences always leave the cursor in place.
#[cfg(not(windows))]
pub(crate) fn shows_no_sequence() -> bool {
    true
}

/// Returns the width of the terminal in columns.
pub(crate) fn n_columns() -> usize {
    let found = terminal_size_of(stdout()).map(|(width, _)| usize::from(width.0));
    found.filter(|it| *it > 0).unwrap_or(N_COLUMNS_DEFAULT)
}

#[expect(clippy::disallowed_methods, reason = "the command reads the environment, the library not")]
fn variable(name: &str) -> Option<String> {
    let value = std::env::var_os(name).filter(|value| !value.is_empty())?;
    Some(value.to_string_lossy().into_owned())
}
