//! Sessions: connections that outlive the links that carry them.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::time::Instant;

use spillway_batch::{CloseReason, ConsumedTooMuch, Control, Info, Kind, RefuseReason, Role};
use spillway_session::{
    Expired, FirstWords, OnServerLink, Opened, SessionHandle, Sessions, StreamEvent, TableLimits,
};
use spillway_transport::Time;
use spillway_wire::session::{Opening, SessionId};

use super::Links;
use super::far::{Far, Reached};
use crate::event::{Client, Event, LinkId, Name};
use crate::threads::{CarrierName, What};

/// All sessions of a link port.
#[derive(Debug)]
pub(super) struct Carried {
    table: Sessions<CarrierName>,
    by_connection: HashMap<CarrierName, Reached>,
    records: HashMap<SessionHandle, Record>,
    /// Sessions that may have something to give to their carriers.
    dirty: Vec<SessionHandle>,
    /// When acknowledgements are due that nothing goes along with, in order. Stale ones are passed over.
    owed: VecDeque<(Time, SessionHandle)>,
    /// Sessions whose clients never returned, which the application has yet to be told.
    ended: VecDeque<SessionHandle>,
}

#[derive(Debug)]
struct Record {
    /// The client's address when it made the session.
    address: SocketAddr,
    role: Role,
    /// It was asked so many times to return to the server since it came by this carrier.
    asked_home: u32,
    is_dirty: bool,
    is_owing: bool,
}

impl Carried {
    /// `random`: fresh random bits.
    pub(super) fn new(limits: TableLimits, random: u64) -> Carried {
        Carried {
            table: Sessions::new(limits, random),
            by_connection: HashMap::new(),
            records: HashMap::new(),
            dirty: Vec::new(),
            owed: VecDeque::new(),
            ended: VecDeque::new(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.table.len()
    }

    /// Whether the session is here, or has ended not long ago.
    pub(super) fn knows(&self, session: SessionId) -> bool {
        self.table.knows(session)
    }

    /// The session that a connection carries.
    fn session_on(&self, carrier: CarrierName) -> Option<SessionHandle> {
        self.by_connection.get(&carrier).map(|reached| reached.session)
    }

    /// The sessions that have a carrier, by whom it comes, and the carrier.
    pub(super) fn carriers(&self) -> impl Iterator<Item = (SessionHandle, Role, CarrierName)> + '_ {
        let carried = |(session, record): (&SessionHandle, &Record)| {
            Some((*session, record.role, self.carrier(*session)?))
        };
        self.records.iter().filter_map(carried)
    }

    /// What carries so many helped sessions, which are to return: of those that were not asked yet, first.
    pub(super) fn next_to_return(&mut self, count: usize) -> Vec<CarrierName> {
        if count == 0 {
            return Vec::new();
        }
        let helped = self.carriers().filter(|(_, role, _)| *role == Role::Helper);
        let asked = |session| self.records.get(&session).map_or(0, |record| record.asked_home);
        let mut helped: Vec<_> =
            helped.map(|(session, _, carrier)| (asked(session), session, carrier)).collect();
        helped.sort_by_key(|(asked, ..)| *asked);
        helped.truncate(count);
        for (_, session, _) in &helped {
            if let Some(record) = self.records.get_mut(session) {
                record.asked_home += 1;
            }
        }
        helped.into_iter().map(|(.., carrier)| carrier).collect()
    }

    /// By whom a session comes now.
    fn role(&self, session: SessionHandle) -> Option<Role> {
        self.records.get(&session).map(|record| record.role)
    }

    /// What carries a session now.
    pub(super) fn carrier(&self, session: SessionHandle) -> Option<CarrierName> {
        self.table.info(session)?.carrier
    }

    pub(super) fn serial(&self, carrier: CarrierName) -> u64 {
        self.by_connection.get(&carrier).map_or(0, Reached::serial)
    }

    /// So many bytes that another thread has posted are dealt with.
    pub(super) fn note_handled(&self, carrier: CarrierName, bytes: u64) {
        if let Some(Reached { far: Some(far), .. }) = self.by_connection.get(&carrier) {
            far.ledger.handled.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    fn mark(&mut self, session: SessionHandle) {
        if let Some(record) = self.records.get_mut(&session)
            && !std::mem::replace(&mut record.is_dirty, true)
        {
            self.dirty.push(session);
        }
    }

    /// A connection has room for what it carries again. Whether it carries a session.
    pub(super) fn has_room(&mut self, carrier: CarrierName) -> bool {
        let session = self.session_on(carrier);
        if let Some(session) = session {
            self.mark(session);
        }
        session.is_some()
    }

    /// A connection is lost with its link. Whether it carried a session, which waits for another.
    pub(super) fn detach(&mut self, now: Time, carrier: CarrierName) -> bool {
        let session = self.by_connection.remove(&carrier).map(|reached| reached.session);
        if let Some(session) = session {
            self.table.detach(now, session, carrier);
        }
        session.is_some()
    }

    #[must_use]
    pub(super) fn poll_ended(&mut self) -> Option<Event<'static>> {
        let session = self.ended.pop_front()?;
        Some(Event::Closed { client: Client(Name::Session(session)), reason: CloseReason::Reset })
    }

    /// Whether something is to be done at once.
    pub(super) fn is_busy(&self) -> bool {
        !(self.dirty.is_empty() && self.ended.is_empty())
    }

    #[must_use]
    pub(super) fn poll_timeout(&self) -> Option<Time> {
        self.owed.front().map(|(at, _)| *at).into_iter().chain(self.table.poll_timeout()).min()
    }

    // The application's verbs.

    pub(super) fn compose(&mut self, session: SessionHandle, reply: &[u8]) -> usize {
        let taken = self.table.write(session, reply);
        if taken > 0 {
            self.mark(session);
        }
        taken
    }

    pub(super) fn consumed(&mut self, session: SessionHandle, bytes: usize) -> Result<(), ConsumedTooMuch> {
        self.table.consumed(session, bytes)?;
        self.mark(session);
        Ok(())
    }

    pub(super) fn finish(&mut self, session: SessionHandle) {
        self.table.finish(session);
        self.mark(session);
    }

    pub(super) fn close(&mut self, now: Time, session: SessionHandle, reason: CloseReason) {
        self.table.close(now, session, reason);
        self.mark(session);
    }

    pub(super) fn info(&self, session: SessionHandle) -> Option<Info> {
        let (info, record) = (self.table.info(session)?, self.records.get(&session)?);
        Some(Info {
            client: record.address,
            role: record.role,
            bytes_received: info.bytes_received,
            bytes_sent: info.bytes_sent,
        })
    }

    /// The link that carries a session now.
    pub(super) fn link(&self, session: SessionHandle) -> Option<LinkId> {
        self.carrier(session).map(|(link, _)| link)
    }
}

impl Links {
    /// A session's first words on a connection.
    pub(super) fn session_words(
        &mut self,
        now: Time,
        (link, id): CarrierName,
        (kind, client, opening): (Kind, SocketAddr, Opening),
    ) -> Option<Event<'static>> {
        let role = self.table.get(link)?.end.role()?;
        // Ports that share an address and do not know of each other get some links each: a session could not find its
        // way back.
        if self.shares_port {
            self.with(link, |entry| entry.end.refuse(id, RefuseReason::Unavailable));
            return None;
        }
        if self.post_words((link, id), kind, client, opening) {
            return None;
        }
        if !self.claims(kind, opening.session) {
            // Another thread was faster: the client comes again, and meets it there.
            self.with(link, |entry| entry.end.refuse(id, RefuseReason::Unavailable));
            return None;
        }
        let event = self.open_session(now, (link, id), role, (kind, client, opening), None);
        self.settle_claim(opening.session);
        event
    }

    /// A session's first words on a carrier, which `far` says is another thread's.
    pub(super) fn open_session(
        &mut self,
        now: Time,
        carrier: CarrierName,
        role: Role,
        (kind, client, opening): (Kind, SocketAddr, Opening),
        far: Option<Far>,
    ) -> Option<Event<'static>> {
        let serial = far.as_ref().map_or(0, |far| far.ledger.serial);
        let words = FirstWords { carrier, kind, client, opening };
        match self.carried.table.open(now, &self.config.ring, &words) {
            Opened::New { session, answer } => {
                let record =
                    Record { address: client, role, asked_home: 0, is_dirty: false, is_owing: false };
                self.carried.records.insert(session, record);
                self.carried.by_connection.insert(carrier, Reached { session, far });
                self.on_carrier(carrier, serial, What::Say(answer));
                Some(Event::Connected { client: Client(Name::Session(session)), address: client })
            }
            Opened::Resumed { session, answer, is_accepted, room, replaced } => {
                if let Some(old) = replaced {
                    self.close_carrier(old);
                }
                if let Some(record) = self.carried.records.get_mut(&session) {
                    (record.role, record.asked_home) = (role, 0);
                }
                self.carried.by_connection.insert(carrier, Reached { session, far });
                self.on_carrier(carrier, serial, What::Say(answer));
                if is_accepted {
                    self.on_carrier(carrier, serial, What::Say(Control::Accepted));
                    self.greet(session, role);
                }
                self.carried.mark(session);
                room.then_some(Event::Room { client: Client(Name::Session(session)) })
            }
            Opened::Over { answer, reason } => {
                self.on_carrier(carrier, serial, What::Say(answer));
                self.on_carrier(carrier, serial, What::Leave(reason));
                None
            }
            Opened::Refused(reason) => {
                self.on_carrier(carrier, serial, What::Refuse(reason));
                None
            }
        }
    }

    /// Bytes came on a connection that carries a session, or has carried one.
    pub(super) fn session_data<'a>(
        &mut self,
        now: Time,
        carrier: CarrierName,
        bytes: &'a [u8],
    ) -> Option<Event<'a>> {
        let Some(session) = self.carried.session_on(carrier) else {
            self.post_bytes(carrier, bytes);
            return None;
        };
        let client = Client(Name::Session(session));
        match self.carried.table.handle_data(now, session, carrier, bytes.len()) {
            Ok(true) => {
                self.owe(session);
                let role = self.carried.role(session);
                role.into_iter().for_each(|role| self.count_request(now, role));
                Some(Event::Data { client, bytes })
            }
            Ok(false) => None,
            Err(event) => Some(told(client, event)),
        }
    }

    pub(super) fn session_control(
        &mut self,
        now: Time,
        carrier: CarrierName,
        control: Control,
    ) -> Option<Event<'static>> {
        let Some(session) = self.carried.session_on(carrier) else {
            self.post_control(carrier, control);
            return None;
        };
        let event = self.carried.table.handle_control(now, session, carrier, &control);
        self.owe(session);
        self.carried.mark(session);
        let carries = self.carried.table.info(session).is_some_and(|info| info.carrier == Some(carrier));
        if matches!(control, Control::Close(_)) && !carries {
            self.close_carrier(carrier);
            self.forget_ended(session);
        }
        event.map(|event| told(Client(Name::Session(session)), event))
    }

    pub(super) fn accept_session(&mut self, session: SessionHandle) {
        if let Some(carrier) = self.carried.table.accept(session) {
            let serial = self.carried.serial(carrier);
            self.on_carrier(carrier, serial, What::Say(Control::Accepted));
            let role = self.carried.role(session);
            role.into_iter().for_each(|role| self.greet(session, role));
        }
    }

    pub(super) fn refuse_session(&mut self, session: SessionHandle, reason: RefuseReason) {
        let carrier = self.carried.table.refuse(session);
        self.carried.records.remove(&session);
        if let Some(carrier) = carrier {
            let serial = self.carried.serial(carrier);
            self.carried.by_connection.remove(&carrier);
            self.on_carrier(carrier, serial, What::Refuse(reason));
        }
    }

    /// Notes when the client is to be told what it is owed, if nothing goes along with it.
    fn owe(&mut self, session: SessionHandle) {
        let Some(at) = self.carried.table.poll_transmit_timeout(session) else { return };
        if let Some(record) = self.carried.records.get_mut(&session)
            && !std::mem::replace(&mut record.is_owing, true)
        {
            self.carried.owed.push_back((at, session));
        }
    }

    /// Gives carriers what sessions have for them.
    pub(super) fn transmit_sessions(&mut self, now: Time) {
        for session in std::mem::take(&mut self.carried.dirty) {
            let Some(record) = self.carried.records.get_mut(&session) else { continue };
            record.is_dirty = false;
            let carrier = self.carried.table.info(session).and_then(|info| info.carrier);
            let Carried { table, by_connection, .. } = &mut self.carried;
            if let Some(carrier) = carrier
                && let Some(Reached { far: Some(far), .. }) = by_connection.get_mut(&carrier)
                && let Some(member) = &mut self.member
            {
                table.transmit(now, session, &mut member.by_post(far, carrier));
            } else if let Some((link, id)) = carrier
                && let Some(entry) = self.table.get_mut(link).filter(|entry| entry.lost.is_none())
            {
                let mut on = OnServerLink { link: &mut entry.end, id };
                table.transmit(now, session, &mut on);
                // What it was given is sent with the rest of the turn.
                self.with(link, |_| ());
            }
            if self.forget_ended(session)
                && let Some(carrier) = carrier
            {
                self.carried.by_connection.remove(&carrier);
            }
        }
    }

    /// Whether the session is no more.
    fn forget_ended(&mut self, session: SessionHandle) -> bool {
        let is_over = self.carried.table.info(session).is_none();
        if is_over {
            self.carried.records.remove(&session);
        }
        is_over
    }

    /// A connection carries its session no more.
    fn close_carrier(&mut self, carrier: CarrierName) {
        let serial = self.carried.serial(carrier);
        self.carried.by_connection.remove(&carrier);
        self.on_carrier(carrier, serial, What::Leave(CloseReason::Moved));
    }

    pub(super) fn sessions_timeout(&mut self, now: Time) {
        while let Some(expired) = self.carried.table.poll_expired(now) {
            match expired {
                Expired::Abandoned(session) => {
                    self.carried.records.remove(&session);
                    self.carried.ended.push_back(session);
                }
                Expired::Overflowed(session, carrier) => {
                    self.carried.records.remove(&session);
                    self.carried.ended.push_back(session);
                    if let Some(carrier) = carrier {
                        self.close_carrier(carrier);
                    }
                }
                Expired::Lingered(session, carrier) => {
                    self.carried.records.remove(&session);
                    if let Some(carrier) = carrier {
                        self.close_carrier(carrier);
                    }
                }
            }
        }
        while self.carried.owed.front().is_some_and(|(at, _)| *at <= now) {
            let Some((_, session)) = self.carried.owed.pop_front() else { break };
            if let Some(record) = self.carried.records.get_mut(&session) {
                record.is_owing = false;
                self.carried.mark(session);
                // What came since is owed later.
                if self.carried.table.poll_transmit_timeout(session).is_some_and(|at| at > now) {
                    self.owe(session);
                }
            }
        }
    }

    /// The time of the application's clock.
    pub(super) fn instant(&self, time: Time) -> Instant {
        self.epoch + time.since(Time::ZERO)
    }
}

fn told(client: Client, event: StreamEvent) -> Event<'static> {
    match event {
        StreamEvent::Room => Event::Room { client },
        StreamEvent::Finished => Event::Finished { client },
        StreamEvent::Closed(reason) => Event::Closed { client, reason },
    }
}
