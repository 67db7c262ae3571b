//! Which route a session tries after the loss of its carrier, and when.
//!
//! Another helper is tried at once. Only when all helpers have failed does the session return to its server's own link
//! port. The sessions that lost the same helper spread their return: each picks a random time within a window, which grows
//! when the server does not accept the session. Helpers are tried meanwhile, because any helper relieves the hot server.

use core::time::Duration;

use spillway_transport::Time;

/// The longest interval between two attempts. It doubles with each round of all routes, up to [`AGAIN_MAX`]. The interval is
/// random up to this bound, because many sessions lose the same helper at once.
const AGAIN_MIN: Duration = Duration::from_millis(2);
const AGAIN_MAX: Duration = Duration::from_millis(500);

/// How sessions spread their return to the server's own link port: `n` sessions arrive at an average rate of `n / window`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// A session returns within this time after the attempts at all helpers have failed.
    pub window: Duration,
    /// The window doubles with each attempt that the server does not accept, up to this bound, which also bounds the time
    /// between two attempts.
    pub window_max: Duration,
}

impl Default for Pace {
    fn default() -> Pace {
        Pace { window: Duration::from_secs(1), window_max: Duration::from_secs(8) }
    }
}

impl Pace {
    /// The wait before the next attempt at the server, after `refused` attempts in a row that it did not accept. `random`:
    /// from 0 to 1.
    pub fn wait(&self, refused: u32, random: f64) -> Duration {
        let window = self.window.saturating_mul(2u32.saturating_pow(refused.min(31)));
        window.min(self.window_max).mul_f64(random.clamp(0.0, 1.0))
    }
}

/// The next attempt to attach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// The route's index.
    pub route: usize,
    /// When to try the route.
    pub at: Time,
}

/// A session's routes: link ports of helpers, and optionally the server's own. The caller supplies the time, and random
/// numbers from 0 to 1.
#[derive(Clone, Debug)]
pub struct Routes {
    count: usize,
    /// Index of the server's own port, if it is known.
    own: Option<usize>,
    pace: Pace,
    /// The route that is tried, or carries the session; `count` if the next attempt goes to the first route.
    at: usize,
    /// Failures since a route last carried the session, its loss included; `helpers_failed` counts those of helpers.
    failed: u32,
    helpers_failed: usize,
    /// The route that last carried the session was a helper's.
    was_helped: bool,
    /// When the session may return to the server's own port.
    turn: Option<Time>,
    /// Attempts at the server's own port in a row that failed.
    refused: u32,
}

impl Routes {
    /// `count` routes; the first is tried first. `own`: index of the server's own port; if it is unknown, all routes are
    /// treated alike and none is paced.
    pub fn new(count: usize, own: Option<usize>, pace: Pace) -> Routes {
        let own = own.filter(|own| *own < count);
        Routes {
            count: count.max(1),
            own,
            pace,
            at: 0,
            failed: 0,
            helpers_failed: 0,
            was_helped: false,
            turn: None,
            refused: 0,
        }
    }

    /// The route that is tried, or carries the session.
    pub fn at(&self) -> usize {
        self.at
    }

    /// The route to try now: the first one if [`replace`](Self::replace) removed the route that was due.
    pub fn attempt(&mut self) -> usize {
        if self.at >= self.count {
            self.at = match self.own.filter(|_| self.was_helped) {
                Some(own) => self.helper_after(self.at, own),
                None => self.after(self.at),
            };
        }
        self.at
    }

    /// Replaces the routes. `at`: the new index of the present route, if it is still among them. The present route stays in
    /// use in any case until it is lost.
    pub fn replace(&mut self, count: usize, own: Option<usize>, at: Option<usize>) {
        self.count = count.max(1);
        self.own = own.filter(|own| *own < self.count);
        // `count` is one beyond the last index: the next route is the first.
        self.at = at.filter(|at| *at < self.count).unwrap_or(self.count);
        (self.failed, self.helpers_failed) = (0, 0);
    }

    /// The application or the server chose this route.
    pub fn choose(&mut self, route: usize) {
        (self.at, self.turn) = (route.min(self.count - 1), None);
    }

    /// The present route carries the session.
    pub fn attached(&mut self) {
        (self.failed, self.helpers_failed, self.refused, self.turn) = (0, 0, 0, None);
        self.was_helped = self.own != Some(self.at);
    }

    /// The present route failed, or its carrier is lost. Returns the next attempt; see [`turn`](Self::turn), too.
    pub fn lost(&mut self, now: Time, mut random: impl FnMut() -> f64) -> Attempt {
        // The first round of routes is quick; the interval doubles with each further round.
        let rounds = self.failed / u32::try_from(self.count).unwrap_or(u32::MAX);
        let longest = (AGAIN_MIN * 2u32.saturating_pow(rounds.min(16))).min(AGAIN_MAX);
        let at = now + longest.mul_f64(random());
        let was_carried = self.failed == 0;
        self.failed = self.failed.saturating_add(1);
        let Some(own) = self.own.filter(|_| self.was_helped) else {
            self.at = self.after(self.at);
            return Attempt { route: self.at, at };
        };
        if self.at == own {
            self.refused = self.refused.saturating_add(1);
        } else {
            self.helpers_failed += 1;
        }
        if self.helpers_failed >= self.count - 1 {
            match self.turn {
                // The helper was lost before the deadline of its drain: the shorter window suffices.
                Some(turn) if was_carried => self.turn = Some(turn.min(self.draw(now, random()))),
                Some(_) => {}
                None => self.turn = Some(self.draw(now, random())),
            }
        }
        match self.turn.filter(|turn| *turn <= at) {
            Some(turn) => self.take(own, turn),
            None => {
                self.at = self.helper_after(self.at, own);
                Attempt { route: self.at, at }
            }
        }
    }

    fn after(&self, route: usize) -> usize {
        if route + 1 >= self.count { 0 } else { route + 1 }
    }

    fn helper_after(&self, route: usize, own: usize) -> usize {
        let next = self.after(route);
        if next == own { self.after(next) } else { next }
    }

    /// The server asks the session to move within this time: from its own port to a helper, or from a helper to its own
    /// port. Returns when to go and where; `None` without such a route.
    pub fn sent_away(&mut self, now: Time, deadline: Duration, random: f64) -> Option<Attempt> {
        let own = self.own?;
        let route = if self.at == own { self.helper_after(own, own) } else { own };
        // The last quarter of the deadline is a margin for late clients.
        (route != self.at).then(|| Attempt { route, at: now + deadline.mul_f64(random * 0.75) })
    }

    fn draw(&self, now: Time, random: f64) -> Time {
        now + self.pace.wait(self.refused, random)
    }

    /// The helper that carries the session drains within this time. Returns until when the session stays, if the server's
    /// own port is the only other route; `None`: leave the helper at once.
    pub fn drained(&mut self, now: Time, deadline: Duration, random: f64) -> Option<Time> {
        let is_last = self.count == 2 && self.own.is_some_and(|own| own != self.at);
        if is_last && self.was_helped && !deadline.is_zero() {
            // The last quarter of the deadline is a margin for late clients.
            self.turn.get_or_insert(now + deadline.mul_f64(random * 0.75));
        }
        self.turn
    }

    /// When the session may return to the server's own port. Helpers may be tried until then.
    pub fn turn(&self) -> Option<Time> {
        self.turn
    }

    /// The attempt at the server's own port, if its time has come. It replaces any other attempt.
    pub fn take_turn(&mut self, now: Time) -> Option<Attempt> {
        let (own, turn) = (self.own?, self.turn.filter(|turn| *turn <= now)?);
        Some(self.take(own, turn))
    }

    fn take(&mut self, own: usize, at: Time) -> Attempt {
        (self.turn, self.at) = (None, own);
        Attempt { route: own, at }
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    const MS: u64 = 1_000_000;

    fn at(ms: u64) -> Time {
        Time(ms * MS)
    }

    /// Helped by route 0; the last of `count` routes is the server's own port.
    fn helped(count: usize) -> Routes {
        let mut routes = Routes::new(count, Some(count - 1), Pace::default());
        routes.attached();
        routes
    }

    #[test]
    fn another_helper_is_tried_at_once() {
        let mut routes = helped(3);
        assert_eq!(routes.lost(at(0), || 1.0), Attempt { route: 1, at: at(2) });
        assert_eq!(routes.turn(), None);
        routes.attached();
        assert_eq!(routes.lost(at(0), || 1.0), Attempt { route: 0, at: at(2) }, "and not the server");
    }

    #[test]
    fn without_a_helper_the_server_has_its_window_and_helpers_are_tried_meanwhile() {
        let mut routes = helped(3);
        routes.lost(at(0), || 0.5);
        assert_eq!(routes.lost(at(0), || 0.5).route, 0);
        assert_eq!(routes.turn(), Some(at(500)));
        let (mut now, mut tried) = (at(0), 0);
        loop {
            let next = routes.lost(now, || 0.5);
            now = next.at;
            if next.route == 2 {
                break;
            }
            tried += 1;
        }
        assert_eq!(now, at(500), "then it is its turn");
        assert!((4..40).contains(&tried), "{tried} attempts at helpers");
    }

    #[test]
    fn a_helper_that_does_not_answer_does_not_hold_the_turn_up() {
        let mut routes = helped(2);
        assert_eq!(routes.lost(at(0), || 0.5).route, 0);
        assert_eq!((routes.take_turn(at(499)), routes.at()), (None, 0));
        assert_eq!(routes.take_turn(at(500)), Some(Attempt { route: 1, at: at(500) }));
    }

    #[test]
    fn the_window_grows_up_to_its_bound_while_the_server_refuses() {
        let mut routes = helped(2);
        let mut waited = Vec::new();
        let mut now = at(0);
        for _ in 0..6 {
            routes.lost(now, || 0.999_999);
            let turn = routes.turn().unwrap();
            waited.push((turn.since(now).as_secs_f64()).round() as u64);
            now = turn;
            routes.take_turn(now).unwrap();
        }
        assert_eq!(waited, [1, 2, 4, 8, 8, 8]);
        routes.attached();
        assert!(!routes.was_helped);
    }

    #[test]
    fn whoever_was_not_helped_is_not_paced() {
        let mut routes = Routes::new(2, Some(1), Pace::default());
        assert_eq!(routes.lost(at(0), || 1.0), Attempt { route: 1, at: at(2) }, "at the beginning");
        routes.attached();
        assert_eq!(routes.lost(at(0), || 1.0), Attempt { route: 0, at: at(2) });
        assert_eq!(
            routes.lost(at(2), || 1.0),
            Attempt { route: 1, at: at(4) },
            "a server that was restarted"
        );
        assert_eq!(routes.lost(at(4), || 1.0), Attempt { route: 0, at: at(8) }, "ever more slowly");
        let mut unknown = Routes::new(2, None, Pace::default());
        unknown.attached();
        assert_eq!((unknown.lost(at(0), || 1.0).route, unknown.lost(at(0), || 1.0).route), (1, 0));
        assert_eq!(unknown.turn(), None);
    }

    #[test]
    fn a_helper_that_goes_is_left_within_its_deadline() {
        let mut routes = helped(2);
        assert_eq!(routes.drained(at(0), Duration::from_secs(20), 0.5), Some(at(7_500)));
        assert_eq!(routes.drained(at(1), Duration::from_secs(20), 0.9), Some(at(7_500)), "once");
        assert_eq!(routes.lost(at(7_500), || 0.5), Attempt { route: 1, at: at(7_500) });
        // The helper is lost before its deadline: the session returns within a window.
        let mut routes = helped(2);
        routes.drained(at(0), Duration::from_secs(20), 0.5);
        routes.lost(at(100), || 0.5);
        assert_eq!(routes.turn(), Some(at(600)));
        // At once, if the deadline is 0 or there is another helper.
        assert_eq!(helped(2).drained(at(0), Duration::ZERO, 0.5), None);
        assert_eq!(helped(3).drained(at(0), Duration::from_secs(9), 0.5), None);
    }

    #[test]
    fn a_server_sends_sessions_to_helpers_and_back() {
        let mut routes = helped(3);
        let back = routes.sent_away(at(0), Duration::from_secs(20), 0.5).unwrap();
        assert_eq!(back, Attempt { route: 2, at: at(7_500) });
        routes.choose(back.route);
        routes.attached();
        let helper = routes.sent_away(at(8_000), Duration::ZERO, 0.5).unwrap();
        assert_eq!(helper, Attempt { route: 0, at: at(8_000) });
        assert_eq!(Routes::new(1, Some(0), Pace::default()).sent_away(at(0), Duration::ZERO, 0.5), None);
        assert_eq!(Routes::new(2, None, Pace::default()).sent_away(at(0), Duration::ZERO, 0.5), None);
    }

    #[test]
    fn other_routes_leave_the_present_one_in_use() {
        let mut routes = helped(3);
        routes.replace(4, Some(0), Some(2));
        assert_eq!(routes.at(), 2);
        assert_eq!(routes.lost(at(0), || 1.0).route, 3, "the next of the new ones");
        routes.attached();
        routes.replace(2, Some(0), None);
        assert_eq!(routes.lost(at(0), || 1.0).route, 1, "one that is no longer among them: the first helper");
        routes.replace(0, None, None);
        assert_eq!(routes.lost(at(0), || 1.0).route, 0);
    }

    #[test]
    fn an_attempt_at_a_route_that_is_gone_goes_to_the_first_of_the_new_ones() {
        let mut routes = helped(3);
        routes.lost(at(0), || 1.0);
        routes.replace(2, Some(0), None);
        assert_eq!(routes.attempt(), 1, "a helper");
        let mut routes = Routes::new(2, None, Pace::default());
        routes.replace(1, None, None);
        assert_eq!((routes.attempt(), routes.at()), (0, 0));
        routes.replace(1, None, Some(0));
        assert_eq!(routes.attempt(), 0);
    }

    #[test]
    fn the_only_route_is_tried_again() {
        for own in [None, Some(0), Some(7)] {
            let mut routes = Routes::new(1, own, Pace::default());
            routes.attached();
            assert_eq!(routes.lost(at(0), || 1.0).route, 0);
            assert_eq!(routes.turn(), None);
        }
    }
}
