//! Ctrl-C as a flag: the first asks running work to end cleanly, a later one ends the process. The
//! system's own requests to end a process (SIGTERM, SIGHUP; on Windows Ctrl-Break and the end of
//! the console) count as Ctrl-C.

use std::error::Error;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::failure::EXIT_CODE_OF_INTERRUPT;
use crate::output::print;
use crate::system::clock;

/// Signals within this time count as one request: `timeout -s INT` sends to the process and to its
/// group at once. It is shorter than any deliberate second Ctrl-C.
const SAME_REQUEST_TIME: Duration = Duration::from_millis(500);

/// A flag that Ctrl-C sets.
#[derive(Clone, Debug)]
pub(crate) struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Listens from now on. If the system does not allow that, Ctrl-C ends the process as usual.
    pub(crate) fn listen() -> Self {
        Self::listen_and(|_| {})
    }

    /// Does not listen: the system ends the process at once.
    pub(crate) fn never() -> Self {
        Self(Arc::default())
    }

    /// Listens, and passes on the first request at once; a later one ends the process.
    pub(crate) fn listen_and(mut on_request: impl FnMut(StopRequest) + Send + 'static) -> Self {
        let flag = Arc::new(AtomicBool::new(false));
        let shared = Arc::clone(&flag);
        let mut first = None;
        let listening = on_each_stop_request(move |request| {
            if !shared.swap(true, Ordering::Relaxed) {
                on_request(request);
            }
            let now = clock::instant();
            if is_separate_request(*first.get_or_insert(now), now) {
                Self::end_process();
            }
        });
        Self::with_listener(flag, listening)
    }

    /// Ends the process as Ctrl-C does without a handler.
    #[expect(clippy::disallowed_methods, reason = "nothing is left to be put in order")]
    pub(crate) fn end_process() {
        std::process::exit(EXIT_CODE_OF_INTERRUPT.into());
    }

    /// Listens, and passes on each request; the process ends only if `on_request` ends it.
    pub(crate) fn listen_to_each(mut on_request: impl FnMut() + Send + 'static) -> Self {
        let flag = Arc::new(AtomicBool::new(false));
        let shared = Arc::clone(&flag);
        let mut last = None;
        let listening = on_each_stop_request(move |_| {
            let now = clock::instant();
            let is_new = last.is_none_or(|last| is_separate_request(last, now));
            last = Some(now);
            shared.store(true, Ordering::Relaxed);
            if is_new {
                on_request();
            }
        });
        Self::with_listener(flag, listening)
    }

    /// Clears the flag after a request was carried out.
    pub(crate) fn clear(&self) {
        self.0.store(false, Ordering::Relaxed);
    }

    fn with_listener(flag: Arc<AtomicBool>, listening: Result<(), Box<dyn Error>>) -> Self {
        if let Err(error) = listening {
            print::stderr_line(&format!("note: Ctrl-C cannot be caught here: {error}"));
        }
        Self(flag)
    }

    /// Returns whether a request was received.
    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Returns the flag itself, for work that polls it.
    pub(crate) fn flag(&self) -> &AtomicBool {
        &self.0
    }

    /// Returns the flag as the result of a progress callback.
    pub(crate) fn poll(&self) -> ControlFlow<()> {
        if self.is_set() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

/// The urgency of a request to end the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StopRequest {
    /// The process may take its time.
    Graceful,
    /// The system ends the process within seconds in any case: its console, the user's session or
    /// the system itself ends.
    #[cfg_attr(not(windows), expect(dead_code, reason = "only Windows distinguishes it"))]
    Forced,
}

/// Calls the handler for each signal that requests the end, on a separate thread.
#[cfg(not(windows))]
fn on_each_stop_request(
    mut handler: impl FnMut(StopRequest) + Send + 'static,
) -> Result<(), Box<dyn Error>> {
    Ok(ctrlc::set_handler(move || handler(StopRequest::Graceful))?)
}

/// Calls the handler for each of Ctrl-C, Ctrl-Break, and the end of the console, of the user's
/// session and of the system, on a separate thread. After the last three, Windows ends the process
/// when the console handler returns, or after some seconds; tokio's handler does not return.
#[cfg(windows)]
fn on_each_stop_request(
    mut handler: impl FnMut(StopRequest) + Send + 'static,
) -> Result<(), Box<dyn Error>> {
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
                _ = keys.recv() => StopRequest::Graceful,
                _ = breaks.recv() => StopRequest::Graceful,
                _ = closes.recv() => StopRequest::Forced,
                _ = logoffs.recv() => StopRequest::Forced,
                _ = shutdowns.recv() => StopRequest::Forced,
            });
        }
    };
    let thread = std::thread::Builder::new().name("interrupt".to_owned());
    thread.spawn(move || runtime.block_on(listen))?;
    Ok(())
}

fn is_separate_request(first: Instant, now: Instant) -> bool {
    now.duration_since(first) > SAME_REQUEST_TIME
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_that_come_together_are_one_request() {
        let first = clock::instant();
        assert!(!is_separate_request(first, first));
        assert!(!is_separate_request(first, first + SAME_REQUEST_TIME));
        assert!(is_separate_request(first, first + SAME_REQUEST_TIME * 2));
    }
}
