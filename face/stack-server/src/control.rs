//! Requests to a server at its admin socket, and their answers.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use spillway_daemon::{Answers, RequestError, Rights, unknown_service};
use spillway_metrics::{Declared, Exposition};
use spillway_moves::{BLACKOUT_BOUNDS_US, Movable, Override, Tcp};
use spillway_tcp::Stack;
use spillway_wire::handoff::Reason;

use crate::remote::{MoveFailure, Remote};
use crate::status::{PolicyStatus, ServerStatus};

/// Timeout of a request: more than the 2 s for the server's thread and the 5 s for the results of moves (`remote`).
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// A request to a server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// Report the status: answered with a [`ServerStatus`].
    Status {},
    /// Move connections, and wait until the moves have ended: answered with a [`MoveOutcome`].
    Move {
        /// The service's name.
        service: String,
        /// The client of the connection; `None`: all connections.
        #[serde(default)]
        connection: Option<SocketAddr>,
        /// The server that gets the connections; `None`: the least loaded one.
        #[serde(default)]
        to: Option<String>,
    },
    /// Report the times of the steps of moves that have ended since the last request of this kind, for measurements:
    /// answered with [`StepsOfMoves`](crate::StepsOfMoves).
    MoveSteps {},
    /// Override the policy for moves: answered with the [`PolicyStatus`] after it.
    MoveOverride {
        /// The service's name.
        service: String,
        /// `auto`, `on` or `off`.
        manual_override: String,
        /// Time after which the override becomes `auto` again; without limit if not given.
        #[serde(default)]
        lasts_ms: Option<u64>,
    },
    /// Always refused, because helpers do not relieve this server. `spillway relief` sends this to every program of a host.
    Relief {
        /// Name of the service.
        service: String,
        /// The override.
        word: String,
        /// Time after which the override ends.
        #[serde(default)]
        lasts_ms: Option<u64>,
    },
}

/// The outcome of a request to move connections.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MoveOutcome {
    /// Number of connections that have moved.
    pub moved: usize,
    /// Connections that have not moved.
    pub failed: Vec<FailedMove>,
    /// Clients of connections whose moves have no result after 5 s: they may still move.
    #[serde(default)]
    pub pending: Vec<SocketAddr>,
}

/// A connection that has not moved, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedMove {
    /// The client.
    pub client: SocketAddr,
    /// The reason, with the operator's next step.
    pub why: String,
}

/// Sends a request to the server at this admin socket, and returns the answer.
///
/// # Errors
/// The server does not answer or refuses.
pub fn send_request<T: DeserializeOwned>(path: &Path, request: &Request) -> Result<T, RequestError> {
    spillway_daemon::send_json_request(path, request, REQUEST_TIMEOUT)
}

/// Answers requests for a server that runs on another thread: for
/// [`ControlPorts::serve`](spillway_daemon::ControlPorts::serve).
pub struct Control<A, S: Tcp = Stack>(Remote<A, S>);

impl<A: Movable + 'static, S: Tcp + 'static> Control<A, S> {
    /// Answers for this server.
    pub fn new(remote: Remote<A, S>) -> Control<A, S> {
        Control(remote)
    }

    fn status(&self) -> Result<ServerStatus, String> {
        self.0.status().map_err(|error| error.to_string())
    }

    fn check_service(&self, service: &str) -> Result<(), String> {
        let name = &self.0.about().name;
        if service == name { Ok(()) } else { Err(unknown_service(service, &format!("there is: {name}"))) }
    }

    fn set_override(
        &self,
        service: &str,
        manual_override: &str,
        lasts_ms: Option<u64>,
    ) -> Result<PolicyStatus, String> {
        self.check_service(service)?;
        let parsed: Override = manual_override
            .parse()
            .map_err(|_| format!("override {manual_override:?}: expected auto, on or off"))?;
        self.0
            .set_override(parsed, lasts_ms.map(Duration::from_millis))
            .map_err(|error| error.to_string())?;
        tracing::info!(service, manual_override, "override of the policy for moves set");
        self.status().map(|status| status.policy)
    }

    fn migrate(
        &self,
        service: &str,
        connection: Option<SocketAddr>,
        to: Option<&str>,
    ) -> Result<MoveOutcome, String> {
        self.check_service(service)?;
        let results = self.0.migrate_all(connection, to).map_err(|error| error.to_string())?;
        let mut outcome = MoveOutcome::default();
        for (client, result) in results {
            match result {
                Ok(()) => outcome.moved += 1,
                Err(MoveFailure::Late) => outcome.pending.push(client),
                Err(failure) => outcome.failed.push(FailedMove { client, why: failure.to_string() }),
            }
        }
        Ok(outcome)
    }
}

impl<A: Movable + 'static, S: Tcp + 'static> Answers for Control<A, S> {
    type Request = Request;
    const NOT_A_REQUEST: &'static str = "not a request to a server";

    fn needs(request: &Request) -> Rights {
        match request {
            Request::Status {} => Rights::Read,
            // Steps are removed when they are reported.
            Request::Move { .. }
            | Request::MoveSteps {}
            | Request::MoveOverride { .. }
            | Request::Relief { .. } => Rights::Operate,
        }
    }

    fn answer(&self, request: Request) -> Result<Value, String> {
        match request {
            Request::Status {} => self.status().map(|status| json!(status)),
            Request::Move { service, connection, to } => {
                self.migrate(&service, connection, to.as_deref()).map(|outcome| json!(outcome))
            }
            Request::MoveSteps {} => {
                self.0.take_steps().map(|steps| json!(steps)).map_err(|error| error.to_string())
            }
            Request::MoveOverride { service, manual_override, lasts_ms } => {
                self.set_override(&service, &manual_override, lasts_ms).map(|policy| json!(policy))
            }
            Request::Relief { service, .. } => {
                Err(unknown_service(&service, "a server on the user-level stack has no helped clients"))
            }
        }
    }

    fn metrics(&self, out: &mut Exposition) {
        if let Ok(status) = self.0.status() {
            Declared::write(&METRICS, &status, out);
        }
    }

    fn status_json(&self) -> String {
        self.status().map_or_else(|why| json!({ "error": why }), |status| json!(status)).to_string()
    }

    fn health(&self) -> Result<(), String> {
        self.status().map(|_| ())
    }
}

const METRICS: [Declared<ServerStatus>; 9] = [
    Declared::gauge(
        "spillway_stack_server_connections",
        &[],
        "Connections of this server.",
        |status, out| {
            out.count(&[], status.connections as u64);
        },
    ),
    Declared::counter(
        "spillway_stack_server_moves_total",
        &["result"],
        "Moves of connections, by result.",
        |status, out| {
            let moves = status.moves;
            for (result, count) in [
                ("moved", moves.moved),
                ("imported", moves.imported),
                ("kept", moves.kept),
                ("returned", moves.returned),
                ("let_go", moves.let_go),
                ("refused", moves.refused),
                ("lost", moves.lost),
            ] {
                out.count(&[result], count);
            }
        },
    ),
    Declared::counter(
        "spillway_stack_server_move_refusals_total",
        &["reason"],
        "Moves to this server that it has refused or given back, by reason.",
        |status, out| {
            for reason in Reason::ALL {
                out.count(&[reason.name()], status.refusals.get(reason.name()).copied().unwrap_or_default());
            }
        },
    ),
    Declared::counter(
        "spillway_stack_server_held_frames_total",
        &[],
        "Packets of clients that have waited here for their connection.",
        |status, out| {
            out.count(&[], status.moves.held);
        },
    ),
    Declared::gauge(
        "spillway_stack_server_held_bytes",
        &[],
        "Bytes of packets that wait here for their connection.",
        |status, out| {
            out.count(&[], status.moves.held_bytes as u64);
        },
    ),
    Declared::histogram(
        "spillway_stack_server_blackout_seconds",
        &[],
        "Time from the export of each connection that left until its target had accepted it, or until it came back.",
        |status, out| {
            let bounds = BLACKOUT_BOUNDS_US.iter().map(|us| *us as f64 / 1e6);
            out.histogram(&[], bounds, &status.blackout.buckets, status.blackout.sum_us as f64 / 1e6);
        },
    ),
    Declared::gauge(
        "spillway_stack_server_load_ppm",
        &[],
        "Load, in millionths of the capacity.",
        |status, out| {
            out.count(&[], u64::from(status.policy.load_ppm));
        },
    ),
    Declared::counter(
        "spillway_stack_server_policy_moves_total",
        &["reason"],
        "Moves that the policy has ordered, by reason.",
        |status, out| {
            let policy = &status.policy;
            out.count(&["load"], policy.load);
            out.count(&["above_mean"], policy.above_mean);
            out.count(&["override"], policy.override_on);
        },
    ),
    Declared::counter(
        "spillway_stack_server_policy_refusals_total",
        &["reason"],
        "Moves of the policy that failed, or that a limit forbade.",
        |status, out| {
            out.count(&["failed"], status.policy.failed);
            out.count(&["limit"], status.policy.forbidden);
        },
    ),
];
