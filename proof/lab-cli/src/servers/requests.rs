//! A server that executes the requests of a protocol one after the other, and answers each at once. Its connections move
//! between two requests, and nothing but the connection moves: a request that is half read, and replies that wait for room,
//! delay the move.

use std::collections::BTreeMap;

use spillway_stack_server::{Arrival, Attachment, Movable};
use spillway_transport::{Application, Conn, Event, Time, Transport};

use super::held::{ClientHeld, Held};
use super::protocol::{Outcome, Protocol};
use super::replies::{Replies, empty};

/// Maximum number of bytes that a client may send ahead.
const WINDOW_BYTES: usize = 64 * 1024;

/// A server: its protocol, and what it knows of each client.
#[derive(Debug)]
pub(crate) struct RequestServer<P: Protocol> {
    protocol: P,
    clients: BTreeMap<Conn, Client<P::Progress>>,
    /// Unfinished requests and waiting replies of all clients.
    held: Held,
}

#[derive(Debug, Default)]
struct Client<S> {
    /// Granted bytes that have not arrived yet.
    granted: usize,
    /// Received bytes of requests that are not executed yet.
    input: Vec<u8>,
    /// What is answered of the first request in `input`.
    progress: S,
    /// Replies that the stack has no room for.
    replies: Replies,
    /// Bytes in `input` and `replies` at the end of the last event.
    held: ClientHeld,
    /// The client has ended its direction, or must be closed: the connection ends after the replies.
    is_ending: bool,
}

impl<P: Protocol> RequestServer<P> {
    pub(crate) fn new(protocol: P) -> RequestServer<P> {
        RequestServer { protocol, clients: BTreeMap::new(), held: Held::default() }
    }

    /// Executes requests, sends replies, and grants what the client may send.
    fn work<T: Transport>(&mut self, conn: Conn, out: &mut T) {
        let Some(client) = self.clients.get_mut(&conn) else { return };
        let waits = loop {
            let is_full = client.execute(&mut self.protocol);
            let are_sent = client.send(conn, out);
            if !(is_full && are_sent) {
                break !are_sent;
            }
        };
        if !self.held.set(&mut client.held, client.input.len() + client.replies.held()) {
            self.forget(conn);
            return out.abort(conn);
        }
        if client.is_ending {
            if !waits {
                out.finish(conn);
            }
            return;
        }
        let more = if waits { 0 } else { WINDOW_BYTES - client.granted.min(WINDOW_BYTES) };
        client.granted += more;
        out.grant(conn, u32::try_from(more).unwrap_or(u32::MAX));
    }

    /// Removes a client, and subtracts its held bytes from the total.
    fn forget(&mut self, conn: Conn) {
        if let Some(client) = self.clients.remove(&conn) {
            self.held.forget(&client.held);
        }
    }
}

impl<S: Default> Client<S> {
    /// Executes requests. Returns whether execution has stopped because the buffer of replies is full.
    fn execute(&mut self, protocol: &mut impl Protocol<Progress = S>) -> bool {
        let mut executed = 0;
        let is_full = loop {
            match protocol.execute(&self.input[executed..], &mut self.replies, &mut self.progress) {
                Outcome::Answered(bytes) => executed += bytes,
                Outcome::Incomplete => break false,
                Outcome::Full => break true,
                Outcome::Close => {
                    executed = self.input.len();
                    self.is_ending = true;
                    break false;
                }
            }
        };
        if executed == self.input.len() {
            empty(&mut self.input);
        } else {
            self.input.drain(..executed);
        }
        is_full
    }

    /// Sends replies. Returns whether the stack has taken all of them; if not, an event reports new room.
    fn send<T: Transport>(&mut self, conn: Conn, out: &mut T) -> bool {
        let sent = out.send(conn, self.replies.waiting());
        self.replies.take(sent);
        self.replies.is_empty()
    }
}

impl<P: Protocol> Application for RequestServer<P> {
    fn handle<T: Transport>(&mut self, _now: Time, conn: Conn, event: Event<'_>, out: &mut T) {
        match event {
            Event::Opened { .. } => _ = self.clients.insert(conn, Client::default()),
            Event::Data { bytes, .. } => {
                let Some(client) = self.clients.get_mut(&conn) else { return };
                client.granted = client.granted.saturating_sub(bytes.len());
                if !client.is_ending {
                    client.input.extend_from_slice(bytes);
                }
            }
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

impl<P: Protocol> Movable for RequestServer<P> {
    /// True between two requests, when the stack has taken all replies.
    fn is_at_safe_point(&self, conn: Conn) -> bool {
        self.clients.get(&conn).is_some_and(|client| {
            client.granted == WINDOW_BYTES
                && client.input.is_empty()
                && client.replies.is_empty()
                && !client.is_ending
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
    use super::super::held::HELD_BYTES_MAX;
    use super::super::memcached::Store;
    use super::super::test_transport::TestTransport;
    use super::*;

    type Kv = RequestServer<Store>;

    fn server() -> Kv {
        Kv::new(Store::new(64 << 20))
    }

    const CONN: Conn = Conn { slot: 0, generation: 0 };
    const CONN_OF_ANOTHER: Conn = Conn { slot: 1000, generation: 0 };

    fn data(kv: &mut Kv, conn: Conn, bytes: &[u8], out: &mut TestTransport) {
        kv.handle(Time::ZERO, conn, Event::Data { end: 0, bytes }, out);
    }

    fn open(kv: &mut Kv, conn: Conn, out: &mut TestTransport) {
        let peer = "10.0.0.7:1000".parse().unwrap();
        kv.handle(Time::ZERO, conn, Event::Opened { peer, listener: Some(0) }, out);
    }

    #[test]
    fn replies_to_a_client_that_does_not_read_are_bounded_and_then_complete() {
        let (mut kv, mut out) = (server(), TestTransport { room: 1000, ..TestTransport::default() });
        open(&mut kv, CONN, &mut out);
        let value = "v".repeat(1 << 20);
        data(&mut kv, CONN, format!("set a 0 0 {}\r\n{value}\r\n", value.len()).as_bytes(), &mut out);
        out.room = 1000;
        let get = format!("get{}\r\nversion\r\n", " a".repeat(100));
        data(&mut kv, CONN, get.as_bytes(), &mut out);
        let (mut total, granted) = (0, out.granted);
        while !kv.is_at_safe_point(CONN) {
            assert!(kv.clients[&CONN].replies.waiting().len() < (1 << 20) + 70_000);
            assert_eq!(out.granted, granted, "the client may not send while replies wait");
            (out.room, total) = (300_000, total + out.sent.len());
            out.sent.clear();
            kv.handle(Time::ZERO, CONN, Event::Room, &mut out);
        }
        assert!(out.sent.ends_with(b"\r\nEND\r\nVERSION spillway-lab\r\n"));
        let item = format!("VALUE a 0 {}\r\n", value.len()).len() + value.len() + 2;
        let expected = "STORED\r\n".len() + 100 * item + "END\r\nVERSION spillway-lab\r\n".len();
        assert_eq!(total + out.sent.len(), expected);
    }

    #[test]
    fn unfinished_requests_and_waiting_replies_of_all_clients_are_bounded() {
        let (mut kv, mut out) = (server(), TestTransport::default());
        let unfinished = [b"set k 0 0 1048576\r\n".to_vec(), vec![b'v'; 1 << 20]].concat();
        let clients = u32::try_from(HELD_BYTES_MAX / unfinished.len()).unwrap();
        let conn = |slot| Conn { slot, generation: 0 };
        for slot in 0..=clients {
            assert_eq!(out.aborted, []);
            open(&mut kv, conn(slot), &mut out);
            data(&mut kv, conn(slot), &unfinished, &mut out);
        }
        assert_eq!(out.aborted, [conn(clients)], "the client that exceeds the bound is reset");
        // Others go on: requests that are complete, and those that end now.
        out.room = 1000;
        open(&mut kv, CONN_OF_ANOTHER, &mut out);
        data(&mut kv, CONN_OF_ANOTHER, b"version\r\n", &mut out);
        data(&mut kv, conn(0), b"\r\n", &mut out);
        assert_eq!(out.sent, b"VERSION spillway-lab\r\nSTORED\r\n");
        // Each client that ends gives its bytes back.
        for slot in 0..=clients {
            kv.handle(Time::ZERO, conn(slot), Event::Lost(spillway_transport::LostReason::Reset), &mut out);
        }
        assert_eq!((kv.held.total(), out.aborted.len()), (0, 1));
        // Replies count, too.
        out.room = 0;
        let get = b"get k\r\n";
        for slot in 0..=clients {
            open(&mut kv, conn(slot), &mut out);
            data(&mut kv, conn(slot), get, &mut out);
        }
        assert!(out.aborted.len() > 1 && kv.held.total() <= HELD_BYTES_MAX);
    }
}
