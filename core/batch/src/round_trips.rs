//! Which clients have asked, in which batch, and when they were answered: what policies learn from.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::time::Duration;

use spillway_transport::Time;
use spillway_wire::Id;

/// Batches whose reply is awaited. A reply to an older one tells nothing.
const BATCHES_MAX: usize = 1024;

/// Batches that went and were answered, at a link's opening end.
#[derive(Debug, Default)]
pub(crate) struct RoundTrips {
    /// By id; grows with the ids that ask.
    clients: Vec<Client>,
    /// Batches that have gone.
    sent: u64,
    /// Batches whose first reply can be recognised and has not come, and when they went; the latest at the end. Batches
    /// before one that was answered are not awaited any more.
    awaited: VecDeque<(u64, Time)>,
    /// A reply to the batch in the making could be recognised.
    is_recognisable: bool,
    /// The latest batch to which a reply may have come.
    perhaps_answered: u64,
    /// Messages of the batch in the making from clients that were not answered since the last batch went.
    fresh: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Client {
    /// How many batches had gone when its last reply came.
    answered_after: u64,
    waits: Waits,
}

/// What a client waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Waits {
    /// It has no request that is not answered.
    #[default]
    Nothing,
    /// It has asked in this batch, and not since.
    Batch(u64),
    /// It has asked again before it was answered. From now on its replies cannot be told apart.
    Unknown,
}

impl RoundTrips {
    /// The id is another client's now.
    pub(crate) fn opened(&mut self, id: Id) {
        if let Some(client) = self.clients.get_mut(id.0 as usize) {
            client.waits = Waits::Nothing;
        }
    }

    /// This many more messages of a client are in the batch in the making: none if they continue the one before.
    pub(crate) fn asked(&mut self, id: Id, messages: u64) {
        let index = id.0 as usize;
        if self.clients.len() <= index {
            self.clients.resize(index + 1, Client::default());
        }
        let client = &mut self.clients[index];
        if client.answered_after < self.sent {
            self.fresh += messages;
        }
        let batch = self.sent + 1;
        client.waits = match client.waits {
            Waits::Nothing => {
                self.is_recognisable = true;
                Waits::Batch(batch)
            }
            Waits::Batch(before) if before == batch => Waits::Batch(batch),
            Waits::Batch(_) | Waits::Unknown => Waits::Unknown,
        };
    }

    /// Messages of the batch in the making from clients that were not answered since the last batch went.
    pub(crate) fn fresh(&self) -> u64 {
        self.fresh
    }

    /// Batches that have gone after the latest one to which a reply may have come.
    pub(crate) fn unanswered(&self) -> u64 {
        self.sent - self.perhaps_answered
    }

    /// The batch in the making goes.
    pub(crate) fn sent(&mut self, now: Time) {
        self.sent += 1;
        self.fresh = 0;
        if core::mem::take(&mut self.is_recognisable) {
            if self.awaited.len() == BATCHES_MAX {
                self.awaited.pop_front();
            }
            self.awaited.push_back((self.sent, now));
        }
    }

    /// A reply has come; the peer may name any id. If it is the first to a batch, and none to a later batch has come
    /// before it: how long the batch took. A server answers in the order of batches, except where a request blocks on
    /// purpose (Redis' BLPOP), whose time says nothing about the server's load.
    pub(crate) fn answered(&mut self, now: Time, id: Id) -> Option<Duration> {
        let client = self.clients.get_mut(id.0 as usize)?;
        client.answered_after = self.sent;
        let batch = match client.waits {
            Waits::Batch(batch) => batch,
            Waits::Unknown => {
                self.perhaps_answered = self.sent;
                return None;
            }
            Waits::Nothing => return None,
        };
        if batch > self.sent {
            return None; // A server that speaks first: the request is still here.
        }
        client.waits = Waits::Nothing;
        self.perhaps_answered = self.perhaps_answered.max(batch);
        let before = self.awaited.partition_point(|(sent, _)| *sent < batch);
        let (_, sent_at) = *self.awaited.get(before).filter(|(sent, _)| *sent == batch)?;
        self.awaited.drain(..=before);
        Some(now.since(sent_at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: Duration = Duration::from_micros(1);

    fn at(us: u64) -> Time {
        Time::ZERO + US * us as u32
    }

    #[test]
    fn the_first_reply_to_a_batch_tells_how_long_it_took() {
        let mut trips = RoundTrips::default();
        trips.asked(Id(1), 1);
        trips.asked(Id(2), 1);
        trips.sent(at(100));
        trips.asked(Id(3), 1);
        trips.sent(at(150));
        assert_eq!(trips.answered(at(180), Id(1)), Some(US * 80));
        assert_eq!(trips.answered(at(185), Id(2)), None, "the second");
        assert_eq!(trips.answered(at(190), Id(3)), Some(US * 40));
    }

    #[test]
    fn a_request_that_blocks_tells_nothing_once_others_were_answered() {
        let mut trips = RoundTrips::default();
        trips.asked(Id(1), 1);
        trips.sent(at(0));
        trips.asked(Id(2), 1);
        trips.sent(at(100));
        assert_eq!(trips.answered(at(180), Id(2)), Some(US * 80));
        assert_eq!(trips.answered(at(5_000_000), Id(1)), None);
    }

    #[test]
    fn a_client_that_asks_ahead_tells_nothing_until_its_id_is_opened_again() {
        let mut trips = RoundTrips::default();
        for n in 1..=3 {
            trips.asked(Id(1), 1);
            trips.sent(at(n));
        }
        assert_eq!(trips.answered(at(10), Id(1)), None);
        trips.asked(Id(1), 1);
        trips.sent(at(20));
        assert_eq!(trips.answered(at(21), Id(1)), None, "this may be the reply to the second request");
        trips.opened(Id(1));
        trips.asked(Id(1), 1);
        trips.asked(Id(1), 0);
        trips.sent(at(30));
        assert_eq!(trips.answered(at(35), Id(1)), Some(US * 5));
    }

    #[test]
    fn what_no_batch_has_asked_tells_nothing_and_takes_no_memory() {
        let mut trips = RoundTrips::default();
        assert_eq!(trips.answered(at(1), Id(u32::MAX)), None);
        assert!(trips.clients.is_empty());
        trips.asked(Id(3), 1);
        assert_eq!(trips.answered(at(2), Id(3)), None, "it has not gone");
        trips.sent(at(3));
        assert_eq!(trips.answered(at(4), Id(3)), Some(US));
        assert_eq!(trips.answered(at(4), Id(4)), None);
    }

    #[test]
    fn a_reply_that_comes_after_a_thousand_batches_tells_nothing() {
        let mut trips = RoundTrips::default();
        for id in 1..=BATCHES_MAX as u32 + 1 {
            trips.asked(Id(id), 1);
            trips.sent(at(id.into()));
        }
        assert_eq!(trips.answered(at(5_000), Id(1)), None);
        assert_eq!(trips.answered(at(5_000), Id(2)), Some(US * 4_998));
        assert!(trips.awaited.len() < BATCHES_MAX);
    }

    #[test]
    fn who_was_answered_since_the_last_batch_is_not_fresh() {
        let mut trips = RoundTrips::default();
        trips.asked(Id(1), 1);
        trips.sent(at(1));
        trips.asked(Id(2), 2);
        assert_eq!(trips.fresh(), 2);
        trips.answered(at(2), Id(1));
        trips.asked(Id(1), 1);
        assert_eq!(trips.fresh(), 2);
        trips.sent(at(3));
        assert_eq!(trips.fresh(), 0);
    }
}
