//! Bytes that we send on one connection.

use alloc::boxed::Box;

use spillway_wire::session::Acknowledge;

use crate::kept::{Kept, NeverSent, Unacknowledged};

#[derive(Clone, Debug)]
pub(crate) struct Outgoing {
    /// Stream offset: bytes sent so far.
    sent: u64,
    /// Stream offset up to which the peer lets us send.
    limit: u64,
    is_finished: bool,
    /// Somebody was told that there is no room and waits to hear that there is.
    wants_room: bool,
    /// It waits for the link's pending bytes to go, not only for credit.
    is_blocked: bool,
    /// What the client's TCP has not acknowledged, where the helper tells of that.
    kept: Option<Box<Kept>>,
}

impl Outgoing {
    /// `limit`: how much the peer lets us send at first.
    pub(super) fn new(limit: u64) -> Outgoing {
        Outgoing { sent: 0, limit, is_finished: false, wants_room: false, is_blocked: false, kept: None }
    }

    /// Bytes sent so far.
    pub(crate) fn offset(&self) -> u64 {
        self.sent
    }

    /// Bytes that credit allows now, and the bound of what is kept.
    pub(crate) fn credit(&self) -> usize {
        let credit = usize::try_from(self.limit.saturating_sub(self.sent)).unwrap_or(usize::MAX);
        self.kept.as_ref().map_or(credit, |kept| credit.min(kept.room()))
    }

    /// These bytes were given to the link.
    pub(crate) fn sent(&mut self, bytes: &[u8]) {
        self.sent += bytes.len() as u64;
        if let Some(kept) = &mut self.kept {
            kept.push(bytes);
        }
    }

    pub(crate) fn is_finished(&self) -> bool {
        self.is_finished
    }

    /// Nothing more is sent. Returns how much was.
    pub(crate) fn finish(&mut self) -> u64 {
        self.is_finished = true;
        self.sent
    }

    /// The peer restates its absolute limit. Returns whether somebody who waits may go on with it: a limit that is
    /// repeated, or an older one, changes nothing.
    pub(crate) fn raise_limit(&mut self, limit: u64) -> bool {
        let is_higher = limit > self.limit;
        self.limit = self.limit.max(limit);
        is_higher && self.wants_room
    }

    // Who waits for room.

    pub(crate) fn want_room(&mut self) {
        self.wants_room = true;
    }

    pub(crate) fn wants_room(&self) -> bool {
        self.wants_room
    }

    /// Who waits hears that there is room.
    pub(crate) fn told_of_room(&mut self) {
        self.wants_room = false;
    }

    /// It waits until pending bytes have gone. Returns whether that is news.
    pub(crate) fn block(&mut self) -> bool {
        !core::mem::replace(&mut self.is_blocked, true)
    }

    /// Pending bytes have gone.
    pub(crate) fn unblock(&mut self) {
        self.is_blocked = false;
    }

    // What the client's TCP has acknowledged.

    pub(crate) fn is_keeping(&self) -> bool {
        self.kept.is_some()
    }

    pub(crate) fn kept(&self) -> Option<Unacknowledged<'_>> {
        self.kept.as_ref().map(|kept| kept.all())
    }

    /// What is sent from now on is kept until it is acknowledged, at most so many bytes; where that is so already, nothing
    /// changes.
    pub(crate) fn keep(&mut self, bytes_max: usize) {
        let sent = self.sent;
        self.kept.get_or_insert_with(|| Box::new(Kept::new(sent, bytes_max)));
    }

    /// The client's TCP has acknowledged bytes up to this offset, where they are [kept](Self::keep).
    pub(crate) fn acknowledged(&mut self, through: u64) -> Result<(), NeverSent> {
        let kept = self.kept.as_mut();
        debug_assert!(kept.is_some(), "who keeps nothing takes no acknowledgements");
        kept.map_or(Ok(()), |kept| kept.acknowledge(through))
    }

    /// Whether the peer can have taken what it says.
    pub(crate) fn can_be_taken(&self, told: Acknowledge) -> bool {
        told.received <= self.sent
            && (!told.finish_received || (self.is_finished && told.received == self.sent))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_only_rise_and_reach_the_end_of_numbers() {
        let mut outgoing = Outgoing::new(10);
        outgoing.sent(&[0; 4]);
        outgoing.want_room();
        assert!(!outgoing.raise_limit(7) && !outgoing.raise_limit(10));
        assert_eq!(outgoing.credit(), 6);
        assert!(outgoing.raise_limit(u64::MAX));
        assert_eq!(outgoing.credit() as u64, u64::MAX - 4);
    }

    #[test]
    fn what_is_kept_bounds_what_is_sent() {
        let mut outgoing = Outgoing::new(100);
        outgoing.sent(b"before");
        outgoing.keep(4);
        outgoing.keep(1_000);
        assert_eq!(outgoing.credit(), 4);
        outgoing.sent(b"abcd");
        assert_eq!(outgoing.credit(), 0);
        assert_eq!(outgoing.acknowledged(8), Ok(()));
        let kept = outgoing.kept().unwrap();
        assert_eq!((kept.acknowledged, kept.bytes.0), (8, b"cd".as_slice()));
        assert_eq!(outgoing.credit(), 2);
        assert_eq!(outgoing.acknowledged(11), Err(NeverSent));
    }

    #[test]
    fn only_what_was_sent_can_have_been_taken() {
        let mut outgoing = Outgoing::new(100);
        outgoing.sent(b"abcd");
        let told = |received, finish_received| Acknowledge { received, finish_received, answer: false };
        assert!(outgoing.can_be_taken(told(4, false)) && !outgoing.can_be_taken(told(5, false)));
        assert!(!outgoing.can_be_taken(told(4, true)), "there is no end yet");
        assert_eq!(outgoing.finish(), 4);
        assert!(outgoing.can_be_taken(told(4, true)) && !outgoing.can_be_taken(told(3, true)));
    }
}
