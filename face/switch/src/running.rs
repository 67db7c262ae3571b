//! A switch while its daemon runs.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use spillway_bpf::switch::OwnerEntry;
use spillway_daemon::ThreadWatch;
use spillway_rules::Mode;
use spillway_transport::Time;
use spillway_wire::switch::ServerId;
use spillway_xdp::Interface;
use tracing::{info, warn};

use crate::basis::Basis;
use crate::change::{ReloadOutcome, check_mode, differences, keep_restart_settings};
use crate::config::{Port, SwitchConfig, mode_text};
use crate::entries::Requests;
use crate::last_failure::LastFailure;
use crate::local::{Local, LocalServer};
use crate::messages::Messages;
use crate::port_state::{PortState, log_changes};
use crate::program::Program;
use crate::status::{FlowsStatus, ServerStatus, ServiceStatus, SwitchStatus};
use crate::sweep::{Snapshot, sweep};

/// Interval at which the daemon reads the tables and ends the entries of ended flows.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);
/// Interval at which the daemon sends *hello*: the most by which the clock of silence advances from one *hello* or heartbeat
/// to the next. Without the daemon's *hello* the clock would stand still if all servers died, and none would be silent.
const HELLO_INTERVAL: Duration = spillway_rules::times::GAP_MAX;
/// The pause after a turn is at least this many times the turn's duration, so that a large table is read less often.
const SWEEP_SHARE: u32 = 10;
/// The longest turn without a datagram of this host's own server: by which the daemon's end is delayed.
const LOCAL_PATIENCE: Duration = Duration::from_millis(100);
/// The smallest value of [`View::age_limit`].
const AGE_LIMIT_MIN: Duration = Duration::from_secs(10);

pub(crate) struct Running {
    program: Program,
    messages: Messages,
    local: Local,
    config: Mutex<SwitchConfig>,
    view: Mutex<View>,
    /// Locked during a turn and during a change: a turn judges entries by the configuration that the tables have.
    exclusive: Mutex<()>,
    started: Instant,
    watch: ThreadWatch,
}

/// What the last sweep found.
#[derive(Default)]
struct View {
    snapshot: Snapshot,
    ports: Vec<PortState>,
    at: Option<Instant>,
    /// Duration of the last turn.
    took: Duration,
    /// Why a part of a refused change is in force: restoring the settings has failed, and is tried again in each turn.
    unrestored: Option<String>,
    /// Of writing new Ethernet addresses and MTUs of interfaces.
    unwritten: LastFailure,
}

impl View {
    /// The pause before the next turn.
    fn pause(&self) -> Duration {
        SWEEP_INTERVAL.max(self.took * SWEEP_SHARE)
    }

    /// The age of the figures from which on something is wrong: two pauses, at least [`AGE_LIMIT_MIN`].
    fn age_limit(&self) -> Duration {
        AGE_LIMIT_MIN.max(self.pause() * 2)
    }
}

impl Running {
    pub(crate) fn new(
        program: Program,
        messages: Messages,
        local: Local,
        config: SwitchConfig,
        watch: ThreadWatch,
    ) -> Running {
        let (config, view, exclusive) = (Mutex::new(config), Mutex::default(), Mutex::default());
        Running { program, messages, local, config, view, exclusive, started: Instant::now(), watch }
    }

    /// The daemon's requests about entries.
    ///
    /// # Errors
    /// The settings have no control endpoint.
    pub(crate) fn requests(&self) -> Result<Requests<'_, Program>, String> {
        let control = *self.lock_config().control.first().ok_or("the switch has no control address")?;
        Ok(Requests::new(&self.program, &self.messages, control))
    }

    pub(crate) fn tables(&self) -> &Program {
        &self.program
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

    fn exclusive(&self) -> MutexGuard<'_, ()> {
        self.exclusive.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Applies new settings.
    ///
    /// # Errors
    /// The settings cannot be applied. The old ones are in force again, unless restoring them failed, too: the error then
    /// contains both causes, and later turns try again.
    pub(crate) fn change(&self, mut config: SwitchConfig) -> Result<ReloadOutcome, String> {
        let _exclusive = self.exclusive();
        let before = self.config();
        check_mode(&before, &config)?;
        let restart = keep_restart_settings(&before, &mut config);
        config.keep_numbers(&self.program.known(&before, &config)?)?;
        let rules = config.rules(self.messages.key().clone());
        rules.check().map_err(|error| error.to_string())?;
        let endpoints = self.local.open(local_control(&config))?;
        if let Err(error) = self.program.change(&config, &rules) {
            if error.is_mixed {
                self.view().unrestored = Some(error.why.clone());
            }
            return Err(error.why);
        }
        self.view().unrestored = None;
        self.local.replace(endpoints);
        let mut changes = differences(&before, &config);
        *self.lock_config() = config;
        // The settings are in force even if entries could not be ended: a later turn ends them.
        match self.turn_alone() {
            Ok(()) => changes.extend(lost_flows(&self.view().snapshot)),
            Err(why) => changes.push(format!("flows: entries could not be checked: {why}")),
        }
        Ok(ReloadOutcome { changes, restart })
    }

    /// Sweeps at an interval, until the sender of `stop` is dropped.
    pub(crate) fn sweep(&self, stop: &Receiver<()>) {
        let mut problem: Option<String> = None;
        loop {
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
            let until = Instant::now() + self.view().pause();
            let mut ports_due = Instant::now() + SWEEP_INTERVAL;
            while Instant::now() < until {
                match stop.recv_timeout(HELLO_INTERVAL) {
                    Err(RecvTimeoutError::Timeout) => {}
                    Ok(()) | Err(RecvTimeoutError::Disconnected) => return,
                }
                // The next turn fails in the same way, and reports the failure.
                let _ = self.requests().and_then(|requests| requests.hello());
                if (ports_due..until).contains(&Instant::now()) {
                    self.tend_ports();
                    ports_due = Instant::now() + SWEEP_INTERVAL;
                }
            }
        }
    }

    /// Handles the control messages of this host's own server, in host mode, until the sender of `stop` is dropped.
    pub(crate) fn serve_local(&self, stop: &Receiver<()>) {
        while stop.try_recv() != Err(TryRecvError::Disconnected) {
            let server = self.lock_config().local_server().and_then(LocalServer::of);
            self.local.turn(LOCAL_PATIENCE, &self.program, server.as_ref());
        }
    }

    /// Attaches ports that are not attached, ends and settles entries, and reads the tables for status and metrics.
    ///
    /// # Errors
    /// The tables cannot be read, or the program does not answer.
    pub(crate) fn turn(&self) -> Result<(), String> {
        let _exclusive = self.exclusive();
        self.turn_alone()
    }

    /// As [`turn`](Self::turn). The caller holds the lock `exclusive`.
    fn turn_alone(&self) -> Result<(), String> {
        let began = Instant::now();
        let restored = self.restore();
        if restored.is_ok() {
            self.attach_missing();
        }
        self.view_ports();
        restored?;
        let config = self.config();
        let ended = self.view().snapshot.ended;
        let snapshot = sweep(&self.requests()?, &Basis::of(&config), ended)?;
        lost_flows(&snapshot).iter().for_each(|line| warn!("{line}"));
        let mut view = self.view();
        (view.snapshot, view.at, view.took) = (snapshot, Some(Instant::now()), began.elapsed());
        Ok(())
    }

    /// Reads the states of the ports for status and metrics, and logs changes.
    fn view_ports(&self) {
        self.program.remove_orphan();
        let ports = self.program.ports(&self.lock_config().ports);
        let before = std::mem::replace(&mut self.view().ports, ports.clone());
        log_changes(&before, &ports);
    }

    /// Attaches ports that are not attached, in a long pause between two turns.
    fn tend_ports(&self) {
        let _exclusive = self.exclusive();
        // Tables with a part of a refused change are restored first, in a turn.
        if self.view().unrestored.is_none() {
            self.attach_missing();
        }
        self.view_ports();
    }

    /// Writes the settings in force once more if restoring them has failed.
    fn restore(&self) -> Result<(), String> {
        if self.view().unrestored.is_none() {
            return Ok(());
        }
        let config = self.config();
        let rules = config.rules(self.messages.key().clone());
        self.program.change(&config, &rules).map_err(|error| error.why)?;
        self.view().unrestored = None;
        info!("the settings before the refused reload are restored");
        Ok(())
    }

    /// Tries to attach the ports on which the program does not run. A new interface has another Ethernet address, which is
    /// written to the tables first, and so is a new MTU. A port that cannot be attached is noted, and stops no other.
    fn attach_missing(&self) {
        self.program.release_lost();
        let mut config = self.config();
        let states = self.program.ports(&config.ports).into_iter();
        let missing: BTreeMap<u8, String> =
            states.filter_map(|state| Some((state.number, state.problem?))).collect();
        let mut found = Vec::new();
        let mut is_new = false;
        for port in config.ports.iter_mut().filter(|port| !missing.contains_key(&port.number)) {
            is_new |= adopt_mtu(port);
        }
        for port in config.ports.iter_mut().filter(|port| missing.contains_key(&port.number)) {
            match Interface::find(&port.interface) {
                Ok(interface) => {
                    is_new |= port.mac != interface.mac || port.mtu != Port::mtu_of(&interface);
                    (port.mac, port.mtu) = (interface.mac, Port::mtu_of(&interface));
                    found.push(port.clone());
                }
                Err(error) => self.program.note(port, Some(error.to_string())),
            }
        }
        if is_new {
            return self.attach_all(config, &found);
        }
        for port in found.iter().filter(|port| self.program.attach(port)) {
            warn!(
                "port {}: attached again; it was detached because {}",
                port.interface, missing[&port.number]
            );
        }
    }

    /// Writes new Ethernet addresses and MTUs of interfaces to the tables, which attaches the ports, too. `found`: the ports to be
    /// attached.
    fn attach_all(&self, config: SwitchConfig, found: &[Port]) {
        let rules = config.rules(self.messages.key().clone());
        match self.program.change(&config, &rules) {
            Ok(()) => {
                self.view().unwritten.is_new(None);
                let mut held = self.lock_config();
                log_new_mtus(&held, &config);
                *held = config;
            }
            Err(error) => {
                if self.view().unwritten.is_new(Some(&error.why)) {
                    warn!("cannot write new addresses or MTUs of interfaces to the tables: {}", error.why);
                }
                found.iter().for_each(|port| self.program.note(port, Some(error.why.clone())));
                if error.is_mixed {
                    self.view().unrestored = Some(error.why);
                }
            }
        }
    }

    /// Whether the sweeper runs. It reads large tables less often.
    pub(crate) fn is_sweeping(&self) -> bool {
        let view = self.view();
        view.at.unwrap_or(self.started).elapsed() <= view.age_limit()
    }

    /// The status as of the last sweep.
    pub(crate) fn status(&self) -> SwitchStatus {
        let config = self.config();
        let (snapshot, ports, at, age_limit, unrestored) = {
            let view = self.view();
            let unrestored = view.unrestored.clone();
            (view.snapshot.clone(), view.ports.clone(), view.at, view.age_limit(), unrestored)
        };
        let flows = snapshot.flows;
        SwitchStatus {
            kind: "switch".to_owned(),
            name: config.name.clone(),
            mode: mode_text(config.mode).to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            uptime_ms: millis(self.started.elapsed()),
            epoch: self.messages.epoch(),
            ports: ports.iter().map(|state| state.status(&config)).collect(),
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
            next_program: self.program.next_program(),
            local_messages: self.local.counts().0,
            local_messages_dropped: self.local.counts().1,
            age_ms: millis(at.unwrap_or(self.started).elapsed()),
            age_limit_ms: millis(age_limit),
            unrestored,
            log_lines_dropped: spillway_daemon::log_lines_dropped(),
            thread_failure: self.watch.failure().map(str::to_owned),
        }
    }
}

/// Takes the present MTU of a port's interface over, which any process may change. Returns whether it is another one.
fn adopt_mtu(port: &mut Port) -> bool {
    // After a renaming the name may be another interface's.
    let found = Interface::find(&port.interface).ok().filter(|found| found.mac == port.mac);
    let Some(mtu) = found.map(|found| Port::mtu_of(&found)).filter(|mtu| *mtu != port.mtu) else {
        return false;
    };
    port.mtu = mtu;
    true
}

fn log_new_mtus(old: &SwitchConfig, new: &SwitchConfig) {
    for (old, new) in old.ports.iter().zip(&new.ports).filter(|(old, new)| old.mtu != new.mtu) {
        info!("port {}: the interface's MTU is {} now; it was {}", new.interface, new.mtu, old.mtu);
    }
}

/// The control endpoints at which this host's own server is served: none in gateway mode.
pub(crate) fn local_control(config: &SwitchConfig) -> &[SocketAddr] {
    match config.mode {
        Mode::Gateway => &[],
        Mode::Host => &config.control,
    }
}

fn service_status(service: &crate::config::Service, snapshot: &Snapshot) -> ServiceStatus {
    let flows =
        |endpoint: &crate::config::Endpoint| snapshot.by_endpoint.get(&endpoint.address.into()).copied();
    ServiceStatus { name: service.name.clone(), flows: service.endpoints.iter().filter_map(flows).sum() }
}

fn server_status(server: &crate::config::Server, snapshot: &Snapshot, config: &SwitchConfig) -> ServerStatus {
    let owner = snapshot.owners.iter().find(|owner| owner.server == ServerId(server.id));
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
        heartbeat_age_ms: owner.and_then(|owner| heartbeat_age_ms(owner, snapshot.taken)),
        encapsulated_via: server.encapsulation.map(|one| one.next_hop.to_string()),
    }
}

/// The time since a server's last heartbeat. The program gives a server an entry at its first message, and accepts no
/// heartbeat before *hello*.
fn heartbeat_age_ms(owner: &OwnerEntry, now: Time) -> Option<u64> {
    (owner.last_heartbeat != Time(0)).then(|| millis(now - owner.last_heartbeat))
}

/// Whether a server is an owner and its last heartbeat is recent. The clock of silence, by which the program decides, stops
/// in a pause of the switch's host; operators must see that servers are silent.
fn is_alive(owner: &OwnerEntry, now: Time, timeout: Duration) -> bool {
    owner.term != 0 && now - owner.last_heartbeat <= timeout
}

/// A line about entries that the configuration does not permit any more, if there were any.
fn lost_flows(snapshot: &Snapshot) -> Option<String> {
    let (ended, left) = (snapshot.not_permitted, snapshot.not_permitted_left);
    let more = if left > 0 { format!(", {left} more follow") } else { String::new() };
    (ended + left > 0).then(|| {
        format!(
            "flows: {ended} entries ended{more}: the settings do not have their service, place or server any more, or its \
             right to own them"
        )
    })
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_table_is_read_less_often_and_may_be_older() {
        let view = |millis| View { took: Duration::from_millis(millis), ..View::default() };
        let seconds = |view: View| (view.pause().as_secs_f64(), view.age_limit().as_secs_f64());
        assert_eq!(seconds(view(0)), (1.0, 10.0));
        assert_eq!(seconds(view(500)), (5.0, 10.0));
        // A table of 16 million flows takes about 10 s.
        assert_eq!(seconds(view(10_000)), (100.0, 200.0));
    }

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
            // The clock of silence stands still in a pause.
            is_silent: false,
        };
        let (last, timeout) = (Time(5), Duration::from_secs(1));
        assert!(is_alive(&owner(7, last), last + timeout, timeout));
        assert!(!is_alive(&owner(7, last), last + timeout + Duration::from_nanos(1), timeout), "too old");
        assert!(!is_alive(&owner(0, last), last, timeout), "it has said no hello since it lost its term");
        let age = |last_heartbeat| heartbeat_age_ms(&owner(0, last_heartbeat), last + timeout);
        assert_eq!((age(last), age(Time(0))), (Some(1000), None), "no heartbeat was accepted yet");
    }
}
