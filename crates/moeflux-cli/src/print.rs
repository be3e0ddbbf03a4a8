//! Results on stdout, where a reader may have left.

use std::io::{ErrorKind, Write};

use moeflux::error::{Error, Result};

/// Prints text and a line end. A reader who left early, such as `head`, has what it wanted.
pub(crate) fn line(text: &str) -> Result<()> {
    let mut stdout = std::io::stdout().lock();
    let written = writeln!(stdout, "{text}").and_then(|()| stdout.flush());
    match written {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        Err(error) => Err(Error::Input(format!("cannot write to stdout: {error}"))),
        Ok(()) => Ok(()),
    }
}
