//! Sockets whose connections do not move.

use std::fmt;

use spillway_wire::state::QUEUE_BYTES_MAX;

/// Why a socket's connection does not move. The connection is unchanged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Not a TCP socket over IPv4 or IPv6.
    NotTcp,
    /// A listening socket.
    Listening,
    /// A state other than those that move, by the RFC's name.
    State(&'static str),
    /// Multipath TCP.
    Mptcp,
    /// Segments are signed: TCP-MD5 (RFC 2385) or TCP-AO (RFC 5925).
    Signed(&'static str),
    /// An upper layer protocol, such as `tls` for kernel TLS, processes the bytes.
    UpperLayer(String),
    /// A sockmap or sockhash contains the socket.
    SocketMap,
    /// SO_REUSEPORT is set.
    ReusePort,
    /// The receive queue contains an urgent byte, or the place of one that was read by MSG_OOB.
    Urgent,
    /// The application has attached a filter to the socket.
    Filter,
    /// The application reads at an offset (SO_PEEK_OFF).
    PeekOffset,
    /// Explicit congestion notification was negotiated.
    Ecn,
    /// The socket is bound to an interface, or has a link-local address.
    Interface,
    /// A queue has this many bytes, more than a state can have.
    Queue(u32),
    /// The kernel's diagnosis does not find the connection.
    NotFound,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Refusal::NotTcp => "this is not a TCP socket over IPv4 or IPv6",
            Refusal::Listening => "this is a listening socket: move the connections that it has accepted",
            Refusal::State(name) => {
                return write!(
                    f,
                    "a connection in {name} does not move: it must be in ESTABLISHED, CLOSE-WAIT, FIN-WAIT-1 or \
                     FIN-WAIT-2"
                );
            }
            Refusal::Mptcp => {
                "Multipath TCP connections do not move: open the listening socket with IPPROTO_TCP"
            }
            Refusal::Signed(name) => {
                return write!(f, "the connection's segments are signed ({name}): its keys cannot be read");
            }
            Refusal::UpperLayer(name) => {
                return write!(
                    f,
                    "the upper layer protocol {name} (TCP_ULP) processes the connection's bytes"
                );
            }
            Refusal::SocketMap => {
                "a BPF sockmap or sockhash contains the socket: remove it from the map first"
            }
            Refusal::ReusePort => {
                "the socket has SO_REUSEPORT, whose group is not part of the state: clear the option of this connection \
                 first, which leaves its listening socket as it is"
            }
            Refusal::Urgent => {
                "the receive queue contains an urgent byte, at which reads end: read up to and beyond it first (MSG_OOB alone \
                 leaves its place in the queue)"
            }
            Refusal::Filter => {
                "the application has attached a filter to the socket: detach it first (SO_DETACH_FILTER)"
            }
            Refusal::PeekOffset => "the socket has an offset for MSG_PEEK: set SO_PEEK_OFF to -1 first",
            Refusal::Ecn => {
                "the connection uses ECN, which repair mode cannot restore: set net.ipv4.tcp_ecn to 0 for later connections"
            }
            Refusal::Interface => {
                "the socket is bound to an interface or has a link-local address, which has no meaning on another host"
            }
            Refusal::Queue(bytes) => {
                return write!(
                    f,
                    "a queue of {bytes} bytes is too long: at most {QUEUE_BYTES_MAX} move with a connection"
                );
            }
            Refusal::NotFound => {
                "the kernel does not find the connection in this thread's network namespace, so it cannot be checked for \
                 TCP-MD5: call from the socket's namespace, on a kernel with CONFIG_INET_TCP_DIAG"
            }
        };
        f.write_str(text)
    }
}
