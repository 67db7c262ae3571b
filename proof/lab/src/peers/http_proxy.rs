//! Reverse proxies for HTTP: nginx and haproxy, each with one worker and without logs. The files `*-http.conf` in
//! `proof/lab/peers` configure them.

use std::fs;
use std::net::SocketAddr;

use super::{CommonOptions, Peer, PeerKind, Readiness};
use crate::{LabError, Launch, Place};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Program {
    Nginx,
    Haproxy,
}

/// Options of a reverse proxy in front of HTTP servers, of which each can answer every request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpProxy {
    program: Program,
    backends: Vec<SocketAddr>,
    common: CommonOptions,
}

impl HttpProxy {
    /// nginx, which hashes the request's target to choose one of the backends.
    pub fn nginx(backends: Vec<SocketAddr>) -> HttpProxy {
        HttpProxy { program: Program::Nginx, backends, common: CommonOptions::default() }
    }

    /// haproxy, as [`nginx`](Self::nginx).
    pub fn haproxy(backends: Vec<SocketAddr>) -> HttpProxy {
        HttpProxy { program: Program::Haproxy, ..HttpProxy::nginx(backends) }
    }

    /// Starts the proxy and waits until it listens.
    ///
    /// # Errors
    /// The program is not installed, or did not start.
    pub fn start(&self, place: &Place) -> Result<Peer, LabError> {
        Peer::start(Box::new(self.clone()), place)
    }

    fn configuration(&self, directory: &str, listen: SocketAddr) -> String {
        let (template, server): (_, fn(usize, &SocketAddr) -> String) = match self.program {
            // Without `max_fails=0` a backend that was slow once would be left out for ten seconds.
            Program::Nginx => {
                (include_str!("../../peers/nginx-http.conf"), |_, at| format!("server {at} max_fails=0;"))
            }
            Program::Haproxy => {
                (include_str!("../../peers/haproxy-http.conf"), |number, at| format!("server b{number} {at}"))
            }
        };
        let servers: Vec<String> =
            self.backends.iter().enumerate().map(|(index, at)| server(index + 1, at)).collect();
        template
            .replace("@DIRECTORY@", directory)
            .replace("@LISTEN@", &listen.to_string())
            .replace("@PORT@", &listen.port().to_string())
            .replace("@BACKENDS@", &servers.join("\n    "))
    }
}

impl PeerKind for HttpProxy {
    fn program(&self) -> &'static str {
        match self.program {
            Program::Nginx => "nginx",
            Program::Haproxy => "haproxy",
        }
    }

    fn debian_package(&self) -> &'static str {
        self.program()
    }

    fn common(&self) -> &CommonOptions {
        &self.common
    }

    fn launch(&self, place: &Place, listen: SocketAddr) -> Result<Launch, LabError> {
        let directory = place.directory();
        let file = directory.join(format!("{}-http-{}.conf", self.program(), listen.port()));
        fs::write(&file, self.configuration(&directory.display().to_string(), listen))
            .map_err(LabError::io(format!("cannot write {}", file.display())))?;
        let launch = Launch::new(self.program());
        Ok(match self.program {
            Program::Nginx => launch.arg("-p").arg(directory).args(["-e", "stderr", "-c"]).arg(file),
            Program::Haproxy => launch.args(["-db", "-f"]).arg(file),
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
    fn configurations_are_complete_and_name_each_backend_once() {
        let backends: Vec<SocketAddr> = ["10.77.0.3:80", "10.77.0.4:80"].map(|at| at.parse().unwrap()).into();
        let listen = "10.77.0.2:7000".parse().unwrap();
        for (proxy, one_worker, hashes) in [
            (HttpProxy::nginx(backends.clone()), "worker_processes 1;", "hash $request_uri;"),
            (HttpProxy::haproxy(backends), "nbthread 1", "balance uri whole"),
        ] {
            let text = proxy.configuration("/somewhere", listen);
            let lines: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).collect();
            assert!(lines.iter().all(|line| !line.contains('@')), "{text}");
            assert!(text.contains(one_worker) && text.contains(hashes) && text.contains("10.77.0.2:7000"));
            assert_eq!((text.matches("10.77.0.3:80").count(), text.matches("10.77.0.4:80").count()), (1, 1));
        }
    }
}
