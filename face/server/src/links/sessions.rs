//! Sessions: connections that outlive the links that carry them.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::time::Instant;

use spillway_batch::{CloseReason, ConsumedTooMuch, Control, Info, Kind, RefuseReason, Role};
use spillway_session::{
    Expired, FirstWords, Heard, OnServerLink, Opened, Order, Placement, Port, SessionHandle, StreamEvent,
    TableLimits,
};
use spillway_transport::Time;
use spillway_wire::session::{Opening, SessionId};

use super::Links;
use super::carriers::Carriers;
use super::far::Far;
use crate::event::{Client, Event, LinkId, Name};
use crate::threads::{CarrierName, What};

/// All sessions of a link port.
#[derive(Debug)]
pub(super) struct Carried {
    port: Port<CarrierName>,
    carriers: Carriers,
    /// Sessions whose clients never returned, which the application has yet to be told.
    ended: VecDeque<SessionHandle>,
}

impl Carried {
    /// On the links of this thread, and perhaps of others. `random`: fresh random bits.
    pub(super) fn new(thread: u32, limits: TableLimits, random: u64) -> Carried {
        Carried { port: Port::new(limits, random), carriers: Carriers::new(thread), ended: VecDeque::new() }
    }

    pub(super) fn len(&self) -> usize {
        self.port.len()
    }

    /// Whether the session is here, or has ended not long ago.
    pub(super) fn knows(&self, session: SessionId) -> bool {
        self.port.knows(session)
    }

    /// How many sessions helpers carry now.
    pub(super) fn helped(&self) -> usize {
        self.port.carried_by(Role::Helper)
    }

    /// The carriers of sessions that are not where the operator wants them, and what to say there.
    pub(super) fn misplaced(&self, placement: Placement) -> Vec<(SessionHandle, CarrierName, Control)> {
        self.port.misplaced(placement)
    }

    /// The carriers of this number of helped sessions that are to return, and what to say there.
    pub(super) fn return_home(&mut self, count: usize) -> Vec<(SessionHandle, CarrierName, Control)> {
        self.port.return_home(count)
    }

    /// What carries a session now.
    pub(super) fn carrier(&self, session: SessionHandle) -> Option<CarrierName> {
        self.port.carrier(session)
    }

    /// Which of the uses of another thread's connection this is; 0 for our own.
    pub(super) fn serial(&mut self, carrier: CarrierName) -> u64 {
        self.carriers.far(carrier).map_or(0, |far| far.ledger.serial)
    }

    /// So many bytes that another thread has posted are dealt with.
    pub(super) fn note_handled(&mut self, carrier: CarrierName, bytes: u64) {
        if let Some(far) = self.carriers.far(carrier) {
            far.ledger.handled.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// A connection has room for what it carries again. Whether it carries a session.
    pub(super) fn has_room(&mut self, carrier: CarrierName) -> bool {
        let session = self.carriers.session(carrier);
        session.into_iter().for_each(|session| self.port.has_room(session));
        session.is_some()
    }

    /// A connection is lost with its link. Whether it carried a session, which waits for another.
    pub(super) fn detach(&mut self, now: Time, carrier: CarrierName) -> bool {
        let session = self.carriers.remove(carrier);
        if let Some(session) = session {
            self.port.detach(now, session, carrier);
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
        self.port.is_dirty() || !self.ended.is_empty()
    }

    #[must_use]
    pub(super) fn poll_timeout(&self) -> Option<Time> {
        self.port.poll_timeout()
    }

    // The application's verbs.

    pub(super) fn compose(&mut self, session: SessionHandle, reply: &[u8]) -> usize {
        self.port.write(session, reply)
    }

    pub(super) fn consumed(&mut self, session: SessionHandle, bytes: usize) -> Result<(), ConsumedTooMuch> {
        self.port.consumed(session, bytes)
    }

    pub(super) fn finish(&mut self, session: SessionHandle) {
        self.port.finish(session);
    }

    pub(super) fn close(&mut self, now: Time, session: SessionHandle, reason: CloseReason) {
        self.port.close(now, session, reason);
    }

    pub(super) fn info(&self, session: SessionHandle) -> Option<Info> {
        let info = self.port.info(session)?;
        Some(Info {
            client: self.port.client(session)?,
            role: self.port.role(session)?,
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
        let opened = self.carried.port.open(now, &self.config.ring, &words, role);
        let event = match &opened {
            Opened::New { session, .. } => {
                self.carried.carriers.insert(carrier, *session, far);
                Some(Event::Connected { client: Client(Name::Session(*session)), address: client })
            }
            Opened::Resumed { session, room, replaced, .. } => {
                replaced.iter().for_each(|old| self.close_carrier(*old));
                self.carried.carriers.insert(carrier, *session, far);
                room.then_some(Event::Room { client: Client(Name::Session(*session)) })
            }
            Opened::Over { .. } | Opened::Refused(_) => None,
        };
        for order in opened.orders() {
            match order {
                Order::Say(control) => self.on_carrier(carrier, serial, What::Say(control)),
                Order::Accept => {
                    self.on_carrier(carrier, serial, What::Say(Control::Accepted));
                    self.greet(role, carrier, serial);
                }
                Order::Close(reason) => self.on_carrier(carrier, serial, What::Leave(reason)),
                Order::Refuse(reason) => self.on_carrier(carrier, serial, What::Refuse(reason)),
            }
        }
        event
    }

    /// Bytes came on a connection that carries a session, or has carried one.
    pub(super) fn session_data<'a>(
        &mut self,
        now: Time,
        carrier: CarrierName,
        bytes: &'a [u8],
    ) -> Option<Event<'a>> {
        let Some(session) = self.carried.carriers.session(carrier) else {
            self.post_bytes(carrier, bytes);
            return None;
        };
        let client = Client(Name::Session(session));
        match self.carried.port.handle_data(now, session, carrier, bytes.len()) {
            Ok(true) => {
                let role = self.carried.port.role(session);
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
        let Some(session) = self.carried.carriers.session(carrier) else {
            self.post_control(carrier, control);
            return None;
        };
        let Heard { event, leaves, .. } = self.carried.port.handle_control(now, session, carrier, &control);
        if leaves {
            self.close_carrier(carrier);
        }
        event.map(|event| told(Client(Name::Session(session)), event))
    }

    pub(super) fn accept_session(&mut self, session: SessionHandle) {
        if let Some(carrier) = self.carried.port.accept(session) {
            let serial = self.carried.serial(carrier);
            self.on_carrier(carrier, serial, What::Say(Control::Accepted));
            if let Some(role) = self.carried.port.role(session) {
                self.greet(role, carrier, serial);
            }
        }
    }

    pub(super) fn refuse_session(&mut self, session: SessionHandle, reason: RefuseReason) {
        if let Some(carrier) = self.carried.port.refuse(session) {
            let serial = self.carried.serial(carrier);
            self.carried.carriers.remove(carrier);
            self.on_carrier(carrier, serial, What::Refuse(reason));
        }
    }

    /// Gives carriers what sessions have for them.
    pub(super) fn transmit_sessions(&mut self, now: Time) {
        while let Some((session, carrier)) = self.carried.port.poll_dirty() {
            let (link, id) = carrier;
            let Carried { port, carriers, .. } = &mut self.carried;
            let is_over = if let Some(far) = carriers.far(carrier)
                && let Some(member) = &mut self.member
            {
                port.transmit(now, session, &mut member.by_post(far, carrier))
            } else if let Some(entry) = self.table.get_mut(link).filter(|entry| entry.lost.is_none()) {
                let is_over = port.transmit(now, session, &mut OnServerLink { link: &mut entry.end, id });
                // What it was given is sent with the rest of the turn.
                self.with(link, |_| ());
                is_over
            } else {
                false
            };
            if is_over {
                self.carried.carriers.remove(carrier);
            }
        }
    }

    /// A connection carries its session no more.
    fn close_carrier(&mut self, carrier: CarrierName) {
        let serial = self.carried.serial(carrier);
        self.carried.carriers.remove(carrier);
        self.on_carrier(carrier, serial, What::Leave(CloseReason::Moved));
    }

    pub(super) fn sessions_timeout(&mut self, now: Time) {
        while let Some(expired) = self.carried.port.poll_expired(now) {
            let carrier = match expired {
                Expired::Abandoned(session) => {
                    self.carried.ended.push_back(session);
                    None
                }
                Expired::Overflowed(session, carrier) => {
                    self.carried.ended.push_back(session);
                    carrier
                }
                Expired::Lingered(_, carrier) => carrier,
            };
            carrier.into_iter().for_each(|carrier| self.close_carrier(carrier));
        }
        self.carried.port.handle_timeout(now);
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
