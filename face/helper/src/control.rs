//! Requests to a running helper, and their answers: one line of JSON in, one document out.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use spillway_daemon::{Answers, Manager, Rights};
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

/// Where settings come from: at the start, and at each reload. Its errors tell the operator the next step.
pub type Source = Box<dyn FnMut() -> Result<HelperConfig, String> + Send>;

/// How long an asker waits: a reload may look up names.
const PATIENCE: Duration = Duration::from_secs(60);

/// Clients that the operator sends away go at random times within this: their server is not met by all at once.
const SENT_WITHIN: Duration = Duration::from_secs(1);

/// What a helper can be asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// What it does: answered with a [`HelperStatus`].
    Status {},
    /// The clients of a service: answered with [`Connections`].
    Connections {
        /// Its name.
        service: String,
        /// List no more than these.
        limit: usize,
    },
    /// Read the configuration again and put it in force: answered with [`Changed`].
    Reload {},
    /// Take no more clients: answered with [`Draining`].
    Drain {
        /// A service, or the helper by its name.
        target: String,
        /// Clients that are left are reset after this time; as configured, if not given.
        #[serde(default)]
        deadline_ms: Option<u64>,
    },
    /// The operator's override on a service's relief: answered with [`OverrideOutcome`].
    Relief {
        /// The service.
        service: String,
        /// `auto`, `on` or `off`.
        word: String,
        /// For how long; for ever, if not given.
        #[serde(default)]
        lasts_ms: Option<u64>,
    },
}

/// What a reload has done.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Changed {
    /// A line for each key or service that is different now.
    pub changes: Vec<String>,
    /// Keys whose new values are used after a restart only.
    pub restart: Vec<String>,
}

/// What is being drained.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Draining {
    /// The services.
    pub services: Vec<String>,
    /// Their clients are reset after this time.
    pub deadline_ms: u64,
}

/// Whoever answers requests, and changes the helper.
pub(crate) struct Control {
    running: Arc<Running>,
    /// One change at a time.
    source: Mutex<Option<Source>>,
    manager: Manager,
    history: Arc<History>,
}

impl Control {
    pub(crate) fn new(running: Arc<Running>, source: Option<Source>) -> Control {
        // Programs that embed a helper have their own word with their manager.
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

    /// Reads the configuration again and puts it in force. On an error the one before stays, and the error is told
    /// here and in the log.
    pub(crate) fn reload(&self) -> Result<Changed, String> {
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
            // All that is wrong, in one line.
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

    fn say(&self, service: &str, word: &str, lasts_ms: Option<u64>) -> Result<OverrideOutcome, String> {
        let word: Override = word.parse().map_err(|error| format!("{word}: {error}"))?;
        if !self.running.say(service, (word, lasts_ms.map(Duration::from_millis)), SENT_WITHIN) {
            return Err(self.unknown(service));
        }
        let status = self.running.status();
        let clients = status.services.iter().find(|one| one.name == service);
        let clients = clients.filter(|_| word == Override::Off).map_or(0, |one| one.library_clients.into());
        info!(%service, %word, lasts_ms, clients, "relief: override");
        Ok(OverrideOutcome { word: word.name().to_owned(), clients })
    }

    fn unknown(&self, service: &str) -> String {
        let all = self.running.status().services;
        let names: Vec<&str> = all.iter().map(|one| one.name.as_str()).collect();
        format!("no service {service} here; there are: {}", names.join(", "))
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
                    return Err(format!("no service {target} here; this is helper {name}, with {all}"));
                }
            };
            (chosen, config.drain_deadline)
        };
        let deadline = deadline_ms.map_or(default, Duration::from_millis);
        let deadline_ms = u64::try_from(deadline.as_millis()).unwrap_or(u64::MAX);
        for service in &services {
            info!(%service, deadline_ms, "draining: no more clients; those that are there may finish");
            self.running.drain_service(service, deadline);
        }
        self.manager.status(&self.summary());
        Ok(Draining { services, deadline_ms })
    }

    /// A line for the service manager.
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
            Request::Status {} => Ok(json!(self.running.status())),
            Request::Connections { service, limit } => {
                self.connections(&service, limit).map(|all| json!(all))
            }
            Request::Reload {} => self.reload().map(|changed| json!(changed)),
            Request::Drain { target, deadline_ms } => {
                self.drain(&target, deadline_ms).map(|what| json!(what))
            }
            Request::Relief { service, word, lasts_ms } => {
                self.say(&service, &word, lasts_ms).map(|said| json!(said))
            }
        }
    }

    fn metrics(&self, out: &mut Exposition) {
        let (status, parts) = self.running.look();
        Declared::tell(&metrics::ALL, &metrics::Told::new(status, parts), out);
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

/// Asks the helper that serves this socket.
///
/// # Errors
/// There is none, or it refuses.
pub fn ask<T: serde::de::DeserializeOwned>(path: &Path, request: &Request) -> Result<T, AskError> {
    spillway_daemon::ask_for(path, request, PATIENCE)
}

/// Asks a helper what it does.
///
/// # Errors
/// As of [`ask`].
pub fn query(path: &Path) -> Result<HelperStatus, AskError> {
    ask(path, &Request::Status {})
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
