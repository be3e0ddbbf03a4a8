//! The wish to end, which wakes whoever waits.
//!
//! **Invariant:** once there, the wish stays.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use crate::error::{Error, Result};

/// A wish to end that any thread may utter.
#[derive(Clone, Default)]
pub struct Stop(Arc<Shared>);

type Hook = Box<dyn Fn() + Send>;

#[derive(Default)]
struct Shared {
    is_set: AtomicBool,
    hooks: Mutex<Vec<Hook>>,
    changed: Condvar,
}

impl Stop {
    /// Asks for the end: waits end at once, transfers soon.
    pub fn set(&self) {
        self.0.is_set.store(true, Ordering::Relaxed);
        let hooks = self.0.hooks.lock().unwrap_or_else(PoisonError::into_inner);
        self.0.changed.notify_all();
        hooks.iter().for_each(|hook| hook());
    }

    /// What is done when the end is asked for; at once if it was.
    pub(crate) fn on_set(&self, hook: impl Fn() + Send + 'static) {
        let mut hooks = self.0.hooks.lock().unwrap_or_else(PoisonError::into_inner);
        if self.is_set() {
            hook();
        }
        hooks.push(Box::new(hook));
    }

    /// A wish of its own, which this one includes.
    pub(crate) fn narrower(&self) -> Self {
        let narrower = Self::default();
        let inner = narrower.clone();
        self.on_set(move || inner.set());
        narrower
    }

    /// Whether somebody asked for it.
    #[must_use]
    pub fn is_set(&self) -> bool {
        self.0.is_set.load(Ordering::Relaxed)
    }

    /// Waits so long.
    ///
    /// # Errors
    ///
    /// [`Error::Cancelled`] as soon as the end is asked for.
    pub(crate) fn wait(&self, time: Duration) -> Result<()> {
        let hooks = self.0.hooks.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.0.changed.wait_timeout_while(hooks, time, |_| !self.is_set());
        drop(waited);
        self.check()
    }

    /// Whether to go on.
    ///
    /// # Errors
    ///
    /// [`Error::Cancelled`].
    pub(crate) fn check(&self) -> Result<()> {
        if self.is_set() { Err(Error::Cancelled) } else { Ok(()) }
    }
}

impl fmt::Debug for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Stop").field(&self.is_set()).finish()
    }
}
