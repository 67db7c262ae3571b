//! The laboratory of the cost experiments: a server host, hosts for helpers or proxies, a client host, and a
//! bridge. Hosts have no quota unless an experiment sets a quota; CPU costs come from the CPU account of each
//! host.

mod echo;
mod session;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use spillway_lab::peers::{Memcached, Peer, Proxy, Redis};
use spillway_lab::{Forwarding, Host, HostCpu, HostOptions, Lab, LabOptions, Place, Quota};
use spillway_load::Config;
use spillway_load::config::ProtocolKind;
use spillway_load::fill::fill;
use spillway_load::protocol::memcached::Text;
use spillway_load::protocol::redis::Resp;
use spillway_load::protocol::store::Space;

use crate::error::Error;
use crate::generator::{Clients, Engine, Traffic};
use crate::machine::Machine;
use crate::measure::{BatchCount, Snapshot};
use crate::programs::Programs;
use crate::scene::{Placement, Setting, forwarding_text, quota_text};
use crate::served::{HelperPlan, Keys, LINKS_TEXT, check_runs, wrapper};
use crate::steady::Steady;

pub use crate::served::Helper;
pub(crate) use echo::Echo;
pub use session::{Cost, MeasuredStep, Session, Wire};

/// Number of keys in each key space of a server.
pub const KEYS: u32 = 2_000;

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
    pub middle: Host,
    more_middle_hosts: Vec<Host>,
    /// The clients' host.
    pub client: Host,
    steady: Steady,
    lab: Lab,
}

/// Two servers of the same program, without and with the preload library.
#[derive(Debug)]
pub struct Pair {
    /// The servers' protocol.
    pub protocol: ProtocolKind,
    /// The server without the preload library.
    pub plain: Peer,
    /// The server under `spillway run`.
    pub shimmed: Peer,
    /// The link port of `shimmed`.
    pub link: SocketAddr,
}

/// The hosts between clients and server, on which helpers and proxies run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MiddleHosts {
    /// Number of hosts, at least 1.
    pub count: usize,
    /// Quota of each host, for its processes and its interface together.
    pub quota: Option<Quota>,
}

/// Options of a helper that differ between experiments.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HelperKind {
    /// True: for library clients; false: for plain clients.
    pub library: bool,
    /// Name of the batch policy.
    pub batch: &'static str,
    /// Longest batch delay.
    pub max_delay: Duration,
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
        let middle_host = |number: usize| {
            let options = receiving_first(placement.helper_core(number, cores));
            // With a quota, receive work competes with the helper, because the quota includes both.
            let options = HostOptions { receive_first: hosts.quota.is_none(), quota: hosts.quota, ..options };
            let name = if number == 0 { "middle".into() } else { format!("middle{}", number + 1) };
            lab.host(&name, options)
        };
        let middle = middle_host(0)?;
        let more_middle_hosts = (1..hosts.count).map(middle_host).collect::<Result<_, _>>()?;
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
            middle,
            more_middle_hosts,
            client,
            steady,
            lab,
        })
    }

    /// Starts a server program with and without the preload library, and sets [`KEYS`] keys in both servers
    /// for each of `value_sizes`.
    pub fn pair(&self, protocol: ProtocolKind, value_sizes: &[usize]) -> Result<Pair, Error> {
        let place = Place::from(&self.server);
        let link = SocketAddr::new(self.server.address(), place.free_port()?);
        let wrapper = wrapper(&self.programs.spillway, link, &self.keys);
        let (plain, shimmed) = match protocol {
            ProtocolKind::Redis => {
                (Redis::default().start(&place)?, Redis::default().wrapper(wrapper).start(&place)?)
            }
            _ => (Memcached::default().start(&place)?, Memcached::default().wrapper(wrapper).start(&place)?),
        };
        let pair = Pair { protocol, plain, shimmed, link };
        for &size in value_sizes {
            for server in [&pair.plain, &pair.shimmed] {
                self.fill(protocol, server.address(), &space(size, false))?;
            }
        }
        Ok(pair)
    }

    /// Sets every key of a key space.
    pub fn fill(&self, protocol: ProtocolKind, server: SocketAddr, space: &Space) -> Result<(), Error> {
        let filled = self.client.run_inside(|| match protocol {
            ProtocolKind::Redis => fill::<Resp>(server, space, KEYS, true),
            _ => fill::<Text>(server, space, KEYS, true),
        })?;
        filled.map_err(|e| Error::process(e.to_string(), ""))
    }

    /// Starts a helper with one thread for plain clients of the server at `link`, and waits until the link to
    /// the server is up.
    pub fn helper(&self, link: SocketAddr, max_delay: Duration) -> Result<Helper, Error> {
        let port = Place::from(&self.middle).free_port()?;
        self.helper_on(
            (&self.middle, port),
            link,
            &HelperKind { library: false, batch: "adaptive", max_delay },
        )
    }

    /// Starts a helper of any kind on the given host and port.
    pub(crate) fn helper_on(
        &self,
        address: (&Host, u16),
        link: SocketAddr,
        kind: &HelperKind,
    ) -> Result<Helper, Error> {
        self.helper_with(address, link, kind, (0, None))
    }

    /// Starts a helper with `idle_services` further services, each with a link to the same server and without
    /// clients.
    pub(crate) fn helper_with(
        &self,
        (host, port): (&Host, u16),
        link: SocketAddr,
        kind: &HelperKind,
        (idle_services, measure_one_in): (u16, Option<u32>),
    ) -> Result<Helper, Error> {
        Helper::start(host, self.plan((host, port), link, kind, (idle_services, measure_one_in)))
    }

    /// Starts a helper for plain clients on the user-level TCP stack. No other program runs on the helper's host, because
    /// the helper's XDP program would also process that program's packets. The laboratory must be
    /// [made with checksums](Self::create_with_checksums). `host_index` is the number of the helper host, from 0.
    pub(crate) fn helper_on_xdp(
        &self,
        host_index: usize,
        link: SocketAddr,
        (max_delay, defer_interrupts): (Duration, Duration),
    ) -> Result<Helper, Error> {
        let Some(host) = self.middle_hosts().nth(host_index) else {
            return Err(Error::Usage(format!(
                "the laboratory has fewer hosts for helpers than {}",
                host_index + 1
            )));
        };
        let kind = HelperKind { library: false, batch: "adaptive", max_delay };
        let port = Place::from(host).free_port()?;
        let plan = self.plan((host, port), link, &kind, (0, None));
        Helper::start(
            host,
            HelperPlan { interface: Some(host.interface().to_owned()), defer_interrupts, ..plan },
        )
    }

    fn plan(
        &self,
        (host, port): (&Host, u16),
        link: SocketAddr,
        kind: &HelperKind,
        (idle_services, measure_one_in): (u16, Option<u32>),
    ) -> HelperPlan<'_> {
        HelperPlan {
            program: &self.programs.spillway,
            interface: None,
            defer_interrupts: Duration::ZERO,
            server: link,
            address: SocketAddr::new(host.address(), port),
            library: kind.library,
            keys: &self.keys,
            batch: kind.batch,
            max_delay: kind.max_delay,
            idle_services,
            measure_one_in,
            status_socket: self.keys.helper.with_file_name(format!("{}-{port}.sock", host.name())),
        }
    }

    /// Starts a helper on kernel sockets on each host for helpers.
    pub(crate) fn helpers(&self, link: SocketAddr, kind: &HelperKind) -> Result<Vec<Helper>, Error> {
        let engines: Vec<Engine> = self.middle_hosts().map(|_| Engine::Sockets).collect();
        self.helpers_on(link, kind, &engines)
    }

    /// Starts one helper for each of `engines`, on the helper hosts in order.
    pub(crate) fn helpers_on(
        &self,
        link: SocketAddr,
        kind: &HelperKind,
        engines: &[Engine],
    ) -> Result<Vec<Helper>, Error> {
        let start = |(host, engine): (&Host, &Engine)| {
            let port = Place::from(host).free_port()?;
            let interface = (*engine == Engine::Xdp).then(|| host.interface().to_owned());
            let plan = self.plan((host, port), link, kind, (0, None));
            Helper::start(host, HelperPlan { interface, ..plan })
        };
        self.middle_hosts().zip(engines).map(start).collect()
    }

    pub(crate) fn middle_hosts(&self) -> impl Iterator<Item = &Host> {
        std::iter::once(&self.middle).chain(&self.more_middle_hosts)
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

    /// The `spillway run` command that precedes a server's command line and gives it the link port `link`.
    pub(crate) fn wrapper(&self, link: SocketAddr) -> Vec<String> {
        wrapper(&self.programs.spillway, link, &self.keys)
    }

    /// Starts a proxy on the first host for helpers.
    pub fn proxy(&self, proxy: &Proxy) -> Result<Peer, Error> {
        Ok(proxy.start(&Place::from(&self.middle))?)
    }

    /// File with the helpers' key.
    pub fn key(&self) -> &Path {
        &self.keys.helper
    }

    /// File with the key of library clients.
    pub fn client_key(&self) -> &Path {
        &self.keys.client
    }

    /// Counters of the server host's interface.
    pub fn wire(&self) -> Result<Wire, Error> {
        let counters = self.server.counters()?;
        let (bytes, packets) =
            (counters.rx_bytes + counters.tx_bytes, counters.rx_packets + counters.tx_packets);
        Ok(Wire { bytes, packets })
    }

    /// The snapshot at the start of a measured span. Reads the helpers' batch counters first and CPU times
    /// second, so that the span omits the CPU time that helpers take to report their counters.
    pub fn snapshot<'h>(&self, helpers: impl IntoIterator<Item = &'h Helper>) -> Result<Snapshot, Error> {
        let batches = batches(helpers);
        Ok(self.cpu_snapshot()?.with_batches(batches))
    }

    /// The snapshot at the end of a measured span. Reads CPU times first and the helpers' batch counters
    /// second, so that the span omits the CPU time that helpers take to report their counters, which grows
    /// with their services.
    pub fn last_snapshot<'h>(
        &self,
        helpers: impl IntoIterator<Item = &'h Helper>,
    ) -> Result<Snapshot, Error> {
        let snapshot = self.cpu_snapshot()?;
        Ok(snapshot.with_batches(batches(helpers)))
    }

    fn cpu_snapshot(&self) -> Result<Snapshot, Error> {
        let client = self.client.cpu()?;
        let (server, middle, bridge) = (self.server.cpu()?, self.middle_cpu()?, self.lab.bridge_cpu()?);
        Ok(Snapshot::now(server, middle, client, bridge, self.steady.stalled()))
    }

    /// CPU time so far of all hosts for helpers and proxies, except that of [`Stage::second_middle`].
    pub fn middle_cpu(&self) -> Result<HostCpu, Error> {
        let mut sum = HostCpu::default();
        for host in self.middle_hosts() {
            let cpu = host.cpu()?;
            sum.process += cpu.process;
            sum.interface += cpu.interface;
        }
        Ok(sum)
    }

    /// Starts plain clients of a server, helper or proxy at `target`.
    pub fn session(
        &self,
        target: SocketAddr,
        traffic: &Traffic,
        connections: u32,
    ) -> Result<Session<'_>, Error> {
        self.session_of(&self.clients(target, traffic, connections), traffic)
    }

    /// Starts clients as `clients` describes them, with the requests of `traffic`.
    pub fn session_of(&self, clients: &Clients, traffic: &Traffic) -> Result<Session<'_>, Error> {
        Session::start(self, clients, traffic)
    }

    /// The configuration of plain clients of a server, helper or proxy at `target`, with rate 0.
    pub fn clients(&self, target: SocketAddr, traffic: &Traffic, connections: u32) -> Clients {
        let written = traffic.get_ratio < 1.0;
        Clients {
            server: target,
            helpers: None,
            sessions: None,
            asked: None,
            threads: 1,
            connections,
            keys: KEYS,
            // Clients that set values check gets against the values that they set before, so they set all
            // keys first.
            fill: written,
            seed: seed(traffic.value_size, written),
            rate_per_s: 0.0,
            duration: None,
            schedule: Vec::new(),
            sla: Duration::from_millis(1),
            pace: Duration::ZERO,
        }
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

/// The key space that clients with this seed use, with values of 64 B.
pub(crate) fn space_of(seed: u64) -> Space {
    let nowhere = SocketAddr::from(([0, 0, 0, 0], 0));
    Config { seed, value_size: 64, ..Config::new(nowhere) }.space()
}

/// The key space with values of `value_size` bytes. Clients that also write (`written`) and clients that only
/// read have different keys, so that writes do not change the values that readers expect.
pub fn space(value_size: usize, written: bool) -> Space {
    let seed = seed(value_size, written);
    let nowhere = SocketAddr::from(([0, 0, 0, 0], 0));
    Config { seed, value_size, ..Config::new(nowhere) }.space()
}

/// The seed that determines the keys: different for each value size, and for reading and writing.
fn seed(value_size: usize, written: bool) -> u64 {
    2 * value_size as u64 + u64::from(written)
}

/// CPU time of all threads of a process; 0 if it has ended.
pub fn process_cpu(pid: u32) -> Duration {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let ran_ns = tasks.filter_map(|task| {
        let text = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse::<u64>().ok()
    });
    Duration::from_nanos(ran_ns.sum())
}

impl Pair {
    /// Fails if a server has ended.
    pub fn check(&mut self) -> Result<(), Error> {
        for peer in [&mut self.plain, &mut self.shimmed] {
            check_runs(peer.process(), &format!("a {}", self.protocol))?;
        }
        Ok(())
    }
}

/// The sum of all helpers' batch counters, without helpers that are too busy to report them.
fn batches<'h>(helpers: impl IntoIterator<Item = &'h Helper>) -> Option<BatchCount> {
    let counts = helpers.into_iter().filter_map(|helper| helper.batches().ok());
    counts.reduce(|sum, count| BatchCount {
        batches: sum.batches + count.batches,
        messages: sum.messages + count.messages,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_of_a_process_grows() {
        let before = process_cpu(std::process::id());
        let mut sum = 0u64;
        while process_cpu(std::process::id()) == before {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
        assert_eq!(process_cpu(u32::MAX), Duration::ZERO);
    }

    #[test]
    fn written_keys_differ_from_keys_that_are_only_read() {
        let key = |space: &Space| {
            let mut key = Vec::new();
            space.push_key(7, &mut key);
            key
        };
        assert_ne!(key(&space(64, false)), key(&space(64, true)));
        assert_ne!(key(&space(64, false)), key(&space(1024, false)));
        assert_eq!(space(64, false).value_size, 64);
    }
}
