//! A stop flag that wakes waiting threads.
//!
//! **Invariant:** once set, the flag stays set.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use crate::error::{Error, Result};

/// A stop flag that any thread may set.
#[derive(Clone, Default)]
pub struct StopFlag(Arc<StopState>);

/// A function that runs when the flag is set.
type StopHook = Box<dyn Fn() + Send>;

/// The state that all clones of a flag share.
#[derive(Default)]
struct StopState {
    is_set: AtomicBool,
    hooks: Mutex<Vec<StopHook>>,
    changed: Condvar,
}

impl StopFlag {
    /// Sets the flag: waits end at once, transfers soon.
    pub fn set(&self) {
        self.0.is_set.store(true, Ordering::Relaxed);
        let hooks = self.0.hooks.lock().unwrap_or_else(PoisonError::into_inner);
        self.0.changed.notify_all();
        hooks.iter().for_each(|hook| hook());
    }

    /// Registers a hook that runs when the flag is set; at once if it already is.
    pub(crate) fn on_set(&self, hook: impl Fn() + Send + 'static) {
        let mut hooks = self.0.hooks.lock().unwrap_or_else(PoisonError::into_inner);
        if self.is_set() {
            hook();
        }
        hooks.push(Box::new(hook));
    }

    /// Creates a flag that is also set when this one is, but can be set on its own.
    pub(crate) fn child(&self) -> Self {
        let child = Self::default();
        let inner = child.clone();
        self.on_set(move || inner.set());
        child
    }

    /// Returns whether the flag is set.
    #[must_use]
    pub fn is_set(&self) -> bool {
        self.0.is_set.load(Ordering::Relaxed)
    }

    /// Waits for this time.
    ///
    /// # Errors
    ///
    /// [`Error::Cancelled`] as soon as the flag is set.
    pub(crate) fn wait(&self, time: Duration) -> Result<()> {
        let hooks = self.0.hooks.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.0.changed.wait_timeout_while(hooks, time, |_| !self.is_set());
        drop(waited);
        self.check()
    }

    /// Checks that the flag is not set.
    ///
    /// # Errors
    ///
    /// [`Error::Cancelled`] if it is.
    pub(crate) fn check(&self) -> Result<()> {
        if self.is_set() { Err(Error::Cancelled) } else { Ok(()) }
    }
}

impl fmt::Debug for StopFlag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Stop").field(&self.is_set()).finish()
    }
}
