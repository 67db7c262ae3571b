//! The sending direction of a session: bytes are kept until the other end has acknowledged them.

use alloc::collections::VecDeque;

/// Buffers above this size shrink when they are less than a quarter full, so that idle sessions hold little memory.
const SHRINK_ABOVE_BYTES: usize = 2 * 1024;

/// The other end reported an offset that is impossible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OutOfRange;

/// One direction of a session at its sender. All offsets count bytes since the session began:
/// `acknowledged ≤ carried ≤ sent ≤ written`.
#[derive(Clone, Debug)]
pub(crate) struct Outgoing {
    /// Bytes from `acknowledged` to `written`.
    kept: VecDeque<u8>,
    kept_max: usize,
    acknowledged: u64,
    /// The present carrier has taken the bytes up to this offset, or need not carry them.
    carried: u64,
    /// The highest offset that any carrier has taken.
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
    /// The application has finished; *finish* is not sent on the present carrier.
    Pending,
    /// *finish* is sent on the present carrier.
    Carried,
    Acknowledged,
    /// Unacknowledged bytes were dropped: the other end never gets them.
    Discarded,
}

impl Outgoing {
    /// `limit`: the other end's initial credit. `kept_max`: bound on unacknowledged bytes.
    pub(crate) fn new(limit: u64, kept_max: usize) -> Outgoing {
        let kept = VecDeque::new();
        Outgoing { kept, kept_max, acknowledged: 0, carried: 0, sent: 0, limit, finish: Finish::Open }
    }

    /// Takes the longest prefix that fits and returns its length.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> usize {
        let taken = bytes.len().min(self.room());
        let needed = self.kept.len() + taken;
        if needed > self.kept.capacity() {
            // Doubles the capacity, up to the bound.
            let capacity = (self.kept.capacity() * 2).clamp(needed, self.kept_max);
            self.kept.reserve_exact(capacity - self.kept.len());
        }
        self.kept.extend(&bytes[..taken]);
        taken
    }

    /// How many bytes [`write`](Self::write) would take now.
    pub(crate) fn room(&self) -> usize {
        if self.finish == Finish::Open { self.kept_max - self.kept.len().min(self.kept_max) } else { 0 }
    }

    /// The next bytes for the carrier, contiguous; empty without unsent bytes or without credit.
    pub(crate) fn next(&self) -> &[u8] {
        let credit = usize::try_from(self.limit.saturating_sub(self.carried)).unwrap_or(usize::MAX);
        #[expect(clippy::cast_possible_truncation, reason = "at most the length of `kept`")]
        let start = (self.carried - self.acknowledged) as usize;
        let (front, back) = self.kept.as_slices();
        let rest = match front.get(start..) {
            Some(rest) if !rest.is_empty() => rest,
            _ => &back[start - front.len()..],
        };
        &rest[..rest.len().min(credit)]
    }

    /// The carrier has taken this many bytes of [`next`](Self::next).
    pub(crate) fn advance_carried(&mut self, bytes: usize) {
        self.carried += bytes as u64;
        debug_assert!(self.carried <= self.written(), "a carrier must not take more than was written");
        self.sent = self.sent.max(self.carried);
    }

    /// The offset of the stream's end, if *finish* is due.
    #[must_use]
    pub(crate) fn poll_finish(&mut self) -> Option<u64> {
        if self.finish == Finish::Pending && self.carried == self.written() {
            self.finish = Finish::Carried;
            return Some(self.carried);
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
            self.finish = Finish::Pending;
        }
    }

    /// The other end has all bytes up to `received`, and *finish* too if `finish`. Outdated acknowledgements are
    /// ignored. Returns whether a full buffer has room again.
    pub(crate) fn acknowledge(&mut self, received: u64, finish: bool) -> Result<bool, OutOfRange> {
        if self.finish == Finish::Discarded {
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
            self.carried = self.carried.max(received);
            if self.kept.capacity() > SHRINK_ABOVE_BYTES && self.kept.len() < self.kept.capacity() / 4 {
                self.kept.shrink_to(self.kept.len() * 2);
            }
        }
        if finish {
            self.finish = Finish::Acknowledged;
        }
        Ok(was_full && self.room() > 0)
    }

    /// The other end's credit. A lower value than before is outdated and ignored.
    pub(crate) fn raise_credit_limit(&mut self, limit: u64) {
        self.limit = self.limit.max(limit);
    }

    /// Continues on a new carrier: bytes that the other end lacks are retransmitted. Returns whether a full buffer
    /// has room again.
    pub(crate) fn resume(&mut self, received: u64, finish: bool, limit: u64) -> Result<bool, OutOfRange> {
        if self.finish == Finish::Discarded {
            return Ok(false);
        }
        // A position below an acknowledged offset belongs to another stream, or is false.
        if received < self.acknowledged {
            return Err(OutOfRange);
        }
        let room = self.acknowledge(received, finish)?;
        self.carried = self.acknowledged;
        if self.finish == Finish::Carried {
            self.finish = Finish::Pending;
        }
        self.raise_credit_limit(limit);
        Ok(room)
    }

    /// Drops unacknowledged bytes, which are not sent any more.
    pub(crate) fn discard(&mut self) {
        self.kept = VecDeque::new();
        self.acknowledged = self.sent;
        self.carried = self.sent;
        self.finish = Finish::Discarded;
    }

    pub(crate) fn written(&self) -> u64 {
        self.acknowledged + self.kept.len() as u64
    }

    /// The highest offset that any carrier has taken.
    pub(crate) fn sent(&self) -> u64 {
        self.sent
    }

    pub(crate) fn acknowledged(&self) -> u64 {
        self.acknowledged
    }

    /// Whether an acknowledgement of bytes on the carrier, or of *finish*, is outstanding.
    pub(crate) fn awaits_answer(&self) -> bool {
        self.acknowledged < self.carried || self.finish == Finish::Carried
    }

    /// Whether the carrier has taken all written bytes.
    pub(crate) fn is_all_carried(&self) -> bool {
        self.carried == self.written()
    }

    /// Bytes written and not acknowledged.
    pub(crate) fn unacknowledged_bytes(&self) -> usize {
        self.kept.len()
    }

    /// Bytes of memory that hold the [unacknowledged](Self::unacknowledged_bytes) bytes; the capacity of an empty
    /// buffer does not count.
    pub(crate) fn held(&self) -> usize {
        if self.kept.is_empty() { 0 } else { self.kept.capacity() }
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    fn carry_all(outgoing: &mut Outgoing) -> Vec<u8> {
        let mut all = Vec::new();
        while !outgoing.next().is_empty() {
            let bytes = outgoing.next().to_vec();
            outgoing.advance_carried(bytes.len());
            all.extend(bytes);
        }
        all
    }

    #[test]
    fn a_new_carrier_gets_exactly_the_unacknowledged_bytes() {
        let mut outgoing = Outgoing::new(100, 16);
        assert_eq!(outgoing.write(b"abcdefgh"), 8);
        assert_eq!(carry_all(&mut outgoing), b"abcdefgh");
        assert_eq!(outgoing.acknowledge(3, false), Ok(false));
        assert_eq!(
            outgoing.write(b"ijklmnopqrstuvw"),
            11,
            "11 bytes should fit: 16 may be kept, 5 are kept already"
        );
        assert_eq!(carry_all(&mut outgoing), b"ijklmnopqrs");
        assert_eq!(outgoing.resume(5, false, 0), Ok(true));
        assert_eq!(carry_all(&mut outgoing), b"fghijklmnopqrs");
        assert_eq!(outgoing.acknowledge(19, false), Ok(false));
        assert!(
            outgoing.next().is_empty() && outgoing.unacknowledged_bytes() == 0,
            "nothing should be left to send or to acknowledge"
        );
    }

    #[test]
    fn memory_is_proportional_to_kept_bytes_and_bounded() {
        let mut outgoing = Outgoing::new(u64::MAX, 200_000);
        for _ in 0..300 {
            outgoing.write(&[7; 1_000]);
            assert!(
                outgoing.held() <= 200_000 && outgoing.held() <= 2 * outgoing.unacknowledged_bytes().max(500),
                "memory should be at most twice the kept bytes, or 1,000 bytes"
            );
        }
        carry_all(&mut outgoing);
        for received in (0..200_000).step_by(1_000) {
            outgoing.acknowledge(received, false).unwrap();
            assert!(
                outgoing.held() <= (4 * outgoing.unacknowledged_bytes() + 4).max(SHRINK_ABOVE_BYTES),
                "memory should shrink with the kept bytes"
            );
        }
    }

    #[test]
    fn credit_limits_sending_and_a_lower_credit_is_ignored() {
        let mut outgoing = Outgoing::new(3, 16);
        outgoing.write(b"abcdef");
        assert_eq!(carry_all(&mut outgoing), b"abc");
        outgoing.raise_credit_limit(2);
        assert!(outgoing.next().is_empty(), "nothing should be sent beyond the credit");
        outgoing.raise_credit_limit(5);
        assert_eq!(carry_all(&mut outgoing), b"de");
    }

    #[test]
    fn a_full_buffer_takes_no_bytes_and_reports_room_after_an_acknowledgement() {
        let mut outgoing = Outgoing::new(100, 4);
        assert_eq!(outgoing.write(b"abcdef"), 4);
        assert_eq!(outgoing.write(b"ef"), 0);
        carry_all(&mut outgoing);
        assert_eq!(outgoing.acknowledge(0, false), Ok(false));
        assert_eq!(outgoing.acknowledge(2, false), Ok(true));
        assert_eq!(outgoing.write(b"ef"), 2);
    }

    #[test]
    fn acknowledgements_of_unsent_bytes_are_rejected() {
        let mut outgoing = Outgoing::new(2, 16);
        outgoing.write(b"abc");
        carry_all(&mut outgoing);
        assert_eq!(
            outgoing.acknowledge(3, false),
            Err(OutOfRange),
            "3 bytes should not be acknowledged: only 2 were sent"
        );
        assert_eq!(
            outgoing.acknowledge(2, true),
            Err(OutOfRange),
            "a finish that was not sent should not be acknowledged"
        );
        assert_eq!(outgoing.acknowledge(2, false), Ok(false));
        assert_eq!(
            outgoing.resume(1, false, 9),
            Err(OutOfRange),
            "a position below the acknowledged offset should be rejected"
        );
    }

    #[test]
    fn finish_follows_the_last_byte_and_is_repeated_until_acknowledged() {
        let mut outgoing = Outgoing::new(2, 16);
        outgoing.write(b"abc");
        outgoing.finish();
        assert_eq!(outgoing.write(b"d"), 0);
        carry_all(&mut outgoing);
        assert_eq!(outgoing.poll_finish(), None, "finish should wait for the last byte");
        outgoing.raise_credit_limit(9);
        carry_all(&mut outgoing);
        assert_eq!(
            (outgoing.poll_finish(), outgoing.poll_finish()),
            (Some(3), None),
            "the finish should be sent once"
        );
        outgoing.resume(3, false, 9).unwrap();
        assert_eq!(outgoing.poll_finish(), Some(3));
        assert!(outgoing.awaits_answer(), "the finish should await its answer");
        outgoing.acknowledge(3, true).unwrap();
        assert!(!outgoing.awaits_answer(), "an acknowledged finish should await none");
        outgoing.resume(3, true, 9).unwrap();
        assert_eq!(outgoing.poll_finish(), None);
    }

    #[test]
    fn bytes_that_an_old_carrier_delivered_are_skipped() {
        let mut outgoing = Outgoing::new(100, 100);
        outgoing.write(b"abcdef");
        carry_all(&mut outgoing);
        outgoing.resume(1, false, 0).unwrap();
        outgoing.advance_carried(1);
        // An acknowledgement beyond the bytes of this carrier is valid: another carrier delivered them.
        outgoing.acknowledge(5, false).unwrap();
        assert_eq!(carry_all(&mut outgoing), b"f");
    }
}
