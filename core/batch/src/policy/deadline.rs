//! Each batch has a deadline of its own: when its first message has waited for long enough, if waiting pays at all.

use core::time::Duration;

use spillway_transport::Time;

use super::{Gathered, Policy, Sent};

/// Waiting pays when it can be expected to bring one more message for so many that are there.
const THERE_FOR_ONE_MORE: u64 = 2;
/// Of `max_delay`, a batch waits for so many eighths: timers fire late.
const EIGHTHS: u32 = 7;
/// Nobody waits for longer whatever is asked for, which keeps sums in bounds.
const DELAY_MAX: Duration = Duration::from_secs(60);
/// What came is remembered over so many times `max_delay` of watching.
const MEMORY: u32 = 32;
/// Messages are counted in these parts, so that forgetting a share of them leaves no rounding error that matters.
const PARTS: u128 = 1 << 16;
/// All of the time is waited where as many are expected as waiting pays for, which are so many steps.
const ENOUGH: u128 = 256;
/// None of it where a quarter of them is.
const TOO_FEW: u128 = ENOUGH / 4;

/// A batch goes when its first message has waited for nearly `max_delay`, if that pays. No other way takes fewer batches
/// in which nobody waits for longer: *T* of Algorithm 1, which runs from batch to batch whether or not anybody waits,
/// sends a first message early and alone, and those behind it in another batch.
///
/// It pays in full where one more message is expected meanwhile, or one for each two that are there, and not at all where
/// a quarter of that is; in between a batch waits for a part of the time. How many are expected is watched from the first
/// message of each batch on, for as long as a batch waits at most. If it went before that, only messages count that would
/// have come in that case too: not those of clients who were answered since.
#[derive(Clone, Debug)]
pub struct Deadline {
    wait: Duration,
    max_bytes: usize,
    /// When the batch in the making began, and for how long it waits; none: nothing is gathered.
    held: Option<(Time, Duration)>,
    /// What of the batch in the making is counted.
    counted: Gathered,
    watch: Option<Watch>,
    /// Messages that came while watched, in [`PARTS`], older ones less.
    came: u128,
    /// How long that was, in ns.
    watched: u128,
}

#[derive(Clone, Copy, Debug)]
enum Watch {
    /// A batch waits: counted up to this time.
    Held(Time),
    /// It has gone: counted up to the one time, not beyond the other.
    Gone(Time, Time),
}

impl Deadline {
    /// Upper bounds of a message's waiting time, and of a batch that still waits.
    pub fn new(max_delay: Duration, max_bytes: usize) -> Deadline {
        Deadline {
            wait: max_delay.min(DELAY_MAX) * EIGHTHS / 8,
            max_bytes,
            held: None,
            counted: Gathered::default(),
            watch: None,
            came: 0,
            watched: 0,
        }
    }

    /// So much more has come by now.
    fn observe(&mut self, now: Time, more: Gathered) {
        let (time, messages) = match &mut self.watch {
            None => return,
            Some(Watch::Held(since)) => (now.since(core::mem::replace(since, now)), more.messages),
            Some(Watch::Gone(since, until)) if now <= *until => {
                (now.since(core::mem::replace(since, now)), more.fresh)
            }
            Some(Watch::Gone(since, until)) => {
                let time = until.since(*since);
                self.watch = None;
                (time, 0)
            }
        };
        self.watched += time.as_nanos();
        self.came += u128::from(messages) * PARTS;
        let memory = (self.wait * MEMORY).as_nanos();
        if self.watched > memory {
            self.came = self.came * memory / self.watched;
            self.watched = memory;
        }
    }

    /// How long a batch is to wait that begins with so many messages.
    fn hold_for(&self, there: u64) -> Duration {
        let asked_for = u128::from(there.max(THERE_FOR_ONE_MORE)) * PARTS * self.watched;
        if asked_for == 0 {
            return Duration::ZERO;
        }
        // In steps: all that was asked for is ENOUGH, and what is worth nothing TOO_FEW.
        let expected = self.came * self.wait.as_nanos() * u128::from(THERE_FOR_ONE_MORE);
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

    fn gathered(&mut self, now: Time, batch: Gathered) {
        let before = core::mem::replace(&mut self.counted, batch);
        let messages = batch.messages.saturating_sub(before.messages);
        self.observe(now, Gathered { messages, fresh: batch.fresh.saturating_sub(before.fresh), ..batch });
        if self.held.is_none() {
            let hold = self.hold_for(batch.messages);
            self.held = Some((now, hold));
            self.watch = Some(Watch::Held(now));
        }
    }

    fn sent(&mut self, batch: Sent) {
        self.observe(batch.at, Gathered::default());
        self.watch = self.held.take().map(|(began, _)| Watch::Gone(batch.at, began + self.wait));
        self.counted = Gathered::default();
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
    /// Seven eighths of that.
    const WAIT: Duration = Duration::from_micros(175);
    const CLIENTS: u32 = 100;

    /// A link's end at which each event is a turn of its own.
    struct Link {
        ends: Ends,
        /// Batches that went: when, in µs, and how many messages they held.
        went: Vec<(u64, u64)>,
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
            Link { ends, went: Vec::new(), first_waits_since: None, now: Time::ZERO }
        }

        /// Timers up to this time, then so many clients ask, the first of them this one.
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
                let before = self.went.len();
                self.turn(due);
                assert!(self.went.len() > before, "a timer that was asked for has something to do");
            }
        }

        fn turn(&mut self, now: Time) {
            self.now = now;
            let before = self.ends.counters().messages_sent;
            match self.ends.poll_transmit(now) {
                Some(_) => {
                    let waited = now.since(self.first_waits_since.take().unwrap_or(now));
                    assert!(waited <= WAIT, "{waited:?}");
                    self.went.push((now.as_nanos() / 1_000, self.ends.counters().messages_sent - before));
                }
                None if self.ends.batching.is_empty() => {}
                None => {
                    self.first_waits_since.get_or_insert(now);
                    assert!(self.ends.batching.poll_timeout() > Some(now), "nothing to do before that");
                }
            }
        }

        /// Batches since the last look.
        fn went(&mut self) -> Vec<(u64, u64)> {
            core::mem::take(&mut self.went)
        }
    }

    #[test]
    fn the_first_goes_at_once_and_so_do_all_who_are_alone() {
        let mut link = Link::new();
        for n in 0..100 {
            link.ask(n * 1_000, n as u32, 1);
        }
        let went = link.went();
        assert!(went.len() == 100 && (0..100).zip(&went).all(|(n, batch)| *batch == (n * 1_000, 1)));
    }

    #[test]
    fn a_batch_waits_from_its_first_message_on_where_others_follow() {
        let mut link = Link::new();
        for n in 0..41 {
            link.ask(n * 100, n as u32, 1);
        }
        link.timers(4_200);
        let went = link.went();
        assert_eq!(went[..2], [(0, 1), (275, 2)], "one alone; more follow, so the next one waits: {went:?}");
        // Those of 400 and 500 µs in one, 600 and 700 in the next: each goes 175 µs after its first.
        let later: Vec<u64> = went.windows(2).skip(2).map(|two| two[1].0 - two[0].0).collect();
        assert!(went[2..].iter().all(|(_, messages)| *messages == 2), "{went:?}");
        assert!(later.iter().all(|distance| *distance == 200), "{went:?}");
    }

    #[test]
    fn clients_who_ask_again_are_not_waited_for() {
        let mut link = Link::new();
        // Two clients, each asks 20 µs after its reply, which takes 60 µs: waiting would bring nobody else.
        for n in 0..100 {
            link.ask(n * 80, 0, 2);
            link.answer(0);
            link.answer(1);
        }
        assert_eq!(link.went().len(), 100, "each pair at once");
    }

    #[test]
    fn many_do_not_wait_for_few() {
        let mut link = Link::new();
        for n in 0..100 {
            link.ask(n * 100, n as u32, 1);
        }
        link.timers(20_000);
        link.went();
        link.ask(20_000, 0, 20);
        assert_eq!(link.went(), [(20_000, 20)], "one or two more are nothing to twenty");
        link.ask(30_000, 0, 1);
        assert!(link.went().is_empty(), "to one they are");
    }

    #[test]
    fn a_large_batch_goes_whatever_is_expected() {
        let mut link = Link::new();
        for n in 0..100 {
            link.ask(n * 100, n as u32, 1);
        }
        link.timers(20_000);
        link.went();
        link.ask(20_000, 0, 1);
        assert!(link.went().is_empty());
        link.ends.compose(Id(2), &[b'x'; 1 << 16]);
        link.turn(Time(20_010_000));
        assert_eq!(link.went(), [(20_010, 2)]);
    }

    #[test]
    fn when_others_stay_away_waiting_ends_within_milliseconds() {
        let mut link = Link::new();
        for n in 0..1_000 {
            link.ask(n * 20, n as u32, 1);
        }
        link.timers(30_000);
        link.went();
        // One each millisecond now: about as many batches as the memory is long still wait.
        let waited = (0..200).filter(|n| {
            let at_us = 30_000 + n * 1_000;
            link.ask(at_us, *n as u32, 1);
            let at_once = !link.went().is_empty();
            link.timers(at_us + 900);
            link.went();
            !at_once
        });
        let waited = waited.count();
        assert!((10..=120).contains(&waited), "{waited}");
    }

    proptest! {
        /// Whatever comes when: nobody waits for longer than the bound, each timer has something to do, and each batch
        /// asks for one timer at most.
        #[test]
        fn nobody_waits_too_long_and_timers_are_few(
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
