use alloc::boxed::Box;
use core::net::SocketAddr;

use spillway_transport::{Conn, Time, Transport};

use crate::clients::awaiting_header::AwaitingHeader;
use crate::clients::client_type::ClientType;
use crate::clients::library::LibraryClient;
use crate::clients::lingering::Lingering;
use crate::clients::plain::PlainClient;
use crate::memory::{Held, Holding, Memory};
use crate::status::ClientStatus;
use crate::timers::Timer;

/// The role of a connection in the relay.
#[derive(Debug)]
pub(crate) enum ConnRole {
    /// The slot is not in use.
    Free,
    /// A link to a server, by index.
    Link(usize),
    Plain(PlainClient),
    Library(Box<LibraryClient>),
    /// A load balancer's connection whose PROXY header is not complete.
    AwaitingHeader(Box<AwaitingHeader>),
    /// A client that gets its last bytes before its connection ends.
    Lingering(Box<Lingering>),
}

impl ConnRole {
    /// The client's service and type. `None`: not a client.
    pub(crate) fn client_of(&self) -> Option<(u16, ClientType)> {
        match self {
            ConnRole::Free | ConnRole::Link(_) => None,
            ConnRole::Plain(client) => Some((client.service(), ClientType::Plain)),
            ConnRole::Library(client) => Some((client.service(), ClientType::Library)),
            ConnRole::AwaitingHeader(awaiting_header) => Some((awaiting_header.service(), ClientType::Plain)),
            ConnRole::Lingering(lingering) => Some((lingering.service(), lingering.client_type())),
        }
    }

    /// The client's service and address. `None`: not a client.
    pub(crate) fn identity(&self) -> Option<(u16, SocketAddr)> {
        match self {
            ConnRole::Free | ConnRole::Link(_) => None,
            ConnRole::Plain(client) => Some((client.service(), client.peer())),
            ConnRole::Library(client) => Some((client.service(), client.peer())),
            ConnRole::AwaitingHeader(awaiting_header) => {
                Some((awaiting_header.service(), awaiting_header.peer()))
            }
            ConnRole::Lingering(lingering) => Some((lingering.service(), lingering.peer())),
        }
    }

    /// Releases the client's buffers. Call this when the connection ends.
    pub(crate) fn release_memory(&mut self, memory: &mut Memory) {
        match self {
            ConnRole::Free | ConnRole::Link(_) => {}
            ConnRole::Plain(client) => client.release_memory(memory),
            ConnRole::Library(client) => client.release_memory(memory),
            ConnRole::AwaitingHeader(awaiting_header) => awaiting_header.release_memory(memory),
            ConnRole::Lingering(lingering) => lingering.release_memory(memory),
        }
    }

    pub(crate) fn needs_timer(&self, timer: Timer) -> bool {
        match (self, timer) {
            (ConnRole::Plain(client), Timer::Acknowledge) => client.acknowledge_timer_runs(),
            (ConnRole::Lingering(lingering), Timer::Acknowledge) => lingering.acknowledge_timer_runs(),
            (ConnRole::Lingering(_), Timer::Linger) => true,
            (ConnRole::Library(client), Timer::Handshake) => !client.is_established(),
            (ConnRole::Library(client), Timer::Record) => client.record_timer_runs(),
            (ConnRole::Library(client), Timer::Throttle) => client.is_throttled(),
            (ConnRole::AwaitingHeader(_), Timer::ProxyHeader) => true,
            _ => false,
        }
    }

    /// Whether the client's requests are not read because memory is scarce.
    pub(crate) fn is_paused(&self) -> bool {
        match self {
            ConnRole::Plain(client) => client.is_paused(),
            ConnRole::Library(client) => client.is_paused(),
            _ => false,
        }
    }

    /// The client's memory in the relay and in the transport. `None`: not a client, or no waiting bytes.
    pub(crate) fn holding<T: Transport>(&mut self, now: Time, conn: Conn, out: &T) -> Option<Holding> {
        let queued = out.queued(conn);
        let Held { waiting_bytes, memory_bytes, age } = match self {
            ConnRole::Free | ConnRole::Link(_) => return None,
            ConnRole::Plain(client) => client.held(now, queued),
            ConnRole::Library(client) => client.held(now, queued),
            ConnRole::AwaitingHeader(awaiting_header) => awaiting_header.held(),
            ConnRole::Lingering(lingering) => lingering.held(now, queued),
        };
        (waiting_bytes + queued > 0).then(|| Holding {
            conn,
            memory_bytes: memory_bytes + out.held(conn),
            age,
        })
    }

    pub(crate) fn status(&self) -> Option<ClientStatus> {
        match self {
            ConnRole::Free | ConnRole::Link(_) => None,
            ConnRole::Plain(client) => Some(client.status()),
            ConnRole::Library(client) => Some(client.status()),
            ConnRole::AwaitingHeader(awaiting_header) => Some(awaiting_header.status()),
            ConnRole::Lingering(lingering) => Some(lingering.status()),
        }
    }
}
