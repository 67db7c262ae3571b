use core::time::Duration;

use spillway_transport::Time;

use super::{GatheredMessages, Policy, SentBatch};

/// A batch waits for the whole time if at least one more message is expected for this many that are gathered.
const GATHERED_PER_EXPECTED: u64 = 2;
/// A batch waits for at most this many eighths of `max_delay`, because timers fire late.
const WAIT_EIGHTHS: u32 = 7;
/// Upper bound of `max_delay`, which keeps sums in range.
const DELAY_MAX: Duration = Duration::from_secs(60);
/// The rate of arrivals is an average over the latest observations, which together last this many times the longest
/// wait.
const AVERAGED_WAITS: u32 = 32;
/// Fixed-point scale of message counts: keeps the rounding error small when old arrivals are scaled down.
const SCALE: u128 = 1 << 16;
/// Fixed-point 1.0 of the ratio of the expected messages to those that justify the whole wait.
const FULL_WAIT: u128 = 256;
/// At or below this ratio a batch does not wait.
const NO_WAIT: u128 = FULL_WAIT / 4;

/// A batch leaves when its first message has waited for nearly `max_delay`, if waiting pays. With the same bound on
/// waiting, Algorithm 1 sends more batches: it measures *T* from batch to batch, so it sends a first message early and
/// alone, and the following ones in another batch.
///
/// A batch of n messages waits for the whole time if at least n / 2 more messages, and at least one, are
/// expected meanwhile; not at all if at most a quarter of this number is expected; and in between for a
/// proportional part of the time. Arrivals are observed from each batch's first message on, for the longest
/// waiting time. After the batch was sent, messages of clients that were answered since do not count: without
/// the reply these clients would not have sent them.
#[derive(Clone, Debug)]
pub struct Deadline {
    wait_max: Duration,
    max_bytes: usize,
    /// When the present batch began, and how long it waits. `None`: no message is gathered.
    waiting: Option<(Time, Duration)>,
    /// The part of the present batch that is already counted in `arrived`.
    counted: GatheredMessages,
    observation: Option<Observation>,
    /// Messages that arrived under observation, times [`SCALE`]; older messages have less weight.
    arrived: u128,
    /// Time under observation in ns, at most [`AVERAGED_WAITS`] times `wait_max`.
    observed_ns: u128,
}

/// Observation of arrivals after a batch's first message.
#[derive(Clone, Copy, Debug)]
enum Observation {
    /// The batch waits. Arrivals until `counted_until` are counted already.
    Waiting { counted_until: Time },
    /// The batch was sent. Arrivals until `counted_until` are counted already; those after `ends_at` are ignored.
    Sent { counted_until: Time, ends_at: Time },
}

impl Deadline {
    /// `max_delay` bounds a message's waiting time. A batch of `max_bytes` leaves at once.
    pub fn new(max_delay: Duration, max_bytes: usize) -> Deadline {
        Deadline {
            wait_max: max_delay.min(DELAY_MAX) * WAIT_EIGHTHS / 8,
            max_bytes,
            waiting: None,
            counted: GatheredMessages::default(),
            observation: None,
            arrived: 0,
            observed_ns: 0,
        }
    }

    /// Counts the messages and the time since the last call.
    fn observe(&mut self, now: Time, more: GatheredMessages) {
        let (time, messages) = match &mut self.observation {
            None => return,
            Some(Observation::Waiting { counted_until }) => {
                (now.since(core::mem::replace(counted_until, now)), more.messages)
            }
            Some(Observation::Sent { counted_until, ends_at }) if now <= *ends_at => {
                (now.since(core::mem::replace(counted_until, now)), more.fresh)
            }
            Some(Observation::Sent { counted_until, ends_at }) => {
                let time = ends_at.since(*counted_until);
                self.observation = None;
                (time, 0)
            }
        };
        self.observed_ns += time.as_nanos();
        self.arrived += u128::from(messages) * SCALE;
        let averaged_ns = (self.wait_max * AVERAGED_WAITS).as_nanos();
        if self.observed_ns > averaged_ns {
            self.arrived = self.arrived * averaged_ns / self.observed_ns;
            self.observed_ns = averaged_ns;
        }
    }

    /// The waiting time of a batch that begins with `gathered` messages.
    fn waiting_time(&self, gathered: u64) -> Duration {
        // Expected and required messages, both times GATHERED_PER_EXPECTED, SCALE and `observed_ns`: a single division.
        let expected = self.arrived * self.wait_max.as_nanos() * u128::from(GATHERED_PER_EXPECTED);
        let required = u128::from(gathered.max(GATHERED_PER_EXPECTED)) * SCALE * self.observed_ns;
        if required == 0 {
            return Duration::ZERO;
        }
        let ratio = (expected * FULL_WAIT / required).clamp(NO_WAIT, FULL_WAIT);
        #[expect(clippy::cast_possible_truncation, reason = "at most FULL_WAIT, which is small")]
        let (part, all) = ((ratio - NO_WAIT) as u32, (FULL_WAIT - NO_WAIT) as u32);
        self.wait_max * part / all
    }
}

impl Policy for Deadline {
    fn size_bytes(&self) -> usize {
        self.max_bytes
    }

    fn interval(&self) -> Duration {
        self.waiting.map(|(_, time)| time).unwrap_or_default()
    }

    fn due(&self, _last_batch: Option<Time>, waiting_since: Option<Time>) -> Option<Time> {
        waiting_since.map(|since| since + self.interval())
    }

    fn gathered(&mut self, now: Time, batch: GatheredMessages) {
        let before = core::mem::replace(&mut self.counted, batch);
        let messages = batch.messages.saturating_sub(before.messages);
        self.observe(
            now,
            GatheredMessages { messages, fresh: batch.fresh.saturating_sub(before.fresh), ..batch },
        );
        if self.waiting.is_none() {
            self.waiting = Some((now, self.waiting_time(batch.messages)));
            self.observation = Some(Observation::Waiting { counted_until: now });
        }
    }

    fn sent(&mut self, batch: SentBatch) {
        self.observe(batch.at, GatheredMessages::default());
        self.observation = self
            .waiting
            .take()
            .map(|(began, _)| Observation::Sent { counted_until: batch.at, ends_at: began + self.wait_max });
        self.counted = GatheredMessages::default();
    }
}

#[cfg(test)]
mod tests {
    use alloc::boxed::Box;
    use alloc::vec::Vec;

    use proptest::prelude::*;
    use spillway_wire::{Id, Kind};

    use super::*;
    use crate::batching::Batching;
    use crate::connection::Connection;
    use crate::link_end::LinkEnd;

    const MAX_DELAY: Duration = Duration::from_micros(200);
    /// Seven eighths of `MAX_DELAY`.
    const WAIT: Duration = Duration::from_micros(175);
    const CLIENTS: u32 = 100;

    struct Link {
        link_end: LinkEnd,
        /// Batches sent: time in µs, and number of messages.
        sent: Vec<(u64, u64)>,
        first_waits_since: Option<Time>,
        now: Time,
    }

    impl Link {
        fn new() -> Link {
            let policy = Box::new(Deadline::new(MAX_DELAY, 1 << 16));
            let mut link_end = LinkEnd::new(Batching::new(Kind::Request, policy, 1 << 20));
            for id in 1..=CLIENTS {
                link_end.insert(Id(id), Connection::new(1 << 40, 1 << 20));
            }
            Link { link_end, sent: Vec::new(), first_waits_since: None, now: Time::ZERO }
        }

        /// Fires timers up to `at_us`, then sends one request of each of `count` clients, beginning with `client`.
        fn request(&mut self, at_us: u64, client: u32, count: u32) {
            self.fire_timers(at_us);
            for offset in 0..count {
                self.link_end.compose(Id((client + offset) % CLIENTS + 1), b"get x");
            }
            self.turn(Time(at_us * 1_000));
        }

        fn reply(&mut self, client: u32) {
            self.link_end.batching.answered(self.now, Id(client % CLIENTS + 1));
        }

        fn fire_timers(&mut self, until_us: u64) {
            while let Some(due) =
                self.link_end.batching.poll_timeout().filter(|due| due.as_nanos() <= until_us * 1_000)
            {
                let before = self.sent.len();
                self.turn(due);
                assert!(self.sent.len() > before, "each timer should send a batch");
            }
        }

        fn turn(&mut self, now: Time) {
            self.now = now;
            let before = self.link_end.counters().messages_sent;
            match self.link_end.poll_transmit(now) {
                Some(_) => {
                    let waited = now.since(self.first_waits_since.take().unwrap_or(now));
                    assert!(waited <= WAIT, "no message should wait longer than the deadline: {waited:?}");
                    self.sent.push((now.as_nanos() / 1_000, self.link_end.counters().messages_sent - before));
                }
                None if self.link_end.batching.is_empty() => {}
                None => {
                    self.first_waits_since.get_or_insert(now);
                    assert!(
                        self.link_end.batching.poll_timeout() > Some(now),
                        "the next timer should be later than now"
                    );
                }
            }
        }

        fn take_sent(&mut self) -> Vec<(u64, u64)> {
            core::mem::take(&mut self.sent)
        }
    }

    #[test]
    fn messages_one_millisecond_apart_leave_at_once() {
        let mut link = Link::new();
        for n in 0..100 {
            link.request(n * 1_000, n as u32, 1);
        }
        let sent = link.take_sent();
        assert!(
            sent.len() == 100 && (0..100).zip(&sent).all(|(n, batch)| *batch == (n * 1_000, 1)),
            "each of 100 messages should leave alone and at once"
        );
    }

    #[test]
    fn a_batch_waits_from_its_first_message_when_others_follow() {
        let mut link = Link::new();
        for n in 0..41 {
            link.request(n * 100, n as u32, 1);
        }
        link.fire_timers(4_200);
        let sent = link.take_sent();
        assert_eq!(
            sent[..2],
            [(0, 1), (275, 2)],
            "the first message should leave alone, the next batch wait: {sent:?}"
        );
        // Messages sent at 300 and 400 µs share a batch, as do those at 500 and 600; each batch leaves 175 µs after its
        // first message.
        let intervals_us: Vec<u64> = sent.windows(2).skip(2).map(|pair| pair[1].0 - pair[0].0).collect();
        assert!(
            sent[2..].iter().all(|(_, messages)| *messages == 2),
            "after the first two batches each should have two messages: {sent:?}"
        );
        assert!(
            intervals_us.iter().all(|interval| *interval == 200),
            "batches should leave 200 µs apart: {sent:?}"
        );
    }

    #[test]
    fn a_batch_does_not_wait_for_clients_that_need_its_reply() {
        let mut link = Link::new();
        // Each of two clients sends its next request 80 µs after a reply that arrives at once: waiting would not gather
        // more.
        for n in 0..100 {
            link.request(n * 80, 0, 2);
            link.reply(0);
            link.reply(1);
        }
        assert_eq!(link.take_sent().len(), 100, "each pair should leave at once");
    }

    #[test]
    fn a_batch_of_many_messages_does_not_wait_for_few() {
        let mut link = Link::new();
        for n in 0..100 {
            link.request(n * 100, n as u32, 1);
        }
        link.fire_timers(20_000);
        link.take_sent();
        link.request(20_000, 0, 20);
        assert_eq!(link.take_sent(), [(20_000, 20)], "20 messages should not wait for 1 or 2");
        link.request(30_000, 0, 1);
        assert!(link.take_sent().is_empty(), "1 message should wait for 1 or 2");
    }

    #[test]
    fn a_large_batch_leaves_at_once() {
        let mut link = Link::new();
        for n in 0..100 {
            link.request(n * 100, n as u32, 1);
        }
        link.fire_timers(20_000);
        link.take_sent();
        link.request(20_000, 0, 1);
        assert!(link.take_sent().is_empty(), "a single message should wait");
        link.link_end.compose(Id(2), &[b'x'; 1 << 16]);
        link.turn(Time(20_010_000));
        assert_eq!(link.take_sent(), [(20_010, 2)]);
    }

    #[test]
    fn batches_stop_waiting_soon_after_the_load_falls() {
        let mut link = Link::new();
        for n in 0..1_000 {
            link.request(n * 20, n as u32, 1);
        }
        link.fire_timers(30_000);
        link.take_sent();
        // One message each millisecond: batches wait until the observed time, 32 waiting times, has passed.
        let waited = (0..200).filter(|n| {
            let at_us = 30_000 + n * 1_000;
            link.request(at_us, *n as u32, 1);
            let at_once = !link.take_sent().is_empty();
            link.fire_timers(at_us + 900);
            link.take_sent();
            !at_once
        });
        let waited = waited.count();
        assert!(
            (10..=120).contains(&waited),
            "batches should stop waiting soon after the load has fallen: {waited}"
        );
    }

    proptest! {
        /// `Link::turn` checks that messages wait at most the bound, and that each timer sends a batch.
        #[test]
        fn waiting_is_bounded_and_timers_are_few(
            events in prop::collection::vec((0_u64..400, 0_u32..CLIENTS, 1_u32..30, any::<bool>()), 1..300),
        ) {
            let (mut link, mut now) = (Link::new(), 0);
            for (after, client, count, answered) in events {
                now += after;
                if answered {
                    link.reply(client);
                }
                link.request(now, client, count);
            }
            link.fire_timers(now + 1_000);
            prop_assert!(link.link_end.batching.is_empty(), "all messages should have left at the end");
        }
    }
}
