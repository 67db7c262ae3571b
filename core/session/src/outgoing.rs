//! The sending direction of a session: bytes are kept until the other end has acknowledged them.

use alloc::collections::VecDeque;

/// Buffers above this size shrink when they are less than a quarter full, so that an idle session needs little memory.
const QUIET_BYTES: usize = 2 * 1024;

/// The other end reported an offset that is impossible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OutOfRange;

/// One direction of a session at its sender. All offsets count bytes since the session began:
/// `acknowledged ≤ passed ≤ sent ≤ written`.
#[derive(Clone, Debug)]
pub(crate) struct Outgoing {
    /// Bytes from `acknowledged` to `written`.
    kept: VecDeque<u8>,
    kept_max: usize,
    acknowledged: u64,
    /// The present carrier has the bytes up to this offset, or need not carry them.
    passed: u64,
    /// The highest offset that any carrier has had.
    sent: u64,
    /// The other end's credit.
    limit: u64,
    finish: Finish,
}

/// The end of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Finish {
    /// More may be written.
    Open,
    /// Nothing more is written; *finish* is not sent on the present carrier.
    Wanted,
    /// *finish* is sent on the present carrier.
    Passed,
    Acknowledged,
    /// Unacknowledged bytes were dropped: the other end never gets them.
    Forgotten,
}

impl Outgoing {
    /// `limit`: the other end's initial credit. `kept_max`: bound on unacknowledged bytes.
    pub(crate) fn new(limit: u64, kept_max: usize) -> Outgoing {
        let kept = VecDeque::new();
        Outgoing { kept, kept_max, acknowledged: 0, passed: 0, sent: 0, limit, finish: Finish::Open }
    }

    /// Takes as long a prefix as there is room for, and returns its length.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> usize {
        let taken = bytes.len().min(self.room());
        let wanted = self.kept.len() + taken;
        if wanted > self.kept.capacity() {
            // Doubles the capacity, up to the bound.
            let capacity = (self.kept.capacity() * 2).clamp(wanted, self.kept_max);
            self.kept.reserve_exact(capacity - self.kept.len());
        }
        self.kept.extend(&bytes[..taken]);
        taken
    }

    /// How many bytes [`write`](Self::write) would take now.
    pub(crate) fn room(&self) -> usize {
        if self.finish == Finish::Open { self.kept_max - self.kept.len().min(self.kept_max) } else { 0 }
    }

    /// The next bytes for the carrier, contiguous; empty without bytes or credit.
    pub(crate) fn next(&self) -> &[u8] {
        let credit = usize::try_from(self.limit.saturating_sub(self.passed)).unwrap_or(usize::MAX);
        #[expect(clippy::cast_possible_truncation, reason = "at most the length of `kept`")]
        let start = (self.passed - self.acknowledged) as usize;
        let (front, back) = self.kept.as_slices();
        let rest = match front.get(start..) {
            Some(rest) if !rest.is_empty() => rest,
            _ => &back[start - front.len()..],
        };
        &rest[..rest.len().min(credit)]
    }

    /// The carrier has taken this many bytes of [`next`](Self::next).
    pub(crate) fn pass(&mut self, bytes: usize) {
        self.passed += bytes as u64;
        debug_assert!(self.passed <= self.written(), "only what was written is passed");
        self.sent = self.sent.max(self.passed);
    }

    /// The offset of the end, when *finish* is to be sent now.
    #[must_use]
    pub(crate) fn poll_finish(&mut self) -> Option<u64> {
        if self.finish == Finish::Wanted && self.passed == self.written() {
            self.finish = Finish::Passed;
            return Some(self.passed);
        }
        None
    }

    /// Whether nothing more will be written.
    pub(crate) fn is_finished(&self) -> bool {
        self.finish != Finish::Open
    }

    /// Ends the stream after the bytes that were written.
    pub(crate) fn finish(&mut self) {
        if self.finish == Finish::Open {
            self.finish = Finish::Wanted;
        }
    }

    /// The other end has all bytes up to `received`, and *finish* too if `finish`. An old acknowledgement changes nothing.
    /// Returns whether there is room after there was none.
    pub(crate) fn acknowledge(&mut self, received: u64, finish: bool) -> Result<bool, OutOfRange> {
        if self.finish == Finish::Forgotten {
            return Ok(false);
        }
        let finish_is_possible = self.finish != Finish::Open && received == self.written();
        if received > self.sent || (finish && !finish_is_possible) {
            return Err(OutOfRange);
        }
        let was_full = self.room() == 0;
        if received > self.acknowledged {
            #[expect(clippy::cast_possible_truncation, reason = "at most the length of `kept`: it was sent")]
            self.kept.drain(..(received - self.acknowledged) as usize);
            self.acknowledged = received;
            // An old carrier may have delivered more than the new one has carried.
            self.passed = self.passed.max(received);
            if self.kept.capacity() > QUIET_BYTES && self.kept.len() < self.kept.capacity() / 4 {
                self.kept.shrink_to(self.kept.len() * 2);
            }
        }
        if finish {
            self.finish = Finish::Acknowledged;
        }
        Ok(was_full && self.room() > 0)
    }

    /// The other end's credit. A lower value than before is outdated and ignored.
    pub(crate) fn raise_limit(&mut self, limit: u64) {
        self.limit = self.limit.max(limit);
    }

    /// Continues on a new carrier: bytes that the other end lacks are retransmitted. Returns whether there is room after
    /// there was none.
    pub(crate) fn resume(&mut self, received: u64, finish: bool, limit: u64) -> Result<bool, OutOfRange> {
        if self.finish == Finish::Forgotten {
            return Ok(false);
        }
        // Less than was acknowledged before: the position is of another stream, or false.
        if received < self.acknowledged {
            return Err(OutOfRange);
        }
        let room = self.acknowledge(received, finish)?;
        self.passed = self.acknowledged;
        if self.finish == Finish::Passed {
            self.finish = Finish::Wanted;
        }
        self.raise_limit(limit);
        Ok(room)
    }

    /// Drops unacknowledged bytes: they are not sent any more.
    pub(crate) fn forget(&mut self) {
        self.kept = VecDeque::new();
        self.acknowledged = self.sent;
        self.passed = self.sent;
        self.finish = Finish::Forgotten;
    }

    pub(crate) fn written(&self) -> u64 {
        self.acknowledged + self.kept.len() as u64
    }

    /// The highest offset that any carrier has had.
    pub(crate) fn sent(&self) -> u64 {
        self.sent
    }

    pub(crate) fn acknowledged(&self) -> u64 {
        self.acknowledged
    }

    /// Whether bytes on the carrier, or *finish*, are not acknowledged.
    pub(crate) fn awaits(&self) -> bool {
        self.acknowledged < self.passed || self.finish == Finish::Passed
    }

    /// Whether the carrier has all that was written.
    pub(crate) fn is_passed(&self) -> bool {
        self.passed == self.written()
    }

    /// Bytes written and not acknowledged.
    pub(crate) fn kept(&self) -> usize {
        self.kept.len()
    }

    /// Bytes of memory that [`kept`](Self::kept) bytes take; the capacity of an empty buffer does not count.
    pub(crate) fn held(&self) -> usize {
        if self.kept.is_empty() { 0 } else { self.kept.capacity() }
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    fn pass_all(outgoing: &mut Outgoing) -> Vec<u8> {
        let mut all = Vec::new();
        while !outgoing.next().is_empty() {
            let bytes = outgoing.next().to_vec();
            outgoing.pass(bytes.len());
            all.extend(bytes);
        }
        all
    }

    #[test]
    fn what_is_not_acknowledged_is_passed_again_and_nothing_else() {
        let mut outgoing = Outgoing::new(100, 16);
        assert_eq!(outgoing.write(b"abcdefgh"), 8);
        assert_eq!(pass_all(&mut outgoing), b"abcdefgh");
        assert_eq!(outgoing.acknowledge(3, false), Ok(false));
        assert_eq!(outgoing.write(b"ijklmnopqrstuvw"), 11, "16 may be kept, and 5 are");
        assert_eq!(pass_all(&mut outgoing), b"ijklmnopqrs");
        assert_eq!(outgoing.resume(5, false, 0), Ok(true));
        assert_eq!(pass_all(&mut outgoing), b"fghijklmnopqrs");
        assert_eq!(outgoing.acknowledge(19, false), Ok(false));
        assert!(outgoing.next().is_empty() && outgoing.kept() == 0);
    }

    #[test]
    fn memory_follows_what_is_kept_and_stays_within_the_bound() {
        let mut outgoing = Outgoing::new(u64::MAX, 200_000);
        for _ in 0..300 {
            outgoing.write(&[7; 1_000]);
            assert!(outgoing.held() <= 200_000 && outgoing.held() <= 2 * outgoing.kept().max(500));
        }
        pass_all(&mut outgoing);
        for received in (0..200_000).step_by(1_000) {
            outgoing.acknowledge(received, false).unwrap();
            assert!(outgoing.held() <= (4 * outgoing.kept() + 4).max(QUIET_BYTES));
        }
    }

    #[test]
    fn credit_holds_back_and_a_lower_one_is_an_old_one() {
        let mut outgoing = Outgoing::new(3, 16);
        outgoing.write(b"abcdef");
        assert_eq!(pass_all(&mut outgoing), b"abc");
        outgoing.raise_limit(2);
        assert!(outgoing.next().is_empty());
        outgoing.raise_limit(5);
        assert_eq!(pass_all(&mut outgoing), b"de");
    }

    #[test]
    fn a_full_buffer_takes_nothing_and_tells_of_room() {
        let mut outgoing = Outgoing::new(100, 4);
        assert_eq!(outgoing.write(b"abcdef"), 4);
        assert_eq!(outgoing.write(b"ef"), 0);
        pass_all(&mut outgoing);
        assert_eq!(outgoing.acknowledge(0, false), Ok(false));
        assert_eq!(outgoing.acknowledge(2, false), Ok(true));
        assert_eq!(outgoing.write(b"ef"), 2);
    }

    #[test]
    fn acknowledgements_of_what_was_never_sent_are_refused() {
        let mut outgoing = Outgoing::new(2, 16);
        outgoing.write(b"abc");
        pass_all(&mut outgoing);
        assert_eq!(outgoing.acknowledge(3, false), Err(OutOfRange), "only two were sent");
        assert_eq!(outgoing.acknowledge(2, true), Err(OutOfRange), "there was no finish");
        assert_eq!(outgoing.acknowledge(2, false), Ok(false));
        assert_eq!(outgoing.resume(1, false, 9), Err(OutOfRange), "two were acknowledged before");
    }

    #[test]
    fn the_finish_follows_the_last_byte_and_is_repeated_until_acknowledged() {
        let mut outgoing = Outgoing::new(2, 16);
        outgoing.write(b"abc");
        outgoing.finish();
        assert_eq!(outgoing.write(b"d"), 0);
        pass_all(&mut outgoing);
        assert_eq!(outgoing.poll_finish(), None, "a byte waits for credit");
        outgoing.raise_limit(9);
        pass_all(&mut outgoing);
        assert_eq!((outgoing.poll_finish(), outgoing.poll_finish()), (Some(3), None));
        outgoing.resume(3, false, 9).unwrap();
        assert_eq!(outgoing.poll_finish(), Some(3));
        assert!(outgoing.awaits());
        outgoing.acknowledge(3, true).unwrap();
        assert!(!outgoing.awaits());
        outgoing.resume(3, true, 9).unwrap();
        assert_eq!(outgoing.poll_finish(), None);
    }

    #[test]
    fn a_carrier_behind_what_an_old_one_delivered_catches_up() {
        let mut outgoing = Outgoing::new(100, 100);
        outgoing.write(b"abcdef");
        pass_all(&mut outgoing);
        outgoing.resume(1, false, 0).unwrap();
        outgoing.pass(1);
        // More than this carrier has had is valid, because another one delivered the bytes.
        outgoing.acknowledge(5, false).unwrap();
        assert_eq!(pass_all(&mut outgoing), b"f");
    }
}
