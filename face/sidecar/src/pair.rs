//! One local connection and its session: bytes go both ways unchanged, each side at the other's pace.

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

use crate::carriers::Seen;
use crate::counters::{Counters, Ending, Move};
use crate::latency::Latencies;
use crate::losses::Losses;
use crate::memory::{Holding, Supply};
use crate::relief::{Member, Relief};
use crate::socket;
use crate::waiting::Waiting;

/// A connection whose requests cannot be followed is idle when nothing has gone either way for so long.
const QUIET: Duration = Duration::from_secs(1);

/// Read at a time of a client that holds nothing while memory is used up.
const USED_UP_REQUEST_BYTES: usize = 4 * 1024;

/// What a connection needs of the thread that serves it.
pub(crate) struct Around<'a> {
    pub now: Instant,
    /// The same, for what measures.
    pub time: Time,
    pub scratch: &'a mut [u8],
    pub counters: &'a Counters,
    pub latencies: &'a Latencies,
    pub seen: &'a Seen,
    pub losses: &'a mut Losses,
    pub relief: &'a mut Relief,
    pub epoch: Instant,
    /// The server's own link port.
    pub server: SocketAddr,
    pub supply: Supply,
}

/// What carries a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Carried {
    Nowhere,
    Direct,
    Helped,
}

/// One local connection that is taken.
#[derive(Debug)]
pub(crate) struct Pair {
    pub socket: OwnedFd,
    pub session: Session,
    /// None: the policy leads no more of them.
    pub member: Option<Member>,
    /// As the policy was told.
    waits_since: Option<Time>,
    /// Whom the connection is from, for logs: as a load balancer announced it, or the peer.
    client: Option<SocketAddr>,
    tracker: Tracker,
    to_server: Waiting,
    to_client: Waiting,
    /// The client sends no more.
    client_ended: bool,
    is_finish_passed: bool,
    /// The server sends no more.
    server_ended: bool,
    /// The server has closed both directions: further requests reach nobody.
    is_server_gone: bool,
    /// Until when a server has to answer; none once one has.
    pub deadline: Option<Instant>,
    carried: Carried,
    /// Why the carrier before was left.
    left: Option<Move>,
    quiet_since: Instant,
    /// Replies that have come for the client, in bytes.
    reply_bytes: u64,
    unread: Unread,
    /// Its requests are not read while memory is scarce, because it does not read its replies.
    is_paused: bool,
    /// What the epoll set was told; nothing once the other end is gone, and only its requests are still read.
    pub watched: Option<EventFlags>,
    /// Counted for it in the thread's buffered bytes.
    pub counted_bytes: usize,
}

impl Pair {
    /// `first`: what came behind a PROXY header.
    pub fn new(
        (socket, client): (OwnedFd, Option<SocketAddr>),
        (session, member): (Session, Option<Member>),
        mut tracker: Tracker,
        (first, deadline): (&[u8], Instant),
        around: &Around<'_>,
    ) -> Pair {
        tracker.requests(around.time, first);
        let mut to_server = Waiting::default();
        to_server.put(first);
        around.counters.connections.add(1);
        around.counters.waiting.add(1);
        Pair {
            socket,
            session,
            member,
            waits_since: None,
            client,
            tracker,
            to_server,
            to_client: Waiting::default(),
            client_ended: false,
            is_finish_passed: false,
            server_ended: false,
            is_server_gone: false,
            deadline: Some(deadline),
            carried: Carried::Nowhere,
            left: None,
            quiet_since: around.now,
            reply_bytes: 0,
            unread: Unread::new(around.time),
            is_paused: false,
            watched: None,
            counted_bytes: 0,
        }
    }

    /// Moves what can be moved. `is_readable`: the local socket has something. An error is the connection's end.
    pub fn pump(&mut self, is_readable: bool, around: &mut Around<'_>) -> Result<(), Ending> {
        self.hear(around);
        self.up(is_readable, around)?;
        self.down(around)?;
        self.hear(around);
        self.note_reading(around);
        if let Some(why) = self.tracker.poll_gave_up() {
            around.counters.gave_up.add(why);
            tracing::debug!(client = %self.client_text(), %why, "latency is not measured any more on a connection");
        }
        self.tell_waiting(around);
        // A server that closed has closed for good; one that only finished still takes requests.
        if self.server_ended && (self.is_finish_passed || self.session.is_over()) {
            return Err(Ending::InOrder);
        }
        Ok(())
    }

    /// Notes whether the client reads, and counts it when it is paused because it does not.
    fn note_reading(&mut self, around: &Around<'_>) {
        self.note_unread(around.time);
        let is_paused = around.supply != Supply::Enough && !self.to_client.is_empty();
        if is_paused && !self.is_paused {
            around.counters.paused.add(1);
        }
        self.is_paused = is_paused;
    }

    fn note_unread(&mut self, now: Time) {
        let arrived = self.session.arrived_bytes();
        let sent = self.reply_bytes + arrived as u64;
        self.unread.note(now, sent, self.to_client.rest().len() + arrived);
    }

    fn tell_waiting(&mut self, around: &mut Around<'_>) {
        let since = self.tracker.pending_since();
        if let Some(member) = self.member
            && since != self.waits_since
        {
            self.waits_since = since;
            around.relief.waits_since(member, since.map(|time| around.epoch + time.since(Time::ZERO)));
        }
    }

    /// Requests: from the client to the session.
    fn up(&mut self, is_readable: bool, around: &mut Around<'_>) -> Result<(), Ending> {
        if !self.to_server.is_empty() {
            let taken =
                Self::send(&mut self.session, &mut self.is_server_gone, around.now, self.to_server.rest())?;
            self.to_server.advance(taken);
        }
        // Without the epoll set's word, which such a socket would have said without end.
        let is_readable = is_readable || self.watched.is_none();
        while is_readable && !self.client_ended {
            let wanted = self.request_bytes_max(around.supply).min(around.scratch.len());
            if wanted == 0 {
                break;
            }
            match socket::receive(&self.socket, &mut around.scratch[..wanted]) {
                Ok(0) => self.client_ended = true,
                Ok(count) => {
                    let bytes = &around.scratch[..count];
                    self.tracker.requests(around.time, bytes);
                    self.excuse();
                    around.counters.request_bytes.add(count as u64);
                    self.quiet_since = around.now;
                    let taken = Self::send(&mut self.session, &mut self.is_server_gone, around.now, bytes)?;
                    self.to_server.put(&bytes[taken..]);
                    if count < wanted {
                        break;
                    }
                }
                Err(error) if socket::is_later(&error) => break,
                Err(_) => return Err(Ending::Client),
            }
        }
        if self.client_ended && self.to_server.is_empty() && !self.is_finish_passed {
            self.is_finish_passed = true;
            self.session.finish(around.now);
        }
        Ok(())
    }

    /// Bytes of requests that may be read now. A client that holds nothing is never kept from asking.
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
        is_server_gone: &mut bool,
        now: Instant,
        bytes: &[u8],
    ) -> Result<usize, Ending> {
        if *is_server_gone {
            return Ok(bytes.len());
        }
        match session.send(now, bytes) {
            Ok(taken) => Ok(taken),
            Err(error) if socket::is_later(&error) => Ok(0),
            // It has closed in order: its last replies are still to be delivered.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                *is_server_gone = true;
                Ok(bytes.len())
            }
            Err(error) => Err(ending_of(&error)),
        }
    }

    /// Replies: from the session to the client.
    fn down(&mut self, around: &mut Around<'_>) -> Result<(), Ending> {
        loop {
            if !self.to_client.is_empty() {
                let taken = give(&self.socket, self.to_client.rest())?;
                self.to_client.advance(taken);
                self.excuse();
            }
            if !self.to_client.is_empty() || self.server_ended || !self.session.has_arrived() {
                return Ok(());
            }
            match self.session.receive(around.now, around.scratch) {
                Ok(0) => {
                    self.server_ended = true;
                    socket::finish(&self.socket);
                }
                Ok(count) => {
                    self.measure(count, around);
                    self.quiet_since = around.now;
                    let bytes = &around.scratch[..count];
                    let taken = give(&self.socket, bytes)?;
                    self.to_client.put(&bytes[taken..]);
                    self.excuse();
                }
                Err(error) if socket::is_later(&error) => return Ok(()),
                Err(error) => return Err(ending_of(&error)),
            }
        }
    }

    fn measure(&mut self, count: usize, around: &mut Around<'_>) {
        let (counters, latencies, relief) = (around.counters, around.latencies, &mut *around.relief);
        let (now, member, is_helped) = (around.now, self.member, self.carried == Carried::Helped);
        let (mut replies, mut unmeasured) = (0, 0);
        self.tracker.replies(around.time, &around.scratch[..count], |Reply { latency }| {
            replies += 1;
            match latency {
                Some(latency) => {
                    latencies.record(now, latency, is_helped);
                    if let Some(member) = member {
                        relief.measured(now, member, latency);
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

    /// A client that does not read is no slow server.
    fn excuse(&mut self) {
        if !self.to_client.is_empty() {
            self.tracker.excuse();
        }
    }

    fn hear(&mut self, around: &mut Around<'_>) {
        while let Some(event) = self.session.poll_event() {
            if let Some(member) = self.member {
                around.relief.note(around.now, member, &event);
            }
            match event {
                SessionEvent::Moved(address) => {
                    let is_own = address == around.server;
                    self.carry(if is_own { Carried::Direct } else { Carried::Helped }, around.counters);
                    let is_first = self.deadline.take().is_some();
                    around.seen.note_carried(around.now, is_first);
                    if let Some(why) = self.left.take() {
                        around.counters.moves.add(why);
                    }
                }
                SessionEvent::CarrierLost { address, why } => {
                    around.counters.losses.add(&why);
                    if self.carried != Carried::Nowhere {
                        self.left = Some(Move::of(&why));
                    }
                    self.carry(Carried::Nowhere, around.counters);
                    if !matches!(why, CarrierLoss::Asked) {
                        around.losses.note(address, &why);
                    }
                    // One that is left for another has not failed.
                    if !matches!(why, CarrierLoss::Asked | CarrierLoss::Drain | CarrierLoss::SentAway) {
                        around.seen.note_failed(around.now, address, &why);
                    }
                }
                SessionEvent::Accepted | SessionEvent::Room => {}
            }
        }
    }

    fn carry(&mut self, carried: Carried, counters: &Counters) {
        let gauge = |carried| match carried {
            Carried::Nowhere => Some(&counters.waiting),
            Carried::Direct => None,
            Carried::Helped => Some(&counters.helped),
        };
        gauge(self.carried).into_iter().for_each(|gauge| gauge.subtract(1));
        gauge(carried).into_iter().for_each(|gauge| gauge.add(1));
        self.carried = carried;
    }

    /// What the local socket is to be watched for.
    pub fn interest(&self, supply: Supply) -> EventFlags {
        let mut flags = EventFlags::empty();
        flags.set(EventFlags::IN, !self.client_ended && self.request_bytes_max(supply) > 0);
        flags.set(EventFlags::OUT, !self.to_client.is_empty());
        flags
    }

    /// When something is due.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        [self.session.poll_timeout(), self.deadline].into_iter().flatten().min()
    }

    /// Whether it can be ended without anybody missing anything.
    pub fn is_idle(&self, now: Instant) -> bool {
        let is_quiet = || now.saturating_duration_since(self.quiet_since) >= QUIET;
        let is_empty = self.to_server.is_empty() && self.to_client.is_empty() && !self.session.has_arrived();
        is_empty && self.tracker.is_idle().unwrap_or_else(is_quiet)
    }

    /// Bytes of memory that are allocated for what waits, in either direction.
    pub fn memory(&self) -> usize {
        self.to_server.memory() + self.to_client.memory() + self.session.held_bytes()
    }

    /// What it holds, if that is because its client does not read.
    pub fn holding(&mut self, now: Time) -> Option<Holding> {
        if self.to_client.is_empty() {
            return None;
        }
        self.note_unread(now);
        Some(Holding { bytes: self.memory(), age: self.unread.age(now) })
    }

    /// Whose connection it is, for people.
    pub fn client_text(&self) -> String {
        self.client.map_or_else(|| "a local client".into(), |client| client.to_string())
    }

    /// Ends it. Returns its session while that still has something to say to the server.
    pub fn end(mut self, ending: Ending, is_orderly: bool, around: &mut Around<'_>) -> Option<Session> {
        self.carry(Carried::Direct, around.counters); // none of the others
        around.counters.connections.subtract(1);
        around.counters.ended.add(ending);
        if let Some(member) = self.member {
            around.relief.leave(around.now, member);
        }
        if !is_orderly {
            socket::reset_on_close(&self.socket);
        }
        if ending == Ending::Memory {
            self.session.reset(around.now);
        } else if !self.session.is_over() {
            self.session.close(around.now);
        }
        (!self.session.is_over()).then_some(self.session)
    }
}

/// Gives the client what its socket takes.
fn give(socket: &OwnedFd, bytes: &[u8]) -> Result<usize, Ending> {
    match socket::send(socket, bytes) {
        Ok(taken) => Ok(taken),
        Err(error) if socket::is_later(&error) => Ok(0),
        Err(_) => Err(Ending::Client),
    }
}

/// What a session's last error says.
fn ending_of(error: &io::Error) -> Ending {
    match error.kind() {
        io::ErrorKind::ConnectionReset => Ending::Server,
        io::ErrorKind::ConnectionRefused => Ending::Refused,
        io::ErrorKind::ConnectionAborted => Ending::Gone,
        _ => Ending::NoCarrier,
    }
}
