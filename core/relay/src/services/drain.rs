use core::time::Duration;

use spillway_transport::Time;

use crate::clients::ClientType;
use crate::status::Drained;

/// The drain of one service: it accepts no more clients, and ends when the last one has left or at the deadline.
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

    /// Brings the deadline forward. A later deadline has no effect.
    pub(crate) fn bring_forward(&mut self, now: Time, within: Duration) {
        self.deadline = self.deadline.min(now + within);
    }

    /// The deadline, at which remaining clients are reset.
    #[must_use]
    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        (!self.is_over).then_some(self.deadline)
    }

    /// Whether the caller must reset the remaining clients and close the links now.
    pub(crate) fn is_due(&self, now: Time, clients: u32) -> bool {
        !self.is_over && (clients == 0 || now >= self.deadline)
    }

    /// Whether all clients and links were closed.
    pub(crate) fn is_over(&self) -> bool {
        self.is_over
    }

    pub(crate) fn end(&mut self) {
        self.is_over = true;
    }

    /// Counts a client that ended. `failed`: neither the client nor the server has closed it normally.
    pub(crate) fn count(&mut self, client_type: ClientType, failed: bool) {
        *match (failed, client_type) {
            (true, _) => &mut self.counts.failed,
            (false, ClientType::Library) => &mut self.counts.moved,
            (false, ClientType::Plain) => &mut self.counts.left,
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
    fn drain_is_due_after_the_last_client_or_at_the_earliest_deadline() {
        let second = Duration::from_secs(1);
        let mut drain = Drain::new(Time(0), 2 * second);
        drain.bring_forward(Time(0), 5 * second);
        assert_eq!(drain.poll_timeout(), Some(Time(0) + 2 * second));
        drain.bring_forward(Time(0), second);
        assert!(
            drain.is_due(Time(1), 0) && !drain.is_due(Time(1), 1),
            "the drain should be due without clients only"
        );
        assert!(drain.is_due(Time(0) + second, 1), "the drain should be due at its deadline");
        drain.count(ClientType::Library, false);
        drain.count(ClientType::Plain, false);
        drain.count(ClientType::Plain, true);
        drain.end();
        assert_eq!(drain.counts(), Drained { moved: 1, left: 1, failed: 1 });
        assert_eq!(
            (drain.poll_timeout(), drain.is_due(Time(0) + second, 1)),
            (None, false),
            "the drain should be over"
        );
    }
}
