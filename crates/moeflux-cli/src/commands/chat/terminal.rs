//! The terminal of a conversation: its abilities, and its keys during an answer.
//!
//! During a conversation the system does not echo keys; the line editor or the footer of the screen
//! shows them. Without such a terminal, these features are missing and nothing fails.
//! **Invariant:** however the program ends, the terminal is left as it was found, except after a
//! signal that cannot be caught.

use std::io::{IsTerminal as _, stdin};
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::Duration;

use moeflux_schedule::Event;

use crate::commands::chat::keys::{self, KeyInput, KeyReader, Signals};
use crate::output::screen::{Abilities, device};

/// What the chat waits for: an event of the job, or keys.
#[derive(Debug)]
pub(crate) enum ChatEvent {
    /// An event of the job.
    Event(Event),
    /// Bytes of keys.
    Keys(Vec<u8>),
    /// The terminal is gone.
    HungUp,
    /// The job sends no more events.
    Closed,
    /// Nothing, or something that is noticed elsewhere.
    Nothing,
}

/// The terminal of the conversation.
#[derive(Debug)]
pub(crate) struct Terminal {
    /// Whether stdin is a terminal.
    pub(crate) is_typed: bool,
    /// `None` if stdout is not a terminal.
    pub(crate) abilities: Option<Abilities>,
    keys: Option<KeyReader>,
}

/// Wakes the thread that waits for keys.
#[derive(Clone, Debug)]
pub(crate) struct TerminalWaker {
    waker: Option<keys::KeyWaker>,
}

/// Restores the terminal's original state.
#[derive(Clone, Debug)]
pub(crate) struct Restorer {
    mode: Option<keys::TerminalMode>,
}

impl Terminal {
    /// Opens the terminal of this process.
    pub(crate) fn open() -> Self {
        let is_typed = stdin().is_terminal();
        let mut abilities = device::abilities();
        if let Some(abilities) = &mut abilities {
            // Without input there is no footer.
            abilities.moves_cursor &= is_typed;
        }
        let keys = abilities.filter(|it| it.moves_cursor).and_then(|_| KeyReader::open());
        Self { is_typed, abilities, keys }
    }

    /// Returns whether lines can be edited.
    pub(crate) fn is_edited(&self) -> bool {
        self.abilities.is_some_and(|abilities| abilities.moves_cursor)
    }

    /// Makes Ctrl-C a signal from now on, as usual.
    pub(crate) fn turn_signals_on(&self) {
        self.set(Signals::On);
    }

    /// Makes Ctrl-C a key from now on, where possible.
    pub(crate) fn turn_signals_off(&self) {
        self.set(Signals::Off);
    }

    fn set(&self, signals: Signals) {
        if let Some(keys) = &self.keys {
            // A terminal that can no longer be configured is gone; the next read reports that.
            let _set = keys.set(signals);
        }
    }

    /// Returns whether Ctrl-C arrives as a key and not as a signal.
    pub(crate) fn has_keys(&self) -> bool {
        self.keys.is_some()
    }

    pub(crate) fn waker(&self) -> TerminalWaker {
        TerminalWaker { waker: self.keys.as_ref().map(KeyReader::waker) }
    }

    pub(crate) fn restorer(&self) -> Restorer {
        Restorer { mode: self.keys.as_ref().map(KeyReader::mode) }
    }

    /// Waits up to `time` for the next event or key.
    pub(crate) fn wait(&self, events: &Receiver<Event>, time: Duration) -> ChatEvent {
        if let Some(keys) = &self.keys {
            return wait_with(keys, events, time);
        }
        match events.recv_timeout(time) {
            Ok(event) => ChatEvent::Event(event),
            Err(RecvTimeoutError::Timeout) => ChatEvent::Nothing,
            Err(RecvTimeoutError::Disconnected) => ChatEvent::Closed,
        }
    }
}

/// Checks keys first, so that a fast answer does not delay them.
fn wait_with(keys: &KeyReader, events: &Receiver<Event>, time: Duration) -> ChatEvent {
    let typed = |time| match keys.wait(time) {
        KeyInput::Bytes(bytes) => Some(ChatEvent::Keys(bytes)),
        KeyInput::HungUp => Some(ChatEvent::HungUp),
        KeyInput::Nothing => None,
    };
    let event = || match events.try_recv() {
        Ok(event) => Some(ChatEvent::Event(event)),
        Err(TryRecvError::Empty) => None,
        Err(TryRecvError::Disconnected) => Some(ChatEvent::Closed),
    };
    let found = typed(Duration::ZERO).or_else(event).or_else(|| typed(time)).or_else(event);
    found.unwrap_or(ChatEvent::Nothing)
}

impl TerminalWaker {
    pub(crate) fn wake(&self) {
        if let Some(waker) = &self.waker {
            waker.wake();
        }
    }
}

impl Restorer {
    pub(crate) fn restore(&self) {
        if let Some(mode) = &self.mode {
            mode.restore();
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.restorer().restore();
    }
}
