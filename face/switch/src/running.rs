//! A switch while its daemon runs.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use spillway_bpf::switch::OwnerEntry;
use spillway_daemon::ThreadWatch;
use spillway_transport::Time;
use spillway_wire::switch::ServerId;
use tracing::{error, info, warn};

use crate::change::{ReloadOutcome, differences, keep_restart_settings};
use crate::config::SwitchConfig;
use crate::messages::Messages;
use crate::program::{PortState, Program, warn_of_generic_mode};
use crate::status::{FlowsStatus, PortStatus, ServerStatus, ServiceStatus, SwitchStatus};
use crate::sweep::{Snapshot, sweep};

/// Interval at which the daemon reads the tables and ends the entries of ended flows.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);
/// The pause after a turn is at least this many times the turn's duration, so that a large table is read less often.
const SWEEP_SHARE: u32 = 10;

pub(crate) struct Running {
    program: Program,
    messages: Messages,
    config: Mutex<SwitchConfig>,
    view: Mutex<View>,
    started: Instant,
    watch: ThreadWatch,
}

/// What the last sweep found.
#[derive(Default)]
struct View {
    snapshot: Snapshot,
    ports: Vec<PortState>,
    at: Option<Instant>,
}

impl Running {
    pub(crate) fn new(
        program: Program,
        messages: Messages,
        config: SwitchConfig,
        watch: ThreadWatch,
    ) -> Running {
        let (config, view) = (Mutex::new(config), Mutex::default());
        Running { program, messages, config, view, started: Instant::now(), watch }
    }

    pub(crate) fn tables(&self) -> &Program {
        &self.program
    }

    pub(crate) fn messages(&self) -> &Messages {
        &self.messages
    }

    /// The settings in force.
    pub(crate) fn config(&self) -> SwitchConfig {
        self.lock_config().clone()
    }

    fn lock_config(&self) -> MutexGuard<'_, SwitchConfig> {
        self.config.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn view(&self) -> MutexGuard<'_, View> {
        self.view.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Applies new settings. The caller makes sure that changes do not overlap.
    ///
    /// # Errors
    /// The settings cannot be applied. The old ones are in force again, unless restoring them failed, too: the error then
    /// contains both causes.
    pub(crate) fn change(&self, mut config: SwitchConfig) -> Result<ReloadOutcome, String> {
        let before = self.config();
        let restart = keep_restart_settings(&before, &mut config);
        config.keep_numbers(&before)?;
        let rules = config.rules(self.messages.key().clone());
        let old_rules = before.rules(self.messages.key().clone());
        rules.check().map_err(|error| error.to_string())?;
        self.program.change((&before, &old_rules), (&config, &rules))?;
        let changes = differences(&before, &config);
        *self.lock_config() = config;
        Ok(ReloadOutcome { changes, restart })
    }

    /// Sweeps at an interval, until the sender of `stop` is dropped.
    pub(crate) fn sweep(&self, stop: &Receiver<()>) {
        let mut problem: Option<String> = None;
        loop {
            let began = Instant::now();
            let outcome = self.turn();
            if let Err(why) = &outcome
                && problem.as_ref() != Some(why)
            {
                warn!(
                    "cannot read the switch's tables: {why}; forwarding continues, status and metrics are old"
                );
            }
            if outcome.is_ok() && problem.is_some() {
                info!("the switch's tables can be read again");
            }
            problem = outcome.err();
            let pause = SWEEP_INTERVAL.max(began.elapsed() * SWEEP_SHARE);
            match stop.recv_timeout(pause) {
                Err(RecvTimeoutError::Timeout) => {}
                Ok(()) | Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// Ends the entries of ended flows, and reads the tables for status and metrics.
    ///
    /// # Errors
    /// The tables cannot be read, or the program does not answer.
    pub(crate) fn turn(&self) -> Result<(), String> {
        let (control, ports) = {
            let config = self.lock_config();
            (config.control[0], config.ports.clone())
        };
        let ended = self.view().snapshot.ended;
        let snapshot = sweep(&self.program, &self.messages, control, ended)?;
        let ports = self.program.ports(&ports)?;
        let before = {
            let mut view = self.view();
            let before = std::mem::replace(&mut view.ports, ports.clone());
            (view.snapshot, view.at) = (snapshot, Some(Instant::now()));
            before
        };
        log_changes(&before, &ports);
        Ok(())
    }

    /// Whether the tables were read within this time.
    pub(crate) fn was_swept_within(&self, within: Duration) -> bool {
        let since = self.view().at.unwrap_or(self.started);
        since.elapsed() <= within
    }

    /// The status as of the last sweep.
    pub(crate) fn status(&self) -> SwitchStatus {
        let config = self.config();
        let (snapshot, ports, at) = {
            let view = self.view();
            (view.snapshot.clone(), view.ports.clone(), view.at)
        };
        let flows = snapshot.flows;
        SwitchStatus {
            kind: "switch".to_owned(),
            name: config.name.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            uptime_ms: millis(self.started.elapsed()),
            epoch: self.messages.epoch(),
            ports: ports.iter().map(|state| port_status(state, &config)).collect(),
            servers: config.servers.iter().map(|server| server_status(server, &snapshot, &config)).collect(),
            services: config.services.iter().map(|service| service_status(service, &snapshot)).collect(),
            stations: config.stations.len(),
            prefixes: config.routes.len(),
            flows: FlowsStatus {
                asked: flows.asked,
                held: flows.held,
                owned: flows.owned,
                max: self.program.flows_max() as u64,
                swept: snapshot.ended,
            },
            packets: snapshot.counters.iter().map(|(verdict, n)| (verdict.name().to_owned(), n)).collect(),
            age_ms: millis(at.unwrap_or(self.started).elapsed()),
            log_lines_dropped: spillway_daemon::log_lines_dropped(),
            thread_failure: self.watch.failure().map(str::to_owned),
        }
    }
}

fn port_status(state: &PortState, config: &SwitchConfig) -> PortStatus {
    let port = config.ports.iter().find(|port| port.number == state.number);
    let may_own = port.iter().flat_map(|port| &port.may_own).map(|service| config.service_name(*service));
    PortStatus {
        interface: state.interface.clone(),
        number: state.number,
        mode: state.mode.to_owned(),
        problem: state.problem.clone(),
        may_own: may_own.map(str::to_owned).collect(),
    }
}

fn service_status(service: &crate::config::Service, snapshot: &Snapshot) -> ServiceStatus {
    let flows =
        |endpoint: &crate::config::Endpoint| snapshot.by_endpoint.get(&endpoint.address.into()).copied();
    ServiceStatus { name: service.name.clone(), flows: service.endpoints.iter().filter_map(flows).sum() }
}

fn server_status(server: &crate::config::Server, snapshot: &Snapshot, config: &SwitchConfig) -> ServerStatus {
    let owner = snapshot.owners.iter().find(|owner| owner.server == ServerId(server.id));
    let age = |owner: &OwnerEntry| millis(snapshot.taken - owner.last_heartbeat);
    ServerStatus {
        name: server.name.clone(),
        id: server.id,
        port: config.interface(server.port).to_owned(),
        key: server.key.as_ref().map_or_else(String::new, |key| key.id().to_string()),
        is_alive: owner.is_some_and(|owner| is_alive(owner, snapshot.taken, config.owner_timeout)),
        service: owner
            .and_then(|owner| owner.service)
            .map(|service| config.service_name(service.0).to_owned())
            .filter(|name| !name.is_empty()),
        load: owner.filter(|owner| owner.service.is_some()).map_or(0, |owner| owner.load),
        free_places: owner.map_or(0, |owner| owner.free_places),
        weight: owner.map_or(0, |owner| owner.weight),
        heartbeat_age_ms: owner.map(age),
    }
}

/// Whether a server is an owner and its last heartbeat is recent. The clock of silence, by which the program decides, stops
/// when no server at all is heard; operators must see that all servers are silent.
fn is_alive(owner: &OwnerEntry, now: Time, timeout: Duration) -> bool {
    owner.term != 0 && now - owner.last_heartbeat <= timeout
}

/// Logs each port whose state has changed since the last turn: the program has stopped there, or runs again. At the
/// first turn also logs ports in generic mode.
fn log_changes(before: &[PortState], after: &[PortState]) {
    if before.is_empty() {
        warn_of_generic_mode(after);
    }
    for state in after {
        let earlier = before.iter().find(|one| one.interface == state.interface);
        match (&state.problem, earlier.map(|one| &one.problem)) {
            (problem, Some(earlier)) if problem == earlier => {}
            (Some(problem), _) => error!(
                port = state.interface,
                "port {}: {problem}; a reload attaches the program again", state.interface
            ),
            (None, Some(_)) => info!(port = state.interface, "port {}: forwards again", state.interface),
            (None, None) => {}
        }
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_is_alive_while_its_heartbeats_arrive() {
        let owner = |term, last_heartbeat| OwnerEntry {
            server: ServerId(1),
            term,
            service: None,
            load: 0,
            free_places: 0,
            weight: 0,
            control_port: 9,
            last_heartbeat,
            clock: 0,
            highest: 1,
            window: 1,
            // The clock of silence stands still when no server is heard.
            is_silent: false,
        };
        let (last, timeout) = (Time(5), Duration::from_secs(1));
        assert!(is_alive(&owner(7, last), last + timeout, timeout));
        assert!(!is_alive(&owner(7, last), last + timeout + Duration::from_nanos(1), timeout), "too old");
        assert!(!is_alive(&owner(0, last), last, timeout), "it has said no hello since it lost its term");
    }
}
