//! Passes frames that arrive at a queue of one thread to the thread whose stack has the connection.
//!
//! The interface chooses the queue of a packet by a hash that the stack does not know. A connection that a
//! peer opens belongs to the thread at whose queue its first packet arrives, and the interface keeps it
//! there. A connection that a stack opens belongs to the thread that opened it. Each thread opens connections
//! from its own part of the local ports, so the target port of a packet determines its thread.

use std::cell::Cell;
use std::io;
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use rustix::event::{EventfdFlags, eventfd};
use spillway_wire::packet::{ethernet, ipv4, ipv6};

/// Frames that may wait for one thread. Further frames are lost, as at a full queue of an interface.
const FRAMES_MAX: usize = 1024;
const TCP: u8 = 6;

/// One thread's end of the crossing.
#[derive(Debug)]
pub struct Crossing {
    thread: usize,
    first_port: u16,
    ports_each: u16,
    to: Vec<SyncSender<Box<[u8]>>>,
    wakes: Arc<[OwnedFd]>,
    arrived: Receiver<Box<[u8]>>,
    counters: Cell<CrossingCounters>,
}

/// Totals of one thread since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CrossingCounters {
    /// Frames that arrived at this thread's queues and were passed to another thread.
    pub crossed: u64,
    /// Frames for another thread that were lost: that thread's queue was full, or the thread had ended.
    pub lost: u64,
}

impl Crossing {
    /// One end for each of `threads` threads, with the thread's part of the local ports.
    ///
    /// # Errors
    /// There are fewer ports than threads, or the process has no file descriptors left.
    pub fn between(
        threads: usize,
        ports: &RangeInclusive<u16>,
    ) -> io::Result<Vec<(Crossing, RangeInclusive<u16>)>> {
        let count = ports.len();
        let ports_each = u16::try_from(count / threads.max(1)).unwrap_or(u16::MAX);
        if ports_each == 0 {
            let message = format!("{threads} threads cannot share {count} local ports: give more of them");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        let wake = |_| Ok(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let wakes: Arc<[OwnedFd]> = (0..threads).map(wake).collect::<io::Result<_>>()?;
        let (to, arrived): (Vec<_>, Vec<_>) = (0..threads).map(|_| sync_channel(FRAMES_MAX)).unzip();
        let first_port = *ports.start();
        let ends = (0_u16..).zip(arrived).map(|(thread, arrived)| {
            let first = first_port + thread * ports_each; // at most the last port of the range
            let end = Crossing {
                thread: usize::from(thread),
                first_port,
                ports_each,
                to: to.clone(),
                wakes: Arc::clone(&wakes),
                arrived,
                counters: Cell::default(),
            };
            (end, first..=first + (ports_each - 1))
        });
        Ok(ends.collect())
    }

    /// Totals of this thread's frames for other threads.
    pub fn counters(&self) -> CrossingCounters {
        self.counters.get()
    }

    /// Passes a frame of another thread's connection to that thread, or drops the frame if the thread's queue
    /// is full. Returns `false` for all other frames, which the caller handles.
    pub fn pass(&self, frame: &[u8]) -> bool {
        let Some(thread) = self.thread_of(frame).filter(|thread| *thread != self.thread) else {
            return false;
        };
        self.send(thread, frame);
        true
    }

    /// Passes a copy of a frame to all other threads.
    pub fn pass_to_all(&self, frame: &[u8]) {
        (0..self.to.len())
            .filter(|thread| *thread != self.thread)
            .for_each(|thread| self.send(thread, frame));
    }

    fn send(&self, thread: usize, frame: &[u8]) {
        let mut counters = self.counters.get();
        match self.to[thread].try_send(frame.into()) {
            Ok(()) => {
                counters.crossed += 1;
                self.make_readable(thread);
            }
            // The thread's queue is full, or the thread has ended.
            Err(_) => counters.lost += 1,
        }
        self.counters.set(counters);
    }

    /// Makes the descriptor readable again, for frames that this thread has not received yet.
    pub fn wake(&self) {
        self.make_readable(self.thread);
    }

    fn make_readable(&self, thread: usize) {
        // Fails only if the counter is at its maximum: then the descriptor is readable anyway.
        let _ = rustix::io::write(&self.wakes[thread], &1_u64.to_ne_bytes());
    }

    /// The next frame from another thread.
    pub fn receive(&self) -> Option<Box<[u8]>> {
        self.arrived.try_recv().ok()
    }

    /// Makes the descriptor unreadable until another thread passes the next frame.
    pub fn clear_wake(&self) {
        // Fails only if the counter is zero.
        let _ = rustix::io::read(&self.wakes[self.thread], &mut [0_u8; 8]);
    }

    /// The thread that opened the frame's connection; `None` if the target port belongs to no thread.
    fn thread_of(&self, frame: &[u8]) -> Option<usize> {
        let offset = target_port(frame)?.checked_sub(self.first_port)?;
        let thread = usize::from(offset / self.ports_each);
        (thread < self.to.len()).then_some(thread)
    }
}

/// Readable when another thread has passed frames to this one.
impl AsFd for Crossing {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wakes[self.thread].as_fd()
    }
}

/// The target port of a TCP segment; `None` for other frames.
fn target_port(frame: &[u8]) -> Option<u16> {
    let (header, packet) = ethernet::Header::parse(frame).ok()?;
    let segment = match header.kind {
        ethernet::KIND_IPV4 => {
            let (header, _, segment) = ipv4::Header::parse(packet).ok()?;
            (header.protocol == TCP).then_some(segment)
        }
        ethernet::KIND_IPV6 => {
            let (header, _, segment) = ipv6::Header::parse(packet).ok()?;
            (header.protocol == TCP).then_some(segment)
        }
        _ => None,
    }?;
    segment.get(2..4)?.first_chunk().map(|port| u16::from_be_bytes(*port))
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use spillway_wire::packet::ethernet::Mac;

    use super::*;

    /// A TCP segment from a server to a local port.
    fn frame(port: u16) -> Vec<u8> {
        let ethernet =
            ethernet::Header { target: Mac([2; 6]), source: Mac([4; 6]), kind: ethernet::KIND_IPV4 };
        let ip = ipv4::Header::new(Ipv4Addr::new(10, 0, 0, 5), Ipv4Addr::new(10, 0, 0, 9), TCP, 20);
        let (mut head, mut packet) = ([0; ethernet::HEADER_BYTES], [0; ipv4::HEADER_BYTES]);
        ethernet.emit(&mut head);
        ip.emit(&mut packet);
        let mut segment = [0; 20];
        segment[2..4].copy_from_slice(&port.to_be_bytes());
        [&head[..], &packet, &segment].concat()
    }

    #[test]
    fn threads_divide_the_ports_and_pass_what_is_not_theirs() {
        let ends = Crossing::between(3, &(100..=110)).unwrap();
        let ports: Vec<_> = ends.iter().map(|(_, ports)| ports.clone()).collect();
        assert_eq!(ports, [100..=102, 103..=105, 106..=108]);
        let ends: Vec<_> = ends.into_iter().map(|(end, _)| end).collect();
        for port in [99, 100, 102, 109, 110, 80] {
            assert!(!ends[0].pass(&frame(port)), "{port} is the thread's own, or nobody's");
        }
        for bytes in [&[][..], &[0; 14], &[0xff; 60]] {
            assert!(!ends[0].pass(bytes), "what is not TCP stays");
        }
        assert!(ends[0].pass(&frame(103)) && ends[0].pass(&frame(108)) && ends[2].pass(&frame(105)));
        let all = |end: &Crossing| -> Vec<Vec<u8>> {
            std::iter::from_fn(|| end.receive()).map(|frame| frame.to_vec()).collect()
        };
        assert_eq!(all(&ends[0]), Vec::<Vec<u8>>::new());
        assert_eq!(all(&ends[1]), [frame(103), frame(105)]);
        assert_eq!(all(&ends[2]), [frame(108)]);
        ends[1].pass_to_all(&frame(80));
        assert_eq!((all(&ends[0]), all(&ends[1]), all(&ends[2])), (vec![frame(80)], vec![], vec![frame(80)]));
        let counted: Vec<_> = ends.iter().map(|end| (end.counters().crossed, end.counters().lost)).collect();
        assert_eq!(counted, [(2, 0), (2, 0), (1, 0)]);
    }

    #[test]
    fn a_thread_that_does_not_keep_up_loses_frames() {
        let mut ends = Crossing::between(2, &(100..=101)).unwrap();
        let (slow, _) = ends.pop().unwrap();
        let (other, _) = ends.pop().unwrap();
        for _ in 0..FRAMES_MAX + 5 {
            assert!(other.pass(&frame(101)));
        }
        assert_eq!(other.counters(), CrossingCounters { crossed: FRAMES_MAX as u64, lost: 5 });
        drop(slow);
        assert!(other.pass(&frame(101)), "frames for a thread that has ended are lost");
        assert_eq!(other.counters().lost, 6);
    }

    #[test]
    fn more_threads_than_ports_are_refused() {
        assert!(Crossing::between(3, &(1..=2)).unwrap_err().to_string().contains("more of them"));
    }
}
