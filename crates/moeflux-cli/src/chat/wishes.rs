//! The effect of signals at each stage of a conversation.
//!
//! Where Ctrl-C arrives as a key, a signal is a request by the system to end the process.
//! **Invariant:** a second request always ends the process, and leaves the terminal as it was
//! found.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::chat::terminal::{Restorer, Terminal, Waker};
use crate::failure::EXIT_CODE_OF_INTERRUPT;
use crate::interrupt::Interrupt;

/// The activity of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Stage {
    /// Reads a model: a signal cancels that.
    Loading,
    /// Waits for input: a signal ends the process.
    Prompt,
    /// Generates an answer: a signal stops that if it may mean Ctrl-C, and ends the process
    /// otherwise.
    Answering,
    /// Is stopping on request.
    Stopping,
}

/// The signal handling of this process.
#[derive(Clone, Debug)]
pub(crate) struct Wishes {
    pub(crate) interrupt: Interrupt,
    stage: Arc<AtomicU8>,
    restorer: Restorer,
}

impl Wishes {
    /// Starts to listen, in the loading stage.
    pub(crate) fn listen(terminal: &Terminal) -> Self {
        let stage = Arc::new(AtomicU8::new(Stage::Loading as u8));
        let (restorer, waker) = (terminal.restorer(), terminal.waker());
        let heard = Heard { stage: Arc::clone(&stage), restorer: restorer.clone(), waker };
        let has_keys = terminal.has_keys();
        let interrupt = Interrupt::listen_to_each(move || heard.wish(has_keys));
        Self { interrupt, stage, restorer }
    }

    /// Enters a stage.
    pub(crate) fn enter(&self, stage: Stage) {
        if stage != Stage::Stopping {
            self.interrupt.clear();
        }
        self.stage.store(stage as u8, Ordering::Relaxed);
    }

    /// Returns whether the current activity should stop.
    pub(crate) fn is_wished(&self) -> bool {
        self.interrupt.is_set()
    }

    /// Ends the process.
    pub(crate) fn end_process(&self) -> ! {
        end_process(&self.restorer)
    }
}

/// State of the thread that receives signals.
struct Heard {
    stage: Arc<AtomicU8>,
    restorer: Restorer,
    waker: Waker,
}

impl Heard {
    fn wish(&self, has_keys: bool) {
        let stops = |stage: Stage| {
            let (now, then) = (stage as u8, Stage::Stopping as u8);
            let swapped =
                self.stage.compare_exchange(now, then, Ordering::Relaxed, Ordering::Relaxed);
            swapped.is_ok()
        };
        if stops(Stage::Loading) || !has_keys && stops(Stage::Answering) {
            self.waker.wake();
        } else {
            end_process(&self.restorer);
        }
    }
}

fn end_process(restorer: &Restorer) -> ! {
    restorer.restore();
    #[expect(
        clippy::disallowed_methods,
        clippy::exit,
        reason = "somebody wishes it, and may have asked in vain before"
    )]
    std::process::exit(EXIT_CODE_OF_INTERRUPT.into())
}
