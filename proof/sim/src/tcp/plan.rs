//! What a world is like, drawn from its seed.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::Duration;

use spillway_tcp::isn::Key;
use spillway_tcp::recovery::Algorithm;
use spillway_tcp::{KeepAlive, Listener, Settings};

use super::canary::Canary;
use super::frames::{address_apart, address_of, mac_of};
use super::moves::When;
use super::path::Conditions;
use super::program::Manners;
use super::rogue::Deeds;
use crate::rng::Rng;

/// Every host listens here,
pub(crate) const PORT: u16 = 80;
/// and here, with a gate.
pub(crate) const GATED_PORT: u16 = 81;

/// Of any stack.
const WINDOW_MAX: u64 = 4 << 20;

/// What is chosen once for a world.
pub(crate) struct Plan {
    /// Hosts with a stack.
    pub(crate) hosts: usize,
    pub(crate) manners: Manners,
    /// What paths are like; each is drawn anew.
    pub(crate) weather: Weather,
    /// Between two faults, at most. 0: there are none.
    pub(crate) fault_ns_max: u64,
    /// How long a fault lasts, at most.
    pub(crate) silence_ns_max: u64,
    /// Frames that wait for a host that is busy.
    pub(crate) inbox_max: usize,
    /// A host begins its turn at most so long after something came.
    pub(crate) turn_delay_ns: u64,
    pub(crate) clocks_differ: bool,
    /// A connection may be reset though both ends behave: of one that began with a cookie nothing is known when its first
    /// bytes are lost.
    pub(crate) may_break: bool,
    /// Listeners have so little room that they answer SYNs with cookies.
    pub(crate) is_crowded: bool,
    /// There may be too little room for what comes out of order.
    pub(crate) has_little_room: bool,
    /// When connections go from one stack of a host to another.
    pub(crate) moves: When,
    stacks: Stacks,
    /// Somebody keeps no rules.
    pub(crate) rogue: Option<Deeds>,
    tables: Tables,
}

/// How many stacks a host has.
#[derive(Clone, Copy, Debug)]
struct Stacks {
    many: usize,
    /// Whether all but the first have addresses of their own, and take only what moves.
    are_apart: bool,
}

/// Bounds of the stacks.
struct Tables {
    half_open_max: u32,
    is_kept_alive: bool,
    give_up_after: Duration,
}

/// What all paths of a world have in common: the most of each.
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
        let rogue = (is_exact || canary.is_none() && rng.chance(1, 3)).then(|| Deeds {
            floods: is_crowded && rng.chance(1, 2),
            forges: is_exact || rng.chance(1, 2),
            is_exact,
        });
        let often = rng.scale(1, 1000);
        let moves = if canary.is_some_and(Canary::is_of_moves) {
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
        let many = if moves == When::Never { 1 } else { rng.range(2, 3) as usize }; // a few
        Plan {
            has_little_room: canary.is_none() && rng.chance(1, 2),
            moves,
            rogue,
            stacks: Stacks { many, are_apart: rng.chance(1, 2) },
            hosts: rng.range(2, 4) as usize, // a few
            manners: Manners {
                clients_max,
                pause_ns_max: rng.scale(1_000_000, 200_000_000),
                rude_in_1000: if is_crowded || canary.is_some() { 0 } else { rng.pick(&[0, 50]) },
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

    /// What a host's stacks are told: the first has the host's address.
    pub(crate) fn stacks(&self, rng: &mut Rng, host: usize) -> Vec<Settings> {
        let mut key = [0; 16];
        rng.fill(&mut key);
        let mut ips = vec![address_of(host); self.stacks.many];
        if self.stacks.are_apart {
            ips.iter_mut().enumerate().for_each(|(index, ip)| *ip = address_apart(*ip, index));
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
        // What moves at every frame is copied at every frame.
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
    /// One direction between two hosts.
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
