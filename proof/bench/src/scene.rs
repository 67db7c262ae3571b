//! The scene of the demo and of `burst`: a small memcached host, a helper, clients, and a bridge between them.
//!
//! One memcached runs under `spillway run` and is reached directly or through the helper; another one runs without it,
//! for comparison. Both are on the same host under the same quota; the one without clients uses no CPU time.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use spillway_lab::peers::{Memcached, Peer, Proxy};
use spillway_lab::{Forwarding, Host, HostOptions, Lab, LabOptions, Place, Quota, Slowdown};

use crate::error::Error;
use crate::generator::{Clients, Engine, Generators, Traffic};
use crate::machine::Machine;
use crate::measure::Snapshot;
use crate::programs::Programs;
use crate::served::{Helper, HelperPlan, Keys, LINKS_TEXT, check_runs, wrapper};
use crate::steady::Steady;

const LINK_PORT: u16 = 11_411;
/// Longest time for which cores are slowed, even if the scene stays open.
const SLOWDOWN_TIME_MAX: Duration = Duration::from_secs(600);

/// Settings of the scene.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting {
    /// The programs under test and of the laboratory.
    pub programs: Programs,
    /// Connections over all client hosts.
    pub connections: u32,
    /// Number of client hosts.
    pub client_hosts: usize,
    /// Number of keys in the server, of 32 bytes with values of 64.
    pub keys: u32,
    /// Quota of the server's host, for process and interface together.
    pub quota: Option<Quota>,
    /// The helper's batch delay.
    pub max_delay: Duration,
    /// Interval between the starts of two connections' moves.
    pub pace: Duration,
    /// Cores of the hosts.
    pub placement: Placement,
    /// Idle cores poll instead of halting.
    pub idle_cores_poll: bool,
    /// Factor by which every core is slowed while the scene is open.
    pub slowdown_factor: Option<u32>,
    /// The helper's batch policy.
    pub batch: BatchPolicy,
    /// What joins the hosts.
    pub forwarding: Forwarding,
    /// What carries the connections of helpers and clients.
    pub engine: Engine,
    /// The server's share of a core.
    pub server_share: ServerShare,
}

/// The server's share of a core, process and interface together.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum ServerShare {
    /// As much as it needs for the largest capacity that the machine can overload three times.
    #[default]
    Calibrated,
    /// A quota, in percent of a core; from 100 on there is no quota.
    Percent(f64),
}

/// Cores of the hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    /// Core of the server, and of its interface's receive work.
    pub server: usize,
    /// Core of the helper.
    pub helper: usize,
    /// Core of all clients.
    pub clients: usize,
    /// Core of the bridge.
    pub bridge: usize,
}

/// The path of the clients' requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum System {
    /// Directly to a memcached without shim.
    Plain,
    /// Directly to the memcached under `spillway run`.
    Shimmed,
    /// Through the helper to the memcached under `spillway run`.
    Helped,
    /// Through nutcracker, in the helper's place, to a memcached without shim. Call [`Scene::start_nutcracker`] first;
    /// without it, clients connect directly.
    Nutcracker,
}

impl System {
    /// The system's name in results.
    pub fn name(self) -> &'static str {
        match self {
            System::Plain => "direct, without shim",
            System::Shimmed => "direct, with shim",
            System::Helped => "helped",
            System::Nutcracker => "nutcracker",
        }
    }
}

impl Placement {
    /// The placement on a number of cores. On two, server and helper share the first core, the others the second; on
    /// four, each has its own. The bridge shares the server's core only if there is no other: packets would then reach
    /// the server without an interrupt to another core, more cheaply than from a network card.
    pub fn on(cores: usize) -> Placement {
        match cores {
            0 | 1 => Placement { server: 0, helper: 0, clients: 0, bridge: 0 },
            2 => Placement { server: 0, helper: 0, clients: 1, bridge: 1 },
            3 => Placement { server: 0, helper: 1, clients: 2, bridge: 2 },
            _ => Placement { server: 0, helper: 1, clients: 2, bridge: 3 },
        }
    }

    /// The core of helper `number`, counted from 0. Helpers after the first have unused cores as long as there are any,
    /// and share the first helper's core otherwise.
    pub fn helper_core(&self, number: usize, cores: usize) -> usize {
        let unused = self.server.max(self.helper).max(self.clients).max(self.bridge) + number;
        if number > 0 && unused < cores { unused } else { self.helper }
    }

    /// The cores of `count` helpers and of the server, as text.
    pub(crate) fn helper_cores_text(&self, count: usize) -> String {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let helper_cores: Vec<String> = (0..count).map(|n| self.helper_core(n, cores).to_string()).collect();
        format!("on cores {}, the server on core {}", helper_cores.join(", "), self.server)
    }

    /// The cores of all hosts, as text.
    pub fn description(&self) -> String {
        let Placement { server, helper, clients, bridge } = self;
        format!("server on core {server}, helper on {helper}, clients on {clients}, bridge on {bridge}")
    }
}

impl ServerShare {
    /// Smallest share of a whole core.
    const WHOLE_CORE_PERCENT: f64 = 100.0;

    /// The quota of this share; `None` if the server has a whole core, or a share that is not known before calibration.
    pub fn quota(self) -> Option<Quota> {
        match self {
            ServerShare::Percent(percent) if !self.is_whole_core() => Some(Quota::percent(percent)),
            ServerShare::Percent(_) | ServerShare::Calibrated => None,
        }
    }

    /// Whether the server has a core without a quota.
    pub fn is_whole_core(self) -> bool {
        matches!(self, ServerShare::Percent(percent) if percent >= ServerShare::WHOLE_CORE_PERCENT)
    }
}

impl std::str::FromStr for ServerShare {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<ServerShare, &'static str> {
        let problem = "give a percentage of one core from 5 to 100, such as 30%, or calibrated";
        if text == "calibrated" {
            return Ok(ServerShare::Calibrated);
        }
        let percent: f64 = text.strip_suffix('%').unwrap_or(text).parse().map_err(|_| problem)?;
        if (5.0..=100.0).contains(&percent) { Ok(ServerShare::Percent(percent)) } else { Err(problem) }
    }
}

/// What joins the hosts, as text.
pub(crate) fn forwarding_text(forwarding: Forwarding) -> &'static str {
    match forwarding {
        Forwarding::Bridge => "the kernel's bridge",
        Forwarding::Xdp => "an XDP program; hosts compute checksums themselves",
    }
}

pub(crate) fn quota_text(quota: Option<Quota>) -> String {
    let text = |quota: Quota| {
        let Quota { percent_of_core, period } = quota;
        format!("{percent_of_core} % of a core in periods of {period:?}, process and interface together")
    };
    quota.map_or("none".into(), text)
}

/// Batch policies that can be compared in this scene.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BatchPolicy {
    /// One batch each `max_delay`.
    Fixed,
    /// A batch after at most `max_delay`; while the server is behind, not before its next reply.
    #[default]
    Following,
}

impl BatchPolicy {
    /// The policy's name on the helper's command line.
    pub fn name(self) -> &'static str {
        match self {
            BatchPolicy::Fixed => "fixed",
            BatchPolicy::Following => "following",
        }
    }
}

impl std::str::FromStr for BatchPolicy {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<BatchPolicy, &'static str> {
        let all = [BatchPolicy::Fixed, BatchPolicy::Following];
        all.into_iter().find(|policy| policy.name() == text).ok_or("give fixed or following")
    }
}

impl Setting {
    /// The default settings: 660 connections, 100,000 keys, a tenth of a core in periods of 10 ms.
    pub fn new(programs: Programs) -> Setting {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Setting {
            programs,
            connections: 660,
            client_hosts: 2,
            keys: 100_000,
            quota: Some(Quota { percent_of_core: 10.0, period: Duration::from_millis(10) }),
            max_delay: Duration::from_micros(350),
            pace: Duration::from_micros(60),
            placement: Placement::on(cores),
            idle_cores_poll: true,
            slowdown_factor: None,
            batch: BatchPolicy::default(),
            forwarding: Forwarding::Bridge,
            engine: Engine::Sockets,
            server_share: ServerShare::Calibrated,
        }
    }

    /// These settings with helpers and clients on an engine. On the user-level stack an XDP program joins the hosts,
    /// because the bridge would cost more than the clients.
    pub fn with_engine(self, engine: Engine) -> Setting {
        let forwarding = if engine == Engine::Xdp { Forwarding::Xdp } else { self.forwarding };
        Setting { engine, forwarding, ..self }
    }

    /// These settings with a share of a core for the server. A server with a whole core has it alone, if there is another
    /// one for the helper.
    pub fn with_server_share(self, share: ServerShare) -> Setting {
        let mut placement = self.placement;
        if share.is_whole_core() && placement.helper == placement.server {
            placement.helper = placement.clients;
        }
        let quota = if share == ServerShare::Calibrated { self.quota } else { share.quota() };
        Setting { server_share: share, placement, quota, ..self }
    }

    /// Whether hosts leave checksums to their interfaces. The user-level stack and XDP programs need complete packets.
    pub(crate) fn tx_checksums(&self) -> bool {
        self.forwarding == Forwarding::Bridge && self.engine == Engine::Sockets
    }

    /// The default settings with [the programs of this run](Programs::of_this_run).
    pub fn of_this_run() -> Result<Setting, Error> {
        Ok(Setting::new(Programs::of_this_run()?))
    }
}

/// A running scene. Dropping it ends all programs and removes the hosts.
#[derive(Debug)]
pub struct Scene {
    setting: Setting,
    // Fields are dropped in this order: processes end before their hosts are removed.
    helper: Helper,
    plain: Peer,
    shimmed: Peer,
    nutcracker: Option<Peer>,
    hosts: Hosts,
    keys: Keys,
    steady: Steady,
    slowdown: Option<Slowdown>,
    lab: Lab,
}

#[derive(Debug)]
struct Hosts {
    server: Host,
    helper: Host,
    clients: Vec<Host>,
    /// The host of clients beside the measured ones: on the user-level stack, an interface serves one generator.
    probe: Host,
}

impl Scene {
    /// Creates the hosts, starts servers and fills their keys, and starts the helper and waits for its link. `name`
    /// names the laboratory.
    pub fn create(name: &str, setting: Setting) -> Result<Scene, Error> {
        let placement = setting.placement;
        let forwarding = setting.forwarding;
        let lab = Lab::with_options(name, LabOptions { bridge_core: Some(placement.bridge), forwarding })?;
        // The quota is set after the preparation.
        let tx_checksums = setting.tx_checksums();
        let on_core = |core| HostOptions { core: Some(core), tx_checksums, ..HostOptions::default() };
        // Receive work runs before processes, so that other hosts do not lose packets; the server's is part of its
        // quota.
        let receiving_first = |core| HostOptions { receive_first: true, ..on_core(core) };
        let hosts = Hosts {
            server: lab.host("server", on_core(placement.server))?,
            helper: lab.host("helper", receiving_first(placement.helper))?,
            clients: (1..=setting.client_hosts)
                .map(|n| lab.host(&format!("client{n}"), receiving_first(placement.clients)))
                .collect::<Result<_, _>>()?,
            probe: lab.host("probe", receiving_first(placement.clients))?,
        };
        // The laboratory removes this directory at its end.
        let keys = Keys::make(&std::env::temp_dir().join(lab.run_name()))?;
        let link = SocketAddr::new(hosts.server.address(), LINK_PORT);
        let server = Place::from(&hosts.server);
        let plain = Memcached::default().start(&server)?;
        let shimmed =
            Memcached::default().wrapper(wrapper(&setting.programs.spillway, link, &keys)).start(&server)?;
        let helper = start_helper(&setting, &hosts, &keys)?;
        let steady = Steady::start(setting.idle_cores_poll);
        let (nutcracker, slowdown) = (None, None);
        let mut scene =
            Scene { setting, helper, plain, shimmed, nutcracker, hosts, keys, steady, slowdown, lab };
        for system in [System::Plain, System::Shimmed] {
            scene.fill(system)?;
        }
        let slow = |times| Slowdown::start(times, SLOWDOWN_TIME_MAX);
        scene.slowdown = scene.setting.slowdown_factor.map(slow).transpose()?;
        scene.hosts.server.set_quota(scene.setting.quota)?;
        Ok(scene)
    }

    /// The present settings.
    pub fn setting(&self) -> &Setting {
        &self.setting
    }

    /// The share of each core that the scene has: 1, unless cores are slowed.
    pub fn speed(&self) -> f64 {
        self.slowdown.as_ref().map_or(1.0, Slowdown::speed)
    }

    /// Changes or lifts the server host's quota.
    pub fn set_quota(&mut self, quota: Option<Quota>) -> Result<(), Error> {
        self.hosts.server.set_quota(quota)?;
        self.setting.quota = quota;
        Ok(())
    }

    /// Restarts the helper with another batch delay.
    pub fn set_max_delay(&mut self, max_delay: Duration) -> Result<(), Error> {
        self.setting.max_delay = max_delay;
        self.helper.stop();
        self.helper = start_helper(&self.setting, &self.hosts, &self.keys)?;
        Ok(())
    }

    /// The configuration of clients of a system, with rate 0. Clients of [`System::Helped`] start direct, and can be
    /// moved.
    pub fn clients(&self, system: System) -> Clients {
        let server = match (system, &self.nutcracker) {
            (System::Nutcracker, Some(nutcracker)) => nutcracker.address(),
            (System::Plain | System::Nutcracker, _) => self.plain.address(),
            (System::Shimmed | System::Helped, _) => self.shimmed.address(),
        };
        let helper = (vec![self.helper.address], self.keys.client.clone());
        Clients {
            server,
            helpers: (system == System::Helped).then_some(helper),
            sessions: None,
            asked: None,
            threads: 1,
            connections: self.setting.connections,
            keys: self.setting.keys,
            fill: false,
            seed: 1,
            rate_per_s: 0.0,
            duration: None,
            schedule: Vec::new(),
            sla: Duration::from_millis(1),
            pace: self.setting.pace,
        }
    }

    /// Starts clients on all client hosts.
    pub fn start(&self, clients: &Clients) -> Result<Generators, Error> {
        self.start_at(&self.hosts.clients, clients)
    }

    /// Starts clients on the host for probes.
    pub fn start_probe(&self, clients: &Clients) -> Result<Generators, Error> {
        self.start_at(std::slice::from_ref(&self.hosts.probe), clients)
    }

    /// Starts clients on client host `host`, counted from 0, or on the last one if there are fewer.
    pub fn start_on(&self, host: usize, clients: &Clients) -> Result<Generators, Error> {
        let host = host.min(self.hosts.clients.len().saturating_sub(1));
        let hosts = self.hosts.clients.get(host..=host).unwrap_or_default();
        self.start_at(hosts, clients)
    }

    fn start_at(&self, hosts: &[Host], clients: &Clients) -> Result<Generators, Error> {
        let traffic = Traffic { engine: self.setting.engine, ..Traffic::default() };
        Generators::start_with(&self.setting.programs, hosts, clients, &traffic)
    }

    /// Starts nutcracker in the helper's place, if it does not run yet.
    pub fn start_nutcracker(&mut self) -> Result<(), Error> {
        if self.nutcracker.is_none() {
            let proxy = Proxy::nutcracker(self.plain.address());
            self.nutcracker = Some(proxy.start(&Place::from(&self.hosts.helper))?);
        }
        Ok(())
    }

    /// The servers' host, for other work within its quota.
    pub fn server_host(&self) -> &Host {
        &self.hosts.server
    }

    /// The host of helper and nutcracker.
    pub fn helper_host(&self) -> &Host {
        &self.hosts.helper
    }

    /// Reads CPU times, batch counters and steal time.
    pub fn snapshot(&self) -> Result<Snapshot, Error> {
        let mut clients = spillway_lab::HostCpu::default();
        for host in self.hosts.clients.iter().chain([&self.hosts.probe]) {
            let cpu = host.cpu()?;
            clients.process += cpu.process;
            clients.interface += cpu.interface;
        }
        let (server, helper, bridge) =
            (self.hosts.server.cpu()?, self.hosts.helper.cpu()?, self.lab.bridge_cpu()?);
        // A helper that is too busy to answer leaves a gap in a curve, which is not an error.
        let batches = self.helper.batches().ok();
        Ok(Snapshot::now(server, helper, clients, bridge, self.steady.stalled()).with_batches(batches))
    }

    /// Describes this machine and this scene for results.
    pub fn machine(&self) -> Result<Machine, Error> {
        let mut machine = Machine::here();
        machine.offloads = self.hosts.server.offloads()?.to_string();
        machine.server = Machine::version_of("memcached", "-V");
        let setting = &self.setting;
        machine.lab = BTreeMap::from([
            ("placement".into(), setting.placement.description()),
            ("forwarding".into(), forwarding_text(setting.forwarding).into()),
            ("quota of the server's host".into(), quota_text(setting.quota)),
            ("control groups".into(), self.lab.control_groups().into()),
            (
                "connections".into(),
                format!("{} from {} client hosts", setting.connections, setting.client_hosts),
            ),
            ("keys".into(), format!("{} of 32 B, values of 64 B, all equally likely, GET", setting.keys)),
            (
                "helper".into(),
                format!("1 thread, batches by {} with {:?}", setting.batch.name(), setting.max_delay),
            ),
            ("engine of helper and clients".into(), setting.engine.name().into()),
            ("moves".into(), format!("one connection each {:?}", setting.pace)),
            ("congestion control".into(), self.hosts.server.congestion_control()?),
            ("links".into(), LINKS_TEXT.into()),
        ]);
        if let Some(slowdown) = &self.slowdown {
            let burnt: Vec<String> =
                slowdown.percent_of_cores().iter().map(|percent| format!("{percent:.0} %")).collect();
            let text = format!("slowed by a real-time thread on each, which takes {}", burnt.join(", "));
            machine.lab.insert("cores".into(), text);
        }
        machine.lab.extend(self.steady.description());
        Ok(machine)
    }

    /// Fails if the helper or a server has ended.
    pub fn check(&mut self) -> Result<(), Error> {
        self.helper.check()?;
        for (name, peer) in [("plain", &mut self.plain), ("shimmed", &mut self.shimmed)] {
            check_runs(peer.process(), &format!("the {name} memcached"))?;
        }
        Ok(())
    }

    /// Ends all programs and removes the hosts; reports a failure to do so.
    pub fn close(self) -> Result<(), Error> {
        let Scene { mut helper, mut plain, mut shimmed, slowdown, lab, .. } = self;
        drop(slowdown);
        helper.stop();
        plain.stop();
        shimmed.stop();
        Ok(lab.close()?)
    }

    fn fill(&self, system: System) -> Result<(), Error> {
        let clients = Clients { fill: true, connections: 1, ..self.clients(system) };
        let mut filler = self.start_on(0, &clients)?;
        filler.begin()?;
        filler.finish().map(drop)
    }
}

fn start_helper(setting: &Setting, hosts: &Hosts, keys: &Keys) -> Result<Helper, Error> {
    let on_xdp = setting.engine == Engine::Xdp;
    let plan = HelperPlan {
        interface: on_xdp.then(|| hosts.helper.interface().to_owned()),
        program: &setting.programs.spillway,
        server: SocketAddr::new(hosts.server.address(), LINK_PORT),
        address: SocketAddr::new(hosts.helper.address(), LINK_PORT),
        library: true,
        keys,
        batch: setting.batch.name(),
        max_delay: setting.max_delay,
        idle_services: 0,
        measure_one_in: None,
        status_socket: keys.helper.with_file_name("helper.sock"),
    };
    Helper::start(&hosts.helper, plan)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_have_another_core_than_the_server_if_there_are_two() {
        for cores in 1..=8 {
            let Placement { server, helper, clients, bridge } = Placement::on(cores);
            assert!([server, helper, clients, bridge].into_iter().all(|core| core < cores));
            assert!(cores == 1 || clients != server);
            assert!(cores < 3 || helper != server);
            let placement = Placement::on(cores);
            let others: Vec<_> = (1..4).map(|number| placement.helper_core(number, cores)).collect();
            assert!(others.iter().all(|&core| core < cores) && placement.helper_core(0, cores) == helper);
            assert!(cores < 7 || others == [4, 5, 6]);
            assert!(cores > 4 || others == [helper; 3]);
        }
    }

    #[test]
    fn shares_of_a_core_are_quotas_and_a_whole_core_is_the_servers_alone() {
        let share = |text: &str| text.parse::<ServerShare>();
        assert_eq!(share("calibrated"), Ok(ServerShare::Calibrated));
        assert_eq!(share("30%").unwrap().quota(), Some(Quota::percent(30.0)));
        assert_eq!(share("100").unwrap().quota(), None);
        assert!(share("2%").is_err() && share("101%").is_err() && share("much").is_err());
        let two_cores = Setting {
            placement: Placement::on(2),
            ..Setting::new(Programs::in_directory(std::path::Path::new("")))
        };
        let whole = two_cores.clone().with_server_share(ServerShare::Percent(100.0));
        assert_ne!(whole.placement.helper, whole.placement.server);
        let third = two_cores.clone().with_server_share(ServerShare::Percent(30.0));
        assert_eq!((third.placement, third.quota), (two_cores.placement, Some(Quota::percent(30.0))));
    }
}
