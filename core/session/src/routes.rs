//! Which route a session tries after the loss of its carrier, and when.
//!
//! Another helper is tried at once. Only when all helpers have failed does the session return to its server's own link
//! port. Sessions that lost the same helper spread their return: each picks a random time within a window, which grows
//! when the server does not accept the session. Until then they try helpers, because any helper relieves the server.

use core::time::Duration;

use spillway_transport::Time;

/// The interval between two attempts is random, because many sessions lose the same helper at once. The
/// interval's upper bound is this one at first, and doubles with each round of all routes, up to
/// [`RETRY_INTERVAL_MAX`].
const RETRY_INTERVAL_MIN: Duration = Duration::from_millis(2);
const RETRY_INTERVAL_MAX: Duration = Duration::from_millis(500);

/// How sessions spread their return to the server's own link port. `n` sessions arrive at the mean rate `n / window`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// A session returns within this time after the attempts at all helpers have failed.
    pub window: Duration,
    /// The window doubles with each attempt that the server does not accept, up to this bound, which also bounds the
    /// time between two attempts.
    pub window_max: Duration,
}

impl Default for Pace {
    fn default() -> Pace {
        Pace { window: Duration::from_secs(1), window_max: Duration::from_secs(8) }
    }
}

impl Pace {
    /// The wait before the next attempt at the server, after `refused` attempts in a row that it did not accept.
    /// `random`: from 0 to 1.
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
    own_port: Option<usize>,
    pace: Pace,
    /// The route that is tried, or carries the session; `count` if [`replace`](Self::replace) has removed that route.
    present: usize,
    /// Failures since a route last carried the session, including the loss of that route. `helpers_failed`:
    /// those of helpers.
    failed: u32,
    helpers_failed: usize,
    /// The route that last carried the session was a helper's.
    was_helped: bool,
    /// When the session may return to the server's own port.
    return_at: Option<Time>,
    /// Attempts at the server's own port in a row that failed.
    refused: u32,
}

impl Routes {
    /// `count` routes; the first is tried first. `own_port`: index of the server's own port; if it is unknown, all
    /// routes are treated alike and attempts are not paced.
    pub fn new(count: usize, own_port: Option<usize>, pace: Pace) -> Routes {
        let own_port = own_port.filter(|own_port| *own_port < count);
        Routes {
            count: count.max(1),
            own_port,
            pace,
            present: 0,
            failed: 0,
            helpers_failed: 0,
            was_helped: false,
            return_at: None,
            refused: 0,
        }
    }

    /// The route that is tried, or carries the session.
    pub fn present(&self) -> usize {
        self.present
    }

    /// The attempt that is due now. If [`replace`](Self::replace) removed its route, the first route is tried instead;
    /// a session that was helped waits for its return when only the server's own port is left.
    pub fn attempt(&mut self, now: Time, random: impl FnOnce() -> f64) -> Attempt {
        if self.present >= self.count {
            self.present = match self.own_port.filter(|_| self.was_helped) {
                Some(own_port) if self.count == 1 => {
                    let return_at = self.return_at.unwrap_or_else(|| self.draw_return(now, random()));
                    return self.go_to_own_port(own_port, return_at);
                }
                Some(own_port) => self.next_helper(self.present, own_port),
                None => self.next_route(self.present),
            };
        }
        Attempt { route: self.present, at: now }
    }

    /// Replaces the routes. `present`: the new index of the present route, if it is still among them. The
    /// present route stays in use in any case until it is lost.
    pub fn replace(&mut self, count: usize, own_port: Option<usize>, present: Option<usize>) {
        self.count = count.max(1);
        self.own_port = own_port.filter(|own_port| *own_port < self.count);
        // `count` is one beyond the last index, so the next route is the first one.
        self.present = present.filter(|route| *route < self.count).unwrap_or(self.count);
        (self.failed, self.helpers_failed) = (0, 0);
    }

    /// The application or the server chose this route.
    pub fn choose(&mut self, route: usize) {
        (self.present, self.return_at) = (route.min(self.count - 1), None);
    }

    /// The present route carries the session.
    pub fn attached(&mut self) {
        (self.failed, self.helpers_failed, self.refused, self.return_at) = (0, 0, 0, None);
        self.was_helped = self.own_port != Some(self.present);
    }

    /// The present route failed, or its carrier is lost. Returns the next attempt; see [`return_at`](Self::return_at),
    /// too.
    pub fn lost(&mut self, now: Time, mut random: impl FnMut() -> f64) -> Attempt {
        // The bound of the interval doubles with each round of all routes.
        let rounds = self.failed / u32::try_from(self.count).unwrap_or(u32::MAX);
        let interval_max = (RETRY_INTERVAL_MIN * 2u32.saturating_pow(rounds.min(16))).min(RETRY_INTERVAL_MAX);
        let at = now + interval_max.mul_f64(random());
        let was_attached = self.failed == 0;
        self.failed = self.failed.saturating_add(1);
        let Some(own_port) = self.own_port.filter(|_| self.was_helped) else {
            self.present = self.next_route(self.present);
            return Attempt { route: self.present, at };
        };
        if self.present == own_port {
            self.refused = self.refused.saturating_add(1);
        } else {
            self.helpers_failed += 1;
        }
        if self.helpers_failed >= self.count - 1 {
            match self.return_at {
                // The helper was lost before the deadline of its drain: the shorter of the two waits suffices.
                Some(at) if was_attached => self.return_at = Some(at.min(self.draw_return(now, random()))),
                Some(_) => {}
                None => self.return_at = Some(self.draw_return(now, random())),
            }
        }
        // If no helper can be tried before the return, the next attempt is the return itself.
        match self.return_at.filter(|return_at| *return_at <= at || self.count == 1) {
            Some(return_at) => self.go_to_own_port(own_port, return_at),
            None => {
                self.present = self.next_helper(self.present, own_port);
                Attempt { route: self.present, at }
            }
        }
    }

    fn next_route(&self, route: usize) -> usize {
        if route + 1 >= self.count { 0 } else { route + 1 }
    }

    fn next_helper(&self, route: usize, own_port: usize) -> usize {
        let next = self.next_route(route);
        if next == own_port { self.next_route(next) } else { next }
    }

    /// The server asks the session to move within this time: from its own port to a helper, or from a helper to its own
    /// port. Returns the attempt at that route; `None` without such a route.
    pub fn asked_to_move(&mut self, now: Time, deadline: Duration, random: f64) -> Option<Attempt> {
        let own_port = self.own_port?;
        let route = if self.present == own_port { self.next_helper(own_port, own_port) } else { own_port };
        // The last quarter of the deadline is a margin for late clients.
        (route != self.present).then(|| Attempt { route, at: now + deadline.mul_f64(random * 0.75) })
    }

    fn draw_return(&self, now: Time, random: f64) -> Time {
        now + self.pace.wait(self.refused, random)
    }

    /// The helper that carries the session drains within this time. Returns when to leave the helper, if the server's
    /// own port is the only other route. `None`: leave the helper at once.
    pub fn drained(&mut self, now: Time, deadline: Duration, random: f64) -> Option<Time> {
        // `present` is beyond the last index if `replace` removed the present route.
        let other_routes = self.count - usize::from(self.present < self.count);
        let is_last = other_routes == 1 && self.own_port.is_some_and(|own_port| own_port != self.present);
        if is_last && self.was_helped && !deadline.is_zero() {
            // The last quarter of the deadline is a margin for late clients.
            self.return_at.get_or_insert(now + deadline.mul_f64(random * 0.75));
        }
        self.return_at
    }

    /// When the session may return to the server's own port. Helpers may be tried until then.
    pub fn return_at(&self) -> Option<Time> {
        self.return_at
    }

    /// The attempt at the server's own port, if the return is due. It replaces any other attempt.
    pub fn take_return(&mut self, now: Time) -> Option<Attempt> {
        let (own_port, at) = (self.own_port?, self.return_at.filter(|at| *at <= now)?);
        Some(self.go_to_own_port(own_port, at))
    }

    fn go_to_own_port(&mut self, own_port: usize, at: Time) -> Attempt {
        (self.return_at, self.present) = (None, own_port);
        Attempt { route: own_port, at }
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
    fn another_helper_is_tried_before_the_server() {
        let mut routes = helped(3);
        assert_eq!(routes.lost(at(0), || 1.0), Attempt { route: 1, at: at(2) });
        assert_eq!(routes.return_at(), None);
        routes.attached();
        assert_eq!(
            routes.lost(at(0), || 1.0),
            Attempt { route: 0, at: at(2) },
            "the other helper should be tried, not the server's own port"
        );
    }

    #[test]
    fn without_a_helper_the_session_returns_within_the_window_and_tries_helpers_until_then() {
        let mut routes = helped(3);
        routes.lost(at(0), || 0.5);
        assert_eq!(routes.lost(at(0), || 0.5).route, 0);
        assert_eq!(routes.return_at(), Some(at(500)));
        let (mut now, mut tried) = (at(0), 0);
        loop {
            let next = routes.lost(now, || 0.5);
            now = next.at;
            if next.route == 2 {
                break;
            }
            tried += 1;
        }
        assert_eq!(now, at(500), "the session should return at the drawn time");
        assert!((4..40).contains(&tried), "4 to 39 attempts at helpers should be made, not {tried}");
    }

    #[test]
    fn a_silent_helper_does_not_delay_the_return() {
        let mut routes = helped(2);
        assert_eq!(routes.lost(at(0), || 0.5).route, 0);
        assert_eq!((routes.take_return(at(499)), routes.present()), (None, 0));
        assert_eq!(routes.take_return(at(500)), Some(Attempt { route: 1, at: at(500) }));
    }

    #[test]
    fn the_window_doubles_up_to_its_bound_while_the_server_refuses() {
        let mut routes = helped(2);
        let mut waits_s = Vec::new();
        let mut now = at(0);
        for _ in 0..6 {
            routes.lost(now, || 0.999_999);
            let return_at = routes.return_at().unwrap();
            waits_s.push((return_at.since(now).as_secs_f64()).round() as u64);
            now = return_at;
            routes.take_return(now).unwrap();
        }
        assert_eq!(waits_s, [1, 2, 4, 8, 8, 8]);
        routes.attached();
        assert!(!routes.was_helped, "the session should not count as helped");
    }

    #[test]
    fn a_session_that_was_not_helped_returns_without_pacing() {
        let mut routes = Routes::new(2, Some(1), Pace::default());
        assert_eq!(
            routes.lost(at(0), || 1.0),
            Attempt { route: 1, at: at(2) },
            "the first attempts should not be paced"
        );
        routes.attached();
        assert_eq!(routes.lost(at(0), || 1.0), Attempt { route: 0, at: at(2) });
        assert_eq!(
            routes.lost(at(2), || 1.0),
            Attempt { route: 1, at: at(4) },
            "attempts after the loss of the server's own port should not be paced"
        );
        assert_eq!(
            routes.lost(at(4), || 1.0),
            Attempt { route: 0, at: at(8) },
            "the interval should double in the second round"
        );
        let mut unknown = Routes::new(2, None, Pace::default());
        unknown.attached();
        assert_eq!((unknown.lost(at(0), || 1.0).route, unknown.lost(at(0), || 1.0).route), (1, 0));
        assert_eq!(unknown.return_at(), None);
    }

    #[test]
    fn a_draining_helper_is_left_within_its_deadline() {
        let mut routes = helped(2);
        assert_eq!(routes.drained(at(0), Duration::from_secs(20), 0.5), Some(at(7_500)));
        assert_eq!(
            routes.drained(at(1), Duration::from_secs(20), 0.9),
            Some(at(7_500)),
            "the time should be drawn only once"
        );
        assert_eq!(routes.lost(at(7_500), || 0.5), Attempt { route: 1, at: at(7_500) });
        // The helper is lost before its deadline: the session returns within a window.
        let mut routes = helped(2);
        routes.drained(at(0), Duration::from_secs(20), 0.5);
        routes.lost(at(100), || 0.5);
        assert_eq!(routes.return_at(), Some(at(600)));
        // The session leaves at once if the deadline is 0 or there is another helper.
        assert_eq!(helped(2).drained(at(0), Duration::ZERO, 0.5), None);
        assert_eq!(helped(3).drained(at(0), Duration::from_secs(9), 0.5), None);
    }

    #[test]
    fn a_session_moves_from_helpers_to_the_server_and_back_on_request() {
        let mut routes = helped(3);
        let back = routes.asked_to_move(at(0), Duration::from_secs(20), 0.5).unwrap();
        assert_eq!(back, Attempt { route: 2, at: at(7_500) });
        routes.choose(back.route);
        routes.attached();
        let helper = routes.asked_to_move(at(8_000), Duration::ZERO, 0.5).unwrap();
        assert_eq!(helper, Attempt { route: 0, at: at(8_000) });
        assert_eq!(Routes::new(1, Some(0), Pace::default()).asked_to_move(at(0), Duration::ZERO, 0.5), None);
        assert_eq!(Routes::new(2, None, Pace::default()).asked_to_move(at(0), Duration::ZERO, 0.5), None);
    }

    #[test]
    fn replacing_the_routes_keeps_the_present_one_in_use() {
        let mut routes = helped(3);
        routes.replace(4, Some(0), Some(2));
        assert_eq!(routes.present(), 2);
        assert_eq!(routes.lost(at(0), || 1.0).route, 3, "the next of the new routes should be tried");
        routes.attached();
        routes.replace(2, Some(0), None);
        assert_eq!(routes.lost(at(0), || 1.0).route, 1, "the first helper should follow a removed route");
        routes.replace(0, None, None);
        assert_eq!(routes.lost(at(0), || 1.0).route, 0);
    }

    #[test]
    fn an_attempt_at_a_removed_route_goes_to_the_first_new_route() {
        let mut routes = helped(3);
        routes.lost(at(0), || 1.0);
        routes.replace(2, Some(0), None);
        assert_eq!(
            routes.attempt(at(1), || 1.0),
            Attempt { route: 1, at: at(1) },
            "the first helper should be tried"
        );
        let mut routes = Routes::new(2, None, Pace::default());
        routes.replace(1, None, None);
        assert_eq!((routes.attempt(at(1), || 1.0).route, routes.present()), (0, 0));
        routes.replace(1, None, Some(0));
        assert_eq!(routes.attempt(at(1), || 1.0).route, 0);
    }

    #[test]
    fn a_helped_session_returns_within_the_window_after_all_helpers_were_removed() {
        let back_at_500 = Attempt { route: 0, at: at(500) };
        // The helper is removed, and then lost.
        let mut routes = helped(3);
        routes.replace(1, Some(0), None);
        assert_eq!(routes.lost(at(0), || 0.5), back_at_500);
        assert_eq!(routes.attempt(at(500), || 1.0), back_at_500);
        assert_eq!(routes.lost(at(500), || 0.5).at, at(1_500), "the window should double after a refusal");
        // The helper is lost, and then removed with the one that would be tried next.
        let mut routes = helped(3);
        routes.lost(at(0), || 0.5);
        routes.replace(1, Some(0), None);
        assert_eq!(routes.attempt(at(0), || 0.5), back_at_500);
        assert_eq!(routes.attempt(at(500), || 1.0), back_at_500);
        // The helper is removed, and then drains.
        let mut routes = helped(2);
        routes.replace(1, Some(0), None);
        assert_eq!(routes.drained(at(0), Duration::from_secs(20), 0.5), Some(at(7_500)));
        assert_eq!(routes.lost(at(7_500), || 0.5), Attempt { route: 0, at: at(7_500) });
        // Another helper is left: the session goes there at once.
        let mut routes = helped(3);
        routes.replace(2, Some(0), None);
        assert_eq!(routes.drained(at(0), Duration::from_secs(20), 0.5), None);
    }

    #[test]
    fn a_single_route_is_tried_again() {
        for own_port in [None, Some(0), Some(7)] {
            let mut routes = Routes::new(1, own_port, Pace::default());
            routes.attached();
            assert_eq!(routes.lost(at(0), || 1.0).route, 0);
            assert_eq!(routes.return_at(), None);
        }
    }
}
