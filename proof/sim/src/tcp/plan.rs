//! The parameters of a world, drawn from its seed.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::Duration;

use spillway_tcp::isn::Key;
use spillway_tcp::recovery::Algorithm;
use spillway_tcp::{KeepAlive, Listener, Settings};

use super::canary::Canary;
use super::frames::{address_of, mac_of, own_address};
use super::moves::When;
use super::path::Conditions;
use super::program::ProgramBehaviour;
use super::rogue::RogueSettings;
use crate::rng::Rng;

/// Every host listens on this port.
pub(crate) const PORT: u16 = 80;
/// Every host listens on this port, too, with a gate.
pub(crate) const GATED_PORT: u16 = 81;

/// Bound of receive windows and reassembly, bytes.
const WINDOW_MAX: u64 = 4 << 20;

pub(crate) struct Plan {
    pub(crate) hosts: usize,
    pub(crate) behaviour: ProgramBehaviour,
    /// Bounds of the paths' conditions; each path draws its own.
    pub(crate) weather: Weather,
    /// Maximum time between two faults; 0: no faults.
    pub(crate) fault_ns_max: u64,
    /// Maximum duration of a fault.
    pub(crate) silence_ns_max: u64,
    /// Bound of a host's receive queue, frames.
    pub(crate) inbox_max: usize,
    /// Maximum time between an arrival and the host's turn.
    pub(crate) turn_delay_ns: u64,
    pub(crate) clocks_differ: bool,
    /// A connection may be reset although both ends behave: a listener with cookies knows nothing of a connection
    /// whose first bytes are lost.
    pub(crate) may_break: bool,
    /// Listeners have so little room that they answer SYNs with cookies.
    pub(crate) is_crowded: bool,
    /// Reassembly may have too little room for what comes out of order.
    pub(crate) has_little_room: bool,
    pub(crate) moves: When,
    stacks: Stacks,
    /// What the rogue host does; `None`: no rogue host.
    pub(crate) rogue: Option<RogueSettings>,
    tables: Tables,
}

#[derive(Clone, Copy, Debug)]
struct Stacks {
    count: usize,
    /// All stacks but the first have addresses of their own, and get only connections that move.
    have_own_addresses: bool,
}

struct Tables {
    half_open_max: u32,
    is_kept_alive: bool,
    give_up_after: Duration,
}

/// Maxima of the paths of a world.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Weather {
    loss_ppm: u64,
    reorder_ppm: u64,
    duplicate_ppm: u64,
    corrupt_ppm: u64,
    replay_ppm: u64,
    delay_ns_max: u64,
    is_narrow: bool,
}

impl Plan {
    pub(crate) fn drawn(rng: &mut Rng, canary: Option<Canary>) -> Plan {
        let is_crowded = canary.is_none() && rng.chance(1, 6);
        let may_time_out = canary.is_none() && !is_crowded && rng.chance(1, 4);
        let clients_max = rng.scale(2, 40) as usize; // fits
        let weather = Weather {
            loss_ppm: rng.pick(&[0, 1_000, 10_000, 30_000, 100_000]),
            reorder_ppm: rng.pick(&[0, 10_000, 200_000]),
            duplicate_ppm: rng.pick(&[0, 0, 10_000, 50_000]),
            corrupt_ppm: rng.pick(&[0, 1_000, 20_000]),
            replay_ppm: rng.pick(&[0, 0, 10_000]),
            delay_ns_max: rng.scale(20_000, 100_000_000),
            is_narrow: rng.chance(1, 3),
        };
        let weather = match canary {
            Some(Canary::TakeDamaged) => Weather { corrupt_ppm: 20_000, ..weather },
            Some(Canary::ForgetSack | Canary::ForgetLate) => {
                Weather { reorder_ppm: 200_000, loss_ppm: 100_000, delay_ns_max: 1_000_000, ..weather }
            }
            Some(_) => Weather { delay_ns_max: 1_000_000, loss_ppm: 1_000, is_narrow: false, ..weather },
            None => weather,
        };
        let is_exact = canary == Some(Canary::ExactReset);
        let rogue = (is_exact || canary.is_none() && rng.chance(1, 3)).then(|| RogueSettings {
            floods: is_crowded && rng.chance(1, 2),
            forges: is_exact || rng.chance(1, 2),
            is_exact,
        });
        let often = rng.scale(1, 1000);
        let moves = if canary.is_some_and(Canary::is_in_moves) {
            When::Always
        } else {
            rng.pick(&[
                When::Never,
                When::Never,
                When::Always,
                When::Sometimes(often),
                When::Sometimes(often),
            ])
        };
        let count = if moves == When::Never { 1 } else { rng.range(2, 3) as usize }; // a few
        Plan {
            has_little_room: canary.is_none() && rng.chance(1, 2),
            moves,
            rogue,
            stacks: Stacks { count, have_own_addresses: rng.chance(1, 2) },
            hosts: rng.range(2, 4) as usize, // a few
            behaviour: ProgramBehaviour {
                clients_max,
                pause_ns_max: rng.scale(1_000_000, 200_000_000),
                early_ends_in_1000: if is_crowded || canary.is_some() { 0 } else { rng.pick(&[0, 50]) },
                grant_bytes: rng.scale(500, 256 * 1024),
                gate_ns_max: rng.scale(100_000, 500_000_000),
                may_time_out,
            },
            weather,
            fault_ns_max: if canary.is_some() { 0 } else { rng.pick(&[0, 50_000_000, 1_000_000_000]) },
            silence_ns_max: if may_time_out { 400_000_000_000 } else { rng.scale(1_000_000, 8_000_000_000) },
            inbox_max: rng.scale(16, 2_000) as usize, // fits
            turn_delay_ns: rng.scale(1_000, 1_000_000),
            clocks_differ: rng.chance(3, 4),
            may_break: may_time_out || is_crowded,
            is_crowded,
            tables: Tables {
                half_open_max: if is_crowded { rng.scale(1, 4) as u32 } else { 1024 },
                is_kept_alive: true,
                give_up_after: Duration::from_secs(if may_time_out { rng.range(10, 120) } else { 120 }),
            },
        }
    }

    /// Draws the settings of a host's stacks; the first stack has the host's address.
    pub(crate) fn stacks(&self, rng: &mut Rng, host: usize) -> Vec<Settings> {
        let mut key = [0; 16];
        rng.fill(&mut key);
        let mut ips = vec![address_of(host); self.stacks.count];
        if self.stacks.have_own_addresses {
            ips.iter_mut().enumerate().for_each(|(index, ip)| *ip = own_address(*ip, index));
        }
        ips.into_iter().map(|ip| self.settings(rng, ip, Key(key))).collect()
    }

    fn settings(&self, rng: &mut Rng, ip: Ipv4Addr, key: Key) -> Settings {
        let mut settings = Settings::new(mac_of(ip), ip, 16, key);
        let listener = |port, is_gated| Listener { address: SocketAddrV4::new(ip, port), is_gated };
        settings.listeners = vec![listener(PORT, false), listener(GATED_PORT, true)];
        settings.mtu = rng.pick(&[576, 1280, 1500, 1500, 1500, 9000]);
        settings.connections_max = 4096;
        settings.half_open_max = self.tables.half_open_max;
        settings.time_wait_max = 4096;
        // A connection that moves at every frame is copied at every frame.
        let most = if self.moves == When::Always { 32 * 1024 } else { 512 * 1024 };
        settings.send_buffer_bytes = rng.scale(6_000, most) as usize; // fits
        settings.receive_window_max = rng.scale(65_535, WINDOW_MAX) as u32; // fits
        settings.initial_window = rng.scale(500, 65_535) as u16; // fits
        settings.reassembly_bytes_max =
            if self.has_little_room { rng.scale(4_000, 512 * 1024) as usize } else { WINDOW_MAX as usize }; // fits
        settings.is_nagle = rng.chance(1, 3);
        settings.delayed_ack = Duration::from_micros(rng.scale(100, 200_000));
        settings.give_up_after = self.tables.give_up_after;
        settings.recovery.algorithm = rng.pick(&[Algorithm::Cubic, Algorithm::NewReno]);
        settings.recovery.rto_min = Duration::from_millis(rng.scale(5, 300));
        settings.recovery.tail_loss_probe = rng.chance(3, 4);
        settings.keep_alive = self.tables.is_kept_alive.then(|| KeepAlive {
            idle: Duration::from_secs(rng.range(5, 60)),
            interval: Duration::from_secs(rng.range(3, 10)),
            probes: 9,
        });
        settings
    }
}

impl Weather {
    /// Draws one direction between two hosts.
    pub(crate) fn path(&self, rng: &mut Rng) -> Conditions {
        let most = |rng: &mut Rng, most: u64| if most == 0 { 0 } else { rng.range(0, most) };
        let delay_ns = rng.scale(5_000, self.delay_ns_max);
        Conditions {
            delay_ns,
            jitter_ns: most(rng, delay_ns),
            loss_ppm: most(rng, self.loss_ppm),
            duplicate_ppm: most(rng, self.duplicate_ppm),
            reorder_ppm: most(rng, self.reorder_ppm),
            reorder_ns_max: rng.scale(1_000, 500_000_000),
            corrupt_ppm: most(rng, self.corrupt_ppm),
            replay_ppm: most(rng, self.replay_ppm),
            bits_per_s: if self.is_narrow { rng.scale(1_000_000, 1_000_000_000) } else { 0 },
            queue_bytes_max: rng.scale(20_000, 2_000_000),
        }
    }
}
