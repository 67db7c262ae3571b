//! The parameters of a world of user-level stacks, drawn from its seed.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use spillway_handoff::{Limits, MoveTimes};
use spillway_tcp::isn::Key;
use spillway_tcp::recovery::Algorithm;
use spillway_tcp::{KeepAlive, Listener, Resolver, Settings};

use super::frames::{Family, address_of, mac_of, own_address};
use super::moves::When;
use super::path::Conditions;
use super::planted_fault::PlantedFault;
use super::program::ProgramBehaviour;
use super::rogue::RogueSettings;
use super::worlds::Worlds;
use crate::rng::Rng;

/// Every host listens on this port.
pub(crate) const PORT: u16 = 80;
/// Every host also listens on this port, with a gate.
pub(crate) const GATED_PORT: u16 = 81;

/// Bytes of the smallest IPv6 packet that every link must carry (RFC 8200 §5).
const IPV6_MTU_MIN: u16 = 1280;

/// In worlds with many moves ([`Worlds::Moving`]) one follows at least this many of a thousand frames.
const OFTEN_PER_1000: u64 = 100;
/// In worlds with many moves one in this many moves in place is made: each takes as much CPU time as many frames.
const IN_PLACE_ONE_IN: u64 = 32;
/// Longest delay in worlds with many moves: with longer ones a move takes longer than most connections live.
const MOVING_DELAY_NS_MAX: u64 = 2_000_000;

/// Largest receive window and largest reassembly buffer, bytes.
const WINDOW_MAX: u64 = 4 << 20;

pub(crate) struct Plan {
    pub(crate) hosts: usize,
    pub(crate) family: Family,
    pub(crate) behaviour: ProgramBehaviour,
    pub(crate) conditions_max: ConditionsMax,
    /// Maximum time between two faults, nanoseconds; 0: no faults.
    pub(crate) fault_ns_max: u64,
    /// Maximum duration of a fault, nanoseconds.
    pub(crate) silence_ns_max: u64,
    /// Maximum length of a host's receive queue, frames.
    pub(crate) receive_queue_max: usize,
    /// Maximum time between an arrival and the host's turn, nanoseconds.
    pub(crate) turn_delay_ns: u64,
    pub(crate) clocks_differ: bool,
    /// Connections may break although both ends keep to the protocol: by timeouts, or because a listener with
    /// cookies has no state of a connection whose first bytes were lost.
    pub(crate) may_break: bool,
    /// Listeners allow so few half-open connections that they answer SYNs with cookies.
    pub(crate) is_crowded: bool,
    /// Reassembly may have no room for some bytes that arrive out of order.
    pub(crate) has_little_room: bool,
    pub(crate) moves: When,
    /// See [`Moves`](super::moves::Moves).
    pub(crate) in_place_one_in: u64,
    pub(crate) switch: SwitchPlan,
    /// `None`: no rogue host.
    pub(crate) rogue: Option<RogueSettings>,
    tables: Tables,
}

/// The switch, and the servers whose connections move through it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SwitchPlan {
    /// Servers of each host; with one server nothing can move.
    pub(crate) servers_per_host: usize,
    /// Datagrams between servers have paths of their own, beside the switch: a state may overtake the last frames of its
    /// connection. Otherwise they pass the switch like all frames of their server.
    pub(crate) has_transfer_paths: bool,
    /// Targets import at addresses and ports of their own; otherwise at the service's, with their own MACs.
    pub(crate) imports_at_places: bool,
    /// Size of the switch's table of flows.
    pub(crate) flows_max: usize,
    /// The switch restarts and stalls.
    pub(crate) has_faults: bool,
    pub(crate) owner_timeout: Duration,
    pub(crate) heartbeat: Duration,
    pub(crate) times: MoveTimes,
    pub(crate) limits: Limits,
    /// Maximum number of connections of a server that is not the original owner.
    pub(crate) imports_max: u32,
}

/// Half of the worlds have the times of servers in one rack; in the others all attempts of a message take at least as long
/// as a round trip.
fn draw_times(rng: &mut Rng, delay_ns_max: u64) -> MoveTimes {
    let lifetime = Duration::from_nanos(rng.log_uniform(300_000_000, 5_000_000_000));
    if rng.chance(1, 2) {
        return MoveTimes { lifetime, ..MoveTimes::default() };
    }
    let first_ns_min = 1_000_000.max(delay_ns_max / 8);
    let first_interval =
        Duration::from_nanos(rng.log_uniform(first_ns_min, 30_000_000.max(2 * first_ns_min)));
    MoveTimes {
        first_interval,
        state_within: first_interval * 100,
        forward_for: Duration::from_nanos(rng.log_uniform(1_000_000, 1_000_000_000)),
        lifetime,
    }
}

fn draw_limits(rng: &mut Rng) -> Limits {
    let is_tight = rng.chance(1, 4);
    if !is_tight {
        return Limits::default();
    }
    Limits {
        moves_max: rng.pick(&[1, 3, 100]),
        held_bytes_max: rng.pick(&[2_000, 100_000]),
        state_bytes_max: rng.pick(&[20_000, 1_000_000]),
        forwards_per_s: rng.pick(&[0, 10, 1_000]),
        ..Limits::default()
    }
}

/// A queue before a server's link holds at most this time of traffic, so that heartbeats do not wait for long.
const QUEUED_FOR_MAX: Duration = Duration::from_millis(50);

struct Tables {
    half_open_max: u32,
    is_kept_alive: bool,
    /// Retransmission timeouts of at least 200 ms, and acknowledgements within 20 ms.
    has_slow_timers: bool,
    user_timeout: Duration,
}

/// The maxima from which the conditions of each path are drawn.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConditionsMax {
    loss_ppm: u64,
    reorder_ppm: u64,
    duplicate_ppm: u64,
    corrupt_ppm: u64,
    replay_ppm: u64,
    delay_ns_max: u64,
    is_narrow: bool,
}

impl Plan {
    pub(crate) fn draw(rng: &mut Rng, worlds: Worlds) -> Plan {
        let (planted, is_moving) = (worlds.planted(), worlds.are_moving());
        let is_crowded = planted.is_none() && rng.chance(1, 6);
        let may_time_out = planted.is_none() && !is_crowded && rng.chance(1, 4);
        let clients_max = rng.log_uniform(2, 40) as usize; // fits
        let conditions_max = ConditionsMax {
            loss_ppm: rng.pick(&[0, 1_000, 10_000, 30_000, 100_000]),
            reorder_ppm: rng.pick(&[0, 10_000, 200_000]),
            duplicate_ppm: rng.pick(&[0, 0, 10_000, 50_000]),
            corrupt_ppm: rng.pick(&[0, 1_000, 20_000]),
            replay_ppm: rng.pick(&[0, 0, 10_000]),
            delay_ns_max: rng.log_uniform(20_000, if is_moving { MOVING_DELAY_NS_MAX } else { 100_000_000 }),
            is_narrow: rng.chance(1, 3),
        };
        let conditions_max = match planted {
            Some(PlantedFault::TakeDamaged) => ConditionsMax { corrupt_ppm: 50_000, ..conditions_max },
            Some(PlantedFault::ForgetSack | PlantedFault::ForgetLate) => ConditionsMax {
                reorder_ppm: 200_000,
                loss_ppm: 100_000,
                delay_ns_max: 1_000_000,
                ..conditions_max
            },
            Some(_) => {
                ConditionsMax { delay_ns_max: 1_000_000, loss_ppm: 1_000, is_narrow: false, ..conditions_max }
            }
            None => conditions_max,
        };
        let is_exact = planted == Some(PlantedFault::ExactReset);
        let rogue = (is_exact || planted.is_none() && rng.chance(1, 3)).then(|| RogueSettings {
            floods: is_crowded && rng.chance(1, 2),
            forges: is_exact || rng.chance(1, 2),
            is_exact,
        });
        let per_1000 = rng.log_uniform(1, 1000);
        let moves = if planted.is_some_and(PlantedFault::strikes_in_moves) {
            When::Always
        } else {
            let moves = rng.pick(&[
                When::Never,
                When::Never,
                When::Always,
                When::Sometimes(per_1000),
                When::Sometimes(per_1000),
            ]);
            match (is_moving, moves) {
                (true, When::Never) => When::Always,
                (true, When::Sometimes(per_1000)) => When::Sometimes(per_1000.max(OFTEN_PER_1000)),
                _ => moves,
            }
        };
        let may_fail = planted.is_none() && moves != When::Never;
        let switch = SwitchPlan {
            servers_per_host: if moves == When::Never { 1 } else { rng.range(2, 3) as usize }, // fits: a few
            has_transfer_paths: rng.chance(1, 2),
            imports_at_places: rng.chance(1, 2),
            flows_max: match may_fail {
                true if is_moving => rng.pick(&[8, 1024, 1024, 1024]),
                true => rng.pick(&[2, 8, 1024, 1024]),
                false => 1024,
            },
            has_faults: may_fail && rng.chance(1, 2),
            owner_timeout: Duration::from_secs(1),
            heartbeat: Duration::from_nanos(rng.log_uniform(10_000_000, 50_000_000)),
            times: draw_times(rng, conditions_max.delay_ns_max),
            limits: draw_limits(rng),
            imports_max: match may_fail {
                true if is_moving => rng.pick(&[10, 1000, 1000, 1000]),
                true => rng.pick(&[1, 10, 1000, 1000]),
                false => 1000,
            },
        };
        // Planted faults alter frames at offsets of IPv4.
        let family = if planted.is_none() && rng.chance(1, 3) { Family::V6 } else { Family::V4 };
        Plan {
            family,
            has_little_room: planted.is_none() && rng.chance(1, 2),
            moves,
            in_place_one_in: if is_moving { IN_PLACE_ONE_IN } else { 1 },
            rogue,
            switch,
            hosts: rng.range(2, 4) as usize, // fits: a few
            behaviour: ProgramBehaviour {
                clients_max,
                pause_ns_max: rng.log_uniform(1_000_000, 200_000_000),
                early_ends_per_1000: if is_crowded || planted.is_some() { 0 } else { rng.pick(&[0, 50]) },
                grant_bytes: rng.log_uniform(500, 256 * 1024),
                unwritten_bytes_max: 64 * 1024,
                gate_ns_max: rng.log_uniform(100_000, 500_000_000),
                may_time_out,
            },
            conditions_max,
            fault_ns_max: match planted {
                Some(_) => 0,
                // Faults disturb moves most: they are more frequent in worlds with moves.
                None if may_fail => rng.pick(&[0, 20_000_000, 50_000_000, 200_000_000, 1_000_000_000]),
                None => rng.pick(&[0, 50_000_000, 1_000_000_000]),
            },
            silence_ns_max: if may_time_out {
                400_000_000_000
            } else {
                rng.log_uniform(1_000_000, 8_000_000_000)
            },
            receive_queue_max: rng.log_uniform(16, 2_000) as usize, // fits
            turn_delay_ns: rng.log_uniform(1_000, 1_000_000),
            clocks_differ: rng.chance(3, 4),
            may_break: may_time_out || is_crowded,
            is_crowded,
            tables: Tables {
                half_open_max: if is_crowded { rng.log_uniform(1, 4) as u32 } else { 1024 },
                is_kept_alive: true,
                has_slow_timers: false,
                user_timeout: Duration::from_secs(if may_time_out { rng.range(10, 120) } else { 120 }),
            },
        }
    }

    /// The plan of a world whose moves follow a script: two hosts with three servers each, on a network without loss. Timers
    /// are slow enough that only a move, or a fault of the script, can lead to a retransmission timeout.
    pub(crate) fn for_script(self, rng: &mut Rng) -> Plan {
        let times = MoveTimes { lifetime: Duration::from_secs(1), ..MoveTimes::default() };
        let switch = SwitchPlan {
            servers_per_host: 3,
            has_transfer_paths: false,
            flows_max: 1024,
            has_faults: false,
            heartbeat: Duration::from_millis(10),
            times,
            limits: Limits::default(),
            imports_max: 1000,
            ..self.switch
        };
        let conditions_max = ConditionsMax {
            loss_ppm: 0,
            reorder_ppm: 0,
            duplicate_ppm: 0,
            corrupt_ppm: 0,
            replay_ppm: 0,
            delay_ns_max: 40_000,
            is_narrow: false,
        };
        let tables = Tables { half_open_max: 1024, has_slow_timers: true, ..self.tables };
        let behaviour = ProgramBehaviour {
            clients_max: rng.range(6, 12) as usize, // fits: a few
            pause_ns_max: 5_000_000,
            early_ends_per_1000: 0,
            // Acknowledgements that wait for longer, at a gate or for a server that reads, would be retransmission timeouts
            // without any move.
            gate_ns_max: 20_000_000,
            unwritten_bytes_max: u64::MAX,
            may_time_out: false,
            ..self.behaviour
        };
        Plan {
            hosts: 2,
            behaviour,
            conditions_max,
            fault_ns_max: 0,
            receive_queue_max: 100_000,
            turn_delay_ns: 10_000,
            clocks_differ: false,
            may_break: false,
            is_crowded: false,
            has_little_room: false,
            moves: When::Never,
            switch,
            rogue: None,
            tables,
            ..self
        }
    }

    /// Draws the settings of a host's stacks; the first stack has the host's address.
    pub(crate) fn stacks(&self, rng: &mut Rng, host: usize) -> Vec<Settings> {
        let mut key = [0; 16];
        rng.fill(&mut key);
        let own = |server| self.family.address(own_address(address_of(host), server));
        let ips = (0..self.switch.servers_per_host).map(own);
        let mut all: Vec<Settings> = ips.map(|ip| self.settings(rng, ip, Key(key))).collect();
        // The others have imported connections only.
        for settings in all.iter_mut().skip(1) {
            settings.connections_max = self.switch.imports_max + settings.half_open_max;
        }
        all
    }

    /// Draws the conditions between a server and the switch, in both directions. Damage happens on the way from the switch:
    /// the switch checks no checksums, and relies on those of Ethernet, as all switches do.
    pub(crate) fn draw_paths(&self, rng: &mut Rng) -> [Conditions; 2] {
        let [mut up, mut down] = [(); 2].map(|()| self.conditions_max.draw_path(rng));
        up.corrupt_ppm = 0;
        if self.switch.servers_per_host > 1 {
            for path in [&mut up, &mut down] {
                let bytes_max = u128::from(path.bits_per_s) / 8 * QUEUED_FOR_MAX.as_millis() / 1000;
                path.queue_bytes_max = path.queue_bytes_max.min(bytes_max as u64); // fits: below the rate
            }
        }
        [up, down]
    }

    /// Draws the conditions between two servers of a host, beside the switch.
    pub(crate) fn draw_transfers(&self, rng: &mut Rng) -> Conditions {
        Conditions { corrupt_ppm: 0, bits_per_s: 0, ..self.conditions_max.draw_path(rng) }
    }

    fn settings(&self, rng: &mut Rng, ip: IpAddr, key: Key) -> Settings {
        let mut settings = Settings::new(mac_of(ip), ip, self.family.prefix(), key);
        let listener = |port, is_gated| Listener { address: SocketAddr::from((ip, port)), is_gated };
        settings.listeners = vec![listener(PORT, false), listener(GATED_PORT, true)];
        settings.mtu = rng.pick(&[576, 1280, 1500, 1500, 1500, 9000]);
        if self.family == Family::V6 {
            settings.resolver = Resolver::Driver;
            settings.mtu = settings.mtu.max(IPV6_MTU_MIN);
        }
        settings.connections_max = 4096;
        settings.half_open_max = self.tables.half_open_max;
        settings.time_wait_max = 4096;
        // With a move at every frame, each copies the send buffer.
        let send_buffer_max = if self.moves == When::Always { 32 * 1024 } else { 512 * 1024 };
        settings.send_buffer_bytes = rng.log_uniform(6_000, send_buffer_max) as usize; // fits
        settings.receive_window_max = rng.log_uniform(65_535, WINDOW_MAX) as u32; // fits
        settings.initial_window = rng.log_uniform(500, 65_535) as u16; // fits
        settings.reassembly_bytes_max = if self.has_little_room {
            rng.log_uniform(4_000, 512 * 1024) as usize
        } else {
            WINDOW_MAX as usize
        }; // fits
        settings.is_nagle = rng.chance(1, 3);
        settings.delayed_ack = Duration::from_micros(rng.log_uniform(100, 200_000));
        settings.user_timeout = self.tables.user_timeout;
        settings.recovery.algorithm = rng.pick(&[Algorithm::Cubic, Algorithm::NewReno]);
        settings.recovery.rto_min = Duration::from_millis(rng.log_uniform(5, 300));
        if self.tables.has_slow_timers {
            settings.recovery.rto_min = Duration::from_millis(200);
            settings.delayed_ack = settings.delayed_ack.min(Duration::from_millis(20));
            settings.user_timeout = Duration::from_secs(120);
        }
        settings.recovery.tail_loss_probe = rng.chance(3, 4);
        settings.keep_alive = self.tables.is_kept_alive.then(|| KeepAlive {
            idle: Duration::from_secs(rng.range(5, 60)),
            interval: Duration::from_secs(rng.range(3, 10)),
            probes: 9,
        });
        settings
    }
}

impl ConditionsMax {
    /// Draws the conditions of one direction between a host and the switch: half of the way to another host.
    fn draw_path(&self, rng: &mut Rng) -> Conditions {
        let up_to = |rng: &mut Rng, max: u64| if max == 0 { 0 } else { rng.range(0, max) };
        let delay_ns = rng.log_uniform(2_500, self.delay_ns_max / 2);
        Conditions {
            delay_ns,
            jitter_ns: up_to(rng, delay_ns),
            loss_ppm: up_to(rng, self.loss_ppm / 2),
            duplicate_ppm: up_to(rng, self.duplicate_ppm),
            reorder_ppm: up_to(rng, self.reorder_ppm),
            reorder_ns_max: rng.log_uniform(1_000, 500_000_000),
            corrupt_ppm: up_to(rng, self.corrupt_ppm),
            replay_ppm: up_to(rng, self.replay_ppm),
            bits_per_s: if self.is_narrow { rng.log_uniform(1_000_000, 1_000_000_000) } else { 0 },
            queue_bytes_max: rng.log_uniform(20_000, 2_000_000),
        }
    }
}
