//! Sending half of a link's end: gathers messages into batches and sends them when the policy requires it.

use alloc::boxed::Box;
use core::time::Duration;

use spillway_transport::{Chunk, Time};
use spillway_wire::{Control, Id, Kind};

use crate::assembler::{Assembler, Updates};
use crate::histogram::Batches;
use crate::limits::LinkCounters;
use crate::policy::{GatheredMessages, Policy, SentBatch};
use crate::records::Records;
use crate::round_trips::RoundTrips;

#[derive(Debug)]
pub(crate) struct Batching {
    /// Kind of the data frames that this end sends.
    kind: Kind,
    assembler: Assembler,
    policy: Box<dyn Policy>,
    pending_bytes_max: usize,
    last_batch: Option<Time>,
    /// When `poll_transmit` first left the present batch waiting.
    waiting_since: Option<Time>,
    /// Counts requests: used only at a link's opening end.
    round_trips: RoundTrips,
    batches_sent: u64,
    messages_sent: u64,
    bytes_sent: u64,
    /// `None` at a server's ends: a server has an end for each library client, and does not use statistics.
    statistics: Option<Box<Batches>>,
}

impl Batching {
    pub(crate) fn new(kind: Kind, policy: Box<dyn Policy>, pending_bytes_max: usize) -> Batching {
        Batching {
            kind,
            assembler: Assembler::new(),
            policy,
            pending_bytes_max,
            last_batch: None,
            waiting_since: None,
            round_trips: RoundTrips::default(),
            batches_sent: 0,
            messages_sent: 0,
            bytes_sent: 0,
            statistics: None,
        }
    }

    pub(crate) fn keep_statistics(&mut self) {
        self.statistics.get_or_insert_default();
    }

    pub(crate) fn set_spare_bytes_max(&mut self, bytes: usize) {
        self.assembler.set_spare_bytes_max(bytes);
    }

    /// Replaces the policy. The new one starts without the old one's state.
    pub(crate) fn set_policy(&mut self, policy: Box<dyn Policy>) {
        self.policy = policy;
    }

    pub(crate) fn preamble(&mut self, bytes: &[u8]) {
        self.assembler.preamble(bytes);
    }

    pub(crate) fn data(&mut self, id: Id, bytes: &[u8]) {
        let before = self.assembler.messages();
        self.assembler.data(self.kind, id, bytes);
        self.count_request_messages(id, before);
    }

    pub(crate) fn frame(&mut self, id: Id, bytes: &[u8], last: bool) {
        let before = self.assembler.messages();
        self.assembler.frame(self.kind, id, bytes, !last);
        self.count_request_messages(id, before);
    }

    fn count_request_messages(&mut self, id: Id, messages_before: u64) {
        if self.kind == Kind::Request {
            self.round_trips.add_request(id, self.assembler.messages() - messages_before);
        }
    }

    pub(crate) fn control(&mut self, id: Id, control: Control) {
        self.assembler.control(id, control);
    }

    pub(crate) fn update(&mut self, id: Id, control: Control, updates: &mut Updates) {
        self.assembler.update(id, control, updates);
    }

    pub(crate) fn pending(&self) -> usize {
        self.assembler.len()
    }

    pub(crate) fn free_bytes(&self) -> usize {
        self.pending_bytes_max.saturating_sub(self.assembler.len())
    }

    pub(crate) fn is_full(&self) -> bool {
        self.free_bytes() == 0
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.assembler.is_empty()
    }

    pub(crate) fn control_bytes(&self) -> usize {
        self.assembler.control_bytes()
    }

    pub(crate) fn held(&self) -> usize {
        self.assembler.held()
    }

    pub(crate) fn reset_client(&mut self, id: Id) {
        self.round_trips.reset_client(id);
    }

    pub(crate) fn answered(&mut self, now: Time, id: Id) {
        if let Some(after) = self.round_trips.record_reply(now, id) {
            self.policy.answered(after);
        }
    }

    #[must_use]
    pub(crate) fn poll_transmit(&mut self, now: Time, records: Option<&mut Records>) -> Option<Chunk> {
        if self.assembler.is_empty() {
            return None;
        }
        self.start_waiting(now);
        let messages = self.assembler.messages() - self.messages_sent;
        let (fresh, unanswered) = (self.round_trips.fresh(), self.round_trips.unanswered());
        self.policy.gathered(now, GatheredMessages { messages, fresh, unanswered });
        if self.due_at().is_some_and(|due| due > now) {
            return None;
        }
        self.flush(now, records)
    }

    pub(crate) fn start_waiting(&mut self, now: Time) {
        if !self.assembler.is_empty() {
            self.waiting_since.get_or_insert(now);
        }
    }

    /// When the batch is due. `None`: at once.
    fn due_at(&self) -> Option<Time> {
        if self.assembler.len() >= self.policy.size_bytes() {
            return None;
        }
        self.policy.due(self.last_batch, self.waiting_since)
    }

    #[must_use]
    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        (!self.assembler.is_empty()).then(|| self.due_at().unwrap_or(Time::ZERO))
    }

    /// Takes all gathered messages as one batch, encrypted if the link is.
    pub(crate) fn flush(&mut self, now: Time, records: Option<&mut Records>) -> Option<Chunk> {
        if self.assembler.is_empty() {
            return None;
        }
        let batch = self.assembler.take_for(records);
        let elapsed = self.last_batch.replace(now).map(|last| now.since(last));
        self.policy.sent(SentBatch { at: now, bytes: batch.len(), elapsed });
        self.round_trips.record_batch(now);
        let waited = self.waiting_since.take().map_or(Duration::ZERO, |since| now.since(since));
        if let Some(batches) = &mut self.statistics {
            batches.messages.record(self.assembler.messages() - self.messages_sent);
            batches.bytes.record(batch.len() as u64);
            batches.delay_ns.record(u64::try_from(waited.as_nanos()).unwrap_or(u64::MAX));
        }
        self.batches_sent += 1;
        self.bytes_sent += batch.len() as u64;
        self.messages_sent = self.assembler.messages();
        Some(batch)
    }

    pub(crate) fn recycle(&mut self, chunk: Chunk) {
        self.assembler.recycle(chunk);
    }

    pub(crate) fn with_sent_counters(&self, counters: LinkCounters) -> LinkCounters {
        LinkCounters {
            batches_sent: self.batches_sent,
            messages_sent: self.messages_sent,
            bytes_sent: self.bytes_sent,
            ..counters
        }
    }

    /// Distributions of the batches sent; empty without [`keep_statistics`](Self::keep_statistics).
    pub(crate) fn statistics(&self) -> Batches {
        self.statistics.as_deref().copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::PolicyKind;

    #[test]
    fn the_delay_of_a_batch_counts_from_the_turn_of_its_first_message() {
        let policy = PolicyKind::Fixed { interval: Duration::from_micros(200), size_bytes: 1 << 20 };
        let mut batching = Batching::new(Kind::Request, policy.build(), 1 << 20);
        batching.keep_statistics();
        batching.data(Id(1), b"first");
        assert!(
            batching.poll_transmit(Time(5_000), None).is_some(),
            "a link's first batch should be due at once"
        );
        for nanos in [65_000, 125_000] {
            batching.control(Id(1), Control::Credit(nanos));
            batching.data(Id(1), b"get x");
            assert!(
                batching.poll_transmit(Time(nanos), None).is_none(),
                "the batch should wait until its delay is over"
            );
        }
        assert_eq!(batching.poll_timeout(), Some(Time(205_000)));
        assert!(
            batching.poll_transmit(Time(205_000), None).is_some(),
            "the batch should leave when its delay is over"
        );
        let (batches, counters) =
            (batching.statistics(), batching.with_sent_counters(LinkCounters::default()));
        assert_eq!(
            (batches.delay_ns.count(), batches.delay_ns.sum()),
            (2, 140_000),
            "the delays of both batches should be counted"
        );
        assert_eq!(
            (batches.messages.sum(), batches.bytes.sum()),
            (3, counters.bytes_sent),
            "three messages and all sent bytes should be counted"
        );
    }
}
