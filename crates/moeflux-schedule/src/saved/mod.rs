//! Conversations that are saved on a drive, and continue after a restart, an eviction or an unload.
//!
//! Kept sessions are copied block by block between steps, and written by a thread. A prompt that
//! continues what was saved is loaded the same way. **Invariant:** what is loaded has the bits of
//! what was computed; anything that cannot be used is computed again. An owner's conversations are
//! found by the owner alone.

pub(crate) mod object;
pub(crate) mod drive;
pub(crate) mod load;

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;

use moeflux::{CopyBooking, Engine, Result, Session, TokenId};
use moeflux_prefix::{
    FoundPrefix, Holding, ObjectKind, OwnerId, PrefixNamespace, StateNeed, Store, StoreRole,
};

use crate::job::Owner;
use crate::saved::drive::{DriveThread, PartKind, ReadObject, ReadTask, WriteProgress, WriteTask};
use crate::saved::load::SessionLoad;
use crate::saved::object::{SavedPart, SessionOutline, numbers};
use crate::session_cache::{SessionCache, SessionId, UnsavedSession};

/// Positions that are copied at a time: so few that a step waits for milliseconds.
const BLOCK_POSITIONS: usize = 256;

/// Blocks that are read ahead of the one that is loaded.
const N_BLOCKS_AHEAD: usize = 2;

/// Returns the id of an owner's conversations; `None` if they are not saved.
pub type OwnerIds = dyn Fn(Owner) -> Option<OwnerId> + Send + Sync;

/// Where conversations are saved.
#[derive(Clone)]
pub struct SavedConversations {
    /// The folder.
    pub store: Store,
    /// Whose conversations are saved, and under which ids.
    pub owners: Arc<OwnerIds>,
    /// Conversations with fewer tokens are not saved, and prompts that would save fewer are read.
    pub n_tokens_min: usize,
}

impl fmt::Debug for SavedConversations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("SavedConversations");
        shown.field("store", &self.store).finish_non_exhaustive()
    }
}

/// Saves sessions of an engine and loads them.
pub(crate) struct SavedSessions<'e> {
    engine: &'e Engine,
    identity: Vec<u8>,
    saved: SavedConversations,
    drive: DriveThread,
    copy: Option<SessionCopy>,
}

/// A kept session that is being saved.
struct SessionCopy {
    of: SessionId,
    namespace: PrefixNamespace,
    /// What is left to copy. Decided once: what leaves the store meanwhile is not written again.
    parts: VecDeque<SavedPart>,
    /// The payload of the first part so far.
    payload: Option<(Vec<u8>, CopyBooking)>,
}

impl<'e> SavedSessions<'e> {
    /// `wake` is called when a part was loaded or an object written.
    pub(crate) fn new(
        engine: &'e Engine,
        saved: SavedConversations,
        wake: Box<dyn Fn() + Send + Sync>,
    ) -> Result<Self> {
        let drive = DriveThread::start(saved.store.clone(), wake)?;
        Ok(Self { engine, identity: engine.state_identity(), saved, drive, copy: None })
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

    fn state_bytes(&self) -> usize {
        usize::try_from(self.engine.memory().session_fixed_bytes).unwrap_or(usize::MAX)
    }

    /// Begins to load what was saved of a prompt, if it is worth more than the tokens that the
    /// session has. The prompt's last token is always read.
    pub(crate) fn load(
        &self,
        owner: Owner,
        prompt: &[TokenId],
        mut session: Session,
    ) -> std::result::Result<SessionLoad, Session> {
        let Some(namespace) = self.namespace(owner) else { return Err(session) };
        let n_held = session.tokens().len();
        let wanted = numbers(&prompt[..prompt.len().saturating_sub(1)]);
        let need =
            if self.engine.is_recurrent() { StateNeed::StateAtEnd } else { StateNeed::NoState };
        let found = self.saved.store.find(namespace, &wanted, need);
        if found.n_tokens < n_held + self.saved.n_tokens_min {
            return Err(session);
        }
        let Ok((first, objects)) = self.objects_after(&found, &mut session) else {
            return Err(session);
        };
        let n_state = if found.state.is_some() { self.state_bytes() } else { 0 };
        let block_bytes = self.position_bytes() * BLOCK_POSITIONS;
        let ahead_bytes = (n_state + (N_BLOCKS_AHEAD + 2) * block_bytes) as u64;
        let Ok(booking) = session.book_copy(ahead_bytes) else { return Err(session) };
        let tokens = prompt[first..found.n_tokens].to_vec();
        let parts = session.load_parts(tokens).map_err(|failure| failure.session)?;
        let (reply, parts_read) = sync_channel(N_BLOCKS_AHEAD);
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
            let parts = vec![(PartKind::Recurrent, self.state_bytes())];
            objects.push(ReadObject { id: state, parts });
        }
        Ok((first, objects))
    }

    /// Copies a block of a kept session that is not saved. Returns whether there was any.
    pub(crate) fn copy_some(&mut self, cache: &mut SessionCache) -> bool {
        let progress = self.drive.take_progress();
        if progress == WriteProgress::Writing {
            return false;
        }
        if self.copy.is_none() {
            let Some(unsaved) = cache.unsaved() else { return false };
            let id = unsaved.id;
            self.copy = self.copy_of(&unsaved);
            if self.copy.is_none() {
                cache.set_saved(id);
            } else if self.saved.store.role() == StoreRole::Reader {
                self.drive.take_over();
            }
            return true;
        }
        let Some(mut copy) = self.copy.take() else { return true };
        // If one part is refused, so are the others.
        let copied = match copy.parts.front().copied() {
            Some(part) if progress != WriteProgress::Refused => {
                self.copy_block(&mut copy, part, cache)
            }
            _ => Ok(false),
        };
        match copied {
            Ok(true) => self.copy = Some(copy),
            Ok(false) => cache.set_saved(copy.of),
            Err(error) => {
                tracing::warn!(%error, "a conversation was not saved");
                cache.set_saved(copy.of);
            }
        }
        true
    }

    /// Decides what is to be copied of a session; `None` if it is not saved at all.
    fn copy_of(&self, unsaved: &UnsavedSession<'_>) -> Option<SessionCopy> {
        let UnsavedSession { id: of, owner, session, split_points: cuts } = *unsaved;
        let (namespace, tokens) = (self.namespace(owner)?, session.tokens());
        if tokens.len() < self.saved.n_tokens_min {
            return None;
        }
        let states = &self.states(session, cuts);
        let outline = SessionOutline { namespace, tokens, cuts, states };
        let parts = outline.missing(&self.saved.store).into();
        Some(SessionCopy { of, namespace, parts, payload: None })
    }

    /// Copies a block of a part. Returns `false` if the session is there no longer, or if there is
    /// no memory for a copy.
    fn copy_block(
        &self,
        copy: &mut SessionCopy,
        part: SavedPart,
        cache: &mut SessionCache,
    ) -> Result<bool> {
        let n_bytes = self.payload_bytes(part);
        let saved_ms = cache.rates.prompt_ms(part.n_spared);
        let Some(session) = cache.session_mut(copy.of) else { return Ok(false) };
        let (mut payload, booking) = match copy.payload.take() {
            Some(payload) => payload,
            None => match session.book_copy(n_bytes as u64) {
                Ok(booking) => (Vec::with_capacity(n_bytes), booking),
                Err(_) => return Ok(false),
            },
        };
        if part.kind == ObjectKind::State {
            session.write_recurrent(part.end, &mut payload)?;
        } else {
            let first = part.first + payload.len() / self.position_bytes().max(1);
            session.write_positions(first..part.end.min(first + BLOCK_POSITIONS), &mut payload)?;
        }
        if payload.len() < n_bytes {
            copy.payload = Some((payload, booking));
            return Ok(true);
        }
        copy.parts.pop_front();
        let (namespace, tokens) = (copy.namespace, numbers(&session.tokens()[..part.end]));
        let task = WriteTask { namespace, part, tokens, saved_ms, payload, _booking: booking };
        self.drive.write(task);
        Ok(true)
    }

    fn payload_bytes(&self, part: SavedPart) -> usize {
        match part.kind {
            ObjectKind::Segment => (part.end - part.first) * self.position_bytes(),
            ObjectKind::State => self.state_bytes(),
        }
    }

    /// Whether kept sessions are still to be saved.
    pub(crate) fn is_behind(&self, cache: &SessionCache) -> bool {
        self.copy.is_some() || self.drive.is_writing() || cache.unsaved().is_some()
    }

    /// Returns the positions whose recurrent state is saved: where other conversations branch off,
    /// and the end.
    fn states(&self, session: &Session, split_points: &[usize]) -> Vec<usize> {
        if !self.engine.is_recurrent() {
            return Vec::new();
        }
        let checkpoints = session.checkpoints().into_iter();
        let split = checkpoints.filter(|at| split_points.contains(at));
        split.chain([session.tokens().len()]).collect()
    }
}
