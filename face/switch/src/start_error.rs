//! Errors of starting a switch's daemon.

use std::fmt;
use std::io;
use std::path::PathBuf;

use spillway_daemon::PortError;

/// Why a switch's daemon does not start. The text includes the operator's next step.
#[derive(Debug)]
pub enum StartError {
    /// Another daemon runs for the same switch.
    AnotherDaemon {
        /// Directory of the switch's pinned tables.
        directory: PathBuf,
    },
    /// The directory of the switch's pinned tables cannot be used.
    Pins {
        /// The directory.
        directory: PathBuf,
        /// The host's error.
        error: io::Error,
    },
    /// Other users have access to the directory of the switch's pinned tables, or it belongs to another user.
    Shared {
        /// The directory.
        directory: PathBuf,
        /// The directory's owner.
        owner: u32,
        /// The user of this process.
        user: u32,
        /// The directory's permissions.
        mode: u32,
    },
    /// The switch that should be detached does not exist.
    NoSwitch {
        /// Directory in which its pinned tables would be.
        directory: PathBuf,
    },
    /// The program cannot be loaded or attached.
    Program(String),
    /// The socket for the control messages of this host's own server cannot be opened.
    Control(String),
    /// The HTTP port or the admin socket cannot be bound.
    Port(PortError),
    /// The host could not provide random bytes, a thread or a descriptor.
    Host(io::Error),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StartError::AnotherDaemon { directory } => write!(
                f,
                "another daemon runs for the switch with the tables in {}: stop it first, or give this switch another \
                 name (name = \"…\" in [switch])",
                directory.display()
            ),
            StartError::Pins { directory, error } => write!(
                f,
                "cannot use {} for the switch's tables: {error}; it needs the BPF file system (mount -t bpf bpf \
                 /sys/fs/bpf) and permission to write there",
                directory.display()
            ),
            StartError::Shared { directory, owner, user, mode } if owner == user => write!(
                f,
                "{} has the mode {mode:04o}, by which other users can use the switch's tables or keep its daemon from \
                 starting: look at what is in it, then `chmod 0700 {}`",
                directory.display(),
                directory.display()
            ),
            StartError::Shared { directory, owner, user, .. } => write!(
                f,
                "{} belongs to the user {owner}, this process runs as user {user}: start the switch as that user, give it \
                 another name, or remove the tables as root with `spillway switch --config FILE --detach`",
                directory.display()
            ),
            StartError::NoSwitch { directory } => write!(
                f,
                "there is no switch with this name: {} does not exist; correct name = \"…\" in [switch], or there is nothing to \
                 detach",
                directory.display()
            ),
            StartError::Program(why) | StartError::Control(why) => f.write_str(why),
            StartError::Port(PortError::Metrics { address, error }) => {
                write!(f, "cannot serve metrics at {address}: {error}; give another address (metrics)")
            }
            StartError::Port(PortError::Socket { path, error }) => {
                write!(f, "cannot serve status at {}: {error}", path.display())?;
                match error.kind() {
                    io::ErrorKind::AddrInUse => f.write_str(
                        "; another program answers there, or the path is not a socket: name another path (socket), or \
                         remove the file",
                    ),
                    io::ErrorKind::NotFound => f.write_str("; create its directory"),
                    _ => Ok(()),
                }
            }
            StartError::Host(error) => write!(f, "this host cannot run a switch: {error}"),
        }
    }
}

impl std::error::Error for StartError {}
