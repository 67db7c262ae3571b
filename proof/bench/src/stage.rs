//! The laboratory of the cost experiments: a server host, hosts for helpers or proxies, a client host, and a
//! bridge. Hosts have no quota unless an experiment sets a quota; CPU costs come from the CPU account of each
//! host.
//!
//! - `servers`, `helpers`, `echo`: programs on the hosts
//! - `session`: clients, and the costs of their requests
//! - `accounts`: CPU time, traffic and batches so far
//! - `key_space`: the keys that clients request

mod accounts;
mod echo;
mod helpers;
mod key_space;
mod servers;
mod session;

use std::collections::BTreeMap;
use std::path::Path;

use spillway_lab::{Forwarding, Host, HostOptions, Lab, LabOptions, Quota};

use crate::error::Error;
use crate::machine::Machine;
use crate::programs::Programs;
use crate::scene::{Placement, Setting, forwarding_text, quota_text};
use crate::served::{Keys, LINKS_TEXT};
use crate::steady::Steady;

pub use crate::served::Helper;
pub use accounts::{Wire, process_cpu};
pub(crate) use echo::Echo;
pub(crate) use helpers::HelperKind;
pub(crate) use key_space::space_of;
pub use key_space::{KEYS, space};
pub use servers::Pair;
pub use session::{Cost, MeasuredStep, Session};

/// The entry of [`crate::machine::Machine::lab`] for the server's quota; experiments that set a quota replace its
/// value.
pub(crate) const QUOTA_ENTRY: &str = "quota of the server's host";

/// The hosts of the laboratory, and the programs and key files with which servers and helpers start there.
#[derive(Debug)]
pub struct Stage {
    programs: Programs,
    placement: Placement,
    forwarding: Forwarding,
    /// True: hosts offload the checksums of sent packets to their interfaces. False: hosts compute the
    /// checksums.
    tx_checksums: bool,
    keys: Keys,
    /// The server's host.
    pub server: Host,
    /// The first host of helpers and proxies.
    pub middle_host: Host,
    more_middle_hosts: Vec<Host>,
    /// The clients' host.
    pub client: Host,
    steady: Steady,
    lab: Lab,
}

/// The hosts between clients and server, on which helpers and proxies run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MiddleHosts {
    /// Number of hosts, at least 1.
    pub count: usize,
    /// Quota of each host, for its processes and its interface together.
    pub quota: Option<Quota>,
}

impl Stage {
    /// Creates the hosts, with one host for helpers. `name` names the laboratory.
    pub fn create(name: &str, setting: &Setting) -> Result<Stage, Error> {
        Stage::create_with(name, setting, MiddleHosts { count: 1, quota: None })
    }

    /// [`Stage::create`] with several hosts for helpers.
    pub(crate) fn create_with(name: &str, setting: &Setting, hosts: MiddleHosts) -> Result<Stage, Error> {
        Stage::create_hosts(name, setting, hosts, true)
    }

    /// [`Stage::create`] with `middle_hosts` hosts for helpers. All hosts compute the checksums of sent
    /// packets themselves, so that clients and helpers can use [the user-level TCP
    /// stack](crate::generator::Engine::Xdp).
    pub fn create_with_checksums(name: &str, setting: &Setting, middle_hosts: usize) -> Result<Stage, Error> {
        Stage::create_hosts(name, setting, MiddleHosts { count: middle_hosts, quota: None }, false)
    }

    fn create_hosts(
        name: &str,
        setting: &Setting,
        hosts: MiddleHosts,
        tx_checksums: bool,
    ) -> Result<Stage, Error> {
        let placement = setting.placement;
        let forwarding = setting.forwarding;
        let lab = Lab::with_options(
            name,
            LabOptions { bridge_core: Some(placement.bridge), forwarding, ..LabOptions::default() },
        )?;
        let tx_checksums = tx_checksums && setting.tx_checksums();
        let on_core = |core| HostOptions { core: Some(core), tx_checksums, ..HostOptions::default() };
        // On the hosts of helpers and clients, the kernel's receive work runs before processes, so that a
        // busy helper or client loses no packets. On the server's host, receive work and server compete for
        // the core as they would for a common quota.
        let receiving_first = |core| HostOptions { receive_first: true, ..on_core(core) };
        let server = lab.host("server", on_core(placement.server))?;
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let create_middle_host = |number: usize| {
            let options = receiving_first(placement.helper_core(number, cores));
            // With a quota, receive work competes with the helper, because the quota includes both.
            let options = HostOptions { receive_first: hosts.quota.is_none(), quota: hosts.quota, ..options };
            let name = if number == 0 { "middle".into() } else { format!("middle{}", number + 1) };
            lab.host(&name, options)
        };
        let middle_host = create_middle_host(0)?;
        let more_middle_hosts = (1..hosts.count).map(create_middle_host).collect::<Result<_, _>>()?;
        let client = lab.host("client", receiving_first(placement.clients))?;
        let keys = Keys::make(&std::env::temp_dir().join(lab.run_name()))?;
        let (programs, steady) = (setting.programs.clone(), Steady::start(setting.idle_cores_poll));
        Ok(Stage {
            programs,
            placement,
            forwarding,
            tx_checksums,
            keys,
            server,
            middle_host,
            more_middle_hosts,
            client,
            steady,
            lab,
        })
    }

    pub(crate) fn middle_hosts(&self) -> impl Iterator<Item = &Host> {
        std::iter::once(&self.middle_host).chain(&self.more_middle_hosts)
    }

    /// Creates another host for helpers, on the core of the first. Snapshots omit the new host's CPU time.
    pub fn second_middle(&self) -> Result<Host, Error> {
        let core = Some(self.placement.helper);
        let tx_checksums = self.tx_checksums;
        let options = HostOptions { core, receive_first: true, tx_checksums, ..HostOptions::default() };
        Ok(self.lab.host("second", options)?)
    }

    /// Creates a host for attackers, on the clients' core and with this quota. Snapshots omit the host's CPU
    /// time.
    pub(crate) fn attackers(&self, quota: Quota) -> Result<Host, Error> {
        let core = Some(self.placement.clients);
        let tx_checksums = self.tx_checksums;
        let options = HostOptions { core, quota: Some(quota), tx_checksums, ..HostOptions::default() };
        Ok(self.lab.host("attackers", options)?)
    }

    /// Directory for files of this run; removed at the end of the run.
    pub(crate) fn directory(&self) -> std::path::PathBuf {
        std::env::temp_dir().join(self.lab.run_name())
    }

    /// File with the helpers' key.
    pub fn key(&self) -> &Path {
        &self.keys.helper
    }

    /// File with the key of library clients.
    pub fn client_key(&self) -> &Path {
        &self.keys.client
    }

    /// Describes this machine and this laboratory for results. `programs` are server programs, each with the
    /// option that prints its version.
    pub fn machine(&self, programs: &[(&str, &str)]) -> Result<Machine, Error> {
        let mut machine = Machine::here();
        machine.offloads = self.server.offloads()?.to_string();
        let versions = programs.iter().map(|(program, argument)| Machine::version_of(program, argument));
        machine.server = versions.collect::<Vec<_>>().join("; ");
        machine.lab = BTreeMap::from([
            ("placement".into(), self.placement.description().replace("helper", "helper or proxy")),
            ("forwarding".into(), forwarding_text(self.forwarding).into()),
            (QUOTA_ENTRY.into(), quota_text(None)),
            ("accounts".into(), "processes and the receive threads of their host's interface".into()),
            ("congestion control".into(), self.server.congestion_control()?),
            ("links".into(), LINKS_TEXT.into()),
            ("keys".into(), format!("{KEYS} of 32 B in each server, all equally likely")),
        ]);
        machine.lab.extend(self.steady.description());
        Ok(machine)
    }

    /// Ends all programs and removes the hosts.
    pub fn close(self) -> Result<(), Error> {
        Ok(self.lab.close()?)
    }
}
