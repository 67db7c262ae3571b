//! What goes over an admin socket: one line of JSON in, one document out, which holds `ok` or `error`.

use std::fmt;
use std::io;
use std::path::Path;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// The document that answers a request's line; `handle` makes the answer, or says why there is none.
/// `not_a_request` begins the refusal of any other line.
pub fn answer<R: DeserializeOwned>(
    line: &str,
    not_a_request: &str,
    handle: impl FnOnce(R) -> Result<Value, String>,
) -> String {
    let request = serde_json::from_str(line).map_err(|error| format!("{not_a_request}: {error}"));
    match request.and_then(handle) {
        Ok(document) => text(&json!({ "ok": document })),
        Err(why) => refusal(&why),
    }
}

/// The document that says why a request is not answered.
pub fn refusal(why: &str) -> String {
    text(&json!({ "error": why }))
}

fn text(document: &Value) -> String {
    // Texts, numbers and lists always have one.
    serde_json::to_string_pretty(document).unwrap_or_default() + "\n"
}

/// What a word of the operator's about relief has done.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OverrideOutcome {
    /// The word that holds now.
    pub word: String,
    /// Clients that are to go elsewhere, and are led there by others.
    pub clients: u64,
}

/// Why a daemon's answer is not to be had.
#[derive(Debug)]
pub enum AskError {
    /// Nobody answers at the socket.
    Socket(io::Error),
    /// Something else than the daemon that was meant answers there.
    Answer(String),
    /// The daemon refuses.
    Refused(String),
}

impl AskError {
    /// Whether nobody serves the socket, which is no failure where there need not be a daemon.
    #[must_use]
    pub fn is_absent(&self) -> bool {
        use io::ErrorKind::{ConnectionRefused, NotFound};
        matches!(self, AskError::Socket(error) if matches!(error.kind(), ConnectionRefused | NotFound))
    }
}

impl fmt::Display for AskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AskError::Socket(error) if self.is_absent() => write!(
                f,
                "{error}; is a helper running with this admin socket (helper.socket, --status-socket)? \
                 --socket PATH names another one"
            ),
            AskError::Socket(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                write!(
                    f,
                    "{error}; the socket is for its owner and group, unless `admin_group` is set: become one of them, \
                     or root"
                )
            }
            AskError::Socket(error) => write!(f, "{error}"),
            AskError::Answer(what) => write!(f, "something else than a helper answers: {what}"),
            AskError::Refused(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for AskError {}

/// Asks the daemon that serves this socket, and waits for its answer no longer than `patience`.
///
/// # Errors
/// There is none, or it refuses.
pub fn ask_for<T: DeserializeOwned>(
    path: &Path,
    request: &impl Serialize,
    patience: Duration,
) -> Result<T, AskError> {
    let answer = |error: serde_json::Error| AskError::Answer(error.to_string());
    let line = serde_json::to_string(request).map_err(answer)?;
    let text = crate::ask(path, &line, patience).map_err(AskError::Socket)?;
    let mut document: Value = serde_json::from_str(&text).map_err(answer)?;
    if let Some(why) = document["error"].as_str() {
        return Err(AskError::Refused(why.to_owned()));
    }
    serde_json::from_value(document["ok"].take()).map_err(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_answered_or_refused() {
        let answer = |line: &str| {
            answer(
                line,
                "no number",
                |number: u32| if number == 0 { Err("not 0".into()) } else { Ok(json!(number)) },
            )
        };
        assert_eq!(answer("7"), "{\n  \"ok\": 7\n}\n");
        assert_eq!(answer("0"), "{\n  \"error\": \"not 0\"\n}\n");
        assert!(answer("seven").contains("no number: expected"));
    }

    #[test]
    fn a_daemon_that_is_not_there_is_told_from_one_that_does_not_answer() {
        let failed = |kind: io::ErrorKind| AskError::Socket(kind.into());
        for absent in [io::ErrorKind::NotFound, io::ErrorKind::ConnectionRefused].map(failed) {
            assert!(absent.is_absent() && absent.to_string().contains("is a helper running"), "{absent}");
        }
        assert!(!failed(io::ErrorKind::PermissionDenied).is_absent());
        assert!(!failed(io::ErrorKind::TimedOut).is_absent());
        assert!(!AskError::Refused("no service here".into()).is_absent());
    }
}
