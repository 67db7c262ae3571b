//! An application that returns the bytes of its connections.

use std::cell::Cell;
use std::collections::BTreeSet;

use spillway_moves::{Arrival, Attachment, Movable};
use spillway_transport::{Application, Conn, Event, Time, Transport};

/// Bytes that a client may send ahead: less than the send buffer takes.
const WINDOW_BYTES: u32 = 16 * 1024;
/// Protocol and bytes of the attachment of each connection that leaves.
const PROTOCOL: &str = "echo";
const NOTE: &[u8] = b"a note for the next server";

#[derive(Debug, Default)]
pub struct Echo {
    pub here: BTreeSet<Conn>,
    /// All connections are in a request: none is at a safe point.
    pub is_busy: bool,
    /// Number of further calls of `is_at_safe_point` that may return true; `None`: no limit.
    pub safe_answers: Cell<Option<u32>>,
    /// This is an earlier version, which cannot read attachments.
    pub is_older: bool,
    /// Number of connections that came from the other server.
    pub arrivals: u32,
    /// Number of connections that came back because their move failed.
    pub returns: u32,
}

impl Application for Echo {
    fn handle<T: Transport>(&mut self, _now: Time, conn: Conn, event: Event<'_>, out: &mut T) {
        match event {
            Event::Opened { .. } => {
                self.here.insert(conn);
                out.grant(conn, WINDOW_BYTES);
            }
            Event::Data { bytes, .. } => {
                assert!(self.here.contains(&conn), "bytes of a connection that is not here");
                assert_eq!(out.send(conn, bytes), bytes.len());
                out.grant(conn, bytes.len() as u32);
            }
            Event::Finished => out.finish(conn),
            Event::Lost(_) => _ = self.here.remove(&conn),
            Event::Room | Event::Acknowledged { .. } => {}
        }
    }

    fn handle_timeout<T: Transport>(&mut self, _now: Time, _out: &mut T) {}

    fn end_of_turn<T: Transport>(&mut self, _now: Time, _out: &mut T) {}

    fn poll_timeout(&self) -> Option<Time> {
        None
    }
}

impl Movable for Echo {
    fn is_at_safe_point(&self, _conn: Conn) -> bool {
        let left = self.safe_answers.get();
        self.safe_answers.set(left.map(|left| left.saturating_sub(1)));
        !self.is_busy && left != Some(0)
    }

    fn leave(&mut self, _now: Time, conn: Conn) -> Option<Attachment> {
        assert!(self.here.remove(&conn));
        Attachment::new(PROTOCOL, NOTE.to_vec()).ok()
    }

    fn knows_protocol(&self, protocol: &str) -> bool {
        protocol == PROTOCOL && !self.is_older
    }

    fn on_migrated<T: Transport>(&mut self, _now: Time, conn: Conn, arrival: &Arrival<'_>, _out: &mut T) {
        let attachment = arrival.attachment.expect("each connection leaves with an attachment");
        assert_eq!((attachment.protocol(), attachment.bytes().as_ref()), (PROTOCOL, NOTE));
        self.here.insert(conn);
        self.arrivals += u32::from(!arrival.is_return);
        self.returns += u32::from(arrival.is_return);
    }
}
