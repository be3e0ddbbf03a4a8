//! Slots for connections: which connection gets one, and which one is ended in its favour.
//!
//! A client can open and hold connections at no cost and without a key. Therefore only a connection
//! whose request is being answered is sure of its slot. When all are taken, another connection ends
//! for a new one: first one without any admitted request, then an idle one, then one whose request
//! is still being read. Among these, one of the peer with the most of them is chosen, and of its
//! connections the one that has been at this stage for longest. **Invariant:** there are never more
//! connections than the limit. This module knows no sockets and no clock: earlier events have
//! smaller numbers.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::http::config::ConnectionLimits;
use crate::metrics::ConnectionCounts;

/// The server is nearly full when less than one in this many slots is free.
const NEARLY_FULL_PART: usize = 4;
/// One in this many connections ends when the system cannot accept another.
const RESERVED_PART: usize = 8;
/// With fewer connections than this, they are not the reason for the system's error.
const N_SLOTS_MIN: usize = 16;

/// The origin of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Peer {
    /// A program of this machine; without an address if it uses the Unix socket.
    Local(Option<IpAddr>),
    /// Another machine. For IPv6 its network, because a machine there has many addresses.
    Other(IpAddr),
}

impl Peer {
    /// Returns the peer of a connection from this address.
    pub(crate) fn at(address: IpAddr) -> Self {
        let address = address.to_canonical();
        if address.is_loopback() {
            return Self::Local(Some(address));
        }
        Self::Other(match address {
            IpAddr::V4(_) => address,
            IpAddr::V6(address) => {
                let network = address.to_bits() & !u128::from(u64::MAX);
                IpAddr::V6(network.into())
            }
        })
    }
}

/// The state of a connection, in the order in which connections are ended for others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ConnectionStage {
    /// No request was admitted yet.
    New,
    /// Requests were answered, and none is in progress.
    Idle,
    /// The body of an admitted request is being read.
    Reading,
    /// A request is being answered.
    Answering,
}

/// A server's slots for connections.
#[derive(Debug)]
pub(crate) struct ConnectionSlots {
    table: Mutex<ConnectionTable>,
    /// Notified when a slot is free, or may become free.
    changed: Notify,
}

/// The result of asking for a slot.
#[derive(Debug)]
pub(crate) enum ConnectionAdmission {
    Admitted(ConnectionSlot),
    /// Its peer has its full share, and all of these connections are being answered.
    Refused,
}

impl ConnectionSlots {
    /// Creates slots, all of them free.
    pub(crate) fn new(limits: ConnectionLimits) -> Arc<Self> {
        let table = Mutex::new(ConnectionTable::new(limits));
        Arc::new(Self { table, changed: Notify::new() })
    }

    /// Waits for a slot for a connection of this peer.
    pub(crate) async fn admit(self: &Arc<Self>, peer: Peer) -> ConnectionAdmission {
        loop {
            let mut changed = pin!(self.changed.notified());
            changed.as_mut().enable();
            let decision = self.table().request_slot(peer);
            match decision {
                SlotDecision::Granted { id, eviction, is_nearly_full } => {
                    let slots = Arc::clone(self);
                    return ConnectionAdmission::Admitted(ConnectionSlot {
                        slots,
                        id,
                        eviction,
                        is_nearly_full,
                    });
                }
                SlotDecision::Refused => return ConnectionAdmission::Refused,
                SlotDecision::Wait => changed.await,
            }
        }
    }

    /// Lowers the limit below the current number of connections, because the system has no
    /// descriptor for another: a few stay free for files. Returns the new limit.
    pub(crate) fn lower_limit(&self) -> usize {
        self.table().lower_limit()
    }

    /// Returns the number of connections with a slot.
    pub(crate) fn n_taken(&self) -> usize {
        self.table().connections.len()
    }

    /// Returns the counters of connections.
    pub(crate) fn counts(&self) -> ConnectionCounts {
        let table = self.table();
        ConnectionCounts { n_open: table.connections.len(), ..table.counts }
    }

    /// Waits until all slots are free.
    pub(crate) async fn all_free(&self) {
        loop {
            let mut changed = pin!(self.changed.notified());
            changed.as_mut().enable();
            if self.n_taken() == 0 {
                return;
            }
            changed.await;
        }
    }

    fn table(&self) -> MutexGuard<'_, ConnectionTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, id: u64, stage: ConnectionStage) {
        self.table().set(id, stage);
        self.changed.notify_waiters();
    }
}

/// The slot of one connection, until it is dropped.
#[derive(Debug)]
pub(crate) struct ConnectionSlot {
    slots: Arc<ConnectionSlots>,
    id: u64,
    eviction: Arc<Notify>,
    /// Whether few slots were free after it, so that a slow client has less time.
    pub(crate) is_nearly_full: bool,
}

impl ConnectionSlot {
    /// Waits until the slot is needed for another connection.
    pub(crate) async fn evicted(&self) {
        self.eviction.notified().await;
    }

    /// Returns the handle by which a request on this connection reports its stage.
    pub(crate) fn stage_reporter(&self) -> StageReporter {
        StageReporter { slots: Arc::clone(&self.slots), id: self.id }
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.slots.table().remove(self.id);
        self.slots.changed.notify_waiters();
    }
}

/// A handle by which a request on a connection reports its stage.
#[derive(Clone, Debug)]
pub(crate) struct StageReporter {
    slots: Arc<ConnectionSlots>,
    id: u64,
}

impl StageReporter {
    /// Reports that it was admitted; its body is read next.
    pub(crate) fn admitted(&self) {
        self.slots.set(self.id, ConnectionStage::Reading);
    }

    /// Reports that it is complete and is being answered.
    pub(crate) fn answering(&self) {
        self.slots.set(self.id, ConnectionStage::Answering);
    }

    /// Reports that its response has ended or will never come.
    pub(crate) fn ended(&self) {
        self.slots.set(self.id, ConnectionStage::Idle);
    }

    /// Reports that its response goes on for ever: no work is lost if it ends for another one.
    pub(crate) fn endless(&self) {
        self.slots.set(self.id, ConnectionStage::Idle);
    }
}

/// The connections that have slots.
#[derive(Debug)]
struct ConnectionTable {
    limits: ConnectionLimits,
    connections: BTreeMap<u64, TrackedConnection>,
    peers: HashMap<Peer, PeerCounts>,
    last_number: u64,
    /// Counters; the number of open connections is filled in when they are read.
    counts: ConnectionCounts,
}

/// A connection that has a slot.
#[derive(Debug)]
struct TrackedConnection {
    peer: Peer,
    stage: ConnectionStage,
    /// The number of the event since which it has been at this stage.
    since: u64,
    is_evicted: bool,
    eviction: Arc<Notify>,
}

/// Numbers of connections of one peer.
#[derive(Clone, Copy, Debug, Default)]
struct PeerCounts {
    n_open: usize,
    /// The connections among them that are being answered.
    n_answering: usize,
}

/// Whether a connection gets a slot now.
#[derive(Debug)]
enum SlotDecision {
    Granted {
        id: u64,
        eviction: Arc<Notify>,
        is_nearly_full: bool,
    },
    /// A connection is leaving, or all are being answered.
    Wait,
    Refused,
}

impl ConnectionTable {
    fn new(limits: ConnectionLimits) -> Self {
        let (connections, peers) = (BTreeMap::new(), HashMap::new());
        let counts = ConnectionCounts::default();
        Self { limits, connections, peers, last_number: 0, counts }
    }

    fn is_nearly_full(&self) -> bool {
        let n_free = self.limits.n_max.saturating_sub(self.connections.len());
        n_free < self.limits.n_max / NEARLY_FULL_PART
    }

    fn request_slot(&mut self, peer: Peer) -> SlotDecision {
        let n_peer_max = match peer {
            Peer::Local(_) => self.limits.n_local_peer_max,
            Peer::Other(_) => self.limits.n_peer_max,
        };
        // A share as large as the whole is no limit: the connection then waits with the others.
        if n_peer_max < self.limits.n_max && self.peer(peer).n_open >= n_peer_max {
            if self.make_room(|it| it.peer == peer) {
                return SlotDecision::Wait;
            }
            self.counts.n_refused += 1;
            return SlotDecision::Refused;
        }
        if self.connections.len() >= self.limits.n_max {
            self.make_room(|_| true);
            return SlotDecision::Wait;
        }
        let id = self.next_number();
        let connection = TrackedConnection {
            peer,
            stage: ConnectionStage::New,
            since: id,
            is_evicted: false,
            eviction: Arc::new(Notify::new()),
        };
        let eviction = Arc::clone(&connection.eviction);
        self.connections.insert(id, connection);
        self.counts.n_accepted += 1;
        self.peers.entry(peer).or_default().n_open += 1;
        SlotDecision::Granted { id, eviction, is_nearly_full: self.is_nearly_full() }
    }

    /// Ends one matching connection, unless one is already leaving. Returns whether there is one.
    fn make_room(&mut self, is_candidate: impl Fn(&TrackedConnection) -> bool) -> bool {
        self.connections.values().any(|it| it.is_evicted && is_candidate(it))
            || self.evict(is_candidate)
    }

    /// Ends one matching connection. Returns whether there is one that may be ended.
    fn evict(&mut self, is_candidate: impl Fn(&TrackedConnection) -> bool) -> bool {
        let peers = &self.peers;
        let can_evict = |it: &&mut TrackedConnection| {
            it.stage < ConnectionStage::Answering && !it.is_evicted && is_candidate(it)
        };
        let order = |it: &&mut TrackedConnection| {
            let counts = peers[&it.peer];
            (it.stage, Reverse(counts.n_open - counts.n_answering), it.since)
        };
        let Some(first) = self.connections.values_mut().filter(can_evict).min_by_key(order) else {
            return false;
        };
        first.is_evicted = true;
        first.eviction.notify_one();
        self.counts.n_displaced += 1;
        true
    }

    /// Lowers the limit below the current number of connections. Returns the new limit.
    fn lower_limit(&mut self) -> usize {
        let n_open = self.connections.len();
        let n_max = self.limits.n_max;
        let n_left = n_open - n_open.div_ceil(RESERVED_PART);
        self.limits.n_max = n_left.clamp(N_SLOTS_MIN.min(n_max), n_max);
        let n_evicted = self.connections.values().filter(|it| it.is_evicted).count();
        let n_more = n_open.saturating_sub(n_evicted + self.limits.n_max);
        (0..n_more).take_while(|_| self.evict(|_| true)).count();
        self.limits.n_max
    }

    /// Sets the stage of a connection. A connection without an admitted request stays new.
    fn set(&mut self, id: u64, stage: ConnectionStage) {
        let since = self.next_number();
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let before = connection.stage;
        if before == stage || (before, stage) == (ConnectionStage::New, ConnectionStage::Idle) {
            return;
        }
        (connection.stage, connection.since) = (stage, since);
        let counts = self.peers.entry(connection.peer).or_default();
        counts.n_answering += usize::from(stage == ConnectionStage::Answering);
        counts.n_answering -= usize::from(before == ConnectionStage::Answering);
    }

    fn remove(&mut self, id: u64) {
        let Some(TrackedConnection { peer, stage, .. }) = self.connections.remove(&id) else {
            return;
        };
        let counts = self.peers.entry(peer).or_default();
        counts.n_open -= 1;
        counts.n_answering -= usize::from(stage == ConnectionStage::Answering);
        if counts.n_open == 0 {
            self.peers.remove(&peer);
        }
    }

    fn peer(&self, peer: Peer) -> PeerCounts {
        self.peers.get(&peer).copied().unwrap_or_default()
    }

    fn next_number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(address: &str) -> Peer {
        Peer::at(address.parse().unwrap())
    }

    fn table(n_max: usize, n_peer_max: usize) -> ConnectionTable {
        ConnectionTable::new(ConnectionLimits { n_max, n_peer_max, n_local_peer_max: n_max })
    }

    #[track_caller]
    fn granted(table: &mut ConnectionTable, peer: Peer) -> u64 {
        match table.request_slot(peer) {
            SlotDecision::Granted { id, .. } => id,
            other => panic!("{other:?}"),
        }
    }

    /// Returns the connection that is ended when one of this peer arrives.
    #[track_caller]
    fn evicted_for(table: &mut ConnectionTable, peer: Peer) -> u64 {
        assert!(matches!(table.request_slot(peer), SlotDecision::Wait));
        let mut evicted = table.connections.iter().filter(|(_, it)| it.is_evicted);
        let id = *evicted.next().expect("one leaves").0;
        assert!(evicted.next().is_none(), "one is enough");
        table.remove(id);
        id
    }

    #[test]
    fn peers_are_addresses_or_networks() {
        assert_eq!(peer("::ffff:192.0.2.1"), peer("192.0.2.1"));
        assert_ne!(peer("192.0.2.1"), peer("192.0.2.2"));
        assert_eq!(peer("2001:db8:1:2::1"), peer("2001:db8:1:2:ffff:ffff:ffff:ffff"));
        assert_ne!(peer("2001:db8:1:2::1"), peer("2001:db8:1:3::1"));
        for local in ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"] {
            assert!(matches!(peer(local), Peer::Local(_)), "{local}");
        }
        assert!(matches!(peer("::2"), Peer::Other(_)));
    }

    #[test]
    fn they_end_in_order() {
        let mut table = table(4, 4);
        let local = Peer::Local(None);
        let ids: Vec<u64> = (0..4).map(|_| granted(&mut table, local)).collect();
        let stages = [
            ConnectionStage::Answering,
            ConnectionStage::Reading,
            ConnectionStage::Idle,
            ConnectionStage::New,
        ];
        for (id, stage) in ids.iter().zip(stages) {
            table.set(*id, ConnectionStage::Reading);
            table.set(*id, stage);
        }
        table.remove(ids[3]);
        let new = [granted(&mut table, local)];
        assert_eq!(evicted_for(&mut table, local), new[0], "it has asked nothing");
        for expected in [ids[2], ids[1]] {
            let busy = granted(&mut table, local);
            table.set(busy, ConnectionStage::Answering);
            assert_eq!(evicted_for(&mut table, local), expected);
        }
        let busy = granted(&mut table, local);
        table.set(busy, ConnectionStage::Answering);
        assert!(matches!(table.request_slot(local), SlotDecision::Wait));
        assert!(table.connections.values().all(|it| !it.is_evicted), "all are answered");
        assert_eq!(table.counts.n_displaced, 3);
    }

    #[test]
    fn the_longest_idle_ends_whatever_it_trickles() {
        let mut table = table(3, 3);
        let local = Peer::Local(None);
        let ids: Vec<u64> = (0..3).map(|_| granted(&mut table, local)).collect();
        // A refused request does not make the connection younger.
        table.set(ids[0], ConnectionStage::Idle);
        assert_eq!(evicted_for(&mut table, local), ids[0]);
        let last = granted(&mut table, local);
        for id in [ids[2], ids[1], last] {
            table.set(id, ConnectionStage::Answering);
            table.set(id, ConnectionStage::Idle);
        }
        assert_eq!(evicted_for(&mut table, local), ids[2]);
    }

    #[test]
    fn the_peer_with_the_most_gives_up_one() {
        let mut table = table(6, 6);
        let (few, many) = (peer("192.0.2.1"), peer("192.0.2.2"));
        let first = granted(&mut table, few);
        let busy: Vec<u64> = (0..2).map(|_| granted(&mut table, few)).collect();
        let ids: Vec<u64> = (0..3).map(|_| granted(&mut table, many)).collect();
        // Connections that are being answered do not count against their peer.
        busy.iter().for_each(|id| table.set(*id, ConnectionStage::Answering));
        for expected in [ids[0], ids[1]] {
            assert_eq!(evicted_for(&mut table, few), expected);
            let id = granted(&mut table, few);
            table.set(id, ConnectionStage::Answering);
        }
        assert_eq!(evicted_for(&mut table, few), first, "one each, and it is older");
    }

    #[test]
    fn a_peer_has_a_share() {
        let mut table = table(8, 2);
        let (one, other) = (peer("192.0.2.1"), peer("192.0.2.2"));
        let ids = [granted(&mut table, one), granted(&mut table, one)];
        granted(&mut table, other);
        assert_eq!(evicted_for(&mut table, one), ids[0], "its own, although others are free");
        let third = granted(&mut table, one);
        table.set(ids[1], ConnectionStage::Answering);
        table.set(third, ConnectionStage::Answering);
        assert!(matches!(table.request_slot(one), SlotDecision::Refused));
        assert_eq!(table.counts.n_refused, 1);
        for _ in 0..4 {
            granted(&mut table, Peer::Local(None));
        }
        granted(&mut table, other);
        // All programs of this machine, and all clients of a local proxy, share one address.
        assert_eq!(table.peer(Peer::Local(None)).n_open, 4);
    }

    #[test]
    fn a_system_that_refuses_lowers_the_limit() {
        let mut table = table(100, 100);
        let local = Peer::Local(None);
        let ids: Vec<u64> = (0..32).map(|_| granted(&mut table, local)).collect();
        assert_eq!(table.lower_limit(), 28);
        let evicted = |table: &ConnectionTable| {
            let evicted = table.connections.iter().filter(|(_, it)| it.is_evicted);
            evicted.map(|(id, _)| *id).collect::<Vec<_>>()
        };
        assert_eq!(evicted(&table), ids[..4]);
        assert!(matches!(table.request_slot(local), SlotDecision::Wait));
        assert_eq!(evicted(&table), ids[..4], "they are enough");
        ids[..4].iter().for_each(|id| table.remove(*id));
        assert_eq!(evicted_for(&mut table, local), ids[4]);
        granted(&mut table, local);
        ids.iter().for_each(|id| table.set(*id, ConnectionStage::Answering));
        assert_eq!(table.lower_limit(), 24);
        assert_eq!(evicted(&table).len(), 1, "the others are answered");
        assert_eq!(self::table(100, 100).lower_limit(), N_SLOTS_MIN);
        assert_eq!(self::table(1, 1).lower_limit(), 1);
    }

    #[test]
    fn slots_are_scarce_before_they_are_gone() {
        let mut table = table(8, 8);
        for _ in 0..6 {
            granted(&mut table, Peer::Local(None));
        }
        assert!(!table.is_nearly_full());
        granted(&mut table, Peer::Local(None));
        assert!(table.is_nearly_full());
    }
}
