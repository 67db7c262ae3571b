//! An application whose connections have a fixed number of bytes to send, and that are never sent completely.

use spillway_moves::{Arrival, Attachment, Movable};
use spillway_transport::{Application, Conn, Event, Time, Transport};

/// Bytes that a client may send ahead.
const WINDOW_BYTES: u32 = 1 << 16;

pub(super) struct Holder {
    queued: Vec<u8>,
}

impl Holder {
    pub(super) fn new(queued: usize) -> Holder {
        Holder { queued: vec![7; queued] }
    }
}

impl Application for Holder {
    fn handle<T: Transport>(&mut self, _now: Time, conn: Conn, event: Event<'_>, out: &mut T) {
        if let Event::Opened { .. } = event {
            out.grant(conn, WINDOW_BYTES);
            let sent = out.send(conn, &self.queued);
            debug_assert_eq!(sent, self.queued.len(), "the send buffer should have room for the bytes");
        }
    }

    fn handle_timeout<T: Transport>(&mut self, _now: Time, _out: &mut T) {}

    fn end_of_turn<T: Transport>(&mut self, _now: Time, _out: &mut T) {}

    fn poll_timeout(&self) -> Option<Time> {
        None
    }
}

impl Movable for Holder {
    fn is_at_safe_point(&self, _conn: Conn) -> bool {
        true
    }

    fn leave(&mut self, _now: Time, _conn: Conn) -> Option<Attachment> {
        None
    }

    fn on_migrated<T: Transport>(&mut self, _now: Time, _conn: Conn, _arrival: &Arrival<'_>, _out: &mut T) {}
}
