//! The switch's XDP program with its tables in the kernel.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};
use spillway_auth::SwitchKey;
use spillway_bpf::switch::{FlowEntry, OwnerEntry, Pinned, PortState as State, Switch, SwitchError};
use spillway_rules::{Config, PortId, VerdictCounters};
use spillway_transport::Time;
use spillway_xdp::Interface;
use tracing::{info, warn};

use crate::config::{KnownNumbers, Port, SwitchConfig};
use crate::known;
use crate::last_failure::LastFailure;
use crate::port_state::PortState;
use crate::problems::{Problems, problem_of};
use crate::tables::Tables;

/// The program, pinned: it stays attached when the process ends.
pub(crate) struct Program {
    switch: RwLock<Switch>,
    problems: Mutex<Problems>,
    /// Of the removal of the program of a user-level stack that has ended.
    orphan: Mutex<LastFailure>,
    epoch: u64,
    is_adopted: bool,
    flows_max: usize,
}

/// Why other settings were not applied.
#[derive(Debug)]
pub(crate) struct ChangeError {
    pub(crate) why: String,
    /// Whether a part of the change is in force.
    pub(crate) is_mixed: bool,
}

impl Program {
    /// Loads the program with the tables that are pinned at `directory`, or with new ones, which are then pinned there,
    /// and attaches it to all ports that can be attached. `config` gets the numbers that pinned tables have.
    ///
    /// A start that fails leaves pinned tables and ports as they were, except that the ports may already have the new
    /// program, and that ports without an interface in this network namespace are detached. It leaves no new pins.
    ///
    /// # Errors
    /// The text states what failed, and the next step. Without pinned tables it is also an error if no port can be
    /// attached.
    pub(crate) fn start(
        directory: &Path,
        config: &mut SwitchConfig,
        key: &SwitchKey,
    ) -> Result<Program, String> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let new_epoch = u64::try_from(now.as_nanos()).unwrap_or(0);
        let pinned = Pinned::read(directory).map_err(|error| error.to_string())?;
        if let Some(pinned) = &pinned {
            config.keep_numbers(&known::at_start(pinned, config, index_of))?;
        }
        let is_adopted = pinned.is_some();
        let rules = config.rules(key.clone());
        let started = Switch::open_or_create(directory, &rules, new_epoch).and_then(|mut switch| {
            let failures = switch.apply(&rules, &interfaces(config))?;
            Ok((switch, failures))
        });
        let (mut switch, failures) = started.map_err(|error| {
            if !is_adopted {
                // Fails if the start was refused before there were pins.
                let _ = spillway_bpf::switch::remove(directory);
            }
            error.to_string()
        })?;
        if !is_adopted && failures.len() == config.ports.len() {
            switch.remove().map_err(|error| error.to_string())?;
            let reasons: Vec<String> = failures.iter().map(|(_, error)| error.to_string()).collect();
            return Err(format!("no port can be attached: {}", reasons.join("; ")));
        }
        // Their numbers may belong to other ports of the file now.
        for (port, state) in switch.release_lost() {
            warn!("the port that had the number {port} was detached: {}", problem_of(&state));
        }
        let (epoch, flows_max) = (switch.epoch(), switch.flows_max());
        if flows_max != config.flows_max {
            warn!(
                "the switch's table has room for {flows_max} flows, as before: flows_max = {} takes effect after `spillway \
                 switch --config FILE --detach`, which ends moved connections",
                config.flows_max
            );
        }
        let mut problems = Problems::default();
        problems.applied(failures);
        let (switch, problems) = (RwLock::new(switch), Mutex::new(problems));
        Ok(Program { switch, problems, orphan: Mutex::default(), epoch, is_adopted, flows_max })
    }

    /// Detaches the pinned program and removes the tables of a switch whose daemon does not run.
    ///
    /// # Errors
    /// The switch has no pins, or a pin cannot be removed.
    pub(crate) fn remove(directory: &Path) -> Result<(), String> {
        spillway_bpf::switch::remove(directory).map_err(|error| error.to_string())
    }

    /// Start time of the switch in nanoseconds since 1970: when the tables were created.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Whether the tables existed before this process.
    pub(crate) fn is_adopted(&self) -> bool {
        self.is_adopted
    }

    /// Maximum number of flows: that of the tables, if they existed before.
    pub(crate) fn flows_max(&self) -> usize {
        self.flows_max
    }

    /// The numbers that `after` must keep when it replaces `before`.
    ///
    /// # Errors
    /// The tables cannot be read.
    pub(crate) fn known(&self, before: &SwitchConfig, after: &SwitchConfig) -> Result<KnownNumbers, String> {
        let ports = self.read().ports().into_iter();
        let attached = ports.filter_map(|(port, state)| Some((state.interface()?, port.number())));
        let mut named = BTreeSet::new();
        self.visit_flows(&mut |entry| named.extend(entry.servers()))?;
        Ok(known::at_reload(before, after, &attached.collect(), index_of, &named))
    }

    /// Applies other settings, in which ports, services and servers have kept their numbers
    /// ([`SwitchConfig::keep_numbers`]). `rules`: the settings in the form of the rules. A port that cannot be attached
    /// is not an error.
    ///
    /// # Errors
    /// The settings cannot be applied; those before are in force, unless the error is mixed.
    pub(crate) fn change(&self, config: &SwitchConfig, rules: &Config) -> Result<(), ChangeError> {
        self.release_lost();
        let failures = self.write().apply(rules, &interfaces(config)).map_err(|error| ChangeError {
            is_mixed: matches!(error, SwitchError::Mixed { .. }),
            why: error.to_string(),
        })?;
        self.problems().applied(failures);
        Ok(())
    }

    /// Tries to attach the program to a port's interface. The tables must have the interface's Ethernet address.
    /// Returns whether it is attached now.
    pub(crate) fn attach(&self, port: &Port) -> bool {
        let Some(number) = PortId::new(port.number) else { return false };
        let attached = self.write().attach(number, &port.interface);
        let is_attached = attached.is_ok();
        self.note(port, attached.err().map(|error| error.to_string()));
        is_attached
    }

    /// Detaches the program from interfaces that have left the network namespace.
    pub(crate) fn release_lost(&self) {
        let lost = self.write().release_lost();
        self.problems().lost(lost);
    }

    /// The number of the program of a user-level stack behind the switch's, in host mode.
    pub(crate) fn next_program(&self) -> Option<u32> {
        self.read().next_program().ok().flatten()
    }

    /// Removes the program of a user-level stack whose process has ended.
    pub(crate) fn remove_orphan(&self) {
        let removed = self.read().remove_orphan();
        let why = removed.as_ref().err().map(ToString::to_string);
        let is_new = self.orphan.lock().unwrap_or_else(PoisonError::into_inner).is_new(why.as_deref());
        if let Ok(Some(number)) = removed {
            info!(
                "the program number {number} of a user-level stack was removed: its process has ended; the kernel gets its \
                 packets"
            );
        }
        if let Some(why) = why.filter(|_| is_new) {
            warn!(
                "cannot remove the program of a user-level stack that has ended: {why}; tried again once a second"
            );
        }
    }

    /// Remembers why a port is not attached.
    pub(crate) fn note(&self, port: &Port, problem: Option<String>) {
        match problem {
            Some(problem) => self.problems().refused(port.number, problem),
            None => self.problems().solved(port.number),
        }
    }

    /// The state of each port.
    pub(crate) fn ports(&self, ports: &[Port]) -> Vec<PortState> {
        let attached: BTreeMap<PortId, State> = self.read().ports().into_iter().collect();
        let problems = self.problems();
        let state = |port: &Port| {
            let state = PortId::new(port.number).and_then(|number| attached.get(&number));
            PortState::of(port, state, &problems)
        };
        ports.iter().map(state).collect()
    }

    fn problems(&self) -> MutexGuard<'_, Problems> {
        self.problems.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read(&self) -> RwLockReadGuard<'_, Switch> {
        self.switch.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Switch> {
        self.switch.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The interfaces of the ports.
fn interfaces(config: &SwitchConfig) -> BTreeMap<PortId, String> {
    let ports = config.ports.iter();
    ports.filter_map(|port| Some((PortId::new(port.number)?, port.interface.clone()))).collect()
}

/// The index of an interface, if it exists.
fn index_of(interface: &str) -> Option<u32> {
    Interface::find(interface).ok().map(|found| found.index)
}

impl Tables for Program {
    fn handle(&self, frame: &[u8]) -> Result<Option<Vec<u8>>, String> {
        self.read().control(frame).map_err(|error| error.to_string())
    }

    fn handle_local(&self, frame: &[u8]) -> Result<Option<Vec<u8>>, String> {
        self.read().control_at(PortId::LOCAL, frame).map_err(|error| error.to_string())
    }

    fn visit_flows(&self, visit: &mut dyn FnMut(&FlowEntry)) -> Result<(), String> {
        let switch = self.read();
        let flows = switch.flows().map_err(|error| error.to_string())?;
        flows.for_each(|entry| visit(&entry));
        Ok(())
    }

    fn owners(&self) -> Result<Vec<OwnerEntry>, String> {
        self.read().owners(self.now()).map_err(|error| error.to_string())
    }

    fn counters(&self) -> Result<VerdictCounters, String> {
        self.read().counters().map_err(|error| error.to_string())
    }

    /// The program's clock is `bpf_ktime_get_ns`, which is CLOCK_MONOTONIC.
    fn now(&self) -> Time {
        let time = clock_gettime(ClockId::Monotonic);
        let (seconds, nanoseconds) = (time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs());
        Time(seconds.saturating_mul(1_000_000_000).saturating_add(nanoseconds))
    }
}
