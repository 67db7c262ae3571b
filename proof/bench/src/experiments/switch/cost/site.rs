//! Hosts that are joined by the kernel's bridge, by one switch and by five switches in a row.
//!
//! All cables do receive work on the core of the sender (`receive_inline`), as veths do outside the laboratory, and all
//! interfaces have the same offloads.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use spillway_lab::{
    Agent, Forwarding, Host, HostCpu, HostOptions, Lab, LabOptions, LabSwitch, Launch, Process, RunningSwitch,
};
use spillway_rules::ServiceId;
use spillway_rules::config::Place;
use spillway_wire::switch::{Flow, Request, Status};

use super::answering;
use super::bulk::{Transfer, transfer};
use super::echo::Echo;
use crate::error::Error;
use crate::machine::Machine;
use crate::scene::Setting;
use crate::stop;

/// Switches of the longest row.
pub const ROW: usize = 5;
/// Ports at which daemons answer, on the agent's core and on another one.
const DAEMON_PORTS: [u16; 2] = [7_711, 7_712];
const READY_TIMEOUT: Duration = Duration::from_secs(20);

/// A round trip that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Trip {
    /// A control message that the program answers.
    Program,
    /// A control message that a daemon answers on the agent's core.
    Daemon,
    /// A control message that a daemon answers on another core.
    DaemonAcross,
    /// A datagram between hosts that the kernel's bridge joins.
    Bridge,
    /// A datagram between hosts of one switch.
    OneSwitch,
    /// A datagram between hosts at both ends of a row of five switches.
    FiveSwitches,
}

impl Trip {
    pub const ALL: [Trip; 6] =
        [Trip::Program, Trip::Daemon, Trip::DaemonAcross, Trip::Bridge, Trip::OneSwitch, Trip::FiveSwitches];

    pub fn name(self) -> &'static str {
        match self {
            Trip::Program => "in program",
            Trip::Daemon => "daemon on the same core",
            Trip::DaemonAcross => "daemon on another core",
            Trip::Bridge => "bridge",
            Trip::OneSwitch => "one switch",
            Trip::FiveSwitches => "five switches",
        }
    }
}

/// What joins the hosts of a bulk transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Joined {
    /// The kernel's bridge; no host has a program. Like a program, the bridge gets single packets.
    Bridge,
    /// As `Bridge`, but the bridge's ports join packets before it forwards them (GRO), and cut them again.
    BridgeWithGro,
    /// One switch; hosts have the laboratory's pass programs.
    Switch,
    /// One switch; hosts have no program, as with real network cards.
    SwitchWithoutPass,
}

impl Joined {
    pub const ALL: [Joined; 4] =
        [Joined::Bridge, Joined::BridgeWithGro, Joined::Switch, Joined::SwitchWithoutPass];

    pub fn name(self) -> &'static str {
        match self {
            Joined::Bridge => "bridge",
            Joined::BridgeWithGro => "bridge, GRO at its ports",
            Joined::Switch => "switch",
            Joined::SwitchWithoutPass => "switch, no pass programs",
        }
    }
}

/// The hosts of one lab: two on the first core, and one on another core.
struct Hosts {
    lab: Lab,
    first: Host,
    second: Host,
    other: Host,
}

pub struct Site {
    bridge: Hosts,
    bridge_with_gro: Hosts,
    switch: Hosts,
    without_pass: Hosts,
    row: Hosts,
    /// The agents of the control messages, in the order of [`Trip`].
    agents: [Agent; 3],
    /// Echoes on the bridge, at one switch and behind five.
    echoes: [Echo; 3],
    flow: Flow,
    daemons: Vec<Process>,
    running: Vec<RunningSwitch>,
    placement: String,
}

impl Site {
    pub fn create(setting: &Setting) -> Result<Site, Error> {
        let cores = (setting.placement.clients, setting.placement.server);
        let layout =
            |forwarding, switches, pass_program| Layout { forwarding, switches, pass_program, cores };
        let bridge = Hosts::create("cost-bridge", layout(Forwarding::Bridge, 1, false))?;
        for host in [&bridge.first, &bridge.second, &bridge.other] {
            host.forward_single_packets()?;
        }
        let bridge_with_gro = Hosts::create("cost-bridge-gro", layout(Forwarding::Bridge, 1, false))?;
        let switch = Hosts::create("cost-switch", layout(Forwarding::Switch, 1, true))?;
        let without_pass = Hosts::create("cost-no-pass", layout(Forwarding::Switch, 1, false))?;
        let row = Hosts::create("cost-row", layout(Forwarding::Switch, ROW, true))?;

        let first_switch = switch.lab.switches().remove(0);
        let (running, flow) = load_with_server(&first_switch, &switch)?;
        let mut running = vec![running];
        for switch in row.lab.switches().into_iter().chain(without_pass.lab.switches()) {
            running.push(switch.load(&switch.config())?);
        }
        let mut daemons = Vec::new();
        for (port, core) in DAEMON_PORTS.into_iter().zip([cores.0, cores.1]) {
            daemons.push(start_daemon(&first_switch, &switch.first, (port, core), setting)?);
        }
        let address = first_switch.addresses()[0];
        let agent = |control: SocketAddr| -> Result<Agent, Error> {
            let mut agent = Agent::new(&switch.first, control, answering::SERVER, answering::key())?;
            agent.hello()?;
            Ok(agent)
        };
        let agents = [
            agent(first_switch.control()[0])?,
            agent(SocketAddr::new(address, DAEMON_PORTS[0]))?,
            agent(SocketAddr::new(address, DAEMON_PORTS[1]))?,
        ];
        let echoes = [
            Echo::start(&bridge.first, &bridge.second)?,
            Echo::start(&row.first, &row.second)?,
            Echo::start(&row.first, &row.other)?,
        ];
        let placement = format!(
            "agent, echoes and sender on core {}, receiver of bulk transfers and a daemon on core {}; receive work on \
             the core of the sender",
            cores.0, cores.1
        );
        Ok(Site {
            bridge_with_gro,
            without_pass,
            bridge,
            switch,
            row,
            agents,
            echoes,
            flow,
            daemons,
            running,
            placement,
        })
    }

    pub fn describe(&self, machine: &mut Machine) -> Result<(), Error> {
        machine.offloads = self.switch.first.offloads()?.to_string();
        machine.lab.insert("placement".into(), self.placement.clone());
        Ok(())
    }

    /// Times of this number of round trips, in µs. Each reply is compared.
    pub fn round_trips(&mut self, trip: Trip, count: usize) -> Result<Vec<f64>, Error> {
        stop::check()?;
        let agent = match trip {
            Trip::Program => &mut self.agents[0],
            Trip::Daemon => &mut self.agents[1],
            Trip::DaemonAcross => &mut self.agents[2],
            Trip::Bridge => return self.echoes[0].measure(count),
            Trip::OneSwitch => return self.echoes[1].measure(count),
            Trip::FiveSwitches => return self.echoes[2].measure(count),
        };
        let flow = self.flow;
        let measure = || (0..count).map(|_| get(agent, flow)).collect();
        self.switch.first.run_inside(measure)?
    }

    pub fn transfer(&self, joined: Joined, length: Duration) -> Result<Transfer, Error> {
        stop::check()?;
        let hosts = match joined {
            Joined::Bridge => &self.bridge,
            Joined::BridgeWithGro => &self.bridge_with_gro,
            Joined::Switch => &self.switch,
            Joined::SwitchWithoutPass => &self.without_pass,
        };
        transfer(&hosts.first, &hosts.other, length)
    }

    /// The offloads of sender and receiver by what joins them, which should be equal.
    pub fn offloads(&self) -> Result<Vec<String>, Error> {
        let all = [&self.bridge, &self.bridge_with_gro, &self.switch, &self.without_pass];
        let hosts = all.into_iter().flat_map(|hosts| [&hosts.first, &hosts.other]);
        hosts.map(|host| Ok(host.offloads()?.to_string())).collect()
    }

    /// CPU time of the daemons.
    pub fn cpu(&self) -> Result<HostCpu, Error> {
        Ok(self.switch.lab.bridge_cpu()?)
    }

    pub fn close(self) -> Result<(), Error> {
        for echo in self.echoes {
            echo.stop()?;
        }
        drop((self.agents, self.daemons, self.running));
        let labs = [self.bridge, self.bridge_with_gro, self.switch, self.without_pass, self.row];
        for hosts in labs {
            hosts.lab.close()?;
        }
        Ok(())
    }
}

/// The properties of a lab.
#[derive(Clone, Copy, Debug)]
struct Layout {
    forwarding: Forwarding,
    switches: usize,
    pass_program: bool,
    /// The core of the first hosts, and that of the last one.
    cores: (usize, usize),
}

impl Hosts {
    fn create(name: &str, layout: Layout) -> Result<Hosts, Error> {
        let Layout { forwarding, switches, pass_program, cores: (core, other_core) } = layout;
        let options = LabOptions {
            forwarding,
            more_switches: switches - 1,
            receive_inline: true,
            ..LabOptions::default()
        };
        let lab = Lab::with_options(name, options)?;
        let host = |name: &str, core: usize, switch: usize| {
            let options = HostOptions {
                core: Some(core),
                tx_checksums: false,
                switch,
                pass_program,
                ..HostOptions::default()
            };
            lab.host(name, options)
        };
        // At the end of a row, the last host is a partner of round trips, which stay on one core.
        let other_core = if switches > 1 { core } else { other_core };
        let (first, second) = (host("first", core, 0)?, host("second", core, 0)?);
        let other = host("other", other_core, switches - 1)?;
        Ok(Hosts { first, second, other, lab })
    }
}

/// Loads the program with the first host as a server. Returns also a flow of its service that has no entry.
fn load_with_server(switch: &LabSwitch, hosts: &Hosts) -> Result<(RunningSwitch, Flow), Error> {
    let service = SocketAddr::new(hosts.first.address(), 80);
    let client = SocketAddr::new(hosts.second.address(), 5_000);
    let mut config = switch.config();
    let server = (&hosts.first, hosts.first.address());
    switch.add_server(&mut config, server, answering::SERVER, answering::key())?;
    config.places.push(Place {
        at: service.into(),
        service: service.into(),
        number: ServiceId(0),
        server: answering::SERVER,
    });
    let flow = Flow::new(client.into(), service.into()).expect("both addresses are IPv4 and not zero");
    Ok((switch.load(&config)?, flow))
}

fn start_daemon(
    switch: &LabSwitch,
    server: &Host,
    (port, core): (u16, usize),
    setting: &Setting,
) -> Result<Process, Error> {
    let listen = SocketAddr::new(switch.addresses()[0], port);
    let launch = Launch::new(&setting.programs.lab)
        .arg("switch-answers")
        .args([listen.to_string(), server.address().to_string()])
        .wrapper(["taskset", "-c", &core.to_string()]);
    let mut process = switch.spawn(&launch)?;
    let deadline = Instant::now() + READY_TIMEOUT;
    while !process.stdout()?.contains(answering::READY) {
        if process.exit_status().is_some() || Instant::now() > deadline {
            return Err(Error::process("the daemon that answers control messages", process.last_output()));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(process)
}

/// Asks for an entry that does not exist. Returns the time of the round trip in µs.
fn get(agent: &mut Agent, flow: Flow) -> Result<f64, Error> {
    let (answer, time) = agent.ask_timed(Request::Get { flow })?;
    if answer.status == Status::NoEntry {
        Ok(time.as_secs_f64() * 1e6)
    } else {
        Err(Error::process("a control message was answered wrongly", format!("{answer:?}")))
    }
}
