//! A connection that outlives its carriers (PostMan §4.2, "Ensure packet ordering").
//!
//! A [`Session`] knows several link ports, of helpers and of the server itself. When the one that carries it is lost,
//! or silent for too long, it goes on on another, requests in flight included; no byte is lost, repeated or out of
//! order. For applications that recover by themselves a [`Connection`](crate::Connection) is enough.

mod absence;
mod blocking;
mod carriers;
mod event;
mod settings;
mod way;

use std::collections::VecDeque;
use std::io;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, EventData, EventFlags};
use spillway_batch::{CloseReason, OpenerEvent};
use spillway_session::{ClientEvent, ClientSession, Routes, StreamEvent, Vigil};
use spillway_transport::Time;
use spillway_wire::session::SessionId;

pub use blocking::BlockingSession;
pub use event::{CarrierLoss, Gone, SessionEvent};
pub use settings::SessionSettings;
pub use spillway_session::{Pace, Patience, StreamLimits};

use self::absence::Absence;
use self::way::Way;
use crate::jitter::Jitter;
use crate::settings::LinkTarget;
use crate::{scratch, socket};

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
    targets: Vec<LinkTarget>,
    routes: Routes,
    settings: SessionSettings,
    machine: ClientSession,
    vigil: Vigil,
    way: Option<Way>,
    /// Where the next carrier is to be opened from.
    local_port: Option<u16>,
    retry_at: Option<Instant>,
    /// When the carrier is to be left, because it goes away or the server asks for it, and for which route if that is
    /// known.
    departure: Option<(Instant, Option<usize>)>,
    /// Since when no server has answered on any carrier.
    detached_since: Option<Instant>,
    absence: Absence,
    /// What has arrived and the application has not received. At most the window.
    arrived: VecDeque<u8>,
    end: Option<End>,
    /// Nothing more is taken: the application has said so, or the server has closed.
    is_finished: bool,
    wants_room: bool,
    poller: OwnedFd,
    events: VecDeque<SessionEvent>,
    jitter: Jitter,
}

/// How the incoming direction has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    InOrder,
    Reset,
    Refused,
    Gone(Gone),
    /// Nothing has carried the session for too long.
    GivenUp,
    /// The server's own port refuses connections: its process is gone, and the session with it, if there was one.
    Absent(Option<Gone>),
}

impl Session {
    /// Events that wait to be asked for, at most: older ones are dropped.
    const EVENTS_MAX: usize = 32;

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
        let Some(first) = routes.first() else { return Err(io::ErrorKind::InvalidInput.into()) };
        let id = spillway_keys::fresh_nonce()?;
        let machine = ClientSession::new(first.key.clone(), SessionId(id), settings.stream);
        let own = own_of(&routes, &settings);
        let mut session = Session {
            epoch: now,
            routes: Routes::new(routes.len(), own, settings.pace),
            vigil: Vigil::new(settings.patience, Time::ZERO),
            targets: routes,
            settings,
            machine,
            way: None,
            local_port,
            retry_at: Some(now),
            departure: None,
            detached_since: Some(now),
            absence: Absence::default(),
            arrived: VecDeque::new(),
            end: None,
            is_finished: false,
            wants_room: false,
            poller: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            events: VecDeque::new(),
            jitter: Jitter::from_host()?,
        };
        session.handle_timeout(now);
        Ok(session)
    }

    /// The link port that carries it now.
    pub fn carrier(&self) -> Option<SocketAddr> {
        self.way.as_ref().filter(|_| self.machine.is_attached()).map(|way| way.target)
    }

    /// Sends a prefix of `bytes` and returns its length. `WouldBlock` when too much is not acknowledged yet;
    /// [`SessionEvent::Room`] tells when it is worth trying again. Taken is not yet sent: it is kept until the server
    /// has it, on whatever carrier. `BrokenPipe` after [`finish`](Self::finish), and when the server has closed.
    pub fn send(&mut self, now: Instant, bytes: &[u8]) -> io::Result<usize> {
        match self.end {
            None | Some(End::InOrder) if self.is_finished => return Err(End::InOrder.as_error()),
            None | Some(End::InOrder) => {}
            Some(end) => return Err(end.as_error()),
        }
        let taken = self.machine.write(bytes);
        self.wants_room = taken < bytes.len();
        if taken > 0 {
            self.push(now);
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
        if self.arrived.is_empty() && self.end.is_none() {
            self.handle_ready(now);
        }
        let taken = io::Read::read(&mut self.arrived, buffer)?;
        if self.arrived.is_empty() && self.arrived.capacity() > QUIET_BYTES {
            self.arrived = VecDeque::new();
        }
        if taken > 0 {
            let outcome = self.machine.consumed(taken);
            debug_assert_eq!(outcome, Ok(()), "what has arrived was received");
            self.push(now);
            return Ok(taken);
        }
        match self.end {
            None if self.is_over() => Ok(0), // we have closed, and want nothing more
            None => Err(io::ErrorKind::WouldBlock.into()),
            Some(End::InOrder) => Ok(0),
            Some(end) => Err(end.as_error()),
        }
    }

    /// Whether [`receive`](Self::receive) has something without asking the kernel: bytes, the end, or an error.
    pub fn has_arrived(&self) -> bool {
        !self.arrived.is_empty() || self.end.is_some() || self.is_over()
    }

    /// Bytes that are kept here: sent and not acknowledged, arrived and not received.
    pub fn buffered_bytes(&self) -> usize {
        self.machine.kept() + self.arrived.len()
    }

    /// Bytes that have arrived and were not received.
    pub fn arrived_bytes(&self) -> usize {
        self.arrived.len()
    }

    /// Bytes of memory that are allocated for [`buffered_bytes`](Self::buffered_bytes), and for what the carrier's socket
    /// has not taken. Empty buffers do not count: they keep a few KiB at most.
    pub fn held_bytes(&self) -> usize {
        let arrived = if self.arrived.is_empty() { 0 } else { self.arrived.capacity() };
        self.machine.kept_held() + arrived + self.way.as_ref().map_or(0, Way::held_bytes)
    }

    /// Sends no more; replies still come.
    pub fn finish(&mut self, now: Instant) {
        self.is_finished = true;
        self.machine.finish();
        self.push(now);
    }

    /// Closes. What was sent still reaches the server if the session is kept in its loop until it
    /// [is over](Self::is_over). A closed session stays on its carrier, also when that asks it to leave: it leaves only a
    /// carrier that is lost.
    pub fn close(&mut self, now: Instant) {
        self.is_finished = true;
        // A move now would race with the server's answer, which comes on the present carrier.
        self.departure = None;
        self.machine.close(CloseReason::Normal);
        self.push(now);
    }

    /// Resets it: the server hears so, as soon as something carries the session. What the server has not acknowledged,
    /// and what was not received, is dropped at once. Keep the session in its loop until it [is over](Self::is_over).
    pub fn reset(&mut self, now: Instant) {
        self.is_finished = true;
        self.departure = None;
        self.arrived = VecDeque::new();
        self.machine.close(CloseReason::Reset);
        self.push(now);
    }

    /// Whether nothing more comes of it.
    pub fn is_over(&self) -> bool {
        self.machine.is_over() || matches!(self.end, Some(End::GivenUp | End::Absent(_)))
    }

    /// Moves to one of its link ports, by the index they were given in, at once. Requests may be under way.
    pub fn move_to(&mut self, now: Instant, route: usize) -> io::Result<()> {
        self.move_from(now, route, None)
    }

    /// As [`move_to`](Self::move_to), from this port number of ours, if it is free: that which an [`Ask`](crate::Ask) was
    /// made from.
    pub fn move_from(&mut self, now: Instant, route: usize, local_port: Option<u16>) -> io::Result<()> {
        if route >= self.targets.len() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        self.local_port = local_port;
        self.leave(now, CarrierLoss::Asked);
        self.routes.choose(route);
        self.retry_at = Some(now);
        self.handle_timeout(now);
        Ok(())
    }

    /// Other link ports from now on, in the order in which they are to be tried. The one that carries the session goes on
    /// doing so, be it among them or not.
    pub fn set_routes(&mut self, routes: Vec<LinkTarget>) -> io::Result<()> {
        if routes.is_empty() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let tried = self.targets.get(self.routes.at()).map(|target| target.address);
        let present = self.way.as_ref().map(|way| way.target).or(tried);
        let at = routes.iter().position(|route| Some(route.address) == present);
        self.routes.replace(routes.len(), own_of(&routes, &self.settings), at);
        if let Some((_, route)) = &mut self.departure
            && route.is_some()
        {
            *route = self.routes.sent_away(Time::ZERO, Duration::ZERO, 0.0).map(|away| away.route);
        }
        self.targets = routes;
        Ok(())
    }

    /// Something came, or can be sent. A word too many does no harm.
    pub fn handle_ready(&mut self, now: Instant) {
        let mut space = [MaybeUninit::uninit(); RECEIVE_BYTES];
        for _ in 0..PIECES_PER_TURN {
            let Some(way) = &mut self.way else { return };
            match way.is_connected() {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => return self.lose(now, CarrierLoss::Socket(error)),
            }
            match socket::receive_into(&way.socket, &mut space) {
                Ok([]) => return self.lose(now, CarrierLoss::Closed),
                Ok(received) => {
                    let is_all = received.len() < RECEIVE_BYTES;
                    if let Err(why) = self.digest(now, received) {
                        return self.lose(now, why);
                    }
                    if is_all {
                        break; // what came since has the descriptor ready again
                    }
                }
                Err(error) if socket::is_later(&error) || error.kind() == io::ErrorKind::Interrupted => break,
                Err(error) => return self.lose(now, CarrierLoss::Socket(error)),
            }
        }
        self.push(now);
    }

    fn digest(&mut self, now: Instant, wire: &[u8]) -> Result<(), CarrierLoss> {
        let time = self.time(now);
        scratch::with(|scratch| match &mut self.way {
            Some(way) => {
                let opened = way.link.unseal(time, wire, scratch);
                self.digest_opened(now, opened)
            }
            None => Ok(()),
        })
    }

    fn digest_opened(&mut self, now: Instant, mut input: &[u8]) -> Result<(), CarrierLoss> {
        let time = self.time(now);
        while let Some(way) = &mut self.way {
            match way.link.decompose(time, &mut input).map_err(CarrierLoss::Link)? {
                None => break,
                Some(OpenerEvent::Established { .. }) => {
                    if !way.say_first_words(time, &mut self.machine).map_err(CarrierLoss::Socket)? {
                        return Err(CarrierLoss::TooOld);
                    }
                }
                Some(OpenerEvent::RelayedData { bytes, .. }) => {
                    match self.machine.handle_data(time, bytes.len()) {
                        Ok(true) => self.keep_arrived(bytes),
                        Ok(false) => {}
                        Err(event) => self.note(now, event)?,
                    }
                }
                Some(OpenerEvent::RelayedControl { control, .. }) => {
                    let event = self.machine.handle_control(time, &control).map_err(CarrierLoss::Carrier)?;
                    if let Some(event) = event {
                        self.note(now, event)?;
                    }
                }
                Some(OpenerEvent::Drain { deadline_ms }) => self.drained(now, deadline_ms)?,
                Some(_) => {}
            }
        }
        self.vigil.heard(time, self.machine.awaits());
        Ok(())
    }

    /// Keeps these for the application. The buffer is doubled where it is too small, but never beyond the window.
    fn keep_arrived(&mut self, bytes: &[u8]) {
        let wanted = self.arrived.len() + bytes.len();
        if wanted > self.arrived.capacity() {
            let capacity = (self.arrived.capacity() * 2).min(self.settings.stream.window_bytes as usize);
            self.arrived.reserve_exact(capacity.max(wanted) - self.arrived.len());
        }
        self.arrived.extend(bytes);
    }

    fn note(&mut self, now: Instant, event: ClientEvent) -> Result<(), CarrierLoss> {
        match event {
            ClientEvent::Attached { room } => {
                self.detached_since = None;
                self.routes.attached();
                self.vigil.restart(self.time(now));
                if let Some(address) = self.way.as_ref().map(|way| way.target) {
                    self.absence.attached(self.is_own(address));
                    self.tell(SessionEvent::Moved(address));
                }
                if room && std::mem::take(&mut self.wants_room) {
                    self.tell(SessionEvent::Room);
                }
            }
            ClientEvent::Accepted => self.tell(SessionEvent::Accepted),
            ClientEvent::Refused(reason) => {
                if self.machine.is_over() {
                    self.end = Some(End::Refused);
                }
                return Err(CarrierLoss::Refused(reason));
            }
            ClientEvent::Gone { acknowledged } => {
                self.end = Some(End::Gone(Gone { acknowledged, written: self.machine.written() }));
                return Err(CarrierLoss::Refused(spillway_batch::RefuseReason::Gone));
            }
            ClientEvent::Drain { deadline_ms } => self.sent_away(now, deadline_ms),
            ClientEvent::Stream(StreamEvent::Room) => {
                if std::mem::take(&mut self.wants_room) {
                    self.tell(SessionEvent::Room);
                }
            }
            ClientEvent::Stream(StreamEvent::Finished) => self.end = Some(End::InOrder),
            ClientEvent::Stream(StreamEvent::Closed(reason)) => {
                let end = if reason == CloseReason::Normal { End::InOrder } else { End::Reset };
                self.end = Some(end);
                self.is_finished = true;
                self.machine.close(CloseReason::Normal);
            }
        }
        Ok(())
    }

    fn tell(&mut self, event: SessionEvent) {
        if self.events.len() >= Session::EVENTS_MAX {
            self.events.pop_front();
        }
        self.events.push_back(event);
    }

    /// What happened since it was last asked.
    #[must_use]
    pub fn poll_event(&mut self) -> Option<SessionEvent> {
        self.events.pop_front()
    }

    /// Sends what there is, as far as the socket takes it, and has the descriptor wait for the right thing.
    fn push(&mut self, now: Instant) {
        let time = self.time(now);
        let Some(way) = &mut self.way else { return };
        if let Err(error) = way.push(time, &mut self.machine) {
            return self.lose(now, CarrierLoss::Socket(error));
        }
        if self.machine.awaits() {
            self.vigil.awaits(time);
        }
        if self.machine.is_over() {
            self.way = None;
            return;
        }
        let wants_to_write = way.wants_to_write();
        if way.waits_to_write != Some(wants_to_write) {
            let mut flags = EventFlags::IN;
            flags.set(EventFlags::OUT, wants_to_write);
            let data = EventData::new_u64(0);
            let watched = match way.waits_to_write.replace(wants_to_write) {
                None => epoll::add(&self.poller, &way.socket, data, flags),
                Some(_) => epoll::modify(&self.poller, &way.socket, data, flags),
            };
            if let Err(error) = watched {
                self.lose(now, CarrierLoss::Socket(error.into()));
            }
        }
    }

    /// When to call [`handle_timeout`](Self::handle_timeout) next.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        if self.is_over() {
            return None;
        }
        let give_up = self.gives_up().map(|(at, _)| at);
        let carrier = self.way.as_ref().map(|way| match self.machine.is_attached() {
            true => self.instant(self.vigil.poll_timeout()),
            false => way.deadline,
        });
        let owed = self.machine.poll_timeout().map(|at| self.instant(at));
        let turn = self.routes.turn().filter(|_| !self.machine.is_attached()).map(|at| self.instant(at));
        let departure = self.departure.map(|(at, _)| at);
        [self.retry_at, departure, turn, give_up, carrier, owed].into_iter().flatten().min()
    }

    /// Does what is due.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.is_over() {
            return;
        }
        if let Some((_, end)) = self.gives_up().filter(|(at, _)| *at <= now) {
            self.end = Some(end);
            self.leave(now, CarrierLoss::Asked);
            self.retry_at = None;
            return;
        }
        if let Some((_, route)) = self.departure.filter(|(at, _)| *at <= now) {
            self.depart(now, route);
        }
        self.take_turn(now);
        if self.retry_at.is_some_and(|at| at <= now) {
            self.retry_at = None;
            self.start(now);
        }
        self.look_after(now);
        self.push(now);
    }

    /// When the session is given up if nothing carries it until then, and how it has ended then.
    fn gives_up(&self) -> Option<(Instant, End)> {
        let silent = (self.detached_since? + self.settings.give_up_after, End::GivenUp);
        let absent = self.absence.gives_up_at(self.settings.refused_patience).map(|at| {
            let gone = Gone { acknowledged: self.machine.acknowledged(), written: self.machine.written() };
            (at, End::Absent(self.absence.was_attached().then_some(gone)))
        });
        [Some(silent), absent].into_iter().flatten().min_by_key(|(at, _)| *at)
    }

    /// Whether this is the server's own link port.
    fn is_own(&self, address: SocketAddr) -> bool {
        self.settings.server_port == Some(address)
    }

    fn time(&self, now: Instant) -> Time {
        Time::ZERO + now.saturating_duration_since(self.epoch)
    }

    fn instant(&self, time: Time) -> Instant {
        self.epoch + time.since(Time::ZERO)
    }
}

/// Which of the routes is the server's own.
fn own_of(routes: &[LinkTarget], settings: &SessionSettings) -> Option<usize> {
    routes.iter().position(|route| Some(route.address) == settings.server_port)
}

impl End {
    fn as_error(self) -> io::Error {
        match self {
            End::InOrder => io::ErrorKind::BrokenPipe.into(),
            End::Reset => io::ErrorKind::ConnectionReset.into(),
            End::Refused => io::ErrorKind::ConnectionRefused.into(),
            End::Absent(None) => io::ErrorKind::ConnectionRefused.into(),
            End::Gone(gone) | End::Absent(Some(gone)) => {
                io::Error::new(io::ErrorKind::ConnectionAborted, gone)
            }
            End::GivenUp => io::ErrorKind::TimedOut.into(),
        }
    }
}

impl AsFd for Session {
    /// Readable when there is something to do.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.poller.as_fd()
    }
}
