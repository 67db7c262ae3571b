//! Library clients that withhold the rest of a record: their links end, for what has arrived of it takes memory.

use core::time::Duration;

use spillway_transport::{Conn, Time, Transport};

use crate::notice::Cut;
use crate::relay::Relay;
use crate::slots::Holder;

/// How often such a client is looked at. A link ends once a record is incomplete for 10 s at a look, so after 15 s at most.
pub(crate) const LOOK_EVERY: Duration = Duration::from_secs(5);

impl Relay {
    /// To be called when bytes of a library client have been taken apart.
    pub(crate) fn note_incomplete(&mut self, now: Time, conn: Conn) {
        let Some(Holder::Library(client)) = self.slots.get_mut(conn) else { return };
        if client.incomplete_since().is_none() || core::mem::replace(&mut client.watched, true) {
            return;
        }
        let slots = &self.slots;
        self.incomplete.start(
            now,
            conn,
            |conn| matches!(slots.get(conn), Some(Holder::Library(client)) if client.watched),
        );
    }

    /// Time to look at a client whose record was incomplete.
    pub(crate) fn incomplete_timeout<T: Transport>(&mut self, now: Time, conn: Conn, out: &mut T) {
        let Some(Holder::Library(client)) = self.slots.get_mut(conn) else { return };
        client.watched = false;
        match client.record_timeout(now) {
            Ok(()) => self.note_incomplete(now, conn),
            Err(error) => self.cut(conn, Cut::Protocol(error), out),
        }
    }
}
