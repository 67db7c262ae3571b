//! Where library clients are told of this helper, as long as it serves them.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use serde::{Deserialize, Serialize};
use spillway_discovery::{Registrar, RegistrarNotice, RegistrarStatus, Registration};
use tracing::{error, info, warn};

use crate::config::HelperConfig;

/// How a service's registration stands. In JSON fields may be added.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegistrationStatus {
    /// Where, as configured.
    pub place: String,
    /// The address that clients are told.
    pub link: String,
    /// For how long it has been there, in milliseconds; none: it is not, as far as is known.
    pub registered_ms: Option<u64>,
    /// Why the last attempt failed, if it did.
    pub error: Option<String>,
    /// How often it was written since the helper's start.
    pub registrations: u64,
    /// Attempts that failed since then.
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

/// The registrations of a helper's services.
#[derive(Debug, Default)]
pub(crate) struct Registrars {
    all: Mutex<BTreeMap<String, Registered>>,
}

#[derive(Debug, Default)]
struct Registered {
    current: Option<(Registration, Registrar)>,
    /// Those that are to be waited for at the end.
    leaving: Vec<Registrar>,
    /// Of those before.
    registrations: u64,
    failures: u64,
}

impl Registrars {
    /// Registers what is to be registered, and nothing else. What has not changed stays.
    pub(crate) fn put_in_force(&self, config: &HelperConfig) {
        let mut all = self.all();
        let is_wanted = |name: &String| config.services.iter().any(|service| service.name == *name);
        all.iter_mut().filter(|(name, _)| !is_wanted(name)).for_each(|(_, gone)| gone.withdraw());
        for service in &config.services {
            let wanted = service.register.as_ref().map(|register| {
                let (place, access) = (register.place.clone(), register.access.clone());
                Registration::new(place, access, config.name.as_str(), register.link)
            });
            if wanted.is_some() || all.contains_key(&service.name) {
                all.entry(service.name.clone()).or_default().want(&service.name, wanted);
            }
        }
    }

    /// Takes a service's registration away, until settings are put in force again.
    pub(crate) fn withdraw(&self, service: &str) {
        self.all().get_mut(service).into_iter().for_each(Registered::withdraw);
    }

    pub(crate) fn withdraw_all(&self) {
        self.all().values_mut().for_each(Registered::withdraw);
    }

    /// Waits until all that were withdrawn are gone, or so long.
    pub(crate) fn wait(&self, patience: Duration) {
        let deadline = Instant::now() + patience;
        for registrar in self.all().values().flat_map(|one| &one.leaving) {
            registrar.wait_withdrawn(deadline.saturating_duration_since(Instant::now()));
        }
    }

    /// Of a service that is to be registered.
    pub(crate) fn status(&self, service: &str) -> Option<RegistrationStatus> {
        self.all().get(service)?.status()
    }

    fn all(&self) -> MutexGuard<'_, BTreeMap<String, Registered>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Registered {
    fn want(&mut self, service: &str, wanted: Option<Registration>) {
        if self.current.as_ref().map(|(registration, _)| registration) == wanted.as_ref() {
            return;
        }
        self.withdraw();
        let Some(wanted) = wanted else { return };
        match Registrar::start(wanted.clone(), log(service.to_owned(), &wanted)) {
            Ok(registrar) => self.current = Some((wanted, registrar)),
            Err(error) => error!(%service, "cannot be registered: {error}; a reload tries it again"),
        }
    }

    fn withdraw(&mut self) {
        self.leaving.retain(|registrar| !registrar.wait_withdrawn(Duration::ZERO));
        if let Some((_, registrar)) = self.current.take() {
            let RegistrarStatus { registrations, failures, .. } = registrar.status();
            self.registrations += registrations;
            self.failures += failures;
            registrar.withdraw();
            self.leaving.push(registrar);
        }
    }

    fn status(&self) -> Option<RegistrationStatus> {
        let (registration, registrar) = self.current.as_ref()?;
        let status = registrar.status();
        let since = |since| SystemTime::now().duration_since(since).unwrap_or_default();
        Some(RegistrationStatus {
            place: registration.place.to_string(),
            link: registration.link.to_string(),
            registered_ms: status.since.map(|at| u64::try_from(since(at).as_millis()).unwrap_or(u64::MAX)),
            error: status.trouble,
            registrations: self.registrations + status.registrations,
            failures: self.failures + status.failures,
        })
    }
}

/// One line for each decision.
fn log(service: String, registration: &Registration) -> impl FnMut(&RegistrarNotice) + Send + 'static {
    let (place, link) = (registration.place.to_string(), registration.link);
    move |notice| match notice {
        RegistrarNotice::Registered | RegistrarNotice::Withdrawn => {
            info!(%service, %place, %link, "{notice}");
        }
        RegistrarNotice::Restored { .. } | RegistrarNotice::Failed { .. } | RegistrarNotice::Left { .. } => {
            warn!(%service, %place, %link, "{notice}");
        }
    }
}
