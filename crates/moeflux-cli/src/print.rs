//! Results on stdout, where a reader may have left.

use std::io::{ErrorKind, Write};

use moeflux::{Error, Result};

/// Whether anybody reads on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reader {
    /// As far as is known.
    Reads,
    /// It has what it wanted, as `head` does.
    Left,
}

/// Prints text and a line end. A reader who left early has what it wanted.
pub(crate) fn line(text: &str) -> Result<()> {
    piece(&format!("{text}\n")).map(|_| ())
}

/// Prints text as it is, at once.
pub(crate) fn piece(text: &str) -> Result<Reader> {
    let mut stdout = std::io::stdout().lock();
    let written = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
    match written {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(Reader::Left),
        Err(error) => Err(Error::Input(format!("cannot write to stdout: {error}"))),
        Ok(()) => Ok(Reader::Reads),
    }
}
