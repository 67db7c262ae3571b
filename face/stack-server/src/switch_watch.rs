//! Whether the switch confirms this server's heartbeats, for the log.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use spillway_transport::Time;

/// Time without confirmation after which the log says so. A server that starts, and one whose switch restarts, needs less.
const SILENCE: Duration = Duration::from_secs(3);

/// Finds the begin and the end of each time in which the switch does not confirm heartbeats.
#[derive(Debug)]
pub(crate) struct SwitchWatch {
    switch: SocketAddr,
    confirmed_at: Time,
    is_silent: bool,
}

/// A change for the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SwitchNotice {
    switch: SocketAddr,
    /// Whether the switch does not confirm heartbeats.
    pub(crate) is_silent: bool,
}

impl fmt::Display for SwitchNotice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let switch = self.switch;
        if !self.is_silent {
            return write!(f, "the switch {switch} confirms this server's heartbeats again");
        }
        write!(
            f,
            "the switch {switch} does not confirm this server's heartbeats, so that no connection moves from or to this server: \
             check the path to the switch, and this server's key, `id` and `mac` in the switch's configuration"
        )
    }
}

impl SwitchWatch {
    pub(crate) fn new(now: Time, switch: SocketAddr) -> SwitchWatch {
        SwitchWatch { switch, confirmed_at: now, is_silent: false }
    }

    /// Call it about once a second. `is_confirmed`: whether the switch confirms this server's heartbeats.
    pub(crate) fn check(&mut self, now: Time, is_confirmed: bool) -> Option<SwitchNotice> {
        if is_confirmed {
            self.confirmed_at = now;
        }
        let is_silent = now.since(self.confirmed_at) >= SILENCE;
        let is_change = is_silent != self.is_silent;
        self.is_silent = is_silent;
        is_change.then_some(SwitchNotice { switch: self.switch, is_silent })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_switch_that_does_not_answer_is_reported_once_and_so_is_its_return() {
        let second = |number: u64| Time(number * 1_000_000_000);
        let mut watch = SwitchWatch::new(second(10), "10.0.0.1:9511".parse().unwrap());
        let mut is_silent =
            |number, is_confirmed| watch.check(second(number), is_confirmed).map(|notice| notice.is_silent);
        assert_eq!((is_silent(10, false), is_silent(12, false)), (None, None), "the server has just started");
        assert_eq!((is_silent(13, false), is_silent(14, false)), (Some(true), None));
        assert_eq!((is_silent(15, true), is_silent(16, true)), (Some(false), None));
        assert_eq!((is_silent(18, false), is_silent(19, true)), (None, None), "a restart of the switch");
        assert_eq!(is_silent(22, false), Some(true));
    }
}
