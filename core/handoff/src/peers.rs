//! Sealed datagrams to and from other servers, and the greetings that begin a session with each.

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;
use core::time::Duration;

use spillway_auth::{Key, Opened, PeerSeal, SealError, SealRejection};
use spillway_transport::Time;
use spillway_wire::handoff::{Body, DATAGRAM_BYTES_MAX, GREETING_BYTES, HandoffError, Head, Message, Run};
use spillway_wire::switch::ServerId;

use crate::event::PeerFault;
use crate::transfer::Window;

/// Maximum number of messages that wait for a session with one peer; further messages are dropped.
const WAITING_MAX: usize = 64;
/// First and last interval of greetings to a peer that does not answer. The intervals double.
const GREETING_INTERVAL_MIN: Duration = Duration::from_millis(50);
const GREETING_INTERVAL_MAX: Duration = Duration::from_millis(1600);
/// A datagram of another session, which may be forged, is answered by a greeting at most once in this time.
const OTHER_SESSION_INTERVAL: Duration = Duration::from_millis(10);

/// Maximum number of buffers for datagrams that are kept for reuse, and the maximum memory of one, in bytes.
const SPARE_MAX: usize = 256;
const SPARE_BYTES_MAX: usize = 2 * DATAGRAM_BYTES_MAX;

/// A datagram to a peer.
pub(crate) type Datagram = (ServerId, Vec<u8>);

/// What a datagram of a peer contains.
#[derive(Debug)]
pub(crate) enum Received<'a> {
    Message(ServerId, Message<'a>),
    /// The peer has restarted: it has forgotten all moves.
    NewRun(ServerId),
}

#[derive(Debug)]
struct Peer {
    seal: PeerSeal,
    /// Messages that wait for a session, as bytes.
    waiting: VecDeque<Vec<u8>>,
    greet_at: Time,
    interval: Duration,
    /// No datagram of another session is answered before this time.
    answers_at: Time,
    /// Whether this server has had a session with the peer.
    has_met: bool,
    /// Parts of states in flight to the peer.
    window: Window,
}

/// All peers of a server.
#[derive(Debug)]
pub(crate) struct Peers {
    peers: BTreeMap<ServerId, Peer>,
    /// Greetings that wait to be sent.
    greetings: VecDeque<Datagram>,
    /// Faults since the last [`poll_fault`](Self::poll_fault).
    faults: BTreeSet<PeerFault>,
    /// Empty buffers for datagrams.
    spare: Vec<Vec<u8>>,
}

impl Peers {
    pub(crate) fn new(
        now: Time,
        key: &Key,
        ours: (ServerId, Run),
        ids: impl Iterator<Item = ServerId>,
    ) -> Peers {
        let peer = |id| Peer {
            seal: PeerSeal::new(key, ours, id),
            waiting: VecDeque::new(),
            greet_at: now,
            interval: GREETING_INTERVAL_MIN,
            answers_at: now,
            has_met: false,
            window: Window::new(),
        };
        let peers = ids.filter(|id| *id != ours.0).map(|id| (id, peer(id))).collect();
        Peers { peers, greetings: VecDeque::new(), faults: BTreeSet::new(), spare: Vec::new() }
    }

    /// When to call [`greet`](Self::greet); `None` while each peer has a session.
    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        self.peers.values().filter(|peer| !peer.seal.is_open()).map(|peer| peer.greet_at).min()
    }

    /// Queues a greeting for each peer without a session whose greeting is due.
    pub(crate) fn greet(&mut self, now: Time) {
        for (id, peer) in &mut self.peers {
            if !peer.seal.is_open() && peer.greet_at <= now {
                peer.greet_at = now + peer.interval;
                peer.interval = (peer.interval * 2).min(GREETING_INTERVAL_MAX);
                self.greetings.push_back((*id, peer.seal.greeting().to_vec()));
            }
        }
    }

    /// The next fault for the log, each once for all datagrams since the last call.
    pub(crate) fn poll_fault(&mut self) -> Option<PeerFault> {
        self.faults.pop_first()
    }

    /// The next greeting to send.
    pub(crate) fn poll_greeting(&mut self) -> Option<Datagram> {
        self.greetings.pop_front()
    }

    /// The window of the parts in flight to a peer.
    pub(crate) fn window(&self, to: ServerId) -> Option<Window> {
        self.peers.get(&to).map(|peer| peer.window.clone())
    }

    /// Keeps the memory of a datagram that was sent for a later one.
    pub(crate) fn recycle(&mut self, mut datagram: Vec<u8>) {
        if self.spare.len() < SPARE_MAX && datagram.capacity() <= SPARE_BYTES_MAX {
            datagram.clear();
            self.spare.push(datagram);
        }
    }

    /// The datagram of a message. Without a session the message waits, unless its sender repeats it anyway.
    pub(crate) fn seal(&mut self, to: ServerId, message: &Message<'_>) -> Option<Vec<u8>> {
        let peer = self.peers.get_mut(&to)?;
        let mut datagram = self.spare.pop().unwrap_or_default();
        match peer.seal.seal(message, &mut datagram) {
            Ok(()) => Some(datagram),
            Err(SealError::NotOpen | SealError::Exhausted) => {
                self.spare.push(datagram);
                if !is_repeated(&message.body) && peer.waiting.len() < WAITING_MAX {
                    let mut bytes = Vec::new();
                    message.emit(&mut bytes);
                    peer.waiting.push_back(bytes);
                }
                None
            }
        }
    }

    /// Opens a datagram in place. Forged, damaged and repeated ones, and those of an earlier run, are ignored.
    pub(crate) fn open<'a>(&mut self, now: Time, datagram: &'a mut [u8]) -> Option<Received<'a>> {
        let id = match Head::parse(datagram) {
            Ok(head) => head.sender,
            Err(HandoffError::Version(version)) => {
                self.faults.insert(PeerFault::Version(version));
                return None;
            }
            Err(_) => return None,
        };
        let peer = self.peers.get_mut(&id)?;
        match peer.seal.open(datagram) {
            Ok(Opened::Message(message)) => Some(Received::Message(id, message)),
            Ok(Opened::Greeting { answer, is_new_run }) => {
                self.greetings.extend(answer.map(|answer: [u8; GREETING_BYTES]| (id, answer.to_vec())));
                if peer.seal.is_open() {
                    peer.interval = GREETING_INTERVAL_MIN;
                    self.send_waiting(id);
                }
                let has_met = is_new_run && self.meet(id);
                has_met.then_some(Received::NewRun(id))
            }
            Err(SealRejection::OtherSession) => {
                if peer.answers_at <= now {
                    peer.answers_at = now + OTHER_SESSION_INTERVAL;
                    self.greetings.push_back((id, peer.seal.greeting().to_vec()));
                }
                None
            }
            Err(SealRejection::NotAuthentic) => {
                self.faults.insert(PeerFault::NotAuthentic(id));
                None
            }
            Err(_) => None,
        }
    }

    /// Notes a session with a new run of a peer. Returns whether there was a session with an earlier run.
    fn meet(&mut self, id: ServerId) -> bool {
        self.peers.get_mut(&id).is_some_and(|peer| core::mem::replace(&mut peer.has_met, true))
    }

    fn send_waiting(&mut self, id: ServerId) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        for bytes in core::mem::take(&mut peer.waiting) {
            let mut datagram = Vec::new();
            let Ok(message) = Message::parse(&bytes) else { continue };
            if peer.seal.seal(&message, &mut datagram).is_ok() {
                self.greetings.push_back((id, datagram));
            }
        }
    }
}

/// Whether the sender of a message repeats it, or the message that it answers.
fn is_repeated(body: &Body<'_>) -> bool {
    match body {
        Body::State(_) | Body::Received(_) => true,
        Body::Served(_) | Body::Abandoned(_) | Body::PassedOn(..) | Body::Noted(..) => true,
        Body::Accepted | Body::Refused(_) | Body::TakenBack => false,
        Body::Forward { .. } | Body::Reclaim | Body::Lent => false,
    }
}

#[cfg(test)]
mod tests {
    use core::net::SocketAddr;

    use spillway_wire::switch::Flow;

    use super::*;
    use crate::test_flow::flow;

    fn key() -> Key {
        Key::from_secret([7; 32])
    }

    fn peers(id: u8, run: u64) -> Peers {
        let other = ServerId(3 - id);
        Peers::new(Time(0), &key(), (ServerId(id), Run::new(run).unwrap()), [other].into_iter())
    }

    fn accepted(flow: Flow) -> Message<'static> {
        Message { flow, generation: 8, body: Body::Accepted }
    }

    /// Passes datagrams between both until there are no more. Returns how many messages arrived at `b`, and whether one of
    /// them noticed a new run.
    fn exchange(now: Time, a: &mut Peers, b: &mut Peers) -> (usize, bool) {
        let (mut messages, mut has_new_run) = (0, false);
        loop {
            let (to_b, to_a) = (a.poll_greeting(), b.poll_greeting());
            if to_a.is_none() && to_b.is_none() {
                return (messages, has_new_run);
            }
            if let Some((_, mut datagram)) = to_b {
                match b.open(now, &mut datagram) {
                    Some(Received::Message(..)) => messages += 1,
                    Some(Received::NewRun(_)) => has_new_run = true,
                    None => {}
                }
            }
            if let Some((_, mut datagram)) = to_a {
                has_new_run |= matches!(a.open(now, &mut datagram), Some(Received::NewRun(_)));
            }
        }
    }

    fn met() -> (Peers, Peers) {
        let (mut a, mut b) = (peers(1, 100), peers(2, 200));
        a.greet(Time(0));
        assert_eq!(exchange(Time(0), &mut a, &mut b), (0, false), "the first run is not a new one");
        assert_eq!((a.poll_timeout(), b.poll_timeout()), (None, None));
        (a, b)
    }

    #[test]
    fn messages_wait_for_a_session_and_are_bounded() {
        let (mut a, mut b) = (peers(1, 100), peers(2, 200));
        for port in 0..2 * WAITING_MAX as u16 {
            let end = |port| SocketAddr::from(([10, 0, 0, 1], port)).into();
            let flow = Flow::new(end(port + 1), end(80)).unwrap();
            assert_eq!(a.seal(ServerId(2), &accepted(flow)), None);
        }
        a.greet(Time(0));
        assert_eq!(exchange(Time(0), &mut a, &mut b), (WAITING_MAX, false));
    }

    #[test]
    fn greetings_to_a_silent_peer_are_repeated_at_intervals_that_double() {
        let mut a = peers(1, 100);
        let mut times = Vec::new();
        while times.len() < 8 {
            let now = a.poll_timeout().unwrap();
            a.greet(now);
            assert!(a.poll_greeting().is_some() && a.poll_greeting().is_none());
            times.push(now.as_nanos() / 1_000_000);
        }
        assert_eq!(times, [0, 50, 150, 350, 750, 1550, 3150, 4750]);
    }

    #[test]
    fn a_repeated_datagram_and_one_of_an_earlier_run_are_ignored() {
        let (mut a, mut b) = met();
        let datagram = a.seal(ServerId(2), &accepted(flow(1))).unwrap();
        assert!(matches!(b.open(Time(1), &mut datagram.clone()), Some(Received::Message(..))));
        assert!(b.open(Time(1), &mut datagram.clone()).is_none(), "repeated");
        let late = a.seal(ServerId(2), &accepted(flow(1))).unwrap();
        let mut restarted = peers(1, 101);
        restarted.greet(Time(2));
        assert_eq!(exchange(Time(2), &mut restarted, &mut b), (0, true));
        assert!(b.open(Time(3), &mut late.clone()).is_none(), "of an earlier run");
        let datagram = restarted.seal(ServerId(2), &accepted(flow(1))).unwrap();
        assert!(matches!(b.open(Time(3), &mut datagram.clone()), Some(Received::Message(..))));
    }

    #[test]
    fn a_datagram_to_a_restarted_peer_leads_to_a_new_session() {
        let (mut a, _) = met();
        let mut restarted = peers(2, 201);
        for expected in [1, 0] {
            let mut datagram = a.seal(ServerId(2), &accepted(flow(1))).unwrap();
            assert!(restarted.open(Time(5), &mut datagram).is_none());
            assert_eq!(restarted.greetings.len(), expected, "one greeting in 10 ms");
            if expected == 1 {
                let (_, mut greeting) = restarted.poll_greeting().unwrap();
                a.open(Time(5), &mut greeting);
                while a.poll_greeting().is_some() {}
            }
        }
        let later = Time(5) + OTHER_SESSION_INTERVAL;
        let mut datagram = a.seal(ServerId(2), &accepted(flow(1))).unwrap();
        restarted.open(later, &mut datagram);
        assert_eq!(exchange(later, &mut restarted, &mut a), (0, true));
        let datagram = a.seal(ServerId(2), &accepted(flow(1))).unwrap();
        assert!(matches!(restarted.open(Time(7), &mut datagram.clone()), Some(Received::Message(..))));
    }

    #[test]
    fn a_peer_with_another_key_is_reported() {
        let mut a = peers(1, 100);
        let ours = (ServerId(2), Run::new(200).unwrap());
        let mut b = Peers::new(Time(0), &Key::from_secret([8; 32]), ours, [ServerId(1)].into_iter());
        a.greet(Time(0));
        b.greet(Time(0));
        exchange(Time(0), &mut a, &mut b);
        assert_eq!((a.poll_fault(), a.poll_fault()), (Some(PeerFault::NotAuthentic(ServerId(2))), None));
        assert_eq!((b.poll_fault(), b.poll_fault()), (Some(PeerFault::NotAuthentic(ServerId(1))), None));
    }

    #[test]
    fn damaged_and_foreign_datagrams_are_ignored() {
        let (mut a, mut b) = met();
        assert_eq!((a.poll_fault(), b.poll_fault()), (None, None));
        let datagram = a.seal(ServerId(2), &accepted(flow(1))).unwrap();
        for at in 0..datagram.len() {
            let mut damaged = datagram.clone();
            damaged[at] ^= 1;
            assert!(b.open(Time(1), &mut damaged).is_none(), "byte {at}");
            assert!(b.open(Time(1), &mut datagram[..at].to_vec()).is_none(), "cut at {at}");
        }
        while b.poll_greeting().is_some() {}
        let mut stranger =
            Peers::new(Time(0), &key(), (ServerId(9), Run::new(5).unwrap()), [ServerId(2)].into_iter());
        stranger.greet(Time(0));
        let (_, mut greeting) = stranger.poll_greeting().unwrap();
        assert!(
            b.open(Time(1), &mut greeting).is_none() && b.poll_greeting().is_none(),
            "server 9 is no peer"
        );
    }
}
