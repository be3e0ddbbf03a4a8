//! The terminal of a conversation: what it can do, and its keys while an answer comes.
//!
//! While a conversation lasts, keys are not echoed by the system: the line editor shows them, or
//! the foot of the screen. Where there is no such terminal, all of this is missing and nothing
//! fails. **Invariant:** however the program ends, the terminal is left as it was found, but for a
//! kill that nobody can catch.

use std::io::{IsTerminal as _, stdin};
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::Duration;

use moeflux_schedule::Event;

use crate::chat::keys::{self, Found, Keys, Signals};
use crate::screen::{Abilities, device};

/// What happened while somebody waited.
#[derive(Debug)]
pub(crate) enum Heard {
    /// Of the job.
    Event(Event),
    /// Bytes of keys.
    Typed(Vec<u8>),
    /// The terminal is gone.
    HungUp,
    /// Of the job nothing more will be heard.
    Over,
    /// Nothing, or something that shows elsewhere.
    Quiet,
}

/// The terminal that a conversation is held on.
#[derive(Debug)]
pub(crate) struct Terminal {
    /// Whether stdin is a terminal: somebody types.
    pub(crate) is_typed: bool,
    /// `None` where stdout is none.
    pub(crate) abilities: Option<Abilities>,
    keys: Option<Keys>,
}

/// Wakes whoever waits for keys.
#[derive(Clone, Debug)]
pub(crate) struct Waker {
    waker: Option<keys::Waker>,
}

/// Leaves the terminal as it was found.
#[derive(Clone, Debug)]
pub(crate) struct Restorer {
    mode: Option<keys::Mode>,
}

impl Terminal {
    /// The one of this process.
    pub(crate) fn open() -> Self {
        let is_typed = stdin().is_terminal();
        let mut abilities = device::abilities();
        if let Some(abilities) = &mut abilities {
            // Where nothing is typed there is no foot.
            abilities.moves_cursor &= is_typed;
        }
        let keys = abilities.filter(|it| it.moves_cursor).and_then(|_| Keys::open());
        Self { is_typed, abilities, keys }
    }

    /// Whether lines can be edited.
    pub(crate) fn is_edited(&self) -> bool {
        self.abilities.is_some_and(|abilities| abilities.moves_cursor)
    }

    /// Ctrl-C is a signal from now on, as usual.
    pub(crate) fn turn_signals_on(&self) {
        self.set(Signals::On);
    }

    /// Ctrl-C is a key from now on, where it can be one.
    pub(crate) fn turn_signals_off(&self) {
        self.set(Signals::Off);
    }

    fn set(&self, signals: Signals) {
        if let Some(keys) = &self.keys {
            // A terminal that cannot be set any more is gone, and that shows when it is read.
            let _set = keys.set(signals);
        }
    }

    /// Whether Ctrl-C comes as a key and not as a signal.
    pub(crate) fn has_keys(&self) -> bool {
        self.keys.is_some()
    }

    pub(crate) fn waker(&self) -> Waker {
        Waker { waker: self.keys.as_ref().map(Keys::waker) }
    }

    pub(crate) fn restorer(&self) -> Restorer {
        Restorer { mode: self.keys.as_ref().map(Keys::mode) }
    }

    /// Waits for the next thing to happen, at most so long.
    pub(crate) fn wait(&self, events: &Receiver<Event>, time: Duration) -> Heard {
        if let Some(keys) = &self.keys {
            return wait_with(keys, events, time);
        }
        match events.recv_timeout(time) {
            Ok(event) => Heard::Event(event),
            Err(RecvTimeoutError::Timeout) => Heard::Quiet,
            Err(RecvTimeoutError::Disconnected) => Heard::Over,
        }
    }
}

/// Keys come first: an answer in a hurry must not keep them waiting.
fn wait_with(keys: &Keys, events: &Receiver<Event>, time: Duration) -> Heard {
    let typed = |time| match keys.wait(time) {
        Found::Bytes(bytes) => Some(Heard::Typed(bytes)),
        Found::HungUp => Some(Heard::HungUp),
        Found::Nothing => None,
    };
    let event = || match events.try_recv() {
        Ok(event) => Some(Heard::Event(event)),
        Err(TryRecvError::Empty) => None,
        Err(TryRecvError::Disconnected) => Some(Heard::Over),
    };
    let heard = typed(Duration::ZERO).or_else(event).or_else(|| typed(time)).or_else(event);
    heard.unwrap_or(Heard::Quiet)
}

impl Waker {
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
