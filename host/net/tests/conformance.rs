//! The conformance scenarios of the transport's contract, on loopback.

use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use spillway_net::{Clock, Config, Context, Listeners};
use spillway_transport::Time;
use spillway_transport::conformance::{Command, Probe, Rig, SCENARIOS, Side};

struct Loopback {
    clock: Clock,
    accepting: Context<Probe>,
    connecting: Context<Probe>,
    listener: SocketAddr,
    /// A bound socket that never listens: reserves a port that refuses connections.
    refusing: std::os::fd::OwnedFd,
}

impl Loopback {
    fn new(address: &str, config: &Config) -> Option<Loopback> {
        let address: SocketAddr = address.parse().unwrap();
        // `None` on a host without this address family.
        TcpListener::bind(address).ok()?;
        let clock = Clock::start();
        let bound = Listeners::bind(&[address], 1, config).unwrap();
        let listener = bound.addresses()[0];
        let context = |listeners| {
            Context::new(config.clone(), listeners, clock, Probe::new(), |notice| panic!("{notice}")).unwrap()
        };
        let accepting = context(bound.into_contexts().remove(0));
        let connecting = context(Default::default());
        let family = if address.is_ipv4() {
            rustix::net::AddressFamily::INET
        } else {
            rustix::net::AddressFamily::INET6
        };
        let refusing = rustix::net::socket(family, rustix::net::SocketType::STREAM, None).unwrap();
        rustix::net::bind(&refusing, &address).unwrap();
        Some(Loopback { clock, accepting, connecting, listener, refusing })
    }
}

impl Rig for Loopback {
    fn command(&mut self, side: Side, command: Command<'_>) {
        let context = if side == Side::Accepting { &mut self.accepting } else { &mut self.connecting };
        context.command(|now, probe, sockets| command(now, probe, sockets));
    }

    fn step(&mut self) {
        for context in [&mut self.connecting, &mut self.accepting] {
            context.turn(Some(Duration::from_micros(50))).unwrap();
        }
    }

    fn now(&self) -> Time {
        self.clock.now()
    }

    fn listener(&self) -> SocketAddr {
        self.listener
    }

    fn refusing_address(&self) -> SocketAddr {
        rustix::net::getsockname(&self.refusing).unwrap().try_into().unwrap()
    }
}

fn run(address: &str, config: &Config) {
    for (name, scenario) in SCENARIOS {
        println!("{name}");
        let Some(mut rig) = Loopback::new(address, config) else {
            println!("skipped: this host has no {address}");
            return;
        };
        scenario(&mut rig);
    }
}

#[test]
fn all_scenarios_pass_over_ipv4() {
    run("127.0.0.1:0", &Config::default());
}

#[test]
fn all_scenarios_pass_over_ipv6() {
    run("[::1]:0", &Config::default());
}

#[test]
fn all_scenarios_pass_with_input_patience() {
    run("127.0.0.1:0", &Config { input_patience: Duration::from_millis(1), ..Config::default() });
}
