//! A whole transfer over a path with a queue, loss and reordering, to a receiver that acknowledges by RFC 5681, RFC 2018 and
//! RFC 2883.

use alloc::collections::{BTreeMap, BinaryHeap};
use core::cmp::Reverse;

use super::*;

/// Properties of the path and of both ends.
#[derive(Clone, Debug)]
struct Path {
    one_way: Duration,
    /// Bytes per second.
    rate: u64,
    /// Bytes that the queue holds at most.
    queue: u64,
    loss_per_mille: u64,
    /// Share of segments that take `late` longer.
    late_per_mille: u64,
    late: Duration,
    has_sack: bool,
    has_timestamps: bool,
    /// Acknowledges after this many segments, or after 40 ms.
    every: u32,
    /// All acknowledgements leave at multiples of this time, as behind a gate that opens seldom.
    gate: Duration,
    algorithm: Algorithm,
    bytes: u64,
    seed: u64,
}

impl Default for Path {
    fn default() -> Path {
        Path {
            one_way: Duration::from_millis(10),
            rate: 12_500_000,
            queue: 250_000,
            loss_per_mille: 0,
            late_per_mille: 0,
            late: Duration::ZERO,
            has_sack: true,
            has_timestamps: true,
            every: 2,
            gate: Duration::ZERO,
            algorithm: Algorithm::Cubic,
            bytes: 20_000_000,
            seed: 1,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    Segment { from: Seq, to: Seq, stamp: Time },
    Acknowledgement { una: Seq, sack: Vec<(Seq, Seq)>, dsack: Option<(Seq, Seq)>, echo: Time },
    DelayedAck,
}

/// A receiver that follows the RFCs.
#[derive(Default)]
struct Receiver {
    next: Seq,
    ranges: BTreeMap<Seq, Seq>,
    recent: Vec<Seq>,
    stamp: Time,
    waiting: u32,
    last_acknowledged: Seq,
}

impl Receiver {
    /// Returns whether to acknowledge at once, and the duplicate range.
    fn take(&mut self, from: Seq, to: Seq, stamp: Time) -> (bool, Option<(Seq, Seq)>) {
        if from <= self.last_acknowledged && stamp >= self.stamp {
            self.stamp = stamp;
        }
        let is_known = to <= self.next || self.ranges.iter().any(|(&start, &end)| start <= from && to <= end);
        if is_known {
            return (true, Some((from, to)));
        }
        let had_holes = !self.ranges.is_empty();
        let (mut start, mut end) = (from.max(self.next), to);
        let touching: Vec<Seq> =
            self.ranges.iter().filter(|&(&s, &e)| s <= end && e >= start).map(|(&s, _)| s).collect();
        for s in touching {
            let e = self.ranges.remove(&s).expect("just listed");
            self.recent.retain(|&r| r != s);
            (start, end) = (start.min(s), end.max(e));
        }
        if start <= self.next {
            self.next = end;
            self.waiting += 1;
            (had_holes, None)
        } else {
            self.ranges.insert(start, end);
            self.recent.insert(0, start);
            (true, None)
        }
    }
}

struct Outcome {
    took: Duration,
    counters: Counters,
}

struct World<'a> {
    path: &'a Path,
    now: Time,
    heap: BinaryHeap<Reverse<(Time, u64, What)>>,
    count: u64,
    random: u64,
    free_at: Time,
    recovery: Sender,
    receiver: Receiver,
}

impl World<'_> {
    fn chance(&mut self, per_mille: u64) -> bool {
        self.random =
            self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) % 1000 < per_mille
    }

    fn push(&mut self, at: Time, what: What) {
        self.count += 1;
        self.heap.push(Reverse((at, self.count, what)));
    }

    fn transmit(&mut self, from: Seq, to: Seq) {
        let start = self.free_at.max(self.now);
        let waiting = start.since(self.now).as_nanos() as u64 * self.path.rate / 1_000_000_000;
        if self.chance(self.path.loss_per_mille) || waiting > self.path.queue {
            return;
        }
        self.free_at = start + Duration::from_nanos((to - from) * 1_000_000_000 / self.path.rate);
        let mut at = self.free_at + self.path.one_way;
        if self.chance(self.path.late_per_mille) {
            at = at + self.path.late;
        }
        self.push(at, What::Segment { from, to, stamp: self.now });
    }

    fn acknowledge(&mut self, dsack: Option<(Seq, Seq)>) {
        let receiver = &mut self.receiver;
        (receiver.waiting, receiver.last_acknowledged) = (0, receiver.next);
        let sack: Vec<_> =
            receiver.recent.iter().take(3).map(|start| (*start, receiver.ranges[start])).collect();
        let ack = What::Acknowledgement { una: receiver.next, sack, dsack, echo: receiver.stamp };
        if self.chance(self.path.loss_per_mille) {
            return;
        }
        let mut at = self.now + self.path.one_way;
        if self.path.gate > Duration::ZERO {
            let gate = self.path.gate.as_nanos() as u64;
            at = Time(at.0.div_ceil(gate) * gate);
        }
        self.push(at, ack);
    }

    /// Sends everything that may be sent, as a stack does.
    fn pump(&mut self, end: Seq) {
        let now = self.now;
        loop {
            if let Some((from, to)) = self.recovery.next_retransmission(MSS) {
                self.recovery.on_retransmitted(now, from, to);
                self.transmit(from, to);
                continue;
            }
            let nxt = self.recovery.nxt();
            let length = (end - nxt).min(u64::from(MSS));
            let probing = self.recovery.wants_probe();
            if length > 0 && (probing || self.recovery.send_room() >= length) {
                self.recovery.on_sent(now, nxt + length);
                if probing {
                    self.recovery.on_probe(now);
                }
                self.transmit(nxt, nxt + length);
            } else if probing {
                let (from, to) = self.recovery.last_segment().expect("something is out");
                self.recovery.on_retransmitted(now, from, to);
                self.recovery.on_probe(now);
                self.transmit(from, to);
            } else if let Some((from, to)) = self.recovery.spare_retransmission(MSS).filter(|_| length == 0) {
                self.recovery.on_retransmitted(now, from, to);
                self.transmit(from, to);
            } else {
                return;
            }
        }
    }

    fn step(&mut self, what: What) {
        match what {
            What::Segment { from, to, stamp } => {
                let was_waiting = self.receiver.waiting;
                let (at_once, dsack) = self.receiver.take(from, to, stamp);
                if at_once || self.receiver.waiting >= self.path.every {
                    self.acknowledge(dsack);
                } else if was_waiting == 0 {
                    self.push(self.now + Duration::from_millis(40), What::DelayedAck);
                }
            }
            What::DelayedAck if self.receiver.waiting > 0 => self.acknowledge(None),
            What::DelayedAck => {}
            What::Acknowledgement { una, sack, dsack, echo } => {
                if una < self.recovery.una() {
                    return;
                }
                let is_new = una > self.recovery.una();
                let ack = Ack {
                    una,
                    sack: &sack,
                    dsack: dsack.filter(|_| self.path.has_sack),
                    is_duplicate: !is_new && self.recovery.in_flight() > 0,
                    has_sack: self.path.has_sack,
                    rtt: (self.path.has_timestamps && is_new).then(|| self.now.since(echo)),
                    peer_window: 1 << 24,
                };
                self.recovery.on_ack(self.now, &ack);
            }
        }
    }
}

fn run(path: &Path) -> Outcome {
    let settings = Settings { algorithm: path.algorithm, ..Settings::default() };
    let mut recovery = Sender::new(ms(0), &settings, MSS, path.has_sack, FIRST);
    recovery.on_sent(ms(0), FIRST + 1);
    recovery.on_ack(ms(0) + 2 * path.one_way, &ack(0));
    let end = FIRST + 1 + path.bytes;
    let receiver = Receiver { next: FIRST + 1, last_acknowledged: FIRST + 1, ..Receiver::default() };
    let now = ms(0) + 2 * path.one_way;
    let (heap, random) = (BinaryHeap::new(), path.seed);
    let mut world = World { path, now, heap, count: 0, random, free_at: now, recovery, receiver };
    let begin = world.now;
    let mut steps = 0_u64;
    while world.recovery.una() < end {
        steps += 1;
        assert!(steps < 20 * path.bytes / u64::from(MSS) + 100_000, "no progress");
        world.pump(end);
        let timeout = world.recovery.poll_timeout().expect("something is out");
        match world.heap.peek() {
            Some(Reverse((at, ..))) if *at <= timeout => {
                let Reverse((at, _, what)) = world.heap.pop().expect("just seen");
                world.now = at;
                world.step(what);
            }
            _ => {
                world.now = timeout;
                world.recovery.handle_timeout(timeout);
            }
        }
    }
    Outcome { took: world.now.since(begin), counters: world.recovery.counters() }
}

/// The throughput in thousandths of the path's rate.
fn share(path: &Path, outcome: &Outcome) -> u128 {
    u128::from(path.bytes) * 1_000_000_000_000 / outcome.took.as_nanos() / u128::from(path.rate)
}

/// The path with every combination of algorithm, timestamps and SACK.
fn variants(path: &Path) -> Vec<Path> {
    let mut all = Vec::new();
    for algorithm in [Algorithm::Cubic, Algorithm::NewReno] {
        for has_timestamps in [false, true] {
            for has_sack in [false, true] {
                all.push(Path { algorithm, has_timestamps, has_sack, ..path.clone() });
            }
        }
    }
    all
}

fn lan() -> Path {
    Path { one_way: Duration::from_micros(50), rate: 125_000_000, ..Path::default() }
}

#[test]
fn a_path_without_loss_of_its_own_is_filled() {
    for path in variants(&Path::default()).iter().filter(|path| path.has_sack) {
        let outcome = run(path);
        assert!(share(path, &outcome) > 900, "{path:?} {:?}", outcome.counters);
        assert_eq!(outcome.counters.timeouts, 0, "{path:?}");
    }
}

#[test]
fn losses_need_no_timeouts_with_sack() {
    for algorithm in [Algorithm::Cubic, Algorithm::NewReno] {
        for loss_per_mille in [10, 30] {
            let path = Path { algorithm, loss_per_mille, ..Path::default() };
            let Counters { timeouts, fast_recoveries, .. } = run(&path).counters;
            assert!(timeouts * 20 < fast_recoveries, "{path:?}: {timeouts} timeouts");
        }
        let path = Path { algorithm, loss_per_mille: 10, ..lan() };
        let outcome = run(&path);
        assert!(share(&path, &outcome) > 600, "{path:?} {:?}", outcome.counters);
    }
}

#[test]
fn reordering_is_learnt() {
    for late_per_mille in [50, 200] {
        let late = Duration::from_millis(3);
        let path = Path { late_per_mille, late, ..Path::default() };
        let outcome = run(&path);
        assert!(share(&path, &outcome) > 800, "{path:?} {:?}", outcome.counters);
        assert_eq!(outcome.counters.timeouts, 0);
    }
}

#[test]
fn a_gate_that_opens_seldom_costs_few_retransmissions() {
    for gate in [10, 50, 200, 500] {
        for has_timestamps in [false, true] {
            let (gate, queue) = (Duration::from_millis(gate), 8_000_000);
            let path = Path { gate, queue, has_timestamps, bytes: 5_000_000, ..Path::default() };
            let Counters { retransmissions, timeouts, .. } = run(&path).counters;
            assert!(timeouts <= 1 && retransmissions <= 10, "{path:?} {retransmissions} {timeouts}");
        }
    }
}

#[test]
fn every_transfer_ends() {
    for seed in 0..6 {
        for (loss_per_mille, late_per_mille) in [(0, 0), (30, 0), (0, 200), (100, 200), (300, 0)] {
            let late = Duration::from_millis(5 * seed);
            let base = Path { loss_per_mille, late_per_mille, late, seed, bytes: 150_000, ..Path::default() };
            for path in variants(&base).iter().chain(&variants(&Path { every: 1, ..base.clone() })) {
                run(path);
            }
        }
    }
}
