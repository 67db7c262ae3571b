//! Requests to a running helper at its admin socket, and their answers.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use spillway_daemon::{
    Answers, Manager, REQUEST_TIMEOUT, Rights, STATUS_TIMEOUT, deprecated, unknown_service,
};
pub use spillway_daemon::{OverrideOutcome, RequestError};
use spillway_metrics::{Declared, Exposition};
use spillway_policy::Override;
use tracing::{error, info};

use crate::config::{HelperConfig, StartError};
use crate::connections::Connections;
use crate::health::health;
use crate::history::History;
use crate::metrics;
use crate::page;
use crate::running::Running;
use crate::status::HelperStatus;

/// Reads the settings at each reload. Its error texts contain the operator's next step.
pub type SettingsSource = Box<dyn FnMut() -> Result<HelperConfig, String> + Send>;

/// An override `off` sends library clients away within this time, at random, to spread their arrivals.
const SEND_AWAY_TIME: Duration = Duration::from_secs(1);

/// A request to a helper.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// Report the status: answered with a [`HelperStatus`].
    Status {},
    /// List the clients of a service: answered with [`Connections`].
    Connections {
        /// Name of the service.
        service: String,
        /// Maximum number of listed clients.
        limit: usize,
    },
    /// Read the configuration again and apply it: answered with [`ReloadOutcome`].
    Reload {},
    /// Accept no new clients: answered with [`Draining`].
    Drain {
        /// Name of a service, or of the helper for all its services.
        target: String,
        /// Time after which remaining clients are reset; the configured one if not given.
        #[serde(default)]
        deadline_ms: Option<u64>,
    },
    /// Override a service's relief: answered with [`OverrideOutcome`].
    Relief {
        /// Name of the service.
        service: String,
        /// The override: `auto`, `on` or `off`.
        #[serde(rename = "word")]
        manual_override: String,
        /// Time after which the override becomes `auto` again; without limit if not given.
        #[serde(default)]
        lasts_ms: Option<u64>,
    },
}

/// The result of a reload.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReloadOutcome {
    /// A line for each changed key and each added or removed service.
    pub changes: Vec<String>,
    /// Keys whose new values need a restart.
    pub restart: Vec<String>,
}

/// The result of a drain request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Draining {
    /// Names of the draining services.
    pub services: Vec<String>,
    /// Time after which remaining clients are reset.
    pub deadline_ms: u64,
}

pub(crate) struct Control {
    running: Arc<Running>,
    /// Locked during a reload, so that reloads do not overlap.
    source: Mutex<Option<SettingsSource>>,
    manager: Manager,
    history: Arc<History>,
}

impl Control {
    pub(crate) fn new(running: Arc<Running>, source: Option<SettingsSource>) -> Control {
        // A program that embeds a helper notifies its service manager itself.
        let manager = if source.is_some() { Manager::from_environment() } else { Manager::default() };
        Control { running, source: Mutex::new(source), manager, history: Arc::default() }
    }

    pub(crate) fn running(&self) -> &Arc<Running> {
        &self.running
    }

    pub(crate) fn history(&self) -> &Arc<History> {
        &self.history
    }

    pub(crate) fn manager(&self) -> &Manager {
        &self.manager
    }

    /// Reads the configuration again and applies it. On an error the previous one stays, unless a thread has fallen
    /// silent after others had applied the new one. Logs the result.
    pub(crate) fn reload(&self) -> Result<ReloadOutcome, String> {
        let mut source = self.source.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(source) = source.as_mut() else {
            return Err("this helper was not started with settings that can be read again".to_owned());
        };
        self.manager.reloading();
        let mut is_partly_applied = false;
        let changed = source().and_then(|config| {
            self.running.change(config).map_err(|error| {
                is_partly_applied = matches!(error, StartError::SilentAfterChange { .. });
                error.to_string()
            })
        });
        self.manager.ready(&self.summary());
        match &changed {
            Ok(changed) => {
                info!(
                    changes = changed.changes.len(),
                    need_restart = changed.restart.len(),
                    "reload: in force"
                );
            }
            Err(problem) if is_partly_applied => error!(%problem, "reload: in force on some threads only"),
            Err(why) => {
                let problem = why.lines().collect::<Vec<_>>().join("; ");
                error!(%problem, "reload: refused, everything stays as it was");
            }
        }
        changed
    }

    fn connections(&self, service: &str, limit: usize) -> Result<Connections, String> {
        if self.running.status().services.iter().any(|candidate| candidate.name == service) {
            return Ok(self.running.connections(service, limit));
        }
        Err(self.unknown_service_error(service))
    }

    fn set_override(
        &self,
        service: &str,
        name: &str,
        lasts_ms: Option<u64>,
    ) -> Result<OverrideOutcome, String> {
        let relief_override: Override = name.parse().map_err(|error| format!("{name}: {error}"))?;
        let lasts = lasts_ms.map(Duration::from_millis);
        if !self.running.set_override(service, (relief_override, lasts), SEND_AWAY_TIME) {
            return Err(self.unknown_service_error(service));
        }
        let status = self.running.status();
        let clients = status.services.iter().find(|candidate| candidate.name == service);
        let clients = clients
            .filter(|_| relief_override == Override::Off)
            .map_or(0, |candidate| candidate.library_clients.into());
        info!(%service, "override" = %relief_override, lasts_ms, clients, "relief: override");
        Ok(OverrideOutcome { manual_override: relief_override.name().to_owned(), clients })
    }

    fn unknown_service_error(&self, service: &str) -> String {
        let services = self.running.status().services;
        let names: Vec<&str> = services.iter().map(|candidate| candidate.name.as_str()).collect();
        unknown_service(service, &format!("there are: {}", names.join(", ")))
    }

    fn drain(&self, target: &str, deadline_ms: Option<u64>) -> Result<Draining, String> {
        let (services, default) = {
            let settings = self.running.settings();
            let config = &settings.config;
            let names: Vec<String> = config.services.iter().map(|service| service.name.clone()).collect();
            let chosen = match names.iter().find(|name| *name == target) {
                Some(service) => vec![service.clone()],
                None if config.name == target => names,
                None => {
                    let (name, services) = (&config.name, names.join(", "));
                    return Err(unknown_service(target, &format!("this is helper {name}, with {services}")));
                }
            };
            (chosen, config.drain_deadline)
        };
        let deadline = deadline_ms.map_or(default, Duration::from_millis);
        let deadline_ms = u64::try_from(deadline.as_millis()).unwrap_or(u64::MAX);
        for service in &services {
            info!(%service, deadline_ms, "draining: no new clients; connected ones may finish, deadline {deadline:?}");
            self.running.drain_service(service, deadline);
        }
        self.manager.status(&self.summary());
        Ok(Draining { services, deadline_ms })
    }

    pub(crate) fn summary(&self) -> String {
        self.running.status().summary()
    }
}

impl Answers for Control {
    type Request = Request;
    const NOT_A_REQUEST: &'static str = "not a request";
    const HAS_PAGE: bool = true;

    fn needs(request: &Request) -> Rights {
        match request {
            Request::Status {} | Request::Connections { .. } => Rights::Read,
            Request::Reload {} | Request::Drain { .. } | Request::Relief { .. } => Rights::Operate,
        }
    }

    fn answer(&self, request: Request) -> Result<Value, String> {
        match request {
            Request::Status {} => Ok(self.running.status().to_value()),
            Request::Connections { service, limit } => {
                self.connections(&service, limit).map(|connections| connections.to_value())
            }
            Request::Reload {} => self.reload().map(|changed| json!(changed)),
            Request::Drain { target, deadline_ms } => {
                self.drain(&target, deadline_ms).map(|draining| json!(draining))
            }
            Request::Relief { service, manual_override, lasts_ms } => {
                self.set_override(&service, &manual_override, lasts_ms).map(|outcome| json!(outcome))
            }
        }
    }

    fn metrics(&self, out: &mut Exposition) {
        let (status, threads) = self.running.status_by_thread();
        Declared::write(&metrics::ALL, &metrics::Scrape::new(status, threads), out);
        out.rewrite(deprecated::with_old_metrics);
    }

    fn status_json(&self) -> String {
        self.running.status().to_json()
    }

    fn health(&self) -> Result<(), String> {
        health(&self.running.status())
    }

    fn page(&self) -> String {
        page::html(&self.running.status(), &self.history.rates())
    }

    fn text(&self, path: &str) -> Option<&'static str> {
        page::document(path)
    }
}

/// Sends a request to the helper at the admin socket `path`, and returns its answer.
///
/// # Errors
/// The helper does not answer, or refuses.
pub fn send_request<T: serde::de::DeserializeOwned>(
    path: &Path,
    request: &Request,
) -> Result<T, RequestError> {
    let timeout = if matches!(request, Request::Status {}) { STATUS_TIMEOUT } else { REQUEST_TIMEOUT };
    spillway_daemon::send_json_request(path, request, timeout)
}

/// Requests a helper's status, with the errors of [`send_request`].
pub fn request_status(path: &Path) -> Result<HelperStatus, RequestError> {
    let mut status: Value = send_request(path, &Request::Status {})?;
    deprecated::read_old_fields(&mut status);
    serde_json::from_value(status).map_err(|error| RequestError::UnexpectedAnswer(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_and_incomplete_requests_are_refused() {
        let parse = |text: &str| serde_json::from_str::<Request>(text);
        assert_eq!(parse(r#"{"command":"status"}"#).unwrap(), Request::Status {});
        let relief = Request::Relief { service: "a".into(), manual_override: "on".into(), lasts_ms: None };
        assert_eq!(parse(r#"{"command":"relief","service":"a","word":"on"}"#).unwrap(), relief);
        let drain = Request::Drain { target: "cache".into(), deadline_ms: Some(5) };
        assert_eq!(parse(&serde_json::to_string(&drain).unwrap()).unwrap(), drain);
        assert!(parse(r#"{"command":"drain","target":"a"}"#).is_ok());
        for wrong in [
            "",
            "status",
            "{}",
            r#"{"command":"stop"}"#,
            r#"{"command":"drain"}"#,
            r#"{"command":"drain","target":"a","deadline":5}"#,
            r#"{"command":"status","verbose":true}"#,
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
