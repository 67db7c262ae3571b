use core::time::Duration;

use spillway_transport::Time;

use super::{GatheredMessages, Policy, Sent};

/// Waiting pays in full if one more message is expected for each this many that are gathered.
const GATHERED_PER_EXPECTED: u64 = 2;
/// A batch waits this many eighths of `max_delay`, because timers fire late.
const EIGHTHS: u32 = 7;
/// Upper bound of `max_delay`, which keeps sums in range.
const DELAY_MAX: Duration = Duration::from_secs(60);
/// Arrivals are averaged over this many times the waiting time of observation.
const MEMORY: u32 = 32;
/// Fixed-point scale of message counts: keeps the rounding error small when old arrivals are scaled down.
const SCALE: u128 = 1 << 16;
/// Scale of the expected number of messages: at this value a batch waits for the whole time.
const ENOUGH: u128 = 256;
/// At or below this value a batch does not wait.
const TOO_FEW: u128 = ENOUGH / 4;

/// A batch leaves when its first message has waited for nearly `max_delay`, if waiting pays. No other policy with the
/// same bound on waiting sends fewer batches: *T* of Algorithm 1, which runs from batch to batch, sends a first message
/// early and alone, and those behind it in another batch.
///
/// Waiting pays in full if one more message is expected meanwhile, or one for each two gathered, and not at all below a
/// quarter of that; in between a batch waits for a part of the time. Arrivals are observed from each batch's first
/// message on, for the longest waiting time. After the batch has left, only messages count that would have arrived
/// anyway, not those of clients answered since.
#[derive(Clone, Debug)]
pub struct Deadline {
    wait: Duration,
    max_bytes: usize,
    /// When the present batch began, and how long it waits. `None`: nothing is gathered.
    held: Option<(Time, Duration)>,
    /// The part of the present batch that is already counted in `came`.
    counted: GatheredMessages,
    watch: Option<Watch>,
    /// Messages that arrived under observation, times [`SCALE`]; older ones weigh less.
    came: u128,
    /// Duration of the observation, in ns.
    watched: u128,
}

/// Observation of arrivals after a batch's first message.
#[derive(Clone, Copy, Debug)]
enum Watch {
    /// The batch waits; arrivals are counted up to this time.
    Waiting(Time),
    /// The batch was sent; arrivals are counted up to the first time, and observed until the second.
    Sent(Time, Time),
}

impl Deadline {
    /// `max_delay` bounds a message's waiting time. A batch of `max_bytes` leaves at once.
    pub fn new(max_delay: Duration, max_bytes: usize) -> Deadline {
        Deadline {
            wait: max_delay.min(DELAY_MAX) * EIGHTHS / 8,
            max_bytes,
            held: None,
            counted: GatheredMessages::default(),
            watch: None,
            came: 0,
            watched: 0,
        }
    }

    /// Counts the messages and the time since the last call.
    fn observe(&mut self, now: Time, more: GatheredMessages) {
        let (time, messages) = match &mut self.watch {
            None => return,
            Some(Watch::Waiting(since)) => (now.since(core::mem::replace(since, now)), more.messages),
            Some(Watch::Sent(since, until)) if now <= *until => {
                (now.since(core::mem::replace(since, now)), more.fresh)
            }
            Some(Watch::Sent(since, until)) => {
                let time = until.since(*since);
                self.watch = None;
                (time, 0)
            }
        };
        self.watched += time.as_nanos();
        self.came += u128::from(messages) * SCALE;
        let memory = (self.wait * MEMORY).as_nanos();
        if self.watched > memory {
            self.came = self.came * memory / self.watched;
            self.watched = memory;
        }
    }

    /// How long a batch waits that begins with `gathered` messages.
    fn hold_for(&self, gathered: u64) -> Duration {
        let asked_for = u128::from(gathered.max(GATHERED_PER_EXPECTED)) * SCALE * self.watched;
        if asked_for == 0 {
            return Duration::ZERO;
        }
        // From TOO_FEW (do not wait) to ENOUGH (wait for the whole time).
        let expected = self.came * self.wait.as_nanos() * u128::from(GATHERED_PER_EXPECTED);
        let steps = (expected * ENOUGH / asked_for).clamp(TOO_FEW, ENOUGH);
        #[expect(clippy::cast_possible_truncation, reason = "at most ENOUGH, which is small")]
        let (worth, all) = ((steps - TOO_FEW) as u32, (ENOUGH - TOO_FEW) as u32);
        self.wait * worth / all
    }
}

impl Policy for Deadline {
    fn size_bytes(&self) -> usize {
        self.max_bytes
    }

    fn interval(&self) -> Duration {
        self.held.map(|(_, hold)| hold).unwrap_or_default()
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
        if self.held.is_none() {
            let hold = self.hold_for(batch.messages);
            self.held = Some((now, hold));
            self.watch = Some(Watch::Waiting(now));
        }
    }

    fn sent(&mut self, batch: Sent) {
        self.observe(batch.at, GatheredMessages::default());
        self.watch = self.held.take().map(|(began, _)| Watch::Sent(batch.at, began + self.wait));
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
    use crate::ends::Ends;

    const MAX_DELAY: Duration = Duration::from_micros(200);
    /// Seven eighths of `MAX_DELAY`.
    const WAIT: Duration = Duration::from_micros(175);
    const CLIENTS: u32 = 100;

    struct Link {
        ends: Ends,
        /// Batches sent: time in µs, and number of messages.
        sent: Vec<(u64, u64)>,
        first_waits_since: Option<Time>,
        now: Time,
    }

    impl Link {
        fn new() -> Link {
            let policy = Box::new(Deadline::new(MAX_DELAY, 1 << 16));
            let mut ends = Ends::new(Batching::new(Kind::Request, policy, 1 << 20));
            for id in 1..=CLIENTS {
                ends.insert(Id(id), Connection::new(1 << 40, 1 << 20));
            }
            Link { ends, sent: Vec::new(), first_waits_since: None, now: Time::ZERO }
        }

        /// Fires timers up to `at_us`, then sends a request of `count` clients, beginning with `client`.
        fn ask(&mut self, at_us: u64, client: u32, count: u32) {
            self.timers(at_us);
            for n in 0..count {
                self.ends.compose(Id((client + n) % CLIENTS + 1), b"get x");
            }
            self.turn(Time(at_us * 1_000));
        }

        fn answer(&mut self, client: u32) {
            self.ends.batching.answered(self.now, Id(client % CLIENTS + 1));
        }

        fn timers(&mut self, until_us: u64) {
            while let Some(due) =
                self.ends.batching.poll_timeout().filter(|due| due.as_nanos() <= until_us * 1_000)
            {
                let before = self.sent.len();
                self.turn(due);
                assert!(self.sent.len() > before, "a timer fired without a batch to send");
            }
        }

        fn turn(&mut self, now: Time) {
            self.now = now;
            let before = self.ends.counters().messages_sent;
            match self.ends.poll_transmit(now) {
                Some(_) => {
                    let waited = now.since(self.first_waits_since.take().unwrap_or(now));
                    assert!(waited <= WAIT, "{waited:?}");
                    self.sent.push((now.as_nanos() / 1_000, self.ends.counters().messages_sent - before));
                }
                None if self.ends.batching.is_empty() => {}
                None => {
                    self.first_waits_since.get_or_insert(now);
                    assert!(self.ends.batching.poll_timeout() > Some(now), "the timer must lie ahead");
                }
            }
        }

        fn sent(&mut self) -> Vec<(u64, u64)> {
            core::mem::take(&mut self.sent)
        }
    }

    #[test]
    fn lone_messages_leave_at_once() {
        let mut link = Link::new();
        for n in 0..100 {
            link.ask(n * 1_000, n as u32, 1);
        }
        let sent = link.sent();
        assert!(sent.len() == 100 && (0..100).zip(&sent).all(|(n, batch)| *batch == (n * 1_000, 1)));
    }

    #[test]
    fn a_batch_waits_from_its_first_message_when_others_follow() {
        let mut link = Link::new();
        for n in 0..41 {
            link.ask(n * 100, n as u32, 1);
        }
        link.timers(4_200);
        let sent = link.sent();
        assert_eq!(sent[..2], [(0, 1), (275, 2)], "the first leaves alone, the next one waits: {sent:?}");
        // Messages of 400 and 500 µs share a batch, as do those of 600 and 700: it leaves 175 µs after its first.
        let later: Vec<u64> = sent.windows(2).skip(2).map(|two| two[1].0 - two[0].0).collect();
        assert!(sent[2..].iter().all(|(_, messages)| *messages == 2), "{sent:?}");
        assert!(later.iter().all(|distance| *distance == 200), "{sent:?}");
    }

    #[test]
    fn a_batch_does_not_wait_for_clients_that_need_its_reply() {
        let mut link = Link::new();
        // Two clients, each asks 20 µs after its reply, which takes 60 µs: waiting would bring no other message.
        for n in 0..100 {
            link.ask(n * 80, 0, 2);
            link.answer(0);
            link.answer(1);
        }
        assert_eq!(link.sent().len(), 100, "each pair leaves at once");
    }

    #[test]
    fn many_do_not_wait_for_few() {
        let mut link = Link::new();
        for n in 0..100 {
            link.ask(n * 100, n as u32, 1);
        }
        link.timers(20_000);
        link.sent();
        link.ask(20_000, 0, 20);
        assert_eq!(link.sent(), [(20_000, 20)], "twenty do not wait for one or two");
        link.ask(30_000, 0, 1);
        assert!(link.sent().is_empty(), "one waits for one or two");
    }

    #[test]
    fn a_large_batch_leaves_at_once() {
        let mut link = Link::new();
        for n in 0..100 {
            link.ask(n * 100, n as u32, 1);
        }
        link.timers(20_000);
        link.sent();
        link.ask(20_000, 0, 1);
        assert!(link.sent().is_empty());
        link.ends.compose(Id(2), &[b'x'; 1 << 16]);
        link.turn(Time(20_010_000));
        assert_eq!(link.sent(), [(20_010, 2)]);
    }

    #[test]
    fn batches_stop_waiting_soon_after_the_load_falls() {
        let mut link = Link::new();
        for n in 0..1_000 {
            link.ask(n * 20, n as u32, 1);
        }
        link.timers(30_000);
        link.sent();
        // One message each millisecond: about as many batches still wait as fit in the observation's memory.
        let waited = (0..200).filter(|n| {
            let at_us = 30_000 + n * 1_000;
            link.ask(at_us, *n as u32, 1);
            let at_once = !link.sent().is_empty();
            link.timers(at_us + 900);
            link.sent();
            !at_once
        });
        let waited = waited.count();
        assert!((10..=120).contains(&waited), "{waited}");
    }

    proptest! {
        /// No message waits longer than the bound, each timer sends a batch, and each batch needs at most one timer.
        #[test]
        fn waiting_is_bounded_and_timers_are_few(
            events in prop::collection::vec((0_u64..400, 0_u32..CLIENTS, 1_u32..30, any::<bool>()), 1..300),
        ) {
            let (mut link, mut now) = (Link::new(), 0);
            for (after, client, count, answered) in events {
                now += after;
                if answered {
                    link.answer(client);
                }
                link.ask(now, client, count);
            }
            link.timers(now + 1_000);
            prop_assert!(link.ends.batching.is_empty());
        }
    }
}
