//! Conversations that are saved on a drive, and continue after a restart, an eviction or an unload.
//!
//! Kept sessions are copied block by block between steps, and written by a thread. A prompt that
//! continues what was saved is loaded the same way. **Invariant:** what is loaded has the bits of
//! what was computed; anything that cannot be used is computed again. An owner's conversations are
//! found by the owner alone.

pub(crate) mod object;
pub(crate) mod drive;
pub(crate) mod load;
pub(crate) mod sampled;
pub(crate) mod saver;

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use moeflux::{CopyBooking, Engine, Error, Result, Session, TokenId};
use moeflux_prefix::{
    FoundPrefix, Holding, ObjectKind, OwnerId, PrefixNamespace, StateNeed, Store, StoreRole,
};

use crate::job::Owner;
use crate::saved::drive::{
    DriveThread, PartKind, ReadObject, ReadTask, WriteBlock, WriteProgress, WriteTask,
};
use crate::saved::load::SessionLoad;
use crate::saved::object::{SavedPart, SessionOutline, numbers};
use crate::session_cache::{SaveState, UnsavedSession};

/// Positions that are copied at a time: so few that a step waits for milliseconds.
const BLOCK_POSITIONS: usize = 256;

/// Blocks that are read ahead of the one that is loaded, if there is memory for them.
const N_BLOCKS_AHEAD: usize = 2;

/// Lower bound on these blocks. With none, the drive's thread would wait until a block is taken
/// before it wakes the scheduler, which sleeps until it is woken.
const N_BLOCKS_AHEAD_MIN: usize = 1;

/// Memory for one block is booked ahead if it is at most this part of the memory of sessions.
const RESERVE_PART: u64 = 8;

/// Returns the id of an owner's conversations; `None` if they are not saved.
pub type OwnerIds = dyn Fn(Owner) -> Option<OwnerId> + Send + Sync;

/// Default of [`SavedConversations::n_tokens_min`]: fewer tokens are read sooner than loaded.
pub const N_TOKENS_SAVED_MIN: usize = 64;

/// Where experts are streamed, this many tokens are read in minutes.
const N_TOKENS_AT_RISK_DEFAULT: usize = 8192;

/// Where conversations are saved.
///
/// ```no_run
/// use std::sync::Arc;
/// use std::time::{Duration, SystemTime, UNIX_EPOCH};
///
/// use moeflux_prefix::{PrefixFolder, Store, StoreLimits, WallClock};
/// use moeflux_schedule::{Options, SavedConversations};
///
/// #[derive(Debug)]
/// struct SystemClock;
///
/// impl WallClock for SystemClock {
///     fn since_1970(&self) -> Duration {
///         SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
///     }
/// }
///
/// let folder = PrefixFolder::new("conversations".into(), Arc::new(SystemClock));
/// let limits = StoreLimits { n_bytes_max: 32 << 30, write_bytes_per_day: 100 << 30 };
/// let saved = SavedConversations::new(Store::open(folder, limits)?);
/// let mut options = Options::new(65_536);
/// options.saved = Some(saved);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct SavedConversations {
    /// The folder.
    pub store: Store,
    /// Whose conversations are saved, and under which ids.
    pub owners: Arc<OwnerIds>,
    /// Conversations with fewer tokens are not saved, and prompts that would save fewer are read.
    pub n_tokens_min: usize,
    /// A long prompt is saved whenever this many more tokens of it were read, so that no more are
    /// lost if the process is killed.
    pub n_tokens_at_risk: usize,
}

impl SavedConversations {
    /// Saves the conversations of all owners under one id, from 64 tokens on, and long prompts
    /// every 8,192 tokens.
    #[must_use]
    pub fn new(store: Store) -> Self {
        Self {
            store,
            owners: Arc::new(|_| Some(OwnerId::ANONYMOUS)),
            n_tokens_min: N_TOKENS_SAVED_MIN,
            n_tokens_at_risk: N_TOKENS_AT_RISK_DEFAULT,
        }
    }
}

impl fmt::Debug for SavedConversations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("SavedConversations");
        shown.field("store", &self.store).finish_non_exhaustive()
    }
}

/// The sessions of which something may be saved, which `I` tells apart.
pub(crate) trait SavableSessions<I> {
    /// Returns the next session of which something is to be saved.
    fn unsaved(&self) -> Option<UnsavedSession<'_, I>>;

    /// Returns a session if something of it is to be saved.
    fn unsaved_of(&self, id: I) -> Option<UnsavedSession<'_, I>>;

    /// Returns a session, unless it is there no longer.
    fn session_mut(&mut self, id: I) -> Option<&mut Session>;

    /// Records what became of saving the first `n_tokens` of a session.
    fn set_save_state(&mut self, id: I, n_tokens: usize, save_state: SaveState);

    /// Returns the time that computing this many tokens takes, in ms.
    fn prompt_ms(&self, n_tokens: usize) -> u64;
}

/// What there was to copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CopyProgress {
    Nothing,
    /// The last block is still being written.
    Waits,
    Copied,
}

/// Saves sessions of an engine and loads them.
pub(crate) struct SavedSessions<'e, I> {
    engine: &'e Engine,
    identity: Vec<u8>,
    saved: SavedConversations,
    drive: DriveThread,
    copy: Option<SessionCopy<I>>,
    /// Memory for the largest block, so that sessions can be saved when there is none left.
    reserve: Option<CopyBooking>,
}

/// A session that is being saved.
struct SessionCopy<I> {
    of: I,
    /// How many of its tokens are to be saved.
    n_tokens: usize,
    namespace: PrefixNamespace,
    /// What is left to copy. Decided once: what leaves the store meanwhile is not written again.
    parts: VecDeque<SavedPart>,
    /// Blocks of the first part that were copied.
    n_blocks: usize,
}

impl<'e, I: Copy + PartialEq> SavedSessions<'e, I> {
    /// `wake` is called when a part was read or a block written.
    pub(crate) fn new(
        engine: &'e Engine,
        saved: SavedConversations,
        wake: Box<dyn Fn() + Send + Sync>,
    ) -> Result<Self> {
        let drive = DriveThread::start(saved.store.clone(), wake)?;
        let (identity, copy, reserve) = (engine.state_identity(), None, None);
        Ok(Self { engine, identity, saved, drive, copy, reserve })
    }

    /// Books memory for the largest block, unless that is much of what sessions may have. Later
    /// there may be none left.
    fn book_reserve(&mut self, session: &Session) {
        let Ok(n_bytes) = self.block_bytes(session) else { return };
        let room_bytes = self.engine.session_room().limit_bytes;
        let is_much = room_bytes.is_some_and(|it| n_bytes > it / RESERVE_PART);
        if self.reserve.is_none() && !is_much {
            self.reserve = session.book_copy(n_bytes).ok();
        }
    }

    /// Returns the bytes of the largest block.
    fn block_bytes(&self, session: &Session) -> Result<u64> {
        let of_layers = session.recurrent_layers()?.into_iter().max().unwrap_or(0);
        Ok(of_layers.max(self.position_bytes() * BLOCK_POSITIONS) as u64)
    }

    pub(crate) fn engine(&self) -> &'e Engine {
        self.engine
    }

    /// Returns the distance of the places in a long prompt that are saved before the rest is read.
    pub(crate) fn mark_every(&self) -> usize {
        self.saved.n_tokens_at_risk.max(1)
    }

    fn namespace(&self, owner: Owner) -> Option<PrefixNamespace> {
        (self.saved.owners)(owner).map(|owner| PrefixNamespace::new(&self.identity, owner))
    }

    /// Returns what the folder has of an owner.
    pub(crate) fn holding(&self, owner: Owner) -> Holding {
        let holding = |namespace| self.saved.store.holding(namespace);
        self.namespace(owner).map_or(Holding::Nothing, holding)
    }

    fn position_bytes(&self) -> usize {
        let n_bytes = self.engine.memory().session_bytes_per_position;
        usize::try_from(n_bytes).unwrap_or(usize::MAX)
    }

    /// Begins to load what was saved of a prompt, if it is worth more than the tokens that the
    /// session has. The prompt's last token is always read. Otherwise returns the session, and
    /// whether there was only no memory to load it.
    pub(crate) fn load(
        &self,
        owner: Owner,
        prompt: &[TokenId],
        mut session: Session,
    ) -> std::result::Result<SessionLoad, (Session, bool)> {
        let Some(namespace) = self.namespace(owner) else { return Err((session, false)) };
        let n_held = session.tokens().len();
        let wanted = numbers(&prompt[..prompt.len().saturating_sub(1)]);
        let need =
            if self.engine.is_recurrent() { StateNeed::StateAtEnd } else { StateNeed::NoState };
        let found = self.saved.store.find(namespace, &wanted, need);
        if found.n_tokens < n_held + self.saved.n_tokens_min {
            return Err((session, false));
        }
        let Ok((first, objects)) = self.objects_after(&found, &mut session) else {
            return Err((session, false));
        };
        let Ok(block_bytes) = self.block_bytes(&session) else { return Err((session, false)) };
        // One block is being read, and one is being loaded.
        let booked = [N_BLOCKS_AHEAD, N_BLOCKS_AHEAD_MIN].into_iter().find_map(|n_ahead| {
            let booking = session.book_copy((n_ahead as u64 + 2) * block_bytes).ok()?;
            Some((n_ahead, booking))
        });
        let Some((n_ahead, booking)) = booked else { return Err((session, true)) };
        let tokens = prompt[first..found.n_tokens].to_vec();
        let parts = session.load_parts(tokens).map_err(|failure| {
            let is_short = matches!(failure.error, Error::NoRoom { .. });
            (failure.session, is_short)
        })?;
        let (reply, parts_read) = sync_channel(n_ahead);
        let tokens = wanted[..found.n_tokens].to_vec();
        self.drive.read(ReadTask { found, objects, tokens, reply });
        Ok(SessionLoad::new(parts, parts_read, booking))
    }

    /// Cuts the session to where a segment begins. Returns that position, and the objects from
    /// there on with their parts.
    fn objects_after(
        &self,
        found: &FoundPrefix,
        session: &mut Session,
    ) -> Result<(usize, Vec<ReadObject>)> {
        let n_held = session.tokens().len();
        let mut begin = 0;
        let mut objects = Vec::new();
        let mut first = 0;
        for (id, end) in found.segments.iter().zip(&found.segment_ends) {
            if begin <= n_held && session.cut_point(begin) == begin {
                first = begin;
                objects.clear();
            }
            let blocks = (begin..*end).step_by(BLOCK_POSITIONS);
            let blocks = blocks.map(|at| BLOCK_POSITIONS.min(end - at));
            let part = |n: usize| (PartKind::Positions(n), n * self.position_bytes());
            objects.push(ReadObject { id: *id, parts: blocks.map(part).collect() });
            begin = *end;
        }
        session.truncate(first)?;
        if let Some(state) = found.state {
            let layers = session.recurrent_layers()?.into_iter();
            let parts = layers.map(|n_bytes| (PartKind::RecurrentLayer, n_bytes)).collect();
            objects.push(ReadObject { id: state, parts });
        }
        Ok((first, objects))
    }

    /// Copies a block of a session that is not saved.
    pub(crate) fn copy_some(&mut self, sessions: &mut dyn SavableSessions<I>) -> CopyProgress {
        let progress = self.drive.take_progress();
        if progress == WriteProgress::Writing {
            return CopyProgress::Waits;
        }
        let Some(mut copy) = self.copy.take() else {
            let Some(unsaved) = sessions.unsaved() else { return CopyProgress::Nothing };
            let id = unsaved.id;
            self.begin_copy(id, sessions);
            return CopyProgress::Copied;
        };
        // If one part is refused, so are the others.
        let copied = match copy.parts.front().copied() {
            None => Ok(Some(SaveState::Saved)),
            Some(_) if progress == WriteProgress::Refused => Ok(Some(SaveState::Refused)),
            Some(part) => self.copy_block(&mut copy, part, sessions),
        };
        let ended = copied.unwrap_or_else(|error| {
            tracing::warn!(%error, "a conversation was not saved");
            Some(SaveState::Refused)
        });
        match ended {
            None => self.copy = Some(copy),
            Some(save_state) => sessions.set_save_state(copy.of, copy.n_tokens, save_state),
        }
        CopyProgress::Copied
    }

    /// Begins to save a session of which something is to be saved, instead of another one. The
    /// last block of that one, or the lock of the folder, may still be under way.
    fn begin_copy(&mut self, id: I, sessions: &mut dyn SavableSessions<I>) {
        let Some(unsaved) = sessions.unsaved_of(id) else { return };
        let n_tokens = unsaved.n_tokens;
        self.book_reserve(unsaved.session);
        self.copy = self.copy_of(&unsaved);
        if self.copy.is_none() {
            sessions.set_save_state(id, n_tokens, SaveState::Refused);
        } else if self.saved.store.role() == StoreRole::Reader {
            self.drive.take_over();
        }
    }

    /// Saves a session that is about to be dropped, if that takes no longer than `limit`.
    pub(crate) fn save_now(
        &mut self,
        id: I,
        sessions: &mut dyn SavableSessions<I>,
        limit: Duration,
    ) {
        if self.copy.as_ref().is_none_or(|copy| copy.of != id) {
            self.begin_copy(id, sessions);
        }
        self.save_while(sessions, limit, |copy| copy.is_some_and(|it| it.of == id));
    }

    /// Saves all that is to be saved, if that takes no longer than `limit`.
    pub(crate) fn save_rest(&mut self, sessions: &mut dyn SavableSessions<I>, limit: Duration) {
        self.save_while(sessions, limit, |_| true);
    }

    fn save_while(
        &mut self,
        sessions: &mut dyn SavableSessions<I>,
        limit: Duration,
        is_wanted: impl Fn(Option<&SessionCopy<I>>) -> bool,
    ) {
        let mut left = limit;
        while is_wanted(self.copy.as_ref()) {
            match self.copy_some(sessions) {
                CopyProgress::Nothing => return,
                CopyProgress::Copied => {}
                CopyProgress::Waits => match self.drive.wait(left) {
                    Some(still_left) => left = still_left,
                    None => return,
                },
            }
        }
    }

    /// Waits until nothing is being written, at most `limit`.
    pub(crate) fn wait_for_drive(&self, limit: Duration) {
        self.drive.wait(limit);
    }

    /// Decides what is to be copied of a session; `None` if it is not saved at all.
    fn copy_of(&self, unsaved: &UnsavedSession<'_, I>) -> Option<SessionCopy<I>> {
        let UnsavedSession { id: of, session, origin, n_tokens } = *unsaved;
        let n_tokens_min = self.saved.n_tokens_min;
        let (namespace, tokens) = (self.namespace(origin.owner)?, &session.tokens()[..n_tokens]);
        if n_tokens < n_tokens_min {
            return None;
        }
        let states = &self.states(unsaved);
        let cuts = origin.split_points;
        let outline = SessionOutline { namespace, tokens, cuts, states, n_tokens_min };
        let parts = outline.missing(&self.saved.store).into();
        Some(SessionCopy { of, n_tokens, namespace, parts, n_blocks: 0 })
    }

    /// Copies a block of a part. Returns the end of the copy if the session is there no longer, or
    /// if there is no memory.
    fn copy_block(
        &self,
        copy: &mut SessionCopy<I>,
        part: SavedPart,
        sessions: &mut dyn SavableSessions<I>,
    ) -> Result<Option<SaveState>> {
        let saved_ms = sessions.prompt_ms(part.n_spared);
        let refused = Ok(Some(SaveState::Refused));
        let Some(session) = sessions.session_mut(copy.of) else { return refused };
        let booking = match &self.reserve {
            // What was booked ahead is free: the last block has been written.
            Some(_) => None,
            None => match session.book_copy(self.block_bytes(session)?) {
                Ok(booking) => Some(booking),
                Err(_) => return refused,
            },
        };
        let idx = copy.n_blocks;
        let (namespace, payload_bytes) = (copy.namespace, self.payload_bytes(part));
        let begins = (idx == 0).then(|| WriteTask {
            namespace,
            part,
            tokens: numbers(&session.tokens()[..part.end]),
            saved_ms,
            payload_bytes,
        });
        let mut bytes = Vec::new();
        let n_blocks = if part.kind == ObjectKind::State {
            session.write_recurrent_layer(part.end, idx, &mut bytes)?;
            session.recurrent_layers()?.len()
        } else {
            let first = part.first + idx * BLOCK_POSITIONS;
            session.write_positions(first..part.end.min(first + BLOCK_POSITIONS), &mut bytes)?;
            (part.end - part.first).div_ceil(BLOCK_POSITIONS)
        };
        let is_last = idx + 1 == n_blocks;
        self.drive.write(WriteBlock { begins, bytes, is_last, _booking: booking });
        copy.n_blocks = if is_last { 0 } else { idx + 1 };
        if is_last {
            copy.parts.pop_front();
        }
        Ok(None)
    }

    fn payload_bytes(&self, part: SavedPart) -> u64 {
        if part.kind == ObjectKind::State {
            return self.engine.memory().session_fixed_bytes;
        }
        ((part.end - part.first) * self.position_bytes()) as u64
    }

    /// Whether sessions are still to be saved.
    pub(crate) fn is_behind(&self, sessions: &dyn SavableSessions<I>) -> bool {
        self.copy.is_some() || self.drive.is_writing() || sessions.unsaved().is_some()
    }

    /// Returns the positions whose recurrent state is saved: where other conversations branch off,
    /// and the end of what is saved.
    fn states(&self, unsaved: &UnsavedSession<'_, I>) -> Vec<usize> {
        if !self.engine.is_recurrent() {
            return Vec::new();
        }
        let UnsavedSession { session, origin, n_tokens, .. } = *unsaved;
        let points = origin.likely_points();
        let checkpoints = session.checkpoints().into_iter();
        let split = checkpoints.filter(|at| *at < n_tokens && points.contains(at));
        split.chain([n_tokens]).collect()
    }
}
