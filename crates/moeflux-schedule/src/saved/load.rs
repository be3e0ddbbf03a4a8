//! A session whose first tokens are being loaded.

use std::sync::mpsc::{Receiver, TryRecvError};

use moeflux::{CopyBooking, PartsLoad, Session};

use crate::saved::drive::{PartKind, ReadPart};

/// A session, and the parts that come for it.
pub(crate) struct SessionLoad {
    /// `None` once it has ended.
    parts: Option<PartsLoad>,
    read: Receiver<ReadPart>,
    _booking: CopyBooking,
}

/// What became of a load.
pub(crate) enum LoadProgress {
    /// The drive has not delivered its next part.
    Waits,
    /// A part was loaded.
    Took,
    /// The session has the saved tokens, or is as it was if they cannot be used.
    Ended {
        session: Session,
        /// Tokens that were loaded: 0 if they cannot be used.
        n_loaded: usize,
    },
}

impl SessionLoad {
    pub(crate) fn new(parts: PartsLoad, read: Receiver<ReadPart>, booking: CopyBooking) -> Self {
        Self { parts: Some(parts), read, _booking: booking }
    }

    /// Takes a part that was read, if there is one.
    pub(crate) fn advance(&mut self) -> LoadProgress {
        let (kind, read) = match self.read.try_recv() {
            Ok(part) => part,
            Err(TryRecvError::Empty) => return LoadProgress::Waits,
            Err(TryRecvError::Disconnected) => return self.end(None),
        };
        let parts = self.parts.as_mut().expect("the load has not ended");
        let loaded = read.and_then(|bytes| {
            let mut bytes = &bytes[..];
            let loaded = match kind {
                PartKind::Positions(n) => parts.positions(n, &mut bytes),
                PartKind::RecurrentLayer => parts.recurrent_layer(&mut bytes),
            };
            loaded.map_err(|error| error.to_string())
        });
        match loaded {
            Ok(()) => LoadProgress::Took,
            Err(problem) => self.end(Some(problem)),
        }
    }

    /// Returns the session as it was.
    pub(crate) fn give_up(self) -> Session {
        self.parts.expect("a load that has ended is not held").give_up()
    }

    fn end(&mut self, problem: Option<String>) -> LoadProgress {
        let parts = self.parts.take().expect("a load ends once");
        let n_loaded = parts.n_loaded();
        let (session, problem) = match problem {
            Some(problem) => (parts.give_up(), problem),
            None => match parts.finish() {
                Ok(session) => return LoadProgress::Ended { session, n_loaded },
                Err(failure) => (failure.session, failure.error.to_string()),
            },
        };
        tracing::warn!(problem, "a saved conversation cannot be used and is read again");
        LoadProgress::Ended { session, n_loaded: 0 }
    }
}
