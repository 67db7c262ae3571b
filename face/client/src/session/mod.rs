//! A connection that outlives its carriers (PostMan §4.2, "Ensure packet ordering").
//!
//! A [`Session`] knows several link ports, of helpers and of the server itself. When the one that carries it is lost,
//! or silent for too long, it goes on on another, requests in flight included; no byte is lost, repeated or out of
//! order.
//!
//! Where a session goes and when is decided by the [`Driver`] of `core/session`, which the simulator runs too; here are
//! its socket, its clock, and what has arrived for the application.

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
pub use spillway_session::{Gone, Pace, Patience, SessionSettings, StreamLimits};

use self::socket::CarrierSocket;
use crate::LinkTarget;
use crate::{jitter, scratch};

/// What happens to a session. The driver goes on without an answer.
pub type SessionEvent = spillway_session::SessionEvent<io::Error>;

/// Why a carrier carries a session no more.
pub type CarrierLoss = spillway_session::CarrierLoss<io::Error>;

/// Received at a time.
const RECEIVE_BYTES: usize = 64 * 1024;
/// A buffer that has become empty gives its memory back above this size, so that a quiet session needs little.
const QUIET_BYTES: usize = 2 * 1024;
/// After so many pieces the caller gets its turn again.
const PIECES_PER_TURN: usize = 16;

/// One stream of bytes in each direction, and whatever carries it now.
///
/// It lives in a loop of the caller's: watch [its descriptor](AsFd) for reading, and it never changes; call
/// [`handle_ready`](Self::handle_ready) when it is ready and [`handle_timeout`](Self::handle_timeout) at
/// [`poll_timeout`](Self::poll_timeout), then [`receive`](Self::receive) until `WouldBlock`, and ask
/// [`poll_event`](Self::poll_event) until `None`.
#[derive(Debug)]
pub struct Session {
    epoch: Instant,
    driver: Driver<io::Error>,
    socket: Option<CarrierSocket>,
    /// Where the next carrier is to be opened from.
    local_port: Option<u16>,
    /// What has arrived and the application has not received. At most the window.
    arrived: VecDeque<u8>,
    window_bytes: usize,
    poller: OwnedFd,
}

impl Session {
    /// Makes a session and begins to open it on the first of these link ports; the others are tried in turn. All of
    /// them lead to the same server, which must accept the first one's key of clients.
    pub fn open(now: Instant, routes: Vec<LinkTarget>, settings: SessionSettings) -> io::Result<Session> {
        Session::open_from(now, routes, settings, None)
    }

    /// As [`open`](Self::open); the first attempt is made from this port number of ours, if it is free: that which an
    /// [`Ask`](crate::Ask) was made from.
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

    /// The link port that carries it now.
    pub fn carrier(&self) -> Option<SocketAddr> {
        self.driver.carrier()
    }

    /// Sends a prefix of `bytes` and returns its length. `WouldBlock` when too much is not acknowledged yet;
    /// [`SessionEvent::Room`] tells when it is worth trying again. Taken is not yet sent: it is kept until the server
    /// has it, on whatever carrier. `BrokenPipe` after [`finish`](Self::finish), and when the server has closed.
    pub fn send(&mut self, now: Instant, bytes: &[u8]) -> io::Result<usize> {
        let taken = self.driver.write(bytes).map_err(as_error)?;
        if taken > 0 {
            self.settle(now);
        } else if !bytes.is_empty() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        Ok(taken)
    }

    /// Receives into `buffer`. 0 is the end of the stream. `WouldBlock` when there is nothing. An error is for ever; one
    /// that holds a [`Gone`] tells up to where the server is known to have received.
    pub fn receive(&mut self, now: Instant, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        if self.arrived.is_empty() && self.driver.end().is_none() {
            self.handle_ready(now);
        }
        let taken = io::Read::read(&mut self.arrived, buffer)?;
        if self.arrived.is_empty() && self.arrived.capacity() > QUIET_BYTES {
            self.arrived = VecDeque::new();
        }
        if taken > 0 {
            let outcome = self.driver.consumed(taken);
            debug_assert_eq!(outcome, Ok(()), "what has arrived was received");
            self.settle(now);
            return Ok(taken);
        }
        match self.driver.end() {
            None if self.is_over() => Ok(0), // we have closed, and want nothing more
            None => Err(io::ErrorKind::WouldBlock.into()),
            Some(SessionEnd::InOrder) => Ok(0),
            Some(end) => Err(as_error(end)),
        }
    }

    /// Whether [`receive`](Self::receive) has something without asking the kernel: bytes, the end, or an error.
    pub fn has_arrived(&self) -> bool {
        !self.arrived.is_empty() || self.driver.end().is_some() || self.is_over()
    }

    /// Bytes that are kept here: sent and not acknowledged, arrived and not received.
    pub fn buffered_bytes(&self) -> usize {
        self.driver.kept() + self.arrived.len()
    }

    /// Bytes that have arrived and were not received.
    pub fn arrived_bytes(&self) -> usize {
        self.arrived.len()
    }

    /// Bytes of memory that are allocated for [`buffered_bytes`](Self::buffered_bytes), and for what the carrier's socket
    /// has not taken. Empty buffers do not count: they keep a few KiB at most.
    pub fn held_bytes(&self) -> usize {
        let arrived = if self.arrived.is_empty() { 0 } else { self.arrived.capacity() };
        self.driver.held_bytes() + arrived
    }

    /// Sends no more; replies still come.
    pub fn finish(&mut self, now: Instant) {
        self.driver.finish();
        self.settle(now);
    }

    /// Closes. What was sent still reaches the server if the session is kept in its loop until it
    /// [is over](Self::is_over). A closed session stays on its carrier, also when that asks it to leave: it leaves only a
    /// carrier that is lost.
    pub fn close(&mut self, now: Instant) {
        self.driver.close(CloseReason::Normal);
        self.settle(now);
    }

    /// Resets it: the server hears so, as soon as something carries the session. What the server has not acknowledged,
    /// and what was not received, is dropped at once. Keep the session in its loop until it [is over](Self::is_over).
    pub fn reset(&mut self, now: Instant) {
        self.arrived = VecDeque::new();
        self.driver.close(CloseReason::Reset);
        self.settle(now);
    }

    /// Whether nothing more comes of it.
    pub fn is_over(&self) -> bool {
        self.driver.is_over()
    }

    /// Moves to one of its link ports, by the index they were given in, at once. Requests may be under way.
    pub fn move_to(&mut self, now: Instant, route: usize) -> io::Result<()> {
        self.move_from(now, route, None)
    }

    /// As [`move_to`](Self::move_to), from this port number of ours, if it is free: that which an [`Ask`](crate::Ask) was
    /// made from.
    pub fn move_from(&mut self, now: Instant, route: usize, local_port: Option<u16>) -> io::Result<()> {
        if !self.driver.move_to(self.time(now), route) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        self.local_port = local_port;
        self.settle(now);
        Ok(())
    }

    /// Other link ports from now on, in the order in which they are to be tried. The one that carries the session goes on
    /// doing so, be it among them or not.
    pub fn set_routes(&mut self, routes: Vec<LinkTarget>) -> io::Result<()> {
        if self.driver.set_targets(routes) { Ok(()) } else { Err(io::ErrorKind::InvalidInput.into()) }
    }

    /// What happened since it was last asked.
    #[must_use]
    pub fn poll_event(&mut self) -> Option<SessionEvent> {
        self.driver.poll_event()
    }

    /// When to call [`handle_timeout`](Self::handle_timeout) next.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.driver.poll_timeout().map(|at| self.epoch + at.since(Time::ZERO))
    }

    /// Does what is due.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.driver.handle_timeout(self.time(now));
        self.settle(now);
    }

    /// Something came, or can be sent. Spurious calls are harmless.
    pub fn handle_ready(&mut self, now: Instant) {
        self.handle_connected(now);
        let mut space = [MaybeUninit::uninit(); RECEIVE_BYTES];
        for _ in 0..PIECES_PER_TURN {
            let Some(socket) = self.socket.as_ref().filter(|socket| socket.is_connected()) else { break };
            match socket.receive(&mut space) {
                Ok([]) => self.driver.handle_closed(self.time(now)),
                Ok(received) => {
                    self.digest(self.time(now), received);
                    if received.len() < RECEIVE_BYTES {
                        break; // what came since has the descriptor ready again
                    }
                    self.act(now);
                    continue;
                }
                Err(error) if is_later(&error) || error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => self.fail(now, error),
            }
            break;
        }
        self.settle(now);
    }

    /// Takes apart what came on the carrier.
    fn digest(&mut self, time: Time, wire: &[u8]) {
        scratch::with(|scratch| {
            let mut input = self.driver.unseal(time, wire, scratch);
            while let Some(event) = self.driver.decompose(time, &mut input) {
                if let Some(bytes) = self.driver.handle(time, event) {
                    self.keep_arrived(bytes);
                }
            }
        });
    }

    /// Keeps these for the application. The buffer is doubled where it is too small, but never beyond the window.
    fn keep_arrived(&mut self, bytes: &[u8]) {
        let wanted = self.arrived.len() + bytes.len();
        if wanted > self.arrived.capacity() {
            let capacity = (self.arrived.capacity() * 2).min(self.window_bytes);
            self.arrived.reserve_exact(capacity.max(wanted) - self.arrived.len());
        }
        self.arrived.extend(bytes);
    }

    /// Gives the socket what it takes, does what the driver says, and has the descriptor wait for the right thing.
    fn settle(&mut self, now: Instant) {
        self.transmit(now);
        self.act(now);
        if let Some(socket) = &mut self.socket
            && let Err(error) = socket.watch(&self.poller, self.driver.has_unsent())
        {
            self.fail(now, error);
            self.act(now);
        }
    }

    fn transmit(&mut self, now: Instant) {
        let time = self.time(now);
        let Some(socket) = self.socket.as_ref().filter(|socket| socket.is_connected()) else { return };
        while let Some(bytes) = self.driver.poll_transmit(time) {
            match socket.send(bytes) {
                Ok(sent) => self.driver.sent(sent),
                Err(error) if is_later(&error) => return,
                Err(error) => return self.fail(now, error),
            }
        }
    }

    fn act(&mut self, now: Instant) {
        while let Some(action) = self.driver.poll_action() {
            match action {
                Action::Close => self.socket = None,
                Action::Open(target) => match CarrierSocket::start(target.address, self.local_port.take()) {
                    Ok(socket) => {
                        self.socket = Some(socket);
                        // On loopback it may be connected already.
                        self.handle_connected(now);
                        self.transmit(now);
                    }
                    Err(error) => self.fail(now, error),
                },
            }
        }
    }

    /// Begins the link, if the socket has become connected.
    fn handle_connected(&mut self, now: Instant) {
        let Some(socket) = &mut self.socket else { return };
        match socket.poll_connected() {
            Ok(None) => {}
            Ok(Some(address)) => match spillway_keys::fresh() {
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

fn is_later(error: &io::Error) -> bool {
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
    /// Readable when there is something to do.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.poller.as_fd()
    }
}
