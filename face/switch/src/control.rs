//! Requests to a switch's daemon at its admin socket, and their answers.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use spillway_daemon::{
    Answers, Manager, REQUEST_TIMEOUT, RequestError, Rights, STATUS_TIMEOUT, unknown_service,
};
use spillway_metrics::Exposition;
use tracing::{error, info};

use crate::clear::{Cleared, clear};
use crate::config::SwitchConfig;
use crate::flows::Selection;
use crate::list::{Cursor, page};
use crate::metrics;
use crate::running::Running;
use crate::status::SwitchStatus;

pub use crate::change::ReloadOutcome;

/// Reads the settings at each reload. Its error texts contain the operator's next step.
pub type SettingsSource = Box<dyn FnMut() -> Result<SwitchConfig, String> + Send>;

/// A request to a switch's daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// Report the status: answered with a [`SwitchStatus`].
    Status {},
    /// List flows: answered with a page of [`Flows`](crate::Flows).
    Flows {
        /// The flows to list.
        selection: Selection,
        /// Maximum number of listed flows; the daemon lists at most [`PAGE_FLOWS_MAX`](crate::PAGE_FLOWS_MAX).
        limit: usize,
        /// The last flow of the page before.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        after: Option<Cursor>,
    },
    /// End the entries of flows: answered with [`Cleared`].
    ClearFlows {
        /// The flows to clear.
        selection: Selection,
    },
    /// Read the configuration again and apply it: answered with [`ReloadOutcome`].
    Reload {},
    /// Always refused, because a switch does not relieve services. `spillway relief` sends this to every program of a host.
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

pub(crate) struct Control {
    running: Arc<Running>,
    /// Locked during a reload, so that reloads do not overlap. `None` when the daemon ends.
    source: Mutex<Option<SettingsSource>>,
    /// Locked while flows are listed: one page at a time, because each needs memory, and reading the table needs time.
    listing: Mutex<()>,
    manager: Manager,
}

impl Control {
    pub(crate) fn new(running: Arc<Running>, source: SettingsSource) -> Control {
        let (source, listing) = (Mutex::new(Some(source)), Mutex::default());
        Control { running, source, listing, manager: Manager::from_environment() }
    }

    /// Refuses reloads from now on, and waits at most for `patience` until a running reload has finished, so that the tables
    /// do not keep a part of its changes. Returns false if the reload still runs.
    pub(crate) fn close(&self, patience: Duration) -> bool {
        let until = Instant::now() + patience;
        loop {
            match self.source.try_lock() {
                Ok(mut source) => *source = None,
                Err(TryLockError::Poisoned(source)) => *source.into_inner() = None,
                Err(TryLockError::WouldBlock) if Instant::now() < until => {
                    std::thread::sleep(Duration::from_millis(10));
                    continue;
                }
                Err(TryLockError::WouldBlock) => return false,
            }
            return true;
        }
    }

    pub(crate) fn manager(&self) -> &Manager {
        &self.manager
    }

    pub(crate) fn status(&self) -> SwitchStatus {
        self.running.status()
    }

    /// Reads the configuration again and applies it. On an error the previous one stays. Logs the result.
    pub(crate) fn reload(&self) -> Result<ReloadOutcome, String> {
        let mut source = self.source.lock().unwrap_or_else(PoisonError::into_inner);
        let source = source.as_mut().ok_or("the daemon is ending")?;
        self.manager.reloading();
        let outcome = source().and_then(|config| self.running.change(config));
        self.manager.ready(&self.status().summary());
        match &outcome {
            Ok(ReloadOutcome { changes, restart }) => {
                changes.iter().for_each(|change| info!("reload: {change}"));
                restart.iter().for_each(|key| info!(%key, "reload: the new value needs a restart"));
                info!(changes = changes.len(), need_restart = restart.len(), "reload: in force");
            }
            Err(why) => {
                let problem = why.lines().collect::<Vec<_>>().join("; ");
                error!(%problem, "reload: refused, everything stays as it was");
            }
        }
        outcome
    }

    fn clear(&self, selection: &Selection) -> Result<Cleared, String> {
        let config = self.running.config();
        let cleared = clear(&self.running.requests()?, &config, selection)?;
        let Selection { service, client } = selection;
        let Cleared { cleared: ended, changed } = cleared;
        info!(
            service,
            client,
            cleared = ended,
            changed,
            "flows cleared: their packets go to the original servers"
        );
        Ok(cleared)
    }

    fn list(&self, selection: &Selection, after: Option<Cursor>, limit: usize) -> Result<String, String> {
        let _listing = self.listing.lock().unwrap_or_else(PoisonError::into_inner);
        page(self.running.tables(), &self.running.config(), selection, after, limit)
    }
}

impl Answers for Control {
    type Request = Request;
    const NOT_A_REQUEST: &'static str = "not a request to a switch";

    fn needs(request: &Request) -> Rights {
        match request {
            Request::Status {} | Request::Flows { .. } => Rights::Read,
            Request::Reload {} | Request::ClearFlows { .. } | Request::Relief { .. } => Rights::Operate,
        }
    }

    fn answer(&self, request: Request) -> Result<Value, String> {
        match request {
            Request::Status {} => Ok(json!(self.status())),
            Request::Flows { selection, limit, after } => {
                let text = self.list(&selection, after, limit)?;
                serde_json::from_str(&text).map_err(|error| error.to_string())
            }
            Request::ClearFlows { selection } => self.clear(&selection).map(|cleared| json!(cleared)),
            Request::Reload {} => self.reload().map(|outcome| json!(outcome)),
            Request::Relief { service, .. } => {
                Err(unknown_service(&service, "a switch moves flows and has no relief"))
            }
        }
    }

    /// A page of flows is written as text: the same as a [`Value`] would need ten times the memory.
    fn answer_text(&self, request: Request) -> Result<String, String> {
        match request {
            Request::Flows { selection, limit, after } => self.list(&selection, after, limit),
            other => self.answer(other).map(|document| format!("{document:#}")),
        }
    }

    fn metrics(&self, out: &mut Exposition) {
        metrics::write(&self.status(), out);
    }

    fn status_json(&self) -> String {
        self.status().to_json()
    }

    fn health(&self) -> Result<(), String> {
        self.status().health()
    }
}

/// Sends a request to the switch's daemon at the admin socket `path`, and returns its answer.
///
/// # Errors
/// The daemon does not answer, or refuses.
pub fn send_request<T: serde::de::DeserializeOwned>(
    path: &Path,
    request: &Request,
) -> Result<T, RequestError> {
    let timeout = if matches!(request, Request::Status {}) { STATUS_TIMEOUT } else { REQUEST_TIMEOUT };
    spillway_daemon::send_json_request(path, request, timeout)
}

/// Requests a switch's status, with the errors of [`send_request`]; the answer of a program that is not
/// a switch is [`RequestError::UnexpectedAnswer`].
pub fn request_status(path: &Path) -> Result<SwitchStatus, RequestError> {
    let status: Value = send_request(path, &Request::Status {})?;
    if status["kind"] != "switch" {
        return Err(RequestError::UnexpectedAnswer("the program at this socket is not a switch".to_owned()));
    }
    serde_json::from_value(status).map_err(|error| RequestError::UnexpectedAnswer(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_and_incomplete_requests_are_refused() {
        let parse = |text: &str| serde_json::from_str::<Request>(text);
        assert_eq!(parse(r#"{"command":"status"}"#).unwrap(), Request::Status {});
        let selection = Selection { service: Some("cache".into()), client: None };
        let first = r#"{"command":"flows","selection":{"service":"cache"},"limit":5}"#;
        let flows = Request::Flows { selection: selection.clone(), limit: 5, after: None };
        assert_eq!(parse(first).unwrap(), flows);
        assert_eq!(
            serde_json::to_string(&flows).unwrap().matches("after").count(),
            0,
            "an older daemon reads it"
        );
        let after =
            Cursor { endpoint: "10.0.0.5:80".parse().unwrap(), client: "10.0.0.7:1".parse().unwrap() };
        let next = Request::Flows { selection: selection.clone(), limit: 5, after: Some(after) };
        assert_eq!(parse(&serde_json::to_string(&next).unwrap()).unwrap(), next);
        let clear = Request::ClearFlows { selection };
        assert_eq!(parse(&serde_json::to_string(&clear).unwrap()).unwrap(), clear);
        // What `spillway relief` sends to every program of a host.
        assert!(parse(r#"{"command":"relief","service":"a","word":"on"}"#).is_ok());
        for wrong in [
            "",
            "{}",
            r#"{"command":"stop"}"#,
            r#"{"command":"clear_flows"}"#,
            r#"{"command":"flows","selection":{"server":"a"},"limit":5}"#,
            r#"{"command":"flows","selection":{}}"#,
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn only_operators_change_anything() {
        let selection = Selection::default();
        assert_eq!(Control::needs(&Request::Status {}), Rights::Read);
        assert_eq!(
            Control::needs(&Request::Flows { selection: selection.clone(), limit: 1, after: None }),
            Rights::Read
        );
        assert_eq!(Control::needs(&Request::ClearFlows { selection }), Rights::Operate);
        assert_eq!(Control::needs(&Request::Reload {}), Rights::Operate);
    }
}
