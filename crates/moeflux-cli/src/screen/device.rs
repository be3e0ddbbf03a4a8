//! What the terminal behind stdout can do, and how wide it is.

use std::io::{IsTerminal as _, stdout};

use crate::screen::Abilities;

/// A terminal of unknown width has so many columns.
const N_COLUMNS_DEFAULT: usize = 80;

/// `None` where stdout is no terminal.
pub(crate) fn abilities() -> Option<Abilities> {
    let kind = variable("TERM");
    let is_dumb = kind.as_deref().map_or(cfg!(unix), |kind| kind == "dumb");
    let has_styles = !is_dumb && variable("NO_COLOR").is_none();
    stdout().is_terminal().then_some(Abilities { has_styles, moves_cursor: !is_dumb })
}

/// How many letters a line has.
pub(crate) fn n_columns() -> usize {
    #[cfg(unix)]
    let found = rustix::termios::tcgetwinsize(stdout()).ok().map(|size| usize::from(size.ws_col));
    #[cfg(not(unix))]
    let found = variable("COLUMNS").and_then(|it| it.parse().ok());
    found.filter(|it| *it > 0).unwrap_or(N_COLUMNS_DEFAULT)
}

#[expect(clippy::disallowed_methods, reason = "the command reads the environment, the library not")]
fn variable(name: &str) -> Option<String> {
    let value = std::env::var_os(name).filter(|value| !value.is_empty())?;
    Some(value.to_string_lossy().into_owned())
}
