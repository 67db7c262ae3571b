//! Where operators and their programs look at a daemon and steer it: an admin socket, and an HTTP port.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::de::DeserializeOwned;
use serde_json::Value;
use spillway_metrics::{CONTENT_TYPE, Exposition, HttpServer, Request, Response, process};

use crate::admin::{AdminServer, Bounds};
use crate::documents::{answer, refusal};
use crate::usual_sockets::{create_usual_directory, end_choice};

/// What a daemon answers, on threads of the ports.
pub trait Answers: Send + Sync + 'static {
    /// What it can be asked at the admin socket.
    type Request: DeserializeOwned;
    /// What a line is called that is no such request.
    const NOT_A_REQUEST: &'static str;

    /// The document that answers a request; an error is told to the asker.
    fn answer(&self, request: Self::Request) -> Result<Value, String>;

    /// Writes every metric but those of the process.
    fn metrics(&self, out: &mut Exposition);

    /// What it is doing, as JSON.
    fn status_json(&self) -> String;

    /// Whether it accepts new clients; else why not, in lines.
    fn health(&self) -> Result<(), String>;

    /// Whether it has a page for browsers.
    const HAS_PAGE: bool = false;

    /// That page.
    fn page(&self) -> String {
        String::new()
    }
}

/// A port that cannot be made.
#[derive(Debug)]
pub enum PortError {
    /// The admin socket.
    Socket {
        /// Its path.
        path: PathBuf,
        /// The host's error.
        error: io::Error,
    },
    /// The HTTP port.
    Metrics {
        /// Its address.
        address: SocketAddr,
        /// The host's error.
        error: io::Error,
    },
}

/// Bound ports at which nothing is answered yet: bound early, a taken one is an error at the start.
#[derive(Debug)]
pub struct ControlPorts {
    admin: Option<AdminServer>,
    http: Option<TcpListener>,
}

impl ControlPorts {
    /// Makes those that are wanted.
    ///
    /// # Errors
    /// The first that cannot be made.
    pub fn bind(socket: Option<&Path>, metrics: Option<SocketAddr>) -> Result<ControlPorts, PortError> {
        let admin = |path: &Path| {
            path.parent().into_iter().for_each(create_usual_directory);
            AdminServer::bind(path).map_err(|error| PortError::Socket { path: path.to_owned(), error })
        };
        let admin = socket.map(admin).transpose();
        end_choice();
        let admin = admin?;
        let http = |address| HttpServer::bind(address).map_err(|error| PortError::Metrics { address, error });
        Ok(ControlPorts { admin, http: metrics.map(http).transpose()? })
    }

    /// Answers until the result is dropped.
    ///
    /// # Errors
    /// The host has no thread or descriptor left.
    pub fn serve<A: Answers>(self, answers: &Arc<A>) -> io::Result<ServedPorts> {
        if let Some(admin) = &self.admin {
            let answers = Arc::clone(answers);
            let document =
                move |line: &str| answer(line, A::NOT_A_REQUEST, |request| answers.answer(request));
            admin.serve(Bounds::default(), document, refusal)?;
        }
        let started = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        let serve = |listener| {
            let answers = Arc::clone(answers);
            HttpServer::serve(listener, move |request| respond(request, &*answers, started))
        };
        Ok(ServedPorts { _admin: self.admin, http: self.http.map(serve).transpose()? })
    }
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
        _ if A::HAS_PAGE => Response::text(404, "there are /, /metrics, /status and /health\n"),
        _ => Response::text(404, "there are /metrics, /status and /health\n"),
    }
}

/// Ports that answer. The admin socket's file is removed, and the HTTP port closed, when this is dropped.
#[derive(Debug)]
pub struct ServedPorts {
    _admin: Option<AdminServer>,
    http: Option<HttpServer>,
}

impl ServedPorts {
    /// Where metrics are served, if they are.
    pub fn metrics_address(&self) -> Option<SocketAddr> {
        self.http.as_ref().map(HttpServer::address)
    }
}
