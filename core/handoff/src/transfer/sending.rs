//! Which part of a state is sent when.
//!
//! A part is sent up to [`ATTEMPTS`](crate::migration::ATTEMPTS) times, at intervals that double. The number of parts
//! in flight is bounded by the [`Window`] to the target, which the parts of all moves to the target share.

use alloc::collections::VecDeque;
use core::time::Duration;

use spillway_transport::Time;
use spillway_wire::Chunks;
use spillway_wire::handoff::{Body, Received};

use super::parts::Parts;
use super::window::{WINDOW, Window};
use crate::migration::{ATTEMPTS, MoveTimes, doubled};

/// What a source must send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    Part(u16),
    /// A part was not acknowledged in all attempts.
    Failed,
}

/// A part that was sent and not acknowledged.
#[derive(Clone, Copy, Debug)]
struct InFlight {
    sent_at: Time,
    due: Time,
    attempts: u32,
}

/// A state that is being sent. An empty one is sent as a single message, *lent*.
#[derive(Debug)]
pub(crate) struct Sending {
    parts: Parts,
    first_interval: Duration,
    /// The parts from `first` on that were sent; `None`: acknowledged. The first one is in flight. An acknowledgement names at
    /// most 64 parts behind the first one that is missing, so that the parts are about as few as the window allows.
    sent: VecDeque<Option<InFlight>>,
    first: u16,
    in_flight: usize,
    window: Window,
    /// No part in flight is due before this time.
    due: Time,
}

impl Sending {
    /// `None` if the state has too many parts. `window`: that of the target.
    pub(crate) fn new(now: Time, state: Chunks, times: MoveTimes, window: Window) -> Option<Sending> {
        let parts = Parts::new(state)?;
        let sent = VecDeque::with_capacity(usize::from(parts.count()).min(WINDOW));
        Some(Sending {
            parts,
            first_interval: times.first_interval,
            sent,
            first: 0,
            in_flight: 0,
            window,
            due: now,
        })
    }

    pub(crate) fn state(&self) -> &Chunks {
        self.parts.state()
    }

    /// Whether all parts were acknowledged.
    pub(crate) fn is_complete(&self) -> bool {
        self.first == self.parts.count()
    }

    /// The first part that was never sent.
    fn next(&self) -> u16 {
        u16::try_from(self.sent.len()).map_or(u16::MAX, |sent| self.first.saturating_add(sent))
    }

    /// One part may always be in flight: otherwise a state would wait until the parts of other states, which may be lost, were
    /// acknowledged, and the target would give up.
    fn may_send_new(&self) -> bool {
        self.next() < self.parts.count() && (self.in_flight == 0 || self.window.has_room())
    }

    /// When the next part is due; `None` if all were acknowledged.
    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        if self.may_send_new() {
            return Some(Time::ZERO);
        }
        (self.in_flight > 0).then_some(self.due)
    }

    /// The part that is due, if any. Call again until it returns `None`.
    pub(crate) fn poll(&mut self, now: Time) -> Option<Due> {
        let timeout = self.window.timeout(self.first_interval);
        if now >= self.due
            && let Some((at, part)) =
                self.sent.iter_mut().enumerate().find_map(|(at, part)| {
                    part.as_mut().filter(|part| part.due <= now).map(|part| (at, part))
                })
        {
            if part.attempts >= ATTEMPTS {
                return Some(Due::Failed);
            }
            part.due = now + doubled(timeout, part.attempts);
            part.attempts += 1;
            self.window.halve(now, timeout);
            return u16::try_from(at).ok().map(|at| Due::Part(self.first + at));
        }
        if self.may_send_new() {
            let number = self.next();
            let due = now + timeout;
            self.due = if self.in_flight == 0 { due } else { self.due.min(due) };
            self.sent.push_back(Some(InFlight { sent_at: now, due, attempts: 1 }));
            self.in_flight += 1;
            self.window.add();
            return Some(Due::Part(number));
        }
        self.due = self.sent.iter().flatten().map(|part| part.due).min().unwrap_or(self.due);
        None
    }

    /// The message that carries a part.
    pub(crate) fn body(&mut self, number: u16) -> Option<Body<'_>> {
        self.parts.body(number)
    }

    /// The target has these parts. Parts that were never sent do not count.
    pub(crate) fn handle_received(&mut self, now: Time, received: Received) {
        let before = self.in_flight;
        let mut newest = None;
        for (number, part) in (self.first..).zip(&mut self.sent) {
            if let Some(one) = part.take_if(|_| received.contains(number)) {
                self.in_flight -= 1;
                newest = Some(one);
            }
        }
        while self.sent.front().is_some_and(Option::is_none) {
            self.sent.pop_front();
            self.first += 1;
        }
        // The acknowledgement of a part that was sent twice may be that of either copy (RFC 6298 §3).
        if let Some(newest) = newest.filter(|newest| newest.attempts == 1) {
            self.window.measured(now.since(newest.sent_at));
        }
        self.window.remove(before - self.in_flight);
        self.window.grow(before - self.in_flight);
    }
}

/// The parts of a move that has ended are not in flight any more.
impl Drop for Sending {
    fn drop(&mut self) {
        self.window.remove(self.in_flight);
    }
}

#[cfg(test)]
mod tests {
    use spillway_wire::handoff::PART_BYTES;

    use super::*;
    use crate::transfer::window::WINDOW_MAX;

    fn sending(parts: usize) -> Sending {
        sending_in(parts, &Window::new())
    }

    fn sending_in(parts: usize, window: &Window) -> Sending {
        let state = Chunks::from(alloc::vec![7; parts * PART_BYTES]);
        Sending::new(Time(0), state, MoveTimes::default(), window.clone()).unwrap()
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
        sending.handle_received(ms(0), Received { through: 64, beyond: 0 });
        assert_eq!(burst(&mut sending, ms(0)), 2 * WINDOW);
        sending.handle_received(ms(0), Received { through: 192, beyond: 0 });
        assert_eq!(burst(&mut sending, ms(0)), WINDOW_MAX, "the window has a bound");
        sending.handle_received(ms(0), Received { through: 448, beyond: 0 });
        assert_eq!(burst(&mut sending, ms(0)), 52);
        sending.handle_received(ms(0), Received { through: 500, beyond: 0 });
        assert!(sending.is_complete() && sending.poll_timeout().is_none());
    }

    #[test]
    fn only_parts_that_are_missing_are_sent_again() {
        let mut sending = sending(10);
        assert_eq!(burst(&mut sending, ms(0)), 10);
        sending.handle_received(ms(0), Received { through: 3, beyond: 0b101 });
        let again: alloc::vec::Vec<_> = core::iter::from_fn(|| sending.poll(ms(1))).collect();
        assert_eq!(again, [3, 5, 7, 8, 9].map(Due::Part));
    }

    #[test]
    fn an_acknowledgement_of_parts_that_were_never_sent_changes_nothing() {
        let mut sending = sending(100);
        burst(&mut sending, ms(0));
        sending.handle_received(ms(0), Received { through: 100, beyond: 0 });
        assert!(!sending.is_complete(), "36 parts were never sent");
        assert_eq!(burst(&mut sending, ms(0)), 36);
    }

    #[test]
    fn an_empty_state_is_one_message() {
        let mut sending = Sending::new(Time(0), Chunks::new(), MoveTimes::default(), Window::new()).unwrap();
        assert_eq!(sending.poll(Time(0)), Some(Due::Part(0)));
        assert_eq!(sending.body(0), Some(Body::Lent));
        sending.handle_received(ms(0), Received { through: 1, beyond: 0 });
        assert!(sending.is_complete());
    }

    #[test]
    fn states_to_one_server_share_its_window_and_each_has_one_part_in_flight() {
        let window = Window::new();
        let mut all: alloc::vec::Vec<Sending> = (0..32).map(|_| sending_in(110, &window)).collect();
        let sent: alloc::vec::Vec<usize> = all.iter_mut().map(|sending| burst(sending, ms(0))).collect();
        assert_eq!((sent[0], &sent[1..]), (WINDOW, &[1; 31][..]));
        assert_eq!(all[1].poll_timeout(), Some(ms(1)), "a state without room waits for its own part only");
        all[0].handle_received(ms(0), Received { through: 64, beyond: 0 });
        assert_eq!(all[1].poll_timeout(), Some(Time::ZERO));
        assert_eq!(burst(&mut all[0], ms(0)), 46);
        assert_eq!(burst(&mut all[1], ms(0)), 2 * WINDOW - 31 - 46);
        drop(all);
        assert_eq!(window.in_flight(), 0, "parts of moves that have ended are not in flight");
    }

    #[test]
    fn a_part_whose_acknowledgement_is_late_because_of_load_is_not_sent_again() {
        let (window, us) = (Window::new(), |us: u64| Time(us * 1000));
        let mut lost = 0;
        // Acknowledgements take longer and longer, up to 3 ms.
        for round in 1..=60 {
            let mut sending = sending_in(2, &window);
            assert_eq!(burst(&mut sending, us(0)), 2);
            let answered_at = us(50 * round);
            while sending.poll_timeout().unwrap() < answered_at {
                let now = sending.poll_timeout().unwrap();
                lost += burst(&mut sending, now);
            }
            sending.handle_received(answered_at, Received { through: 2, beyond: 0 });
            assert!(sending.is_complete());
        }
        assert_eq!(lost, 0);
    }
}
