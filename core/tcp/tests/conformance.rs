//! Runs all scenarios of the transport contract, `spillway_transport::conformance`, on the stack.

mod pair;

use std::net::SocketAddr;
use std::time::Duration;

use pair::{PORT, Pair, listener_ipv6, settings, settings_ipv6};
use spillway_tcp::Settings;
use spillway_transport::Time;
use spillway_transport::conformance::{Command, Probe, Rig, SCENARIOS, Side};

struct StackRig {
    pair: Pair<Probe>,
    listener: SocketAddr,
}

impl StackRig {
    fn new(change: impl Fn(&mut Settings)) -> StackRig {
        StackRig::with(settings, SocketAddr::from(([10, 0, 0, 1], PORT)), change)
    }

    fn over_ipv6(change: impl Fn(&mut Settings)) -> StackRig {
        StackRig::with(settings_ipv6, listener_ipv6(1), change)
    }

    fn with(settings: fn(u8) -> Settings, listener: SocketAddr, change: impl Fn(&mut Settings)) -> StackRig {
        let hosts = [1, 2].map(|host| {
            let mut settings = settings(host);
            change(&mut settings);
            settings
        });
        StackRig { pair: Pair::new(hosts, [Probe::new(), Probe::new()]), listener }
    }

    /// Loses one frame in 20. `flags_at`: offset of the TCP flags in a frame.
    fn lose_frames(&mut self, seed: u64, flags_at: usize) {
        let mut state = seed;
        self.pair.filter = Box::new(move |_, frame| {
            // Resets are not lost: a peer with nothing to send would never detect the end of its connection.
            let is_reset = frame.get(flags_at).is_some_and(|flags| flags & 4 != 0);
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            is_reset || !(state >> 33).is_multiple_of(20)
        });
    }
}

impl Rig for StackRig {
    fn command(&mut self, side: Side, act: Command<'_>) {
        let host = if side == Side::Accepting { 0 } else { 1 };
        self.pair.command(host, |now, probe, stack| act(now, probe, stack));
    }

    fn step(&mut self) {
        self.pair.step(Duration::from_micros(50));
    }

    fn now(&self) -> Time {
        self.pair.now
    }

    fn listener(&self) -> SocketAddr {
        self.listener
    }

    fn refusing_address(&self) -> SocketAddr {
        SocketAddr::new(self.listener.ip(), PORT + 1)
    }
}

#[test]
fn every_scenario_passes() {
    for (name, scenario) in SCENARIOS {
        println!("{name}");
        scenario(&mut StackRig::new(|_| {}));
    }
}

/// Offset of the target port in a frame, over IPv4 and IPv6.
const PORT_AT: [usize; 2] = [14 + 20 + 2, 14 + 40 + 2];

/// Whether a frame belongs to one of eight queues, if the interface chooses them by the port.
fn is_of_queue<const AT: usize>(frame: &[u8]) -> bool {
    frame.get(AT + 1).is_some_and(|port| port % 8 == 3)
}

/// Connections are opened again from other ports until their packets arrive at the stack's own queue. The
/// application gets no event of this.
#[test]
fn every_scenario_passes_at_one_of_eight_queues() {
    for (name, scenario) in SCENARIOS {
        println!("{name}");
        let mut rig = StackRig::new(|_| {});
        rig.pair.is_misdirected = Some(|frame| !is_of_queue::<{ PORT_AT[0] }>(frame));
        scenario(&mut rig);
        let mut rig = StackRig::over_ipv6(|_| {});
        rig.pair.is_misdirected = Some(|frame| !is_of_queue::<{ PORT_AT[1] }>(frame));
        scenario(&mut rig);
        // No port leads to this stack's queue: after the last attempt the connections stay as they are.
        let mut rig = StackRig::new(|_| {});
        rig.pair.is_misdirected = Some(|_| true);
        scenario(&mut rig);
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
            rig.lose_frames(seed, 14 + 20 + 13);
            scenario(&mut rig);
        }
    }
}

#[test]
fn every_scenario_passes_over_ipv6() {
    for mtu in [1280, 1500, 9000] {
        for (name, scenario) in SCENARIOS {
            println!("{name}, {mtu}");
            scenario(&mut StackRig::over_ipv6(|settings| settings.mtu = mtu));
        }
    }
}

#[test]
fn every_scenario_passes_over_ipv6_with_lost_frames() {
    for seed in 1..30_u64 {
        for (name, scenario) in SCENARIOS {
            println!("{name}, {seed}");
            let mut rig = StackRig::over_ipv6(|_| {});
            rig.lose_frames(seed, 14 + 40 + 13);
            scenario(&mut rig);
        }
    }
}
