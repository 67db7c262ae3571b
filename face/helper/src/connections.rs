//! The clients of a helper, one by one: what `ss` shows for connections that are not batched.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
use spillway_relay::{ClientKind, ClientStatus};
use spillway_transport::Time;

use crate::running::{ANSWER_PATIENCE, Running};

/// More are never listed at once.
pub const CONNECTIONS_MAX: usize = 100_000;

/// Clients of a service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Connections {
    /// The service.
    pub service: String,
    /// How many clients it has; the list may have fewer.
    pub total: u64,
    /// Some of them, or all.
    pub connections: Vec<Connection>,
}

/// One client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Connection {
    /// Its address, as the server sees it.
    pub client: SocketAddr,
    /// The load balancer that it came through.
    pub via: Option<SocketAddr>,
    /// `raw`, `library`, `announcing` (its load balancer has yet to say who it is) or `leaving` (the server has
    /// closed, and it takes what is left).
    pub kind: String,
    /// The network thread that it is on.
    pub context: usize,
    /// Since it came.
    pub age_ms: u64,
    /// Bytes of its requests.
    pub bytes_in: u64,
    /// Bytes of replies to it.
    pub bytes_out: u64,
    /// Bytes that wait in the helper, in both directions.
    pub buffered_bytes: u64,
    /// For how long it has not been able to send anything.
    pub stalled_ms: Option<u64>,
}

impl Running {
    /// Up to `limit` clients of a service. Waits for each thread's answer.
    pub fn connections(&self, service: &str, limit: usize) -> Connections {
        let limit = limit.min(CONNECTIONS_MAX);
        let mut all = Connections { service: service.to_owned(), ..Connections::default() };
        for (context, remote) in self.remotes.iter().enumerate() {
            let (name, left) = (service.to_owned(), limit - all.connections.len());
            let answer = remote.ask_within(ANSWER_PATIENCE, move |now, app, _| {
                let (clients, total) = app.relay.client_statuses(Some(&name), left);
                (now, clients, total)
            });
            // A thread that is silent is told by status; its clients are missing here.
            let Ok((now, clients, total)) = answer else { continue };
            all.total += u64::from(total);
            all.connections.extend(clients.iter().map(|client| Connection::of(now, context, client)));
        }
        all
    }
}

impl Connection {
    fn of(now: Time, context: usize, status: &ClientStatus) -> Connection {
        let since = |then: Time| u64::try_from(now.since(then).as_millis()).unwrap_or(u64::MAX);
        let kind = match status.kind {
            ClientKind::Raw => "raw",
            ClientKind::Library => "library",
            ClientKind::Announcing => "announcing",
            ClientKind::Leaving => "leaving",
        };
        Connection {
            client: status.client,
            via: status.via,
            kind: kind.to_owned(),
            context,
            age_ms: since(status.since),
            bytes_in: status.bytes_in,
            bytes_out: status.bytes_out,
            buffered_bytes: status.buffered as u64,
            stalled_ms: status.stalled_since.map(since),
        }
    }
}
