//! A service that takes no more clients and ends with those that it has.

use core::time::Duration;

use spillway_transport::Time;

use crate::clients::Sort;
use crate::status::Drained;

/// The drain of one service.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Drain {
    deadline: Time,
    is_over: bool,
    counts: Drained,
}

impl Drain {
    pub(crate) fn new(now: Time, within: Duration) -> Drain {
        Drain { deadline: now + within, is_over: false, counts: Drained::default() }
    }

    /// A second drain can only bring the deadline forward.
    pub(crate) fn hasten(&mut self, now: Time, within: Duration) {
        self.deadline = self.deadline.min(now + within);
    }

    /// When clients that are left are reset.
    #[must_use]
    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        (!self.is_over).then_some(self.deadline)
    }

    /// Whether the links are to be closed now, with the clients that are left.
    pub(crate) fn is_due(&self, now: Time, clients: u32) -> bool {
        !self.is_over && (clients == 0 || now >= self.deadline)
    }

    /// No client and no link is left.
    pub(crate) fn is_over(&self) -> bool {
        self.is_over
    }

    pub(crate) fn end(&mut self) {
        self.is_over = true;
    }

    /// A client has gone; `failed` when that was neither its own doing nor the server's.
    pub(crate) fn count(&mut self, sort: Sort, failed: bool) {
        *match (failed, sort) {
            (true, _) => &mut self.counts.failed,
            (false, Sort::Library) => &mut self.counts.moved,
            (false, Sort::Raw) => &mut self.counts.left,
        } += 1;
    }

    pub(crate) fn counts(&self) -> Drained {
        self.counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_with_the_last_client_or_at_the_earliest_deadline() {
        let second = Duration::from_secs(1);
        let mut drain = Drain::new(Time(0), 2 * second);
        drain.hasten(Time(0), 5 * second);
        assert_eq!(drain.poll_timeout(), Some(Time(0) + 2 * second));
        drain.hasten(Time(0), second);
        assert!(drain.is_due(Time(1), 0) && !drain.is_due(Time(1), 1));
        assert!(drain.is_due(Time(0) + second, 1));
        drain.count(Sort::Library, false);
        drain.count(Sort::Raw, false);
        drain.count(Sort::Raw, true);
        drain.end();
        assert_eq!(drain.counts(), Drained { moved: 1, left: 1, failed: 1 });
        assert_eq!((drain.poll_timeout(), drain.is_due(Time(0) + second, 1)), (None, false));
    }
}
