//! A lab with a switch process, servers whose connections move, and hosts for clients.
//!
//! By default all cables do receive work on the core of the sender, as veths do outside the laboratory: a message then wakes only
//! the thread that handles it. Its time is in the account of the sender.

mod files;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde::de::DeserializeOwned;
use spillway_lab::{Forwarding, Host, HostOptions, Lab, LabOptions, Launch, Process};
use spillway_stack_server::{
    MoveOutcome, MoveStepTimes, Override, PolicyStatus, Request, ServerStatus, StepsOfMoves, send_request,
};

use crate::error::Error;
use crate::experiments::common::switch_daemon::{start_daemon, wait_until, wait_until_known};
use crate::machine::Machine;
use crate::programs::Programs;
use crate::stop;

/// The service's name in orders.
pub(super) const SERVICE: &str = "service";
const STOP_TIMEOUT: Duration = Duration::from_secs(10);
/// Names of servers; the first is the original owner.
pub(super) const NAMES: [&str; 3] = ["a", "b", "c"];

/// The TCP beneath the servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ServerTcp {
    /// The user-level stack on AF_XDP.
    Xdp,
    /// The kernel's sockets.
    Kernel,
}

impl ServerTcp {
    /// The value of `--engine`.
    fn option(self) -> &'static str {
        match self {
            ServerTcp::Xdp => "xdp",
            ServerTcp::Kernel => "kernel",
        }
    }
}

/// What a site has.
#[derive(Clone, Debug)]
pub(super) struct SiteOptions {
    /// Number of servers, at most 3.
    pub servers: usize,
    /// Cores of the servers.
    pub server_cores: [usize; 3],
    /// Number of client hosts.
    pub clients: usize,
    /// Core of the clients and of the switch's daemon.
    pub client_core: usize,
    /// The command that runs a server: `echo`, `kv` or `http`.
    pub command: &'static str,
    /// The TCP beneath the servers.
    pub tcp: ServerTcp,
    /// Whether each server serves only its part of the targets, and hands requests for others off. Only for `http`.
    pub is_partitioned: bool,
    /// Whether the sender's thread does receive work. Otherwise each interface has a thread, whose time is in its host's account.
    pub receive_inline: bool,
    /// The servers' `policy`.
    pub policy: &'static str,
    /// Further options of the servers.
    pub arguments: Vec<String>,
}

/// A running site. Dropping it ends all programs and removes the hosts.
#[derive(Debug)]
pub(super) struct Site {
    pub clients: Vec<Host>,
    servers: Vec<Server>,
    daemon: Process,
    service: SocketAddr,
    lab: Lab,
}

/// A running server.
#[derive(Debug)]
pub(super) struct Server {
    pub name: &'static str,
    pub host: Host,
    process: Process,
    socket: PathBuf,
}

impl Site {
    /// Creates the hosts and starts the switch and the servers. `name` names the laboratory.
    pub(super) fn create(name: &str, programs: &Programs, options: &SiteOptions) -> Result<Site, Error> {
        let lab = Lab::with_options(
            name,
            LabOptions {
                bridge_core: Some(options.client_core),
                forwarding: Forwarding::Switch,
                receive_inline: options.receive_inline,
                ..LabOptions::default()
            },
        )?;
        let host = |name: &str, core: usize, pass_program: bool| {
            let options =
                HostOptions { core: Some(core), tx_checksums: false, pass_program, ..HostOptions::default() };
            lab.host(name, options)
        };
        let clients = (1..=options.clients)
            .map(|number| host(&format!("client{number}"), options.client_core, true))
            .collect::<Result<Vec<_>, _>>()?;
        let names = NAMES.into_iter().zip(options.server_cores).take(options.servers);
        let hosts = names
            .map(|(name, core)| Ok((name, host(name, core, false)?)))
            .collect::<Result<Vec<(&str, Host)>, Error>>()?;
        let switch = lab.switches().remove(0);
        let directory = std::env::temp_dir().join(lab.run_name());
        let files = files::write(&directory, (&lab, &switch), &clients, &hosts, options.policy)?;
        let daemon = start_daemon(&switch, programs, &files.switch, &files.switch_socket)?;
        let servers = hosts
            .into_iter()
            .map(|(name, host)| Server::start((name, host), programs, &files, options))
            .collect::<Result<Vec<_>, _>>()?;
        // The servers' programs have replaced the receive loops of their interfaces.
        switch.prepare_hosts()?;
        let site = Site { clients, servers, daemon, service: files.service, lab };
        wait_until_known(&files.switch_socket, site.servers.len())?;
        Ok(site)
    }

    pub(super) fn describe(&self, machine: &mut Machine, options: &SiteOptions) -> Result<(), Error> {
        machine.offloads = self.clients[0].offloads()?.to_string();
        let cores: Vec<String> =
            options.server_cores.iter().take(options.servers).map(usize::to_string).collect();
        machine.lab.insert(
            "placement".into(),
            format!(
                "servers on cores {}; clients and the switch's daemon on core {}; receive work {}",
                cores.join(", "),
                options.client_core,
                match options.receive_inline {
                    true => "and the switch's program on the core of the sender",
                    false => "in a thread of each host, and the switch's program on the core of its daemon",
                }
            ),
        );
        machine.lab.insert("congestion control of clients".into(), self.clients[0].congestion_control()?);
        Ok(())
    }

    /// The address to which clients connect.
    pub(super) fn service(&self) -> SocketAddr {
        self.service
    }

    pub(super) fn servers(&self) -> &[Server] {
        &self.servers
    }

    /// Fails if a signal has stopped the experiment, or if a program has ended.
    pub(super) fn check(&mut self) -> Result<(), Error> {
        stop::check()?;
        for process in self.servers.iter_mut().map(|server| &mut server.process).chain([&mut self.daemon]) {
            if process.exit_status().is_some() {
                return Err(Error::process(format!("{} has ended", process.name()), process.last_output()));
            }
        }
        Ok(())
    }

    /// The sum of a figure over all servers.
    pub(super) fn sum(&self, figure: impl Fn(&ServerStatus) -> u64) -> Result<u64, Error> {
        self.servers.iter().map(|server| Ok(figure(&server.status()?))).sum()
    }

    /// The steps of moves that have ended since the last call, by server.
    pub(super) fn take_steps(&self) -> Result<Vec<Vec<MoveStepTimes>>, Error> {
        self.servers.iter().map(Server::take_steps).collect()
    }

    /// Waits until the servers have noticed the end of all connections.
    pub(super) fn wait_until_empty(&mut self) -> Result<(), Error> {
        for _ in 0..1_000 {
            if self.sum(|status| status.connections as u64)? == 0 {
                return Ok(());
            }
            self.check()?;
            std::thread::sleep(Duration::from_millis(10));
        }
        Err(Error::process("connections of clients that have ended remain at the servers", ""))
    }

    /// Retransmission timeouts of all clients' kernels so far.
    pub(super) fn client_timeouts(&self) -> Result<u64, Error> {
        self.client_counter("TcpExt:TCPTimeouts")
    }

    /// Connections of all clients' kernels that were reset so far.
    pub(super) fn client_resets(&self) -> Result<u64, Error> {
        self.client_counter("Tcp:EstabResets")
    }

    fn client_counter(&self, name: &str) -> Result<u64, Error> {
        let of =
            |host: &Host| -> Result<u64, Error> { Ok(host.tcp_counters()?.get(name).copied().unwrap_or(0)) };
        self.clients.iter().map(of).sum()
    }

    /// Ends the servers and the switch, and removes the hosts.
    pub(super) fn close(mut self) -> Result<(), Error> {
        for process in self.servers.iter_mut().map(|server| &mut server.process).chain([&mut self.daemon]) {
            process.stop(STOP_TIMEOUT);
        }
        let Site { clients, servers, daemon, lab, .. } = self;
        drop((servers, daemon, clients));
        Ok(lab.close()?)
    }
}

impl Server {
    fn start(
        (name, host): (&'static str, Host),
        programs: &Programs,
        files: &files::Files,
        options: &SiteOptions,
    ) -> Result<Server, Error> {
        let socket = files.directory.join(format!("{name}.sock"));
        let key = files.directory.join(format!("{name}.key"));
        let launch = Launch::new(&programs.lab)
            .name(name)
            .args([options.command, "--engine", options.tcp.option(), "--name", SERVICE])
            .args(["--interface", host.interface()])
            .args(["--service", &files.service.to_string(), "--switch", &files.control.to_string()])
            .arg("--peers")
            .arg(&files.peers)
            .arg("--key")
            .arg(&key)
            .arg("--socket")
            .arg(&socket)
            .args(options.is_partitioned.then_some(["--partition", name]).into_iter().flatten())
            .args(&options.arguments);
        let mut process = host.spawn(&launch)?;
        wait_until("a server is not ready", || {
            if process.exit_status().is_some() {
                return Err(Error::process("a server has ended", process.last_output()));
            }
            Ok(process.stdout()?.contains("serving"))
        })?;
        Ok(Server { name, host, process, socket })
    }

    /// Id of the server's process.
    pub(super) fn pid(&self) -> u32 {
        self.process.pid()
    }

    pub(super) fn status(&self) -> Result<ServerStatus, Error> {
        self.ask(&Request::Status {})
    }

    /// Moves a connection, or all of them, and waits for the results.
    pub(super) fn migrate(&self, client: Option<SocketAddr>, to: &str) -> Result<MoveOutcome, Error> {
        self.ask(&Request::Move { service: SERVICE.into(), connection: client, to: Some(to.into()) })
    }

    /// The steps of moves that have ended since the last call.
    fn take_steps(&self) -> Result<Vec<MoveStepTimes>, Error> {
        self.ask::<StepsOfMoves>(&Request::MoveSteps {}).map(|steps| steps.moves)
    }

    /// Overrides the policy.
    pub(super) fn set_override(&self, manual_override: Override) -> Result<PolicyStatus, Error> {
        let manual_override = manual_override.name().to_owned();
        self.ask(&Request::MoveOverride { service: SERVICE.into(), manual_override, lasts_ms: None })
    }

    fn ask<T: DeserializeOwned>(&self, request: &Request) -> Result<T, Error> {
        send_request(&self.socket, request).map_err(|error| {
            Error::process(
                format!("server {} did not answer: {error}", self.name),
                self.process.last_output(),
            )
        })
    }
}
