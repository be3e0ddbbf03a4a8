//! Ctrl-C as a flag: the first asks running work to end well, the second ends the process.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether Ctrl-C was pressed.
#[derive(Clone, Debug)]
pub(crate) struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Listens from now on. Where the system lets nobody listen, Ctrl-C ends the process as usual.
    pub(crate) fn listen() -> Self {
        let flag = Arc::new(AtomicBool::new(false));
        let shared = Arc::clone(&flag);
        let listening = ctrlc::set_handler(move || {
            if shared.swap(true, Ordering::Relaxed) {
                #[expect(clippy::disallowed_methods, reason = "asked twice")]
                std::process::exit(130);
            }
        });
        if let Err(error) = listening {
            eprintln!("note: Ctrl-C cannot be caught here: {error}");
        }
        Self(flag)
    }

    /// Whether it was pressed.
    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// The flag itself, for work that polls it.
    pub(crate) fn flag(&self) -> &AtomicBool {
        &self.0
    }

    /// The answer to a watch.
    pub(crate) fn poll(&self) -> ControlFlow<()> {
        if self.is_set() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}
