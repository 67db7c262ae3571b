//! Random frames in every state: no panic (debug assertions and overflow checks are on), bounded tables, and an honest
//! connection beside them continues. Seeded, so that a failure can be repeated.

use std::time::Duration;

use spillway_tcp::KeepAlive;
use spillway_tcp::recovery::Algorithm;
use spillway_transport::Transport;
use spillway_wire::packet::icmp::v4::Message;
use spillway_wire::packet::{arp, ethernet};

use crate::trace::*;

const MAC_BYTES: usize = 6;

/// xorshift64*: random enough, and the same on every host.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, many: usize) -> usize {
        (self.next() >> 33) as usize % many.max(1)
    }

    /// A byte that often causes trouble, or any byte.
    fn byte(&mut self) -> u8 {
        match self.below(4) {
            0 => 0,
            1 => 0xff,
            2 => 1 << self.below(8),
            _ => self.next() as u8,
        }
    }
}

type Begin = fn(&mut Trace);

/// How a connection of the first peer reaches each state.
const STATES: [(&str, Begin); 13] = [
    ("listen", |_| {}),
    ("syn-sent", |t| t.connect()),
    ("syn-received", |t| t.recv(syn().mss(1000).sack_ok(true))),
    ("syn-received, both at once", |t| {
        t.connect();
        t.recv(syn().stamp(PEER_CLOCK));
    }),
    ("established", established),
    ("established, bytes both ways", |t| {
        established(t);
        t.say(9000);
        t.recv(many(2001, 500));
        t.recv(many(1, 500).ack(1001).sack(&[(3001, 5001)]));
    }),
    ("established, gated", |t| {
        t.peer().stack_port = GATED;
        established(t);
        t.recv(many(1, 500));
        t.release(100);
    }),
    ("established, shut window", |t| {
        t.recv(syn().window(0));
        t.recv(ack(1).window(0));
        t.say(3000);
    }),
    ("fin-wait-1", |t| {
        established(t);
        t.say(100);
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
        t.say(100);
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
    t.recv(syn().mss(1000).scale(3).sack_ok(true).stamp(PEER_CLOCK));
    t.recv(ack(1));
    t.grant(50_000);
}

/// A plausible frame of the present peer, with numbers near those of its connection.
fn plausible(t: &mut Trace, random: &mut Random) -> Vec<u8> {
    let near = |random: &mut Random, of: i64| match random.below(4) {
        0 => of,
        1 => of + random.below(3) as i64 - 1,
        2 => of + random.below(3000) as i64 - 1000,
        _ => random.next() as u32 as i32 as i64,
    };
    let (next, stack_next) = (t.peer().heard.len() as i64 + 1, t.peer().stack_nxt);
    let (seq, number) = (near(random, next), near(random, stack_next));
    let count = [0, 0, 1, 5, 700, 1460][random.below(6)];
    let mut one = many(seq, count).ack(number);
    match random.below(12) {
        0 => one = syn().seq(seq).mss(random.next() as u16).scale(random.byte()).stamp(random.next() as u32),
        1 => one = syn_ack().seq(seq).ack(number),
        2 => one = rst(seq),
        3 => one = rst(seq).ack(number),
        4 | 5 => one = one.fin(),
        6 => one = one.urg(random.next() as u16),
        7 => {
            let edges: [i64; 4] = std::array::from_fn(|_| near(random, stack_next));
            one = one.sack(&[(edges[0], edges[1]), (edges[2], edges[3])]);
        }
        8 => {
            let length = random.below(41);
            let options: Vec<u8> = (0..length).map(|_| random.byte() % 16).collect();
            one = one.raw_options(&options);
        }
        9 => one = one.stamp(random.next() as u32),
        10 => one = one.no_flags(),
        _ => one = one.window([0, 1, 500, u16::MAX][random.below(4)]),
    }
    t.frame_of(one)
}

/// An ICMP message or an ARP packet.
fn other(t: &mut Trace, random: &mut Random) -> Vec<u8> {
    let segment = plausible(t, random);
    let mut inner = segment[ethernet::HEADER_BYTES..].to_vec();
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

/// Changes, cuts off or adds bytes, mostly with corrected checksums. Ethernet addresses stay: a forged one would only change
/// where answers go.
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
    if frame.len() > 40 && random.below(4) > 0 {
        frame::mend(frame);
    }
}

fn attack(t: &mut Trace, random: &mut Random) {
    match random.below(12) {
        0 => t.pass(Duration::from_micros(random.next() % 3_000_000)),
        1 => {
            let length = random.below(200);
            let frame: Vec<u8> = (0..length).map(|_| random.byte()).collect();
            t.recv_frame(&frame);
        }
        2 => {
            let mut frame = other(t, random);
            mutate(&mut frame, random);
            t.recv_frame(&frame);
        }
        3 => {
            let conn = t.peer().conn.expect("a connection was there");
            match random.below(6) {
                0 => t.stack.grant(conn, random.next() as u32 >> random.below(32)),
                1 => _ = t.stack.send(conn, &pattern(1, random.below(5000))),
                2 => t.stack.release(conn, random.next() >> (20 + random.below(44))),
                3 if random.below(5) == 0 => t.stack.finish(conn),
                4 if random.below(20) == 0 => t.stack.abort(conn),
                5 if random.below(4) == 0 => t.moves_if_it_can(),
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
    t.forget();
}

/// The honest peer's bytes arrive, and so do the application's.
fn goes_on(t: &mut Trace) {
    let (heard, said) = (t.peer().heard.len() as i64, t.peer().said.len() as i64);
    t.peer().segments.clear();
    t.grant(100);
    t.peer().segments.clear();
    t.recv(many(heard + 1, 100).ack(said + 1));
    assert_eq!(t.peer().heard, pattern(1, heard as usize + 100));
    t.say(100);
    let from = t.peer().segments.iter().any(|seg| many(said + 1, 100).agrees_with(seg));
    assert!(from, "its bytes are sent");
    t.recv(ack(said + 101));
    t.peer().segments.clear();
    t.peer().events.clear();
}

fn storm(state: usize, seed: u64, frames: usize) {
    let (name, begin) = STATES[state];
    let mut random = Random(seed * STATES.len() as u64 + state as u64 + 1);
    (0..10).for_each(|_| _ = random.next());
    let mut t = Trace::new(|settings| {
        settings.connections_max = 50;
        settings.half_open_max = [20, 1][random.below(2)];
        settings.time_wait_max = 20;
        settings.reassembly_bytes_max = 20_000;
        settings.is_nagle = random.below(2) == 0;
        settings.mtu = [1500, 1500, 576, 9000, u16::MAX][random.below(5)];
        settings.initial_window = [u16::MAX, u16::MAX, 1000, 0][random.below(4)];
        settings.receive_window_max = [65_535, 1 << 20, 1 << 30][random.below(3)];
        settings.keep_alive = (random.below(3) == 0).then_some(KeepAlive {
            idle: secs(1),
            interval: secs(1),
            probes: u32::MAX,
        });
        settings.recovery.algorithm = [Algorithm::Cubic, Algorithm::NewReno][random.below(2)];
    });
    t.at(1).establish(syn().mss(1000));
    t.grant(65_535);
    t.at(0).peer().is_trusted = false;
    begin(&mut t);
    if t.peer().conn.is_none() {
        t.peer().conn = t.peers[1].conn.map(|conn| spillway_transport::Conn { slot: conn.slot + 1, ..conn });
    }
    for _ in 0..frames / 20 {
        for _ in 0..20 {
            attack(t.at(0), &mut random);
        }
        assert!(t.stack.connections() <= 50, "{name}, seed {seed}");
        goes_on(t.at(1));
    }
    // Without further frames the stack comes to rest.
    t.at(0).pass(secs(3600));
    t.forget();
    goes_on(t.at(1));
}

/// For a long search: SPILLWAY_SEEDS is the number of seeds, SPILLWAY_SEED the first one.
#[test]
fn an_honest_connection_goes_on_beside_an_attack_in_every_state() {
    let number_of = |name| std::env::var(name).ok().and_then(|number| number.parse::<u64>().ok());
    let (first, seeds) = (number_of("SPILLWAY_SEED").unwrap_or(0), number_of("SPILLWAY_SEEDS").unwrap_or(60));
    for seed in first..first.saturating_add(seeds) {
        for state in 0..STATES.len() {
            storm(state, seed, 400);
        }
    }
}

/// The same frames at the same times give the same output, byte for byte.
#[test]
fn the_stack_is_deterministic() {
    let run = |seed: u64| {
        let mut random = Random(seed + 99);
        let mut t = Trace::new(|_| {});
        t.peer().is_trusted = false;
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
