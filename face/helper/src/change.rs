//! Other settings for a running helper: all of them, or none.

use std::fmt;

use spillway_net::BoundListener;
use tracing::info;

use crate::config::{HelperConfig, Service, StartError};
use crate::contexts::{net_config, relay_config};
use crate::control::Changed;
use crate::listeners::Places;
use crate::relaying::Relaying;
use crate::running::{ANSWER_PATIENCE, Running, warn_of_useless_settings};

impl Running {
    /// Puts other settings in force. What can fail is done before anything changes.
    ///
    /// # Errors
    /// Everything is as it was.
    pub fn change(&self, mut config: HelperConfig) -> Result<Changed, StartError> {
        let mut settings = self.settings();
        let restart = keep_what_needs_a_restart(&settings.config, &mut config);
        config.check()?;
        let net = net_config(&config, &self.threads);
        let plan = settings.places.plan(&config, self.threads.count, &net)?;
        let relay = relay_config(&config, &plan.places, &self.threads);
        self.check(&relay)?;

        self.names.add(config.services.iter().map(|service| service.name.as_str()));
        let mut new = by_thread(plan.new, self.remotes.len());
        for remote in &self.remotes {
            let (relay, gone, places) = (relay.clone(), plan.gone.clone(), plan.places.clone());
            let listeners = new.pop().unwrap_or_default();
            let (connections_max, patience) = (net.connections_max, net.input_patience);
            let within = config.drain_deadline;
            let apply = move |now, app: &mut Relaying, out: &mut spillway_net::Sockets| {
                out.set_connections_max(connections_max);
                out.set_input_patience(patience);
                listeners.into_iter().for_each(|(place, listener)| out.put_listener(place, listener));
                keep_alive(&places, out);
                // It was checked: all that it may have been told meanwhile is to go away, and then nothing matters.
                let _ = app.relay.reconfigure(now, relay, within, out);
                gone.into_iter().for_each(|place| out.drop_listener(place));
            };
            // They have answered just now; one that does not is restarted by the watchdog.
            remote.ask_within(ANSWER_PATIENCE, apply).map_err(|_| StartError::Silent)?;
        }
        let changes = differences(&settings.config, &config);
        warn_of_useless_settings(&config);
        self.registrars.put_in_force(&config);
        settings.config = config;
        settings.places = plan.places;
        for Difference { service, what } in &changes {
            info!(service = service.as_ref().map(display), "reload: {what}");
        }
        for setting in &restart {
            info!(%setting, "reload: this is changed by a restart only");
        }
        Ok(Changed { changes: changes.iter().map(Difference::to_string).collect(), restart })
    }

    /// Whether every thread would take this.
    fn check(&self, relay: &spillway_relay::Config) -> Result<(), StartError> {
        for remote in &self.remotes {
            let relay = relay.clone();
            let check = move |_, app: &mut Relaying, _: &mut _| app.relay.check_change(&relay);
            let checked = remote.ask_within(ANSWER_PATIENCE, check).map_err(|_| StartError::Silent)?;
            checked.map_err(StartError::Relay)?;
        }
        Ok(())
    }
}

fn keep_alive(places: &Places, out: &mut spillway_net::Sockets) {
    places.iter().for_each(|(place, listening)| out.set_keep_alive(place, listening.keep_alive));
}

/// Each thread's own new listeners, the first thread's last.
fn by_thread(new: Vec<(u16, Vec<BoundListener>)>, threads: usize) -> Vec<Vec<(u16, BoundListener)>> {
    let mut all: Vec<Vec<_>> = (0..threads).map(|_| Vec::new()).collect();
    for (place, each) in new {
        all.iter_mut().zip(each).for_each(|(of_thread, listener)| of_thread.push((place, listener)));
    }
    all
}

/// Settings that stay as they are until a restart: the keys that were changed.
fn keep_what_needs_a_restart(before: &HelperConfig, config: &mut HelperConfig) -> Vec<String> {
    let mut changed = Vec::new();
    let mut keep = |key: &str, is_changed: bool| changed.extend(is_changed.then(|| key.to_owned()));
    keep("helper.engine", before.engine != config.engine);
    keep("helper.threads", before.threads != config.threads);
    keep("helper.socket", before.socket != config.socket);
    keep("helper.admin_group", before.admin_group != config.admin_group);
    keep("helper.metrics", before.metrics != config.metrics);
    keep("helper.load_answers", before.load_answers != config.load_answers);
    config.engine = before.engine;
    config.threads = before.threads;
    config.socket.clone_from(&before.socket);
    config.admin_group.clone_from(&before.admin_group);
    config.metrics = before.metrics;
    config.load_answers = before.load_answers;
    changed
}

/// One key or service that is different now.
struct Difference {
    /// None: it is the helper's own.
    service: Option<String>,
    what: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.service.as_deref().unwrap_or("helper"), self.what)
    }
}

/// What differs, key by key.
fn differences(before: &HelperConfig, after: &HelperConfig) -> Vec<Difference> {
    let helper = |config: &HelperConfig| HelperConfig { services: Vec::new(), ..config.clone() }.to_string();
    let mut changes = compare(None, &helper(before), &helper(after));
    let of = |service: &Service, what: String| Difference { service: Some(service.name.clone()), what };
    for service in &before.services {
        match after.services.iter().find(|other| other.name == service.name) {
            Some(other) => {
                changes.extend(compare(Some(&service.name), &service.to_string(), &other.to_string()));
            }
            None => changes.push(of(service, "removed; its clients are drained".to_owned())),
        }
    }
    let is_new = |name: &str| before.services.iter().all(|service| service.name != name);
    for service in after.services.iter().filter(|service| is_new(&service.name)) {
        changes.push(of(service, format!("added, for {}", service.server)));
    }
    changes
}

fn compare(service: Option<&str>, before: &str, after: &str) -> Vec<Difference> {
    let before: Vec<&str> = before.lines().collect();
    let new = after.lines().filter(|line| !line.is_empty() && !before.contains(line));
    new.map(|line| Difference {
        service: service.map(str::to_owned),
        what: line.trim_start_matches("# ").to_owned(),
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::config::Engine;

    #[test]
    fn differences_are_told_by_key() {
        let service = |name: &str| Service::new(name, "127.0.0.1:1".parse().unwrap());
        let before = HelperConfig::new(vec![service("a"), service("b")]);
        let changed = Service { connect_timeout: Duration::from_millis(5), ..service("a") };
        let mut after = HelperConfig { max_connections: 7, ..HelperConfig::new(vec![changed, service("c")]) };
        let told = [
            "helper: max_connections = 7",
            "a: connect_timeout = \"5ms\"",
            "b: removed; its clients are drained",
            "c: added, for 127.0.0.1:1",
        ];
        let lines: Vec<String> = differences(&before, &after).iter().map(Difference::to_string).collect();
        assert_eq!(lines, told);
        assert!(differences(&after, &after).is_empty());
        after.threads = 3;
        after.engine = Engine::Auto;
        assert_eq!(keep_what_needs_a_restart(&before, &mut after), ["helper.engine", "helper.threads"]);
        assert_eq!((after.threads, after.engine), (0, Engine::Sockets));
    }
}
