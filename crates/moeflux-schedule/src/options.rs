//! The settings of a service, with their defaults.

use std::sync::Arc;
use std::time::Duration;

use moeflux::clock::{Clock, RealClock};

use crate::saved::SavedConversations;
use crate::session_cache::KeptLimits;

/// Settings of a service.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// Prompts and answers that are computed at the same time.
    pub n_sessions: usize,
    /// Jobs that may wait beyond those.
    pub n_queue: usize,
    /// Upper bound on the tokens of a prompt together with an answer.
    pub context: usize,
    /// Unloads the engine after this long without a job.
    pub unload_after: Option<Duration>,
    /// Limits on kept conversations.
    pub kept: KeptLimits,
    /// Conversations that are saved on a drive.
    pub saved: Option<SavedConversations>,
    /// The clock that the service measures time with.
    pub clock: Arc<dyn Clock>,
}

impl Options {
    /// Returns settings for four sessions of `context` tokens and a queue of 64 jobs.
    #[must_use]
    pub fn new(context: usize) -> Self {
        let kept = KeptLimits::default();
        let clock = Arc::new(RealClock::new());
        let (n_sessions, n_queue, unload_after, saved) = (4, 64, None, None);
        Self { n_sessions, n_queue, context, unload_after, kept, saved, clock }
    }
}
