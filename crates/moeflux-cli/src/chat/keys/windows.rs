//! Keys as a console of Windows gives them.
//!
//! **Invariant:** keys that nothing waited for stay with the console.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crossterm::event::{Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers, poll, read};
use crossterm::terminal::{disable_raw_mode, enable_raw_mode};

use crate::chat::keys::{Found, Signals};
use crate::clock;

/// A console cannot be waited for together with something else: it is asked this often.
const TICK: Duration = Duration::from_millis(10);

/// Keys that are taken at once.
const N_KEYS_MAX: usize = 1024;

/// A console that does not echo.
#[derive(Debug)]
pub(crate) struct Keys {
    waker: Waker,
}

/// How a console was set: crossterm keeps it.
#[derive(Clone, Debug)]
pub(crate) struct Mode;

/// Wakes whoever waits for keys.
#[derive(Clone, Debug)]
pub(crate) struct Waker(Arc<AtomicBool>);

impl Keys {
    /// `None` if there is no console.
    pub(crate) fn open() -> Option<Self> {
        poll(Duration::ZERO).ok()?;
        Some(Self { waker: Waker(Arc::default()) })
    }

    /// With signals on, a console is as it was found: it echoes only what is read as lines.
    #[expect(clippy::unused_self, reason = "there is a console")]
    pub(crate) fn set(&self, signals: Signals) -> io::Result<()> {
        match signals {
            Signals::On => disable_raw_mode(),
            Signals::Off => enable_raw_mode(),
        }
    }

    pub(crate) fn waker(&self) -> Waker {
        self.waker.clone()
    }

    #[expect(clippy::unused_self, reason = "there is a console")]
    pub(crate) fn mode(&self) -> Mode {
        Mode
    }

    /// Waits for keys or to be woken, at most so long.
    pub(crate) fn wait(&self, time: Duration) -> Found {
        let began = clock::instant();
        loop {
            let left = time.saturating_sub(Instant::elapsed(&began));
            match poll(left.min(TICK)) {
                Ok(true) => return typed(),
                Ok(false) => {}
                Err(_) => return Found::HungUp,
            }
            if self.waker.0.swap(false, Ordering::Relaxed) || left.is_zero() {
                return Found::Nothing;
            }
        }
    }
}

impl Waker {
    pub(crate) fn wake(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Mode {
    /// Sets the console as it was.
    #[expect(clippy::unused_self, reason = "crossterm keeps it")]
    pub(crate) fn restore(&self) {
        // A console that is gone needs nothing.
        drop(disable_raw_mode());
    }
}

/// The keys that are there.
fn typed() -> Found {
    let mut bytes = Vec::new();
    for _ in 0..N_KEYS_MAX {
        match read() {
            Ok(Event::Key(key)) => push(key, &mut bytes),
            Ok(_) => {}
            Err(_) => return Found::HungUp,
        }
        if !poll(Duration::ZERO).unwrap_or(false) {
            break;
        }
    }
    if bytes.is_empty() { Found::Nothing } else { Found::Bytes(bytes) }
}

/// A key as the bytes of a Unix terminal. Keys that move a cursor have no effect in an answer.
fn push(key: KeyEvent, bytes: &mut Vec<u8>) {
    if key.kind == KeyEventKind::Release {
        return;
    }
    // With Alt as well it is AltGr, which writes letters.
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
