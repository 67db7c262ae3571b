//! One local connection and its session: forwards bytes unchanged in both directions, with back-pressure.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::epoll::EventFlags;
use spillway_client::Session;
use spillway_client::session::{CarrierLoss, SessionEvent};
use spillway_policy::memory::Unread;
use spillway_requests::{Reply, Tracker};
use spillway_transport::Time;

use crate::carriers::CarrierHistory;
use crate::counters::{Counters, Ending, MoveReason};
use crate::latency::Latencies;
use crate::losses::Losses;
use crate::memory::{Holding, Supply};
use crate::relief::{Member, Relief};
use crate::send_buffer::SendBuffer;
use crate::socket;

/// A connection whose requests cannot be parsed counts as idle after this time without bytes in both directions.
const IDLE_AFTER: Duration = Duration::from_secs(1);

/// While memory is used up: bytes that one read takes from a client that holds no memory.
const USED_UP_REQUEST_BYTES: usize = 4 * 1024;

/// State of the network thread that its connections use during a turn.
pub(crate) struct TurnContext<'a> {
    pub now: Instant,
    /// The time from `epoch` to `now`.
    pub time: Time,
    pub scratch: &'a mut [u8],
    pub counters: &'a Counters,
    pub latencies: &'a Latencies,
    pub carrier_history: &'a CarrierHistory,
    pub losses: &'a mut Losses,
    pub relief: &'a mut Relief,
    pub epoch: Instant,
    pub server: SocketAddr,
    pub supply: Supply,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Carrier {
    None,
    Direct,
    Helped,
}

#[derive(Debug)]
pub(crate) struct Pair {
    pub socket: OwnedFd,
    pub session: Session,
    /// `None`: the relief policy's group is full, and the session stays at the server.
    pub member: Option<Member>,
    /// When the oldest outstanding request was received, as last reported to the relief policy.
    waits_since: Option<Time>,
    /// The client's address for logs: from the PROXY header, or the peer's.
    client: Option<SocketAddr>,
    tracker: Tracker,
    to_server: SendBuffer,
    to_client: SendBuffer,
    /// The client has finished sending.
    client_ended: bool,
    /// `session.finish` was called, because the client has finished sending and all its bytes were forwarded.
    is_finish_passed: bool,
    /// The server has finished sending.
    server_ended: bool,
    /// The server has closed both directions: further requests are dropped.
    is_server_closed: bool,
    /// When the session must have its first carrier; `None` once it has one.
    pub deadline: Option<Instant>,
    carrier: Carrier,
    /// Why the session left its previous carrier. Counted when the session gets the next carrier.
    move_reason: Option<MoveReason>,
    /// When bytes were last forwarded.
    quiet_since: Instant,
    /// Reply bytes received from the session since the start.
    reply_bytes: u64,
    unread: Unread,
    /// The client is paused: memory is scarce, and the client does not read its replies.
    is_paused: bool,
    /// The interest registered with the epoll set. `None`: the client has closed both directions, the socket is
    /// deregistered, and only its remaining requests are read.
    pub watched: Option<EventFlags>,
    /// This connection's share of the thread's buffered bytes.
    pub counted_bytes: usize,
}

impl Pair {
    /// `first`: bytes received after the PROXY header.
    pub fn new(
        (socket, client): (OwnedFd, Option<SocketAddr>),
        (session, member): (Session, Option<Member>),
        mut tracker: Tracker,
        (first, deadline): (&[u8], Instant),
        context: &TurnContext<'_>,
    ) -> Pair {
        tracker.requests(context.time, first);
        let mut to_server = SendBuffer::default();
        to_server.append(first);
        context.counters.connections.add(1);
        context.counters.waiting.add(1);
        Pair {
            socket,
            session,
            member,
            waits_since: None,
            client,
            tracker,
            to_server,
            to_client: SendBuffer::default(),
            client_ended: false,
            is_finish_passed: false,
            server_ended: false,
            is_server_closed: false,
            deadline: Some(deadline),
            carrier: Carrier::None,
            move_reason: None,
            quiet_since: context.now,
            reply_bytes: 0,
            unread: Unread::new(context.time),
            is_paused: false,
            watched: None,
            counted_bytes: 0,
        }
    }

    /// Forwards bytes in both directions, or returns how the connection ended. `is_readable`: read the local socket.
    pub fn forward(&mut self, is_readable: bool, context: &mut TurnContext<'_>) -> Result<(), Ending> {
        self.handle_session_events(context);
        self.forward_requests(is_readable, context)?;
        self.forward_replies(context)?;
        self.handle_session_events(context);
        self.note_reading(context);
        if let Some(why) = self.tracker.poll_stop_reason() {
            context.counters.measuring_given_up.add(why);
            tracing::debug!(client = %self.client_text(), %why, "latency is not measured any more on a connection");
        }
        self.report_waiting(context);
        // A server that has finished sending may still accept requests, unless the session is over.
        if self.server_ended && (self.is_finish_passed || self.session.is_over()) {
            return Err(Ending::InOrder);
        }
        Ok(())
    }

    /// Records whether the client reads its replies, and counts the client when it becomes paused.
    fn note_reading(&mut self, context: &TurnContext<'_>) {
        self.note_unread(context.time);
        let is_paused = context.supply != Supply::Enough && !self.to_client.is_empty();
        if is_paused && !self.is_paused {
            context.counters.paused.add(1);
        }
        self.is_paused = is_paused;
    }

    fn note_unread(&mut self, now: Time) {
        let arrived = self.session.arrived_bytes();
        let sent = self.reply_bytes + arrived as u64;
        self.unread.note(now, sent, self.to_client.unsent().len() + arrived);
    }

    fn report_waiting(&mut self, context: &mut TurnContext<'_>) {
        let since = self.tracker.pending_since();
        if let Some(member) = self.member
            && since != self.waits_since
        {
            self.waits_since = since;
            context
                .relief
                .set_oldest_request(member, since.map(|time| context.epoch + time.since(Time::ZERO)));
        }
    }

    fn forward_requests(&mut self, is_readable: bool, context: &mut TurnContext<'_>) -> Result<(), Ending> {
        if !self.to_server.is_empty() {
            let accepted = Self::send(
                &mut self.session,
                &mut self.is_server_closed,
                context.now,
                self.to_server.unsent(),
            )?;
            self.to_server.advance(accepted);
        }
        // A deregistered socket (see `watched`) gets no events, so a read is always tried.
        let is_readable = is_readable || self.watched.is_none();
        while is_readable && !self.client_ended {
            let wanted = self.request_bytes_max(context.supply).min(context.scratch.len());
            if wanted == 0 {
                break;
            }
            match socket::receive(&self.socket, &mut context.scratch[..wanted]) {
                Ok(0) => self.client_ended = true,
                Ok(count) => {
                    let bytes = &context.scratch[..count];
                    self.tracker.requests(context.time, bytes);
                    self.exclude_slow_reader();
                    context.counters.request_bytes.add(count as u64);
                    self.quiet_since = context.now;
                    let accepted =
                        Self::send(&mut self.session, &mut self.is_server_closed, context.now, bytes)?;
                    self.to_server.append(&bytes[accepted..]);
                    if count < wanted {
                        break;
                    }
                }
                Err(error) if socket::would_block(&error) => break,
                Err(_) => return Err(Ending::Client),
            }
        }
        if self.client_ended && self.to_server.is_empty() && !self.is_finish_passed {
            self.is_finish_passed = true;
            self.session.finish(context.now);
        }
        Ok(())
    }

    /// Maximum number of request bytes to read now. It is above 0 for a client that holds no memory.
    fn request_bytes_max(&self, supply: Supply) -> usize {
        if !self.to_server.is_empty() {
            return 0;
        }
        match supply {
            Supply::Enough => usize::MAX,
            Supply::Scarce if self.to_client.is_empty() => usize::MAX,
            Supply::UsedUp if self.to_client.is_empty() && self.session.buffered_bytes() == 0 => {
                USED_UP_REQUEST_BYTES
            }
            Supply::Scarce | Supply::UsedUp => 0,
        }
    }

    fn send(
        session: &mut Session,
        is_server_closed: &mut bool,
        now: Instant,
        bytes: &[u8],
    ) -> Result<usize, Ending> {
        if *is_server_closed {
            return Ok(bytes.len());
        }
        match session.send(now, bytes) {
            Ok(accepted) => Ok(accepted),
            Err(error) if socket::would_block(&error) => Ok(0),
            // The server has closed in order: further requests are dropped, and the last replies are still delivered.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                *is_server_closed = true;
                Ok(bytes.len())
            }
            Err(error) => Err(ending_for(&error)),
        }
    }

    fn forward_replies(&mut self, context: &mut TurnContext<'_>) -> Result<(), Ending> {
        loop {
            if !self.to_client.is_empty() {
                let accepted = send_to_client(&self.socket, self.to_client.unsent())?;
                self.to_client.advance(accepted);
                self.exclude_slow_reader();
            }
            if !self.to_client.is_empty() || self.server_ended || !self.session.has_arrived() {
                return Ok(());
            }
            match self.session.receive(context.now, context.scratch) {
                Ok(0) => {
                    self.server_ended = true;
                    socket::finish(&self.socket);
                }
                Ok(count) => {
                    self.measure(count, context);
                    self.quiet_since = context.now;
                    let bytes = &context.scratch[..count];
                    let accepted = send_to_client(&self.socket, bytes)?;
                    self.to_client.append(&bytes[accepted..]);
                    self.exclude_slow_reader();
                }
                Err(error) if socket::would_block(&error) => return Ok(()),
                Err(error) => return Err(ending_for(&error)),
            }
        }
    }

    fn measure(&mut self, count: usize, context: &mut TurnContext<'_>) {
        let (counters, latencies, relief) = (context.counters, context.latencies, &mut *context.relief);
        let (now, member, is_helped) = (context.now, self.member, self.carrier == Carrier::Helped);
        let (mut replies, mut unmeasured) = (0, 0);
        self.tracker.replies(context.time, &context.scratch[..count], |Reply { latency }| {
            replies += 1;
            match latency {
                Some(latency) => {
                    latencies.record(now, latency, is_helped);
                    if let Some(member) = member {
                        relief.record_latency(now, member, latency);
                    }
                }
                None => unmeasured += 1,
            }
        });
        counters.replies.add(replies);
        counters.unmeasured.add(unmeasured);
        counters.reply_bytes.add(count as u64);
        self.reply_bytes += count as u64;
    }

    /// Excludes the outstanding replies from the measurement while the client, not the server, delays them.
    fn exclude_slow_reader(&mut self) {
        if !self.to_client.is_empty() {
            self.tracker.exclude_outstanding();
        }
    }

    fn handle_session_events(&mut self, context: &mut TurnContext<'_>) {
        while let Some(event) = self.session.poll_event() {
            if let Some(member) = self.member {
                context.relief.handle_event(context.now, member, &event);
            }
            match event {
                SessionEvent::Moved(address) => {
                    let is_direct = address == context.server;
                    self.set_carrier(
                        if is_direct { Carrier::Direct } else { Carrier::Helped },
                        context.counters,
                    );
                    let is_first = self.deadline.take().is_some();
                    context.carrier_history.note_carried(context.now, is_first);
                    if let Some(why) = self.move_reason.take() {
                        context.counters.moves.add(why);
                    }
                }
                SessionEvent::CarrierLost { address, why } => {
                    context.counters.losses.add(&why);
                    if self.carrier != Carrier::None {
                        self.move_reason = Some(MoveReason::of(&why));
                    }
                    self.set_carrier(Carrier::None, context.counters);
                    if !matches!(why, CarrierLoss::LeftOnRequest) {
                        context.losses.note(address, &why);
                    }
                    // A session that is asked to move leaves a carrier that has not failed.
                    if !matches!(
                        why,
                        CarrierLoss::LeftOnRequest | CarrierLoss::Drain | CarrierLoss::AskedToMove
                    ) {
                        context.carrier_history.note_failed(context.now, address, &why);
                    }
                }
                SessionEvent::Accepted | SessionEvent::Room => {}
            }
        }
    }

    fn set_carrier(&mut self, carrier: Carrier, counters: &Counters) {
        let gauge = |carrier| match carrier {
            Carrier::None => Some(&counters.waiting),
            Carrier::Direct => None,
            Carrier::Helped => Some(&counters.helped),
        };
        gauge(self.carrier).into_iter().for_each(|gauge| gauge.subtract(1));
        gauge(carrier).into_iter().for_each(|gauge| gauge.add(1));
        self.carrier = carrier;
    }

    /// The events that the epoll set has to report for the local socket.
    pub fn interest(&self, supply: Supply) -> EventFlags {
        let mut flags = EventFlags::empty();
        flags.set(EventFlags::IN, !self.client_ended && self.request_bytes_max(supply) > 0);
        flags.set(EventFlags::OUT, !self.to_client.is_empty());
        flags
    }

    /// The earlier of the session's timeout and the deadline.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        [self.session.poll_timeout(), self.deadline].into_iter().flatten().min()
    }

    /// Whether the connection can be closed without losing a request or a reply.
    pub fn is_idle(&self, now: Instant) -> bool {
        let is_quiet = || now.saturating_duration_since(self.quiet_since) >= IDLE_AFTER;
        let is_empty = self.to_server.is_empty() && self.to_client.is_empty() && !self.session.has_arrived();
        is_empty && self.tracker.is_idle().unwrap_or_else(is_quiet)
    }

    /// Allocated bytes for data that waits, in both directions.
    pub fn memory(&self) -> usize {
        self.to_server.memory() + self.to_client.memory() + self.session.held_bytes()
    }

    /// The memory that the connection holds because its client does not read; `None` if the client reads.
    pub fn holding(&mut self, now: Time) -> Option<Holding> {
        if self.to_client.is_empty() {
            return None;
        }
        self.note_unread(now);
        Some(Holding { bytes: self.memory(), age: self.unread.age(now) })
    }

    pub fn client_text(&self) -> String {
        self.client.map_or_else(|| "a local client".into(), |client| client.to_string())
    }

    /// Closes the local connection. Returns the session while it still has to send its end to the server.
    pub fn close(
        mut self,
        ending: Ending,
        is_orderly: bool,
        context: &mut TurnContext<'_>,
    ) -> Option<Session> {
        self.set_carrier(Carrier::Direct, context.counters); // subtracts from the waiting or helped gauge
        context.counters.connections.subtract(1);
        context.counters.ended.add(ending);
        if let Some(member) = self.member {
            context.relief.leave(context.now, member);
        }
        if !is_orderly {
            socket::reset_on_close(&self.socket);
        }
        if ending == Ending::Memory {
            self.session.reset(context.now);
        } else if !self.session.is_over() {
            self.session.close(context.now);
        }
        (!self.session.is_over()).then_some(self.session)
    }
}

/// Sends to the client. Returns the number of bytes that its socket has accepted.
fn send_to_client(socket: &OwnedFd, bytes: &[u8]) -> Result<usize, Ending> {
    match socket::send(socket, bytes) {
        Ok(accepted) => Ok(accepted),
        Err(error) if socket::would_block(&error) => Ok(0),
        Err(_) => Err(Ending::Client),
    }
}

/// Maps a session's error to the reason that is counted.
fn ending_for(error: &io::Error) -> Ending {
    match error.kind() {
        io::ErrorKind::ConnectionReset => Ending::Server,
        io::ErrorKind::ConnectionRefused => Ending::Refused,
        io::ErrorKind::ConnectionAborted => Ending::Gone,
        _ => Ending::NoCarrier,
    }
}
