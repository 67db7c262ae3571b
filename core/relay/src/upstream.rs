//! One link to a server: its connection, its batches, and which client each of its ids belongs to.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::time::Duration;

use spillway_batch::{Batches, Id, KeyId, LinkCounters, OpenerLink};
use spillway_transport::{Chunk, Conn, Time, Transport};

use crate::marked::Turns;
use crate::memory::Memory;
use crate::status::{Stalls, add};

/// Bytes that a server may have under way to us. What it sends is handled at once, so this bounds nothing here
/// but keeps its batches flowing.
pub(crate) const LINK_GRANT_BYTES: u32 = 1 << 20;

/// A batch that has reached this size within a turn goes before the turn's end. Smaller ones wait for it: what
/// a turn sends leaves at its end anyway, and *S* can only grow when batches may exceed it.
pub(crate) const BATCH_BYTES: usize = 64 * 1024;

/// A link and what is to be done when it is down.
#[derive(Debug)]
pub(crate) struct Upstream {
    pub(crate) service: u16,
    /// Which of the service's links.
    pub(crate) link: u16,
    pub(crate) state: State,
    pub(crate) standing: Standing,
    /// Which of the service's keys it opens with.
    pub(crate) key: usize,
    /// Failures in a row.
    failures: u32,
    /// What its connections of the past have done.
    pub(crate) past: Past,
}

/// What links have done.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Past {
    pub(crate) traffic: LinkCounters,
    pub(crate) batches: Batches,
    pub(crate) stalls: Stalls,
}

impl Past {
    pub(crate) fn merge(&mut self, other: &Past) {
        add(&mut self.traffic, other.traffic);
        self.batches.add(&other.batches);
        self.stalls.add(other.stalls);
    }

    pub(crate) fn add(&mut self, linked: &Linked) {
        add(&mut self.traffic, linked.opener.counters());
        self.batches.add(&linked.opener.batches());
        self.stalls.add(linked.stalls);
    }
}

/// What a link is to its service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// Opened as configured, and opened again when it is lost.
    Current,
    /// It was replaced, and takes clients until a new one is up. Its clients then have to go within the time.
    StandsIn { within: Option<Duration> },
    /// It carries the clients that it has, until the deadline.
    Retired { deadline: Option<Time> },
    /// Its place is free.
    Gone,
}

#[derive(Debug)]
pub(crate) enum State {
    Waiting { until: Time },
    Connecting { conn: Conn, deadline: Time },
    Linked(Box<Linked>),
    Closed,
}

impl Upstream {
    pub(crate) fn new(service: u16, link: u16) -> Upstream {
        Upstream {
            service,
            link,
            state: State::Waiting { until: Time::ZERO },
            standing: Standing::Current,
            key: 0,
            failures: 0,
            past: Past::default(),
        }
    }

    /// What it has done since the start, its connection of now included.
    pub(crate) fn done(&self) -> Past {
        let mut done = self.past;
        if let Some(linked) = self.linked() {
            done.add(linked);
        }
        done
    }

    pub(crate) fn linked(&self) -> Option<&Linked> {
        match &self.state {
            State::Linked(linked) => Some(linked),
            _ => None,
        }
    }

    pub(crate) fn linked_mut(&mut self) -> Option<&mut Linked> {
        match &mut self.state {
            State::Linked(linked) => Some(linked),
            _ => None,
        }
    }

    /// Whether new clients can be put on it.
    pub(crate) fn takes_clients(&self) -> bool {
        let standing = matches!(self.standing, Standing::Current | Standing::StandsIn { .. });
        standing && self.linked().is_some_and(|linked| linked.up && !linked.draining)
    }

    /// It is opened with the newest key again when it is lost.
    pub(crate) fn came_up(&mut self) {
        self.failures = 0;
        self.key = 0;
    }

    /// Waits before the next attempt: the minimum doubled for each failure in a row up to the maximum, and of
    /// that between a half and all, by `random`, so that helpers do not come back all at once.
    pub(crate) fn wait(&mut self, now: Time, min: Duration, max: Duration, random: u16) -> Duration {
        let longest = min.saturating_mul(1 << self.failures.min(16)).min(max);
        self.failures += 1;
        let delay = longest / 2 + (longest / 2).mul_f64(f64::from(random) / f64::from(u16::MAX));
        self.state = State::Waiting { until: now + delay };
        delay
    }

    fn state_timeout(&self) -> Option<Time> {
        match &self.state {
            State::Waiting { until } => Some(*until),
            State::Connecting { deadline, .. } => Some(*deadline),
            // While the transport has no room, its `Room` comes and not the time.
            State::Linked(linked) if linked.unsent.is_some() => linked.opener.poll_record_timeout(),
            State::Linked(linked) => linked.opener.poll_timeout(),
            State::Closed => None,
        }
    }
}

impl Turns for Upstream {
    fn deadline(&self) -> Option<Time> {
        let retired = match self.standing {
            Standing::Retired { deadline } => deadline,
            _ => None,
        };
        [retired, self.state_timeout()].into_iter().flatten().min()
    }

    fn is_unfinished(&self) -> bool {
        self.linked().is_some_and(Linked::is_unfinished)
    }

    fn is_at_rest(&self) -> bool {
        let has_ended = matches!(self.standing, Standing::Retired { .. })
            && self.linked().is_none_or(|linked| linked.connections() == 0);
        let is_at_rest = |linked: &Linked| !linked.is_unfinished() && linked.counted == linked.to_count();
        !has_ended && self.linked().is_none_or(is_at_rest)
    }
}

/// Whose an id is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Member {
    Nobody,
    Client(Conn),
    /// A library client that is gone, and whose server has not closed yet.
    Orphan,
}

/// A link whose connection is open.
#[derive(Debug)]
pub(crate) struct Linked {
    pub(crate) conn: Conn,
    pub(crate) opener: OpenerLink,
    /// The largest window of one of its plain clients.
    pub(crate) window_bytes_max: u32,
    /// The key that it was opened with.
    pub(crate) key: KeyId,
    /// Of library clients: connections that have not ended on both sides.
    pub(crate) relayed: u32,
    /// Both ends have authenticated.
    pub(crate) up: bool,
    /// The server wants no more clients here.
    pub(crate) draining: bool,
    /// What the transport had no room for.
    unsent: Option<Chunk>,
    /// By id.
    members: Vec<Member>,
    /// Clients that get no grant until the link has drained.
    pub(crate) starved: Vec<Conn>,
    /// Of its plain clients.
    pub(crate) stalls: Stalls,
    /// Of its batches' memory, what the relay's counts.
    counted: usize,
}

impl Linked {
    pub(crate) fn new(conn: Conn, opener: OpenerLink, window_bytes_max: u32, key: KeyId) -> Linked {
        Linked {
            conn,
            opener,
            window_bytes_max,
            key,
            relayed: 0,
            up: false,
            draining: false,
            unsent: None,
            members: Vec::new(),
            starved: Vec::new(),
            stalls: Stalls::default(),
            counted: 0,
        }
    }

    pub(crate) fn member(&self, id: Id) -> Member {
        self.members.get(id.0 as usize).copied().unwrap_or(Member::Nobody)
    }

    pub(crate) fn set_member(&mut self, id: Id, member: Member) {
        let index = id.0 as usize;
        if self.members.len() <= index {
            self.members.resize(index + 1, Member::Nobody);
        }
        self.members[index] = member;
    }

    pub(crate) fn clients(&self) -> impl Iterator<Item = Conn> + '_ {
        self.members.iter().filter_map(|member| match member {
            Member::Client(conn) => Some(*conn),
            Member::Nobody | Member::Orphan => None,
        })
    }

    pub(crate) fn connections(&self) -> usize {
        self.opener.connections() + self.relayed as usize
    }

    /// The transport takes no more: clients get no new grants.
    pub(crate) fn is_congested(&self) -> bool {
        self.unsent.is_some()
    }

    pub(crate) fn pending(&self) -> usize {
        self.opener.pending() + self.unsent.as_ref().map_or(0, Chunk::len)
    }

    /// Brings the relay's memory up to date: a batch of one turn is not counted, what piles up behind it is.
    pub(crate) fn count(&mut self, memory: &mut Memory) {
        let counted = self.to_count();
        memory.link_changed(self.counted, counted);
        self.counted = counted;
    }

    fn to_count(&self) -> usize {
        let held = self.opener.held() + self.unsent.as_ref().map_or(0, Chunk::capacity);
        let incomplete = self.opener.held_incomplete();
        let waiting = if self.pending() == 0 { 0 } else { (held - incomplete).saturating_sub(BATCH_BYTES) };
        waiting + incomplete
    }

    /// Somebody may go on in the next turn, although nothing has to happen before.
    fn is_unfinished(&self) -> bool {
        self.opener.has_room() || (!self.is_congested() && !self.starved.is_empty())
    }

    /// The link is over: nothing of it counts any more.
    pub(crate) fn uncount(&self, memory: &mut Memory) {
        memory.link_changed(self.counted, 0);
    }

    /// Sends a batch within a turn if it is a large one.
    pub(crate) fn transmit_large<T: Transport>(&mut self, now: Time, out: &mut T) {
        if self.opener.pending() >= BATCH_BYTES {
            self.transmit(now, out);
        }
    }

    /// Sends the batch that is due, if any and if there is room.
    pub(crate) fn transmit<T: Transport>(&mut self, now: Time, out: &mut T) {
        if let Some(chunk) = self.unsent.take() {
            self.unsent = self.offer(chunk, out);
        }
        if self.unsent.is_some() {
            self.opener.waits(now);
        } else if let Some(batch) = self.opener.poll_transmit(now) {
            if let Some(spent) = out.spent_chunk() {
                self.opener.recycle(spent);
            }
            self.unsent = self.offer(batch, out);
        }
    }

    /// Sends everything, whether due or not, for the last time.
    pub(crate) fn transmit_all<T: Transport>(&mut self, now: Time, out: &mut T) {
        if let Some(chunk) = self.unsent.take() {
            self.unsent = self.offer(chunk, out);
        }
        if self.unsent.is_none()
            && let Some(batch) = self.opener.flush(now)
        {
            self.unsent = self.offer(batch, out);
        }
    }

    /// Returns what the transport did not take. It tells when there is room again.
    fn offer<T: Transport>(&mut self, chunk: Chunk, out: &mut T) -> Option<Chunk> {
        let mut chunk = match out.send_chunk(self.conn, chunk) {
            Ok(()) => return None,
            Err(chunk) => chunk,
        };
        let taken = out.send(self.conn, chunk.as_slice());
        chunk.advance(taken);
        if chunk.is_empty() {
            self.opener.recycle(chunk);
            return None;
        }
        Some(chunk)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_longer_after_each_failure_and_never_too_long() {
        let (min, max) = (Duration::from_millis(50), Duration::from_secs(2));
        let mut upstream = Upstream::new(0, 0);
        for expected_ms in [50, 100, 200, 400, 800, 1600, 2000, 2000] {
            let longest = Duration::from_millis(expected_ms);
            let delay = upstream.wait(Time(0), min, max, u16::MAX);
            assert_eq!(delay, longest);
            assert_eq!(upstream.deadline(), Some(Time(0) + longest));
        }
        for _ in 0..100 {
            assert_eq!(upstream.wait(Time(0), min, max, 0), max / 2);
        }
        upstream.came_up();
        assert_eq!(upstream.wait(Time(7), min, max, 0), min / 2);
    }
}
