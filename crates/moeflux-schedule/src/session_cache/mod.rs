//! Sessions that are kept for prompts that continue them.
//!
//! **Invariant:** after a turn of the scheduler, kept sessions are within their limits. The least
//! valuable session is dropped first, and the last conversation of an owner after all others,
//! within the owner's share. A prompt continues only sessions of its own owner.

pub(crate) mod worth;
mod dropped;

use moeflux::{Engine, Result, Session, SessionRoom, TokenId};

use crate::job::{DropReason, Missed, Owner};
use crate::session_cache::dropped::Dropped;
use crate::session_cache::worth::{EngineRates, MissingSlots, SessionValue};

/// Limits on kept sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeptLimits {
    /// Number of sessions.
    pub n_sessions: usize,
    /// Checkpoints in each to which a model with recurrent layers can go back.
    pub n_states: usize,
    /// Bytes of all sessions; `None`: all memory that running answers leave and that is not worth
    /// more to streamed experts.
    pub n_bytes: Option<u64>,
}

impl Default for KeptLimits {
    fn default() -> Self {
        Self { n_sessions: 64, n_states: 4, n_bytes: None }
    }
}

/// A session that holds the first tokens of a prompt, which can continue it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PrefixMatch {
    /// Its index among the candidates.
    pub(crate) idx: usize,
    /// Tokens of the prompt that it holds and can be cut to.
    pub(crate) n_tokens: usize,
}

/// Identifies a kept session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SessionId(u64);

/// What is known of a session from the job that it comes from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SessionOrigin<'j> {
    pub(crate) owner: Owner,
    /// Positions to go back to, ascending.
    pub(crate) split_points: &'j [usize],
    /// Tokens of the job's prompt that were not computed.
    pub(crate) n_reused: usize,
}

/// Upper bound on the tokens that a template writes between an answer and the next question.
const N_BETWEEN_TURNS: usize = 8;

impl<'j> SessionOrigin<'j> {
    /// Whether the job's prompt continued a conversation after its last answer. The next one then
    /// probably does so, too, instead of going back to where the answer began.
    pub(crate) fn continues_answer(&self) -> bool {
        let [.., question, _] = *self.split_points else { return false };
        self.n_reused > 0 && self.n_reused + N_BETWEEN_TURNS >= question
    }

    /// Returns the positions to which later prompts probably go back.
    pub(crate) fn likely_points(&self) -> &'j [usize] {
        match self.split_points {
            [others @ .., _] if self.continues_answer() => others,
            all => all,
        }
    }
}

/// A session of which something is to be saved on a drive.
pub(crate) struct UnsavedSession<'c, I> {
    pub(crate) id: I,
    pub(crate) session: &'c Session,
    pub(crate) origin: SessionOrigin<'c>,
    /// How many of its tokens are to be saved.
    pub(crate) n_tokens: usize,
}

impl<'c, I> UnsavedSession<'c, I> {
    /// Names the session differently.
    pub(crate) fn map_id<J>(self, name: fn(I) -> J) -> UnsavedSession<'c, J> {
        let Self { id, session, origin, n_tokens } = self;
        UnsavedSession { id: name(id), session, origin, n_tokens }
    }
}

/// Whether a kept session is also on a drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SaveState {
    /// It is to be saved.
    Due,
    /// All of it that is worth saving is there.
    Saved,
    /// It is not saved.
    Refused,
}

/// A kept session, with what decides when it is dropped.
#[derive(Debug)]
struct CachedSession {
    id: SessionId,
    save_state: SaveState,
    split_points: Vec<usize>,
    n_reused: usize,
    owner: Owner,
    session: Session,
    /// Its size: computed once, because it is read after every step.
    n_bytes: u64,
    /// A prompt that shares this many tokens with it continues its conversation.
    continues_from: usize,
}

/// The cache of sessions that do not run, least recently used first.
#[derive(Debug)]
pub(crate) struct SessionCache {
    limits: KeptLimits,
    /// Upper bound on the bytes of all sessions, if there is one.
    room_bytes: Option<u64>,
    sizes: Sizes,
    entries: Vec<CachedSession>,
    /// Sessions kept so far.
    n_kept: u64,
    dropped: Dropped,
    /// Measured time of the work that these sessions save.
    pub(crate) rates: EngineRates,
}

/// The sizes of a session's parts.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    fixed_bytes: u64,
    position_bytes: u64,
    state_bytes: u64,
}

/// Sessions allocate memory for this many positions at a time.
const BLOCK_POSITIONS: u64 = 1024;

/// Shorter common prefixes are not worth a search.
pub(crate) const N_SHARED_MIN: usize = 8;

/// Returns the length of the common prefix.
pub(crate) fn n_shared(a: &[TokenId], b: &[TokenId]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// Returns how many tokens of a prompt a session holds and can be cut to. Excludes the prompt's
/// last token, which has to be fed for its logits.
pub(crate) fn n_usable(session: &Session, prompt: &[TokenId]) -> usize {
    let n_tokens_max = prompt.len().saturating_sub(1);
    session.cut_point(n_shared(session.tokens(), prompt).min(n_tokens_max))
}

/// Returns the owner's session that holds most of a prompt; of equals the first.
pub(crate) fn longest_match<'s, I: Iterator<Item = (Owner, &'s Session)>>(
    sessions: I,
    owner: Owner,
    prompt: &[TokenId],
) -> Option<PrefixMatch> {
    let own = sessions.enumerate().filter(|(_, (of, _))| *of == owner);
    let found = own.map(|(idx, (_, it))| PrefixMatch { idx, n_tokens: n_usable(it, prompt) });
    let best = found.reduce(|best, it| if it.n_tokens > best.n_tokens { it } else { best });
    best.filter(|it| it.n_tokens >= N_SHARED_MIN)
}

impl SessionCache {
    pub(crate) fn new(limits: KeptLimits, engine: &Engine) -> Self {
        let memory = engine.memory();
        let SessionRoom { limit_bytes: room_bytes, .. } = engine.session_room();
        let sizes = Sizes {
            // One state to read, and one to write.
            fixed_bytes: 2 * memory.session_fixed_bytes,
            position_bytes: memory.session_bytes_per_position,
            state_bytes: memory.session_fixed_bytes,
        };
        let (entries, dropped, rates) = (Vec::new(), Dropped::default(), EngineRates::default());
        Self { limits, room_bytes, sizes, entries, n_kept: 0, dropped, rates }
    }

    pub(crate) fn n_sessions(&self) -> usize {
        self.entries.len()
    }

    /// Returns the number of drops since the last call, in the order of [`DropReason::ALL`].
    pub(crate) fn take_n_dropped(&mut self) -> [u64; DropReason::ALL.len()] {
        self.dropped.take_counts()
    }

    /// Returns the owner's kept session that holds most of a prompt.
    pub(crate) fn longest_match(&self, owner: Owner, prompt: &[TokenId]) -> Option<PrefixMatch> {
        longest_match(self.entries.iter().map(|entry| (entry.owner, &entry.session)), owner, prompt)
    }

    /// Returns the dropped conversation that a prompt continues, if it held more of the prompt than
    /// was found elsewhere.
    pub(crate) fn missed(
        &mut self,
        owner: Owner,
        prompt: &[TokenId],
        n_found: usize,
    ) -> Option<Missed> {
        self.dropped.take(owner, prompt, n_found + N_SHARED_MIN)
    }

    /// Keeps a session. A prompt that shares the tokens up to its last split point continues the
    /// conversation.
    pub(crate) fn put(&mut self, mut session: Session, origin: SessionOrigin<'_>) {
        let SessionOrigin { owner, split_points, n_reused } = origin;
        if session.tokens().len() < N_SHARED_MIN || self.limits.n_sessions == 0 {
            return;
        }
        drop_surplus_states(&mut session, split_points, self.limits.n_states);
        let tokens = session.tokens();
        // A session that is a prefix of this one is redundant.
        self.entries
            .retain(|entry| entry.owner != owner || !tokens.starts_with(entry.session.tokens()));
        let last_part = split_points.iter().filter(|it| **it <= tokens.len()).max();
        let continues_from = last_part.copied().unwrap_or(tokens.len());
        let n_bytes = self.sizes.bytes(&session);
        self.n_kept += 1;
        self.entries.push(CachedSession {
            id: SessionId(self.n_kept),
            save_state: SaveState::Due,
            split_points: split_points.to_vec(),
            n_reused,
            owner,
            session,
            n_bytes,
            continues_from,
        });
    }

    /// Returns why a session has to be dropped, if the sessions exceed their limits.
    pub(crate) fn excess(&self) -> Option<DropReason> {
        if self.entries.len() > self.limits.n_sessions {
            return Some(DropReason::Count);
        }
        let is_over = self.limits.n_bytes.is_some_and(|n_bytes_max| self.bytes() > n_bytes_max);
        is_over.then_some(DropReason::Bytes)
    }

    /// Returns a session with the first tokens of a found one. The kept session stays if it would
    /// lose tokens that another prompt could continue, and there is room for both.
    pub(crate) fn take(&mut self, found: PrefixMatch) -> Result<Session> {
        let entry = &mut self.entries[found.idx];
        let continues = found.n_tokens >= entry.continues_from.min(entry.session.tokens().len());
        if !continues && let Ok(fork) = fork_at(&mut entry.session, found.n_tokens) {
            let entry = self.entries.remove(found.idx);
            self.entries.push(entry);
            return Ok(fork);
        }
        let mut session = self.entries.remove(found.idx).session;
        session.truncate(found.n_tokens)?;
        Ok(session)
    }

    /// Returns the tokens of all sessions, with the number of them from which on a prompt continues
    /// the conversation.
    pub(crate) fn texts(&self) -> impl Iterator<Item = (Owner, &[TokenId], usize)> {
        self.entries.iter().map(|it| (it.owner, it.session.tokens(), it.continues_from))
    }

    /// Returns the session that was kept first of those that are to be saved.
    pub(crate) fn unsaved(&self) -> Option<UnsavedSession<'_, SessionId>> {
        let due = self.entries.iter().find(|entry| entry.save_state == SaveState::Due);
        due.map(CachedSession::unsaved)
    }

    /// Returns the session that is dropped next, if it is still to be saved.
    pub(crate) fn unsaved_victim(&self) -> Option<SessionId> {
        let (idx, _) = self.least_valuable()?;
        let CachedSession { id, save_state, .. } = self.entries[idx];
        (save_state == SaveState::Due).then_some(id)
    }

    pub(crate) fn unsaved_of(&self, id: SessionId) -> Option<UnsavedSession<'_, SessionId>> {
        let is_it = |entry: &&CachedSession| entry.id == id && entry.save_state == SaveState::Due;
        self.entries.iter().find(is_it).map(CachedSession::unsaved)
    }

    pub(crate) fn session_mut(&mut self, id: SessionId) -> Option<&mut Session> {
        let entry = self.entries.iter_mut().find(|entry| entry.id == id);
        entry.map(|entry| &mut entry.session)
    }

    /// Records what became of saving a session.
    pub(crate) fn set_save_state(&mut self, id: SessionId, save_state: SaveState) {
        if let Some(entry) = self.entries.iter_mut().find(|entry| entry.id == id) {
            entry.save_state = save_state;
        }
    }

    /// Drops a session because answers need its memory. Returns whether there was one.
    pub(crate) fn evict_one(&mut self) -> bool {
        self.drop_least_valuable(DropReason::Answers)
    }

    /// Does the same, but spares the last conversation of each owner within its share.
    pub(crate) fn evict_older(&mut self) -> bool {
        match self.least_valuable() {
            Some((idx, _)) if !self.is_protected(idx) => {
                self.drop_at(idx, DropReason::Answers);
                true
            }
            _ => false,
        }
    }

    /// Drops a session whose memory is worth more as room for experts. Returns whether there was
    /// one. With `are_saved`, sessions that are still to be saved stay until they are.
    pub(crate) fn evict_for(&mut self, slots: MissingSlots, are_saved: bool) -> bool {
        let Some((idx, worth)) = self.least_valuable() else { return false };
        let stays =
            self.is_protected(idx) || are_saved && self.entries[idx].save_state == SaveState::Due;
        let is_worth_less = !stays && worth < self.rates.of_slot(slots);
        if is_worth_less {
            self.drop_at(idx, DropReason::Experts);
        }
        is_worth_less
    }

    /// Drops a session. Returns whether there was one.
    pub(crate) fn drop_least_valuable(&mut self, reason: DropReason) -> bool {
        let least_valuable = self.least_valuable();
        if let Some((idx, _)) = least_valuable {
            self.drop_at(idx, reason);
        }
        least_valuable.is_some()
    }

    fn drop_at(&mut self, idx: usize, reason: DropReason) {
        let CachedSession { owner, session, n_bytes, continues_from, .. } =
            self.entries.remove(idx);
        let n_tokens = session.tokens().len();
        tracing::info!(n_tokens, n_bytes, reason = reason.text(), "a kept session was dropped");
        let continued = &session.tokens()[..continues_from.min(n_tokens)];
        self.dropped.put(owner, continued, reason);
    }

    /// Returns the next session to drop, and its value.
    fn least_valuable(&self) -> Option<(usize, f64)> {
        let entries = self.entries.iter().enumerate();
        let ranked = entries.map(|(idx, entry)| {
            let n_used_since = self.entries.len() - 1 - idx;
            (idx, self.is_protected(idx), self.rates.of_session(&entry.value(), n_used_since))
        });
        let least_valuable = ranked.min_by(|a, b| a.1.cmp(&b.1).then(a.2.total_cmp(&b.2)));
        least_valuable.map(|(idx, _, worth)| (idx, worth))
    }

    /// Whether a session is the last of its owner and within the owner's share.
    fn is_protected(&self, idx: usize) -> bool {
        let is_last = |idx: usize| {
            let owner = self.entries[idx].owner;
            self.entries[idx + 1..].iter().all(|later| later.owner != owner)
        };
        if !is_last(idx) {
            return false;
        }
        let n_owners = (0..self.entries.len()).filter(|idx| is_last(*idx)).count() as u64;
        let limit_bytes = self.limits.n_bytes.or(self.room_bytes);
        let share_bytes = limit_bytes.map_or(u64::MAX, |limit_bytes| limit_bytes / n_owners);
        self.entries[idx].n_bytes <= share_bytes
    }

    /// Returns the bytes of all kept sessions.
    pub(crate) fn bytes(&self) -> u64 {
        self.entries.iter().map(|entry| entry.n_bytes).sum()
    }

    /// Returns the bytes of some sessions.
    pub(crate) fn bytes_of<'s, I: Iterator<Item = &'s Session>>(&self, sessions: I) -> u64 {
        sessions.map(|session| self.sizes.bytes(session)).sum()
    }
}

impl CachedSession {
    fn unsaved(&self) -> UnsavedSession<'_, SessionId> {
        let Self { id, owner, session, split_points, n_reused, .. } = self;
        let origin = SessionOrigin { owner: *owner, split_points, n_reused: *n_reused };
        UnsavedSession { id: *id, session, origin, n_tokens: session.tokens().len() }
    }

    fn value(&self) -> SessionValue {
        SessionValue {
            n_tokens: self.session.tokens().len(),
            n_bytes: self.n_bytes,
            is_saved: self.save_state == SaveState::Saved,
        }
    }
}

impl Sizes {
    fn bytes(self, session: &Session) -> u64 {
        let n_positions = (session.tokens().len() as u64).next_multiple_of(BLOCK_POSITIONS);
        let n_states = session.checkpoints().len() as u64;
        self.fixed_bytes + self.position_bytes * n_positions + self.state_bytes * n_states
    }
}

/// Forks a session at `n_tokens`, with a checkpoint there to go back to.
pub(crate) fn fork_at(session: &mut Session, n_tokens: usize) -> Result<Session> {
    let mut fork = session.fork_at(n_tokens)?;
    fork.checkpoint(n_tokens)?;
    Ok(fork)
}

/// Forgets surplus checkpoints: first the oldest that is not at a split point.
fn drop_surplus_states(session: &mut Session, split_points: &[usize], n_states: usize) {
    let mut positions = session.checkpoints();
    while positions.len() > n_states {
        let is_expected = |position: &usize| split_points.contains(position);
        let surplus = positions.iter().position(|it| !is_expected(it)).unwrap_or(0);
        session.forget(positions.remove(surplus));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn session(engine: &Engine, tokens: std::ops::Range<u32>) -> Session {
        let mut session = engine.session(256).unwrap();
        let tokens: Vec<TokenId> = tokens.map(TokenId).collect();
        let output = &mut moeflux::step::StepOutput::default();
        moeflux::step::step(&mut [moeflux::step::Feed::prompt(&mut session, &tokens)], output)
            .unwrap();
        session
    }

    #[test]
    fn sessions_give_way_to_experts_that_are_worth_more() {
        let dir = moeflux_demo::unpack(&std::env::temp_dir()).unwrap();
        let engine = Engine::builder(moeflux::Model::open(dir).unwrap()).load().unwrap();
        let mut cache = SessionCache::new(KeptLimits::default(), &engine);
        for (owner, tokens) in [(0, 10..60), (0, 100..150), (1, 200..250)] {
            let origin = SessionOrigin { owner: Owner(owner), split_points: &[], n_reused: 0 };
            cache.put(session(&engine, tokens), origin);
        }
        let slots = MissingSlots { slot_bytes: 1 << 20, n_missing: 10 };
        assert!(!cache.evict_for(slots, false), "experts save nothing yet");
        cache.rates.add_answers(Duration::from_secs(1), 10);
        cache.rates.add_prompt(Duration::from_secs(1_000_000), 100);
        assert!(!cache.evict_for(slots, false), "the sessions save more");
        cache.rates = EngineRates::default();
        cache.rates.add_answers(Duration::from_secs(1), 10);
        cache.rates.add_prompt(Duration::from_micros(1), 100);
        assert!(cache.evict_for(slots, false), "the older one of the first owner");
        let prompt: Vec<TokenId> = (10..61).map(TokenId).collect();
        assert_eq!(cache.longest_match(Owner(0), &prompt), None);
        assert!(!cache.evict_for(slots, false), "the last of each owner");
        assert!(cache.evict_one() && cache.evict_one() && !cache.evict_one());
        assert_eq!(cache.take_n_dropped(), [0, 0, 2, 1]);
    }
}
