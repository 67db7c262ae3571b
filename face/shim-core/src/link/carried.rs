//! Sessions that a link carries.

use spillway_batch::{CloseReason, Control, Id};
use spillway_session::{CarrierAction, OpeningMessage, ServerLinkCarrier};
use spillway_transport::Time;

use super::{Inner, Referent};
use crate::carrier_name::{CarrierName, SessionName};
use crate::epoll_set;
use crate::sessions::{self, Next};
use crate::wakes::Wakes;
use crate::{prepared, release_timer, relief_override, status, sys};

impl Inner {
    /// Handles a session's first message on this link: the session begins or resumes.
    pub(super) fn handle_session_opening(&mut self, message: OpeningMessage<CarrierName>, wakes: &mut Wakes) {
        let (_, id) = message.carrier;
        let Some((config, limits)) = prepared::session_config() else { return };
        let Some(role) = self.endpoint.as_ref().and_then(|endpoint| endpoint.role()) else { return };
        let (outcome, opened) = sessions::open(&config.ring, limits, (&message, role), self.local, wakes);
        if outcome.is_new {
            release_timer::session_began();
        }
        if let Some(name) = outcome.name {
            self.set_referent(id, Referent::Session(name));
        }
        for action in opened.actions() {
            match action {
                CarrierAction::Send(control) => self.send_control(id, control),
                CarrierAction::Accept => {
                    self.accept(id);
                    self.send_override_drain(id);
                }
                CarrierAction::Close(reason) => self.send_control(id, Control::Close(reason)),
                CarrierAction::Refuse(reason) => {
                    status::connection_refused(reason);
                    self.refuse(id, reason);
                }
            }
        }
        if let Some(name) = outcome.name.filter(|_| !outcome.is_new) {
            self.carry(id, name);
        }
        self.raised.extend(outcome.raised);
        if let Some(set) =
            outcome.connection.and_then(|connection| epoll_set::get(connection.readiness.set()))
        {
            self.socket.adopt(set);
        }
    }

    pub(super) fn handle_session_data(&mut self, now: Time, id: Id, bytes: &[u8], wakes: &mut Wakes) {
        if let Referent::Session(name) = self.referent(id) {
            let (raised, next) = sessions::handle_data(now, name, (self.index, id), bytes, wakes);
            self.raised.extend(raised);
            self.apply_next(id, name, next);
        }
    }

    pub(super) fn handle_session_control(&mut self, now: Time, id: Id, control: &Control) {
        let Referent::Session(name) = self.referent(id) else { return };
        let (raised, next) = sessions::handle_control(now, name, (self.index, id), control);
        self.raised.extend(raised);
        self.apply_next(id, name, next);
    }

    fn apply_next(&mut self, id: Id, name: SessionName, next: Next) {
        match next {
            Next::Nothing => {}
            Next::Carry => self.carry(id, name),
            Next::Leave => self.leave(id),
        }
    }

    /// Sends the output of the session that `id` refers to.
    pub(crate) fn carry(&mut self, id: Id, name: SessionName) {
        let Some(link) = self.endpoint.as_deref_mut() else { return };
        if sessions::transmit(sys::now(), name, (self.index, id), &mut ServerLinkCarrier { link, id }) {
            self.set_referent(id, Referent::Nothing);
        }
    }

    /// The application has accepted the session that `id` refers to: informs its client.
    pub(crate) fn accept(&mut self, id: Id) {
        if let Some(endpoint) = &mut self.endpoint {
            endpoint.accept(id);
        }
    }

    /// Orders the client of an accepted session to move, if the operator's override requires it.
    pub(crate) fn send_override_drain(&mut self, id: Id) {
        let role = self.endpoint.as_ref().and_then(|endpoint| endpoint.role());
        let drain = role.and_then(|role| relief_override::placement().drain_for(role));
        drain.into_iter().for_each(|drain| self.send_control(id, drain));
    }

    /// Closes `id`, which no longer carries its session.
    pub(crate) fn leave(&mut self, id: Id) {
        self.set_referent(id, Referent::Nothing);
        if let Some(endpoint) = &mut self.endpoint {
            endpoint.close(id, CloseReason::Moved);
        }
    }

    /// Detaches the sessions of a lost link, which then wait for another carrier. Returns their number.
    pub(super) fn detach_sessions(&self) -> usize {
        let now = sys::now();
        let mut count = 0;
        for (id, referent) in self.referents.iter() {
            if let Referent::Session(name) = referent {
                sessions::detach(now, name, (self.index, id));
                count += 1;
            }
        }
        count
    }

    pub(crate) fn send_control(&mut self, id: Id, control: Control) {
        if let Some(endpoint) = &mut self.endpoint {
            endpoint.send_control(id, control);
        }
    }
}
