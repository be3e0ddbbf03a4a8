//! The effect of signals during each activity of a conversation.
//!
//! Where Ctrl-C arrives as a key, a signal is a request by the system to end the process.
//! **Invariant:** a second request always ends the process, and leaves the terminal as it was
//! found.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::commands::chat::terminal::{Restorer, Terminal, TerminalWaker};
use crate::failure::EXIT_CODE_OF_INTERRUPT;
use crate::system::interrupt::Interrupt;

/// The activity of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum ChatActivity {
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
pub(crate) struct SignalState {
    pub(crate) interrupt: Interrupt,
    activity: Arc<AtomicU8>,
    restorer: Restorer,
}

impl SignalState {
    /// Starts to listen, as while loading.
    pub(crate) fn listen(terminal: &Terminal) -> Self {
        let activity = Arc::new(AtomicU8::new(ChatActivity::Loading as u8));
        let (restorer, waker) = (terminal.restorer(), terminal.waker());
        let handler =
            SignalHandler { activity: Arc::clone(&activity), restorer: restorer.clone(), waker };
        let has_keys = terminal.has_keys();
        let interrupt = Interrupt::listen_to_each(move || handler.on_signal(has_keys));
        Self { interrupt, activity, restorer }
    }

    /// Begins an activity.
    pub(crate) fn enter(&self, activity: ChatActivity) {
        if activity != ChatActivity::Stopping {
            self.interrupt.clear();
        }
        self.activity.store(activity as u8, Ordering::Relaxed);
    }

    /// Returns whether the current activity should stop.
    pub(crate) fn is_stop_requested(&self) -> bool {
        self.interrupt.is_set()
    }

    /// Ends the process.
    pub(crate) fn end_process(&self) -> ! {
        end_process(&self.restorer)
    }
}

/// State of the thread that receives signals.
struct SignalHandler {
    activity: Arc<AtomicU8>,
    restorer: Restorer,
    waker: TerminalWaker,
}

impl SignalHandler {
    fn on_signal(&self, has_keys: bool) {
        let stops = |activity: ChatActivity| {
            let (now, then) = (activity as u8, ChatActivity::Stopping as u8);
            let swapped =
                self.activity.compare_exchange(now, then, Ordering::Relaxed, Ordering::Relaxed);
            swapped.is_ok()
        };
        if stops(ChatActivity::Loading) || !has_keys && stops(ChatActivity::Answering) {
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
        reason = "the user or the system asked for it, perhaps for the second time"
    )]
    std::process::exit(EXIT_CODE_OF_INTERRUPT.into())
}
