//! The hosts and programs: a kernel memcached, the helper that shares its interface in some variants, the
//! helper's clients and server, and the XDP program on the interface.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use spillway_bpf::{Attachment, Pass, attached_program};
use spillway_lab::peers::{Memcached, Peer};
use spillway_lab::{Host, HostCpu, HostOptions, Lab, LabOptions, Place, Quota};
use spillway_load::fill::fill;
use spillway_load::protocol::memcached::Text;

use super::Beside;
use crate::error::Error;
use crate::generator::{BIN_MS, BIN_REPORT_DELAY, Clients, Generators, Order, Traffic};
use crate::goodput::Tally;
use crate::machine::Machine;
use crate::measure::{Snapshot, Step};
use crate::programs::Programs;
use crate::scene::Setting;
use crate::served::{Helper, HelperPlan, Keys, LINKS_TEXT, check_runs, wrapper};
use crate::stage::{KEYS, process_cpu, space_of};
use crate::steady::Steady;
use crate::stop;

/// Seed of the keys, which all clients read and none writes.
const SEED: u64 = 1;
/// Connections of the kernel's clients, and of the helper's.
const CONNECTIONS: u32 = 50;
/// The helper's default batch delay.
const MAX_DELAY: Duration = Duration::from_micros(200);

/// Time for the kernel to detach the program of a helper that has ended.
const PROGRAM_TIMEOUT: Duration = Duration::from_secs(5);

/// One measurement of the kernel memcached.
#[derive(Clone, Debug, Default)]
pub(super) struct Sample {
    /// Requests, latencies and the CPU time of all hosts.
    pub step: Step,
    /// CPU time of memcached itself.
    pub memcached: Duration,
}

impl Sample {
    pub fn served_per_s(&self) -> f64 {
        self.step.span.served as f64 / self.step.used.seconds
    }

    /// CPU time of memcached and of the interface for a request, in µs.
    pub fn kernel_us(&self) -> f64 {
        let seconds = self.memcached.as_secs_f64() + self.step.used.server_interface_s;
        seconds * 1e6 / self.step.span.served as f64
    }

    /// CPU time of the helper, which is the host's only other process, in percent of a core.
    pub fn helper_percent(&self) -> f64 {
        let used = &self.step.used;
        used.percent((used.server_process_s - self.memcached.as_secs_f64()).max(0.0))
    }

    pub fn quantile_us(&self, share: f64) -> Option<f64> {
        self.step.span.quantile_us(share).map(|us| us as f64)
    }
}

/// The hosts and programs that run throughout.
pub(super) struct Site {
    programs: Programs,
    keys: Keys,
    memcached: Peer,
    /// The helper's server.
    shimmed: Peer,
    link: SocketAddr,
    /// Host of the kernel memcached and of the helper.
    shared: Host,
    backend: Host,
    clients: Host,
    helper_clients: Host,
    pass: Pass,
    steady: Steady,
    placement: String,
    lab: Lab,
}

/// The running parts of a variant. Dropping them ends them.
pub(super) struct Present {
    /// The helper's clients.
    load: Option<Generators>,
    helper: Option<Helper>,
    program: Option<Attachment>,
}

impl Site {
    pub fn create(setting: &Setting) -> Result<Site, Error> {
        let (placement, forwarding) = (setting.placement, setting.forwarding);
        let options = LabOptions { bridge_core: Some(placement.bridge), forwarding, ..LabOptions::default() };
        let lab = Lab::with_options("coexist", options)?;
        // All hosts have the offloads that AF_XDP needs: none leaves checksums to its interface.
        let on_core = |core| HostOptions { core: Some(core), tx_checksums: false, ..HostOptions::default() };
        let receiving_first = |core| HostOptions { receive_first: true, ..on_core(core) };
        // The receive work of the host under test is in its quota.
        let shared = lab.host("shared", on_core(placement.server))?;
        let backend = lab.host("backend", receiving_first(placement.clients))?;
        let clients = lab.host("clients", receiving_first(placement.clients))?;
        let helper_clients = lab.host("helped", receiving_first(placement.clients))?;
        let keys = Keys::make(&std::env::temp_dir().join(lab.run_name()))?;
        let at_backend = Place::from(&backend);
        let link = SocketAddr::new(backend.address(), at_backend.free_port()?);
        let memcached = Memcached::default().start(&Place::from(&shared))?;
        let shimmed = Memcached::default()
            .wrapper(wrapper(&setting.programs.spillway, link, &keys))
            .start(&at_backend)?;
        let site = Site {
            programs: setting.programs.clone(),
            keys,
            memcached,
            shimmed,
            link,
            shared,
            backend,
            clients,
            helper_clients,
            pass: Pass::load().map_err(|error| Error::Usage(error.to_string()))?,
            steady: Steady::start(setting.idle_cores_poll),
            placement: format!(
                "memcached, the helper beside it and their interface on core {}, all others on core {}",
                placement.server, placement.clients
            ),
            lab,
        };
        for server in [site.memcached.address(), site.shimmed.address()] {
            let filled = site.clients.run_inside(|| fill::<Text>(server, &space_of(SEED), KEYS, true))?;
            filled.map_err(|error| Error::process(error.to_string(), ""))?;
        }
        Ok(site)
    }

    pub fn machine(&self, quota: Quota) -> Result<Machine, Error> {
        let mut machine = Machine::here();
        machine.offloads = format!("of all variants: {}", self.shared.offloads()?);
        machine.server = Machine::version_of("memcached", "-V");
        machine.lab.extend([
            ("placement".to_owned(), self.placement.clone()),
            (
                "quota of the shared host".into(),
                format!(
                    "for throughput: {} % of a core in periods of {:?}, memcached, helper and interface together; for \
                     latency: none",
                    quota.percent_of_core, quota.period
                ),
            ),
            ("connections".into(), format!("{CONNECTIONS} of the kernel memcached, {CONNECTIONS} of a loaded helper")),
            ("keys".into(), format!("{KEYS} of 32 B, values of 64 B, GET")),
            ("links".into(), LINKS_TEXT.into()),
            ("congestion control".into(), self.shared.congestion_control()?),
        ]);
        machine.lab.extend(self.steady.description());
        Ok(machine)
    }

    /// Starts the parts of a variant. A loaded helper has `helped_per_s` requests a second.
    pub fn prepare(&self, beside: Beside, helped_per_s: f64) -> Result<Present, Error> {
        stop::check()?;
        let interface = self.shared.interface();
        let mut present = Present { load: None, helper: None, program: None };
        if beside.has_pass_program() {
            let attached = self.shared.run_inside(|| self.pass.attach(interface))?;
            present.program = Some(attached.map_err(|error| Error::Usage(error.to_string()))?);
        }
        if let Some(is_on_xdp) = beside.helper_is_on_xdp() {
            present.helper = Some(self.start_helper(is_on_xdp)?);
        }
        self.wait_for_program(beside.has_program())?;
        if let (true, Some(helper)) = (beside.is_loaded(), &present.helper) {
            let clients = clients(helper.address);
            let hosts = std::slice::from_ref(&self.helper_clients);
            let mut load = Generators::start_with(&self.programs, hosts, &clients, &Traffic::default())?;
            load.begin()?;
            load.order(&Order::Rate(helped_per_s))?;
            present.load = Some(load);
        }
        Ok(present)
    }

    fn start_helper(&self, is_on_xdp: bool) -> Result<Helper, Error> {
        let port = Place::from(&self.shared).free_port()?;
        let engine = if is_on_xdp { "xdp" } else { "sockets" };
        let plan = HelperPlan {
            program: &self.programs.spillway,
            interface: is_on_xdp.then(|| self.shared.interface().to_owned()),
            defer_interrupts: Duration::ZERO,
            server: self.link,
            address: SocketAddr::new(self.shared.address(), port),
            library: false,
            keys: &self.keys,
            batch: "adaptive",
            max_delay: MAX_DELAY,
            idle_services: 0,
            measure_one_in: None,
            status_socket: self.keys.helper.with_file_name(format!("{engine}-{port}.sock")),
        };
        Helper::start(&self.shared, plan)
    }

    /// Ends what [`prepare`](Self::prepare) has started. Returns the counts of the helper's clients.
    pub fn end(&self, present: Present) -> Result<Tally, Error> {
        let Present { load, helper, program } = present;
        let mut tally = Tally::default();
        if let Some(load) = load {
            tally.add_report(&load.finish()?);
        }
        if let Some(mut helper) = helper {
            helper.check()?;
            helper.stop();
        }
        drop(program);
        self.wait_for_program(false)?;
        Ok(tally)
    }

    /// Waits until the shared interface has a program, or none, as expected. Then pins and accounts its
    /// threads, which each change of program replaces.
    fn wait_for_program(&self, is_expected: bool) -> Result<(), Error> {
        let interface = self.shared.interface();
        let deadline = Instant::now() + PROGRAM_TIMEOUT;
        loop {
            let found = self.shared.run_inside(|| attached_program(interface))?;
            let found = found.map_err(|cause| Error::System { what: interface.to_owned(), cause })?;
            if found.is_some() == is_expected {
                return Ok(self.shared.pin_and_account_interface()?);
            }
            if Instant::now() >= deadline {
                let state = if is_expected { "has no program" } else { "still has a program" };
                return Err(Error::process(format!("the interface {interface} {state}"), ""));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Measures the kernel memcached: in a closed loop under a quota, or in an open loop without one.
    pub fn measure(
        &self,
        load: Load,
        settle: Duration,
        length: Duration,
        tally: &mut Tally,
    ) -> Result<Sample, Error> {
        let (quota, rate_per_s) = match load {
            Load::Closed(quota) => (Some(quota), None),
            Load::Rate(per_s) => (None, Some(per_s)),
        };
        let traffic = Traffic { closed: rate_per_s.is_none(), ..Traffic::default() };
        let hosts = std::slice::from_ref(&self.clients);
        let clients = clients(self.memcached.address());
        let mut generators = Generators::start_with(&self.programs, hosts, &clients, &traffic)?;
        self.shared.set_quota(quota)?;
        let sample = self.step(&mut generators, rate_per_s, settle, length);
        self.shared.set_quota(None)?;
        let sample = sample?;
        tally.add_report(&generators.finish()?);
        Ok(sample)
    }

    fn step(
        &self,
        generators: &mut Generators,
        rate_per_s: Option<f64>,
        settle: Duration,
        length: Duration,
    ) -> Result<Sample, Error> {
        generators.begin()?;
        if let Some(per_s) = rate_per_s {
            generators.order(&Order::Rate(per_s))?;
        }
        generators.sleep_until_ms(0);
        std::thread::sleep(settle);
        let bins =
            |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX).div_ceil(BIN_MS) * BIN_MS;
        let from_ms = (generators.now_ms() + 1).div_ceil(BIN_MS) * BIN_MS;
        let to_ms = from_ms + bins(length);
        generators.sleep_until_ms(from_ms);
        let memcached = || process_cpu(self.memcached.pid());
        let (memcached_before, before, answered) = (memcached(), self.snapshot()?, generators.answered());
        generators.sleep_until_ms(to_ms);
        let (after, memcached_after) = (self.snapshot()?, memcached());
        let replies = generators.answered() - answered;
        std::thread::sleep(BIN_REPORT_DELAY);
        generators.check()?;
        let bins = generators.bins(from_ms, to_ms);
        Ok(Sample {
            step: Step::new(rate_per_s.unwrap_or_default(), &bins, after.since(&before), replies),
            memcached: memcached_after.saturating_sub(memcached_before),
        })
    }

    fn snapshot(&self) -> Result<Snapshot, Error> {
        let mut clients = HostCpu::default();
        for host in [&self.clients, &self.helper_clients] {
            let cpu = host.cpu()?;
            clients.process += cpu.process;
            clients.interface += cpu.interface;
        }
        let (shared, backend, bridge) = (self.shared.cpu()?, self.backend.cpu()?, self.lab.bridge_cpu()?);
        Ok(Snapshot::now(shared, backend, clients, bridge, self.steady.stalled()))
    }

    /// Fails if a server has ended.
    pub fn check(&mut self) -> Result<(), Error> {
        for peer in [&mut self.memcached, &mut self.shimmed] {
            check_runs(peer.process(), "a memcached")?;
        }
        Ok(())
    }

    pub fn close(self) -> Result<(), Error> {
        drop((self.memcached, self.shimmed, self.steady));
        Ok(self.lab.close()?)
    }
}

/// The load of the kernel memcached's clients.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Load {
    /// As many requests as the host serves under this quota.
    Closed(Quota),
    /// Requests a second, without a quota.
    Rate(f64),
}

fn clients(server: SocketAddr) -> Clients {
    Clients {
        server,
        helpers: None,
        sessions: None,
        helpers_asked: None,
        threads: 1,
        connections: CONNECTIONS,
        keys: KEYS,
        fill: false,
        seed: SEED,
        rate_per_s: 0.0,
        duration: None,
        schedule: Vec::new(),
        sla: Duration::from_millis(1),
        pace: Duration::ZERO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::Used;
    use crate::relief::Span;

    #[test]
    fn the_kernels_cost_leaves_out_the_helper() {
        let used = Used { seconds: 2.0, server_process_s: 0.3, server_interface_s: 0.1, ..Used::default() };
        let span = Span { offered: 10_000, served: 10_000, ..Span::default() };
        let step = Step { used, span, ..Step::default() };
        let sample = Sample { step, memcached: Duration::from_millis(200) };
        assert_eq!(sample.served_per_s(), 5_000.0);
        assert!((sample.kernel_us() - 30.0).abs() < 1e-9 && (sample.helper_percent() - 5.0).abs() < 1e-9);
        assert_eq!(sample.quantile_us(0.99), None);
    }
}
