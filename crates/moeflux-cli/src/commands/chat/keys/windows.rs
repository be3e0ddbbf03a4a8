//! Keys from a Windows console.
//!
//! **Invariant:** keys are taken from the console only by a wait.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crossterm::event::{Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers, poll, read};
use crossterm::terminal::{disable_raw_mode, enable_raw_mode};

use crate::commands::chat::keys::{KeyInput, Signals};
use crate::system::clock;

/// Polling interval: a console cannot be waited for together with another object.
const TICK: Duration = Duration::from_millis(10);

/// Upper bound on the keys taken at once.
const N_KEYS_MAX: usize = 1024;

/// A console that does not echo.
#[derive(Debug)]
pub(crate) struct KeyReader {
    waker: KeyWaker,
}

/// The settings of a console, which crossterm keeps.
#[derive(Clone, Debug)]
pub(crate) struct TerminalMode;

/// Wakes the thread that waits for keys.
#[derive(Clone, Debug)]
pub(crate) struct KeyWaker(Arc<AtomicBool>);

impl KeyReader {
    /// Returns `None` if there is no console.
    pub(crate) fn open() -> Option<Self> {
        poll(Duration::ZERO).ok()?;
        Some(Self { waker: KeyWaker(Arc::default()) })
    }

    /// Sets the mode. With signals on, the console is in its original state, and echoes only line
    /// input.
    #[expect(clippy::unused_self, reason = "there is a console")]
    pub(crate) fn set(&self, signals: Signals) -> io::Result<()> {
        match signals {
            Signals::On => disable_raw_mode(),
            Signals::Off => enable_raw_mode(),
        }
    }

    pub(crate) fn waker(&self) -> KeyWaker {
        self.waker.clone()
    }

    #[expect(clippy::unused_self, reason = "there is a console")]
    pub(crate) fn mode(&self) -> TerminalMode {
        TerminalMode
    }

    /// Waits up to `time` for keys or a wake-up.
    pub(crate) fn wait(&self, time: Duration) -> KeyInput {
        let began = clock::instant();
        loop {
            let left = time.saturating_sub(Instant::elapsed(&began));
            match poll(left.min(TICK)) {
                Ok(true) => return typed(),
                Ok(false) => {}
                Err(_) => return KeyInput::HungUp,
            }
            if self.waker.0.swap(false, Ordering::Relaxed) || left.is_zero() {
                return KeyInput::Nothing;
            }
        }
    }
}

impl KeyWaker {
    pub(crate) fn wake(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl TerminalMode {
    /// Restores the original settings.
    #[expect(clippy::unused_self, reason = "crossterm keeps it")]
    pub(crate) fn restore(&self) {
        // If the console is gone, there is nothing to restore.
        drop(disable_raw_mode());
    }
}

/// Takes the pending keys.
fn typed() -> KeyInput {
    let mut bytes = Vec::new();
    for _ in 0..N_KEYS_MAX {
        match read() {
            Ok(Event::Key(key)) => push(key, &mut bytes),
            Ok(_) => {}
            Err(_) => return KeyInput::HungUp,
        }
        if !poll(Duration::ZERO).unwrap_or(false) {
            break;
        }
    }
    if bytes.is_empty() { KeyInput::Nothing } else { KeyInput::Bytes(bytes) }
}

/// Encodes a key as the bytes of a Unix terminal. Cursor keys have no effect during an answer.
fn push(key: KeyEvent, bytes: &mut Vec<u8>) {
    if key.kind == KeyEventKind::Release {
        return;
    }
    // Together with Alt, it is AltGr, which types letters.
    let is_control =
        key.modifiers.contains(KeyModifiers::CONTROL) && !key.modifiers.contains(KeyModifiers::ALT);
    match key.code {
        KeyCode::Char(letter) if is_control && letter.is_ascii_alphabetic() => {
            bytes.push(letter.to_ascii_uppercase() as u8 - b'@');
        }
        KeyCode::Char(_) if is_control => {}
        KeyCode::Char(letter) => bytes.extend(letter.encode_utf8(&mut [0; 4]).bytes()),
        KeyCode::Enter => bytes.push(b'\r'),
        KeyCode::Backspace => bytes.push(0x7f),
        KeyCode::Tab => bytes.push(b'\t'),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_bytes_of_a_terminal() {
        let bytes = |code, modifiers, kind| {
            let mut bytes = Vec::new();
            push(KeyEvent::new_with_kind(code, modifiers, kind), &mut bytes);
            bytes
        };
        let press = |code, modifiers| bytes(code, modifiers, KeyEventKind::Press);
        let (none, control, alt) = (KeyModifiers::NONE, KeyModifiers::CONTROL, KeyModifiers::ALT);
        assert_eq!(press(KeyCode::Char('\u{e9}'), none), "\u{e9}".as_bytes());
        assert_eq!(press(KeyCode::Char('c'), control), [3]);
        assert_eq!(press(KeyCode::Char('C'), control), [3]);
        assert_eq!(press(KeyCode::Char('@'), control | alt), b"@");
        assert_eq!(press(KeyCode::Enter, none), b"\r");
        assert_eq!(press(KeyCode::Backspace, none), [0x7f]);
        assert!(press(KeyCode::Left, none).is_empty());
        assert!(bytes(KeyCode::Char('a'), none, KeyEventKind::Release).is_empty());
    }
}
