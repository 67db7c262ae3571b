//! Whole transfers over a path with a queue, loss and reordering, to a receiver that acknowledges by RFC 5681, RFC 2018
//! and RFC 2883.

use alloc::collections::{BTreeMap, BinaryHeap};
use core::cmp::Reverse;

use super::*;

/// Properties of the path and of both ends.
#[derive(Clone, Debug)]
struct Path {
    one_way: Duration,
    /// Bytes per second.
    rate: u64,
    /// Maximum number of bytes in the queue.
    queue: u64,
    loss_per_mille: u64,
    /// Number of segments in a thousand that arrive later by `extra_delay`.
    late_per_mille: u64,
    extra_delay: Duration,
    has_sack: bool,
    has_timestamps: bool,
    /// The receiver acknowledges after this many segments, or after 40 ms.
    segments_per_ack: u32,
    /// All acknowledgements arrive at multiples of this time, as behind a gate that seldom opens. 0: at once.
    gate_interval: Duration,
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
            extra_delay: Duration::ZERO,
            has_sack: true,
            has_timestamps: true,
            segments_per_ack: 2,
            gate_interval: Duration::ZERO,
            algorithm: Algorithm::Cubic,
            bytes: 20_000_000,
            seed: 1,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum PathEvent {
    Segment { from: Seq, to: Seq, timestamp: Time },
    Acknowledgement { una: Seq, sack: Vec<(Seq, Seq)>, dsack: Option<(Seq, Seq)>, echo: Time },
    DelayedAck,
}

/// A receiver that follows the RFCs.
#[derive(Default)]
struct Receiver {
    next: Seq,
    ranges: BTreeMap<Seq, Seq>,
    /// Starts of `ranges`; that of the range that changed last comes first.
    recent: Vec<Seq>,
    timestamp: Time,
    /// Segments not acknowledged yet.
    unacknowledged: u32,
    last_acknowledged: Seq,
}

impl Receiver {
    /// Returns whether to acknowledge at once, and the duplicate range.
    fn on_segment(&mut self, from: Seq, to: Seq, timestamp: Time) -> (bool, Option<(Seq, Seq)>) {
        if from <= self.last_acknowledged && timestamp >= self.timestamp {
            self.timestamp = timestamp;
        }
        let is_duplicate =
            to <= self.next || self.ranges.iter().any(|(&start, &end)| start <= from && to <= end);
        if is_duplicate {
            return (true, Some((from, to)));
        }
        let had_holes = !self.ranges.is_empty();
        let (mut start, mut end) = (from.max(self.next), to);
        let touches = |range: &(&Seq, &Seq)| *range.0 <= end && *range.1 >= start;
        let touching: Vec<Seq> = self.ranges.iter().filter(touches).map(|(&from, _)| from).collect();
        for from in touching {
            let to = self.ranges.remove(&from).expect("a range that was just found");
            self.recent.retain(|&recent| recent != from);
            (start, end) = (start.min(from), end.max(to));
        }
        if start <= self.next {
            self.next = end;
            self.unacknowledged += 1;
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
    events: BinaryHeap<Reverse<(Time, u64, PathEvent)>>,
    /// Number of events so far: orders events of the same time.
    event_count: u64,
    random: u64,
    /// Time at which the link has transmitted all queued segments.
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

    fn push(&mut self, at: Time, event: PathEvent) {
        self.event_count += 1;
        self.events.push(Reverse((at, self.event_count, event)));
    }

    fn transmit(&mut self, from: Seq, to: Seq) {
        let start = self.free_at.max(self.now);
        let queued = start.since(self.now).as_nanos() as u64 * self.path.rate / 1_000_000_000;
        if self.chance(self.path.loss_per_mille) || queued > self.path.queue {
            return;
        }
        self.free_at = start + Duration::from_nanos((to - from) * 1_000_000_000 / self.path.rate);
        let mut at = self.free_at + self.path.one_way;
        if self.chance(self.path.late_per_mille) {
            at = at + self.path.extra_delay;
        }
        self.push(at, PathEvent::Segment { from, to, timestamp: self.now });
    }

    fn acknowledge(&mut self, dsack: Option<(Seq, Seq)>) {
        let receiver = &mut self.receiver;
        (receiver.unacknowledged, receiver.last_acknowledged) = (0, receiver.next);
        let sack: Vec<_> =
            receiver.recent.iter().take(3).map(|start| (*start, receiver.ranges[start])).collect();
        let ack = PathEvent::Acknowledgement { una: receiver.next, sack, dsack, echo: receiver.timestamp };
        if self.chance(self.path.loss_per_mille) {
            return;
        }
        let mut at = self.now + self.path.one_way;
        if self.path.gate_interval > Duration::ZERO {
            let interval = self.path.gate_interval.as_nanos() as u64;
            at = Time(at.0.div_ceil(interval) * interval);
        }
        self.push(at, ack);
    }

    /// Sends everything that may be sent, as a stack does.
    fn send_all(&mut self, end: Seq) {
        let now = self.now;
        loop {
            if let Some((from, to)) = self.recovery.next_retransmission(MSS) {
                self.recovery.on_retransmitted(now, from, to);
                self.transmit(from, to);
                continue;
            }
            let nxt = self.recovery.nxt();
            let length = (end - nxt).min(u64::from(MSS));
            let is_probe_due = self.recovery.wants_probe();
            if length > 0 && (is_probe_due || self.recovery.send_room() >= length) {
                self.recovery.on_sent(now, nxt + length);
                if is_probe_due {
                    self.recovery.on_probe(now);
                }
                self.transmit(nxt, nxt + length);
            } else if is_probe_due {
                let (from, to) = self.recovery.last_segment().expect("a segment in flight");
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

    fn handle(&mut self, event: PathEvent) {
        match event {
            PathEvent::Segment { from, to, timestamp } => {
                let before = self.receiver.unacknowledged;
                let (at_once, dsack) = self.receiver.on_segment(from, to, timestamp);
                if at_once || self.receiver.unacknowledged >= self.path.segments_per_ack {
                    self.acknowledge(dsack);
                } else if before == 0 {
                    self.push(self.now + Duration::from_millis(40), PathEvent::DelayedAck);
                }
            }
            PathEvent::DelayedAck if self.receiver.unacknowledged > 0 => self.acknowledge(None),
            PathEvent::DelayedAck => {}
            PathEvent::Acknowledgement { una, sack, dsack, echo } => {
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
    let (events, random) = (BinaryHeap::new(), path.seed);
    let mut world = World { path, now, events, event_count: 0, random, free_at: now, recovery, receiver };
    let begin = world.now;
    let mut steps = 0_u64;
    while world.recovery.una() < end {
        steps += 1;
        assert!(
            steps < 20 * path.bytes / u64::from(MSS) + 100_000,
            "the transfer should end within the bound of steps"
        );
        world.send_all(end);
        let timeout = world.recovery.poll_timeout().expect("a timer should run while bytes are in flight");
        match world.events.peek() {
            Some(Reverse((at, ..))) if *at <= timeout => {
                let Reverse((at, _, event)) = world.events.pop().expect("the event just peeked at");
                world.now = at;
                world.handle(event);
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
fn throughput_per_mille(path: &Path, outcome: &Outcome) -> u128 {
    u128::from(path.bytes) * 1_000_000_000_000 / outcome.took.as_nanos() / u128::from(path.rate)
}

/// The path with every combination of algorithm, timestamps and SACK.
fn variants(path: &Path) -> Vec<Path> {
    let mut variants = Vec::new();
    for algorithm in [Algorithm::Cubic, Algorithm::NewReno] {
        for has_timestamps in [false, true] {
            for has_sack in [false, true] {
                variants.push(Path { algorithm, has_timestamps, has_sack, ..path.clone() });
            }
        }
    }
    variants
}

fn lan() -> Path {
    Path { one_way: Duration::from_micros(50), rate: 125_000_000, ..Path::default() }
}

#[test]
fn without_random_loss_nine_tenths_of_the_rate_are_used() {
    for path in variants(&Path::default()).iter().filter(|path| path.has_sack) {
        let outcome = run(path);
        assert!(
            throughput_per_mille(path, &outcome) > 900,
            "more than nine tenths of the rate should be used: {path:?} {:?}",
            outcome.counters
        );
        assert_eq!(outcome.counters.timeouts, 0, "there should be no timeouts: {path:?}");
    }
}

#[test]
fn with_sack_random_losses_need_few_timeouts() {
    for algorithm in [Algorithm::Cubic, Algorithm::NewReno] {
        for loss_per_mille in [10, 30] {
            let path = Path { algorithm, loss_per_mille, ..Path::default() };
            let Counters { timeouts, fast_recoveries, .. } = run(&path).counters;
            assert!(
                timeouts * 20 < fast_recoveries,
                "fewer than one in 20 recoveries should need a timeout: {path:?}: {timeouts} timeouts"
            );
        }
        let path = Path { algorithm, loss_per_mille: 10, ..lan() };
        let outcome = run(&path);
        assert!(
            throughput_per_mille(&path, &outcome) > 600,
            "more than 0.6 of the rate should be used: {path:?} {:?}",
            outcome.counters
        );
    }
}

#[test]
fn reordering_does_not_cause_timeouts_or_slow_transfers() {
    for late_per_mille in [50, 200] {
        let path = Path { late_per_mille, extra_delay: Duration::from_millis(3), ..Path::default() };
        let outcome = run(&path);
        assert!(
            throughput_per_mille(&path, &outcome) > 800,
            "more than 0.8 of the rate should be used: {path:?} {:?}",
            outcome.counters
        );
        assert_eq!(outcome.counters.timeouts, 0);
    }
}

#[test]
fn a_gate_that_seldom_opens_causes_few_retransmissions() {
    for interval_ms in [10, 50, 200, 500] {
        for has_timestamps in [false, true] {
            // The queue holds the whole transfer, so that nothing is lost.
            let (gate_interval, queue) = (Duration::from_millis(interval_ms), 8_000_000);
            let path = Path { gate_interval, queue, has_timestamps, bytes: 5_000_000, ..Path::default() };
            let Counters { retransmissions, timeouts, .. } = run(&path).counters;
            assert!(
                timeouts <= 1 && retransmissions <= 10,
                "a gate should cause few retransmissions: {path:?}: {retransmissions}, {timeouts} timeouts"
            );
        }
    }
}

#[test]
fn every_transfer_ends_under_loss_and_reordering() {
    for seed in 0..6 {
        for (loss_per_mille, late_per_mille) in [(0, 0), (30, 0), (0, 200), (100, 200), (300, 0)] {
            let extra_delay = Duration::from_millis(5 * seed);
            let base =
                Path { loss_per_mille, late_per_mille, extra_delay, seed, bytes: 150_000, ..Path::default() };
            let each_segment_acknowledged = Path { segments_per_ack: 1, ..base.clone() };
            for path in variants(&base).iter().chain(&variants(&each_segment_acknowledged)) {
                run(path);
            }
        }
    }
}
