//! A key-value server that speaks memcached's text protocol. Each server has a store of its own: a client whose connection
//! moves sees the values of the other server from then on.

use std::collections::BTreeMap;

use spillway_stack_server::{Arrival, Attachment, Movable};
use spillway_transport::{Application, Conn, Event, Time, Transport};

use super::protocol::{Outcome, Store, VALUE_BYTES_MAX};

/// Bytes that a client may send ahead.
const WINDOW_BYTES: usize = 64 * 1024;
/// Maximum bytes of all keys and values.
const STORE_BYTES_MAX: usize = 64 << 20;
/// While this many bytes of replies wait for a client, its requests are not executed: two of the longest values.
const REPLY_BYTES_MAX: usize = 2 * VALUE_BYTES_MAX;

/// A key-value server: its store, and what it knows of each client.
#[derive(Debug)]
pub(crate) struct Kv {
    store: Store,
    clients: BTreeMap<Conn, Client>,
}

#[derive(Debug, Default)]
struct Client {
    /// Granted bytes that have not arrived yet.
    granted: usize,
    /// Received bytes of requests that are not executed yet.
    input: Vec<u8>,
    /// Replies that the stack has no room for.
    reply: Vec<u8>,
    /// The client has ended its direction, or must be closed: the connection ends after the replies.
    is_ending: bool,
}

impl Kv {
    pub(crate) fn new() -> Kv {
        Kv { store: Store::new(STORE_BYTES_MAX), clients: BTreeMap::new() }
    }

    /// Executes requests, sends replies, and grants what the client may send.
    fn work<T: Transport>(&mut self, conn: Conn, out: &mut T) {
        let Some(client) = self.clients.get_mut(&conn) else { return };
        let mut executed = 0;
        while client.reply.len() < REPLY_BYTES_MAX {
            match self.store.execute(&client.input[executed..], &mut client.reply) {
                Outcome::Answered(bytes) => executed += bytes,
                Outcome::Incomplete => break,
                Outcome::Close => {
                    executed = client.input.len();
                    client.is_ending = true;
                    break;
                }
            }
        }
        client.input.drain(..executed);
        let sent = out.send(conn, &client.reply);
        client.reply.drain(..sent);
        if client.is_ending {
            if client.reply.is_empty() {
                out.finish(conn);
            }
            return;
        }
        let waits = client.reply.len() >= REPLY_BYTES_MAX;
        let more = if waits { 0 } else { WINDOW_BYTES - client.granted.min(WINDOW_BYTES) };
        client.granted += more;
        out.grant(conn, u32::try_from(more).unwrap_or(u32::MAX));
    }
}

impl Application for Kv {
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
            Event::Lost(_) => _ = self.clients.remove(&conn),
        }
        self.work(conn, out);
    }

    fn handle_timeout<T: Transport>(&mut self, _now: Time, _out: &mut T) {}

    fn end_of_turn<T: Transport>(&mut self, _now: Time, _out: &mut T) {}

    fn poll_timeout(&self) -> Option<Time> {
        None
    }
}

impl Movable for Kv {
    /// Between two requests, when all replies are with the stack.
    fn is_at_safe_point(&self, conn: Conn) -> bool {
        self.clients.get(&conn).is_some_and(|client| {
            client.granted == WINDOW_BYTES
                && client.input.is_empty()
                && client.reply.is_empty()
                && !client.is_ending
        })
    }

    fn leave(&mut self, _now: Time, conn: Conn) -> Option<Attachment> {
        self.clients.remove(&conn);
        None
    }

    fn on_migrated<T: Transport>(&mut self, _now: Time, conn: Conn, _arrival: &Arrival<'_>, _out: &mut T) {
        self.clients.insert(conn, Client { granted: WINDOW_BYTES, ..Client::default() });
    }
}
