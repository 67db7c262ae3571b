//! The scene of the demo and of `burst`: a small memcached host, a helper, clients, and a bridge between them.
//!
//! One memcached runs under `spillway run` and is reached directly or through the helper; another one runs without it,
//! for comparison. Both are on the same host under the same quota; the one without clients uses no CPU time.

mod setting;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use spillway_lab::peers::{Memcached, Peer, Proxy};
use spillway_lab::{Host, HostOptions, Lab, LabOptions, Place, Quota, Slowdown};

use crate::error::Error;
use crate::generator::{Clients, Engine, Generators, Traffic};
use crate::machine::Machine;
use crate::measure::Snapshot;
use crate::served::{Helper, HelperPlan, Keys, LINKS_TEXT, check_runs, wrapper};
use crate::steady::Steady;

pub use self::setting::{BatchPolicy, Placement, ServerShare, Setting};
pub(crate) use self::setting::{forwarding_text, quota_text};

const LINK_PORT: u16 = 11_411;
/// Longest time for which cores are slowed, even if the scene stays open.
const SLOWDOWN_TIME_MAX: Duration = Duration::from_secs(600);

/// The path of the clients' requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum System {
    /// Directly to a memcached without the preload library.
    Plain,
    /// Directly to the memcached under `spillway run`.
    Shimmed,
    /// Through the helper to the memcached under `spillway run`.
    Helped,
    /// Through nutcracker, in the helper's place, to a memcached without the preload library. Call
    /// [`Scene::start_nutcracker`] first; otherwise clients connect directly.
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
    /// The host of probe clients: on the user-level stack, each generator needs an interface of its own.
    probe: Host,
}

impl Scene {
    /// Creates the hosts, starts servers and fills their keys, and starts the helper and waits for its link. `name`
    /// names the laboratory.
    pub fn create(name: &str, setting: Setting) -> Result<Scene, Error> {
        let placement = setting.placement;
        let forwarding = setting.forwarding;
        let lab = Lab::with_options(
            name,
            LabOptions { bridge_core: Some(placement.bridge), forwarding, ..LabOptions::default() },
        )?;
        // The quota is set after the preparation.
        let tx_checksums = setting.tx_checksums();
        let on_core = |core| HostOptions { core: Some(core), tx_checksums, ..HostOptions::default() };
        // These hosts run receive work before processes, so that they do not lose packets. The server's host
        // must not: its receive work has to count against its quota.
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
            helpers_asked: None,
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
        defer_interrupts: setting.defer_interrupts,
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
