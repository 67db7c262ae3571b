//! Proxies that replace a helper in comparisons: nginx, haproxy and nutcracker, each with one worker and
//! without logs. The files in `proof/lab/peers` configure them.

use std::fs;
use std::net::SocketAddr;

use super::{CommonOptions, Peer, PeerKind, Readiness};
use crate::{LabError, Launch, Place};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Program {
    Nginx,
    Haproxy,
    Nutcracker { redis: bool },
}

/// Options of a proxy in front of a server.
///
/// ```no_run
/// # fn main() -> Result<(), spillway_lab::LabError> {
/// use spillway_lab::{Place, peers::{Memcached, Proxy}};
/// let place = Place::local()?;
/// let server = Memcached::default().start(&place)?;
/// let proxy = Proxy::nginx(server.address()).start(&place)?;
/// println!("{} forwards to {}", proxy.address(), server.address());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proxy {
    program: Program,
    server: SocketAddr,
    common: CommonOptions,
}

impl Proxy {
    /// nginx with its stream module, which forwards bytes.
    pub fn nginx(server: SocketAddr) -> Proxy {
        Proxy::new(Program::Nginx, server)
    }

    /// haproxy in TCP mode, which forwards bytes.
    pub fn haproxy(server: SocketAddr) -> Proxy {
        Proxy::new(Program::Haproxy, server)
    }

    /// nutcracker (twemproxy) in front of a memcached, which sends all clients' requests on one connection.
    pub fn nutcracker(server: SocketAddr) -> Proxy {
        Proxy::new(Program::Nutcracker { redis: false }, server)
    }

    /// nutcracker in front of a Redis server.
    pub fn nutcracker_for_redis(server: SocketAddr) -> Proxy {
        Proxy::new(Program::Nutcracker { redis: true }, server)
    }

    fn new(program: Program, server: SocketAddr) -> Proxy {
        Proxy { program, server, common: CommonOptions::default() }
    }

    /// Sets a fixed port. Default: a free one.
    pub fn port(mut self, port: u16) -> Proxy {
        self.common.port = Some(port);
        self
    }

    /// Starts the proxy and waits until it listens.
    pub fn start(&self, place: &Place) -> Result<Peer, LabError> {
        Peer::start(Box::new(self.clone()), place)
    }

    fn template(&self) -> &'static str {
        match self.program {
            Program::Nginx => include_str!("../../peers/nginx.conf"),
            Program::Haproxy => include_str!("../../peers/haproxy.conf"),
            Program::Nutcracker { .. } => include_str!("../../peers/nutcracker.conf"),
        }
    }

    fn configuration(&self, directory: &str, listen: SocketAddr) -> String {
        let redis = self.program == Program::Nutcracker { redis: true };
        self.template()
            .replace("@DIRECTORY@", directory)
            .replace("@LISTEN@", &listen.to_string())
            .replace("@PORT@", &listen.port().to_string())
            .replace("@SERVER@", &self.server.to_string())
            .replace("@REDIS@", &redis.to_string())
    }
}

impl PeerKind for Proxy {
    fn program(&self) -> &'static str {
        match self.program {
            Program::Nginx => "nginx",
            Program::Haproxy => "haproxy",
            Program::Nutcracker { .. } => "nutcracker",
        }
    }

    fn debian_package(&self) -> &'static str {
        match self.program {
            Program::Nginx => "libnginx-mod-stream and nginx",
            Program::Haproxy => "haproxy",
            Program::Nutcracker { .. } => "nutcracker",
        }
    }

    fn common(&self) -> &CommonOptions {
        &self.common
    }

    fn launch(&self, place: &Place, listen: SocketAddr) -> Result<Launch, LabError> {
        let directory = place.directory();
        let file = directory.join(format!("{}-{}.conf", self.program(), listen.port()));
        fs::write(&file, self.configuration(&directory.display().to_string(), listen))
            .map_err(LabError::io(format!("cannot write {}", file.display())))?;
        let launch = Launch::new(self.program());
        Ok(match self.program {
            Program::Nginx => launch.arg("-p").arg(directory).args(["-e", "stderr", "-c"]).arg(file),
            Program::Haproxy => launch.args(["-db", "-f"]).arg(file),
            // nutcracker cannot run without a statistics port (`-s`).
            Program::Nutcracker { .. } => launch
                .args([
                    "-v",
                    "0",
                    "-a",
                    &listen.ip().to_string(),
                    "-s",
                    &place.free_port()?.to_string(),
                    "-c",
                ])
                .arg(file),
        })
    }

    fn readiness(&self) -> Readiness {
        Readiness::Listens
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configurations_are_complete_with_one_worker_and_no_logs() {
        let (server, listen) = ("10.77.0.1:11211".parse().unwrap(), "10.77.0.2:7000".parse().unwrap());
        for (proxy, one_worker) in [
            (Proxy::nginx(server), "worker_processes 1;"),
            (Proxy::haproxy(server), "nbthread 1"),
            (Proxy::nutcracker(server), "server_connections: 1"),
        ] {
            let text = proxy.configuration("/somewhere", listen);
            let lines: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).collect();
            assert!(lines.iter().all(|line| !line.contains('@')), "{text}");
            assert!(text.contains(one_worker) && text.contains("10.77.0.1:11211"), "{text}");
            assert!(text.contains("10.77.0.2:7000") && !text.contains("access_log"), "{text}");
        }
        let redis = Proxy::nutcracker_for_redis(server).configuration("/somewhere", listen);
        assert!(redis.contains("redis: true"));
    }
}
