//! Requests to a running sidecar, and their answers: one line of JSON in, one document out, as with a helper.

use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use spillway_daemon::{Answers, AskError, OverrideOutcome, Rights};
use spillway_metrics::Exposition;
use spillway_policy::Override;
use tracing::info;

use crate::metrics;
use crate::shared::Shared;
use crate::status::SidecarStatus;

/// How long an asker waits.
const PATIENCE: Duration = Duration::from_secs(10);

/// What a sidecar can be asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Request {
    /// What it does: answered with a [`SidecarStatus`].
    Status {},
    /// The operator's override on relief: answered with [`OverrideOutcome`].
    Relief {
        /// The service, as its name or as the server's link port.
        service: String,
        /// `auto`, `on` or `off`.
        word: String,
        /// For how long; for ever, if not given.
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
            Request::Status {} => Ok(json!(self.status())),
            Request::Relief { service, word, lasts_ms } => {
                say(self, &service, &word, lasts_ms).map(|said| json!(said))
            }
        }
    }

    fn metrics(&self, out: &mut Exposition) {
        metrics::tell(self, out);
    }

    fn status_json(&self) -> String {
        self.status().to_json()
    }

    fn health(&self) -> Result<(), String> {
        self.check_health()
    }
}

fn say(shared: &Shared, service: &str, word: &str, lasts_ms: Option<u64>) -> Result<OverrideOutcome, String> {
    let word: Override = word.parse().map_err(|error| format!("{word}: {error}"))?;
    if !shared.say(service, word, lasts_ms.map(Duration::from_millis)) {
        return Err(format!("no service {service} here; there is: {}", shared.name()));
    }
    info!(%service, %word, lasts_ms, "relief: override");
    Ok(OverrideOutcome { word: word.name().to_owned(), clients: 0 })
}

/// Asks the sidecar that serves this admin socket what it does.
///
/// # Errors
/// Nobody answers there, or something else than a sidecar.
pub fn query(path: &Path) -> Result<SidecarStatus, AskError> {
    spillway_daemon::ask_for(path, &Request::Status {}, PATIENCE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_strict() {
        let parse = |text: &str| serde_json::from_str::<Request>(text);
        assert_eq!(parse(r#"{"command":"status"}"#).unwrap(), Request::Status {});
        let said = parse(r#"{"command":"relief","service":"a","word":"on"}"#).unwrap();
        assert_eq!(said, Request::Relief { service: "a".into(), word: "on".into(), lasts_ms: None });
        for text in ["", "status", r#"{"command":"reload"}"#, r#"{"command":"status","x":1}"#] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
