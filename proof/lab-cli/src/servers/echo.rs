//! Returns the bytes of each connection.

use std::collections::BTreeMap;

use spillway_stack_server::{Arrival, Attachment, Movable};
use spillway_transport::{Application, Conn, Event, Time, Transport};

/// Bytes that a client may send ahead. The stack's send buffer has room for all of them.
const WINDOW_BYTES: u32 = 64 * 1024;

/// An echo server. It never keeps bytes of a connection: it grants a client only what the send buffer has room for.
#[derive(Debug, Default)]
pub(crate) struct Echo {
    /// Granted bytes that have not arrived yet, by connection.
    granted: BTreeMap<Conn, u32>,
}

impl Echo {
    /// Grants what the window and the send buffer allow.
    fn grant<T: Transport>(&mut self, conn: Conn, out: &mut T) {
        let Some(granted) = self.granted.get_mut(&conn) else { return };
        let room = u32::try_from(out.room(conn)).unwrap_or(u32::MAX);
        let more = WINDOW_BYTES.min(room).saturating_sub(*granted);
        if more > 0 {
            *granted += more;
            out.grant(conn, more);
        }
        if *granted < WINDOW_BYTES {
            out.want_room(conn);
        }
    }
}

impl Application for Echo {
    fn handle<T: Transport>(&mut self, _now: Time, conn: Conn, event: Event<'_>, out: &mut T) {
        match event {
            Event::Opened { .. } => {
                self.granted.insert(conn, 0);
                self.grant(conn, out);
            }
            Event::Data { bytes, .. } => {
                if let Some(granted) = self.granted.get_mut(&conn) {
                    // No more bytes arrive than were granted.
                    *granted = granted.saturating_sub(u32::try_from(bytes.len()).unwrap_or(u32::MAX));
                }
                let sent = out.send(conn, bytes);
                debug_assert_eq!(sent, bytes.len(), "grants never exceed the room");
                self.grant(conn, out);
            }
            Event::Room => self.grant(conn, out),
            Event::Finished => out.finish(conn),
            Event::Acknowledged { .. } => {}
            Event::Lost(_) => _ = self.granted.remove(&conn),
        }
    }

    fn handle_timeout<T: Transport>(&mut self, _now: Time, _out: &mut T) {}

    fn end_of_turn<T: Transport>(&mut self, _now: Time, _out: &mut T) {}

    fn poll_timeout(&self) -> Option<Time> {
        None
    }
}

impl Movable for Echo {
    /// True when the whole window is granted: the next server assumes this, because there is no attachment.
    fn is_at_safe_point(&self, conn: Conn) -> bool {
        self.granted.get(&conn) == Some(&WINDOW_BYTES)
    }

    fn leave(&mut self, _now: Time, conn: Conn) -> Option<Attachment> {
        self.granted.remove(&conn);
        None
    }

    fn on_migrated<T: Transport>(&mut self, _now: Time, conn: Conn, _arrival: &Arrival<'_>, _out: &mut T) {
        self.granted.insert(conn, WINDOW_BYTES);
    }
}
