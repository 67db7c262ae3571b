//! The status of the program at an admin socket: a helper, a sidecar, a switch, or a server on the user-level stack.

use std::fmt;
use std::path::Path;

use serde_json::{Value, json};
use spillway_daemon::deprecated::read_old_fields;
use spillway_helper::HelperStatus;
use spillway_helper::control::{Request, RequestError, send_request};
use spillway_sidecar::SidecarStatus;
use spillway_stack_server::ServerStatus;
use spillway_switch::SwitchStatus;

/// The answer to a request for the status.
pub(super) enum Answer {
    Helper(Box<HelperStatus>),
    Sidecar(Box<SidecarStatus>),
    Switch(Box<SwitchStatus>),
    Server(Box<ServerStatus>),
}

impl Answer {
    /// Requests the status with one request, for a program of any kind.
    pub(super) fn send_request(socket: &Path) -> Result<Answer, RequestError> {
        let invalid_answer = |error: serde_json::Error| RequestError::UnexpectedAnswer(error.to_string());
        let mut document: Value = send_request(socket, &Request::Status {})?;
        read_old_fields(&mut document);
        if document["kind"] == "switch" {
            let status = serde_json::from_value(document).map_err(invalid_answer)?;
            return Ok(Answer::Switch(Box::new(status)));
        }
        if document["kind"] == "server" {
            let status = serde_json::from_value(document).map_err(invalid_answer)?;
            return Ok(Answer::Server(Box::new(status)));
        }
        if document["kind"] == "sidecar" {
            let status = serde_json::from_value(document).map_err(invalid_answer)?;
            return Ok(Answer::Sidecar(Box::new(status)));
        }
        serde_json::from_value(document).map(Answer::Helper).map_err(invalid_answer)
    }

    pub(super) fn as_json(&self) -> Value {
        match self {
            Answer::Helper(status) => status.to_value(),
            Answer::Sidecar(status) => status.to_value(),
            Answer::Switch(status) => json!(status),
            Answer::Server(status) => json!(status),
        }
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Answer::Helper(status) => status.fmt(f),
            Answer::Sidecar(status) => status.fmt(f),
            Answer::Switch(status) => status.fmt(f),
            Answer::Server(status) => status.fmt(f),
        }
    }
}
