//! Requests to a running helper at its admin socket, and their answers.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use spillway_daemon::{Answers, Manager, Rights, deprecated, unknown_service};
pub use spillway_daemon::{AskError, OverrideOutcome};
use spillway_metrics::{Declared, Exposition};
use spillway_policy::Override;
use tracing::{error, info};

use crate::config::HelperConfig;
use crate::connections::Connections;
use crate::health::health;
use crate::history::History;
use crate::metrics;
use crate::page;
use crate::running::Running;
use crate::status::HelperStatus;

/// Reads the settings at each reload. Its error texts name the operator's next step.
pub type Source = Box<dyn FnMut() -> Result<HelperConfig, String> + Send>;

/// Timeout of a request: a reload may look up host names.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);

/// An override `off` sends clients away at random times within this time, to spread their arrival at the server.
const SENT_WITHIN: Duration = Duration::from_secs(1);

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
        word: String,
        /// Time after which `auto` returns; without limit if not given.
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
    source: Mutex<Option<Source>>,
    manager: Manager,
    history: Arc<History>,
}

impl Control {
    pub(crate) fn new(running: Arc<Running>, source: Option<Source>) -> Control {
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

    /// Reads the configuration again and applies it. On an error the previous one stays. Logs the result.
    pub(crate) fn reload(&self) -> Result<ReloadOutcome, String> {
        let mut source = self.source.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(source) = source.as_mut() else {
            return Err("this helper was not started with settings that can be read again".to_owned());
        };
        self.manager.reloading();
        let changed =
            source().and_then(|config| self.running.change(config).map_err(|error| error.to_string()));
        self.manager.ready(&self.summary());
        match &changed {
            Ok(changed) => {
                info!(
                    changes = changed.changes.len(),
                    need_restart = changed.restart.len(),
                    "reload: in force"
                );
            }
            Err(why) => {
                let problem = why.lines().collect::<Vec<_>>().join("; ");
                error!(%problem, "reload: refused, everything stays as it was");
            }
        }
        changed
    }

    fn connections(&self, service: &str, limit: usize) -> Result<Connections, String> {
        if self.running.status().services.iter().any(|one| one.name == service) {
            return Ok(self.running.connections(service, limit));
        }
        Err(self.unknown(service))
    }

    fn set_override(
        &self,
        service: &str,
        name: &str,
        lasts_ms: Option<u64>,
    ) -> Result<OverrideOutcome, String> {
        let word: Override = name.parse().map_err(|error| format!("{name}: {error}"))?;
        let lasts = lasts_ms.map(Duration::from_millis);
        if !self.running.set_override(service, (word, lasts), SENT_WITHIN) {
            return Err(self.unknown(service));
        }
        let status = self.running.status();
        let clients = status.services.iter().find(|one| one.name == service);
        let clients = clients.filter(|_| word == Override::Off).map_or(0, |one| one.library_clients.into());
        info!(%service, "override" = %word, lasts_ms, clients, "relief: override");
        Ok(OverrideOutcome { word: word.name().to_owned(), clients })
    }

    fn unknown(&self, service: &str) -> String {
        let all = self.running.status().services;
        let names: Vec<&str> = all.iter().map(|one| one.name.as_str()).collect();
        unknown_service(service, &format!("there are: {}", names.join(", ")))
    }

    fn drain(&self, target: &str, deadline_ms: Option<u64>) -> Result<Draining, String> {
        let (services, default) = {
            let settings = self.running.settings();
            let config = &settings.config;
            let all: Vec<String> = config.services.iter().map(|service| service.name.clone()).collect();
            let chosen = match all.iter().find(|name| *name == target) {
                Some(service) => vec![service.clone()],
                None if config.name == target => all,
                None => {
                    let (name, all) = (&config.name, all.join(", "));
                    return Err(unknown_service(target, &format!("this is helper {name}, with {all}")));
                }
            };
            (chosen, config.drain_deadline)
        };
        let deadline = deadline_ms.map_or(default, Duration::from_millis);
        let deadline_ms = u64::try_from(deadline.as_millis()).unwrap_or(u64::MAX);
        for service in &services {
            info!(%service, deadline_ms, "draining: no more clients; connected ones may finish, deadline {deadline:?}");
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
                self.connections(&service, limit).map(|all| all.to_value())
            }
            Request::Reload {} => self.reload().map(|changed| json!(changed)),
            Request::Drain { target, deadline_ms } => {
                self.drain(&target, deadline_ms).map(|what| json!(what))
            }
            Request::Relief { service, word, lasts_ms } => {
                self.set_override(&service, &word, lasts_ms).map(|outcome| json!(outcome))
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
pub fn ask<T: serde::de::DeserializeOwned>(path: &Path, request: &Request) -> Result<T, AskError> {
    spillway_daemon::ask_for(path, request, REQUEST_TIMEOUT)
}

/// Requests a helper's status, with the errors of [`ask`].
pub fn query(path: &Path) -> Result<HelperStatus, AskError> {
    let mut status: Value = ask(path, &Request::Status {})?;
    deprecated::read_old_fields(&mut status);
    serde_json::from_value(status).map_err(|error| AskError::Answer(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_strict() {
        let parse = |text: &str| serde_json::from_str::<Request>(text);
        assert_eq!(parse(r#"{"command":"status"}"#).unwrap(), Request::Status {});
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
