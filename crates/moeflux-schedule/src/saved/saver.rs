//! Saves and loads the sessions of programs that run one at a time, without a service.
//!
//! **Invariant:** as with a service, what is loaded has the bits of what was computed. What cannot
//! be saved or loaded is reported as a `tracing` event, and is no error.

use std::fmt;
use std::ops::ControlFlow;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;

use moeflux::step::{StepProgress, Wanted};
use moeflux::{Engine, Error, Result, Session, TokenId};

use crate::job::Owner;
use crate::saved::load::LoadProgress;
use crate::saved::{SavableSessions, SavedConversations, SavedSessions};
use crate::session_cache::worth::EngineRates;
use crate::session_cache::{SaveState, SessionOrigin, UnsavedSession};

/// How often the caller of a load may give up.
const TICK: Duration = Duration::from_millis(50);

/// Saves sessions and loads them, for a program without a [`Service`](crate::Service).
///
/// ```no_run
/// # use std::ops::ControlFlow;
/// # use std::time::Duration;
/// # use moeflux::{Engine, Result, TokenId};
/// # use moeflux_schedule::{SavedConversations, SavedPrompt, SessionSaver};
/// # fn run(engine: &Engine, saved: SavedConversations, prompt: &[TokenId]) -> Result<()> {
/// let mut saver = SessionSaver::new(engine, saved)?;
/// let of = SavedPrompt { tokens: prompt, ..SavedPrompt::default() };
/// let go_on = &mut |_| ControlFlow::Continue(());
/// let (mut session, _n_loaded) = saver.begin(of, engine.session(4096)?, go_on)?;
/// let n_read = session.tokens().len();
/// session.feed_last(&prompt[n_read..])?;
/// saver.save(of, &mut session, Duration::from_secs(10));
/// # Ok(())
/// # }
/// ```
pub struct SessionSaver<'e> {
    saved: SavedSessions<'e, ()>,
    /// Receives a message when something was read or written.
    woken: Receiver<()>,
    rates: EngineRates,
    /// Tokens that the last session got from the drive.
    n_loaded: usize,
}

/// A prompt whose session is loaded or saved.
#[derive(Clone, Copy, Debug, Default)]
pub struct SavedPrompt<'p> {
    /// Whose conversation it is.
    pub owner: Owner,
    /// The prompt.
    pub tokens: &'p [TokenId],
    /// Positions to which later prompts probably go back: see
    /// [`Job::split_points`](crate::Job::split_points).
    pub split_points: &'p [usize],
}

/// The session that is saved.
struct OnlySession<'s> {
    session: &'s mut Session,
    origin: SessionOrigin<'s>,
    save_state: SaveState,
    rates: EngineRates,
}

impl<'e> SessionSaver<'e> {
    /// Starts the thread that reads and writes.
    ///
    /// # Errors
    ///
    /// [`moeflux::Error::Machine`] if it cannot be started.
    pub fn new(engine: &'e Engine, saved: SavedConversations) -> Result<Self> {
        let (sender, woken) = sync_channel(1);
        let wake = Box::new(move || {
            // A message that waits says as much as two.
            let _sent = sender.try_send(());
        });
        let saved = SavedSessions::new(engine, saved, wake)?;
        Ok(Self { saved, woken, rates: EngineRates::default(), n_loaded: 0 })
    }

    /// Gives a new session the first tokens of a prompt: those that were saved, and with recurrent
    /// layers also those up to the last of the split points, where it makes checkpoints that are
    /// saved later. At least the prompt's last token is left to feed. Returns the session, and how
    /// many tokens were loaded. `go_on` is called with the number of tokens that the session has,
    /// and may break: the session then has fewer tokens.
    ///
    /// # Errors
    ///
    /// Errors of feeding the tokens.
    pub fn begin(
        &mut self,
        prompt: SavedPrompt<'_>,
        session: Session,
        go_on: &mut dyn FnMut(usize) -> ControlFlow<()>,
    ) -> Result<(Session, usize)> {
        let mut session = self.load(prompt, session, go_on);
        self.n_loaded = session.tokens().len();
        if self.saved.engine().is_recurrent() {
            read_to_points(prompt, &mut session, go_on)?;
        }
        Ok((session, self.n_loaded))
    }

    fn load(
        &self,
        prompt: SavedPrompt<'_>,
        session: Session,
        go_on: &mut dyn FnMut(usize) -> ControlFlow<()>,
    ) -> Session {
        let mut load = match self.saved.load(prompt.owner, prompt.tokens, session) {
            Ok(load) => load,
            Err((session, _)) => return session,
        };
        loop {
            match load.advance() {
                LoadProgress::Took => {}
                LoadProgress::Waits => drop(self.woken.recv_timeout(TICK)),
                LoadProgress::Ended { session, .. } => return session,
            }
            if go_on(0).is_break() {
                return load.give_up();
            }
        }
    }

    /// Records how long tokens took to read. If the folder is full, those that took the least time
    /// are removed first.
    pub fn add_prompt(&mut self, time: Duration, n_tokens: usize) {
        self.rates.add_prompt(time, n_tokens);
    }

    /// Saves a session with the prompt and its answer. What takes longer than `limit` is not saved.
    pub fn save(&mut self, prompt: SavedPrompt<'_>, session: &mut Session, limit: Duration) {
        let SavedPrompt { owner, split_points, .. } = prompt;
        let origin = SessionOrigin { owner, split_points, n_reused: self.n_loaded };
        let (save_state, rates) = (SaveState::Due, self.rates);
        self.saved.save_rest(&mut OnlySession { session, origin, save_state, rates }, limit);
    }
}

/// Reads a prompt up to its last split point, with a checkpoint at each.
fn read_to_points(
    prompt: SavedPrompt<'_>,
    session: &mut Session,
    go_on: &mut dyn FnMut(usize) -> ControlFlow<()>,
) -> Result<()> {
    let SavedPrompt { tokens, split_points, .. } = prompt;
    for &point in split_points {
        let n_held = session.tokens().len();
        if point <= n_held || point >= tokens.len() {
            continue;
        }
        let watch = &mut |progress: StepProgress| go_on(n_held + progress.n_rows_done);
        match session.feed(&tokens[n_held..point], Wanted::None, watch, &mut |_, _| Ok(())) {
            Ok(()) => {}
            Err(Error::Cancelled) => return Ok(()),
            Err(error) => return Err(error),
        }
        match session.checkpoint(point) {
            // Later prompts then read more.
            Ok(()) | Err(Error::NoRoom { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

impl fmt::Debug for SessionSaver<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SessionSaver").finish_non_exhaustive()
    }
}

impl SavableSessions<()> for OnlySession<'_> {
    fn unsaved(&self) -> Option<UnsavedSession<'_, ()>> {
        let Self { session, origin, save_state, .. } = self;
        let n_tokens = session.tokens().len();
        let is_due = *save_state == SaveState::Due;
        is_due.then_some(UnsavedSession { id: (), session, origin: *origin, n_tokens })
    }

    fn unsaved_of(&self, (): ()) -> Option<UnsavedSession<'_, ()>> {
        self.unsaved()
    }

    fn session_mut(&mut self, (): ()) -> Option<&mut Session> {
        Some(self.session)
    }

    fn set_save_state(&mut self, (): (), _n_tokens: usize, save_state: SaveState) {
        self.save_state = save_state;
    }

    fn prompt_ms(&self, n_tokens: usize) -> u64 {
        self.rates.prompt_ms(n_tokens)
    }
}
