use core::time::Duration;

use spillway_transport::Time;

use super::{Deadline, GatheredMessages, Policy, SentBatch};

/// Number of unanswered batches that keep a server busy: the one that it serves, and the next one.
const ENOUGH_UNANSWERED: u64 = 2;
/// A batch is held for a busy server for at most this many times `max_delay`. By default `max_delay` is a
/// quarter of a service's SLA, so no batch is then held for longer than the SLA.
const HELD_MAX_DELAYS: u32 = 4;
/// Each new round trip moves the mean by one eighth of the difference.
const WEIGHT: u32 = 8;

/// [`Deadline`], extended while the server is busy. While two batches are not answered the server serves the
/// first, and a third would only wait behind the second. So the third is held until a reply arrives, and
/// gathers further messages. Batches thus follow the server: they grow as replies become slower. Requests are
/// not answered later, because they would have waited at the server instead. Otherwise a server at its limit
/// would receive many small batches, and would spend its CPU time on the fixed cost of each.
///
/// A request that blocks on purpose (Redis' BLPOP) stays unanswered while the server is idle. So a batch is
/// held for no longer than recent round trips took. A batch that is answered after a later one does not
/// count: its reply is not reported by [`answered`](Policy::answered).
#[derive(Clone, Debug)]
pub struct Following {
    deadline: Deadline,
    held_max: Duration,
    /// See [`GatheredMessages::unanswered`].
    unanswered: u64,
    /// Mean of recent times from sending a batch to its first reply.
    round_trip: Duration,
}

impl Following {
    /// A batch waits for at most `max_delay` while the server is not busy, and for at most four times as long
    /// while it is busy. A batch of `max_bytes` leaves at once.
    pub fn new(max_delay: Duration, max_bytes: usize) -> Following {
        Following {
            deadline: Deadline::new(max_delay, max_bytes),
            held_max: max_delay.saturating_mul(HELD_MAX_DELAYS),
            unanswered: 0,
            round_trip: Duration::ZERO,
        }
    }
}

impl Policy for Following {
    fn size_bytes(&self) -> usize {
        self.deadline.size_bytes()
    }

    fn interval(&self) -> Duration {
        self.deadline.interval()
    }

    fn due(&self, last_batch: Option<Time>, waiting_since: Option<Time>) -> Option<Time> {
        let due = self.deadline.due(last_batch, waiting_since);
        if self.unanswered < ENOUGH_UNANSWERED {
            return due;
        }
        due.max(waiting_since.map(|since| since + self.round_trip.min(self.held_max)))
    }

    fn gathered(&mut self, now: Time, batch: GatheredMessages) {
        self.unanswered = batch.unanswered;
        self.deadline.gathered(now, batch);
    }

    fn sent(&mut self, batch: SentBatch) {
        self.deadline.sent(batch);
    }

    fn answered(&mut self, after: Duration) {
        let after = after.min(self.held_max.saturating_mul(2)); // larger values would distort the mean for long
        self.round_trip = match self.round_trip {
            Duration::ZERO => after,
            mean => (mean * (WEIGHT - 1) + after) / WEIGHT,
        };
    }
}

#[cfg(test)]
mod tests {
    use alloc::boxed::Box;

    use spillway_wire::{Id, Kind};

    use super::*;
    use crate::batching::Batching;
    use crate::connection::Connection;
    use crate::link_end::LinkEnd;

    const MAX_DELAY: Duration = Duration::from_micros(200);
    const CLIENTS: u32 = 100;

    struct Link {
        link_end: LinkEnd,
        now: Time,
        next_client: u32,
    }

    impl Link {
        fn new() -> Link {
            let mut link_end = LinkEnd::new(Batching::new(
                Kind::Request,
                Box::new(Following::new(MAX_DELAY, 1 << 16)),
                1 << 20,
            ));
            for id in 1..=CLIENTS {
                link_end.insert(Id(id), Connection::new(1 << 40, 1 << 20));
            }
            Link { link_end, now: Time::ZERO, next_client: 0 }
        }

        fn at(&mut self, us: u64) -> &mut Link {
            self.now = Time(us * 1_000);
            self
        }

        /// The next client sends a request. Returns the number of messages in the batch that leaves, if any.
        fn request(&mut self) -> Option<u64> {
            self.next_client += 1;
            self.link_end.compose(Id(self.next_client), b"get x");
            self.turn()
        }

        fn reply(&mut self, client: u32) -> Option<u64> {
            self.link_end.batching.answered(self.now, Id(client));
            self.turn()
        }

        fn turn(&mut self) -> Option<u64> {
            let before = self.link_end.counters().messages_sent;
            self.link_end.poll_transmit(self.now)?;
            Some(self.link_end.counters().messages_sent - before)
        }

        fn due_us(&self) -> Option<u64> {
            self.link_end.batching.poll_timeout().map(|at| at.as_nanos() / 1_000)
        }
    }

    /// A link whose server took 500 µs for a reply, and has two unanswered batches.
    fn busy() -> Link {
        let mut link = Link::new();
        assert_eq!(link.at(0).request(), Some(1));
        link.at(500).reply(1);
        assert_eq!(link.at(20_000).request(), Some(1));
        assert_eq!(link.at(40_000).request(), Some(1));
        link
    }

    #[test]
    fn while_two_batches_are_unanswered_the_next_waits_for_a_reply() {
        let mut link = busy();
        assert_eq!(link.at(60_000).request(), None);
        assert_eq!(link.at(60_100).request(), None);
        assert_eq!(link.at(60_300).turn(), None);
        assert_eq!(
            link.at(60_310).reply(2),
            Some(2),
            "one batch is left to serve, so the next should leave with both messages"
        );
    }

    #[test]
    fn a_batch_is_held_no_longer_than_a_round_trip() {
        let mut link = busy();
        assert_eq!(link.at(60_000).request(), None);
        assert_eq!(link.due_us(), Some(60_500));
        assert_eq!(link.at(60_500).turn(), Some(1));
    }

    #[test]
    fn a_batch_is_held_at_most_four_times_the_maximal_delay() {
        let mut link = Link::new();
        link.at(0).request();
        link.at(5_000_000).reply(1);
        for round in 1..=2 {
            assert_eq!(link.at(5_000_000 + round * 20_000).request(), Some(1));
        }
        assert_eq!(link.at(6_000_000).request(), None);
        assert_eq!(link.due_us(), Some(6_000_800));
    }

    #[test]
    fn blocking_requests_hold_batches_no_longer_than_other_round_trips() {
        let mut link = Link::new();
        // Two clients block; others are answered within 60 µs.
        link.at(0).request();
        link.at(20_000).request();
        for client in 3..50 {
            let at = u64::from(client) * 20_000;
            assert_eq!(link.at(at).request(), Some(1), "the request of client {client} should leave at once");
            link.at(at + 60).reply(client);
        }
        // The reply to a blocked request does not count as a round trip.
        link.at(2_000_000).reply(1);
        assert_eq!(link.at(2_020_000).request(), Some(1));
        assert_eq!(link.at(2_040_000).request(), Some(1));
        assert_eq!(link.at(2_060_000).request(), None);
        assert_eq!(link.due_us(), Some(2_060_060));
    }

    #[test]
    fn with_an_idle_server_a_batch_waits_as_with_deadline() {
        let mut link = busy();
        link.at(40_500).reply(3);
        assert_eq!(link.at(60_000).request(), Some(1));
        assert_eq!(
            link.at(80_000).request(),
            Some(1),
            "a single message should not wait when no others are expected"
        );
    }
}
