//! The other servers, as their heartbeats describe them.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::time::Duration;

use spillway_transport::Time;
use spillway_wire::switch::ServerId;

use super::load::{LOAD_REPORTED_MAX, share};

/// Maximum number of remembered servers; heartbeats of further ones are ignored.
pub const PEERS_MAX: usize = 64;
/// A move counts in the target's expected load until a heartbeat that is later than the move by this time, in which the
/// target's measurements follow the move.
const SETTLE: Duration = Duration::from_millis(50);
/// Maximum number of moves to one server that its heartbeats do not show yet: five times those that the default limit of
/// 1,000 moves a second allows in [`SETTLE`]. Beyond it the server gets no moves.
const UNSEEN_MAX: usize = 256;

/// What a server's heartbeat states.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeerReport {
    /// Its load, in millionths; see [`Migration::reported_load`](super::Migration::reported_load).
    pub load: u32,
    /// How many more connections it can import.
    pub free_places: u32,
}

#[derive(Clone, Debug)]
struct Peer {
    server: ServerId,
    heard_at: Time,
    load: f64,
    free_places: u32,
    /// Moves ordered since the last heartbeat.
    sent: u32,
    /// Time and demand of moves that the load does not show yet, in order of time.
    unseen: VecDeque<(Time, f64)>,
}

impl Peer {
    fn expected_load(&self) -> f64 {
        self.load + self.unseen.iter().map(|(_, demand)| demand).sum::<f64>()
    }

    fn room(&self, percent: u32) -> u32 {
        let share = u64::from(self.free_places) * u64::from(percent) / 100;
        let allowed = u32::try_from(share).unwrap_or(u32::MAX).max(self.free_places.min(1));
        if self.unseen.len() >= UNSEEN_MAX { 0 } else { allowed.saturating_sub(self.sent) }
    }
}

/// A server that can be a target.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Candidate {
    pub server: ServerId,
    /// Load of its last heartbeat, and demand of moves that the load does not show yet.
    pub expected_load: f64,
    /// Number of moves that its free places allow now.
    pub room: u32,
}

/// The table of other servers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Peers {
    peers: Vec<Peer>,
    /// Heartbeats ignored because the table was full.
    pub ignored: u64,
}

impl Peers {
    pub(crate) fn heartbeat(&mut self, now: Time, server: ServerId, report: PeerReport) {
        let load = share(report.load.min(LOAD_REPORTED_MAX));
        if let Some(peer) = self.peers.iter_mut().find(|peer| peer.server == server) {
            (peer.heard_at, peer.load, peer.free_places, peer.sent) = (now, load, report.free_places, 0);
            while peer.unseen.front().is_some_and(|(at, _)| now.since(*at) >= SETTLE) {
                peer.unseen.pop_front();
            }
        } else if self.peers.len() < PEERS_MAX {
            let free_places = report.free_places;
            let unseen = VecDeque::new();
            self.peers.push(Peer { server, heard_at: now, load, free_places, sent: 0, unseen });
        } else {
            self.ignored += 1;
        }
    }

    pub(crate) fn remove(&mut self, server: ServerId) {
        self.peers.retain(|peer| peer.server != server);
    }

    /// Servers that are not silent, with their room, which may be 0.
    pub(crate) fn candidates(
        &self,
        now: Time,
        silent_after: Duration,
        room_percent: u32,
    ) -> impl Iterator<Item = Candidate> + '_ {
        self.alive(now, silent_after).map(move |peer| Candidate {
            server: peer.server,
            expected_load: peer.expected_load(),
            room: peer.room(room_percent),
        })
    }

    /// The mean of `own` and the loads of all servers that are not silent, and the number of these servers. A load above
    /// the capacity counts as the capacity: the rest is a backlog, which the server works off without moves.
    pub(crate) fn mean_with(&self, now: Time, silent_after: Duration, own: f64) -> (f64, u32) {
        let loads = self.alive(now, silent_after).map(|peer| peer.expected_load().min(1.0));
        let (sum, count) = loads.fold((own, 1_u32), |(sum, count), load| (sum + load, count + 1));
        (sum / f64::from(count), count - 1)
    }

    /// A connection with this demand was ordered to move to `server`.
    pub(crate) fn record_sent(&mut self, now: Time, server: ServerId, demand: f64) {
        if let Some(peer) = self.peers.iter_mut().find(|peer| peer.server == server) {
            peer.sent += 1;
            peer.unseen.push_back((now, demand));
        }
    }

    fn alive(&self, now: Time, silent_after: Duration) -> impl Iterator<Item = &Peer> {
        self.peers.iter().filter(move |peer| now.since(peer.heard_at) < silent_after)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SILENT_AFTER: Duration = Duration::from_millis(200);

    fn ms(ms: u64) -> Time {
        Time(ms * 1_000_000)
    }

    fn peers_with(load: u32, free_places: u32) -> Peers {
        let mut peers = Peers::default();
        peers.heartbeat(ms(0), ServerId(2), PeerReport { load, free_places });
        peers
    }

    fn only(peers: &Peers, now: Time) -> Option<Candidate> {
        peers.candidates(now, SILENT_AFTER, 25).next()
    }

    #[test]
    fn table_is_bounded() {
        let mut peers = Peers::default();
        for server in 1..=255 {
            peers.heartbeat(ms(0), ServerId(server), PeerReport::default());
        }
        assert_eq!((peers.peers.len(), peers.ignored), (PEERS_MAX, 255 - PEERS_MAX as u64));
    }

    #[test]
    fn room_is_a_share_of_the_free_places_until_the_next_heartbeat_and_at_least_one() {
        let mut peers = peers_with(100_000, 8);
        let room = |peers: &Peers| only(peers, ms(1)).unwrap().room;
        assert_eq!(room(&peers), 2);
        (0..2).for_each(|_| peers.record_sent(ms(1), ServerId(2), 0.1));
        assert_eq!(room(&peers), 0);
        peers.heartbeat(ms(1), ServerId(2), PeerReport { load: 100_000, free_places: 3 });
        assert_eq!(room(&peers), 1, "one of three places should be usable");
        peers.heartbeat(ms(1), ServerId(2), PeerReport { load: 100_000, free_places: 0 });
        assert_eq!(room(&peers), 0);
        peers.heartbeat(ms(1), ServerId(2), PeerReport { load: 0, free_places: u32::MAX });
        assert_eq!(room(&peers), u32::MAX / 4);
    }

    #[test]
    fn number_of_unseen_moves_is_bounded() {
        let mut peers = peers_with(0, u32::MAX);
        for _ in 0..UNSEEN_MAX {
            assert!(only(&peers, ms(1)).unwrap().room > 0);
            peers.record_sent(ms(1), ServerId(2), 0.0);
        }
        assert_eq!(only(&peers, ms(1)).unwrap().room, 0);
    }

    #[test]
    fn moves_count_in_the_expected_load_until_heartbeats_show_them() {
        let mut peers = peers_with(300_000, 100);
        peers.record_sent(ms(10), ServerId(2), 0.2);
        let expected = |peers: &Peers| only(peers, ms(61)).unwrap().expected_load;
        assert!((expected(&peers) - 0.5).abs() < 1e-9);
        peers.heartbeat(ms(20), ServerId(2), PeerReport { load: 350_000, free_places: 100 });
        assert!((expected(&peers) - 0.55).abs() < 1e-9, "measurements do not follow the move yet");
        peers.heartbeat(ms(60), ServerId(2), PeerReport { load: 500_000, free_places: 100 });
        assert!((expected(&peers) - 0.5).abs() < 1e-9);
    }

    #[test]
    fn silent_servers_are_no_targets_and_not_in_the_mean() {
        let mut peers = peers_with(200_000, 1);
        assert!(only(&peers, ms(199)).is_some());
        assert_eq!(only(&peers, ms(200)), None);
        assert_eq!(peers.mean_with(ms(200), SILENT_AFTER, 0.8), (0.8, 0));
        let (mean, others) = peers.mean_with(ms(199), SILENT_AFTER, 0.8);
        assert!((mean - 0.5).abs() < 1e-9 && others == 1);
        peers.heartbeat(ms(1), ServerId(2), PeerReport { load: 9_000_000, free_places: 1 });
        let (mean, _) = peers.mean_with(ms(2), SILENT_AFTER, 0.8);
        assert!((mean - 0.9).abs() < 1e-9, "a backlog should not count in the mean: {mean}");
        peers.remove(ServerId(2));
        assert_eq!(only(&peers, ms(2)), None);
    }
}
