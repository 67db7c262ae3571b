use std::net::SocketAddr;

use super::{CommonOptions, Peer, PeerKind, Readiness};
use crate::{LabError, Launch, Place};

/// Options of a memcached.
///
/// ```no_run
/// # fn main() -> Result<(), spillway_lab::LabError> {
/// use spillway_lab::{Place, peers::Memcached};
/// let server = Memcached::default().threads(4).start(&Place::local()?)?;
/// println!("memcached {} at {}", server.pid(), server.address());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Memcached {
    threads: usize,
    memory_mib: usize,
    connections: usize,
    common: CommonOptions,
}

impl Default for Memcached {
    /// One thread, 64 MiB, 8,192 connections, any free port.
    fn default() -> Memcached {
        Memcached { threads: 1, memory_mib: 64, connections: 8_192, common: CommonOptions::default() }
    }
}

impl Memcached {
    /// Worker threads (`-t`).
    pub fn threads(mut self, threads: usize) -> Memcached {
        self.threads = threads;
        self
    }

    /// Memory for items (`-m`), in MiB.
    pub fn memory_mib(mut self, mib: usize) -> Memcached {
        self.memory_mib = mib;
        self
    }

    /// Limit of simultaneous connections (`-c`).
    pub fn connections(mut self, connections: usize) -> Memcached {
        self.connections = connections;
        self
    }

    /// Sets a fixed port. Default: a free one.
    pub fn port(mut self, port: u16) -> Memcached {
        self.common.port = Some(port);
        self
    }

    /// Adds arguments of memcached.
    pub fn args<S: Into<String>>(mut self, arguments: impl IntoIterator<Item = S>) -> Memcached {
        self.common.extra.extend(arguments.into_iter().map(Into::into));
        self
    }

    /// Prepends a command, such as `["spillway", "run", "--link", ":11411", "--"]`.
    pub fn wrapper<S: Into<String>>(mut self, command: impl IntoIterator<Item = S>) -> Memcached {
        self.common.wrapper = command.into_iter().map(Into::into).collect();
        self
    }

    /// Adds an environment variable.
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Memcached {
        self.common.environment.push((name.into(), value.into()));
        self
    }

    /// Starts memcached and waits until it answers.
    pub fn start(&self, place: &Place) -> Result<Peer, LabError> {
        Peer::start(Box::new(self.clone()), place)
    }
}

impl PeerKind for Memcached {
    fn program(&self) -> &'static str {
        "memcached"
    }

    fn debian_package(&self) -> &'static str {
        "memcached"
    }

    fn common(&self) -> &CommonOptions {
        &self.common
    }

    fn launch(&self, _place: &Place, listen: SocketAddr) -> Result<Launch, LabError> {
        let mut launch = Launch::new("memcached")
            .args(["-l", &listen.ip().to_string(), "-p", &listen.port().to_string(), "-U", "0"])
            .args(["-t", &self.threads.to_string(), "-m", &self.memory_mib.to_string()])
            .args(["-c", &self.connections.to_string()]);
        if rustix::process::geteuid().is_root() {
            // A process that changes its user loses its parent death signal (prctl(2)).
            launch = launch.args(["-u", "root"]);
        }
        Ok(launch)
    }

    fn readiness(&self) -> Readiness {
        Readiness::Answers { request: b"stats\r\n", pid_prefix: "STAT pid ", last_line: "END" }
    }
}
