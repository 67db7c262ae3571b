//! Changes the settings of a running helper.

use std::fmt;
use std::sync::PoisonError;

use spillway_net::BoundListener;
use spillway_relay::ConfigError;
use tracing::info;

use crate::config::{HelperConfig, Service, StartError};
use crate::control::ReloadOutcome;
use crate::engine::{EngineState, Port};
use crate::relay_app::RelayApp;
use crate::running::{Running, Settings, warn_of_ineffective_settings};
use crate::threads::{net_config, relay_config, reserved_for_links};

impl Running {
    /// Applies new settings. All steps that can fail come before the first change. Other threads can read the
    /// present settings meanwhile, so that a silent network thread delays neither a drain nor the watchdog.
    ///
    /// # Errors
    /// The settings cannot be applied, and the old ones stay in force. [`StartError::SilentAfterChange`]: the
    /// settings are in force on all threads except those that the error names, which do not answer.
    pub fn change(&self, mut config: HelperConfig) -> Result<ReloadOutcome, StartError> {
        let _one_at_a_time = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let Settings { config: before, listeners } = self.settings().clone();
        let restart = keep_restart_settings(&before, &mut config);
        config.check()?;
        self.engine.check(&config)?;
        let net = net_config(&config, &self.threads);
        let plan = listeners.plan(&config, self.threads.count, &net)?;
        let relay = relay_config(&config, &plan.table, &self.threads);
        self.check_on_threads(&relay)?;

        self.names.add(config.services.iter().map(|service| service.name.as_str()));
        let new = split_by_thread(plan.new, self.remotes.len());
        let applied = self.run_on_all(new.into_iter().map(|listeners| {
            let (relay, removed, table) = (relay.clone(), plan.removed.clone(), plan.table.clone());
            let (connections_max, patience) = (net.connections_max, net.input_patience);
            let reserved_for_links = reserved_for_links(&config);
            let drain_deadline = config.drain_deadline;
            move |now, app: &mut RelayApp, out: &mut Port<'_>| {
                out.set_connections_max(connections_max, reserved_for_links);
                out.set_input_patience(patience);
                for (index, listener) in listeners {
                    out.put_listener(now, (index, listener), table.kind(index), &app.log);
                }
                out.set_keep_alive(&table);
                // Fails only if a drain has begun since `check_on_threads`; the settings have no effect then.
                let _ = app.relay.reconfigure(now, relay, drain_deadline, out);
                removed.into_iter().for_each(|index| out.drop_listener(index));
            }
        }));
        let changes = differences(&before, &config);
        warn_of_ineffective_settings(&config, matches!(self.engine, EngineState::Sockets));
        self.registrars.apply(&config);
        *self.settings() = Settings { config, listeners: plan.table };
        for Difference { service, text } in &changes {
            info!(service = service.as_ref().map(display), "reload: {text}");
        }
        for setting in &restart {
            info!(%setting, "reload: the new value needs a restart");
        }
        // All threads have answered `check_on_threads` just before. A thread that is silent now will still apply the
        // settings if it answers again.
        let silent = (0..).zip(&applied).filter(|(_, answer)| answer.is_none()).map(|(thread, _)| thread);
        let silent: Vec<usize> = silent.collect();
        if !silent.is_empty() {
            return Err(StartError::SilentAfterChange { threads: silent });
        }
        Ok(ReloadOutcome { changes: changes.iter().map(Difference::to_string).collect(), restart })
    }

    fn check_on_threads(&self, relay: &spillway_relay::Config) -> Result<(), StartError> {
        let checks = self.remotes.iter().map(|_| {
            let relay = relay.clone();
            move |_, app: &mut RelayApp, _: &mut Port<'_>| app.relay.check_change(&relay)
        });
        let refusal = |checked: Option<Result<(), ConfigError>>| {
            checked.ok_or(StartError::Silent)?.map_err(StartError::Relay)
        };
        self.run_on_all(checks).into_iter().try_for_each(refusal)
    }
}

/// Gives each thread one socket of each new listener.
fn split_by_thread(new: Vec<(u16, Vec<BoundListener>)>, threads: usize) -> Vec<Vec<(u16, BoundListener)>> {
    let mut all: Vec<Vec<_>> = (0..threads).map(|_| Vec::new()).collect();
    for (index, listeners) in new {
        all.iter_mut().zip(listeners).for_each(|(thread, listener)| thread.push((index, listener)));
    }
    all
}

/// Copies the settings that need a restart from `before` to `config`. Returns the keys of those that differ.
fn keep_restart_settings(before: &HelperConfig, config: &mut HelperConfig) -> Vec<String> {
    let mut changed = Vec::new();
    let mut keep = |key: &str, is_changed: bool| changed.extend(is_changed.then(|| key.to_owned()));
    keep("helper.engine", before.engine != config.engine);
    keep("helper.interface", before.interface != config.interface);
    keep("helper.xdp", before.xdp != config.xdp);
    keep("helper.threads", before.threads != config.threads);
    keep("helper.socket", before.socket != config.socket);
    keep("helper.admin_group", before.admin_group != config.admin_group);
    keep("helper.metrics", before.metrics != config.metrics);
    keep("helper.load_answers", before.load_answers != config.load_answers);
    config.engine = before.engine;
    config.interface.clone_from(&before.interface);
    config.xdp.clone_from(&before.xdp);
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
    text: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.service.as_deref().unwrap_or("helper"), self.text)
    }
}

fn differences(before: &HelperConfig, after: &HelperConfig) -> Vec<Difference> {
    let helper_keys =
        |config: &HelperConfig| HelperConfig { services: Vec::new(), ..config.clone() }.to_string();
    let mut changes = compare(None, &helper_keys(before), &helper_keys(after));
    let of_service =
        |service: &Service, text: String| Difference { service: Some(service.name.clone()), text };
    for service in &before.services {
        match after.services.iter().find(|other| other.name == service.name) {
            Some(other) => {
                changes.extend(compare(Some(&service.name), &service.to_string(), &other.to_string()));
            }
            None => changes.push(of_service(service, "removed; its clients are drained".to_owned())),
        }
    }
    let is_new = |name: &str| before.services.iter().all(|service| service.name != name);
    for service in after.services.iter().filter(|service| is_new(&service.name)) {
        changes.push(of_service(service, format!("added, for {}", service.server)));
    }
    changes
}

fn compare(service: Option<&str>, before: &str, after: &str) -> Vec<Difference> {
    let (before, after): (Vec<&str>, Vec<&str>) = (before.lines().collect(), after.lines().collect());
    let key = |line: &str| line.split_once(" = ").map(|(key, _)| key.to_owned());
    let keys: Vec<String> = after.iter().filter_map(|line| key(line)).collect();
    let new = after.iter().filter(|line| !line.is_empty() && !before.contains(line));
    let new = new.map(|line| line.trim_start_matches("# ").to_owned());
    // Removed keys, except those that a comment replaces ("# no metrics").
    let is_replaced = |key: &str| after.contains(&&*format!("# no {key}"));
    let removed_keys =
        before.iter().filter_map(|line| key(line)).filter(|key| !keys.contains(key) && !is_replaced(key));
    let removed_keys = removed_keys.map(|key| format!("{key} removed"));
    let difference = |text| Difference { service: service.map(str::to_owned), text };
    new.chain(removed_keys).map(difference).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};
    use std::time::{Duration, Instant};

    use super::*;
    use crate::config::Engine;
    use crate::helper::Helper;

    #[test]
    fn differences_are_listed_by_key_and_restart_settings_kept() {
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

    fn helper_with_two_threads() -> (Helper, HelperConfig) {
        let service = Service::new("cache", spillway_ports::free_address());
        let service = Service { listen: vec![([127, 0, 0, 1], 0).into()], ..service };
        let config = HelperConfig { threads: 2, ..HelperConfig::new(vec![service]) };
        (Helper::start(config.clone()).unwrap(), config)
    }

    /// Keeps a thread busy until the returned sender is dropped.
    fn block(running: &Running, thread: usize) -> Sender<()> {
        let (release, released) = channel::<()>();
        running.remotes[thread].run(move |_, _, _| _ = released.recv()).unwrap();
        release
    }

    #[test]
    fn settings_can_be_read_while_a_change_waits_for_a_silent_thread() {
        let (helper, config) = helper_with_two_threads();
        let running = helper.control().running();
        let release = block(running, 1);
        let changed = HelperConfig { max_connections: 7, ..config.clone() };
        std::thread::scope(|scope| {
            let change = scope.spawn(|| running.change(changed));
            // Long enough for the change to wait for the thread.
            std::thread::sleep(Duration::from_millis(500));
            let began = Instant::now();
            assert_eq!(running.settings().config.max_connections, config.max_connections);
            let took = began.elapsed();
            assert!(
                took < Duration::from_secs(3),
                "reading should not wait for the change, but took {took:?}"
            );
            let error = change.join().unwrap().unwrap_err();
            assert!(matches!(error, StartError::Silent), "{error}");
        });
        assert_eq!(running.settings().config.max_connections, config.max_connections);
        drop(release);
    }

    #[test]
    fn helper_is_not_drained_while_a_thread_is_silent() {
        let (helper, _) = helper_with_two_threads();
        let release = block(helper.control().running(), 1);
        helper.drain(Duration::ZERO);
        let began = Instant::now();
        for _ in 0..3 {
            assert!(!helper.is_drained(), "a helper with a silent thread should not count as drained");
            std::thread::sleep(Duration::from_millis(100));
        }
        let took = began.elapsed();
        assert!(took < Duration::from_secs(10), "three answers should take less than 10 s, not {took:?}");
        drop(release);
        let deadline = Instant::now() + Duration::from_secs(20);
        while !helper.is_drained() {
            assert!(Instant::now() < deadline, "all threads should drain within 20 s");
        }
    }

    #[test]
    fn thread_that_falls_silent_during_a_change_is_named() {
        let (helper, config) = helper_with_two_threads();
        let running = helper.control().running();
        let first = block(running, 0);
        let changed = HelperConfig { max_connections: 7, ..config };
        let second = std::thread::scope(|scope| {
            let change = scope.spawn(|| running.change(changed));
            // Long enough for the second thread to answer the check.
            std::thread::sleep(Duration::from_secs(1));
            let second = block(running, 1);
            drop(first);
            let error = change.join().unwrap().unwrap_err();
            assert!(
                matches!(&error, StartError::SilentAfterChange { threads } if *threads == [1]),
                "{error}"
            );
            second
        });
        assert_eq!(running.settings().config.max_connections, 7, "the change should be in force");
        drop(second);
    }
}
