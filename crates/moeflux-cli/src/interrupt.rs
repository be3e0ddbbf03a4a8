//! Ctrl-C as a flag: the first asks running work to end well, a later one ends the process. The
//! system's own wish to end a process (SIGTERM, SIGHUP; on Windows Ctrl-Break and the end of the
//! console) counts as Ctrl-C.

use std::error::Error;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::clock;
use crate::failure::EXIT_CODE_OF_INTERRUPT;
use crate::print;

/// One wish to end may come as several signals: `timeout -s INT` sends to the process and to its
/// group at once. Nobody presses Ctrl-C twice so fast.
const ONE_WISH: Duration = Duration::from_millis(500);

/// Whether Ctrl-C was pressed.
#[derive(Clone, Debug)]
pub(crate) struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Listens from now on. Where the system lets nobody listen, Ctrl-C ends the process as usual.
    pub(crate) fn listen() -> Self {
        Self::listen_and(|_| {})
    }

    /// Does not listen: the system ends the process at once.
    pub(crate) fn never() -> Self {
        Self(Arc::default())
    }

    /// Listens; the first wish to end is passed on at once.
    pub(crate) fn listen_and(mut pass_on: impl FnMut(Wish) + Send + 'static) -> Self {
        let flag = Arc::new(AtomicBool::new(false));
        let shared = Arc::clone(&flag);
        let mut first = None;
        let listening = on_each_wish(move |wish| {
            if !shared.swap(true, Ordering::Relaxed) {
                pass_on(wish);
            }
            let now = clock::instant();
            if is_another_wish(*first.get_or_insert(now), now) {
                Self::end_process();
            }
        });
        Self::heard(flag, listening)
    }

    /// Ends the process as Ctrl-C does where nothing listens.
    #[expect(clippy::disallowed_methods, reason = "nothing is left to be put in order")]
    pub(crate) fn end_process() {
        std::process::exit(EXIT_CODE_OF_INTERRUPT.into());
    }

    /// The same; each wish is passed on, and the process ends only where `pass_on` ends it.
    pub(crate) fn listen_to_each(mut pass_on: impl FnMut() + Send + 'static) -> Self {
        let flag = Arc::new(AtomicBool::new(false));
        let shared = Arc::clone(&flag);
        let mut last = None;
        let listening = on_each_wish(move |_| {
            let now = clock::instant();
            let is_new = last.is_none_or(|last| is_another_wish(last, now));
            last = Some(now);
            shared.store(true, Ordering::Relaxed);
            if is_new {
                pass_on();
            }
        });
        Self::heard(flag, listening)
    }

    /// What was wished was done.
    pub(crate) fn clear(&self) {
        self.0.store(false, Ordering::Relaxed);
    }

    fn heard(flag: Arc<AtomicBool>, listening: Result<(), Box<dyn Error>>) -> Self {
        if let Err(error) = listening {
            print::aside(&format!("note: Ctrl-C cannot be caught here: {error}"));
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

/// How the process is asked to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    /// It may take its time.
    Asked,
    /// The system ends it within seconds, whatever it does: its console, the user's session or the
    /// system itself ends.
    #[cfg_attr(not(windows), expect(dead_code, reason = "Windows alone says so"))]
    Forced,
}

/// Calls this for each signal that asks for the end, on a thread of its own.
#[cfg(not(windows))]
fn on_each_wish(mut handler: impl FnMut(Wish) + Send + 'static) -> Result<(), Box<dyn Error>> {
    Ok(ctrlc::set_handler(move || handler(Wish::Asked))?)
}

/// Calls this for each of Ctrl-C, Ctrl-Break, the end of the console, of the user's session and of
/// the system, on a thread of its own. Behind the last three Windows ends the process when the
/// handler of the console returns, or after some seconds: that of tokio does not return.
#[cfg(windows)]
fn on_each_wish(mut handler: impl FnMut(Wish) + Send + 'static) -> Result<(), Box<dyn Error>> {
    use tokio::signal::windows::{ctrl_break, ctrl_c, ctrl_close, ctrl_logoff, ctrl_shutdown};

    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    let entered = runtime.enter();
    let (mut keys, mut breaks) = (ctrl_c()?, ctrl_break()?);
    let (mut closes, mut logoffs, mut shutdowns) =
        (ctrl_close()?, ctrl_logoff()?, ctrl_shutdown()?);
    drop(entered);
    let listen = async move {
        loop {
            handler(tokio::select! {
                _ = keys.recv() => Wish::Asked,
                _ = breaks.recv() => Wish::Asked,
                _ = closes.recv() => Wish::Forced,
                _ = logoffs.recv() => Wish::Forced,
                _ = shutdowns.recv() => Wish::Forced,
            });
        }
    };
    let thread = std::thread::Builder::new().name("interrupt".to_owned());
    thread.spawn(move || runtime.block_on(listen))?;
    Ok(())
}

fn is_another_wish(first: Instant, now: Instant) -> bool {
    now.duration_since(first) > ONE_WISH
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_that_come_together_are_one_wish() {
        let first = clock::instant();
        assert!(!is_another_wish(first, first));
        assert!(!is_another_wish(first, first + ONE_WISH));
        assert!(is_another_wish(first, first + ONE_WISH * 2));
    }
}
