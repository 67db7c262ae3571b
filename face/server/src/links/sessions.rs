//! Sessions: connections that outlive the links that carry them.

use std::net::SocketAddr;
use std::time::Instant;

use spillway_batch::{CloseReason, Control, Kind, RefuseReason, Role};
use spillway_session::{
    CarrierAction, ControlEffects, Expired, Opened, OpeningMessage, ServerLinkCarrier, SessionHandle,
    StreamEvent,
};
use spillway_transport::Time;
use spillway_wire::session::Opening;

use super::Links;
use super::other_threads::RemoteCarrier;
use crate::event::{ClientId, Event, Name};
use crate::threads::{CarrierName, Message};

impl Links {
    /// Handles a session's opening message on a connection of this thread's links.
    pub(super) fn handle_session_opening(
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
        if self.post_opening((link, id), kind, client, opening) {
            return None;
        }
        if !self.claim_session(kind, opening.session) {
            // Another thread claimed the session first. The client tries again, and is then passed to that thread.
            self.with(link, |entry| entry.end.refuse(id, RefuseReason::Unavailable));
            return None;
        }
        let event = self.open_session(now, (link, id), role, (kind, client, opening), None);
        self.settle_claim(opening.session);
        event
    }

    /// Opens or resumes a session on a carrier. `remote` is set for a carrier on another thread's link.
    pub(super) fn open_session(
        &mut self,
        now: Time,
        carrier: CarrierName,
        role: Role,
        (kind, client, opening): (Kind, SocketAddr, Opening),
        remote: Option<RemoteCarrier>,
    ) -> Option<Event<'static>> {
        let serial = remote.as_ref().map_or(0, |remote| remote.ledger.serial);
        let message = OpeningMessage { carrier, kind, client, opening };
        let opened = self.sessions.open(now, &self.config.ring, &message, role);
        let event = match &opened {
            Opened::New { session, .. } => {
                self.carriers.insert(carrier, *session, remote);
                Some(Event::Connected { client: ClientId(Name::Session(*session)), address: client })
            }
            Opened::Resumed { session, room, replaced, .. } => {
                replaced.iter().for_each(|old| self.close_carrier(*old));
                self.carriers.insert(carrier, *session, remote);
                room.then_some(Event::CanCompose { client: ClientId(Name::Session(*session)) })
            }
            Opened::AlreadyClosed { .. } | Opened::Refused(_) => None,
        };
        for action in opened.actions() {
            match action {
                CarrierAction::Send(control) => {
                    self.deliver_to_carrier(carrier, serial, Message::SendControl(control))
                }
                CarrierAction::Accept => {
                    self.deliver_to_carrier(carrier, serial, Message::SendControl(Control::Accepted));
                    self.drain_if_misplaced(role, carrier, serial);
                }
                CarrierAction::Close(reason) => {
                    self.deliver_to_carrier(carrier, serial, Message::Close(reason))
                }
                CarrierAction::Refuse(reason) => {
                    self.deliver_to_carrier(carrier, serial, Message::Refuse(reason))
                }
            }
        }
        event
    }

    /// Handles data on a connection that carries a session, or has carried one.
    pub(super) fn handle_session_data<'a>(
        &mut self,
        now: Time,
        carrier: CarrierName,
        bytes: &'a [u8],
    ) -> Option<Event<'a>> {
        let Some(session) = self.carriers.session(carrier) else {
            self.post_bytes(carrier, bytes);
            return None;
        };
        let client = ClientId(Name::Session(session));
        match self.sessions.handle_data(now, session, carrier, bytes.len()) {
            Ok(true) => {
                if let Some(release) = &mut self.automatic_release
                    && let Some(role) = self.sessions.role(session)
                {
                    release.count_request(now, role);
                }
                Some(Event::Data { client, bytes })
            }
            Ok(false) => None,
            Err(event) => Some(stream_event(client, event)),
        }
    }

    pub(super) fn handle_session_control(
        &mut self,
        now: Time,
        carrier: CarrierName,
        control: Control,
    ) -> Option<Event<'static>> {
        let Some(session) = self.carriers.session(carrier) else {
            self.post_control(carrier, control);
            return None;
        };
        let ControlEffects { event, closes_carrier, .. } =
            self.sessions.handle_control(now, session, carrier, &control);
        if closes_carrier {
            self.close_carrier(carrier);
        }
        event.map(|event| stream_event(ClientId(Name::Session(session)), event))
    }

    pub(super) fn accept_session(&mut self, session: SessionHandle) {
        if let Some(carrier) = self.sessions.accept(session) {
            let serial = self.carriers.serial(carrier);
            self.deliver_to_carrier(carrier, serial, Message::SendControl(Control::Accepted));
            if let Some(role) = self.sessions.role(session) {
                self.drain_if_misplaced(role, carrier, serial);
            }
        }
    }

    pub(super) fn refuse_session(&mut self, session: SessionHandle, reason: RefuseReason) {
        if let Some(carrier) = self.sessions.refuse(session) {
            let serial = self.carriers.serial(carrier);
            self.carriers.remove(carrier);
            self.deliver_to_carrier(carrier, serial, Message::Refuse(reason));
        }
    }

    /// Transmits the due output of sessions on their carriers.
    pub(super) fn transmit_sessions(&mut self, now: Time) {
        while let Some((session, carrier)) = self.sessions.poll_dirty() {
            let (link, id) = carrier;
            let is_over = if let Some(remote) = self.carriers.remote(carrier)
                && let Some(member) = &mut self.member
            {
                self.sessions.transmit(now, session, &mut member.remote_output(remote, carrier))
            } else if let Some(entry) = self.table.get_mut(link).filter(|entry| entry.lost.is_none()) {
                let on_link = &mut ServerLinkCarrier { link: &mut entry.end, id };
                let is_over = self.sessions.transmit(now, session, on_link);
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

    /// Resumes the output of a session whose carrier has room again. Returns whether the connection carries a
    /// session.
    pub(super) fn handle_carrier_room(&mut self, carrier: CarrierName) -> bool {
        let session = self.carriers.session(carrier);
        session.into_iter().for_each(|session| self.sessions.carrier_has_room(session));
        session.is_some()
    }

    /// Detaches the session of a carrier whose link is lost: the session waits for another carrier. Returns
    /// whether there was a session.
    pub(super) fn handle_carrier_loss(&mut self, now: Time, carrier: CarrierName) -> bool {
        let session = self.carriers.remove(carrier);
        session.into_iter().for_each(|session| self.sessions.detach(now, session, carrier));
        session.is_some()
    }

    /// Closes a connection that does not carry its session any more.
    fn close_carrier(&mut self, carrier: CarrierName) {
        let serial = self.carriers.serial(carrier);
        self.carriers.remove(carrier);
        self.deliver_to_carrier(carrier, serial, Message::Close(CloseReason::Moved));
    }

    pub(super) fn handle_session_timeouts(&mut self, now: Time) {
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

fn stream_event(client: ClientId, event: StreamEvent) -> Event<'static> {
    match event {
        StreamEvent::Room => Event::CanCompose { client },
        StreamEvent::Finished => Event::Finished { client },
        StreamEvent::Closed(reason) => Event::Closed { client, reason },
    }
}
