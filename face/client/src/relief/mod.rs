//! Automatic relief (PostMan §5.2, §5.3) for all sessions of one process at one service.
//!
//! [`Relief`] measures latency, decides when sessions move to helpers and back, asks helpers for their load before it
//! chooses one, and follows the operator's override. It moves no session: [`Relief::poll_move`] returns which session moves
//! where, and [`Move::apply`] moves it. Failover stays with each session: when its helper fails, it is on another carrier
//! before [`Relief`] decides.
//!
//! # A turn of the loop
//! 1. [`join`](Relief::join) for each new connection: `poll_move` returns its first move, and [`Move::open`] opens the
//!    session. [`leave`](Relief::leave) when the connection ends.
//! 2. Report each reply by [`measured`](Relief::measured), the oldest request without a reply by
//!    [`waits_since`](Relief::waits_since), and each event of a session by [`note`](Relief::note).
//! 3. Watch [its descriptor](AsFd) for reading; call [`handle_ready`](Relief::handle_ready) when it is ready, and
//!    [`handle_timeout`](Relief::handle_timeout) at [`poll_timeout`](Relief::poll_timeout).
//! 4. Call `poll_move` until `None`, and [`poll_notice`](Relief::poll_notice) for the log.

mod asking;
mod routes;
mod settings;

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use spillway_policy::activation::{Counters, Notice, Status};
use spillway_policy::{Activation, Carrier, Order, Override};
use spillway_session::Jitter;
use spillway_transport::Time;

pub use settings::ReliefSettings;
pub use spillway_policy::activation::OutOfBounds;
pub use spillway_policy::{ActivationSettings, Member};

use self::asking::Asking;
use self::routes::Known;
use crate::LinkTarget;
use crate::ask::Asked;
use crate::jitter;
use crate::session::{CarrierLoss, Session, SessionEvent, SessionSettings};

/// An order to move a session, or to open a new one.
#[derive(Clone, Debug)]
pub struct Move {
    /// The connection to move.
    pub member: Member,
    /// Link ports in the order in which to try them: the first one is the destination.
    pub routes: Vec<LinkTarget>,
    /// The port number for the first attempt to connect, so that the helper's thread that has answered serves the session.
    local_port: Option<u16>,
    /// From [`ReliefSettings::session`].
    settings: SessionSettings,
}

impl Move {
    /// Opens a session on the first route: for the first move of each member.
    ///
    /// # Errors
    /// The host has no descriptors, or no random bytes.
    pub fn open(self, now: Instant) -> io::Result<Session> {
        Session::open_from(now, self.routes, self.settings, self.local_port)
    }

    /// Moves a session to the first route, with its requests in flight.
    ///
    /// # Errors
    /// `routes` is empty; [`Relief::poll_move`] returns no such move.
    pub fn apply(self, now: Instant, session: &mut Session) -> io::Result<()> {
        session.set_routes(self.routes)?;
        session.move_from(now, 0, self.local_port)
    }
}

/// State of a member that the policy does not have.
#[derive(Clone, Copy, Debug)]
struct Place {
    /// Destination of the member's last order, until the outcome is reported.
    sent_to: Option<SocketAddr>,
    /// The member has had no order yet.
    is_new: bool,
}

/// The relief of one service, for one process.
#[derive(Debug)]
pub struct Relief {
    epoch: Instant,
    known: Known,
    session: SessionSettings,
    activation: Activation,
    asking: Asking,
    places: HashMap<Member, Place>,
    moves: VecDeque<Move>,
    jitter: Jitter,
}

impl Relief {
    /// Relief for a process without connections.
    ///
    /// # Errors
    /// A setting is out of its bounds, or the host has no descriptors.
    pub fn new(now: Instant, settings: ReliefSettings) -> io::Result<Relief> {
        let ReliefSettings { server, helpers, activation, asked, session } = settings;
        let mut jitter = Jitter::seeded(jitter::seed()?);
        let mut activation = Activation::new(Time::ZERO, activation, jitter.bits())
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        activation.helpers(!helpers.is_empty());
        Ok(Relief {
            epoch: now,
            session: SessionSettings { server_port: Some(server.address), ..session },
            known: Known { server, helpers },
            activation,
            asking: Asking::new(asked)?,
            places: HashMap::new(),
            moves: VecDeque::new(),
            jitter,
        })
    }

    /// Replaces the helpers. A session on a helper outside the new list stays there until that carrier is lost.
    pub fn set_helpers(&mut self, now: Instant, helpers: Vec<LinkTarget>) {
        self.known.helpers = helpers;
        self.activation.helpers(!self.known.helpers.is_empty());
        // Answers that are pending name helpers by their index in the old list.
        for member in self.asking.take_all() {
            self.not_moved(now, member);
        }
        self.run(now);
    }

    /// The present list of helpers.
    pub fn helpers(&self) -> &[LinkTarget] {
        &self.known.helpers
    }

    /// Sets the operator's override, for the time `lasts` or without limit.
    pub fn say(&mut self, now: Instant, word: Override, lasts: Option<Duration>) {
        let time = self.time(now);
        self.activation.say(time, word, lasts);
        self.run(now);
    }

    /// Adds a connection; its first move says where to open it. `None`: too many connections; open this one at the server.
    pub fn join(&mut self, now: Instant) -> Option<Member> {
        let time = self.time(now);
        let (member, carrier) = self.activation.join(time)?;
        self.places.insert(member, Place { sent_to: None, is_new: true });
        match carrier {
            Carrier::Helped => self.choose(now, member),
            Carrier::Direct => self.send(member, None),
        }
        self.run(now);
        Some(member)
    }

    /// Removes a connection that has ended.
    pub fn leave(&mut self, now: Instant, member: Member) {
        let time = self.time(now);
        self.places.remove(&member);
        self.asking.cancel(member);
        self.moves.retain(|one| one.member != member);
        self.activation.leave(time, member);
    }

    /// A reply arrived; `latency` counts from the time at which the request was due. Not for blocking commands.
    pub fn measured(&mut self, now: Instant, member: Member, latency: Duration) {
        let time = self.time(now);
        self.activation.measured(time, member, latency);
    }

    /// Reports since when the oldest request of this connection waits for its reply; `None` without such a request. Call it
    /// at each change. Not for blocking commands.
    pub fn waits_since(&mut self, member: Member, since: Option<Instant>) {
        let since = since.map(|since| self.time(since));
        self.activation.waits_since(member, since);
    }

    /// Reports an event of a member's session.
    pub fn note(&mut self, now: Instant, member: Member, event: &SessionEvent) {
        let time = self.time(now);
        let Some(place) = self.places.get_mut(&member) else { return };
        match event {
            SessionEvent::Moved(address) => {
                let was_sent = place.sent_to.take();
                let is_direct = *address == self.known.server.address;
                let carrier = if is_direct { Carrier::Direct } else { Carrier::Helped };
                let is_elsewhere =
                    was_sent.is_some_and(|sent| (sent == self.known.server.address) != is_direct);
                if is_elsewhere {
                    self.activation.not_moved(time, member);
                }
                self.activation.carried(time, member, carrier);
            }
            SessionEvent::CarrierLost { why: CarrierLoss::SentAway, .. } => {
                self.activation.release_requested(time, member);
            }
            SessionEvent::CarrierLost { .. } | SessionEvent::Accepted | SessionEvent::Room => return,
        }
        self.run(now);
    }

    /// Receives helpers' answers. Call it when the descriptor is ready.
    pub fn handle_ready(&mut self, now: Instant) {
        self.asking.handle_ready(now, &self.known.helpers);
        self.take_answers(now);
        self.run(now);
    }

    /// Handles timeouts. Call it at [`poll_timeout`](Self::poll_timeout).
    pub fn handle_timeout(&mut self, now: Instant) {
        self.asking.handle_timeout(now, &self.known.helpers);
        self.take_answers(now);
        self.run(now);
    }

    /// When to call [`handle_timeout`](Self::handle_timeout) next.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let decision = self.activation.poll_timeout().map(|at| self.epoch + at.since(Time::ZERO));
        [decision, self.asking.poll_timeout()].into_iter().flatten().min()
    }

    /// The next move to carry out. Call it until `None`, after every other call.
    #[must_use]
    pub fn poll_move(&mut self) -> Option<Move> {
        self.moves.pop_front()
    }

    /// The next decision, for the log. Call it until `None`.
    #[must_use]
    pub fn poll_notice(&mut self) -> Option<Notice> {
        self.activation.poll_notice()
    }

    /// The group's state, for operators.
    pub fn status(&self, now: Instant) -> Status {
        self.activation.status(self.time(now))
    }

    /// Counters since the start.
    pub fn counters(&self) -> &Counters {
        self.activation.counters()
    }

    fn run(&mut self, now: Instant) {
        let time = self.time(now);
        while let Some(order) = self.activation.poll(time) {
            match order {
                Order::Help(member) => self.choose(now, member),
                Order::Direct(member) => {
                    self.asking.cancel(member);
                    self.send(member, None);
                }
            }
        }
    }

    /// Begins to choose a helper for a member.
    fn choose(&mut self, now: Instant, member: Member) {
        self.asking.begin(now, member, &self.known.helpers);
        self.take_answers(now);
    }

    fn take_answers(&mut self, now: Instant) {
        while let Some((member, answer)) = self.asking.poll() {
            match answer {
                Asked::Helper { helper, local_port, .. } => self.send(member, Some((helper, local_port))),
                Asked::Nobody => self.not_moved(now, member),
            }
        }
    }

    /// No helper accepts a member. A new member is opened at the server.
    fn not_moved(&mut self, now: Instant, member: Member) {
        let time = self.time(now);
        self.activation.not_moved(time, member);
        let is_new = self.places.get(&member).is_some_and(|place| place.is_new);
        if is_new {
            self.send(member, None);
        }
    }

    /// Orders a member's move: to the server, or to this helper from this port number.
    fn send(&mut self, member: Member, helper: Option<(usize, u16)>) {
        let (helper, local_port) = helper.unzip();
        let routes = self.known.routes(helper, || self.jitter.fraction());
        let Some(place) = self.places.get_mut(&member) else { return };
        place.is_new = false;
        place.sent_to = routes.first().map(|route| route.address);
        self.moves.push_back(Move { member, routes, local_port, settings: self.session });
    }

    fn time(&self, now: Instant) -> Time {
        Time::ZERO + now.saturating_duration_since(self.epoch)
    }
}

impl AsFd for Relief {
    /// Readable when [`handle_ready`](Relief::handle_ready) must be called.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.asking.as_fd()
    }
}
