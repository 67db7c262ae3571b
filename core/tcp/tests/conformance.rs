//! The stack fulfils the contract of the transport boundary: all scenarios of `spillway_transport::conformance`.

mod pair;

use std::net::SocketAddr;
use std::time::Duration;

use pair::{PORT, Pair, settings};
use spillway_tcp::Settings;
use spillway_transport::Time;
use spillway_transport::conformance::{Command, Probe, Rig, SCENARIOS, Side};

struct StackRig(Pair<Probe>);

impl StackRig {
    fn new(change: impl Fn(&mut Settings)) -> StackRig {
        let hosts = [1, 2].map(|host| {
            let mut settings = settings(host);
            change(&mut settings);
            settings
        });
        StackRig(Pair::new(hosts, [Probe::new(), Probe::new()]))
    }
}

impl Rig for StackRig {
    fn command(&mut self, side: Side, act: Command<'_>) {
        let host = if side == Side::Accepting { 0 } else { 1 };
        self.0.command(host, |now, probe, stack| act(now, probe, stack));
    }

    fn step(&mut self) {
        self.0.step(Duration::from_micros(50));
    }

    fn now(&self) -> Time {
        self.0.now
    }

    fn listener(&self) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, 1], PORT))
    }

    fn nobody(&self) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, 1], PORT + 1))
    }
}

#[test]
fn every_scenario_passes() {
    for (name, scenario) in SCENARIOS {
        println!("{name}");
        scenario(&mut StackRig::new(|_| {}));
    }
}

#[test]
fn every_scenario_passes_with_an_initial_window_of_0() {
    for (name, scenario) in SCENARIOS {
        println!("{name}");
        scenario(&mut StackRig::new(|settings| settings.initial_window = 0));
    }
}

#[test]
fn every_scenario_passes_with_small_and_large_packets() {
    for mtu in [576, 9000] {
        for (name, scenario) in SCENARIOS {
            println!("{name}, {mtu}");
            scenario(&mut StackRig::new(|settings| settings.mtu = mtu));
        }
    }
}

#[test]
fn every_scenario_passes_with_lost_frames() {
    for seed in 1..30_u64 {
        for (name, scenario) in SCENARIOS {
            println!("{name}, {seed}");
            let mut rig = StackRig::new(|_| {});
            let mut state = seed;
            rig.0.filter = Box::new(move |_, frame| {
                // Resets are not dropped: a peer with nothing to send would never notice that its connection is over.
                let is_reset = frame.get(47).is_some_and(|flags| flags & 4 != 0);
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                is_reset || (state >> 33) % 20 != 0
            });
            scenario(&mut rig);
        }
    }
}
