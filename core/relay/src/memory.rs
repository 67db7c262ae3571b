//! What all waiting bytes take together, and since when a client has not read.

use core::time::Duration;

use spillway_transport::{Conn, Time, Transport};

/// What a client may send before it is granted more: what we must be able to buffer when its link stalls;
pub(crate) const CLIENT_GRANT_BYTES: usize = 64 * 1024;
/// and while memory is scarce.
const SCARCE_GRANT_BYTES: usize = 4 * 1024;

/// Allocated bytes, in all their places, against the bound of [`Config::memory_bytes_max`](crate::Config).
#[derive(Debug)]
pub(crate) struct Memory {
    /// What the relay buffers for and from clients.
    clients: usize,
    /// Batches to servers, where they are larger than one turn makes them.
    links: usize,
    /// What the transport had queued when the turn began, without what it has freed since.
    transport: usize,
    max: usize,
    /// Three quarters were reached, and it has not come down to five eighths since.
    is_scarce: bool,
    /// Clients whose requests were not read any further because they did not read their replies.
    pub(crate) pauses: u64,
}

impl Memory {
    pub(crate) fn new(max: usize) -> Memory {
        Memory { clients: 0, links: 0, transport: 0, max, is_scarce: false, pauses: 0 }
    }

    pub(crate) fn max(&self) -> usize {
        self.max
    }

    pub(crate) fn set_max(&mut self, max: usize) {
        self.max = max;
    }

    /// What the relay itself buffers for and from clients.
    pub(crate) fn clients(&self) -> usize {
        self.clients
    }

    pub(crate) fn total(&self) -> usize {
        self.clients + self.links + self.transport
    }

    /// A turn begins: all that the last one gave to the transport is with the host, unless the host did not take it.
    pub(crate) fn look<T: Transport>(&mut self, out: &T) {
        self.transport = out.held_by_all();
    }

    /// A turn ends: what the transport has freed in it counts no more. What it was given in this turn is looked at when the
    /// next one begins, but there may be none for long.
    pub(crate) fn turn_ends<T: Transport>(&mut self, out: &T) {
        self.transport = self.transport.min(out.held_by_all());
    }

    /// A connection of the transport was ended: what was queued for it is freed.
    pub(crate) fn freed(&mut self, held: usize) {
        self.transport = self.transport.saturating_sub(held);
    }

    /// An amount of a client has changed.
    pub(crate) fn changed(&mut self, from: usize, to: usize) {
        self.clients = self.clients - from + to;
    }

    /// An amount of a link has changed.
    pub(crate) fn link_changed(&mut self, from: usize, to: usize) {
        self.links = self.links - from + to;
    }

    pub(crate) fn is_exceeded(&self) -> bool {
        self.total() > self.max
    }

    /// Whether there is as little as an eighth more than is wanted when clients are closed.
    pub(crate) fn is_relieved(&self) -> bool {
        self.total() <= self.max / 8 * 7
    }

    pub(crate) fn is_calm(&self) -> bool {
        self.total() <= self.max / 8 * 5
    }

    /// Clients that do not read are paused from here on, and others granted less.
    pub(crate) fn is_scarce(&self) -> bool {
        self.is_scarce
    }

    /// Decides whether memory is scarce. True if that has changed.
    pub(crate) fn judge(&mut self) -> bool {
        let was_scarce = self.is_scarce;
        self.is_scarce = if was_scarce { !self.is_calm() } else { self.total() > self.max / 4 * 3 };
        was_scarce != self.is_scarce
    }

    /// What a client may send before it is granted more.
    pub(crate) fn grant_bytes(&self) -> usize {
        if self.is_scarce { SCARCE_GRANT_BYTES } else { CLIENT_GRANT_BYTES }
    }
}

/// Since when a client has not read what was sent to it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unread {
    /// Once the client has bytes up to this stream offset, it has read all that waited for it at `since`.
    mark: u64,
    since: Time,
}

impl Unread {
    pub(crate) fn new(now: Time) -> Unread {
        Unread { mark: 0, since: now }
    }

    /// So many bytes were meant for the client up to now, and of these its host has taken all but `waiting`. One that
    /// keeps up has read everything that waited a short while ago; one that reads a little now and then has not.
    pub(crate) fn note(&mut self, now: Time, sent: u64, waiting: usize) {
        if sent.saturating_sub(waiting as u64) >= self.mark {
            *self = Unread { mark: sent, since: now };
        }
    }

    /// How long bytes have waited for it.
    pub(crate) fn age(&self, now: Time) -> Duration {
        now.since(self.since)
    }
}

/// What a client holds, as it is compared with others.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Holding {
    pub(crate) conn: Conn,
    /// Bytes of memory.
    pub(crate) bytes: usize,
    /// How long its oldest bytes have waited for it.
    pub(crate) age: Duration,
}

impl Holding {
    /// Who holds much for long comes first. Beyond this age, the amount alone counts.
    const AGE_MAX: Duration = Duration::from_secs(2);

    pub(crate) fn rank(&self) -> (u128, usize) {
        (self.bytes as u128 * self.age.min(Holding::AGE_MAX).as_micros(), self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scarce_from_three_quarters_to_five_eighths() {
        let mut memory = Memory::new(800);
        memory.changed(0, 600);
        assert!(!memory.judge() && !memory.is_scarce());
        memory.link_changed(0, 1);
        assert!(memory.judge() && memory.is_scarce() && !memory.is_exceeded());
        memory.changed(600, 500);
        assert!(!memory.judge() && memory.is_scarce(), "one byte above five eighths");
        memory.link_changed(1, 0);
        assert!(memory.judge() && !memory.is_scarce());
    }

    #[test]
    fn one_that_keeps_up_is_young_and_one_that_reads_a_little_is_not() {
        let at = |ms: u64| Time(ms * 1_000_000);
        let (mut reader, mut trickler) = (Unread::new(at(0)), Unread::new(at(0)));
        for turn in 1..100_u64 {
            // Each is sent 1,000 bytes in a turn of 10 ms. One has 2,000 waiting at any time, the other all but 10.
            reader.note(at(turn * 10), turn * 1_000, 2_000.min(turn as usize * 1_000));
            trickler.note(at(turn * 10), turn * 1_000, turn as usize * 990);
        }
        assert!(reader.age(at(1_000)) <= Duration::from_millis(30), "{reader:?}");
        assert!(trickler.age(at(1_000)) >= Duration::from_millis(900), "{trickler:?}");
    }

    #[test]
    fn much_for_long_is_first_and_then_the_most() {
        let conn = Conn { slot: 1, generation: 1 };
        let rank = |bytes, ms| Holding { conn, bytes, age: Duration::from_millis(ms) }.rank();
        assert!(rank(100_000, 500) > rank(500_000, 5), "the large one has just been sent this");
        assert!(rank(500_000, 3_000) > rank(100_000, 60_000), "neither reads: the larger one");
        assert!(rank(2, 0) > rank(1, 0), "nobody has waited: the larger one");
    }
}
