//! Relief that switches itself (PostMan §5.2, §5.3): what one process knows about one service, for all its sessions there.
//!
//! [`Relief`] watches how fast replies come, decides when sessions go to helpers and back, asks helpers for their load
//! before it chooses one, and obeys the operator's word. It moves nothing itself: [`Relief::poll_move`] says which session
//! is to go where, and [`Move::apply`] does it. A session's own failover goes on as without: when its helper dies it is
//! with another one before anybody decides anything.
//!
//! # A turn of the loop
//! 1. [`join`](Relief::join) for each new connection: its first move comes from `poll_move`, and then
//!    [`Move::open`] makes the session. [`leave`](Relief::leave) when it ends.
//! 2. Tell [`measured`](Relief::measured) of each reply, [`waits_since`](Relief::waits_since) of the oldest request without
//!    one, and [`note`](Relief::note) of each of a session's events.
//! 3. Watch [its descriptor](AsFd) for reading; call [`handle_ready`](Relief::handle_ready) when it is ready, and
//!    [`handle_timeout`](Relief::handle_timeout) at [`poll_timeout`](Relief::poll_timeout).
//! 4. Ask `poll_move` until `None`, and [`poll_notice`](Relief::poll_notice) for the log.

mod asking;
mod routes;
mod settings;

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use spillway_policy::activation::{Counters, Notice, Status};
use spillway_policy::{Activation, Carrier, Order, Word};
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

/// A session is to go somewhere, or to be opened there.
#[derive(Clone, Debug)]
pub struct Move {
    /// Which.
    pub member: Member,
    /// In the order in which they are to be tried; the first one is meant.
    pub routes: Vec<LinkTarget>,
    /// The port number to connect from at first: the helper's thread that has answered from there will serve it.
    local_port: Option<u16>,
    /// As of [`ReliefSettings`].
    settings: SessionSettings,
}

impl Move {
    /// Opens a session there: the first move of each member.
    ///
    /// # Errors
    /// The host has no descriptors, or no random bytes.
    pub fn open(self, now: Instant) -> io::Result<Session> {
        Session::open_from(now, self.routes, self.settings, self.local_port)
    }

    /// Has a session go there, requests in flight included.
    ///
    /// # Errors
    /// There are no routes, which is never so.
    pub fn apply(self, now: Instant, session: &mut Session) -> io::Result<()> {
        session.set_routes(self.routes)?;
        session.move_from(now, 0, self.local_port)
    }
}

/// What is known of a member beside what the policy knows.
#[derive(Clone, Copy, Debug)]
struct Place {
    /// Where its order sends it, until that is reported on.
    sent_to: Option<SocketAddr>,
    /// It was never sent anywhere.
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
    /// Nobody has joined yet.
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

    /// Other helpers from now on. Sessions that are with one that is no longer among them stay there until it goes.
    pub fn set_helpers(&mut self, now: Instant, helpers: Vec<LinkTarget>) {
        self.known.helpers = helpers;
        self.activation.helpers(!self.known.helpers.is_empty());
        // Places of helpers that are asked just now may have changed.
        for member in self.asking.take_all() {
            self.not_moved(now, member);
        }
        self.run(now);
    }

    /// The helpers that are known.
    pub fn helpers(&self) -> &[LinkTarget] {
        &self.known.helpers
    }

    /// The operator's word, for ever or for a time: it overrides what replies say.
    pub fn say(&mut self, now: Instant, word: Word, lasts: Option<Duration>) {
        let time = self.time(now);
        self.activation.say(time, word, lasts);
        self.run(now);
    }

    /// A connection joins; its first move says where it is to be opened. `None`: there are too many; open it at the server.
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

    /// A connection has ended.
    pub fn leave(&mut self, now: Instant, member: Member) {
        let time = self.time(now);
        self.places.remove(&member);
        self.asking.cancel(member);
        self.moves.retain(|one| one.member != member);
        self.activation.leave(time, member);
    }

    /// A reply came, so long after its request was meant to be sent. Not for blocking commands.
    pub fn measured(&mut self, now: Instant, member: Member, latency: Duration) {
        let time = self.time(now);
        self.activation.measured(time, member, latency);
    }

    /// Since when the oldest request of a connection waits for its reply; `None` when none does. Say so whenever it
    /// changes. Not for blocking commands.
    pub fn waits_since(&mut self, member: Member, since: Option<Instant>) {
        let since = since.map(|since| self.time(since));
        self.activation.waits_since(member, since);
    }

    /// Something happened to a member's session.
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
                self.activation.asked_elsewhere(time, member);
            }
            SessionEvent::CarrierLost { .. } | SessionEvent::Accepted | SessionEvent::Room => return,
        }
        self.run(now);
    }

    /// Helpers have answered.
    pub fn handle_ready(&mut self, now: Instant) {
        self.asking.handle_ready(now, &self.known.helpers);
        self.take_answers(now);
        self.run(now);
    }

    /// Does what is due.
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

    /// Who is to go where. Ask until `None` after every other call.
    #[must_use]
    pub fn poll_move(&mut self) -> Option<Move> {
        self.moves.pop_front()
    }

    /// A decision, for the log.
    #[must_use]
    pub fn poll_notice(&mut self) -> Option<Notice> {
        self.activation.poll_notice()
    }

    /// What it is about.
    pub fn status(&self, now: Instant) -> Status {
        self.activation.status(self.time(now))
    }

    /// What it has done since it began.
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

    /// Asks helpers which of them is to have a member.
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

    /// No helper takes a member. One that is nowhere yet is opened at the server.
    fn not_moved(&mut self, now: Instant, member: Member) {
        let time = self.time(now);
        self.activation.not_moved(time, member);
        let is_new = self.places.get(&member).is_some_and(|place| place.is_new);
        if is_new {
            self.send(member, None);
        }
    }

    /// To the server; or to this helper, from this port number.
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
    /// Readable when there is something to do.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.asking.as_fd()
    }
}
