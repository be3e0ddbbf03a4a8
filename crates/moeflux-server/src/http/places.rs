//! Places for connections: which connection gets one, and which one is ended in its favour.
//!
//! A client can open and hold connections at no cost and without a key. Therefore only a connection
//! whose request is being answered is sure of its place. When all are taken, another connection
//! ends for a new one: first one without any admitted request, then an idle one, then one whose
//! request is still being read. Among these, one of the peer with the most of them is chosen, and
//! of its connections the one that has been at this stage for longest. **Invariant:** there are
//! never more connections than the limit. Knows no sockets and no clock: earlier events have
//! smaller numbers.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::http::config::Places as Limits;
use crate::metrics::ConnectionCounts;

/// Places are short when less than one in this many is free.
const SHORT_PART: usize = 4;
/// One in this many connections ends when the system cannot accept another.
const RESERVED_PART: usize = 8;
/// With fewer connections than this, they are not the reason for the system's error.
const N_PLACES_MIN: usize = 16;

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
enum Stage {
    /// No request was admitted yet.
    New,
    /// Requests were answered, and none is in progress.
    Idle,
    /// The body of an admitted request is being read.
    Reading,
    /// A request is being answered.
    Answering,
}

/// The places of a server.
#[derive(Debug)]
pub(crate) struct Places {
    table: Mutex<Table>,
    /// Notified when a place is free, or may become free.
    changed: Notify,
}

/// The result of asking for a place.
#[derive(Debug)]
pub(crate) enum Seated {
    At(Seat),
    /// Its peer has its full share, and all of these connections are being answered.
    Refused,
}

impl Places {
    /// Creates free places.
    pub(crate) fn new(limits: Limits) -> Arc<Self> {
        let table = Mutex::new(Table::new(limits));
        Arc::new(Self { table, changed: Notify::new() })
    }

    /// Waits for a place for a connection of this peer.
    pub(crate) async fn seat(self: &Arc<Self>, peer: Peer) -> Seated {
        loop {
            let mut changed = pin!(self.changed.notified());
            changed.as_mut().enable();
            let asked = self.table().ask(peer);
            match asked {
                Asked::Place { id, must_leave, is_short } => {
                    let places = Arc::clone(self);
                    return Seated::At(Seat { places, id, must_leave, is_short });
                }
                Asked::Refused => return Seated::Refused,
                Asked::Wait => changed.await,
            }
        }
    }

    /// Lowers the limit below the current number of connections, because the system has no
    /// descriptor for another: a few stay free for files. Returns the new limit.
    pub(crate) fn lower(&self) -> usize {
        self.table().lower()
    }

    /// Returns the number of connections with a place.
    pub(crate) fn n_taken(&self) -> usize {
        self.table().connections.len()
    }

    /// Returns the counters of connections.
    pub(crate) fn counts(&self) -> ConnectionCounts {
        let table = self.table();
        ConnectionCounts { n_open: table.connections.len(), ..table.counts }
    }

    /// Waits until all places are free.
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

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, id: u64, stage: Stage) {
        self.table().set(id, stage);
        self.changed.notify_waiters();
    }
}

/// The place of one connection, until it is dropped.
#[derive(Debug)]
pub(crate) struct Seat {
    places: Arc<Places>,
    id: u64,
    must_leave: Arc<Notify>,
    /// Whether few places were free after it, so that a slow client has less time.
    pub(crate) is_short: bool,
}

impl Seat {
    /// Waits until the place is needed for another connection.
    pub(crate) async fn must_leave(&self) {
        self.must_leave.notified().await;
    }

    /// Returns the handle by which a request on this connection reports its stage.
    pub(crate) fn asking(&self) -> Asking {
        Asking { places: Arc::clone(&self.places), id: self.id }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.places.table().remove(self.id);
        self.places.changed.notify_waiters();
    }
}

/// A request on a connection.
#[derive(Clone, Debug)]
pub(crate) struct Asking {
    places: Arc<Places>,
    id: u64,
}

impl Asking {
    /// Reports that it was admitted; its body is read next.
    pub(crate) fn admitted(&self) {
        self.places.set(self.id, Stage::Reading);
    }

    /// Reports that it is complete and is being answered.
    pub(crate) fn answering(&self) {
        self.places.set(self.id, Stage::Answering);
    }

    /// Reports that its response has ended or will never come.
    pub(crate) fn ended(&self) {
        self.places.set(self.id, Stage::Idle);
    }
}

/// The connections that have places.
#[derive(Debug)]
struct Table {
    limits: Limits,
    connections: BTreeMap<u64, Connection>,
    peers: HashMap<Peer, Counts>,
    n_drawn: u64,
    /// Counters; the number of open connections is filled in when they are read.
    counts: ConnectionCounts,
}

#[derive(Debug)]
struct Connection {
    peer: Peer,
    stage: Stage,
    /// The number of the event since which it has been at this stage.
    since: u64,
    is_leaving: bool,
    must_leave: Arc<Notify>,
}

/// Numbers of connections of one peer.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    n_open: usize,
    /// The connections among them that are being answered.
    n_answering: usize,
}

#[derive(Debug)]
enum Asked {
    Place {
        id: u64,
        must_leave: Arc<Notify>,
        is_short: bool,
    },
    /// A connection is leaving, or all are being answered.
    Wait,
    Refused,
}

impl Table {
    fn new(limits: Limits) -> Self {
        let (connections, peers) = (BTreeMap::new(), HashMap::new());
        let counts = ConnectionCounts::default();
        Self { limits, connections, peers, n_drawn: 0, counts }
    }

    fn is_short(&self) -> bool {
        let n_free = self.limits.n_max.saturating_sub(self.connections.len());
        n_free < self.limits.n_max / SHORT_PART
    }

    fn ask(&mut self, peer: Peer) -> Asked {
        let n_peer_max = match peer {
            Peer::Local(_) => self.limits.n_local_peer_max,
            Peer::Other(_) => self.limits.n_peer_max,
        };
        // A share as large as the whole is no limit: the connection then waits with the others.
        if n_peer_max < self.limits.n_max && self.peer(peer).n_open >= n_peer_max {
            if self.make_room(|it| it.peer == peer) {
                return Asked::Wait;
            }
            self.counts.n_refused += 1;
            return Asked::Refused;
        }
        if self.connections.len() >= self.limits.n_max {
            self.make_room(|_| true);
            return Asked::Wait;
        }
        let id = self.draw();
        let connection = Connection {
            peer,
            stage: Stage::New,
            since: id,
            is_leaving: false,
            must_leave: Arc::new(Notify::new()),
        };
        let must_leave = Arc::clone(&connection.must_leave);
        self.connections.insert(id, connection);
        self.counts.n_accepted += 1;
        self.peers.entry(peer).or_default().n_open += 1;
        Asked::Place { id, must_leave, is_short: self.is_short() }
    }

    /// Ends one matching connection, unless one is already leaving. Returns whether there is one.
    fn make_room(&mut self, is_meant: impl Fn(&Connection) -> bool) -> bool {
        self.connections.values().any(|it| it.is_leaving && is_meant(it)) || self.displace(is_meant)
    }

    /// Ends one matching connection. Returns whether there is one that may be ended.
    fn displace(&mut self, is_meant: impl Fn(&Connection) -> bool) -> bool {
        let peers = &self.peers;
        let may_leave =
            |it: &&mut Connection| it.stage < Stage::Answering && !it.is_leaving && is_meant(it);
        let order = |it: &&mut Connection| {
            let counts = peers[&it.peer];
            (it.stage, Reverse(counts.n_open - counts.n_answering), it.since)
        };
        let Some(first) = self.connections.values_mut().filter(may_leave).min_by_key(order) else {
            return false;
        };
        first.is_leaving = true;
        first.must_leave.notify_one();
        self.counts.n_displaced += 1;
        true
    }

    /// Lowers the limit below the current number of connections. Returns the new limit.
    fn lower(&mut self) -> usize {
        let n_open = self.connections.len();
        let n_max = self.limits.n_max;
        let n_left = n_open - n_open.div_ceil(RESERVED_PART);
        self.limits.n_max = n_left.clamp(N_PLACES_MIN.min(n_max), n_max);
        let n_leaving = self.connections.values().filter(|it| it.is_leaving).count();
        let n_more = n_open.saturating_sub(n_leaving + self.limits.n_max);
        (0..n_more).take_while(|_| self.displace(|_| true)).count();
        self.limits.n_max
    }

    /// Sets the stage of a connection. A connection without an admitted request stays new.
    fn set(&mut self, id: u64, stage: Stage) {
        let since = self.draw();
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let before = connection.stage;
        if before == stage || (before, stage) == (Stage::New, Stage::Idle) {
            return;
        }
        (connection.stage, connection.since) = (stage, since);
        let counts = self.peers.entry(connection.peer).or_default();
        counts.n_answering += usize::from(stage == Stage::Answering);
        counts.n_answering -= usize::from(before == Stage::Answering);
    }

    fn remove(&mut self, id: u64) {
        let Some(Connection { peer, stage, .. }) = self.connections.remove(&id) else { return };
        let counts = self.peers.entry(peer).or_default();
        counts.n_open -= 1;
        counts.n_answering -= usize::from(stage == Stage::Answering);
        if counts.n_open == 0 {
            self.peers.remove(&peer);
        }
    }

    fn peer(&self, peer: Peer) -> Counts {
        self.peers.get(&peer).copied().unwrap_or_default()
    }

    fn draw(&mut self) -> u64 {
        self.n_drawn += 1;
        self.n_drawn
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(address: &str) -> Peer {
        Peer::at(address.parse().unwrap())
    }

    fn table(n_max: usize, n_peer_max: usize) -> Table {
        Table::new(Limits { n_max, n_peer_max, n_local_peer_max: n_max })
    }

    #[track_caller]
    fn seated(table: &mut Table, peer: Peer) -> u64 {
        match table.ask(peer) {
            Asked::Place { id, .. } => id,
            other => panic!("{other:?}"),
        }
    }

    /// Returns the connection that is ended when one of this peer arrives.
    #[track_caller]
    fn displaced(table: &mut Table, peer: Peer) -> u64 {
        assert!(matches!(table.ask(peer), Asked::Wait));
        let mut leaving = table.connections.iter().filter(|(_, it)| it.is_leaving);
        let id = *leaving.next().expect("one leaves").0;
        assert!(leaving.next().is_none(), "one is enough");
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
        let ids: Vec<u64> = (0..4).map(|_| seated(&mut table, local)).collect();
        let stages = [Stage::Answering, Stage::Reading, Stage::Idle, Stage::New];
        for (id, stage) in ids.iter().zip(stages) {
            table.set(*id, Stage::Reading);
            table.set(*id, stage);
        }
        table.remove(ids[3]);
        let new = [seated(&mut table, local)];
        assert_eq!(displaced(&mut table, local), new[0], "it has asked nothing");
        for expected in [ids[2], ids[1]] {
            let busy = seated(&mut table, local);
            table.set(busy, Stage::Answering);
            assert_eq!(displaced(&mut table, local), expected);
        }
        let busy = seated(&mut table, local);
        table.set(busy, Stage::Answering);
        assert!(matches!(table.ask(local), Asked::Wait));
        assert!(table.connections.values().all(|it| !it.is_leaving), "all are answered");
        assert_eq!(table.counts.n_displaced, 3);
    }

    #[test]
    fn the_longest_idle_ends_whatever_it_trickles() {
        let mut table = table(3, 3);
        let local = Peer::Local(None);
        let ids: Vec<u64> = (0..3).map(|_| seated(&mut table, local)).collect();
        // A refused request does not make the connection younger.
        table.set(ids[0], Stage::Idle);
        assert_eq!(displaced(&mut table, local), ids[0]);
        let last = seated(&mut table, local);
        for id in [ids[2], ids[1], last] {
            table.set(id, Stage::Answering);
            table.set(id, Stage::Idle);
        }
        assert_eq!(displaced(&mut table, local), ids[2]);
    }

    #[test]
    fn the_peer_with_the_most_gives_up_one() {
        let mut table = table(6, 6);
        let (few, many) = (peer("192.0.2.1"), peer("192.0.2.2"));
        let first = seated(&mut table, few);
        let busy: Vec<u64> = (0..2).map(|_| seated(&mut table, few)).collect();
        let ids: Vec<u64> = (0..3).map(|_| seated(&mut table, many)).collect();
        // Connections that are being answered do not count against their peer.
        busy.iter().for_each(|id| table.set(*id, Stage::Answering));
        for expected in [ids[0], ids[1]] {
            assert_eq!(displaced(&mut table, few), expected);
            let id = seated(&mut table, few);
            table.set(id, Stage::Answering);
        }
        assert_eq!(displaced(&mut table, few), first, "one each, and it is older");
    }

    #[test]
    fn a_peer_has_a_share() {
        let mut table = table(8, 2);
        let (one, other) = (peer("192.0.2.1"), peer("192.0.2.2"));
        let ids = [seated(&mut table, one), seated(&mut table, one)];
        seated(&mut table, other);
        assert_eq!(displaced(&mut table, one), ids[0], "its own, although others are free");
        let third = seated(&mut table, one);
        table.set(ids[1], Stage::Answering);
        table.set(third, Stage::Answering);
        assert!(matches!(table.ask(one), Asked::Refused));
        assert_eq!(table.counts.n_refused, 1);
        for _ in 0..4 {
            seated(&mut table, Peer::Local(None));
        }
        seated(&mut table, other);
        // All programs of this machine, and all clients of a local proxy, share one address.
        assert_eq!(table.peer(Peer::Local(None)).n_open, 4);
    }

    #[test]
    fn a_system_that_refuses_lowers_the_limit() {
        let mut table = table(100, 100);
        let local = Peer::Local(None);
        let ids: Vec<u64> = (0..32).map(|_| seated(&mut table, local)).collect();
        assert_eq!(table.lower(), 28);
        let leaving = |table: &Table| {
            let leaving = table.connections.iter().filter(|(_, it)| it.is_leaving);
            leaving.map(|(id, _)| *id).collect::<Vec<_>>()
        };
        assert_eq!(leaving(&table), ids[..4]);
        assert!(matches!(table.ask(local), Asked::Wait));
        assert_eq!(leaving(&table), ids[..4], "they are enough");
        ids[..4].iter().for_each(|id| table.remove(*id));
        assert_eq!(displaced(&mut table, local), ids[4]);
        seated(&mut table, local);
        ids.iter().for_each(|id| table.set(*id, Stage::Answering));
        assert_eq!(table.lower(), 24);
        assert_eq!(leaving(&table).len(), 1, "the others are answered");
        assert_eq!(self::table(100, 100).lower(), N_PLACES_MIN);
        assert_eq!(self::table(1, 1).lower(), 1);
    }

    #[test]
    fn places_are_short_before_they_are_gone() {
        let mut table = table(8, 8);
        for _ in 0..6 {
            seated(&mut table, Peer::Local(None));
        }
        assert!(!table.is_short());
        seated(&mut table, Peer::Local(None));
        assert!(table.is_short());
    }
}
