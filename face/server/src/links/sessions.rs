//! Sessions: connections that outlive the links that carry them.

use std::net::SocketAddr;
use std::time::Instant;

use spillway_batch::{CloseReason, Control, Kind, RefuseReason, Role};
use spillway_session::{
    Expired, Heard, OnServerLink, Opened, OpeningMessage, Order, SessionHandle, StreamEvent,
};
use spillway_transport::Time;
use spillway_wire::session::Opening;

use super::Links;
use super::other_threads::Far;
use crate::event::{Client, Event, Name};
use crate::threads::{CarrierName, What};

impl Links {
    /// Handles a session's opening message on a connection of this thread's links.
    pub(super) fn session_words(
        &mut self,
        now: Time,
        (link, id): CarrierName,
        (kind, client, opening): (Kind, SocketAddr, Opening),
    ) -> Option<Event<'static>> {
        let role = self.table.get(link)?.end.role()?;
        // Another port with this address, which does not share a directory, could get the session's next carrier.
        if self.shares_port {
            self.with(link, |entry| entry.end.refuse(id, RefuseReason::Unavailable));
            return None;
        }
        if self.post_words((link, id), kind, client, opening) {
            return None;
        }
        if !self.claims(kind, opening.session) {
            // Another thread claimed the session first. The client tries again, and is then passed to that thread.
            self.with(link, |entry| entry.end.refuse(id, RefuseReason::Unavailable));
            return None;
        }
        let event = self.open_session(now, (link, id), role, (kind, client, opening), None);
        self.settle_claim(opening.session);
        event
    }

    /// Opens or resumes a session on a carrier. `far` is set for a carrier on another thread's link.
    pub(super) fn open_session(
        &mut self,
        now: Time,
        carrier: CarrierName,
        role: Role,
        (kind, client, opening): (Kind, SocketAddr, Opening),
        far: Option<Far>,
    ) -> Option<Event<'static>> {
        let serial = far.as_ref().map_or(0, |far| far.ledger.serial);
        let words = OpeningMessage { carrier, kind, client, opening };
        let opened = self.sessions.open(now, &self.config.ring, &words, role);
        let event = match &opened {
            Opened::New { session, .. } => {
                self.carriers.insert(carrier, *session, far);
                Some(Event::Connected { client: Client(Name::Session(*session)), address: client })
            }
            Opened::Resumed { session, room, replaced, .. } => {
                replaced.iter().for_each(|old| self.close_carrier(*old));
                self.carriers.insert(carrier, *session, far);
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

    /// Handles data on a connection that carries a session, or has carried one.
    pub(super) fn session_data<'a>(
        &mut self,
        now: Time,
        carrier: CarrierName,
        bytes: &'a [u8],
    ) -> Option<Event<'a>> {
        let Some(session) = self.carriers.session(carrier) else {
            self.post_bytes(carrier, bytes);
            return None;
        };
        let client = Client(Name::Session(session));
        match self.sessions.handle_data(now, session, carrier, bytes.len()) {
            Ok(true) => {
                if let Some(releasing) = &mut self.releasing
                    && let Some(role) = self.sessions.role(session)
                {
                    releasing.count_request(now, role);
                }
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
        let Some(session) = self.carriers.session(carrier) else {
            self.post_control(carrier, control);
            return None;
        };
        let Heard { event, leaves, .. } = self.sessions.handle_control(now, session, carrier, &control);
        if leaves {
            self.close_carrier(carrier);
        }
        event.map(|event| told(Client(Name::Session(session)), event))
    }

    pub(super) fn accept_session(&mut self, session: SessionHandle) {
        if let Some(carrier) = self.sessions.accept(session) {
            let serial = self.carriers.serial(carrier);
            self.on_carrier(carrier, serial, What::Say(Control::Accepted));
            if let Some(role) = self.sessions.role(session) {
                self.greet(role, carrier, serial);
            }
        }
    }

    pub(super) fn refuse_session(&mut self, session: SessionHandle, reason: RefuseReason) {
        if let Some(carrier) = self.sessions.refuse(session) {
            let serial = self.carriers.serial(carrier);
            self.carriers.remove(carrier);
            self.on_carrier(carrier, serial, What::Refuse(reason));
        }
    }

    /// Transmits the due output of sessions on their carriers.
    pub(super) fn transmit_sessions(&mut self, now: Time) {
        while let Some((session, carrier)) = self.sessions.poll_dirty() {
            let (link, id) = carrier;
            let is_over = if let Some(far) = self.carriers.far(carrier)
                && let Some(member) = &mut self.member
            {
                self.sessions.transmit(now, session, &mut member.by_post(far, carrier))
            } else if let Some(entry) = self.table.get_mut(link).filter(|entry| entry.lost.is_none()) {
                let on = &mut OnServerLink { link: &mut entry.end, id };
                let is_over = self.sessions.transmit(now, session, on);
                // Marks the link, so that this turn's flush sends its output.
                self.with(link, |_| ());
                is_over
            } else {
                false
            };
            if is_over {
                self.carriers.remove(carrier);
            }
        }
    }

    /// A connection has room again. Returns whether it carries a session.
    pub(super) fn carrier_has_room(&mut self, carrier: CarrierName) -> bool {
        let session = self.carriers.session(carrier);
        session.into_iter().for_each(|session| self.sessions.has_room(session));
        session.is_some()
    }

    /// A carrier is lost with its link, and its session waits for another one. Returns whether there was a session.
    pub(super) fn carrier_lost(&mut self, now: Time, carrier: CarrierName) -> bool {
        let session = self.carriers.remove(carrier);
        session.into_iter().for_each(|session| self.sessions.detach(now, session, carrier));
        session.is_some()
    }

    /// Closes a connection that does not carry its session any more.
    fn close_carrier(&mut self, carrier: CarrierName) {
        let serial = self.carriers.serial(carrier);
        self.carriers.remove(carrier);
        self.on_carrier(carrier, serial, What::Leave(CloseReason::Moved));
    }

    pub(super) fn sessions_timeout(&mut self, now: Time) {
        while let Some(expired) = self.sessions.poll_expired(now) {
            let carrier = match expired {
                Expired::Abandoned(session) => {
                    self.ended.push_back(session);
                    None
                }
                Expired::Overflowed(session, carrier) => {
                    self.ended.push_back(session);
                    carrier
                }
                Expired::Lingered(_, carrier) => carrier,
            };
            carrier.into_iter().for_each(|carrier| self.close_carrier(carrier));
        }
        self.sessions.handle_timeout(now);
    }

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
