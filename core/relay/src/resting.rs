//! Library clients that send hardly anything but control messages: they are not read for a time, and nobody else waits.

use core::time::Duration;

use spillway_transport::{Conn, Time, Transport};

use crate::relay::Relay;
use crate::slots::Holder;

/// How often a client that is not read is looked at.
pub(crate) const LOOK_AGAIN: Duration = Duration::from_millis(100);

impl Relay {
    /// After a library client has sent something: whether more of it is read.
    pub(crate) fn note_rest(&mut self, now: Time, conn: Conn) {
        let Some(Holder::Library(client)) = self.slots.get_mut(conn) else { return };
        if !client.rests && client.acceptor.rests_until(now).is_some() {
            client.rests = true;
            self.look_again(now, conn);
        }
    }

    pub(crate) fn resting_timeout<T: Transport>(&mut self, now: Time, conn: Conn, out: &mut T) {
        let Some(Holder::Library(client)) = self.slots.get_mut(conn) else { return };
        client.rests = client.acceptor.rests_until(now).is_some();
        if client.rests { self.look_again(now, conn) } else { self.grant_again(conn, out) }
    }

    fn look_again(&mut self, now: Time, conn: Conn) {
        let slots = &self.slots;
        self.resting.start(now, conn, |conn| is_resting(slots.get(conn)));
    }
}

fn is_resting(holder: Option<&Holder>) -> bool {
    matches!(holder, Some(Holder::Library(client)) if client.rests)
}
