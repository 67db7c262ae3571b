//! The transport on kernel sockets.
//!
//! A [`Context`] owns an application and its sockets and runs them on one thread: epoll, edge triggered, no lock
//! on the data path. Several contexts, one for each core, share their listening addresses through
//! [`Listeners`]; the kernel spreads new connections over those that listen.
//!
//! What it costs is the small write per client. So what an application sends within one turn leaves with one
//! system call per connection at the end of the turn, chunks are written where they lie, and a readable
//! connection is read once: a second read that finds nothing is avoided.
//!
//! Where a listener takes [questions](Binding::Questions), datagrams to its address are answered by the context that
//! would serve a client from the same port.
//!
//! A [`Remote`] lets the owning program run commands on a context's thread and stop it.
#![warn(missing_docs)]

mod accept;
mod clock;
mod connection;
mod context;
mod cores;
mod datagrams;
mod events;
mod limiter;
mod listen;
mod outgoing;
mod questions;
mod reason;
mod remote;
mod sockets;
mod steering;
mod sys;
mod table;
mod transport;

use std::time::Duration;

pub use clock::Clock;
pub use context::Context;
pub use cores::{allowed_cores, pin_current_thread};
pub use listen::{BindError, Binding, BoundListener, ContextListeners, Listeners};
pub use remote::{Remote, Unreachable};
pub use sockets::Sockets;
pub use sys::{Epoll, EpollEvent};

/// Limits and settings of a context.
#[derive(Clone, Debug)]
pub struct Config {
    /// Connections of one context, accepted and opened together. Peers beyond it are reset.
    pub connections_max: usize,
    /// Bytes that may wait in one connection for the kernel to take them.
    pub queued_bytes_max: usize,
    /// Bytes taken from one connection at a time; one such buffer serves all connections of a context.
    pub read_bytes: usize,
    /// How long events of accepted connections may be left alone while the application waits for a deadline that
    /// comes sooner: what they bring is then handled in one turn, with one wake-up. Connections that we opened are
    /// not left alone. Zero: nothing is.
    pub input_patience: Duration,
    /// Events taken from the kernel in one turn.
    pub events_per_turn: usize,
    /// Connections accepted from one listener in one turn.
    pub accepts_per_turn: usize,
    /// How many established connections the kernel keeps for us to accept (it caps this by `somaxconn`).
    pub backlog: i32,
    /// How long `connect` tries before `Lost(TimedOut)`.
    pub connect_timeout: Duration,
    /// How long a connection that we opened may leave bytes unacknowledged, or its window closed, before
    /// `Lost(TimedOut)`. Not for accepted ones: a client may take its time to read.
    pub stall_timeout: Duration,
    /// Idle time before the kernel asks whether a peer is alive, at most 32,767 seconds; none: it never asks.
    pub keep_alive: Option<Duration>,
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
        }
    }
}

/// Something that an operator should know. Each kind is told at most once a second and context.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// There are no file descriptors left; peers are refused for 100 ms, again and again until there are some.
    DescriptorsExhausted {
        /// None of the host, rather than of this process.
        host: bool,
    },
    /// The context has `connections_max` connections; this many peers were reset since the last such notice.
    ConnectionsExhausted {
        /// Peers reset.
        refused: u64,
    },
    /// Accepting fails and pauses for a moment.
    AcceptFailed {
        /// Index of the listener.
        listener: u16,
        /// The host's error number.
        error: i32,
    },
    /// More datagrams come to the address of a listener than are answered.
    TooManyQuestions {
        /// Index of the listener.
        listener: u16,
    },
    /// A listener could not be opened; it is tried again every second.
    ListenFailed {
        /// Index of the listener.
        listener: u16,
        /// The host's error number.
        error: i32,
    },
}

impl std::fmt::Display for Notice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = |error: &i32| std::io::Error::from_raw_os_error(*error);
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
                write!(f, "cannot accept on listener {listener}: {}; trying again in 100 ms", text(error))
            }
            Notice::TooManyQuestions { listener } => write!(
                f,
                "too many questions of load come in on listener {listener}: some are not answered, and their clients take \
                 this helper for full; look who sends so many"
            ),
            Notice::ListenFailed { listener, error } => {
                write!(f, "cannot listen on listener {listener}: {}; trying again in 1 s", text(error))
            }
        }
    }
}
