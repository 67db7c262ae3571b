//! The hosts of Figure 8, for all systems at once: only the one that is measured has requests.
//!
//! Each interface has a receive thread in the account of its host, so that the receive work of a frontend counts as its own.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use spillway_lab::peers::{HttpProxy, Peer};
use spillway_lab::{Forwarding, Host, HostCpu, HostOptions, Lab, LabOptions, Launch, Process, Quota};
use spillway_stack_server::{Request, ServerStatus, send_request};

use super::Effort;
use super::case::{Kind, System};
use super::files::{self, CONTROL_PORT, FRONTEND, Group, SERVICE_PORT, SwitchFiles};
use crate::error::Error;
use crate::experiments::common::switch_daemon::{start_daemon, wait_until, wait_until_known};
use crate::machine::Machine;
use crate::scene::{Placement, Setting, quota_text};
use crate::stop;

const STOP_TIMEOUT: Duration = Duration::from_secs(10);

/// A running site. Dropping it ends all programs and removes the hosts.
#[derive(Debug)]
pub(super) struct Site {
    pub client: Host,
    setups: Vec<Setup>,
    /// The backends of all proxies.
    relayed: Vec<Backend>,
    daemon: Process,
    lab: Lab,
}

/// All hosts, before programs run on them.
struct Hosts {
    client: Host,
    groups: Vec<Group>,
    proxies: Vec<(System, Host)>,
    /// The backends of all proxies.
    relayed: Vec<Host>,
}

/// What a system has of its own.
#[derive(Debug)]
struct Setup {
    system: System,
    frontend: Host,
    role: Role,
}

#[derive(Debug)]
enum Role {
    /// Servers that hand connections off: the frontend's, then those of the backends.
    HandOff {
        group: Group,
        servers: Vec<Server>,
    },
    Proxy(Box<Peer>),
}

/// A server of the laboratory.
#[derive(Debug)]
struct Server {
    process: Process,
    socket: PathBuf,
}

/// A backend of the proxies.
#[derive(Debug)]
struct Backend {
    host: Host,
    process: Process,
}

/// CPU time of all hosts so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cpu {
    pub frontend: HostCpu,
    pub backends: HostCpu,
    pub client: HostCpu,
    pub switch: HostCpu,
    /// All hosts of other systems.
    pub idle: HostCpu,
}

/// What servers that hand connections off have counted so far; 0 for proxies.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Moves {
    pub moved: u64,
    /// Connections that were lost, or whose outcome is not known.
    pub lost: u64,
}

impl Site {
    /// Creates the hosts, and starts the switch and all servers.
    pub fn create(
        setting: &Setting,
        effort: &Effort,
        systems: &[System],
        backends: usize,
    ) -> Result<Site, Error> {
        let placement = setting.placement;
        let lab = Lab::with_options(
            effort.name,
            LabOptions {
                bridge_core: Some(placement.bridge),
                forwarding: Forwarding::Switch,
                ..LabOptions::default()
            },
        )?;
        let Hosts { client, groups, proxies, relayed } = Hosts::create(&lab, placement, systems, backends)?;
        let switch = lab.switches().remove(0);
        let directory = std::env::temp_dir().join(lab.run_name());
        let control = SocketAddr::new(switch.addresses()[0], CONTROL_PORT);
        let plain: Vec<&Host> =
            [&client].into_iter().chain(proxies.iter().map(|(_, host)| host)).chain(&relayed).collect();
        let SwitchFiles { config, socket } =
            files::write(&directory, (&lab.run_name(), control), &groups, &plain)?;
        let daemon = start_daemon(&switch, &setting.programs, &config, &socket)?;
        let servers = groups.iter().map(|group| group.hosts.len()).sum();
        let mut setups = groups
            .into_iter()
            .map(|group| Setup::hand_off(setting, group, (&directory, control)))
            .collect::<Result<Vec<_>, _>>()?;
        let relayed =
            relayed.into_iter().map(|host| Backend::start(setting, host)).collect::<Result<Vec<_>, _>>()?;
        // The servers' programs have replaced the receive loops of their interfaces.
        switch.prepare_hosts()?;
        for (system, frontend) in proxies {
            setups.push(Setup::proxy(system, frontend, &relayed)?);
        }
        wait_until_known(&socket, servers)?;
        Ok(Site { client, setups, relayed, daemon, lab })
    }

    pub fn describe(&self, machine: &mut Machine, setting: &Setting, effort: &Effort) -> Result<(), Error> {
        machine.offloads = self.client.offloads()?.to_string();
        let placement = setting.placement;
        machine.lab.insert(
            "placement".into(),
            format!(
                "frontends and backends on core {}, client on core {}, switch on core {}, each with its receive threads",
                placement.server, placement.clients, placement.bridge
            ),
        );
        machine.lab.insert(
            "quota of each frontend and backend, closed loop".into(),
            quota_text(Some(effort.quota())),
        );
        machine.lab.insert("quotas, open loop".into(), quota_text(None));
        machine.lab.insert("connections for each backend".into(), effort.connections_per_backend.to_string());
        machine.lab.insert("congestion control".into(), self.client.congestion_control()?);
        for (program, argument) in [("nginx", "-v"), ("haproxy", "-v")] {
            machine.lab.insert(program.into(), Machine::version_of(program, argument));
        }
        Ok(())
    }

    /// Sets or lifts the quota of each frontend and each backend.
    pub fn set_quotas(&self, quota: Option<Quota>) -> Result<(), Error> {
        for host in self.setups.iter().flat_map(|setup| setup.hosts(&self.relayed)) {
            host.set_quota(quota)?;
        }
        Ok(())
    }

    /// Where clients connect to a system.
    pub fn service(&self, system: System) -> Result<SocketAddr, Error> {
        self.setup(system).map(|setup| match &setup.role {
            Role::HandOff { group, .. } => group.service(),
            Role::Proxy(peer) => peer.address(),
        })
    }

    pub fn cpu(&self, system: System) -> Result<Cpu, Error> {
        let measured = self.setup(system)?;
        let backends = measured.backends(&self.relayed);
        let mut cpu = Cpu {
            frontend: measured.frontend.cpu()?,
            client: self.client.cpu()?,
            switch: self.lab.bridge_cpu()?,
            ..Cpu::default()
        };
        for host in &backends {
            add(&mut cpu.backends, &host.cpu()?);
        }
        let mut counted: Vec<&str> = backends.iter().map(|host| host.name()).collect();
        counted.push(measured.frontend.name());
        for host in self.setups.iter().flat_map(|setup| setup.hosts(&self.relayed)) {
            if !counted.contains(&host.name()) {
                counted.push(host.name());
                add(&mut cpu.idle, &host.cpu()?);
            }
        }
        Ok(cpu)
    }

    pub fn moves(&self, system: System) -> Result<Moves, Error> {
        let mut moves = Moves::default();
        if let Role::HandOff { servers, .. } = &self.setup(system)?.role {
            for server in servers {
                let status = server.status()?.moves;
                moves.moved += status.moved;
                moves.lost += status.lost + status.let_go;
            }
        }
        Ok(moves)
    }

    /// Retransmission timeouts of the client's kernel so far.
    pub fn client_timeouts(&self) -> Result<u64, Error> {
        Ok(self.client.tcp_counters()?.get("TcpExt:TCPTimeouts").copied().unwrap_or(0))
    }

    /// Fails if a signal has stopped the experiment, or if a program has ended.
    pub fn check(&mut self) -> Result<(), Error> {
        stop::check()?;
        for process in self.processes() {
            if process.exit_status().is_some() {
                return Err(Error::process(format!("{} has ended", process.name()), process.last_output()));
            }
        }
        Ok(())
    }

    /// Ends all programs, and removes the hosts.
    pub fn close(mut self) -> Result<(), Error> {
        for process in self.processes() {
            process.stop(STOP_TIMEOUT);
        }
        let Site { client, setups, relayed, daemon, lab } = self;
        drop((setups, relayed, daemon, client));
        Ok(lab.close()?)
    }

    /// All programs; the switch's daemon is the last one.
    fn processes(&mut self) -> impl Iterator<Item = &mut Process> {
        let of_setups = self.setups.iter_mut().flat_map(|setup| match &mut setup.role {
            Role::HandOff { servers, .. } => servers.iter_mut().map(|server| &mut server.process).collect(),
            Role::Proxy(peer) => vec![peer.process()],
        });
        of_setups.chain(self.relayed.iter_mut().map(|backend| &mut backend.process)).chain([&mut self.daemon])
    }

    fn setup(&self, system: System) -> Result<&Setup, Error> {
        let found = self.setups.iter().find(|setup| setup.system == system);
        found.ok_or_else(|| Error::Usage(format!("this site has no {}", system.name())))
    }
}

impl Hosts {
    fn create(lab: &Lab, placement: Placement, systems: &[System], backends: usize) -> Result<Hosts, Error> {
        let host = |name: &str, core: usize, pass_program: bool| {
            let options =
                HostOptions { core: Some(core), tx_checksums: false, pass_program, ..HostOptions::default() };
            lab.host(name, options)
        };
        // Servers of the laboratory attach programs of their own.
        let server = |name: &str| host(name, placement.server, false);
        let client = host("client", placement.clients, true)?;
        let mut hosts = Hosts { client, groups: Vec::new(), proxies: Vec::new(), relayed: Vec::new() };
        for system in systems {
            let name = system.name();
            if system.kind() == Kind::Proxy {
                hosts.proxies.push((*system, host(name, placement.server, true)?));
                continue;
            }
            // Names of hosts have at most 24 letters.
            let short = name.trim_start_matches("spillway-");
            let of_group = (0..=backends).map(|index| server(&format!("{short}-{}", Group::peer(index))));
            let of_group = of_group.collect::<Result<Vec<_>, _>>()?;
            let first_id = 1 + hosts.groups.iter().map(|group| group.hosts.len()).sum::<usize>();
            hosts.groups.push(Group { system: *system, hosts: of_group, first_id });
        }
        if !hosts.proxies.is_empty() {
            let relayed = (1..=backends).map(|index| server(&format!("relayed-b{index}")));
            hosts.relayed = relayed.collect::<Result<_, _>>()?;
        }
        Ok(hosts)
    }
}

impl Setup {
    fn hand_off(
        setting: &Setting,
        group: Group,
        (directory, control): (&Path, SocketAddr),
    ) -> Result<Setup, Error> {
        let servers = (0..group.hosts.len())
            .map(|index| Server::start(setting, &group, index, (directory, control)))
            .collect::<Result<Vec<_>, _>>()?;
        let (system, frontend) = (group.system, group.hosts[0].clone());
        Ok(Setup { system, frontend, role: Role::HandOff { group, servers } })
    }

    fn proxy(system: System, frontend: Host, relayed: &[Backend]) -> Result<Setup, Error> {
        let backends: Vec<SocketAddr> = relayed.iter().map(Backend::address).collect();
        let proxy = match system {
            System::Haproxy => HttpProxy::haproxy(backends),
            _ => HttpProxy::nginx(backends),
        };
        let peer = proxy.start(&(&frontend).into())?;
        Ok(Setup { system, frontend, role: Role::Proxy(Box::new(peer)) })
    }

    fn backends<'a>(&'a self, relayed: &'a [Backend]) -> Vec<&'a Host> {
        match &self.role {
            Role::HandOff { group, .. } => group.hosts[1..].iter().collect(),
            Role::Proxy(_) => relayed.iter().map(|backend| &backend.host).collect(),
        }
    }

    /// The frontend, and the backends.
    fn hosts<'a>(&'a self, relayed: &'a [Backend]) -> Vec<&'a Host> {
        [&self.frontend].into_iter().chain(self.backends(relayed)).collect()
    }
}

impl Server {
    fn start(
        setting: &Setting,
        group: &Group,
        index: usize,
        (directory, control): (&Path, SocketAddr),
    ) -> Result<Server, Error> {
        let Kind::HandOff { engine, returns } = group.system.kind() else {
            return Err(Error::Usage(format!("{} hands nothing off", group.system.name())));
        };
        let (host, name) = (&group.hosts[index], group.server(index));
        let socket = directory.join(format!("{name}.sock"));
        let launch = Launch::new(&setting.programs.lab)
            .name(name)
            .args(["http", "--engine", engine, "--interface", host.interface(), "--name", group.name()])
            .args(["--service", &group.service().to_string(), "--switch", &control.to_string()])
            .args(["--partition", &Group::peer(index), "--frontend", FRONTEND])
            .arg("--peers")
            .arg(group.peers_file(directory))
            .arg("--key")
            .arg(group.key_file(directory, index))
            .arg("--socket")
            .arg(&socket);
        let launch = if returns { launch.arg("--return-to-frontend") } else { launch };
        Ok(Server { process: start(host, &launch)?, socket })
    }

    fn status(&self) -> Result<ServerStatus, Error> {
        send_request(&self.socket, &Request::Status {}).map_err(|error| {
            let what = format!("{} did not answer: {error}", self.process.name());
            Error::process(what, self.process.last_output())
        })
    }
}

impl Backend {
    fn start(setting: &Setting, host: Host) -> Result<Backend, Error> {
        let service = SocketAddr::new(host.address(), SERVICE_PORT).to_string();
        let launch = Launch::new(&setting.programs.lab).name("backend").args([
            "http",
            "--engine",
            "xdp",
            "--interface",
            host.interface(),
            "--service",
            &service,
        ]);
        let process = start(&host, &launch)?;
        Ok(Backend { host, process })
    }

    fn address(&self) -> SocketAddr {
        SocketAddr::new(self.host.address(), SERVICE_PORT)
    }
}

/// Starts a server of the laboratory, and waits until clients can connect.
fn start(host: &Host, launch: &Launch) -> Result<Process, Error> {
    let mut process = host.spawn(launch)?;
    wait_until("a server is not ready", || {
        if process.exit_status().is_some() {
            return Err(Error::process("a server has ended", process.last_output()));
        }
        Ok(process.stdout()?.contains("serving"))
    })?;
    Ok(process)
}

fn add(sum: &mut HostCpu, cpu: &HostCpu) {
    sum.process += cpu.process;
    sum.interface += cpu.interface;
    sum.periods += cpu.periods;
    sum.throttled_periods += cpu.throttled_periods;
    sum.throttled_time += cpu.throttled_time;
}
