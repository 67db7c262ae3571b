//! Requests and answers on an admin socket. A request is one line of JSON; the answer is a JSON object whose only field
//! is `ok` or `error`.

use std::fmt;
use std::io;
use std::path::Path;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// The document that answers a request line. `not_a_request` begins the error for a line that cannot be parsed. `handle`
/// returns JSON text.
pub fn answer<R: DeserializeOwned>(
    line: &str,
    not_a_request: &str,
    handle: impl FnOnce(R) -> Result<String, String>,
) -> String {
    let request = serde_json::from_str(line).map_err(|error| format!("{not_a_request}: {error}"));
    match request.and_then(handle) {
        // Strings in JSON have no line ends of their own: this only indents.
        Ok(document) => format!("{{\n  \"ok\": {}\n}}\n", document.replace('\n', "\n  ")),
        Err(why) => refusal(&why),
    }
}

/// The document that refuses a request for the reason `why`.
pub fn refusal(why: &str) -> String {
    to_text(&json!({ "error": why }))
}

/// The reason to refuse a request for a service that the daemon does not have; `instead` names those that it has.
/// Commands that query several daemons recognize this reason by [`RequestError::is_unknown_service`].
pub fn unknown_service(name: &str, instead: &str) -> String {
    format!("{UNKNOWN_SERVICE}{name} here; {instead}")
}

fn to_text(document: &Value) -> String {
    // Cannot fail: a JSON value can always be written as text.
    serde_json::to_string_pretty(document).unwrap_or_default() + "\n"
}

/// The outcome of an override on a service's relief.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OverrideOutcome {
    /// The override in force now: `auto`, `on` or `off`.
    #[serde(rename = "word")]
    pub manual_override: String,
    /// Library clients that move elsewhere because of the override.
    pub clients: u64,
}

/// Timeout of a request for the status. It is short, because the answer needs no waiting in the daemon, and operators ask
/// for it when something is wrong.
pub const STATUS_TIMEOUT: Duration = Duration::from_secs(5);

/// Timeout of a request other than for the status: a reload may look up host names, and a large table of flows takes
/// seconds to read.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Why a request to a daemon failed.
#[derive(Debug)]
pub enum RequestError {
    /// The socket cannot be used, or no answer came in time.
    Socket(io::Error),
    /// The answer is not a document of the expected daemon.
    UnexpectedAnswer(String),
    /// The daemon refuses the request, for this reason.
    Refused(String),
}

/// The beginning of each text of [`unknown_service`].
const UNKNOWN_SERVICE: &str = "no service ";

impl RequestError {
    /// Whether the daemon refuses because it has no service of this name.
    #[must_use]
    pub fn is_unknown_service(&self) -> bool {
        matches!(self, RequestError::Refused(why) if why.starts_with(UNKNOWN_SERVICE))
    }

    /// Whether no daemon serves the socket: not a failure where a daemon is optional.
    #[must_use]
    pub fn is_absent(&self) -> bool {
        use io::ErrorKind::{ConnectionRefused, NotFound};
        matches!(self, RequestError::Socket(error) if matches!(error.kind(), ConnectionRefused | NotFound))
    }
}

impl fmt::Display for RequestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RequestError::Socket(error) if self.is_absent() => write!(
                f,
                "{error}; is a helper, sidecar, switch or server running with this admin socket (socket, --socket, \
                 --status-socket)? --socket PATH names another one"
            ),
            RequestError::Socket(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                write!(
                    f,
                    "{error}; unless `admin_group` is set, only root and the socket's owner and group may connect: run \
                     this command as one of them"
                )
            }
            RequestError::Socket(error) if error.kind() == io::ErrorKind::WouldBlock => {
                f.write_str("no answer in time: the program there is stopped or overloaded")
            }
            RequestError::Socket(error) => write!(f, "{error}"),
            RequestError::UnexpectedAnswer(what) => {
                write!(f, "the answer is not that of a helper, sidecar, switch or server: {what}")
            }
            RequestError::Refused(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for RequestError {}

/// Sends a request to the daemon at the socket `path` with [`send_request`](crate::send_request), and returns the
/// answer.
///
/// # Errors
/// The daemon does not answer, answers with something other than a `T`, or refuses.
pub fn send_json_request<T: DeserializeOwned>(
    path: &Path,
    request: &impl Serialize,
    timeout: Duration,
) -> Result<T, RequestError> {
    let answer = |error: serde_json::Error| RequestError::UnexpectedAnswer(error.to_string());
    let line = serde_json::to_string(request).map_err(answer)?;
    let text = crate::send_request(path, &line, timeout).map_err(RequestError::Socket)?;
    let mut document: Value = serde_json::from_str(&text).map_err(answer)?;
    if let Some(why) = document["error"].as_str() {
        return Err(RequestError::Refused(why.to_owned()));
    }
    serde_json::from_value(document["ok"].take()).map_err(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcome_of_an_override_keeps_its_field_names() {
        let outcome = OverrideOutcome { manual_override: "on".into(), clients: 3 };
        assert_eq!(serde_json::to_value(outcome).unwrap(), json!({ "word": "on", "clients": 3 }));
    }

    #[test]
    fn request_line_is_answered_with_ok_or_error() {
        let handle = |number: u32| if number == 0 { Err("not 0".into()) } else { Ok(number.to_string()) };
        let answer_to = |line: &str| answer(line, "not a number", handle);
        assert_eq!(answer_to("7"), "{\n  \"ok\": 7\n}\n");
        assert_eq!(answer_to("0"), "{\n  \"error\": \"not 0\"\n}\n");
        assert!(answer_to("seven").contains("not a number: expected"));
    }

    #[test]
    fn absent_daemon_is_distinguished_from_other_failures() {
        let failed = |kind: io::ErrorKind| RequestError::Socket(kind.into());
        for absent in [io::ErrorKind::NotFound, io::ErrorKind::ConnectionRefused].map(failed) {
            assert!(
                absent.is_absent()
                    && absent.to_string().contains("is a helper, sidecar, switch or server running"),
                "{absent}"
            );
        }
        assert!(!failed(io::ErrorKind::PermissionDenied).is_absent());
        assert!(!failed(io::ErrorKind::TimedOut).is_absent());
        // The kernel's error when the timeout of a read ends.
        assert!(failed(io::ErrorKind::WouldBlock).to_string().starts_with("no answer in time"));
        assert!(!RequestError::Refused("no service here".into()).is_absent());
        assert!(RequestError::Refused(unknown_service("a", "there are: b")).is_unknown_service());
        assert!(!RequestError::Refused("this user may only read".into()).is_unknown_service());
    }
}
