//! Random frames in every state cause no panic (debug assertions and overflow checks are on), tables stay
//! bounded, and the connection of another, honest peer continues. A seed repeats a failure.

use std::time::Duration;

use spillway_tcp::KeepAlive;
use spillway_tcp::recovery::Algorithm;
use spillway_transport::Transport;
use spillway_wire::packet::icmp::v4::Message;
use spillway_wire::packet::icmp::v6;
use spillway_wire::packet::{arp, ethernet};

use crate::IS_IPV6;
use crate::trace::*;

const MAC_BYTES: usize = 6;

/// The xorshift64* generator, which gives the same numbers on every host.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() >> 33) as usize % bound.max(1)
    }

    /// 0, 255, a single bit, or any byte.
    fn byte(&mut self) -> u8 {
        match self.below(4) {
            0 => 0,
            1 => 0xff,
            2 => 1 << self.below(8),
            _ => self.next() as u8,
        }
    }
}

type EnterState = fn(&mut Trace);

/// For each state: how a connection of the first peer enters the state.
const STATES: [(&str, EnterState); 13] = [
    ("listen", |_| {}),
    ("syn-sent", |t| t.connect()),
    ("syn-received", |t| t.recv(syn().mss(1000).sack_ok(true))),
    ("syn-received, simultaneous open", |t| {
        t.connect();
        t.recv(syn().timestamp(PEER_CLOCK));
    }),
    ("established", established),
    ("established, bytes both ways", |t| {
        established(t);
        t.send_pattern(9000);
        t.recv(data(2001, 500));
        t.recv(data(1, 500).ack(1001).sack(&[(3001, 5001)]));
    }),
    ("established, gated", |t| {
        t.peer().stack_port = GATED_PORT;
        established(t);
        t.recv(data(1, 500));
        t.release(100);
    }),
    ("established, closed window", |t| {
        t.recv(syn().window(0));
        t.recv(ack(1).window(0));
        t.send_pattern(3000);
    }),
    ("fin-wait-1", |t| {
        established(t);
        t.send_pattern(100);
        t.finish();
    }),
    ("fin-wait-2", |t| {
        established(t);
        t.finish();
        t.recv(ack(2));
    }),
    ("close-wait", |t| {
        established(t);
        t.recv(bytes(1, "x").fin());
        t.send_pattern(100);
    }),
    ("closing", |t| {
        established(t);
        t.finish();
        t.recv(fin(1).ack(1));
    }),
    ("time-wait", |t| {
        established(t);
        t.finish();
        t.recv(fin(1).ack(2));
    }),
];

fn established(t: &mut Trace) {
    t.recv(syn().mss(1000).scale(3).sack_ok(true).timestamp(PEER_CLOCK));
    t.recv(ack(1));
    t.grant(50_000);
}

/// A plausible frame of the selected peer, with numbers near those of its connection.
fn plausible(t: &mut Trace, random: &mut Random) -> Vec<u8> {
    let near = |random: &mut Random, number: i64| match random.below(4) {
        0 => number,
        1 => number + random.below(3) as i64 - 1,
        2 => number + random.below(3000) as i64 - 1000,
        _ => random.next() as u32 as i32 as i64,
    };
    let (next, stack_next) = (t.peer().received.len() as i64 + 1, t.peer().stack_nxt);
    let (seq, acknowledged) = (near(random, next), near(random, stack_next));
    let count = [0, 0, 1, 5, 700, 1460][random.below(6)];
    let mut segment = data(seq, count).ack(acknowledged);
    match random.below(12) {
        0 => {
            segment =
                syn().seq(seq).mss(random.next() as u16).scale(random.byte()).timestamp(random.next() as u32)
        }
        1 => segment = syn_ack().seq(seq).ack(acknowledged),
        2 => segment = rst(seq),
        3 => segment = rst(seq).ack(acknowledged),
        4 | 5 => segment = segment.fin(),
        6 => segment = segment.urg(random.next() as u16),
        7 => {
            let edges: [i64; 4] = std::array::from_fn(|_| near(random, stack_next));
            segment = segment.sack(&[(edges[0], edges[1]), (edges[2], edges[3])]);
        }
        8 => {
            let length = random.below(41);
            let options: Vec<u8> = (0..length).map(|_| random.byte() % 16).collect();
            segment = segment.raw_options(&options);
        }
        9 => segment = segment.timestamp(random.next() as u32),
        10 => segment = segment.no_flags(),
        _ => segment = segment.window([0, 1, 500, u16::MAX][random.below(4)]),
    }
    t.frame_of(segment)
}

/// An ICMP message or an ARP packet.
fn icmp_or_arp(t: &mut Trace, random: &mut Random) -> Vec<u8> {
    let segment = plausible(t, random);
    let mut inner = segment[ethernet::HEADER_BYTES..].to_vec();
    if IS_IPV6 {
        return icmpv6(inner, random);
    }
    let (source, target) = (inner[12..16].to_vec(), inner[16..20].to_vec());
    inner[12..16].copy_from_slice(&target);
    inner[16..20].copy_from_slice(&source);
    inner.truncate(random.below(60));
    let next_hop_mtu = random.next() as u16;
    match random.below(4) {
        0 => frame::arp(arp::Operation::Request, (PEER_MAC, PEER_IP), STACK_IP),
        1 => frame::arp(arp::Operation::Reply, (PEER_MAC, PEER_IP), STACK_IP),
        2 => frame::icmp(PEER_IP, &Message::EchoRequest { ident: 1, sequence: 2, payload: &inner }),
        _ => {
            let code = random.byte() % 16;
            frame::icmp(PEER_IP, &Message::Unreachable { code, next_hop_mtu, inner: &inner })
        }
    }
}

/// An ICMPv6 message that quotes a segment of the peer as one of the stack.
fn icmpv6(mut inner: Vec<u8>, random: &mut Random) -> Vec<u8> {
    inner[8..40].rotate_left(16); // the addresses
    inner[40..44].rotate_left(2); // the ports
    inner.truncate(random.below(80));
    let message = match random.below(4) {
        0 => v6::Message::EchoRequest { ident: 1, sequence: 2, payload: &inner },
        1 => v6::Message::PacketTooBig { mtu: random.next() as u32 >> random.below(32), inner: &inner },
        _ => v6::Message::Unreachable { code: random.byte() % 8, inner: &inner },
    };
    frame::icmp6(PEER_IP6, &message)
}

/// Changes, cuts off or adds bytes, mostly with corrected checksums. Ethernet addresses stay: a forged one would only
/// redirect answers.
fn mutate(frame: &mut Vec<u8>, random: &mut Random) {
    for _ in 0..random.below(4) {
        let at = 2 * MAC_BYTES + random.below(frame.len() - 2 * MAC_BYTES);
        frame[at] = random.byte();
    }
    match random.below(10) {
        0 => frame.truncate(random.below(frame.len())),
        1 => frame.extend((0..random.below(50)).map(|_| random.byte())),
        _ => {}
    }
    if frame.len() > if IS_IPV6 { 60 } else { 40 } && random.below(4) > 0 {
        frame::fix_checksums(frame);
    }
}

/// One random action: a frame, a command of the application, a move, or the passage of time.
fn attack(t: &mut Trace, random: &mut Random) {
    match random.below(12) {
        0 => t.advance(Duration::from_micros(random.next() % 3_000_000)),
        1 => {
            let length = random.below(200);
            let frame: Vec<u8> = (0..length).map(|_| random.byte()).collect();
            t.recv_frame(&frame);
        }
        2 => {
            let mut frame = icmp_or_arp(t, random);
            mutate(&mut frame, random);
            if random.below(2) == 0 {
                t.recv_frame(&frame);
            } else {
                // Raw sockets deliver packets with the IPv4 header, but without the IPv6 header.
                t.stack.handle_icmp_packet(t.now, frame.get(ethernet::HEADER_BYTES..).unwrap_or(&[]));
                t.stack.handle_icmpv6_message(t.now, PEER_IP6, frame.get(frame::TCP_AT6..).unwrap_or(&[]));
                t.transmit();
            }
        }
        3 => {
            let conn = t.peer().conn.expect("the id of a connection");
            match random.below(6) {
                0 => t.stack.grant(conn, random.next() as u32 >> random.below(32)),
                1 => _ = t.stack.send(conn, &pattern(1, random.below(5000))),
                2 => t.stack.release(conn, random.next() >> (20 + random.below(44))),
                3 if random.below(5) == 0 => t.stack.finish(conn),
                4 if random.below(20) == 0 => t.stack.abort(conn),
                5 if random.below(4) == 0 => t.try_export_and_import(),
                _ => _ = t.stack.room(conn),
            }
            t.transmit();
        }
        4..7 => {
            let mut frame = plausible(t, random);
            mutate(&mut frame, random);
            t.recv_frame(&frame);
        }
        _ => {
            let frame = plausible(t, random);
            t.recv_frame(&frame);
        }
    }
    t.discard();
}

/// Checks that the honest peer's bytes are delivered, and that the application's bytes are sent to it.
fn check_honest_connection(t: &mut Trace) {
    let (received, sent) = (t.peer().received.len() as i64, t.peer().sent.len() as i64);
    t.peer().segments.clear();
    t.grant(100);
    t.peer().segments.clear();
    t.recv(data(received + 1, 100).ack(sent + 1));
    assert_eq!(t.peer().received, pattern(1, received as usize + 100));
    t.send_pattern(100);
    let is_sent = t.peer().segments.iter().any(|seg| data(sent + 1, 100).agrees_with(seg));
    assert!(is_sent, "the application's bytes should be sent");
    t.recv(ack(sent + 101));
    t.peer().segments.clear();
    t.peer().events.clear();
}

fn attack_in_state(state: usize, seed: u64, frames: usize) {
    let (name, enter_state) = STATES[state];
    let mut random = Random(seed * STATES.len() as u64 + state as u64 + 1);
    (0..10).for_each(|_| _ = random.next());
    let mut t = Trace::new(|settings| {
        settings.connections_max = 50;
        settings.half_open_max = [20, 1][random.below(2)];
        settings.time_wait_max = 20;
        settings.reassembly_bytes_max = 20_000;
        settings.is_nagle = random.below(2) == 0;
        let mtu_min = if IS_IPV6 { 1280 } else { 576 };
        settings.mtu = [1500, 1500, mtu_min, 9000, u16::MAX][random.below(5)];
        settings.initial_window = [u16::MAX, u16::MAX, 1000, 0][random.below(4)];
        settings.receive_window_max = [65_535, 1 << 20, 1 << 30][random.below(3)];
        settings.keep_alive = (random.below(3) == 0).then_some(KeepAlive {
            idle: secs(1),
            interval: secs(1),
            probes: u32::MAX,
        });
        settings.recovery.algorithm = [Algorithm::Cubic, Algorithm::NewReno][random.below(2)];
    });
    t.select_peer(1).establish(syn().mss(1000));
    t.grant(65_535);
    t.select_peer(0).peer().is_checked = false;
    enter_state(&mut t);
    if t.peer().conn.is_none() {
        t.peer().conn = t.peers[1].conn.map(|conn| spillway_transport::Conn { slot: conn.slot + 1, ..conn });
    }
    for _ in 0..frames / 20 {
        for _ in 0..20 {
            attack(t.select_peer(0), &mut random);
        }
        assert!(t.stack.connections() <= 50, "connections should be bounded: {name}, seed {seed}");
        check_honest_connection(t.select_peer(1));
    }
    // `advance` fails if timers of the stack are due endlessly although no frames arrive.
    t.select_peer(0).advance(secs(3600));
    t.discard();
    check_honest_connection(t.select_peer(1));
}

/// For a longer search, set `SPILLWAY_SEEDS` (number of seeds) and `SPILLWAY_SEED` (the first).
#[test]
fn an_honest_connection_continues_beside_an_attack_in_every_state() {
    let number_of = |name| std::env::var(name).ok().and_then(|number| number.parse::<u64>().ok());
    let (first, seeds) = (number_of("SPILLWAY_SEED").unwrap_or(0), number_of("SPILLWAY_SEEDS").unwrap_or(60));
    for seed in first..first.saturating_add(seeds) {
        for state in 0..STATES.len() {
            attack_in_state(state, seed, 400);
        }
    }
}

#[test]
fn the_stack_is_deterministic() {
    let run = |seed: u64| {
        let mut random = Random(seed + 99);
        let mut t = Trace::new(|_| {});
        t.peer().is_checked = false;
        established(&mut t);
        for _ in 0..500 {
            attack(&mut t, &mut random);
        }
        (t.log().to_owned(), t.counters())
    };
    for seed in 0..5 {
        assert_eq!(run(seed), run(seed));
    }
}
