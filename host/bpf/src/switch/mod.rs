//! Loads the switch's XDP program (`c/switch.bpf.c`), attaches it to ports, and writes and reads its maps.
//!
//! docs/switch.md describes the rules; `spillway_rules` has the same rules in Rust.

mod at_interface;
mod attachment;
mod change;
mod egress;
mod entries;
mod layout;
mod next_program;
mod pinned;
mod pins;
mod ports;
mod run;
mod tables;
mod test_egress;

use std::fmt;
use std::path::Path;
use std::time::Duration;

use libbpf_rs::{Object, OpenObject};
use spillway_rules::config::PORTS_MAX;
use spillway_rules::{Config, ConfigError, Mode, PortId, Verdict, VerdictCounters};
use spillway_transport::Time;

use crate::map::Map;
use crate::{BpfError, object};
use egress::Egress;
use entries::Entries;
use pins::Pins;
use ports::Ports;
use tables::Tables;

pub use at_interface::{Behind, SwitchAt};
pub use entries::{FlowEntry, OwnerEntry, Site};
pub(crate) use next_program::{NextProgram, NextProgramError, Present};
pub use pinned::Pinned;
pub(crate) use pins::unreadable;
pub use pins::{PINS, PinError, check_file_system, remove};
pub use ports::PortError;
pub use ports::state::PortState;
pub use run::TestRun;
use test_egress::TestEgress;

const NAME: &str = "spillway_switch";

/// The index of the loopback interface, in every network namespace. The kernel runs the daemon's messages as if they
/// had arrived there; no real frame does, because the program is never attached to it.
const LOOPBACK: u32 = 1;

/// Why the switch was not loaded or configured.
#[derive(Debug)]
pub enum SwitchError {
    /// The configuration has a fault.
    Config(ConfigError),
    /// The kernel refused the program or a map.
    Bpf(BpfError),
    /// The pinned maps cannot be used.
    Pins(PinError),
    /// A link to an interface cannot be read or changed.
    Port(PortError),
    /// A change failed, and a part of it stays.
    Mixed {
        /// Why the change failed.
        cause: String,
        /// Why the earlier state could not be restored.
        restoring: String,
    },
}

impl fmt::Display for SwitchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SwitchError::Config(error) => error.fmt(f),
            SwitchError::Bpf(error) => error.fmt(f),
            SwitchError::Pins(error) => error.fmt(f),
            SwitchError::Port(error) => error.fmt(f),
            SwitchError::Mixed { cause, restoring } => {
                write!(f, "{cause}; and the earlier state could not be restored: {restoring}")
            }
        }
    }
}

impl std::error::Error for SwitchError {}

impl SwitchError {
    /// Whether the process lacks CAP_BPF or CAP_NET_ADMIN.
    pub fn is_unprivileged(&self) -> bool {
        matches!(self, SwitchError::Bpf(error) if error.is_unprivileged())
    }
}

impl From<ConfigError> for SwitchError {
    fn from(error: ConfigError) -> SwitchError {
        SwitchError::Config(error)
    }
}

impl From<BpfError> for SwitchError {
    fn from(error: BpfError) -> SwitchError {
        SwitchError::Bpf(error)
    }
}

impl From<PinError> for SwitchError {
    fn from(error: PinError) -> SwitchError {
        SwitchError::Pins(error)
    }
}

impl From<PortError> for SwitchError {
    fn from(error: PortError) -> SwitchError {
        SwitchError::Port(error)
    }
}

/// The switch's program with its maps.
///
/// Dropping it detaches the program, unless the maps and links are pinned.
#[derive(Debug)]
pub struct Switch {
    object: Object,
    tables: Tables,
    entries: Entries,
    ports: Ports,
    verdicts: Map,
    next_program: Map,
    epoch: u64,
    owner_timeout: Duration,
    mode: Mode,
    /// Whether pinned links still have the program of an earlier process.
    has_adopted_links: bool,
    /// In host mode, the program for the interface's egress, loaded for tests.
    test_egress: Option<TestEgress>,
}

impl Switch {
    /// Loads the program without pins: dropping this value ends the program. `epoch` is the switch's start in
    /// nanoseconds since 1970, which must be later than the epoch of any earlier switch with the same control endpoint.
    ///
    /// # Errors
    /// The configuration has a fault, or the process lacks CAP_BPF or CAP_NET_ADMIN.
    pub fn load(config: &Config, epoch: u64) -> Result<Switch, SwitchError> {
        check(config, epoch)?;
        let switch = Switch::of(open(config)?, config, epoch, None)?;
        switch.start(config)?;
        Ok(switch)
    }

    /// Loads a program that takes the time and the ingress port from [`test_run`](Self::test_run). It cannot serve real
    /// interfaces.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn load_for_tests(config: &Config, epoch: u64) -> Result<Switch, SwitchError> {
        check(config, epoch)?;
        let mut object = open(config)?;
        object::set_constant(&mut object, ".rodata.test");
        let mut switch = Switch::of(object, config, epoch, None)?;
        switch.start(config)?;
        switch.ports.open_for_tests(config)?;
        if config.mode == Mode::Host {
            switch.test_egress = Some(TestEgress::load(&switch.object)?);
        }
        Ok(switch)
    }

    /// Loads the program with the maps and links that are pinned in a directory of a BPF file system, or creates and
    /// pins maps. The next call must be [`apply`](Self::apply): until then pinned tables and links are as before, with
    /// the program that they have, except links without an interface in this network namespace, and new tables are
    /// incomplete.
    ///
    /// The pins keep state and epoch (see [`epoch`](Self::epoch)). The number of flows stays that of the pinned map.
    ///
    /// # Errors
    /// As [`load`](Self::load); the pins have another layout or another mode; the switch forwards in another network
    /// namespace; the BPF file system is not mounted.
    pub fn open_or_create(directory: &Path, config: &Config, epoch: u64) -> Result<Switch, SwitchError> {
        check(config, epoch)?;
        let pins = Pins::new(directory)?;
        let pinned_epoch = pins.epoch()?;
        pins.check_mode(config.mode)?;
        pins.attachments()?;
        let mut object = open(config)?;
        pins.attach_maps(&mut object)?;
        let mut switch = Switch::of(object, config, pinned_epoch.unwrap_or(epoch), Some(pins))?;
        // Until `apply` writes the layout's version into new maps, a next start removes them: see `Pins::epoch`.
        if pinned_epoch.is_none() {
            switch.tables.start(epoch)?;
        }
        switch.ports.adopt()?;
        switch.has_adopted_links = true;
        Ok(switch)
    }

    fn of(
        object: OpenObject,
        config: &Config,
        epoch: u64,
        pins: Option<Pins>,
    ) -> Result<Switch, SwitchError> {
        let object = object::load(NAME, object)?;
        let directory = pins.as_ref().map(Pins::directory);
        let filter = match config.mode {
            Mode::Gateway => None,
            Mode::Host => Some(Egress::load(&object, directory)?),
        };
        Ok(Switch {
            tables: Tables::of(&object)?,
            entries: Entries::of(&object)?,
            ports: Ports::of(&object, filter, pins)?,
            verdicts: Map::of(&object, "verdicts")?,
            next_program: Map::of(&object, pins::NEXT_PROGRAM)?,
            object,
            epoch,
            owner_timeout: config.owner_timeout,
            mode: config.mode,
            has_adopted_links: false,
            test_egress: None,
        })
    }

    fn start(&self, config: &Config) -> Result<(), SwitchError> {
        self.tables.start(self.epoch)?;
        self.tables.configure(config, self.epoch)?;
        Ok(self.ports.add_daemon(LOOPBACK)?)
    }

    /// The epoch: that of the pins, if there were any.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Maximum number of flows: that of the pinned table, if there was one.
    pub fn flows_max(&self) -> usize {
        self.entries.flows_max()
    }

    /// Changes the configuration, except `flows_max`. State and attached interfaces stay, but the term of a server that is not
    /// configured any more, or has another key, ends, as in `spillway_rules::Switch::reload`. The daemon uses [`apply`](Self::apply).
    ///
    /// # Errors
    /// The configuration has a fault, or the system has failed. The old one stays, unless the error is
    /// [`SwitchError::Mixed`].
    pub fn configure(&mut self, config: &Config) -> Result<(), SwitchError> {
        config.check()?;
        if config.mode != self.mode {
            return Err(ConfigError::ModeChange.into());
        }
        self.tables.configure(config, self.epoch)?;
        self.owner_timeout = config.owner_timeout;
        Ok(())
    }

    /// Attaches the program to the interface of a port, in the calling thread's network namespace. All ports must be in
    /// one namespace. Does nothing if a pinned link has attached the program there already.
    ///
    /// # Errors
    /// Another program is attached, or the driver refuses this one.
    pub fn attach(&mut self, port: PortId, interface: &str) -> Result<(), PortError> {
        self.ports.attach(&object::program(NAME, &self.object), port, interface)
    }

    /// Detaches the program from a port's interface, if it is attached.
    ///
    /// # Errors
    /// The system has failed.
    pub fn detach(&mut self, port: PortId) -> Result<(), PortError> {
        self.ports.detach(port)
    }

    /// The states of the ports that were attached.
    pub fn ports(&self) -> Vec<(PortId, PortState)> {
        self.ports.states()
    }

    /// Detaches the program from interfaces that have left the calling thread's network namespace, and forgets those that
    /// were removed. To be called about once a second: until then an interface elsewhere can be taken for the one here that
    /// has the same index.
    ///
    /// Returns the ports that have lost their interface since the last call, with the states before, also those of pinned
    /// links that a start or [`apply`](Self::apply) has removed.
    pub fn release_lost(&mut self) -> Vec<(PortId, PortState)> {
        self.ports.release_lost()
    }

    /// In host mode: the number of the program of a user-level stack behind this one, if there is one.
    ///
    /// # Errors
    /// The system has failed.
    pub fn next_program(&self) -> Result<Option<u32>, BpfError> {
        next_program::program_in(self.next_program.handle())
    }

    /// In host mode: removes the program of a user-level stack whose process has ended from the place behind this one, so
    /// that the kernel gets its packets. Returns the program's number, if there was one. To be called about once a second.
    ///
    /// # Errors
    /// The system has failed.
    pub fn remove_orphan(&self) -> Result<Option<u32>, BpfError> {
        let pins = self.ports.pins().filter(|_| self.mode == Mode::Host);
        pins.map_or(Ok(None), |pins| next_program::remove_orphan(self.next_program.handle(), pins))
    }

    /// Detaches the program from all ports and removes the pins, if any. The switch's state is lost.
    ///
    /// # Errors
    /// The system has failed.
    pub fn remove(self) -> Result<(), PortError> {
        self.ports.remove()
    }

    /// Number of packets by verdict, since the maps were created.
    ///
    /// # Errors
    /// The system has failed.
    pub fn counters(&self) -> Result<VerdictCounters, BpfError> {
        let mut counters = [0; Verdict::ALL.len()];
        for (verdict, packets) in Verdict::ALL.into_iter().zip(&mut counters) {
            *packets = self.verdicts.sum(verdict as u32)?;
        }
        Ok(counters.into())
    }

    /// The entries of the table of flows, read in batches while the program changes it: an entry that is created or
    /// deleted meanwhile may be missing. The order is the map's.
    ///
    /// # Errors
    /// The system has failed.
    pub fn flows(&self) -> Result<impl Iterator<Item = FlowEntry> + '_, BpfError> {
        self.entries.flows()
    }

    /// The senders that have sent a message, in order of their ids, also those without a term. `now`: nanoseconds of
    /// CLOCK_MONOTONIC; in tests the time of the last run.
    ///
    /// # Errors
    /// The system has failed.
    pub fn owners(&self, now: Time) -> Result<Vec<OwnerEntry>, BpfError> {
        self.entries.owners(now, self.owner_timeout)
    }

    /// Runs the program on a frame with a control message of the switch's daemon. Returns the frame with the answer;
    /// `None` if the program drops the message.
    ///
    /// # Errors
    /// The kernel refuses the frame.
    pub fn control(&self, frame: &[u8]) -> Result<Option<Vec<u8>>, BpfError> {
        self.control_at(PortId::DAEMON, frame)
    }

    /// Runs the program on a frame with a control message that arrives at a port without an interface: the daemon's, or in
    /// host mode the local server's. Returns the frame to send: the answer, or in host mode a message for another server,
    /// or for the local one if the destination is still the control endpoint. `None` if the program drops the message.
    ///
    /// # Errors
    /// The kernel refuses the frame.
    pub fn control_at(&self, port: PortId, frame: &[u8]) -> Result<Option<Vec<u8>>, BpfError> {
        run::internal_run(&object::program(NAME, &self.object), port, frame)
    }

    /// Runs a program that was [loaded for tests](Self::load_for_tests) on a frame that arrives at a port. Several
    /// threads may call this at once.
    ///
    /// # Errors
    /// The kernel refuses the frame: it is shorter than an Ethernet header or longer than a page.
    ///
    /// # Panics
    /// The program was not loaded for tests, or its action is not the one of its verdict.
    pub fn test_run(&self, port: PortId, now: Time, frame: &[u8]) -> Result<TestRun, BpfError> {
        self.measure(port, now, frame).map(|(run, _)| run)
    }

    /// Runs the program of a host's egress, loaded for tests, on a frame that leaves.
    ///
    /// # Errors
    /// As [`test_run`](Self::test_run).
    ///
    /// # Panics
    /// The program was not loaded for tests of host mode.
    pub fn test_egress(&self, now: Time, frame: &[u8]) -> Result<TestRun, BpfError> {
        self.test_egress.as_ref().expect("a program of host mode for tests").run(now, frame)
    }

    /// As [`test_run`](Self::test_run); also returns the duration of the run.
    ///
    /// # Errors
    /// As [`test_run`](Self::test_run).
    pub fn measure(&self, port: PortId, now: Time, frame: &[u8]) -> Result<(TestRun, Duration), BpfError> {
        run::test_run(&object::program(NAME, &self.object), self.mode, port, now, frame)
    }

    /// Number of instructions of the program, before the verifier removes unreachable ones.
    pub fn instructions(&self) -> usize {
        object::program(NAME, &self.object).insn_cnt()
    }
}

fn check(config: &Config, epoch: u64) -> Result<(), ConfigError> {
    if epoch == 0 {
        return Err(ConfigError::Epoch);
    }
    config.check()
}

/// Opens the object, with the configured size of the table of flows.
fn open(config: &Config) -> Result<OpenObject, BpfError> {
    let mut object = object::open(NAME, object::SWITCH)?;
    let mut maps = object.maps_mut();
    let mut flows = maps
        .find(|map| map.name() == "flows")
        .unwrap_or_else(|| unreachable!("c/switch/maps.h defines the map `flows`"));
    let entries = u32::try_from(config.flows_max).expect("Config::check limits the number of flows");
    flows.set_max_entries(entries).map_err(BpfError::of("cannot set the size of the map `flows`"))?;
    drop(maps);
    if config.mode == Mode::Host {
        object::set_constant(&mut object, ".rodata.mode");
    }
    Ok(object)
}

/// The numbers of ports that have interfaces.
pub(super) fn open_ports() -> impl Iterator<Item = PortId> {
    (0..PORTS_MAX as u8).filter_map(PortId::new).filter(|port| *port != PortId::DAEMON)
}
