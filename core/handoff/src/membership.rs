//! A server's membership at the switch: its *hello*, its heartbeats, and when it must not transmit.

use alloc::collections::VecDeque;
use core::time::Duration;

use spillway_transport::Time;
use spillway_wire::switch::Status;

/// Maximum number of heartbeats without an answer; the server stops waiting for answers to older ones.
const IN_FLIGHT_MAX: usize = 256;
/// First and last interval between two hellos. The intervals double: each accepted hello gives a new term, and only the
/// answer to the latest counts, so an interval shorter than the round trip would never succeed.
const HELLO_INTERVAL_MIN: Duration = Duration::from_millis(50);
const HELLO_INTERVAL_MAX: Duration = Duration::from_millis(1600);

/// What a server must send now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    Hello,
    Heartbeat,
}

/// What an answer has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// The server is an owner with a new term. `is_new_epoch`: the switch has lost its entries.
    Joined { is_new_epoch: bool },
    /// The server has lost its term: it must not transmit for imported flows until it has joined again.
    Lost,
    /// The switch has seen this sequence; the next hello must have a higher one.
    MustSkipTo(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// Waits for the answer to the hello with this sequence, sent at this time.
    Greeting {
        latest: Option<(u64, Time)>,
        interval: Duration,
    },
    Owner,
}

const OUTSIDE: Standing = Standing::Greeting { latest: None, interval: HELLO_INTERVAL_MIN };

/// One server's membership.
#[derive(Clone, Debug)]
pub(crate) struct Membership {
    heartbeat: Duration,
    /// For this time after it has sent a heartbeat that was answered, the server may transmit.
    may_transmit_for: Duration,
    epoch: u64,
    /// The last epoch in which the server was an owner; 0: the server never was one.
    joined_epoch: u64,
    standing: Standing,
    next_at: Time,
    in_flight: VecDeque<(u64, Time)>,
    /// When the latest heartbeat was sent that has been answered *ok*.
    confirmed_at: Time,
}

impl Membership {
    /// `heartbeat`: the interval of heartbeats. `owner_timeout`: the switch's setting of this name.
    pub(crate) fn new(now: Time, heartbeat: Duration, owner_timeout: Duration) -> Membership {
        Membership {
            heartbeat,
            may_transmit_for: owner_timeout / 2,
            epoch: 0,
            joined_epoch: 0,
            standing: OUTSIDE,
            next_at: now,
            in_flight: VecDeque::new(),
            confirmed_at: Time::ZERO,
        }
    }

    /// The switch's epoch, as the last answer to *hello* stated it; 0 before that.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    pub(crate) fn is_owner(&self) -> bool {
        self.standing == Standing::Owner
    }

    /// Whether the server may not transmit for flows that it does not own originally. The time of sending counts, because
    /// answers may be late.
    pub(crate) fn is_mute(&self, now: Time) -> bool {
        !self.is_owner() || now.since(self.confirmed_at) > self.may_transmit_for
    }

    pub(crate) fn poll_timeout(&self) -> Time {
        self.next_at
    }

    /// The message that is due, if any. The caller sends the message, and passes its sequence to
    /// [`record_sent`](Self::record_sent).
    pub(crate) fn poll(&mut self, now: Time) -> Option<Due> {
        if now < self.next_at {
            return None;
        }
        match &mut self.standing {
            Standing::Owner => {
                self.next_at = now + self.heartbeat;
                Some(Due::Heartbeat)
            }
            Standing::Greeting { interval, .. } => {
                self.next_at = now + *interval;
                *interval = (*interval * 2).min(HELLO_INTERVAL_MAX);
                Some(Due::Hello)
            }
        }
    }

    pub(crate) fn record_sent(&mut self, now: Time, sequence: u64) {
        match &mut self.standing {
            Standing::Owner => {
                if self.in_flight.len() == IN_FLIGHT_MAX {
                    self.in_flight.pop_front();
                }
                self.in_flight.push_back((sequence, now));
            }
            Standing::Greeting { latest, .. } => {
                *latest = Some((sequence, now));
                self.in_flight.clear();
            }
        }
    }

    /// Handles the answer to a hello, whose generation is the term.
    pub(crate) fn handle_hello(
        &mut self,
        now: Time,
        sequence: u64,
        status: Status,
        (epoch, generation): (u64, u64),
    ) -> Option<Change> {
        let Standing::Greeting { latest: Some((latest, sent_at)), .. } = self.standing else { return None };
        if sequence != latest {
            return None;
        }
        match status {
            Status::Ok if generation == 0 || epoch != self.epoch => {
                // The server has learned the epoch.
                self.epoch = epoch;
                (self.standing, self.next_at) = (OUTSIDE, now);
                None
            }
            Status::Ok => {
                self.confirmed_at = sent_at;
                (self.standing, self.next_at) = (Standing::Owner, now);
                let is_new_epoch = self.joined_epoch != epoch && self.joined_epoch != 0;
                self.joined_epoch = epoch;
                Some(Change::Joined { is_new_epoch })
            }
            Status::Replayed => {
                (self.standing, self.next_at) = (OUTSIDE, now);
                Some(Change::MustSkipTo(generation))
            }
            _ => None,
        }
    }

    /// Handles the answer to a heartbeat.
    pub(crate) fn handle_heartbeat(&mut self, now: Time, sequence: u64, status: Status) -> Option<Change> {
        let index = self.in_flight.iter().position(|(sent, _)| *sent == sequence)?;
        let (_, sent_at) = self.in_flight.remove(index)?;
        match status {
            Status::Ok => {
                self.confirmed_at = self.confirmed_at.max(sent_at);
                None
            }
            Status::NoOwner => {
                (self.standing, self.next_at) = (OUTSIDE, now);
                self.in_flight.clear();
                Some(Change::Lost)
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const EPOCH: u64 = 77;
    const TERM: u64 = 80;

    fn new() -> Membership {
        Membership::new(Time(0), Duration::from_millis(10), Duration::from_secs(1))
    }

    fn sent(membership: &mut Membership, now: Time, sequence: u64) -> Option<Due> {
        let due = membership.poll(now)?;
        membership.record_sent(now, sequence);
        Some(due)
    }

    fn joined() -> Membership {
        let mut membership = new();
        assert_eq!(sent(&mut membership, Time(0), 1), Some(Due::Hello));
        assert_eq!(membership.handle_hello(Time(MS), 1, Status::Ok, (EPOCH, 0)), None);
        assert!(
            membership.epoch() == EPOCH && !membership.is_owner(),
            "the first hello only returns the epoch"
        );
        assert_eq!(sent(&mut membership, Time(MS), 2), Some(Due::Hello));
        let change = membership.handle_hello(Time(2 * MS), 2, Status::Ok, (EPOCH, TERM));
        assert_eq!(change, Some(Change::Joined { is_new_epoch: false }));
        membership
    }

    #[test]
    fn a_server_joins_with_its_second_hello_and_sends_heartbeats() {
        let mut membership = joined();
        assert_eq!(sent(&mut membership, Time(2 * MS), 3), Some(Due::Heartbeat));
        assert_eq!(sent(&mut membership, Time(3 * MS), 4), None);
        assert_eq!(sent(&mut membership, Time(12 * MS), 4), Some(Due::Heartbeat));
    }

    #[test]
    fn only_the_answer_to_the_latest_hello_counts() {
        let mut membership = new();
        sent(&mut membership, Time(0), 1);
        membership.handle_hello(Time(0), 1, Status::Ok, (EPOCH, 0));
        sent(&mut membership, Time(0), 2);
        assert_eq!(sent(&mut membership, Time(50 * MS), 3), Some(Due::Hello));
        assert_eq!(membership.handle_hello(Time(51 * MS), 2, Status::Ok, (EPOCH, TERM)), None);
        assert!(membership.handle_hello(Time(52 * MS), 3, Status::Ok, (EPOCH, TERM + 1)).is_some());
    }

    #[test]
    fn a_server_is_mute_half_the_timeout_after_it_sent_its_last_answered_heartbeat() {
        let mut membership = joined();
        sent(&mut membership, Time(10 * MS), 3);
        sent(&mut membership, Time(20 * MS), 4);
        membership.handle_heartbeat(Time(400 * MS), 3, Status::Ok);
        assert!(!membership.is_mute(Time(510 * MS)));
        assert!(membership.is_mute(Time(511 * MS)), "the late answer should not count from its arrival");
        membership.handle_heartbeat(Time(511 * MS), 4, Status::Ok);
        assert!(!membership.is_mute(Time(520 * MS)) && membership.is_mute(Time(521 * MS)));
    }

    #[test]
    fn a_server_that_is_no_owner_is_mute_and_joins_again() {
        let mut membership = joined();
        sent(&mut membership, Time(10 * MS), 3);
        assert_eq!(
            membership.handle_heartbeat(Time(11 * MS), 9, Status::NoOwner),
            None,
            "an unknown sequence"
        );
        assert_eq!(membership.handle_heartbeat(Time(11 * MS), 3, Status::NoOwner), Some(Change::Lost));
        assert!(membership.is_mute(Time(11 * MS)));
        sent(&mut membership, Time(11 * MS), 4);
        assert_eq!(membership.handle_hello(Time(12 * MS), 4, Status::Ok, (EPOCH + 5, 0)), None);
        sent(&mut membership, Time(12 * MS), 5);
        let change = membership.handle_hello(Time(13 * MS), 5, Status::Ok, (EPOCH + 5, TERM));
        assert_eq!(change, Some(Change::Joined { is_new_epoch: true }));
    }

    #[test]
    fn a_replayed_hello_tells_where_sequences_must_continue() {
        let mut membership = new();
        sent(&mut membership, Time(0), 1);
        let change = membership.handle_hello(Time(1), 1, Status::Replayed, (EPOCH, 500));
        assert_eq!(change, Some(Change::MustSkipTo(500)));
        assert_eq!(sent(&mut membership, Time(1), 501), Some(Due::Hello));
    }

    #[test]
    fn unanswered_heartbeats_are_bounded() {
        let mut membership = joined();
        for n in 0..2 * IN_FLIGHT_MAX as u64 {
            sent(&mut membership, Time((10 + 10 * n) * MS), 10 + n);
        }
        assert_eq!(membership.in_flight.len(), IN_FLIGHT_MAX);
    }
}
