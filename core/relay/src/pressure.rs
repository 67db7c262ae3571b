//! When memory runs short: who is paused, and who is closed, so that everybody else goes on.
//!
//! A client that holds nothing is never closed for it, and none is scanned for while there is enough: the largest are
//! looked for when a bound is reached, once for at least an eighth of the whole memory.

use alloc::vec::Vec;
use core::cmp::Reverse;
use core::time::Duration;

use spillway_transport::{Conn, Time, Transport};

use crate::memory::Holding;
use crate::notice::{Cut, MemoryCut, Notice};
use crate::relay::Relay;
use crate::slots::Holder;

/// How often clients that do not read are looked for while memory is scarce.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// Who holds memory was just looked for in vain: what is left is in links and in the turn's own bytes.
const NOTHING_TO_CLOSE: Duration = Duration::from_millis(10);

/// What goes on while memory is scarce.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pressure {
    /// When clients that do not read are looked for.
    look_at: Option<Time>,
    /// Looking for holders is in vain until then.
    vain_until: Time,
    /// Paused and closed before memory became scarce.
    before: (u64, u64),
}

impl Pressure {
    #[must_use]
    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        self.look_at
    }
}

impl Relay {
    /// The first thing in a turn.
    pub(crate) fn begin_turn<T: Transport>(&mut self, now: Time, out: &T) {
        self.now = now;
        if !core::mem::replace(&mut self.in_turn, true) {
            self.memory.look(out);
        }
    }

    /// After anything that may have taken memory.
    pub(crate) fn keep_within_memory<T: Transport>(&mut self, out: &mut T) {
        if self.memory.is_exceeded() {
            self.close_largest(out);
        }
        if self.memory.judge() {
            self.scarcity_changed(out);
        }
    }

    /// Closes those who hold most for longest, until an eighth is free. Who has not kept anything waiting is closed only
    /// as far as the bound asks for it.
    fn close_largest<T: Transport>(&mut self, out: &mut T) {
        if self.now < self.pressure.vain_until && self.memory.clients() <= self.memory.max() {
            return;
        }
        for holding in self.holdings(out) {
            if self.memory.is_enough_closed(holding.age) {
                return;
            }
            self.close_for_memory(holding, out);
        }
        if self.memory.is_exceeded() {
            self.pressure.vain_until = self.now + NOTHING_TO_CLOSE;
        }
    }

    /// Those that hold anything, in the order in which they are closed.
    fn holdings<T: Transport>(&mut self, out: &T) -> Vec<Holding> {
        let (now, slots) = (self.now, &mut self.slots);
        let mut holdings: Vec<Holding> =
            slots.holders_mut().filter_map(|(conn, holder)| holding(now, conn, holder, out)).collect();
        holdings.sort_unstable_by_key(|holding| Reverse(holding.rank()));
        holdings
    }

    fn close_for_memory<T: Transport>(&mut self, holding: Holding, out: &mut T) {
        let Holding { conn, bytes, age } = holding;
        let in_transport = out.held(conn);
        let cut = MemoryCut { held_bytes: bytes, unread: age, limit_bytes: self.memory.max() };
        self.cut(conn, Cut::Memory(cut), out);
        self.memory.freed(in_transport);
        self.closed_for_memory += 1;
    }

    fn scarcity_changed<T: Transport>(&mut self, out: &mut T) {
        let (held, limit) = (self.memory.total(), self.memory.max());
        if self.memory.is_scarce() {
            self.pressure.look_at = Some(self.now + LOOK_AGAIN);
            self.pressure.before = (self.memory.pauses, self.closed_for_memory);
            return self.notices.push(Notice::MemoryScarce { held, limit, clients: self.clients });
        }
        self.pressure.look_at = None;
        let (pauses, closed) = self.pressure.before;
        let (paused, closed) = (self.memory.pauses - pauses, self.closed_for_memory - closed);
        self.notices.push(Notice::MemoryEnough { held, limit, paused, closed });
        self.resume_paused(out);
    }

    /// Those that were paused are read again.
    fn resume_paused<T: Transport>(&mut self, out: &mut T) {
        let paused: Vec<Conn> =
            self.slots.holders_mut().filter(|(_, holder)| is_paused(holder)).map(|(conn, _)| conn).collect();
        paused.into_iter().for_each(|conn| self.grant_again(conn, out));
    }

    /// What a client may send is decided anew.
    pub(crate) fn grant_again<T: Transport>(&mut self, conn: Conn, out: &mut T) {
        match self.slots.get_mut(conn) {
            Some(Holder::Raw(client)) => {
                if let Some(linked) = self.upstreams[client.upstream].linked_mut() {
                    client.grant(self.now, conn, linked, &mut self.memory, out);
                }
            }
            Some(Holder::Library(client)) => {
                let upstream = client.passage.map(|passage| &mut self.upstreams[passage.upstream]);
                let linked = upstream.and_then(|upstream| upstream.linked_mut());
                client.grant(conn, linked, &mut self.memory, out);
            }
            _ => {}
        }
    }

    /// While memory is scarce, those that have not read for [`Timeouts::unread`](crate::Timeouts) are closed, largest
    /// first: memory that nobody will ever read would stay scarce for good.
    pub(crate) fn pressure_timeout<T: Transport>(&mut self, out: &mut T) {
        if self.pressure.look_at.is_none_or(|at| at > self.now) {
            return;
        }
        self.pressure.look_at = Some(self.now + LOOK_AGAIN);
        let too_long = self.config.timeouts.unread;
        for holding in self.holdings(out) {
            if self.memory.is_calm() {
                break;
            }
            if holding.age >= too_long {
                self.close_for_memory(holding, out);
            }
        }
    }
}

fn is_paused(holder: &Holder) -> bool {
    match holder {
        Holder::Raw(client) => client.is_paused(),
        Holder::Library(client) => client.is_paused(),
        _ => false,
    }
}

/// What a client holds here and in the transport; none if that is nothing.
fn holding<T: Transport>(now: Time, conn: Conn, holder: &mut Holder, out: &T) -> Option<Holding> {
    let queued = out.queued(conn);
    let mut withheld = Duration::ZERO;
    let (waits, held, unread) = match holder {
        Holder::Raw(client) => {
            let unread = client.note_unread(now, conn, out);
            (client.buffered(), client.held(), unread)
        }
        Holder::Library(client) => {
            let unread = client.note_unread(now, conn, out);
            withheld = client.incomplete_since().map_or(Duration::ZERO, |since| now.since(since));
            (client.buffered() + client.incomplete(), client.held(), unread)
        }
        Holder::Leaving(leaving) => {
            leaving.unread.note(now, leaving.sent(), leaving.backlog.len() + queued);
            (leaving.backlog.len(), leaving.backlog.capacity(), leaving.unread)
        }
        Holder::Announcing(announcing) => {
            let bytes = announcing.bytes.len();
            return (bytes > 0).then_some(Holding { conn, bytes: announcing.counted, age: Duration::ZERO });
        }
        Holder::Free | Holder::Upstream(_) => return None,
    };
    let age = if waits + queued == 0 { Duration::ZERO } else { unread.age(now).max(withheld) };
    (waits + queued > 0).then(|| Holding { conn, bytes: held + out.held(conn), age })
}
