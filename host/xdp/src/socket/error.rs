//! Why an AF_XDP socket could not be opened.

use std::fmt;
use std::io;

/// Why an AF_XDP socket could not be opened.
#[derive(Debug)]
pub enum SocketError {
    /// The number of frames is not a power of two from 64 to 65,536.
    Frames(u32),
    /// The socket could not be created.
    Open(io::Error),
    /// The shared memory could not be made.
    Memory(io::Error),
    /// The socket could not be bound to its queue.
    Bind {
        /// The interface's name.
        interface: String,
        /// The queue's number.
        queue: u32,
        /// The system's error.
        source: io::Error,
    },
}

impl fmt::Display for SocketError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SocketError::Frames(frames) => {
                write!(f, "cannot use {frames} frames: give a power of two from 64 to 65,536")
            }
            SocketError::Open(source) if source.raw_os_error() == Some(libc::EAFNOSUPPORT) => {
                write!(f, "cannot open an AF_XDP socket: this kernel has none (CONFIG_XDP_SOCKETS)")
            }
            SocketError::Open(source) => {
                write!(f, "cannot open an AF_XDP socket: {source}; it needs root, or CAP_NET_RAW")
            }
            SocketError::Memory(source) => write!(
                f,
                "cannot make the shared memory of an AF_XDP socket: {source}; it needs CAP_IPC_LOCK or a higher limit of \
                 locked memory (LimitMEMLOCK= in a unit, `ulimit -l` in a shell)"
            ),
            SocketError::Bind { interface, queue, source } if source.raw_os_error() == Some(libc::EBUSY) => {
                write!(
                    f,
                    "cannot use queue {queue} of interface {interface}: another AF_XDP socket has it; `ss --xdp -p` names \
                 its process"
                )
            }
            SocketError::Bind { interface, queue, source } => {
                write!(f, "cannot use queue {queue} of interface {interface} for AF_XDP: {source}")
            }
        }
    }
}

impl std::error::Error for SocketError {}
