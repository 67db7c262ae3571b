//! Sending direction of one connection: credit, back-pressure, and replies kept for acknowledgement.

use alloc::boxed::Box;

use spillway_wire::session::Acknowledge;

use crate::kept::{Kept, NeverSent, Unacknowledged};

#[derive(Clone, Debug)]
pub(crate) struct Outgoing {
    /// Stream offset: bytes sent so far.
    sent: u64,
    /// Stream offset up to which the peer allows sending.
    limit: u64,
    is_finished: bool,
    /// The caller could not send all bytes: `poll_room` returns the connection when there is room.
    wants_room: bool,
    /// The connection waits for the link's pending bytes to be sent, not only for credit.
    is_blocked: bool,
    /// Replies that the client's TCP has not acknowledged. `None`: the helper does not report acknowledgements.
    kept: Option<Box<Kept>>,
}

impl Outgoing {
    pub(super) fn new(limit: u64) -> Outgoing {
        Outgoing { sent: 0, limit, is_finished: false, wants_room: false, is_blocked: false, kept: None }
    }

    pub(crate) fn sent(&self) -> u64 {
        self.sent
    }

    /// Bytes that may be sent now: the smaller of the peer's credit and the room for kept replies.
    pub(crate) fn credit(&self) -> usize {
        let credit = usize::try_from(self.limit.saturating_sub(self.sent)).unwrap_or(usize::MAX);
        self.kept.as_ref().map_or(credit, |kept| credit.min(kept.room()))
    }

    /// Counts bytes that were passed to the link, and keeps them if the helper reports acknowledgements.
    pub(crate) fn record_sent(&mut self, bytes: &[u8]) {
        self.sent += bytes.len() as u64;
        if let Some(kept) = &mut self.kept {
            kept.push(bytes);
        }
    }

    pub(crate) fn is_finished(&self) -> bool {
        self.is_finished
    }

    /// Ends the stream. Returns its length in bytes.
    pub(crate) fn finish(&mut self) -> u64 {
        self.is_finished = true;
        self.sent
    }

    /// The peer sent *credit*. Returns whether a waiting caller may send more.
    pub(crate) fn raise_limit(&mut self, limit: u64) -> bool {
        let is_higher = limit > self.limit;
        self.limit = self.limit.max(limit);
        is_higher && self.wants_room
    }

    pub(crate) fn want_room(&mut self) {
        self.wants_room = true;
    }

    pub(crate) fn wants_room(&self) -> bool {
        self.wants_room
    }

    pub(crate) fn room_reported(&mut self) {
        self.wants_room = false;
    }

    /// Records that the connection waits for the link's pending bytes. Returns `true` if it was not recorded as waiting
    /// yet.
    pub(crate) fn block(&mut self) -> bool {
        !core::mem::replace(&mut self.is_blocked, true)
    }

    pub(crate) fn unblock(&mut self) {
        self.is_blocked = false;
    }

    pub(crate) fn is_keeping(&self) -> bool {
        self.kept.is_some()
    }

    pub(crate) fn kept(&self) -> Option<Unacknowledged<'_>> {
        self.kept.as_ref().map(|kept| kept.all())
    }

    /// Keeps replies sent from now on, at most `bytes_max`, until acknowledged. Repeated calls are ignored.
    pub(crate) fn keep(&mut self, bytes_max: usize) {
        let sent = self.sent;
        self.kept.get_or_insert_with(|| Box::new(Kept::new(sent, bytes_max)));
    }

    /// The client's TCP has acknowledged bytes up to this offset. Call only after [`keep`](Self::keep).
    pub(crate) fn acknowledged(&mut self, through: u64) -> Result<(), NeverSent> {
        let kept = self.kept.as_mut();
        debug_assert!(kept.is_some(), "acknowledgements should only be passed on if replies are kept");
        kept.map_or(Ok(()), |kept| kept.acknowledge(through))
    }

    /// Whether the session's peer acknowledges only bytes, and a *finish*, that were sent.
    pub(crate) fn is_valid_acknowledge(&self, acknowledge: Acknowledge) -> bool {
        acknowledge.received <= self.sent
            && (!acknowledge.finish_received || (self.is_finished && acknowledge.received == self.sent))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credit_only_rises_and_does_not_overflow() {
        let mut outgoing = Outgoing::new(10);
        outgoing.record_sent(&[0; 4]);
        outgoing.want_room();
        assert!(!outgoing.raise_limit(7) && !outgoing.raise_limit(10), "credit should not fall or stay");
        assert_eq!(outgoing.credit(), 6);
        assert!(outgoing.raise_limit(u64::MAX), "the highest credit should be accepted");
        assert_eq!(outgoing.credit() as u64, u64::MAX - 4);
    }

    #[test]
    fn the_bound_on_kept_replies_limits_sending() {
        let mut outgoing = Outgoing::new(100);
        outgoing.record_sent(b"before");
        outgoing.keep(4);
        outgoing.keep(1_000);
        assert_eq!(outgoing.credit(), 4);
        outgoing.record_sent(b"abcd");
        assert_eq!(outgoing.credit(), 0);
        assert_eq!(outgoing.acknowledged(8), Ok(()));
        let kept = outgoing.kept().unwrap();
        assert_eq!(
            (kept.acknowledged, kept.bytes.0),
            (8, b"cd".as_slice()),
            "the unacknowledged bytes should be kept"
        );
        assert_eq!(outgoing.credit(), 2);
        assert_eq!(outgoing.acknowledged(11), Err(NeverSent));
    }

    #[test]
    fn an_acknowledgement_of_unsent_bytes_is_invalid() {
        let mut outgoing = Outgoing::new(100);
        outgoing.record_sent(b"abcd");
        let acknowledge =
            |received, finish_received| Acknowledge { received, finish_received, requests_answer: false };
        assert!(
            outgoing.is_valid_acknowledge(acknowledge(4, false))
                && !outgoing.is_valid_acknowledge(acknowledge(5, false)),
            "an acknowledgement of unsent bytes should be invalid"
        );
        assert!(
            !outgoing.is_valid_acknowledge(acknowledge(4, true)),
            "a finish that was not sent should not be acknowledged"
        );
        assert_eq!(outgoing.finish(), 4);
        assert!(
            outgoing.is_valid_acknowledge(acknowledge(4, true))
                && !outgoing.is_valid_acknowledge(acknowledge(3, true)),
            "an acknowledgement of the finish should cover all bytes"
        );
    }
}
