//! Automatic relief (PostMan §5.2, §5.3) for all sessions of one process at one service.
//!
//! [`Relief`] measures latency, decides when sessions move to helpers and back, queries the load of helpers before it
//! chooses one, and follows the operator's override. It moves no session: [`Relief::poll_move`] returns which session
//! moves where, and [`Move::apply`] moves it. Failover needs no decision of [`Relief`]: when
//! a helper fails, each of its sessions resumes on another carrier by itself.
//!
//! # A turn of the loop
//! 1. [`join`](Relief::join) for each new connection: `poll_move` returns its first move, and [`Move::open`] opens the
//!    session. [`leave`](Relief::leave) when the connection ends.
//! 2. Report each reply by [`record_latency`](Relief::record_latency), the oldest request without a reply by
//!    [`set_oldest_request`](Relief::set_oldest_request), and each event of a session by
//!    [`handle_event`](Relief::handle_event).
//! 3. Watch [its descriptor](AsFd) for reading; call [`handle_ready`](Relief::handle_ready) when it is ready, and
//!    [`handle_timeout`](Relief::handle_timeout) at [`poll_timeout`](Relief::poll_timeout).
//! 4. Call `poll_move` until `None`, and [`poll_notice`](Relief::poll_notice) for the log.

mod helper_choices;
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

use self::helper_choices::HelperChoices;
use self::routes::LinkPorts;
use crate::LinkTarget;
use crate::jitter;
use crate::load_queries::LoadQueryOutcome;
use crate::session::{CarrierLoss, Session, SessionEvent, SessionSettings};

/// An order to move a session, or to open a new one.
#[derive(Clone, Debug)]
pub struct Move {
    /// The connection to move.
    pub member: Member,
    /// Link ports in the order in which to try them: the first one is the destination.
    pub routes: Vec<LinkTarget>,
    /// The port number for the first attempt to connect: with it, the helper's thread that has answered
    /// serves the session.
    local_port: Option<u16>,
    /// The settings of [`ReliefSettings::session`].
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

/// State of a member in addition to the policy's.
#[derive(Clone, Copy, Debug)]
struct MemberState {
    /// Destination of the member's last order, until the outcome is reported.
    destination: Option<SocketAddr>,
    /// The member has had no order yet.
    is_new: bool,
}

/// The relief of one service, for one process.
#[derive(Debug)]
pub struct Relief {
    epoch: Instant,
    ports: LinkPorts,
    session: SessionSettings,
    activation: Activation,
    helper_choices: HelperChoices,
    members: HashMap<Member, MemberState>,
    moves: VecDeque<Move>,
    jitter: Jitter,
}

impl Relief {
    /// Relief for a process without connections.
    ///
    /// # Errors
    /// A setting is out of its bounds, or the host has no descriptors.
    pub fn new(now: Instant, settings: ReliefSettings) -> io::Result<Relief> {
        let ReliefSettings { server, helpers, activation, helpers_asked, session } = settings;
        let mut jitter = Jitter::seeded(jitter::seed()?);
        let mut activation = Activation::new(Time::ZERO, activation, jitter.bits())
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        activation.set_helpers_available(!helpers.is_empty());
        Ok(Relief {
            epoch: now,
            session: SessionSettings { server_port: Some(server.address), ..session },
            ports: LinkPorts { server, helpers },
            activation,
            helper_choices: HelperChoices::new(helpers_asked)?,
            members: HashMap::new(),
            moves: VecDeque::new(),
            jitter,
        })
    }

    /// Replaces the helpers. A session on a helper outside the new list stays there until that carrier is lost.
    pub fn set_helpers(&mut self, now: Instant, helpers: Vec<LinkTarget>) {
        self.ports.helpers = helpers;
        self.activation.set_helpers_available(!self.ports.helpers.is_empty());
        // Answers that are pending name helpers by their index in the old list.
        for member in self.helper_choices.take_all() {
            self.give_up_move(now, member);
        }
        self.take_orders(now);
    }

    /// The present list of helpers.
    pub fn helpers(&self) -> &[LinkTarget] {
        &self.ports.helpers
    }

    /// Sets the operator's override, for `duration` or without limit.
    pub fn set_override(&mut self, now: Instant, manual_override: Override, duration: Option<Duration>) {
        let time = self.time(now);
        self.activation.set_override(time, manual_override, duration);
        self.take_orders(now);
    }

    /// Adds a connection; its first move opens it. `None`: there are too many connections; open this one at the server.
    pub fn join(&mut self, now: Instant) -> Option<Member> {
        let time = self.time(now);
        let (member, carrier) = self.activation.join(time)?;
        self.members.insert(member, MemberState { destination: None, is_new: true });
        match carrier {
            Carrier::Helped => self.choose_helper(now, member),
            Carrier::Direct => self.order_move(member, None),
        }
        self.take_orders(now);
        Some(member)
    }

    /// Removes a connection that has ended.
    pub fn leave(&mut self, now: Instant, member: Member) {
        let time = self.time(now);
        self.members.remove(&member);
        self.helper_choices.cancel(member);
        self.moves.retain(|other| other.member != member);
        self.activation.leave(time, member);
    }

    /// Reports that a reply arrived. `latency` counts from the time at which the request was due. Do not report replies
    /// to blocking commands.
    pub fn record_latency(&mut self, now: Instant, member: Member, latency: Duration) {
        let time = self.time(now);
        self.activation.record_latency(time, member, latency);
    }

    /// Reports since when the oldest request of this connection waits for its reply; `None` without such a request. Call it
    /// at each change. Do not report blocking commands.
    pub fn set_oldest_request(&mut self, member: Member, since: Option<Instant>) {
        let since = since.map(|since| self.time(since));
        self.activation.set_oldest_request(member, since);
    }

    /// Reports an event of a member's session.
    pub fn handle_event(&mut self, now: Instant, member: Member, event: &SessionEvent) {
        let time = self.time(now);
        let Some(state) = self.members.get_mut(&member) else { return };
        match event {
            SessionEvent::Moved(address) => {
                let destination = state.destination.take();
                let is_direct = *address == self.ports.server.address;
                let carrier = if is_direct { Carrier::Direct } else { Carrier::Helped };
                let missed_destination =
                    destination.is_some_and(|address| (address == self.ports.server.address) != is_direct);
                if missed_destination {
                    self.activation.not_moved(time, member);
                }
                self.activation.carried(time, member, carrier);
            }
            SessionEvent::CarrierLost { why: CarrierLoss::AskedToMove, .. } => {
                self.activation.release_requested(time, member);
            }
            SessionEvent::CarrierLost { .. } | SessionEvent::Accepted | SessionEvent::Room => return,
        }
        self.take_orders(now);
    }

    /// Receives helpers' answers. Call it when the descriptor is ready.
    pub fn handle_ready(&mut self, now: Instant) {
        self.helper_choices.handle_ready(now, &self.ports.helpers);
        self.take_answers(now);
        self.take_orders(now);
    }

    /// Handles timeouts. Call it at [`poll_timeout`](Self::poll_timeout).
    pub fn handle_timeout(&mut self, now: Instant) {
        self.helper_choices.handle_timeout(now, &self.ports.helpers);
        self.take_answers(now);
        self.take_orders(now);
    }

    /// When to call [`handle_timeout`](Self::handle_timeout) next.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let decision = self.activation.poll_timeout().map(|at| self.epoch + at.since(Time::ZERO));
        [decision, self.helper_choices.poll_timeout()].into_iter().flatten().min()
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

    fn take_orders(&mut self, now: Instant) {
        let time = self.time(now);
        while let Some(order) = self.activation.poll(time) {
            match order {
                Order::ToHelper(member) => self.choose_helper(now, member),
                Order::Direct(member) => {
                    self.helper_choices.cancel(member);
                    self.order_move(member, None);
                }
            }
        }
    }

    /// Begins to choose a helper for a member.
    fn choose_helper(&mut self, now: Instant, member: Member) {
        self.helper_choices.begin(now, member, &self.ports.helpers);
        self.take_answers(now);
    }

    fn take_answers(&mut self, now: Instant) {
        while let Some((member, answer)) = self.helper_choices.poll() {
            match answer {
                LoadQueryOutcome::Helper { helper, local_port, .. } => {
                    self.order_move(member, Some((helper, local_port)))
                }
                LoadQueryOutcome::NoHelper => self.give_up_move(now, member),
            }
        }
    }

    /// Ends a member's move, because no helper was chosen. A new member is opened at the server instead.
    fn give_up_move(&mut self, now: Instant, member: Member) {
        let time = self.time(now);
        self.activation.not_moved(time, member);
        let is_new = self.members.get(&member).is_some_and(|state| state.is_new);
        if is_new {
            self.order_move(member, None);
        }
    }

    /// Orders a member's move: to the server, or to this helper from this port number.
    fn order_move(&mut self, member: Member, helper: Option<(usize, u16)>) {
        let (helper, local_port) = helper.unzip();
        let routes = self.ports.routes(helper, || self.jitter.fraction());
        let Some(state) = self.members.get_mut(&member) else { return };
        state.is_new = false;
        state.destination = routes.first().map(|route| route.address);
        self.moves.push_back(Move { member, routes, local_port, settings: self.session });
    }

    fn time(&self, now: Instant) -> Time {
        Time::ZERO + now.saturating_duration_since(self.epoch)
    }
}

impl AsFd for Relief {
    /// Readable when [`handle_ready`](Relief::handle_ready) must be called.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.helper_choices.as_fd()
    }
}
