//! Sessions: connections that outlive their carriers (PostMan §4.2, "Ensure packet ordering").
//!
//! A [`Session`] has a list of link ports, of helpers and of the server. When its carrier is lost, or silent for too long,
//! it resumes on another one, with its requests in flight; no byte is lost, repeated or out of order.
//!
//! The [`Driver`] of `core/session`, which the simulator runs, too, decides where and when a session moves. This module has
//! the session's socket, its clock, and the bytes that have arrived for the application.

mod blocking;
mod socket;

use std::collections::VecDeque;
use std::io;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use rustix::event::epoll;
use spillway_batch::CloseReason;
use spillway_session::{Action, Driver, SessionEnd};
use spillway_transport::Time;
use spillway_wire::session::SessionId;

pub use blocking::BlockingSession;
pub use spillway_session::{CarrierTimeouts, Gone, Pace, SessionSettings, StreamLimits};

use self::socket::CarrierSocket;
use crate::LinkTarget;
use crate::{jitter, scratch};

/// Something that happened to a session; no answer is needed.
pub type SessionEvent = spillway_session::SessionEvent<io::Error>;

/// Why a session left a carrier.
pub type CarrierLoss = spillway_session::CarrierLoss<io::Error>;

/// Maximum of bytes from one `recv`.
const RECEIVE_BYTES: usize = 64 * 1024;
/// An empty buffer with more than this capacity is freed, so that an idle session needs little memory.
const IDLE_CAPACITY_MAX: usize = 2 * 1024;
const RECEIVES_PER_TURN: usize = 16;

/// One stream of bytes in each direction, and its present carrier.
///
/// A session runs in the caller's event loop: watch [its descriptor](AsFd), which never changes, for reading; call
/// [`handle_ready`](Self::handle_ready) when it is ready and [`handle_timeout`](Self::handle_timeout) at
/// [`poll_timeout`](Self::poll_timeout), then [`receive`](Self::receive) until `WouldBlock`, and
/// [`poll_event`](Self::poll_event) until `None`.
#[derive(Debug)]
pub struct Session {
    epoch: Instant,
    driver: Driver<io::Error>,
    socket: Option<CarrierSocket>,
    /// The port number to open the next carrier from.
    local_port: Option<u16>,
    /// Bytes that have arrived and the application has not received: at most `window_bytes`.
    arrived: VecDeque<u8>,
    window_bytes: usize,
    poller: OwnedFd,
}

impl Session {
    /// Makes a session and begins to open it on the first of these link ports; the others are tried in turn. All must lead
    /// to the same server, which must accept the first target's client key.
    pub fn open(now: Instant, routes: Vec<LinkTarget>, settings: SessionSettings) -> io::Result<Session> {
        Session::open_from(now, routes, settings, None)
    }

    /// As [`open`](Self::open), but connects from `local_port` at the first attempt, if it is free: pass the port number of
    /// [`LoadQueryOutcome::Helper`](crate::LoadQueryOutcome::Helper).
    pub fn open_from(
        now: Instant,
        routes: Vec<LinkTarget>,
        settings: SessionSettings,
        local_port: Option<u16>,
    ) -> io::Result<Session> {
        let id = SessionId(spillway_keys::fresh_nonce()?);
        let driver = Driver::new(Time::ZERO, routes, &settings, id, jitter::seed()?);
        let mut session = Session {
            epoch: now,
            driver: driver.ok_or(io::ErrorKind::InvalidInput)?,
            socket: None,
            local_port,
            arrived: VecDeque::new(),
            window_bytes: settings.stream.window_bytes as usize,
            poller: epoll::create(epoll::CreateFlags::CLOEXEC)?,
        };
        session.handle_timeout(now);
        Ok(session)
    }

    /// The link port that carries the session now.
    pub fn carrier(&self) -> Option<SocketAddr> {
        self.driver.carrier()
    }

    /// Accepts a prefix of `bytes`, and returns its length. These bytes are kept, and sent on any carrier, until
    /// the server has acknowledged them. `WouldBlock` when too many bytes are not acknowledged yet; [`SessionEvent::Room`]
    /// reports that there is room again. `BrokenPipe` after [`finish`](Self::finish), and when the server has closed.
    pub fn send(&mut self, now: Instant, bytes: &[u8]) -> io::Result<usize> {
        let taken = self.driver.write(bytes).map_err(as_error)?;
        if taken > 0 {
            self.settle(now);
        } else if !bytes.is_empty() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        Ok(taken)
    }

    /// Receives into `buffer`, and returns the number of bytes; 0 is the end of the stream. `WouldBlock` when no bytes are
    /// available. Other errors are final; one that contains a [`Gone`] reports the number of acknowledged
    /// bytes.
    pub fn receive(&mut self, now: Instant, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        if self.arrived.is_empty() && self.driver.end().is_none() {
            self.handle_ready(now);
        }
        let taken = io::Read::read(&mut self.arrived, buffer)?;
        if self.arrived.is_empty() && self.arrived.capacity() > IDLE_CAPACITY_MAX {
            self.arrived = VecDeque::new();
        }
        if taken > 0 {
            let outcome = self.driver.consumed(taken);
            debug_assert_eq!(outcome, Ok(()), "consumed bytes should have been received before");
            self.settle(now);
            return Ok(taken);
        }
        match self.driver.end() {
            None if self.is_over() => Ok(0), // this end has closed the session
            None => Err(io::ErrorKind::WouldBlock.into()),
            Some(SessionEnd::InOrder) => Ok(0),
            Some(end) => Err(as_error(end)),
        }
    }

    /// Whether [`receive`](Self::receive) would return bytes, the end, or an error, without a system call.
    pub fn has_arrived(&self) -> bool {
        !self.arrived.is_empty() || self.driver.end().is_some() || self.is_over()
    }

    /// Bytes that were sent and are not acknowledged, and bytes that have arrived and were not received.
    pub fn buffered_bytes(&self) -> usize {
        self.driver.unacknowledged_bytes() + self.arrived.len()
    }

    /// Bytes that have arrived and were not received.
    pub fn arrived_bytes(&self) -> usize {
        self.arrived.len()
    }

    /// Bytes of memory that hold [`buffered_bytes`](Self::buffered_bytes), and bytes that the carrier's socket has not
    /// taken. Empty buffers do not count: they take a few KiB at most.
    pub fn held_bytes(&self) -> usize {
        let arrived = if self.arrived.is_empty() { 0 } else { self.arrived.capacity() };
        self.driver.held_bytes() + arrived
    }

    /// Ends the outgoing stream; replies still arrive.
    pub fn finish(&mut self, now: Instant) {
        self.driver.finish();
        self.settle(now);
    }

    /// Closes the session. Sent bytes still reach the server if the session stays in its loop until it
    /// [is over](Self::is_over). A closed session moves when its carrier is lost, but not when its carrier drains.
    pub fn close(&mut self, now: Instant) {
        self.driver.close(CloseReason::Normal);
        self.settle(now);
    }

    /// Resets the session; the present or the next carrier reports it to the server. Bytes that the server has not
    /// acknowledged, and bytes that were not received, are dropped at once. Keep the session in its loop until it
    /// [is over](Self::is_over).
    pub fn reset(&mut self, now: Instant) {
        self.arrived = VecDeque::new();
        self.driver.close(CloseReason::Reset);
        self.settle(now);
    }

    /// Whether the session has ended and can be dropped.
    pub fn is_over(&self) -> bool {
        self.driver.is_over()
    }

    /// Moves at once to the link port with this index in the list of routes. Requests may be in flight.
    pub fn move_to(&mut self, now: Instant, route: usize) -> io::Result<()> {
        self.move_from(now, route, None)
    }

    /// As [`move_to`](Self::move_to), but connects from `local_port`, if it is free: pass the port number of
    /// [`LoadQueryOutcome::Helper`](crate::LoadQueryOutcome::Helper).
    pub fn move_from(&mut self, now: Instant, route: usize, local_port: Option<u16>) -> io::Result<()> {
        if !self.driver.move_to(self.time(now), route) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        self.local_port = local_port;
        self.settle(now);
        Ok(())
    }

    /// Replaces the link ports, in the order in which to try them. The present carrier stays in use, even if it is not among
    /// them.
    pub fn set_routes(&mut self, routes: Vec<LinkTarget>) -> io::Result<()> {
        if self.driver.set_targets(routes) { Ok(()) } else { Err(io::ErrorKind::InvalidInput.into()) }
    }

    /// The next event. Call it until `None`.
    #[must_use]
    pub fn poll_event(&mut self) -> Option<SessionEvent> {
        self.driver.poll_event()
    }

    /// When to call [`handle_timeout`](Self::handle_timeout) next.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.driver.poll_timeout().map(|at| self.epoch + at.since(Time::ZERO))
    }

    /// Handles expired timers. Call it at [`poll_timeout`](Self::poll_timeout).
    pub fn handle_timeout(&mut self, now: Instant) {
        self.driver.handle_timeout(self.time(now));
        self.settle(now);
    }

    /// Receives and sends. Call it when the descriptor is ready; spurious calls are harmless.
    pub fn handle_ready(&mut self, now: Instant) {
        self.handle_connected(now);
        let mut space = [MaybeUninit::uninit(); RECEIVE_BYTES];
        for _ in 0..RECEIVES_PER_TURN {
            let Some(socket) = self.socket.as_ref().filter(|socket| socket.is_connected()) else { break };
            match socket.receive(&mut space) {
                Ok([]) => self.driver.handle_closed(self.time(now)),
                Ok(received) => {
                    self.handle_bytes(self.time(now), received);
                    if received.len() < RECEIVE_BYTES {
                        break; // later bytes make the descriptor ready again
                    }
                    self.run_actions(now);
                    continue;
                }
                Err(error) if would_block(&error) || error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => self.fail(now, error),
            }
            break;
        }
        self.settle(now);
    }

    /// Decrypts and decomposes bytes that the carrier's socket received.
    fn handle_bytes(&mut self, time: Time, wire: &[u8]) {
        scratch::with(|scratch| {
            let mut input = self.driver.unseal(time, wire, scratch);
            while let Some(event) = self.driver.decompose(time, &mut input) {
                if let Some(bytes) = self.driver.handle(time, event) {
                    self.keep_arrived(bytes);
                }
            }
        });
    }

    /// Keeps bytes for the application. A buffer that is too small is doubled, but never beyond the window.
    fn keep_arrived(&mut self, bytes: &[u8]) {
        let needed = self.arrived.len() + bytes.len();
        if needed > self.arrived.capacity() {
            let capacity = (self.arrived.capacity() * 2).min(self.window_bytes);
            self.arrived.reserve_exact(capacity.max(needed) - self.arrived.len());
        }
        self.arrived.extend(bytes);
    }

    /// Sends on the socket, carries out the driver's actions, and updates the epoll set. Each public method
    /// that changes the driver ends with this call.
    fn settle(&mut self, now: Instant) {
        self.transmit(now);
        self.run_actions(now);
        if let Some(socket) = &mut self.socket
            && let Err(error) = socket.watch(&self.poller, self.driver.has_unsent())
        {
            self.fail(now, error);
            self.run_actions(now);
        }
    }

    fn transmit(&mut self, now: Instant) {
        let time = self.time(now);
        let Some(socket) = self.socket.as_ref().filter(|socket| socket.is_connected()) else { return };
        while let Some(bytes) = self.driver.poll_transmit(time) {
            match socket.send(bytes) {
                Ok(sent) => self.driver.sent(sent),
                Err(error) if would_block(&error) => return,
                Err(error) => return self.fail(now, error),
            }
        }
    }

    fn run_actions(&mut self, now: Instant) {
        while let Some(action) = self.driver.poll_action() {
            match action {
                Action::Close => self.socket = None,
                Action::Open(target) => match CarrierSocket::start(target.address, self.local_port.take()) {
                    Ok(socket) => {
                        self.socket = Some(socket);
                        // On loopback the socket may be connected already.
                        self.handle_connected(now);
                        self.transmit(now);
                    }
                    Err(error) => self.fail(now, error),
                },
            }
        }
    }

    /// Reports to the driver when the socket has connected.
    fn handle_connected(&mut self, now: Instant) {
        let Some(socket) = &mut self.socket else { return };
        match socket.poll_connected() {
            Ok(None) => {}
            Ok(Some(address)) => match spillway_keys::fresh_link_randomness() {
                Ok(fresh) => self.driver.handle_connected(self.time(now), address, fresh),
                Err(error) => self.fail(now, error),
            },
            Err(error) => self.fail(now, error),
        }
    }

    fn fail(&mut self, now: Instant, error: io::Error) {
        let is_refused = error.kind() == io::ErrorKind::ConnectionRefused;
        self.driver.handle_failed(self.time(now), error, is_refused);
    }

    fn time(&self, now: Instant) -> Time {
        Time::ZERO + now.saturating_duration_since(self.epoch)
    }
}

fn would_block(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock
}

fn as_error(end: SessionEnd) -> io::Error {
    match end {
        SessionEnd::InOrder => io::ErrorKind::BrokenPipe.into(),
        SessionEnd::Reset(_) => io::ErrorKind::ConnectionReset.into(),
        SessionEnd::Refused | SessionEnd::Absent(None) => io::ErrorKind::ConnectionRefused.into(),
        SessionEnd::Gone(gone) | SessionEnd::Absent(Some(gone)) => {
            io::Error::new(io::ErrorKind::ConnectionAborted, gone)
        }
        SessionEnd::GivenUp => io::ErrorKind::TimedOut.into(),
    }
}

impl AsFd for Session {
    /// Readable when [`handle_ready`](Session::handle_ready) must be called.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.poller.as_fd()
    }
}
