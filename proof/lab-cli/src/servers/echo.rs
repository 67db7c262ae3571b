//! Returns the bytes of each connection.

use std::collections::BTreeMap;

use spillway_stack_server::{Arrival, Attachment, Movable};
use spillway_transport::{Application, Conn, Event, Time, Transport};

use super::held::{ClientHeld, Held};
use super::replies::Replies;

/// Maximum number of bytes that a client may send ahead, and that are kept of a connection.
const WINDOW_BYTES: u32 = 64 * 1024;

/// An echo server. It grants a client only what the transport would take at the time, so that it seldom keeps bytes: the room
/// of a helped client can shrink later, because the clients of a link share it.
#[derive(Debug, Default)]
pub(crate) struct Echo {
    clients: BTreeMap<Conn, Client>,
    held: Held,
}

#[derive(Debug, Default)]
struct Client {
    /// Granted bytes that have not arrived yet.
    granted: u32,
    /// Received bytes that the transport had no room for.
    replies: Replies,
    held: ClientHeld,
    /// The client has ended its direction: the connection ends after the bytes that wait.
    is_ending: bool,
}

impl Echo {
    /// Sends bytes at once, or keeps them behind those that wait.
    fn send<T: Transport>(&mut self, conn: Conn, bytes: &[u8], out: &mut T) {
        let Some(client) = self.clients.get_mut(&conn) else { return };
        // No more bytes arrive than were granted.
        client.granted = client.granted.saturating_sub(u32::try_from(bytes.len()).unwrap_or(u32::MAX));
        let sent = if client.replies.is_empty() { out.send(conn, bytes) } else { 0 };
        client.replies.push(&bytes[sent..]);
    }

    /// Sends what waits, and grants what the window and the transport's room allow.
    fn work<T: Transport>(&mut self, conn: Conn, out: &mut T) {
        let Some(client) = self.clients.get_mut(&conn) else { return };
        client.replies.send(conn, out);
        if !self.held.set(&mut client.held, client.replies.held()) {
            self.forget(conn);
            return out.abort(conn);
        }
        if !client.replies.is_empty() {
            // An event reports new room.
            return;
        }
        if client.is_ending {
            return out.finish(conn);
        }
        let room = u32::try_from(out.room(conn)).unwrap_or(u32::MAX);
        let more = WINDOW_BYTES.min(room).saturating_sub(client.granted);
        if more > 0 {
            client.granted += more;
            out.grant(conn, more);
        }
        if client.granted < WINDOW_BYTES {
            out.want_room(conn);
        }
    }

    /// Removes a client, and subtracts its kept bytes from the total.
    fn forget(&mut self, conn: Conn) {
        if let Some(client) = self.clients.remove(&conn) {
            self.held.forget(&client.held);
        }
    }
}

impl Application for Echo {
    fn handle<T: Transport>(&mut self, _now: Time, conn: Conn, event: Event<'_>, out: &mut T) {
        match event {
            Event::Opened { .. } => _ = self.clients.insert(conn, Client::default()),
            Event::Data { bytes, .. } => self.send(conn, bytes, out),
            Event::Finished => {
                if let Some(client) = self.clients.get_mut(&conn) {
                    client.is_ending = true;
                }
            }
            Event::Room | Event::Acknowledged { .. } => {}
            Event::Lost(_) => self.forget(conn),
        }
        self.work(conn, out);
    }

    fn handle_timeout<T: Transport>(&mut self, _now: Time, _out: &mut T) {}

    fn end_of_turn<T: Transport>(&mut self, _now: Time, _out: &mut T) {}

    fn poll_timeout(&self) -> Option<Time> {
        None
    }
}

impl Movable for Echo {
    /// True when the whole window is granted and no byte waits: the next server assumes this, because there is no attachment.
    fn is_at_safe_point(&self, conn: Conn) -> bool {
        self.clients.get(&conn).is_some_and(|client| {
            client.granted == WINDOW_BYTES && client.replies.is_empty() && !client.is_ending
        })
    }

    fn leave(&mut self, _now: Time, conn: Conn) -> Option<Attachment> {
        self.forget(conn);
        None
    }

    fn on_migrated<T: Transport>(&mut self, _now: Time, conn: Conn, _arrival: &Arrival<'_>, _out: &mut T) {
        self.clients.insert(conn, Client { granted: WINDOW_BYTES, ..Client::default() });
    }
}

#[cfg(test)]
mod tests {
    use super::super::test_transport::TestTransport;
    use super::*;

    const CONN: Conn = Conn { slot: 0, generation: 0 };

    fn opened(room: usize) -> (Echo, TestTransport) {
        let (mut echo, mut out) = (Echo::default(), TestTransport { room, ..TestTransport::default() });
        let peer = "10.0.0.7:1000".parse().unwrap();
        echo.handle(Time::ZERO, CONN, Event::Opened { peer, listener: Some(0) }, &mut out);
        (echo, out)
    }

    #[test]
    fn no_byte_is_lost_if_the_room_shrinks_after_a_grant() {
        let (mut echo, mut out) = opened(1_000);
        assert_eq!(out.granted, 1_000);
        // Other clients of the link have filled it.
        out.room = 10;
        let sent: Vec<u8> = (0..=u8::MAX).cycle().take(1_000).collect();
        for bytes in sent.chunks(600) {
            echo.handle(Time::ZERO, CONN, Event::Data { end: 0, bytes }, &mut out);
        }
        echo.handle(Time::ZERO, CONN, Event::Finished, &mut out);
        assert_eq!((out.sent.len(), echo.held.total()), (10, 990));
        assert!(!echo.is_at_safe_point(CONN) && out.finished.is_empty());
        out.room = 100;
        echo.handle(Time::ZERO, CONN, Event::Room, &mut out);
        assert!(out.finished.is_empty());
        out.room = 2_000;
        echo.handle(Time::ZERO, CONN, Event::Room, &mut out);
        assert!(out.sent == sent && out.finished == [CONN] && out.granted == 1_000);
        assert_eq!(echo.held.total(), 0);
    }

    #[test]
    fn a_client_may_send_a_whole_window_when_there_is_room() {
        let (mut echo, mut out) = opened(1 << 20);
        assert!(echo.is_at_safe_point(CONN));
        echo.handle(Time::ZERO, CONN, Event::Data { end: 0, bytes: &[7; 5_000] }, &mut out);
        assert_eq!(out.granted, u64::from(WINDOW_BYTES) + 5_000);
        assert!(echo.is_at_safe_point(CONN) && out.sent == [7; 5_000]);
    }
}
