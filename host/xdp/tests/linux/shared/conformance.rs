//! The conformance scenarios of `Transport` between stacks that share interfaces with their hosts' kernels.

use std::net::SocketAddr;
use std::time::Duration;

use spillway_net::Clock;
use spillway_transport::Time;
use spillway_transport::conformance::{Command, Probe, Rig, SCENARIOS, Side};
use spillway_xdp::Context;

use super::pair::{Family, OURS, Pair, context};

/// Two contexts, which one thread runs alternately.
struct Hosts {
    clock: Clock,
    accepting: Context<Probe>,
    connecting: Context<Probe>,
    listener: SocketAddr,
}

impl Hosts {
    fn new(pair: &Pair) -> Hosts {
        Hosts {
            clock: Clock::start(),
            accepting: context(pair, pair.adapter().unwrap(), Probe::new()),
            connecting: context(pair, pair.client_adapter().unwrap(), Probe::new()),
            listener: SocketAddr::from((pair.family.server(), OURS)),
        }
    }
}

impl Rig for Hosts {
    fn command(&mut self, side: Side, command: Command<'_>) {
        let context = if side == Side::Accepting { &mut self.accepting } else { &mut self.connecting };
        context.command(|now, probe, port| command(now, probe, &mut port.stack));
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

    /// A port that belongs to the kernel, where no socket listens.
    fn refusing_address(&self) -> SocketAddr {
        SocketAddr::new(self.listener.ip(), OURS + 1)
    }
}

pub fn every_scenario_passes(family: Family) {
    let Some(pair) = Pair::of(family, "xdp-contract") else { return };
    for (name, scenario) in SCENARIOS {
        println!("{name}");
        scenario(&mut Hosts::new(&pair));
    }
    pair.lab.close().unwrap();
}
