//! The scene of the demo and of `burst`: a small memcached host, a helper, clients, and a bridge between them.
//!
//! One memcached runs under `spillway run`, reached directly or through the helper; another one runs without it, for
//! comparison. Both stand on the same host under the same quota, and the one that is not asked costs nothing.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use spillway_lab::peers::{Memcached, Peer, Proxy};
use spillway_lab::{Host, HostOptions, Lab, LabOptions, Place, Quota, Slowdown};

use crate::error::Error;
use crate::generator::{Clients, Generators};
use crate::machine::Machine;
use crate::measure::Snapshot;
use crate::programs::Programs;
use crate::served::{Helper, HelperPlan, Keys, LINKS, runs, wrapper};
use crate::steady::Steady;

/// The server's link port, and the helper's.
const LINK_PORT: u16 = 11_411;
/// Cores are slowed for no longer than this, whatever happens.
const SLOW_AT_MOST: Duration = Duration::from_secs(600);
/// How the scene is set.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting {
    /// The programs under test and of the laboratory.
    pub programs: Programs,
    /// Over all client hosts.
    pub connections: u32,
    /// Client hosts.
    pub client_hosts: usize,
    /// Keys in the server, of 32 bytes with values of 64.
    pub keys: u32,
    /// What the server's host may use: process and interface together.
    pub quota: Option<Quota>,
    /// How long the helper may wait to fill a batch.
    pub max_delay: Duration,
    /// Between the starts of two connections' moves.
    pub pace: Duration,
    /// Where each host runs.
    pub placement: Placement,
    /// Idle cores poll instead of halting.
    pub awake: bool,
    /// Everything takes so many times as long: every core is slowed while the scene stands.
    pub slow: Option<u32>,
    /// When the helper's batches go.
    pub batch: BatchPolicy,
}

/// Cores of the hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The server's, its interface's receive work included.
    pub server: usize,
    /// The helper's.
    pub helper: usize,
    /// All clients'.
    pub clients: usize,
    /// The bridge's.
    pub bridge: usize,
}

/// Which way the clients' requests take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum System {
    /// Straight to a memcached without shim.
    Plain,
    /// Straight to the memcached under `spillway run`.
    Shimmed,
    /// Through the helper to the memcached under `spillway run`.
    Helped,
    /// Through nutcracker, in the helper's place, to a memcached without shim. It must have been started with
    /// [`Scene::start_nutcracker`].
    Nutcracker,
}

impl System {
    /// As results call it.
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
    /// Server and helper on the first core and the rest on the second where there are two; each on its own where
    /// there are enough. The bridge on the server's core would make each packet cheaper for the server than any
    /// network card does: nothing has to be told to another core.
    pub fn on(cores: usize) -> Placement {
        match cores {
            0 | 1 => Placement { server: 0, helper: 0, clients: 0, bridge: 0 },
            2 => Placement { server: 0, helper: 0, clients: 1, bridge: 1 },
            3 => Placement { server: 0, helper: 1, clients: 2, bridge: 2 },
            _ => Placement { server: 0, helper: 1, clients: 2, bridge: 3 },
        }
    }

    /// The core of one of several helpers, counted from 0: those beyond the first have cores that nobody else uses where
    /// there are enough, and share the first one's otherwise.
    pub fn helper_core(&self, number: usize, cores: usize) -> usize {
        let own = self.server.max(self.helper).max(self.clients).max(self.bridge) + number;
        if number > 0 && own < cores { own } else { self.helper }
    }

    /// Where so many helpers run, for people.
    pub(crate) fn helper_words(&self, count: usize) -> String {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let on: Vec<String> = (0..count).map(|n| self.helper_core(n, cores).to_string()).collect();
        format!("on cores {}, the server on core {}", on.join(", "), self.server)
    }

    /// For people.
    pub fn words(&self) -> String {
        let Placement { server, helper, clients, bridge } = self;
        format!("server on core {server}, helper on {helper}, clients on {clients}, bridge on {bridge}")
    }
}

/// A host's quota, for people.
pub(crate) fn quota_words(quota: Option<Quota>) -> String {
    let words = |quota: Quota| {
        let Quota { percent_of_core, period } = quota;
        format!("{percent_of_core} % of a core in periods of {period:?}, process and interface together")
    };
    quota.map_or("none".into(), words)
}

/// When a helper's batches go: the policies that can be compared in the main scene.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BatchPolicy {
    /// One each `max_delay`.
    Fixed,
    /// After `max_delay` at most, and while the server is behind not before it answers.
    #[default]
    Following,
}

impl BatchPolicy {
    /// As helpers call it.
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
    /// The trial's settings: 660 connections, 100,000 keys, a tenth of a core in periods of 10 ms.
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
            awake: true,
            slow: None,
            batch: BatchPolicy::default(),
        }
    }

    /// The same for [the programs of this run](Programs::of_this_run).
    pub fn of_this_run() -> Result<Setting, Error> {
        Ok(Setting::new(Programs::of_this_run()?))
    }
}

/// A scene that is set. Dropping it ends everything.
#[derive(Debug)]
pub struct Scene {
    setting: Setting,
    // Processes before the lab: they are ended first.
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
}

impl Scene {
    /// Sets the scene: hosts, servers with all keys, helper with its link open. `name` is the laboratory run's.
    pub fn set(name: &str, setting: Setting) -> Result<Scene, Error> {
        let place = setting.placement;
        let lab = Lab::with_options(name, LabOptions { bridge_core: Some(place.bridge) })?;
        // The quota comes when all is prepared.
        let on = |core| HostOptions { core: Some(core), ..HostOptions::default() };
        // The server's receive work stands in its quota; that of the others is not to lose packets behind it.
        let receiving = |core| HostOptions { receive_first: true, ..on(core) };
        let hosts = Hosts {
            server: lab.host("server", on(place.server))?,
            helper: lab.host("helper", receiving(place.helper))?,
            clients: (1..=setting.client_hosts)
                .map(|n| lab.host(&format!("client{n}"), receiving(place.clients)))
                .collect::<Result<_, _>>()?,
        };
        // Goes with the run, whichever way that ends.
        let keys = Keys::make(&std::env::temp_dir().join(lab.run_name()))?;
        let link = SocketAddr::new(hosts.server.address(), LINK_PORT);
        let server = Place::from(&hosts.server);
        let plain = Memcached::default().start(&server)?;
        let shimmed =
            Memcached::default().wrapper(wrapper(&setting.programs.spillway, link, &keys)).start(&server)?;
        let helper = start_helper(&setting, &hosts, &keys)?;
        let steady = Steady::hold(setting.awake);
        let (nutcracker, slowdown) = (None, None);
        let mut scene =
            Scene { setting, helper, plain, shimmed, nutcracker, hosts, keys, steady, slowdown, lab };
        for system in [System::Plain, System::Shimmed] {
            scene.fill(system)?;
        }
        let slow = |times| Slowdown::start(times, SLOW_AT_MOST);
        scene.slowdown = scene.setting.slow.map(slow).transpose()?;
        scene.hosts.server.set_quota(scene.setting.quota)?;
        Ok(scene)
    }

    /// How it was set.
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

    /// Starts the helper anew with another bound on the time that a batch waits.
    pub fn set_max_delay(&mut self, max_delay: Duration) -> Result<(), Error> {
        self.setting.max_delay = max_delay;
        self.helper.stop();
        self.helper = start_helper(&self.setting, &self.hosts, &self.keys)?;
        Ok(())
    }

    /// Clients of this system with nothing to do yet. Those of [`System::Helped`] begin directly, and can be moved.
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

    /// Starts clients on the client hosts.
    pub fn start(&self, clients: &Clients) -> Result<Generators, Error> {
        Generators::start(&self.setting.programs.spillway, &self.hosts.clients, clients)
    }

    /// Starts clients on one of the client hosts, counted from 0; beyond the last, on the last.
    pub fn start_on(&self, host: usize, clients: &Clients) -> Result<Generators, Error> {
        let host = host.min(self.hosts.clients.len().saturating_sub(1));
        let hosts = self.hosts.clients.get(host..=host).unwrap_or_default();
        Generators::start(&self.setting.programs.spillway, hosts, clients)
    }

    /// Starts nutcracker in the helper's place, if it does not run yet.
    pub fn start_nutcracker(&mut self) -> Result<(), Error> {
        if self.nutcracker.is_none() {
            let proxy = Proxy::nutcracker(self.plain.address());
            self.nutcracker = Some(proxy.start(&Place::from(&self.hosts.helper))?);
        }
        Ok(())
    }

    /// The servers' host, for other work that is to stand in its quota.
    pub fn server_host(&self) -> &Host {
        &self.hosts.server
    }

    /// The helper's host.
    pub fn helper_host(&self) -> &Host {
        &self.hosts.helper
    }

    /// CPU time, batches and stolen time so far.
    pub fn snapshot(&self) -> Result<Snapshot, Error> {
        let mut clients = spillway_lab::HostCpu::default();
        for host in &self.hosts.clients {
            let cpu = host.cpu()?;
            clients.process += cpu.process;
            clients.interface += cpu.interface;
        }
        let (server, helper, bridge) =
            (self.hosts.server.cpu()?, self.hosts.helper.cpu()?, self.lab.bridge_cpu()?);
        // Counters only: a helper that is too busy to answer misses one point of a curve.
        let batches = self.helper.batches().ok();
        Ok(Snapshot::now(server, helper, clients, bridge, self.steady.stalled()).with_batches(batches))
    }

    /// This machine and this scene, for results.
    pub fn machine(&self) -> Result<Machine, Error> {
        let mut machine = Machine::here();
        machine.offloads = self.hosts.server.offloads()?.to_string();
        machine.server = Machine::version_of("memcached", "-V");
        let setting = &self.setting;
        machine.lab = BTreeMap::from([
            ("placement".into(), setting.placement.words()),
            ("quota of the server's host".into(), quota_words(setting.quota)),
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
            ("moves".into(), format!("one connection each {:?}", setting.pace)),
            ("congestion control".into(), self.hosts.server.congestion_control()?),
            ("links".into(), LINKS.into()),
        ]);
        if let Some(slowdown) = &self.slowdown {
            let burnt: Vec<String> =
                slowdown.percent_of_cores().iter().map(|percent| format!("{percent:.0} %")).collect();
            let words = format!("slowed by a real-time thread on each, which takes {}", burnt.join(", "));
            machine.lab.insert("cores".into(), words);
        }
        machine.lab.extend(self.steady.words());
        Ok(machine)
    }

    /// Fails if the helper or a server has ended.
    pub fn check(&mut self) -> Result<(), Error> {
        self.helper.check()?;
        for (name, peer) in [("plain", &mut self.plain), ("relieved", &mut self.shimmed)] {
            runs(peer.process(), &format!("the {name} memcached"))?;
        }
        Ok(())
    }

    /// Ends everything, and reports a failure to remove what was made.
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
        let mut filler =
            Generators::start(&self.setting.programs.spillway, &self.hosts.clients[..1], &clients)?;
        filler.begin()?;
        filler.finish().map(drop)
    }
}

fn start_helper(setting: &Setting, hosts: &Hosts, keys: &Keys) -> Result<Helper, Error> {
    let plan = HelperPlan {
        program: &setting.programs.spillway,
        server: SocketAddr::new(hosts.server.address(), LINK_PORT),
        address: SocketAddr::new(hosts.helper.address(), LINK_PORT),
        library: true,
        keys,
        batch: setting.batch.name(),
        max_delay: setting.max_delay,
        idle_services: 0,
        status_socket: keys.helper.with_file_name("helper.sock"),
    };
    Helper::start(&hosts.helper, plan)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_are_never_on_the_servers_core_where_there_is_another() {
        for cores in 1..=8 {
            let Placement { server, helper, clients, bridge } = Placement::on(cores);
            assert!([server, helper, clients, bridge].into_iter().all(|core| core < cores));
            assert!(cores == 1 || clients != server);
            assert!(cores < 3 || helper != server);
            let place = Placement::on(cores);
            let others: Vec<_> = (1..4).map(|number| place.helper_core(number, cores)).collect();
            assert!(others.iter().all(|&core| core < cores) && place.helper_core(0, cores) == helper);
            assert!(cores < 7 || others == [4, 5, 6]);
            assert!(cores > 4 || others == [helper; 3]);
        }
    }
}
