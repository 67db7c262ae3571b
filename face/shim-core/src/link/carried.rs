//! Sessions that a link carries.

use spillway_batch::{CloseReason, Control, Id};
use spillway_session::{OnServerLink, OpeningMessage, Order};
use spillway_transport::Time;

use super::{Inner, Named};
use crate::carrier_name::{CarrierName, Name};
use crate::ready;
use crate::sessions::{self, Next};
use crate::wakes::Wakes;
use crate::{prepared, release_timer, relief_override, status, sys};

impl Inner {
    /// Handles a session's first message on this link: the session begins or resumes.
    pub(super) fn session_words(&mut self, words: OpeningMessage<CarrierName>, wakes: &mut Wakes) {
        let (_, id) = words.carrier;
        let Some((config, limits)) = prepared::session_config() else { return };
        let Some(role) = self.end.as_ref().and_then(|end| end.role()) else { return };
        let (words, opened) = sessions::open(&config.ring, limits, (&words, role), self.local, wakes);
        if words.is_new {
            release_timer::begin();
        }
        if let Some(name) = words.name {
            self.name(id, Named::Session(name));
        }
        for order in opened.orders() {
            match order {
                Order::Say(control) => self.say(id, control),
                Order::Accept => {
                    self.accept(id);
                    self.send_away(id);
                }
                Order::Close(reason) => self.say(id, Control::Close(reason)),
                Order::Refuse(reason) => {
                    status::connection_refused(reason);
                    self.refuse(id, reason);
                }
            }
        }
        if let Some(name) = words.name.filter(|_| !words.is_new) {
            self.carry(id, name);
        }
        self.raised.extend(words.raised);
        if let Some(set) = words.connection.and_then(|connection| ready::get(connection.source.set())) {
            self.adopt(set);
        }
    }

    pub(super) fn session_data(&mut self, now: Time, id: Id, bytes: &[u8], wakes: &mut Wakes) {
        if let Named::Session(name) = self.named(id) {
            let (raised, next) = sessions::data(now, name, (self.index, id), bytes, wakes);
            self.raised.extend(raised);
            self.go_on(id, name, next);
        }
    }

    pub(super) fn session_control(&mut self, now: Time, id: Id, control: &Control) {
        let Named::Session(name) = self.named(id) else { return };
        let (raised, next) = sessions::control(now, name, (self.index, id), control);
        self.raised.extend(raised);
        self.go_on(id, name, next);
    }

    fn go_on(&mut self, id: Id, name: Name, next: Next) {
        match next {
            Next::Nothing => {}
            Next::Carry => self.carry(id, name),
            Next::Leave => self.leave(id),
        }
    }

    /// Gives the link what the session that `id` refers to has to send.
    pub(crate) fn carry(&mut self, id: Id, name: Name) {
        let Some(link) = self.end.as_deref_mut() else { return };
        if sessions::transmit(sys::now(), name, (self.index, id), &mut OnServerLink { link, id }) {
            self.name(id, Named::Nobody);
        }
    }

    /// The application has accepted the session that `id` refers to: tells its client.
    pub(crate) fn accept(&mut self, id: Id) {
        if let Some(end) = &mut self.end {
            end.accept(id);
        }
    }

    /// Asks the client of an accepted session to move, if the operator's override requires that.
    pub(crate) fn send_away(&mut self, id: Id) {
        let role = self.end.as_ref().and_then(|end| end.role());
        let drain = role.and_then(|role| relief_override::placement().drains(role));
        drain.into_iter().for_each(|drain| self.say(id, drain));
    }

    /// Closes `id`, which no longer carries its session.
    pub(crate) fn leave(&mut self, id: Id) {
        self.name(id, Named::Nobody);
        if let Some(end) = &mut self.end {
            end.close(id, CloseReason::Moved);
        }
    }

    /// Detaches the sessions of a lost link, which then wait for another carrier. Returns their number.
    pub(super) fn detach_sessions(&self) -> usize {
        let now = sys::now();
        let mut count = 0;
        for (id, named) in self.named.iter() {
            if let Named::Session(name) = *named {
                sessions::detach(now, name, (self.index, id));
                count += 1;
            }
        }
        count
    }

    pub(crate) fn say(&mut self, id: Id, control: Control) {
        if let Some(end) = &mut self.end {
            end.say(id, control);
        }
    }
}
