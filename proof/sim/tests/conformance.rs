//! The simulated transport fulfils the contract of [`Transport`](spillway_transport::Transport).

use std::net::SocketAddr;
use std::time::Duration;

use spillway_sim::agenda::NetworkEvent;
use spillway_sim::conditions::NetworkConditions;
use spillway_sim::driver;
use spillway_sim::network::Network;
use spillway_transport::Time;
use spillway_transport::conformance::{Command, Probe, Rig, SCENARIOS, Side};

/// Host 0 accepts, host 1 connects.
struct SimRig {
    network: Network,
    probes: [Probe; 2],
}

impl SimRig {
    fn new(seed: u64, conditions: NetworkConditions) -> SimRig {
        let mut network = Network::new(seed, conditions);
        network.add_host([10, 0, 0, 1].into(), &[80]);
        network.add_host([10, 0, 0, 2].into(), &[]);
        SimRig { network, probes: [Probe::new(), Probe::new()] }
    }
}

impl Rig for SimRig {
    fn command(&mut self, side: Side, act: Command<'_>) {
        let host = if side == Side::Accepting { 0 } else { 1 };
        driver::command(&mut self.network, host, &mut self.probes[host], |now, probe, port| {
            act(now, probe, port)
        });
    }

    fn step(&mut self) {
        // An empty event advances the time if no other event is near.
        let next_step_at = self.network.now() + Duration::from_micros(50);
        if self.network.next_at().is_none_or(|at| at > next_step_at) {
            self.network.queue_after(Duration::from_micros(50), NetworkEvent::World(0));
        }
        if let Some(event) = self.network.pop() {
            driver::handle(&mut self.network, event, |network, host| {
                driver::turn(network, host, &mut self.probes[host]);
            });
        }
    }

    fn now(&self) -> Time {
        self.network.now()
    }

    fn listener(&self) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, 1], 80))
    }

    fn refusing_address(&self) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, 1], 81))
    }
}

#[test]
fn fulfils_the_contract_under_mild_conditions() {
    for (name, scenario) in SCENARIOS {
        println!("{name}");
        scenario(&mut SimRig::new(1, NetworkConditions::mild()));
    }
}

#[test]
fn fulfils_the_contract_with_short_segments_and_events() {
    let conditions =
        NetworkConditions { segment_bytes_max: 2000, event_bytes_max: 1500, ..NetworkConditions::mild() };
    for (name, scenario) in SCENARIOS {
        for seed in 0..3 {
            println!("{name}, seed {seed}");
            scenario(&mut SimRig::new(seed, conditions));
        }
    }
}
