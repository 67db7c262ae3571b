//! An AF_XDP socket: frames of one queue of an interface, in memory that kernel and process share.
//!
//! - `ring`: the four queues of descriptors between kernel and process
//! - `frames`: which frames are free, lent or with the kernel
//! - `opened`: a second receive ring, for connections that the stack has opened
//!
//! The memory (UMEM) consists of frames of [`FRAME_BYTES`]. One half receives: the *fill ring* passes free
//! frames to the kernel, and the *receive ring* returns them with packets. The other half sends: the
//! *transmit ring* passes packets to the kernel, and the *completion ring* returns their frames. Each ring
//! has room for all frames, twice those of its half: the kernel may return a frame before it frees the
//! frame's entry in the other ring.

mod error;
mod frames;
mod mapping;
mod opened;
mod ring;
mod system;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::io::Errno;

use crate::device::{Device, poll_with};
use crate::frame_bytes::FRAME_BYTES;
use crate::interface::{Interface, InterfaceState};

pub use error::SocketError;
pub use system::Statistics;

use frames::Frames;
use mapping::Mapping;
use opened::OpenedRing;
use ring::{Consumer, Producer};

/// Frames of one socket by default: 8 MiB. At 10 million packets a second the receiving half covers 200 µs.
pub const FRAMES: u32 = 4096;
/// Frames that one call of sendto(2) sends in copy mode (`TX_BATCH_SIZE` of the kernel).
const SENT_BY_ONE_CALL: u32 = 32;
/// How long [`bind`] retries while the queue is busy: after a socket was closed, the kernel releases its
/// queue only after an RCU grace period.
const BIND_TIMEOUT: Duration = Duration::from_secs(2);
const BIND_RETRY: Duration = Duration::from_millis(10);
/// Interval at which a waiting socket checks its interface. poll(2) does not report a removed or down one.
pub(crate) const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Interval at which a waiting socket checks an interface that is down. Nothing can be sent until it is up, so
/// that due timers wait, too.
const DOWN_WAIT: Duration = Duration::from_millis(10);
/// Wait for free frames while all are with the kernel: poll(2) does not report returned frames.
const FULL_WAIT: Duration = Duration::from_micros(200);

/// Options of a [`Socket`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketOptions {
    /// Number of frames, half of them for each direction: a power of two from 64 to 65,536.
    pub frames: u32,
    /// Whether packets of connections that the stack has opened arrive in a receive ring of their own, so
    /// that a thread can [wait](Socket::opened_fd) for these only.
    pub has_opened_ring: bool,
}

impl Default for SocketOptions {
    fn default() -> SocketOptions {
        SocketOptions { frames: FRAMES, has_opened_ring: false }
    }
}

/// Receives what a [steering program](spillway_bpf::Steer) passes to it from one queue, and sends on the
/// queue.
#[derive(Debug)]
pub struct Socket {
    fd: OwnedFd,
    interface: Interface,
    checked_at: Instant,
    /// As the last check has found it.
    state: InterfaceState,
    queue: u32,
    is_zero_copy: bool,
    memory: Mapping,
    fill: Producer<u64>,
    receive: Consumer<system::Descriptor>,
    opened: Option<OpenedRing>,
    was_opened: bool,
    transmit: Producer<system::Descriptor>,
    completion: Consumer<u64>,
    frames: Frames,
    /// The received frame that is lent to the caller.
    lent: Option<u64>,
    /// The frame of the slot that the caller writes.
    slot: Option<u64>,
    /// Whether `transmit` found no free frame since the last wait.
    is_full: bool,
}

impl Socket {
    /// Opens a socket at a queue of an interface of the calling thread's network namespace. The socket
    /// receives nothing until a steering program has it in its map.
    ///
    /// # Errors
    /// The process has no CAP_NET_RAW, the queue has another socket, or there is no memory.
    pub fn open(interface: &Interface, queue: u32, options: SocketOptions) -> Result<Socket, SocketError> {
        let SocketOptions { frames, has_opened_ring } = options;
        if !frames.is_power_of_two() || !(64..=65_536).contains(&frames) {
            return Err(SocketError::Frames(frames));
        }
        let fd = system::socket().map_err(SocketError::Open)?;
        let memory = Mapping::anonymous(frames as usize * FRAME_BYTES).map_err(SocketError::Memory)?;
        let half = frames / 2;
        system::register_memory(&fd, &memory, FRAME_BYTES).map_err(SocketError::Memory)?;
        system::set_ring_sizes(&fd, frames).map_err(SocketError::Memory)?;
        let offsets = system::ring_offsets(&fd).map_err(SocketError::Memory)?;
        let memory_error = SocketError::Memory;
        let fill =
            Producer::map(&fd, &offsets.fr, libc::XDP_UMEM_PGOFF_FILL_RING, frames).map_err(memory_error)?;
        let completion = Consumer::map(&fd, &offsets.cr, libc::XDP_UMEM_PGOFF_COMPLETION_RING, frames)
            .map_err(memory_error)?;
        let receive =
            Consumer::map(&fd, &offsets.rx, libc::XDP_PGOFF_RX_RING as u64, frames).map_err(memory_error)?;
        let transmit =
            Producer::map(&fd, &offsets.tx, libc::XDP_PGOFF_TX_RING as u64, frames).map_err(memory_error)?;
        bind(&fd, interface, queue)?;
        let opened = has_opened_ring.then(|| OpenedRing::open(interface, queue, &fd, frames)).transpose()?;
        let is_zero_copy = system::is_zero_copy(&fd).map_err(SocketError::Open)?;
        let frames = Frames::new(half);
        let mut socket = Socket {
            fd,
            interface: interface.clone(),
            checked_at: Instant::now(),
            state: InterfaceState::Up,
            queue,
            is_zero_copy,
            memory,
            fill,
            receive,
            opened,
            was_opened: false,
            transmit,
            completion,
            frames,
            lent: None,
            slot: None,
            is_full: false,
        };
        for frame in 0..half {
            socket.fill.push(address_of(frame));
        }
        socket.fill.publish();
        Ok(socket)
    }

    /// The number of the queue.
    pub fn queue(&self) -> u32 {
        self.queue
    }

    /// Whether the driver uses the frames in place; otherwise the kernel copies each frame.
    pub fn is_zero_copy(&self) -> bool {
        self.is_zero_copy
    }

    /// Whether the frames are in huge pages.
    pub fn has_huge_pages(&self) -> bool {
        self.memory.is_huge()
    }

    /// The kernel's counters of the socket.
    ///
    /// # Errors
    /// The system has failed.
    pub fn statistics(&self) -> io::Result<Statistics> {
        let own = system::statistics(&self.fd)?;
        Ok(match &self.opened {
            Some(opened) => own + opened.statistics()?,
            None => own,
        })
    }

    /// The descriptor that is readable while packets of connections that the stack has opened wait; `None` without
    /// [a ring of their own](SocketOptions::has_opened_ring).
    pub fn opened_fd(&self) -> Option<BorrowedFd<'_>> {
        self.opened.as_ref().map(AsFd::as_fd)
    }

    /// Prepares to wait for frames, perhaps of several sockets. Returns the maximum time to wait.
    pub(crate) fn begin_wait(&mut self, timeout: Option<Duration>) -> io::Result<Duration> {
        self.return_lent();
        self.flush()?;
        let is_full = std::mem::take(&mut self.is_full);
        Ok(match (self.state, is_full) {
            (InterfaceState::Down, _) => DOWN_WAIT,
            (InterfaceState::Up, true) => FULL_WAIT,
            (InterfaceState::Up, false) => {
                timeout.map_or(CHECK_INTERVAL, |timeout| timeout.min(CHECK_INTERVAL))
            }
        })
    }

    /// Checks the interface after a wait if `events` has an error, once in [`CHECK_INTERVAL`], and after each wait while the
    /// interface is down.
    pub(crate) fn end_wait(&mut self, events: PollFlags) -> io::Result<()> {
        let is_failed = events.intersects(PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL);
        if is_failed || self.state == InterfaceState::Down || self.checked_at.elapsed() >= CHECK_INTERVAL {
            self.check()?;
        }
        Ok(())
    }

    /// Checks the interface. After the time in which it was down, frames of that time leave with the next ones.
    fn check(&mut self) -> io::Result<()> {
        self.checked_at = Instant::now();
        self.state = self.interface.check()?;
        Ok(())
    }

    /// Returns all received frames to the kernel, including the lent one.
    pub(crate) fn end_receive(&mut self) {
        self.return_lent();
        self.release_received();
    }

    pub(crate) fn has_frame(&mut self) -> bool {
        self.receive.has_entry() || self.opened.as_mut().is_some_and(|opened| opened.receive.has_entry())
    }

    /// The next received packet. If both receive rings have one, they take turns.
    fn pop_received(&mut self) -> Option<system::Descriptor> {
        let Some(opened) = &mut self.opened else { return self.receive.pop() };
        self.was_opened = opened.receive.has_entry() && !(self.was_opened && self.receive.has_entry());
        if self.was_opened { opened.receive.pop() } else { self.receive.pop() }
    }

    /// Lets the kernel use the entries and frames of packets that were read.
    fn release_received(&mut self) {
        self.receive.release();
        if let Some(opened) = &mut self.opened {
            opened.receive.release();
        }
        self.fill.publish();
    }

    pub(crate) fn has_room(&mut self) -> io::Result<bool> {
        Ok(self.transmit()?.is_some())
    }

    pub(crate) fn receive_fds(&self) -> Vec<BorrowedFd<'_>> {
        std::iter::once(self.fd.as_fd()).chain(self.opened_fd()).collect()
    }

    fn return_lent(&mut self) {
        if let Some(address) = self.lent.take() {
            self.frames.give(address);
            self.fill.push(address);
        }
    }

    /// Whether the kernel has not taken all frames of the transmit ring yet.
    pub(crate) fn has_unsent(&self) -> bool {
        self.transmit.waiting() > 0
    }

    fn take_completed(&mut self) -> io::Result<()> {
        while let Some(address) = self.completion.pop() {
            self.frames.free(address).map_err(io::Error::other)?;
        }
        self.completion.release();
        Ok(())
    }

    /// Makes the kernel send the packets of the transmit ring. Packets that it cannot send now stay there.
    fn send_published(&mut self) -> io::Result<()> {
        let mut calls = self.transmit.waiting().div_ceil(SENT_BY_ONE_CALL);
        while calls > 0 && self.transmit.needs_wakeup() && self.transmit.waiting() > 0 {
            calls -= 1;
            match system::wake_transmit(&self.fd) {
                // EAGAIN: there is more to send than one call sends.
                Ok(()) | Err(Errno::AGAIN | Errno::INTR) => {}
                // No memory, or the interface's own queue is full.
                Err(Errno::BUSY | Errno::NOBUFS) => break,
                // The frames wait in the ring until the interface is up.
                Err(Errno::NETDOWN) => return self.check(),
                Err(errno) => {
                    // If the interface was removed, this error explains more.
                    self.check()?;
                    return Err(errno.into());
                }
            }
        }
        Ok(())
    }
}

impl Device for Socket {
    fn receive(&mut self) -> io::Result<Option<&[u8]>> {
        self.return_lent();
        let Some(descriptor) = self.pop_received() else {
            self.end_receive();
            return Ok(None);
        };
        let address = self.frames.take(descriptor.addr).map_err(io::Error::other)?;
        self.lent = Some(address);
        let start = descriptor.addr as usize; // `take` has checked that it lies in the memory
        let frame = self.memory.range(start, descriptor.len as usize);
        frame
            .map(Some)
            .ok_or_else(|| io::Error::other("the kernel returned a frame outside the shared memory"))
    }

    fn transmit(&mut self) -> io::Result<Option<&mut [u8]>> {
        if self.slot.is_none() {
            if self.frames.is_empty() {
                self.take_completed()?;
            }
            if self.frames.is_empty() {
                self.flush()?;
                self.take_completed()?;
            }
            self.slot = self.frames.allocate();
        }
        let Some(address) = self.slot else {
            self.is_full = true;
            return Ok(None);
        };
        let start = address as usize; // an own address, within the memory
        Ok(self.memory.range_mut(start, FRAME_BYTES))
    }

    fn commit(&mut self, length: usize) -> io::Result<bool> {
        debug_assert!(length <= FRAME_BYTES, "a slot has FRAME_BYTES");
        let Some(addr) = self.slot.take() else {
            debug_assert!(false, "transmit has lent a slot");
            return Ok(false);
        };
        self.frames.give(addr);
        self.transmit.push(system::Descriptor { addr, len: length as u32, options: 0 });
        Ok(true)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.frames.check_count(u32::from(self.lent.is_some()), u32::from(self.slot.is_some()));
        // Here, in each turn, because under load `receive` may never find the rings empty.
        self.release_received();
        if self.transmit.publish() {
            self.send_published()?;
        }
        Ok(())
    }

    fn wait(&mut self, timeout: Option<Duration>, wakes: &[BorrowedFd<'_>]) -> io::Result<bool> {
        let timeout = self.begin_wait(timeout)?;
        // poll(2) also makes a driver that lacked free frames look at the fill ring again.
        let polled = poll_with(&self.receive_fds(), Some(timeout), wakes)?;
        self.end_wait(polled.events)?;
        Ok(polled.is_woken)
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn address_of(frame: u32) -> u64 {
    u64::from(frame) * FRAME_BYTES as u64
}

fn bind(fd: &OwnedFd, interface: &Interface, queue: u32) -> Result<(), SocketError> {
    let start = Instant::now();
    loop {
        match system::bind(fd, interface.index, queue) {
            Ok(()) => return Ok(()),
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) && start.elapsed() < BIND_TIMEOUT => {
                std::thread::sleep(BIND_RETRY);
            }
            Err(source) => {
                let interface = interface.name.clone();
                return Err(SocketError::Bind { interface, queue, source });
            }
        }
    }
}
