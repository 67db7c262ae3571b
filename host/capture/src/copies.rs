//! Copies of the packets that captured sockets have not accepted, sorted by socket.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use spillway_wire::packet::PacketError;

use crate::arrived::Arrived;
use crate::error::{CaptureError, system};
use crate::peer_packet::PeerPacket;
use crate::programs::CopyingFilter;

/// Copies that are taken out of the filter's ring at a time.
const DRAIN_MAX: usize = 4_096;

/// How many bytes of copies are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyLimits {
    /// For a captured connection.
    pub connection_bytes: usize,
    /// For all captured connections.
    pub total_bytes: usize,
}

impl Default for CopyLimits {
    /// 4 MiB for a connection, 64 MiB for all: more than peers send in the time of a move.
    fn default() -> CopyLimits {
        CopyLimits { connection_bytes: 4 << 20, total_bytes: 64 << 20 }
    }
}

/// Numbers of packets. Peers repeat those that were not kept, after their retransmission timeout.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CopyCounters {
    /// Kept for a captured connection.
    pub kept: u64,
    /// Dropped because of the limit of their connection.
    pub over_connection_limit: u64,
    /// Dropped because of the limit of all connections.
    pub over_total_limit: u64,
    /// Not of a captured connection: its capture has ended since, or has failed.
    pub unclaimed: u64,
    /// Dropped because they are not TCP packets.
    pub unreadable: u64,
    /// Dropped because a checksum is wrong: the packet was damaged on its way, or an interface has merged segments (LRO) without
    /// a new checksum.
    pub damaged: u64,
}

/// The copies of all captured connections. The clones share them.
#[derive(Clone, Debug)]
pub(crate) struct Copies(Arc<Mutex<Shared>>);

#[derive(Debug)]
struct Shared {
    filter: Box<dyn CopyingFilter>,
    limits: CopyLimits,
    counters: CopyCounters,
    /// By cookie.
    queues: HashMap<u64, Queue>,
    total_bytes: usize,
}

#[derive(Debug, Default)]
struct Queue {
    packets: VecDeque<PeerPacket>,
    bytes: usize,
}

/// The copies of one captured connection. A drop discards them.
#[derive(Debug)]
pub(crate) struct Inbox {
    copies: Copies,
    cookie: u64,
}

impl Copies {
    pub(crate) fn new(filter: Box<dyn CopyingFilter>, limits: CopyLimits) -> Copies {
        let counters = CopyCounters::default();
        let shared = Shared { filter, limits, counters, queues: HashMap::new(), total_bytes: 0 };
        Copies(Arc::new(Mutex::new(shared)))
    }

    /// Begins to keep the copies of a socket, before the filter is attached to it by `attach`.
    pub(crate) fn begin(
        &self,
        cookie: u64,
        attach: impl FnOnce(&dyn CopyingFilter) -> Result<(), CaptureError>,
    ) -> Result<Inbox, CaptureError> {
        let mut shared = self.lock();
        shared.queues.insert(cookie, Queue::default());
        let result = attach(&*shared.filter);
        drop(shared);
        // If the filter is not attached, the drop of the inbox removes the entry.
        let inbox = Inbox { copies: self.clone(), cookie };
        result.map(|()| inbox)
    }

    pub(crate) fn counters(&self) -> CopyCounters {
        self.lock().counters
    }

    /// Sorts what is in the filter's ring.
    pub(crate) fn drain(&self) -> Result<(), CaptureError> {
        let mut shared = self.lock();
        for _ in 0..DRAIN_MAX {
            match shared.filter.poll().map_err(system("read the copies of packets"))? {
                Some((cookie, packet)) => shared.keep(cookie, packet),
                None => break,
            }
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        // A thread that panics leaves no half of a change that matters.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    fn keep(&mut self, cookie: u64, packet: Vec<u8>) {
        let counters = &mut self.counters;
        let Some(queue) = self.queues.get_mut(&cookie) else {
            counters.unclaimed += 1;
            return;
        };
        let length = packet.len();
        let packet = match undamaged(packet) {
            Ok(packet) => packet,
            Err(CaptureError::NotAPacket(PacketError::Checksum(_))) => {
                counters.damaged += 1;
                return;
            }
            Err(_) => {
                counters.unreadable += 1;
                return;
            }
        };
        if queue.bytes + length > self.limits.connection_bytes {
            counters.over_connection_limit += 1;
        } else if self.total_bytes + length > self.limits.total_bytes {
            counters.over_total_limit += 1;
        } else {
            counters.kept += 1;
            queue.packets.push_back(packet);
            queue.bytes += length;
            self.total_bytes += length;
        }
    }
}

/// Reads a copy. TCP verifies the checksum of a segment of more than 76 bytes only behind the filter, and would have dropped
/// a damaged one; a new checksum would make it valid.
fn undamaged(packet: Vec<u8>) -> Result<PeerPacket, CaptureError> {
    Arrived::read(&packet).map_err(CaptureError::NotAPacket)?;
    PeerPacket::read(packet)
}

impl Inbox {
    /// The next copy that has arrived, if there is one, in the order of arrival.
    pub(crate) fn next(&self) -> Result<Option<PeerPacket>, CaptureError> {
        self.copies.drain()?;
        let mut shared = self.copies.lock();
        let packet = shared.queues.get_mut(&self.cookie).and_then(|queue| {
            let packet = queue.packets.pop_front()?;
            queue.bytes -= packet.bytes().len();
            Some(packet)
        });
        shared.total_bytes -= packet.as_ref().map_or(0, |packet| packet.bytes().len());
        Ok(packet)
    }
}

impl Drop for Inbox {
    fn drop(&mut self) {
        let mut shared = self.copies.lock();
        if let Some(queue) = shared.queues.remove(&self.cookie) {
            shared.total_bytes -= queue.bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

    use super::*;
    use crate::arrived::tests::with_partial_checksum;
    use crate::peer_packet::PeerSegment;

    /// A ring without a kernel.
    #[derive(Debug)]
    struct Ring(OwnedFd, VecDeque<(u64, Vec<u8>)>);

    impl CopyingFilter for Ring {
        fn program(&self) -> BorrowedFd<'_> {
            self.0.as_fd()
        }

        fn poll(&mut self) -> io::Result<Option<(u64, Vec<u8>)>> {
            Ok(self.1.pop_front())
        }
    }

    fn packet(data: &[u8]) -> Vec<u8> {
        let (peer, local) = ("192.0.2.1:1000".parse().unwrap(), "192.0.2.2:80".parse().unwrap());
        let segment = PeerSegment { peer, local, seq: 1, ack: 1, has_fin: false, window: 1, stamps: None };
        PeerPacket::made(&segment, data).unwrap().bytes().to_vec()
    }

    fn copies(limits: CopyLimits, ring: impl IntoIterator<Item = (u64, Vec<u8>)>) -> Copies {
        let file = std::fs::File::open("/dev/null").unwrap();
        Copies::new(Box::new(Ring(file.into(), ring.into_iter().collect())), limits)
    }

    #[test]
    fn copies_are_sorted_by_socket_and_kept_in_order() {
        let ring = [(1, b"a"), (2, b"b"), (1, b"c"), (9, b"d")].map(|(cookie, data)| (cookie, packet(data)));
        let copies = copies(CopyLimits::default(), ring.into_iter().chain([(1, vec![0x45; 3])]));
        let [first, second] = [1, 2].map(|cookie| copies.begin(cookie, |_| Ok(())).unwrap());
        let all = |inbox: &Inbox| -> Vec<Vec<u8>> {
            std::iter::from_fn(|| inbox.next().unwrap()).map(|packet| packet.data().to_vec()).collect()
        };
        assert_eq!(all(&first), [b"a", b"c"]);
        assert_eq!(all(&second), [b"b"]);
        let expected = CopyCounters { kept: 3, unclaimed: 1, unreadable: 1, ..CopyCounters::default() };
        assert_eq!(copies.counters(), expected);
    }

    #[test]
    fn damaged_copies_are_dropped_and_partial_checksums_completed() {
        let whole = packet(b"a request");
        let partial = with_partial_checksum(&whole);
        let mut damaged = whole.clone();
        *damaged.last_mut().unwrap() ^= 1;
        let mut damaged_partial = partial.clone();
        damaged_partial[36] ^= 1;
        let ring = [damaged, whole.clone(), damaged_partial, partial].map(|packet| (1, packet));
        let copies = copies(CopyLimits::default(), ring);
        let inbox = copies.begin(1, |_| Ok(())).unwrap();
        let kept: Vec<_> =
            std::iter::from_fn(|| inbox.next().unwrap()).map(|packet| packet.bytes().to_vec()).collect();
        assert_eq!(kept, [whole.clone(), whole]);
        assert_eq!(copies.counters(), CopyCounters { kept: 2, damaged: 2, ..CopyCounters::default() });
    }

    #[test]
    fn memory_is_bounded_for_each_connection_and_for_all() {
        let length = packet(b"x").len();
        let limits = CopyLimits { connection_bytes: 2 * length, total_bytes: 3 * length };
        let ring = [1, 1, 1, 2, 2, 2].map(|cookie| (cookie, packet(b"x")));
        let copies = copies(limits, ring.into_iter().chain([(2, packet(b"y"))]));
        let [first, second] = [1, 2].map(|cookie| copies.begin(cookie, |_| Ok(())).unwrap());
        assert!(second.next().unwrap().is_some());
        let counters = copies.counters();
        assert_eq!((counters.kept, counters.over_connection_limit, counters.over_total_limit), (3, 1, 3));
        // Memory of copies that were taken or discarded is free again.
        drop(first);
        assert_eq!(copies.lock().total_bytes, 0);
        drop(second);
        assert!(copies.lock().queues.is_empty());
    }

    #[test]
    fn a_filter_that_is_not_attached_leaves_no_entry() {
        let copies = copies(CopyLimits::default(), []);
        assert!(copies.begin(1, |_| Err(CaptureError::Changing)).is_err());
        assert!(copies.lock().queues.is_empty());
    }
}
