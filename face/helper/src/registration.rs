//! Registers a helper's services in etcd while it serves them, so that library clients find the helper.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use serde::{Deserialize, Serialize};
use spillway_daemon::{drop_net_raw, start_with_fewer};
use spillway_discovery::{Registrar, RegistrarNotice, RegistrarStatus, Registration};
use tracing::{error, info, warn};

use crate::config::HelperConfig;

/// State of a service's registration. Later versions may add fields to the JSON form.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegistrationStatus {
    /// The configured prefix in etcd.
    pub place: String,
    /// The registered address, to which clients connect.
    pub link: String,
    /// Time since the registration, in milliseconds; `None` if the helper is not registered.
    pub registered_ms: Option<u64>,
    /// Error of the last attempt, if it failed.
    pub error: Option<String>,
    /// Number of times that the registration was written since the helper's start.
    pub registrations: u64,
    /// Attempts that failed since the helper's start.
    pub failures: u64,
}

impl fmt::Display for RegistrationStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.registered_ms {
            Some(ms) => write!(f, "registered as {} for {} s", self.link, ms / 1000)?,
            None => f.write_str("not registered")?,
        }
        self.error.iter().try_for_each(|error| write!(f, " ({error})"))
    }
}

#[derive(Debug, Default)]
pub(crate) struct Registrars {
    all: Mutex<BTreeMap<String, ServiceRegistration>>,
}

#[derive(Debug, Default)]
struct ServiceRegistration {
    current: Option<(Registration, Registrar)>,
    /// Registrars whose withdrawal may not have ended.
    withdrawing: Vec<Registrar>,
    // Totals of former registrars.
    registrations: u64,
    failures: u64,
}

impl Registrars {
    /// Registers the services of a configuration, and withdraws all others. Unchanged registrations stay.
    pub(crate) fn apply(&self, config: &HelperConfig) {
        let mut all = self.lock();
        let is_configured = |name: &String| config.services.iter().any(|service| service.name == *name);
        all.iter_mut().filter(|(name, _)| !is_configured(name)).for_each(|(_, removed)| removed.withdraw());
        for service in &config.services {
            let registration = service.register.as_ref().map(|register| {
                let (prefix, access) = (register.prefix.clone(), register.access.clone());
                Registration::new(prefix, access, config.name.as_str(), register.link)
            });
            if registration.is_some() || all.contains_key(&service.name) {
                all.entry(service.name.clone()).or_default().set(&service.name, registration);
            }
        }
    }

    /// Withdraws a service's registration until the next [`apply`](Self::apply).
    pub(crate) fn withdraw(&self, service: &str) {
        self.lock().get_mut(service).into_iter().for_each(ServiceRegistration::withdraw);
    }

    pub(crate) fn withdraw_all(&self) {
        self.lock().values_mut().for_each(ServiceRegistration::withdraw);
    }

    /// Waits until all withdrawals have ended, at most `timeout`.
    pub(crate) fn wait(&self, timeout: Duration) {
        let deadline = Instant::now() + timeout;
        for registrar in self.lock().values().flat_map(|registered| &registered.withdrawing) {
            registrar.wait_withdrawn(deadline.saturating_duration_since(Instant::now()));
        }
    }

    /// State of a service's registration; `None` if the service has none.
    pub(crate) fn status(&self, service: &str) -> Option<RegistrationStatus> {
        self.lock().get(service)?.status()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, ServiceRegistration>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ServiceRegistration {
    fn set(&mut self, service: &str, registration: Option<Registration>) {
        if self.current.as_ref().map(|(current, _)| current) == registration.as_ref() {
            return;
        }
        self.withdraw();
        let Some(registration) = registration else { return };
        let start = || Registrar::start(registration.clone(), log_notices(service.to_owned(), &registration));
        match start_with_fewer(drop_net_raw, start) {
            Ok(registrar) => self.current = Some((registration, registrar)),
            Err(error) => error!(%service, "cannot be registered: {error}; a reload tries it again"),
        }
    }

    fn withdraw(&mut self) {
        self.withdrawing.retain(|registrar| !registrar.wait_withdrawn(Duration::ZERO));
        if let Some((_, registrar)) = self.current.take() {
            let RegistrarStatus { registrations, failures, .. } = registrar.status();
            self.registrations += registrations;
            self.failures += failures;
            registrar.withdraw();
            self.withdrawing.push(registrar);
        }
    }

    fn status(&self) -> Option<RegistrationStatus> {
        let (registration, registrar) = self.current.as_ref()?;
        let status = registrar.status();
        let elapsed = |since| SystemTime::now().duration_since(since).unwrap_or_default();
        Some(RegistrationStatus {
            place: registration.prefix.to_string(),
            link: registration.link.to_string(),
            registered_ms: status.since.map(|at| u64::try_from(elapsed(at).as_millis()).unwrap_or(u64::MAX)),
            error: status.error,
            registrations: self.registrations + status.registrations,
            failures: self.failures + status.failures,
        })
    }
}

fn log_notices(
    service: String,
    registration: &Registration,
) -> impl FnMut(&RegistrarNotice) + Send + 'static {
    let (place, link) = (registration.prefix.to_string(), registration.link);
    move |notice| match notice {
        RegistrarNotice::Registered | RegistrarNotice::Withdrawn => {
            info!(%service, %place, %link, "{notice}");
        }
        RegistrarNotice::Restored { .. }
        | RegistrarNotice::Failed { .. }
        | RegistrarNotice::NotWithdrawn { .. } => {
            warn!(%service, %place, %link, "{notice}");
        }
    }
}
