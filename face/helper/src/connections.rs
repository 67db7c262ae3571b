//! The list of a helper's clients.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use spillway_daemon::deprecated::add_old_fields;
use spillway_relay::{ClientKind, ClientStatus};
use spillway_transport::Time;

use crate::running::{ANSWER_TIMEOUT, Running};

/// Maximum number of clients in one list.
pub const CONNECTIONS_MAX: usize = 100_000;

/// Clients of a service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Connections {
    /// Name of the service.
    pub service: String,
    /// Number of clients of the service, which may exceed the length of the list.
    pub total: u64,
    /// The listed clients.
    pub connections: Vec<Connection>,
}

/// One client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Connection {
    /// The client's address, as the server sees it.
    pub client: SocketAddr,
    /// The load balancer in front of the client, if it sends PROXY headers.
    pub via: Option<SocketAddr>,
    /// `plain`, `library`, `announcing` (the load balancer's PROXY header is not complete) or `leaving`
    /// (the server has closed; the client reads the rest).
    pub client_kind: String,
    /// Number of the network thread.
    pub thread: usize,
    /// Time since the client connected.
    pub age_ms: u64,
    /// Bytes of requests.
    pub bytes_in: u64,
    /// Bytes of replies.
    pub bytes_out: u64,
    /// Bytes that wait in the helper, in both directions.
    pub buffered_bytes: u64,
    /// Time for which the client has been unable to send; `None` if it can send.
    pub stalled_ms: Option<u64>,
}

impl Connections {
    /// The JSON form, which also has the field names of the previous version.
    pub fn to_value(&self) -> Value {
        let mut document = json!(self);
        add_old_fields(&mut document);
        document
    }
}

impl Running {
    /// Up to `limit` clients of a service. Waits up to [`ANSWER_TIMEOUT`] for each thread.
    pub fn connections(&self, service: &str, limit: usize) -> Connections {
        let limit = limit.min(CONNECTIONS_MAX);
        let mut all = Connections { service: service.to_owned(), ..Connections::default() };
        for (thread, remote) in self.remotes.iter().enumerate() {
            let (name, left) = (service.to_owned(), limit - all.connections.len());
            let answer = remote.run_and_wait_timeout(ANSWER_TIMEOUT, move |now, app, _| {
                let (clients, total) = app.relay.client_statuses(Some(&name), left);
                (now, clients, total)
            });
            // The list lacks the clients of a silent thread; the status counts silent threads.
            let Ok((now, clients, total)) = answer else { continue };
            all.total += u64::from(total);
            all.connections.extend(clients.iter().map(|client| Connection::of(now, thread, client)));
        }
        all
    }
}

impl Connection {
    fn of(now: Time, thread: usize, status: &ClientStatus) -> Connection {
        let since = |then: Time| u64::try_from(now.since(then).as_millis()).unwrap_or(u64::MAX);
        let client_kind = match status.kind {
            ClientKind::Plain => "plain",
            ClientKind::Library => "library",
            ClientKind::AwaitingHeader => "announcing",
            ClientKind::Lingering => "leaving",
        };
        Connection {
            client: status.client,
            via: status.via,
            client_kind: client_kind.to_owned(),
            thread,
            age_ms: since(status.since),
            bytes_in: status.bytes_in,
            bytes_out: status.bytes_out,
            buffered_bytes: status.buffered as u64,
            stalled_ms: status.stalled_since.map(since),
        }
    }
}
