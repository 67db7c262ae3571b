//! Why the kernel's TCP cannot be used.

use std::fmt;
use std::io;

use spillway_bpf::{AttachError, BpfError};
use spillway_capture::CaptureError;
use spillway_net::BindError;

/// Why the kernel's TCP cannot be used for connections that move.
#[derive(Debug)]
pub enum OpenError {
    /// A program cannot be loaded.
    Program(BpfError),
    /// The program that holds packets cannot be attached to the interface.
    Interface(AttachError),
    /// The process may not capture or restore connections, or the kernel cannot.
    Capture(CaptureError),
    /// The service's address cannot be bound.
    Listener(BindError),
    /// The system has failed.
    Host(io::Error),
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::Program(error) => error.fmt(f),
            OpenError::Interface(error) => error.fmt(f),
            OpenError::Capture(error) => write!(f, "connections cannot move: {error}"),
            OpenError::Listener(error) => error.fmt(f),
            OpenError::Host(error) => write!(f, "the system has failed: {error}"),
        }
    }
}

impl std::error::Error for OpenError {}
