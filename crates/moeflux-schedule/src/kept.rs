//! Sessions that are kept for prompts that go on from them.
//!
//! **Invariant:** what is kept stays within its limits, and the least recently used goes first. A
//! prompt goes on from sessions of its own owner only.

use moeflux::{Engine, Result, Session, TokenId};

use crate::job::Owner;

/// How much may be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeptLimits {
    /// Sessions.
    pub n_sessions: usize,
    /// Places in each to which a model with recurrent layers can go back.
    pub n_states: usize,
    /// Bytes of all of them; `None`: a tenth of what experts have, and at least 64 MiB.
    pub n_bytes: Option<u64>,
}

impl Default for KeptLimits {
    fn default() -> Self {
        Self { n_sessions: 2, n_states: 4, n_bytes: None }
    }
}

/// A past that a prompt can go on from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    /// Which of those that were looked at.
    pub(crate) idx: usize,
    /// Tokens of the prompt that it has and can be cut to.
    pub(crate) n_tokens: usize,
}

/// A kept session.
#[derive(Debug)]
struct Entry {
    owner: Owner,
    session: Session,
    /// A prompt that has so much in common with it continues its conversation.
    continues_from: usize,
}

/// Sessions nobody runs, least recently used first.
#[derive(Debug)]
pub(crate) struct Kept {
    limits: KeptLimits,
    n_bytes_max: u64,
    sizes: Sizes,
    entries: Vec<Entry>,
}

/// What a session takes.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    fixed_bytes: u64,
    position_bytes: u64,
    state_bytes: u64,
}

/// Positions for which sessions take memory at once.
const PIECE_POSITIONS: u64 = 1024;

/// Sessions may keep one part of so many of what experts have, unless told otherwise.
const EXPERT_SHARE: u64 = 10;

/// And at least this much: small models have small experts, and the room of sessions is counted
/// anyway.
const N_BYTES_LEAST: u64 = 64 << 20;

/// Fewer tokens are not worth a search for a session that has them.
pub(crate) const N_SHARED_MIN: usize = 8;

/// Tokens at the start of both.
pub(crate) fn n_shared(a: &[TokenId], b: &[TokenId]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// How much of a prompt a session has and can be cut to. The last token of the prompt has to be
/// fed: its logits are wanted.
pub(crate) fn n_usable(session: &Session, prompt: &[TokenId]) -> usize {
    let n_tokens_max = prompt.len().saturating_sub(1);
    session.cut_point(n_shared(session.tokens(), prompt).min(n_tokens_max))
}

/// The best of an owner's sessions for a prompt; of equals the first.
pub(crate) fn best<'s, I: Iterator<Item = (Owner, &'s Session)>>(
    sessions: I,
    owner: Owner,
    prompt: &[TokenId],
) -> Option<Found> {
    let own = sessions.enumerate().filter(|(_, (of, _))| *of == owner);
    let found = own.map(|(idx, (_, it))| Found { idx, n_tokens: n_usable(it, prompt) });
    let best = found.reduce(|best, it| if it.n_tokens > best.n_tokens { it } else { best });
    best.filter(|it| it.n_tokens >= N_SHARED_MIN)
}

impl Kept {
    pub(crate) fn new(limits: KeptLimits, engine: &Engine) -> Self {
        let memory = engine.memory();
        let n_bytes_max = limits.n_bytes;
        let n_bytes_max =
            n_bytes_max.unwrap_or_else(|| (memory.expert_bytes / EXPERT_SHARE).max(N_BYTES_LEAST));
        let sizes = Sizes {
            // One state to read, and one to write.
            fixed_bytes: 2 * memory.session_fixed_bytes,
            position_bytes: memory.session_bytes_per_position,
            state_bytes: memory.session_fixed_bytes,
        };
        Self { limits, n_bytes_max, sizes, entries: Vec::new() }
    }

    pub(crate) fn n_sessions(&self) -> usize {
        self.entries.len()
    }

    /// The owner's kept session that has most of a prompt.
    pub(crate) fn best(&self, owner: Owner, prompt: &[TokenId]) -> Option<Found> {
        best(self.entries.iter().map(|entry| (entry.owner, &entry.session)), owner, prompt)
    }

    /// Keeps a session. `parts_at` are places to which it should be possible to go back; a prompt
    /// that has the last of them in common continues the conversation.
    pub(crate) fn put(&mut self, owner: Owner, mut session: Session, parts_at: &[usize]) {
        if session.tokens().len() < N_SHARED_MIN || self.limits.n_sessions == 0 {
            return;
        }
        drop_surplus_states(&mut session, parts_at, self.limits.n_states);
        let tokens = session.tokens();
        // What a session has beyond another makes the other one superfluous.
        self.entries
            .retain(|entry| entry.owner != owner || !tokens.starts_with(entry.session.tokens()));
        let last_part = parts_at.iter().filter(|it| **it <= tokens.len()).max();
        let continues_from = last_part.copied().unwrap_or(tokens.len());
        self.entries.push(Entry { owner, session, continues_from });
        while self.entries.len() > self.limits.n_sessions || self.bytes() > self.n_bytes_max {
            self.entries.remove(0);
        }
    }

    /// A session with the first tokens of what was found. The kept one stays if it would lose what
    /// another prompt could go on from, and there is room for both.
    pub(crate) fn take(&mut self, found: Found) -> Result<Session> {
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

    /// Gives up the session that was not used for the longest time; whether there was one.
    pub(crate) fn give_up_one(&mut self) -> bool {
        let is_there = !self.entries.is_empty();
        if is_there {
            self.entries.remove(0);
        }
        is_there
    }

    /// What they take.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes_of(self.entries.iter().map(|entry| &entry.session))
    }

    /// What some sessions take.
    pub(crate) fn bytes_of<'s, I: Iterator<Item = &'s Session>>(&self, sessions: I) -> u64 {
        sessions.map(|session| self.sizes.bytes(session)).sum()
    }
}

impl Sizes {
    fn bytes(self, session: &Session) -> u64 {
        let n_positions = (session.tokens().len() as u64).next_multiple_of(PIECE_POSITIONS);
        let n_states = session.checkpoints().len() as u64;
        self.fixed_bytes + self.position_bytes * n_positions + self.state_bytes * n_states
    }
}

/// A session with the first tokens of another, which can go back to where it began.
pub(crate) fn fork_at(session: &mut Session, n_tokens: usize) -> Result<Session> {
    let mut fork = session.fork_at(n_tokens)?;
    fork.checkpoint(n_tokens)?;
    Ok(fork)
}

/// Forgets states that are too many: first the oldest that nobody expects to go back to.
fn drop_surplus_states(session: &mut Session, parts_at: &[usize], n_states: usize) {
    let mut positions = session.checkpoints();
    while positions.len() > n_states {
        let is_expected = |position: &usize| parts_at.contains(position);
        let surplus = positions.iter().position(|it| !is_expected(it)).unwrap_or(0);
        session.forget(positions.remove(surplus));
    }
}
