use std::net::SocketAddr;

use super::{CommonOptions, Peer, PeerKind, Readiness};
use crate::{LabError, Launch, Place};

/// Options of a Redis server, which keeps its data in memory only.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Redis {
    common: CommonOptions,
}

impl Redis {
    /// Sets a fixed port. Default: a free one.
    pub fn port(mut self, port: u16) -> Redis {
        self.common.port = Some(port);
        self
    }

    /// Adds arguments of redis-server, such as `["--io-threads", "2"]`.
    pub fn args<S: Into<String>>(mut self, arguments: impl IntoIterator<Item = S>) -> Redis {
        self.common.extra.extend(arguments.into_iter().map(Into::into));
        self
    }

    /// Prepends a command, such as `["spillway", "run", "--link", ":11411", "--"]`.
    pub fn wrapper<S: Into<String>>(mut self, command: impl IntoIterator<Item = S>) -> Redis {
        self.common.wrapper = command.into_iter().map(Into::into).collect();
        self
    }

    /// Adds an environment variable.
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Redis {
        self.common.environment.push((name.into(), value.into()));
        self
    }

    /// Starts the server and waits until it answers.
    pub fn start(&self, place: &Place) -> Result<Peer, LabError> {
        Peer::start(Box::new(self.clone()), place)
    }
}

impl PeerKind for Redis {
    fn program(&self) -> &'static str {
        "redis-server"
    }

    fn debian_package(&self) -> &'static str {
        "redis-server"
    }

    fn common(&self) -> &CommonOptions {
        &self.common
    }

    fn launch(&self, _place: &Place, listen: SocketAddr) -> Result<Launch, LabError> {
        Ok(Launch::new("redis-server")
            .args(["--bind", &listen.ip().to_string(), "--port", &listen.port().to_string()])
            .args(["--save", "", "--appendonly", "no", "--daemonize", "no"])
            // Protected mode refuses clients whose address is not loopback, even through helpers.
            .args(["--protected-mode", "no"]))
    }

    fn readiness(&self) -> Readiness {
        Readiness::Answers { request: b"INFO server\r\n", pid_prefix: "process_id:", last_line: "-" }
    }
}
