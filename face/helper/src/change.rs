//! Changes the settings of a running helper.

use std::fmt;

use spillway_net::BoundListener;
use tracing::info;

use crate::config::{HelperConfig, Service, StartError};
use crate::contexts::{net_config, relay_config};
use crate::control::ReloadOutcome;
use crate::listeners::ListenerTable;
use crate::relay_app::RelayApp;
use crate::running::{ANSWER_TIMEOUT, Running, warn_of_useless_settings};

impl Running {
    /// Applies new settings. All steps that can fail come before the first change.
    ///
    /// # Errors
    /// The settings cannot be applied; the old ones stay in force.
    pub fn change(&self, mut config: HelperConfig) -> Result<ReloadOutcome, StartError> {
        let mut settings = self.settings();
        let restart = keep_restart_settings(&settings.config, &mut config);
        config.check()?;
        let net = net_config(&config, &self.threads);
        let plan = settings.listeners.plan(&config, self.threads.count, &net)?;
        let relay = relay_config(&config, &plan.table, &self.threads);
        self.check_on_threads(&relay)?;

        self.names.add(config.services.iter().map(|service| service.name.as_str()));
        let mut new = split_by_thread(plan.new, self.remotes.len());
        for remote in &self.remotes {
            let (relay, removed, table) = (relay.clone(), plan.removed.clone(), plan.table.clone());
            let listeners = new.pop().unwrap_or_default();
            let (connections_max, patience) = (net.connections_max, net.input_patience);
            let within = config.drain_deadline;
            let apply = move |now, app: &mut RelayApp, out: &mut spillway_net::Sockets| {
                out.set_connections_max(connections_max);
                out.set_input_patience(patience);
                listeners.into_iter().for_each(|(index, listener)| out.put_listener(index, listener));
                set_keep_alive(&table, out);
                // Fails only if a drain has begun since `check_on_threads`; the settings have no effect then.
                let _ = app.relay.reconfigure(now, relay, within, out);
                removed.into_iter().for_each(|index| out.drop_listener(index));
            };
            // All threads have just answered `check_on_threads`. If one does not answer now, the watchdog restarts the
            // process.
            remote.ask_within(ANSWER_TIMEOUT, apply).map_err(|_| StartError::Silent)?;
        }
        let changes = differences(&settings.config, &config);
        warn_of_useless_settings(&config);
        self.registrars.put_in_force(&config);
        settings.config = config;
        settings.listeners = plan.table;
        for Difference { service, what } in &changes {
            info!(service = service.as_ref().map(display), "reload: {what}");
        }
        for setting in &restart {
            info!(%setting, "reload: the new value needs a restart");
        }
        Ok(ReloadOutcome { changes: changes.iter().map(Difference::to_string).collect(), restart })
    }

    fn check_on_threads(&self, relay: &spillway_relay::Config) -> Result<(), StartError> {
        for remote in &self.remotes {
            let relay = relay.clone();
            let check = move |_, app: &mut RelayApp, _: &mut _| app.relay.check_change(&relay);
            let checked = remote.ask_within(ANSWER_TIMEOUT, check).map_err(|_| StartError::Silent)?;
            checked.map_err(StartError::Relay)?;
        }
        Ok(())
    }
}

fn set_keep_alive(table: &ListenerTable, out: &mut spillway_net::Sockets) {
    table.iter().for_each(|(index, listener)| out.set_keep_alive(index, listener.keep_alive));
}

/// The new listeners of each thread, in reverse order of the threads, for `pop`.
fn split_by_thread(new: Vec<(u16, Vec<BoundListener>)>, threads: usize) -> Vec<Vec<(u16, BoundListener)>> {
    let mut all: Vec<Vec<_>> = (0..threads).map(|_| Vec::new()).collect();
    for (index, each) in new {
        all.iter_mut().zip(each).for_each(|(of_thread, listener)| of_thread.push((index, listener)));
    }
    all
}

/// Copies the settings that need a restart from `before` to `config`. Returns the keys of those that differ.
fn keep_restart_settings(before: &HelperConfig, config: &mut HelperConfig) -> Vec<String> {
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

struct Difference {
    /// `None` for a key of the section `[helper]`.
    service: Option<String>,
    what: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.service.as_deref().unwrap_or("helper"), self.what)
    }
}

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
    let (before, after): (Vec<&str>, Vec<&str>) = (before.lines().collect(), after.lines().collect());
    let key = |line: &str| line.split_once(" = ").map(|(key, _)| key.to_owned());
    let keys: Vec<String> = after.iter().filter_map(|line| key(line)).collect();
    let new = after.iter().filter(|line| !line.is_empty() && !before.contains(line));
    let new = new.map(|line| line.trim_start_matches("# ").to_owned());
    // A key that is gone, unless a comment about it replaces it ("# no metrics").
    let is_replaced = |gone: &str| after.contains(&&*format!("# no {gone}"));
    let gone =
        before.iter().filter_map(|line| key(line)).filter(|key| !keys.contains(key) && !is_replaced(key));
    let gone = gone.map(|key| format!("{key} removed"));
    let difference = |what| Difference { service: service.map(str::to_owned), what };
    new.chain(gone).map(difference).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::config::Engine;

    #[test]
    fn differences_are_listed_by_key() {
        let service = |name: &str| Service::new(name, "127.0.0.1:1".parse().unwrap());
        let before = HelperConfig::new(vec![service("a"), service("b")]);
        let changed = Service { connect_timeout: Duration::from_millis(5), ..service("a") };
        let mut after = HelperConfig { max_connections: 7, ..HelperConfig::new(vec![changed, service("c")]) };
        let expected = [
            "helper: max_connections = 7",
            "a: connect_timeout = \"5ms\"",
            "b: removed; its clients are drained",
            "c: added, for 127.0.0.1:1",
        ];
        let lines: Vec<String> = differences(&before, &after).iter().map(Difference::to_string).collect();
        assert_eq!(lines, expected);
        assert!(differences(&after, &after).is_empty());
        let removed = compare(Some("a"), "sla = 1\nadvertise = \"b\"\n", "# no sla\n");
        let removed: Vec<String> = removed.iter().map(Difference::to_string).collect();
        assert_eq!(removed, ["a: no sla", "a: advertise removed"]);
        after.threads = 3;
        after.engine = Engine::Auto;
        assert_eq!(keep_restart_settings(&before, &mut after), ["helper.engine", "helper.threads"]);
        assert_eq!((after.threads, after.engine), (0, Engine::Sockets));
    }
}
