//! The switch's XDP program with its tables in the kernel.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};
use spillway_auth::SwitchKey;
use spillway_bpf::Mode;
use spillway_bpf::switch::{
    FlowEntry, OwnerEntry, Pinned, PortError, PortState as State, Switch, SwitchError,
};
use spillway_rules::{Config, PortId, VerdictCounters};
use spillway_transport::Time;
use spillway_xdp::Interface;
use tracing::warn;

use crate::config::{KnownNumbers, Port, SwitchConfig};
use crate::known;
use crate::tables::Tables;

/// The program, pinned: it stays attached when the process ends.
pub(crate) struct Program {
    switch: RwLock<Switch>,
    /// Why ports could not be attached, by their numbers.
    refusals: Mutex<BTreeMap<u8, String>>,
    epoch: u64,
    is_adopted: bool,
    flows_max: usize,
}

/// Whether the program runs on a port's interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PortState {
    pub(crate) number: u8,
    pub(crate) interface: String,
    /// `native`, `generic`, or empty if the program does not run there.
    pub(crate) mode: &'static str,
    /// Why the program does not run there.
    pub(crate) problem: Option<String>,
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
    /// program. It leaves no new pins.
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
        let (switch, failures) = started.map_err(|error| {
            if !is_adopted {
                // Fails if the start was refused before there were pins.
                let _ = spillway_bpf::switch::remove(directory);
            }
            error.to_string()
        })?;
        let refusals = refusals(failures);
        if !is_adopted && refusals.len() == config.ports.len() {
            switch.remove().map_err(|error| error.to_string())?;
            let reasons: Vec<String> = refusals.into_values().collect();
            return Err(format!("no port can be attached: {}", reasons.join("; ")));
        }
        let (epoch, flows_max) = (switch.epoch(), switch.flows_max());
        if flows_max != config.flows_max {
            warn!(
                "the switch's table has room for {flows_max} flows, as before: flows_max = {} takes effect after `spillway \
                 switch --config FILE --detach`, which ends moved connections",
                config.flows_max
            );
        }
        let (switch, refusals) = (RwLock::new(switch), Mutex::new(refusals));
        Ok(Program { switch, refusals, epoch, is_adopted, flows_max })
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
        let ports = self.read().ports().map_err(|error| error.to_string())?;
        let attached = ports.into_iter().filter_map(|(port, state)| match state {
            State::Attached { interface, .. } | State::WithoutEgress { interface } => {
                Some((interface, port.number()))
            }
            State::Detached => None,
        });
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
        let failures = self.write().apply(rules, &interfaces(config)).map_err(|error| ChangeError {
            is_mixed: matches!(error, SwitchError::Mixed { .. }),
            why: error.to_string(),
        })?;
        *self.refusals() = refusals(failures);
        Ok(())
    }

    /// Tries to attach the program to a port's interface. The tables must have the interface's Ethernet address.
    pub(crate) fn attach(&self, port: &Port) {
        let Some(number) = PortId::new(port.number) else { return };
        let attached = self.write().attach(number, &port.interface);
        self.note(port, attached.err().map(|error| error.to_string()));
    }

    /// Remembers why a port is not attached.
    pub(crate) fn note(&self, port: &Port, problem: Option<String>) {
        let mut refusals = self.refusals();
        match problem {
            Some(problem) => drop(refusals.insert(port.number, problem)),
            None => drop(refusals.remove(&port.number)),
        }
    }

    /// The state of each port.
    ///
    /// # Errors
    /// The system has failed.
    pub(crate) fn ports(&self, ports: &[Port]) -> Result<Vec<PortState>, String> {
        let attached: BTreeMap<PortId, _> =
            self.read().ports().map_err(|error| error.to_string())?.into_iter().collect();
        let refusals = self.refusals();
        let state = |port: &Port| {
            let state = PortId::new(port.number).and_then(|number| attached.get(&number));
            let refusal =
                |unknown: &str| refusals.get(&port.number).cloned().unwrap_or_else(|| unknown.to_owned());
            let (mode, problem) = match state {
                Some(State::Attached { mode: Mode::Native, .. }) => ("native", None),
                Some(State::Attached { mode: Mode::Generic, .. }) => ("generic", None),
                Some(State::WithoutEgress { .. }) => {
                    ("", Some(refusal("somebody has removed the filter at the interface's egress")))
                }
                Some(State::Detached) | None => (
                    "",
                    Some(refusal("the interface was removed, or another program has detached the switch")),
                ),
            };
            PortState { number: port.number, interface: port.interface.clone(), mode, problem }
        };
        Ok(ports.iter().map(state).collect())
    }

    fn refusals(&self) -> MutexGuard<'_, BTreeMap<u8, String>> {
        self.refusals.lock().unwrap_or_else(PoisonError::into_inner)
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

fn refusals(failures: Vec<(PortId, PortError)>) -> BTreeMap<u8, String> {
    failures.into_iter().map(|(port, error)| (port.number(), error.to_string())).collect()
}

/// Warns of ports on which the program runs in generic mode: behind the driver, not in it.
pub(crate) fn warn_of_generic_mode(ports: &[PortState]) {
    for port in ports.iter().filter(|port| port.mode == "generic") {
        warn!(
            "port {}: the driver has no XDP, so that the program runs behind it, slower; turn off generic receive offload \
             there, because joined packets are too long: ethtool -K {} gro off",
            port.interface, port.interface
        );
    }
}

impl Tables for Program {
    fn handle(&self, frame: &[u8]) -> Result<Option<Vec<u8>>, String> {
        self.read().control(frame).map_err(|error| error.to_string())
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
