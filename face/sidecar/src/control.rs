//! The admin socket's protocol, the same as a helper's: a request is one line of JSON, the answer one JSON document.

use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use spillway_daemon::deprecated::read_old_fields;
use spillway_daemon::{Answers, OverrideOutcome, RequestError, Rights, STATUS_TIMEOUT, unknown_service};
use spillway_metrics::Exposition;
use spillway_policy::Override;
use tracing::info;

use crate::metrics;
use crate::shared::Shared;
use crate::status::SidecarStatus;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Request {
    /// Answered with a [`SidecarStatus`].
    Status {},
    /// Sets the operator's override. Answered with an [`OverrideOutcome`].
    Relief {
        /// The service's name, or the server's link port as `IP:PORT`.
        service: String,
        /// `auto`, `on` or `off`.
        word: String,
        /// How long the override lasts, in milliseconds; without it, until the next override.
        #[serde(default)]
        lasts_ms: Option<u64>,
    },
}

impl Answers for Shared {
    type Request = Request;
    const NOT_A_REQUEST: &'static str = "not a request to a sidecar";

    fn needs(request: &Request) -> Rights {
        match request {
            Request::Status {} => Rights::Read,
            Request::Relief { .. } => Rights::Operate,
        }
    }

    fn answer(&self, request: Request) -> Result<Value, String> {
        match request {
            Request::Status {} => Ok(self.status().to_value()),
            Request::Relief { service, word, lasts_ms } => {
                set_override(self, &service, &word, lasts_ms).map(|outcome| json!(outcome))
            }
        }
    }

    fn metrics(&self, out: &mut Exposition) {
        metrics::write(self, out);
    }

    fn status_json(&self) -> String {
        self.status().to_json()
    }

    fn health(&self) -> Result<(), String> {
        self.check_health()
    }
}

fn set_override(
    shared: &Shared,
    service: &str,
    word: &str,
    lasts_ms: Option<u64>,
) -> Result<OverrideOutcome, String> {
    let new: Override = word.parse().map_err(|error| format!("{word}: {error}"))?;
    if !shared.set_override(service, new, lasts_ms.map(Duration::from_millis)) {
        return Err(unknown_service(service, &format!("this sidecar serves {}", shared.name())));
    }
    info!(%service, "override" = %new, lasts_ms, "relief: override");
    Ok(OverrideOutcome { manual_override: new.name().to_owned(), clients: 0 })
}

/// Reads the status of the sidecar that serves this admin socket.
///
/// # Errors
/// The socket does not answer within [`STATUS_TIMEOUT`], or the program behind it is not a sidecar.
pub fn query(path: &Path) -> Result<SidecarStatus, RequestError> {
    let mut status: Value = spillway_daemon::send_json_request(path, &Request::Status {}, STATUS_TIMEOUT)?;
    read_old_fields(&mut status);
    serde_json::from_value(status).map_err(|error| RequestError::UnexpectedAnswer(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_requests_and_fields_are_refused() {
        let parse = |text: &str| serde_json::from_str::<Request>(text);
        assert_eq!(parse(r#"{"command":"status"}"#).unwrap(), Request::Status {});
        let request = parse(r#"{"command":"relief","service":"a","word":"on"}"#).unwrap();
        assert_eq!(request, Request::Relief { service: "a".into(), word: "on".into(), lasts_ms: None });
        for text in ["", "status", r#"{"command":"reload"}"#, r#"{"command":"status","x":1}"#] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
