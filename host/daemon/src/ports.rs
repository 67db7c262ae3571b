//! The admin socket and the HTTP port of a daemon, by which operators and their programs observe and control it.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::de::DeserializeOwned;
use serde_json::Value;
use spillway_metrics::{CONTENT_TYPE, Exposition, HttpServer, Request, Response, process};
use tracing::warn;

use crate::admin::{AdminServer, Bounds, Requester, Rights};
use crate::default_sockets::{create_default_directory, end_choice};
use crate::documents::{answer, refusal};
use crate::peer::AdminGroup;
use crate::privileges::{drop_capabilities, start_with_fewer};

/// The refusal of a change by a peer with [`Rights::Read`].
const READ_ONLY: &str = "this user may read, but not change anything: run the command as a member of the daemon's \
                         admin_group, as the daemon's user or as root";

/// A daemon's answers to requests at its admin socket and HTTP port, computed on the threads of the socket
/// and the port.
pub trait Answers: Send + Sync + 'static {
    /// A request at the admin socket.
    type Request: DeserializeOwned;
    /// The beginning of the error for a line that is not a [`Request`](Self::Request).
    const NOT_A_REQUEST: &'static str;

    /// The rights that a request needs.
    fn needs(request: &Self::Request) -> Rights;

    /// The document that answers a request, or the reason to refuse it.
    fn answer(&self, request: Self::Request) -> Result<Value, String>;

    /// As [`answer`](Self::answer), as JSON text: for answers that need too much memory as a [`Value`].
    fn answer_text(&self, request: Self::Request) -> Result<String, String> {
        self.answer(request).map(|document| format!("{document:#}"))
    }

    /// Writes the daemon's metrics. The caller adds those of the process.
    fn metrics(&self, out: &mut Exposition);

    /// The daemon's status, as JSON.
    fn status_json(&self) -> String;

    /// Whether the daemon accepts new clients; an error holds the reasons against it, one on each line.
    fn health(&self) -> Result<(), String>;

    /// Whether [`page`](Self::page) is served at `/`.
    const HAS_PAGE: bool = false;

    /// The status page, as HTML.
    fn page(&self) -> String {
        String::new()
    }

    /// The plain text at another path, such as a page of documentation.
    fn text(&self, _path: &str) -> Option<&'static str> {
        None
    }
}

/// A port that cannot be created.
#[derive(Debug)]
pub enum PortError {
    /// The admin socket.
    Socket {
        /// Path of the socket.
        path: PathBuf,
        /// The host's error.
        error: io::Error,
    },
    /// The HTTP port.
    Metrics {
        /// Address of the port.
        address: SocketAddr,
        /// The host's error.
        error: io::Error,
    },
}

/// Ports that are bound and not served yet, so that an address in use is an error before the daemon starts.
#[derive(Debug)]
pub struct ControlPorts {
    admin: Option<AdminServer>,
    http: Option<TcpListener>,
}

impl ControlPorts {
    /// Binds the given ports. Members of `admin_group` may operate the daemon, see [`AdminServer::bind`]. The error is
    /// about the first port that cannot be bound.
    pub fn bind(
        socket: Option<&Path>,
        admin_group: Option<&AdminGroup>,
        metrics: Option<SocketAddr>,
    ) -> Result<ControlPorts, PortError> {
        let admin = |path: &Path| {
            path.parent().into_iter().for_each(create_default_directory);
            AdminServer::bind(path, admin_group.map(|group| group.id))
                .map_err(|error| PortError::Socket { path: path.to_owned(), error })
        };
        let admin = socket.map(admin).transpose();
        end_choice();
        let admin = admin?;
        let http = |address| HttpServer::bind(address).map_err(|error| PortError::Metrics { address, error });
        Ok(ControlPorts { admin, http: metrics.map(http).transpose()? })
    }

    /// Serves the ports until the result is dropped. Fails if the host has no threads or descriptors left.
    pub fn serve<A: Answers>(self, answers: &Arc<A>) -> io::Result<ServedPorts> {
        if let Some(admin) = &self.admin {
            let answers = Arc::clone(answers);
            let document = move |line: &str, requester: &Requester<'_>| {
                answer(line, A::NOT_A_REQUEST, |request| {
                    if A::needs(&request) == Rights::Operate {
                        permit_change(requester)?;
                    }
                    answers.answer_text(request)
                })
            };
            admin.serve(Bounds::default(), document, refusal)?;
        }
        let started = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        let serve = |listener| {
            let answers = Arc::clone(answers);
            start_with_fewer(drop_capabilities, || {
                HttpServer::serve(listener, move |request| respond(request, &*answers, started))
            })
        };
        Ok(ServedPorts { _admin: self.admin, http: self.http.map(serve).transpose()? })
    }
}

/// Whether a request that changes something is carried out; an error is the reason to refuse it.
fn permit_change(requester: &Requester<'_>) -> Result<(), String> {
    if requester.rights() == Rights::Read {
        return Err(READ_ONLY.to_owned());
    }
    if !requester.is_connected() {
        warn!("request dropped: its client has closed the connection (cancelled, or its timeout ended)");
        return Err("the client has closed the connection".to_owned());
    }
    Ok(())
}

fn respond<A: Answers>(request: &Request, answers: &A, started: f64) -> Response {
    match request.path.as_str() {
        "/metrics" => {
            let mut out = Exposition::new();
            answers.metrics(&mut out);
            process::expose(&mut out, started);
            Response::ok(CONTENT_TYPE, out.into_text())
        }
        "/status" => Response::ok("application/json", answers.status_json()),
        "/health" => match answers.health() {
            Ok(()) => Response::text(200, "healthy\n"),
            Err(why) => Response::text(503, format!("{}\n", why.trim_end())),
        },
        "/" if A::HAS_PAGE => Response::ok("text/html; charset=utf-8", answers.page()),
        path => match answers.text(path) {
            Some(text) => Response::text(200, text),
            None if A::HAS_PAGE => Response::text(404, "not found: give /, /metrics, /status or /health\n"),
            None => Response::text(404, "not found: give /metrics, /status or /health\n"),
        },
    }
}

/// Served ports. Dropping this closes the HTTP port and removes the admin socket's file.
#[derive(Debug)]
pub struct ServedPorts {
    _admin: Option<AdminServer>,
    http: Option<HttpServer>,
}

impl ServedPorts {
    /// Address of the HTTP port, if the daemon has one.
    pub fn metrics_address(&self) -> Option<SocketAddr> {
        self.http.as_ref().map(HttpServer::address)
    }
}

#[cfg(test)]
mod tests;
