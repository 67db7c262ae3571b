//! The transport on kernel sockets.
//!
//! A [`Context`] owns an application and its sockets and runs them on one thread, with edge-triggered epoll and
//! without locks on the data path. Several threads, one for each core, share their listening addresses through
//! [`Listeners`]; the kernel distributes new connections among the threads that listen.
//!
//! The main cost is one small write per client. To keep this cost low, everything that an application sends on a
//! connection within a turn leaves in one system call at the end of the turn, chunks are written without a copy, and a
//! readable connection is read only once unless more data may have arrived.
//!
//! If a listener takes [load queries](Binding::LoadQueries), the thread that answers a datagram to its address is the
//! one that would serve a client from the same port.
//!
//! A [`Remote`] runs commands on a context's thread and stops the context.
#![warn(missing_docs)]

mod accept;
mod allowance;
mod clock;
mod connection;
mod context;
mod cores;
mod datagrams;
mod events;
mod limiter;
mod listen;
mod load_queries;
mod load_query_sockets;
mod moving;
mod outgoing;
mod reason;
mod remote;
mod sockets;
mod steering;
mod sys;
mod table;
mod transport;

use std::time::Duration;

pub use allowance::Allowance;
pub use clock::Clock;
pub use connection::Detached;
pub use context::Context;
pub use cores::{allowed_cores, pin_current_thread};
pub use datagrams::QUERY_BYTES_MAX;
pub use listen::{BindError, Binding, BoundListener, ContextListeners, Listeners};
pub use load_queries::query_allowance;
pub use load_query_sockets::LoadQuerySockets;
pub use remote::{Mailbox, Remote, Unreachable};
pub use sockets::Sockets;
pub use steering::SteeringFault;
pub use sys::{Epoll, EpollEvent};

/// Limits and settings of one thread's [`Context`].
#[derive(Clone, Debug)]
pub struct Config {
    /// Maximum connections of one thread, accepted and opened ones together. Further peers are reset.
    pub connections_max: usize,
    /// Maximum bytes in one connection that wait to be written.
    pub queued_bytes_max: usize,
    /// Maximum bytes of one read. One buffer of this size serves all connections of a thread.
    pub read_bytes: usize,
    /// How long events of accepted connections may wait for the application's next deadline. If the deadline
    /// comes sooner, the events are handled in the turn of the deadline, which saves wake-ups. Events of
    /// connections that this thread opened do not wait. Zero means that no events wait.
    pub input_patience: Duration,
    /// Maximum events handled in one turn.
    pub events_per_turn: usize,
    /// Maximum connections accepted from one listener in one turn.
    pub accepts_per_turn: usize,
    /// Maximum established connections that wait to be accepted. The kernel limits this to `somaxconn`.
    pub backlog: i32,
    /// Time after which an attempt to connect ends with `Lost(TimedOut)`.
    pub connect_timeout: Duration,
    /// Time after which a connection that this thread opened ends with `Lost(TimedOut)` if the peer leaves bytes
    /// unacknowledged or its window closed. It does not apply to accepted connections: a client may read slowly.
    pub stall_timeout: Duration,
    /// Idle time before the kernel sends keep-alive probes, at most 32,767 seconds; `None` switches them off.
    pub keep_alive: Option<Duration>,
    /// Whether listeners may be bound at addresses that this host does not have (IP_FREEBIND), for a TCP stack beside the
    /// kernel that has them.
    pub free_bind: bool,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            connections_max: 50_000,
            queued_bytes_max: 256 << 10,
            read_bytes: 128 << 10,
            input_patience: Duration::ZERO,
            events_per_turn: 128,
            accepts_per_turn: 64,
            backlog: 4096,
            connect_timeout: Duration::from_secs(1),
            stall_timeout: Duration::from_secs(30),
            keep_alive: Some(Duration::from_secs(30)),
            free_bind: false,
        }
    }
}

/// A problem that an operator should know. A thread reports each kind at most once a second.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// No file descriptors are left. New peers are refused for 100 ms at a time until some are free.
    DescriptorsExhausted {
        /// `true`: the host's limit is reached. `false`: this process's limit is reached.
        host: bool,
    },
    /// The thread has `connections_max` connections.
    ConnectionsExhausted {
        /// Peers reset since the last such notice.
        refused: u64,
    },
    /// Accepting failed and pauses for 100 ms.
    AcceptFailed {
        /// Index of the listener.
        listener: u16,
        /// The host's error number.
        error: i32,
    },
    /// More load queries arrive at the address of a listener than are answered.
    TooManyLoadQueries {
        /// Index of the listener.
        listener: u16,
    },
    /// A listener could not be opened. It is tried again after 1 s.
    ListenFailed {
        /// Index of the listener.
        listener: u16,
        /// The host's error number.
        error: i32,
    },
    /// The source port of a peer does not determine the thread that serves it: a load query may be answered by a thread
    /// that will not serve the client. Reported once for each listening address.
    NotSteered {
        /// Index of the listener.
        listener: u16,
        /// The cause.
        fault: SteeringFault,
    },
}

impl std::fmt::Display for Notice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let os_error = |error: &i32| std::io::Error::from_raw_os_error(*error);
        match self {
            Notice::DescriptorsExhausted { host: false } => f.write_str(
                "out of file descriptors: new connections are refused; \
                 raise the limit (ulimit -n, LimitNOFILE=) or add helpers",
            ),
            Notice::DescriptorsExhausted { host: true } => f.write_str(
                "this host is out of file descriptors: new connections are refused; raise fs.file-max",
            ),
            Notice::ConnectionsExhausted { refused } => write!(
                f,
                "the connection limit is reached: {refused} new connections were reset; \
                 raise --max-connections or add helpers"
            ),
            Notice::AcceptFailed { listener, error } => {
                write!(f, "cannot accept on listener {listener}: {}; trying again in 100 ms", os_error(error))
            }
            Notice::TooManyLoadQueries { listener } => write!(
                f,
                "too many load queries arrive on listener {listener}: some are not answered, and their clients treat \
                 this helper as full; find out which hosts send them"
            ),
            Notice::ListenFailed { listener, error } => {
                write!(f, "cannot listen on listener {listener}: {}; trying again in 1 s", os_error(error))
            }
            Notice::NotSteered { listener, fault } => write!(
                f,
                "clients of listener {listener} are not assigned to threads by their source port, so load queries \
                 may be answered by a thread that will not serve the client: {fault}"
            ),
        }
    }
}
