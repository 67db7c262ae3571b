use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::time::Duration;

use spillway_transport::Time;
use spillway_wire::Id;

/// Maximum number of batches whose reply is awaited. Replies to older batches are not measured.
const BATCHES_MAX: usize = 1024;

/// Measures the time from sending a batch of requests to the first reply to one of them.
#[derive(Debug, Default)]
pub(crate) struct RoundTrips {
    /// Indexed by id, up to the highest id that has sent a request.
    clients: Vec<Client>,
    batches_sent: u64,
    /// Unanswered batches whose first reply can be recognised: numbers and times of sending. None is older
    /// than an answered batch.
    awaited: VecDeque<(u64, Time)>,
    /// Whether a reply to the present batch could be recognised.
    is_recognisable: bool,
    /// Number of the latest batch that may have been answered.
    maybe_answered: u64,
    /// Messages of the present batch from clients that were not answered since the last batch was sent.
    fresh: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Client {
    /// Number of batches sent before the client's last reply.
    answered_after: u64,
    awaited_reply: AwaitedReply,
}

/// The reply that a client waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum AwaitedReply {
    /// All requests of the client are answered.
    #[default]
    Nothing,
    /// All unanswered requests of the client are in the batch with this number. Several requests count as
    /// one, because a large request may also arrive in pieces. The first reply counts as the reply to the
    /// batch. A second reply is ignored; but if the client has sent a new request meanwhile, the second reply
    /// counts as the reply to that request. The measured time is then too short, so batches are held for less
    /// time.
    Batch(u64),
    /// The client has sent several requests ahead, so its replies can no longer be matched to requests.
    Unknown,
}

impl RoundTrips {
    /// The id now belongs to a new client.
    pub(crate) fn reset_client(&mut self, id: Id) {
        if let Some(client) = self.clients.get_mut(id.0 as usize) {
            client.awaited_reply = AwaitedReply::Nothing;
        }
    }

    /// Counts new messages of a client in the present batch; 0 if the added bytes continue its last message.
    pub(crate) fn add_request(&mut self, id: Id, messages: u64) {
        let index = id.0 as usize;
        if self.clients.len() <= index {
            self.clients.resize(index + 1, Client::default());
        }
        let client = &mut self.clients[index];
        if client.answered_after < self.batches_sent {
            self.fresh += messages;
        }
        let batch = self.batches_sent + 1;
        client.awaited_reply = match client.awaited_reply {
            AwaitedReply::Nothing => {
                self.is_recognisable = true;
                AwaitedReply::Batch(batch)
            }
            AwaitedReply::Batch(before) if before == batch => AwaitedReply::Batch(batch),
            AwaitedReply::Batch(_) | AwaitedReply::Unknown => AwaitedReply::Unknown,
        };
    }

    pub(crate) fn fresh(&self) -> u64 {
        self.fresh
    }

    /// Batches sent after the latest one that may have been answered.
    pub(crate) fn unanswered(&self) -> u64 {
        self.batches_sent - self.maybe_answered
    }

    pub(crate) fn record_batch(&mut self, now: Time) {
        self.batches_sent += 1;
        self.fresh = 0;
        if core::mem::take(&mut self.is_recognisable) {
            if self.awaited.len() == BATCHES_MAX {
                self.awaited.pop_front();
            }
            self.awaited.push_back((self.batches_sent, now));
        }
    }

    /// A reply arrived; `id` is unchecked peer input. Returns the batch's round-trip time if this is the first reply to
    /// a batch, and no later batch was answered before. A server answers in the order of batches, except for a request
    /// that blocks on purpose (Redis' BLPOP), whose time does not depend on the server's load.
    pub(crate) fn record_reply(&mut self, now: Time, id: Id) -> Option<Duration> {
        let client = self.clients.get_mut(id.0 as usize)?;
        client.answered_after = self.batches_sent;
        let batch = match client.awaited_reply {
            AwaitedReply::Batch(batch) => batch,
            AwaitedReply::Unknown => {
                self.maybe_answered = self.batches_sent;
                return None;
            }
            AwaitedReply::Nothing => return None,
        };
        if batch > self.batches_sent {
            return None; // The server sent this before the request, which is still in the present batch.
        }
        client.awaited_reply = AwaitedReply::Nothing;
        self.maybe_answered = self.maybe_answered.max(batch);
        let index = self.awaited.partition_point(|(number, _)| *number < batch);
        let (_, sent_at) = *self.awaited.get(index).filter(|(number, _)| *number == batch)?;
        self.awaited.drain(..=index);
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
    fn the_first_reply_to_a_batch_gives_its_round_trip_time() {
        let mut trips = RoundTrips::default();
        trips.add_request(Id(1), 1);
        trips.add_request(Id(2), 1);
        trips.record_batch(at(100));
        trips.add_request(Id(3), 1);
        trips.record_batch(at(150));
        assert_eq!(trips.record_reply(at(180), Id(1)), Some(US * 80));
        assert_eq!(trips.record_reply(at(185), Id(2)), None, "only the first reply to a batch should count");
        assert_eq!(trips.record_reply(at(190), Id(3)), Some(US * 40));
    }

    #[test]
    fn a_blocking_request_is_not_measured_after_a_later_batch_was_answered() {
        let mut trips = RoundTrips::default();
        trips.add_request(Id(1), 1);
        trips.record_batch(at(0));
        trips.add_request(Id(2), 1);
        trips.record_batch(at(100));
        assert_eq!(trips.record_reply(at(180), Id(2)), Some(US * 80));
        assert_eq!(trips.record_reply(at(5_000_000), Id(1)), None);
    }

    #[test]
    fn a_client_that_pipelines_is_not_measured_until_its_id_is_reused() {
        let mut trips = RoundTrips::default();
        for round in 1..=3 {
            trips.add_request(Id(1), 1);
            trips.record_batch(at(round));
        }
        assert_eq!(trips.record_reply(at(10), Id(1)), None);
        trips.add_request(Id(1), 1);
        trips.record_batch(at(20));
        assert_eq!(
            trips.record_reply(at(21), Id(1)),
            None,
            "a reply to one of several requests should not count"
        );
        trips.reset_client(Id(1));
        trips.add_request(Id(1), 1);
        trips.add_request(Id(1), 0);
        trips.record_batch(at(30));
        assert_eq!(trips.record_reply(at(35), Id(1)), Some(US * 5));
    }

    #[test]
    fn several_requests_of_a_client_in_one_batch_count_as_one() {
        let mut trips = RoundTrips::default();
        trips.add_request(Id(1), 1);
        trips.add_request(Id(2), 1);
        trips.add_request(Id(1), 1);
        trips.record_batch(at(0));
        assert_eq!(trips.record_reply(at(40), Id(1)), Some(US * 40));
        assert_eq!(trips.record_reply(at(41), Id(1)), None);
        trips.add_request(Id(1), 1);
        trips.record_batch(at(50));
        assert_eq!(trips.record_reply(at(90), Id(1)), Some(US * 40));
    }

    #[test]
    fn replies_without_a_request_are_ignored_and_allocate_nothing() {
        let mut trips = RoundTrips::default();
        assert_eq!(trips.record_reply(at(1), Id(u32::MAX)), None);
        assert!(trips.clients.is_empty(), "an ignored reply should allocate nothing");
        trips.add_request(Id(3), 1);
        assert_eq!(
            trips.record_reply(at(2), Id(3)),
            None,
            "a reply before the request was sent should not count"
        );
        trips.record_batch(at(3));
        assert_eq!(trips.record_reply(at(4), Id(3)), Some(US));
        assert_eq!(trips.record_reply(at(4), Id(4)), None);
    }

    #[test]
    fn a_reply_to_a_batch_older_than_the_last_1024_is_not_measured() {
        let mut trips = RoundTrips::default();
        for id in 1..=BATCHES_MAX as u32 + 1 {
            trips.add_request(Id(id), 1);
            trips.record_batch(at(id.into()));
        }
        assert_eq!(trips.record_reply(at(5_000), Id(1)), None);
        assert_eq!(trips.record_reply(at(5_000), Id(2)), Some(US * 4_998));
        assert!(trips.awaited.len() < BATCHES_MAX, "remembered batches should be bounded");
    }

    #[test]
    fn messages_of_clients_answered_since_the_last_batch_are_not_fresh() {
        let mut trips = RoundTrips::default();
        trips.add_request(Id(1), 1);
        trips.record_batch(at(1));
        trips.add_request(Id(2), 2);
        assert_eq!(trips.fresh(), 2);
        trips.record_reply(at(2), Id(1));
        trips.add_request(Id(1), 1);
        assert_eq!(trips.fresh(), 2);
        trips.record_batch(at(3));
        assert_eq!(trips.fresh(), 0);
    }
}
