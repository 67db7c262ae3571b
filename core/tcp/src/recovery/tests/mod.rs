//! Tests that read as packet traces: segments are sent or acknowledged at given times, and the result is checked.
//!
//! Positions are in segments of 1000 bytes: 3 is the end of the third segment.

extern crate std;

mod any;
mod fast_retransmit;
mod model;
mod moving;
mod path;
mod probes;
mod spurious;
mod timeouts;
mod windows;
mod without_sack;

use alloc::vec::Vec;
use core::ops::{Deref, DerefMut};

use super::*;
use crate::seq::FIRST;
use crate::timer::Timer;

const MSS: u32 = 1000;

/// The first byte of the stream.
const BASE: Seq = FIRST + 1;

fn ms(ms: u64) -> Time {
    Time(ms * 1_000_000)
}

fn ack(una: Seq) -> Ack<'static> {
    Ack { una, sack: &[], dsack: None, is_duplicate: false, has_sack: true, rtt: None, peer_window: 1 << 20 }
}

fn seq_at(segments: u64) -> Seq {
    BASE + 1000 * segments
}

fn ranges(segments: &[(u64, u64)]) -> Vec<(Seq, Seq)> {
    segments.iter().map(|&(from, to)| (seq_at(from), seq_at(to))).collect()
}

/// The effect of an expired timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TimeoutOutcome {
    Nothing,
    Probe,
    /// Segments are lost, by [`Timer::Reordering`].
    Overdue,
    Retransmit,
}

/// A [`Recovery`] with its timers, as a connection has both.
#[derive(Clone, Debug)]
struct Sender {
    recovery: Recovery,
    timers: Timers,
}

impl Sender {
    fn new(now: Time, settings: &Settings, mss: u32, has_sack: bool, first: Seq) -> Sender {
        Sender { recovery: Recovery::new(now, settings, mss, has_sack, first), timers: Timers::default() }
    }

    fn import(now: Time, settings: &Settings, state: &RecoveryState) -> Option<Sender> {
        let mut timers = Timers::default();
        let recovery = Recovery::import(now, settings, state, &mut timers)?;
        Some(Sender { recovery, timers })
    }

    fn export(&self, now: Time) -> RecoveryState {
        self.recovery.export(now, &self.timers)
    }

    fn on_sent(&mut self, now: Time, to: Seq) {
        self.recovery.on_sent(now, to, &mut self.timers);
    }

    fn on_retransmitted(&mut self, now: Time, from: Seq, to: Seq) {
        self.recovery.on_retransmitted(now, from, to, &mut self.timers);
    }

    fn on_probe(&mut self, now: Time) {
        self.recovery.on_probe(now, &mut self.timers);
    }

    fn on_ack(&mut self, now: Time, ack: &Ack<'_>) -> Acked {
        self.recovery.on_ack(now, ack, &mut self.timers)
    }

    fn poll_timeout(&self) -> Option<Time> {
        Some(self.timers.next()).filter(|at| at.0 < u64::MAX)
    }

    /// Handles the first timer that has expired.
    fn handle_timeout(&mut self, now: Time) -> TimeoutOutcome {
        match Recovery::first_expired(now, &self.timers) {
            None => TimeoutOutcome::Nothing,
            Some(Timer::Reordering) if self.recovery.on_overdue(now, &mut self.timers) => {
                TimeoutOutcome::Overdue
            }
            Some(Timer::Reordering) => TimeoutOutcome::Nothing,
            Some(Timer::Probe) => {
                self.recovery.on_probe_due(now, &mut self.timers);
                TimeoutOutcome::Probe
            }
            Some(Timer::Retransmission) => {
                self.recovery.on_timeout(now, &mut self.timers);
                TimeoutOutcome::Retransmit
            }
            Some(timer) => panic!("{timer:?} does not belong to loss recovery"),
        }
    }
}

impl Deref for Sender {
    type Target = Recovery;

    fn deref(&self) -> &Recovery {
        &self.recovery
    }
}

impl DerefMut for Sender {
    fn deref_mut(&mut self) -> &mut Recovery {
        &mut self.recovery
    }
}

/// A sender, established at 100 ms with a round trip of 100 ms: its timeout is 300 ms, its window ten segments.
struct Trace {
    recovery: Sender,
    now: Time,
    has_sack: bool,
}

impl Trace {
    fn with(settings: &Settings, has_sack: bool) -> Trace {
        let mut recovery = Sender::new(ms(0), settings, MSS, has_sack, FIRST);
        recovery.on_sent(ms(0), BASE);
        recovery.on_ack(ms(100), &Ack { has_sack, ..ack(BASE) });
        Trace { recovery, now: ms(100), has_sack }
    }

    /// With SACK and without tail loss probes, which `probes` tests.
    fn without_probes() -> Trace {
        Trace::with(&Settings { tail_loss_probe: false, ..newreno() }, true)
    }

    fn without_sack() -> Trace {
        Trace::with(&newreno(), false)
    }

    fn at(&mut self, at_ms: u64) -> &mut Trace {
        assert!(ms(at_ms) >= self.now, "the times of a trace should not decrease");
        self.now = ms(at_ms);
        self
    }

    /// Sends new segments regardless of the window.
    fn send(&mut self, segments: u64) -> &mut Trace {
        for _ in 0..segments {
            self.recovery.on_sent(self.now, self.recovery.nxt() + 1000);
        }
        self
    }

    /// Sends as many new segments as the window permits, and returns their number.
    fn fill(&mut self) -> u64 {
        let before = self.recovery.nxt();
        while self.recovery.send_room() >= 1000 {
            self.send(1);
        }
        (self.recovery.nxt() - before) / 1000
    }

    fn handle_ack(&mut self, ack: &Ack<'_>) -> Acked {
        self.recovery.on_ack(self.now, &Ack { has_sack: self.has_sack, ..*ack })
    }

    fn ack(&mut self, una: u64) -> Acked {
        self.handle_ack(&ack(seq_at(una)))
    }

    fn sack(&mut self, una: u64, blocks: &[(u64, u64)]) -> Acked {
        let is_duplicate = seq_at(una) == self.recovery.una();
        self.handle_ack(&Ack { sack: &ranges(blocks), is_duplicate, ..ack(seq_at(una)) })
    }

    fn dsack(&mut self, una: u64, block: (u64, u64)) -> Acked {
        self.handle_ack(&Ack {
            dsack: Some((seq_at(block.0), seq_at(block.1))),
            is_duplicate: true,
            ..ack(seq_at(una))
        })
    }

    fn duplicates(&mut self, count: u32) -> &mut Trace {
        for _ in 0..count {
            self.handle_ack(&Ack { is_duplicate: true, ..ack(self.recovery.una()) });
        }
        self
    }

    /// Retransmits all ranges that may be retransmitted now, and returns them.
    fn retransmit(&mut self) -> Vec<(u64, u64)> {
        let mut sent = Vec::new();
        while let Some((from, to)) = self.recovery.next_retransmission(MSS) {
            self.recovery.on_retransmitted(self.now, from, to);
            sent.push(((from - BASE) / 1000, (to - BASE) / 1000));
        }
        sent
    }

    fn handle_timer(&mut self) -> TimeoutOutcome {
        self.recovery.handle_timeout(self.now)
    }

    /// Advances the time until the retransmission timeout has fired.
    fn wait_for_timeout(&mut self) -> &mut Trace {
        let before = self.recovery.counters().timeouts;
        while self.recovery.counters().timeouts == before {
            self.now = self.recovery.poll_timeout().expect("a timer should run while bytes are in flight");
            self.handle_timer();
        }
        self
    }

    fn next_timer_ms(&self) -> Option<u64> {
        self.recovery.poll_timeout().map(|at| at.0 / 1_000_000)
    }
}

fn newreno() -> Settings {
    Settings { algorithm: Algorithm::NewReno, ..Settings::default() }
}
