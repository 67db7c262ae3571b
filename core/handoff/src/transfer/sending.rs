//! Which part of a state is sent when.
//!
//! A part is sent up to [`ATTEMPTS`](crate::migration::ATTEMPTS) times, at intervals that double. The number of parts
//! in flight is bounded by a window, which grows with acknowledgements and is halved when parts are lost.

use alloc::collections::BTreeMap;

use spillway_transport::Time;
use spillway_wire::handoff::{Body, Part, Received, parts_of};
use spillway_wire::{Bytes, Chunks};

use crate::migration::{ATTEMPTS, MoveTimes};

/// Number of parts that may be in flight: at the beginning, at least and at most.
const WINDOW: usize = 64;
const WINDOW_MIN: usize = 4;
const WINDOW_MAX: usize = 256;

/// What a source must send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    Part(u16),
    /// A part was not acknowledged in all attempts.
    Failed,
}

#[derive(Clone, Copy, Debug)]
struct InFlight {
    due: Time,
    attempts: u32,
}

/// A state that is being sent. An empty one is sent as a single message, *lent*.
#[derive(Clone, Debug)]
pub(crate) struct Sending {
    state: Chunks,
    /// The bytes of the part that is being sent.
    part: Bytes,
    times: MoveTimes,
    parts: u16,
    /// The first part that was never sent.
    next: u16,
    in_flight: BTreeMap<u16, InFlight>,
    window: usize,
    /// The window is not halved again before this time.
    halved_until: Time,
    /// No part in flight is due before this time.
    due: Time,
}

impl Sending {
    /// `None` if the state has too many parts.
    pub(crate) fn new(now: Time, state: Chunks, times: MoveTimes) -> Option<Sending> {
        let parts = u16::try_from(parts_of(state.len()).max(1)).ok()?;
        let (in_flight, window) = (BTreeMap::new(), WINDOW);
        Some(Sending {
            state,
            part: Bytes::new(),
            times,
            parts,
            next: 0,
            in_flight,
            window,
            halved_until: now,
            due: now,
        })
    }

    pub(crate) fn state(&self) -> &Chunks {
        &self.state
    }

    /// Whether all parts were acknowledged.
    pub(crate) fn is_complete(&self) -> bool {
        self.next == self.parts && self.in_flight.is_empty()
    }

    fn may_send_new(&self) -> bool {
        self.next < self.parts && self.in_flight.len() < self.window
    }

    /// When the next part is due; `None` if all were acknowledged.
    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        if self.may_send_new() {
            return Some(Time::ZERO);
        }
        (!self.in_flight.is_empty()).then_some(self.due)
    }

    /// The part that is due, if any. Call again until it returns `None`.
    pub(crate) fn poll(&mut self, now: Time) -> Option<Due> {
        if now >= self.due
            && let Some((number, part)) = self.in_flight.iter_mut().find(|(_, part)| part.due <= now)
        {
            if part.attempts >= ATTEMPTS {
                return Some(Due::Failed);
            }
            part.due = now + self.times.interval(part.attempts);
            part.attempts += 1;
            let number = *number;
            if now >= self.halved_until {
                self.window = (self.window / 2).max(WINDOW_MIN);
                self.halved_until = now + self.times.interval(0);
            }
            return Some(Due::Part(number));
        }
        if self.may_send_new() {
            let number = self.next;
            self.next += 1;
            let due = now + self.times.interval(0);
            self.due = if self.in_flight.is_empty() { due } else { self.due.min(due) };
            self.in_flight.insert(number, InFlight { due, attempts: 1 });
            return Some(Due::Part(number));
        }
        self.due = self.in_flight.values().map(|part| part.due).min().unwrap_or(self.due);
        None
    }

    /// The message that carries a part. A part that is in one chunk of the state is not copied.
    pub(crate) fn body(&mut self, number: u16) -> Option<Body<'_>> {
        let total = self.state.len();
        if total == 0 {
            return Some(Body::Lent);
        }
        self.part = self.state.joined(Part::place(total, number)?)?;
        Part::at(total, number, &self.part).map(Body::State)
    }

    /// The target has these parts. Parts that were never sent do not count.
    pub(crate) fn handle_received(&mut self, received: Received) {
        let before = self.in_flight.len();
        self.in_flight.retain(|number, _| !received.contains(*number));
        self.window = (self.window + before - self.in_flight.len()).min(WINDOW_MAX);
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use spillway_wire::handoff::PART_BYTES;

    use super::*;

    fn sending(parts: usize) -> Sending {
        let state = Chunks::from(alloc::vec![7; parts * PART_BYTES]);
        Sending::new(Time(0), state, MoveTimes::default()).unwrap()
    }

    fn burst(sending: &mut Sending, now: Time) -> usize {
        core::iter::from_fn(|| sending.poll(now)).take_while(|due| *due != Due::Failed).count()
    }

    fn ms(milliseconds: u64) -> Time {
        Time::ZERO + Duration::from_millis(milliseconds)
    }

    #[test]
    fn a_part_is_sent_five_times_at_intervals_that_double() {
        let mut sending = sending(1);
        let mut times = alloc::vec::Vec::new();
        let failed_at = loop {
            let now = sending.poll_timeout().unwrap();
            match sending.poll(now) {
                Some(Due::Part(0)) => times.push(now.as_nanos() / 1_000_000),
                Some(Due::Failed) => break now,
                None => {}
                other => panic!("{other:?}"),
            }
        };
        assert_eq!((times, failed_at), (alloc::vec![0, 1, 3, 7, 15], ms(31)));
    }

    #[test]
    fn parts_on_their_way_are_bounded_and_acknowledgements_make_room() {
        let mut sending = sending(500);
        assert_eq!(burst(&mut sending, ms(0)), WINDOW);
        sending.handle_received(Received { through: 64, beyond: 0 });
        assert_eq!(burst(&mut sending, ms(0)), 2 * WINDOW);
        sending.handle_received(Received { through: 192, beyond: 0 });
        assert_eq!(burst(&mut sending, ms(0)), WINDOW_MAX, "the window has a bound");
        sending.handle_received(Received { through: 448, beyond: 0 });
        assert_eq!(burst(&mut sending, ms(0)), 52);
        sending.handle_received(Received { through: 500, beyond: 0 });
        assert!(sending.is_complete() && sending.poll_timeout().is_none());
    }

    #[test]
    fn only_parts_that_are_missing_are_sent_again() {
        let mut sending = sending(10);
        assert_eq!(burst(&mut sending, ms(0)), 10);
        sending.handle_received(Received { through: 3, beyond: 0b101 });
        let again: alloc::vec::Vec<_> = core::iter::from_fn(|| sending.poll(ms(1))).collect();
        assert_eq!(again, [3, 5, 7, 8, 9].map(Due::Part));
    }

    #[test]
    fn an_acknowledgement_of_parts_that_were_never_sent_changes_nothing() {
        let mut sending = sending(100);
        burst(&mut sending, ms(0));
        sending.handle_received(Received { through: 100, beyond: 0 });
        assert!(!sending.is_complete(), "36 parts were never sent");
        assert_eq!(burst(&mut sending, ms(0)), 36);
    }

    #[test]
    fn parts_of_a_state_in_several_chunks_make_the_state() {
        let bytes: alloc::vec::Vec<u8> = (0..5 * PART_BYTES + 7).map(|at| (at % 251) as u8).collect();
        let state: Chunks = bytes.chunks(2 * PART_BYTES - 3).map(Bytes::copy_from_slice).collect();
        let mut sending = Sending::new(Time(0), state, MoveTimes::default()).unwrap();
        for number in 0..6 {
            assert_eq!(sending.body(number), Part::of(&bytes, number).map(Body::State));
        }
        assert_eq!(sending.body(6), None);
    }

    #[test]
    fn an_empty_state_is_one_message() {
        let mut sending = Sending::new(Time(0), Chunks::new(), MoveTimes::default()).unwrap();
        assert_eq!(sending.poll(Time(0)), Some(Due::Part(0)));
        assert_eq!(sending.body(0), Some(Body::Lent));
        sending.handle_received(Received { through: 1, beyond: 0 });
        assert!(sending.is_complete());
    }
}
