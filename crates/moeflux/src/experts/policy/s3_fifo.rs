//! Three queues: a small one for newcomers, a main one, and the names of those thrown out.
//!
//! S3-FIFO (Yang et al., 2023): most newcomers are used once and leave from the small queue; who
//! was used there, or comes back soon after it left, goes to the main queue, where each further use
//! buys another round.

use moeflux_io::SlotIdx;

use super::{KeyIdx, Links, List, Policy, PolicyShape};

/// One slot of so many is for newcomers.
const SMALL_SHARE: usize = 10;

/// Uses that are remembered at most.
const N_USES_MAX: u8 = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Queue {
    Small,
    Main,
}

#[derive(Debug)]
struct Line {
    list: List,
    n_idle: usize,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    key: KeyIdx,
    queue: Queue,
    n_uses: u8,
    is_held: bool,
}

/// Small, main and ghost queues.
#[derive(Debug)]
pub(super) struct S3Fifo {
    links: Links,
    /// By [`Queue`].
    lines: [Line; 2],
    /// Per slot; meaningless where it is outside.
    entries: Vec<Entry>,
    ghosts: Ghosts,
}

impl S3Fifo {
    pub(super) fn new(shape: PolicyShape) -> Self {
        let mut policy = Self {
            links: Links::default(),
            lines: [(); 2].map(|()| Line { list: List::new(), n_idle: 0 }),
            entries: Vec::new(),
            ghosts: Ghosts::new(shape.n_keys),
        };
        policy.resize(shape.n_slots);
        policy
    }

    fn enter(&mut self, slot: SlotIdx, queue: Queue) {
        self.lines[queue as usize].list.push(&mut self.links, slot);
        let entry = &mut self.entries[slot.0];
        entry.queue = queue;
        self.lines[queue as usize].n_idle += usize::from(!entry.is_held);
    }

    fn leave(&mut self, slot: SlotIdx) {
        let entry = self.entries[slot.0];
        let line = &mut self.lines[entry.queue as usize];
        line.list.remove(&mut self.links, slot);
        line.n_idle -= usize::from(!entry.is_held);
    }

    /// Looks at the oldest of a queue: a victim, or it moves on.
    fn look(&mut self, queue: Queue) -> Option<SlotIdx> {
        let slot = self.lines[queue as usize].list.oldest()?;
        let entry = &mut self.entries[slot.0];
        let goes_to = match (queue, entry.is_held, entry.n_uses) {
            // In use now, so as new as one that just came.
            (queue, true, _) => queue,
            (_, false, 0) => return Some(slot),
            (Queue::Main, ..) => {
                entry.n_uses -= 1;
                Queue::Main
            }
            (Queue::Small, ..) => {
                entry.n_uses = 0;
                Queue::Main
            }
        };
        self.leave(slot);
        self.enter(slot, goes_to);
        None
    }
}

impl Policy for S3Fifo {
    fn begin_step(&mut self, _n_rows: usize) {}

    fn admit(&mut self, slot: SlotIdx, key: KeyIdx, _n_uses: u32) {
        let queue = if self.ghosts.take(key) { Queue::Main } else { Queue::Small };
        self.entries[slot.0] = Entry { key, queue, n_uses: 0, is_held: true };
        self.enter(slot, queue);
    }

    fn hit(&mut self, slot: SlotIdx, _n_uses: u32) {
        let entry = &mut self.entries[slot.0];
        entry.n_uses = (entry.n_uses + 1).min(N_USES_MAX);
    }

    fn hold(&mut self, slot: SlotIdx) {
        let entry = &mut self.entries[slot.0];
        entry.is_held = true;
        self.lines[entry.queue as usize].n_idle -= 1;
    }

    fn let_go(&mut self, slot: SlotIdx) {
        let entry = &mut self.entries[slot.0];
        entry.is_held = false;
        self.lines[entry.queue as usize].n_idle += 1;
    }

    fn victim(&mut self) -> Option<SlotIdx> {
        let small_max = self.entries.len() / SMALL_SHARE;
        // A look finds a victim, takes one of at most three uses, or passes a held slot: where one
        // is idle, the looks come to an end.
        loop {
            let [small, main] = &self.lines;
            let queue = match (small.n_idle, main.n_idle) {
                (0, 0) => return None,
                (0, _) => Queue::Main,
                (_, 0) => Queue::Small,
                _ if small.list.len() > small_max => Queue::Small,
                _ => Queue::Main,
            };
            if let Some(slot) = self.look(queue) {
                return Some(slot);
            }
        }
    }

    fn remove(&mut self, slot: SlotIdx) {
        self.leave(slot);
        let Entry { key, queue, .. } = self.entries[slot.0];
        if queue == Queue::Small {
            self.ghosts.put(key);
        }
    }

    fn resize(&mut self, n_slots: usize) {
        self.links.resize(n_slots);
        let unused = Entry { key: KeyIdx(0), queue: Queue::Small, n_uses: 0, is_held: false };
        self.entries.resize(n_slots, unused);
        self.ghosts.resize(n_slots);
    }
}

/// Names of those that left the small queue last, as many as there are slots.
#[derive(Debug)]
struct Ghosts {
    /// Per key: the number of its departure; 0 for none.
    left_at: Vec<u64>,
    n_left: u64,
    n_kept: u64,
}

impl Ghosts {
    fn new(n_keys: usize) -> Self {
        Self { left_at: vec![0; n_keys], n_left: 0, n_kept: 0 }
    }

    fn resize(&mut self, n_slots: usize) {
        self.n_kept = n_slots as u64;
    }

    fn put(&mut self, key: KeyIdx) {
        self.n_left += 1;
        self.left_at[key.0] = self.n_left;
    }

    /// Whether it was there.
    fn take(&mut self, key: KeyIdx) -> bool {
        let left_at = std::mem::take(&mut self.left_at[key.0]);
        left_at > 0 && left_at + self.n_kept > self.n_left
    }
}
