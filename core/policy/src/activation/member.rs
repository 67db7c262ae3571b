//! A group's connections: the present and the wanted carrier of each.

use core::time::Duration;

use spillway_parts::{SlotKey, Slots};
use spillway_transport::Time;

/// How a connection's bytes travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Carrier {
    /// On a link of its own to the server.
    Direct,
    /// Through a helper.
    Helped,
}

/// The key of one connection of a group. Keys are never reused: a key finds nothing after its connection has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Member(SlotKey);

/// Maximum number of connections of a group.
pub const MEMBERS_MAX: usize = 1 << 20;

#[derive(Clone, Copy, Debug)]
pub(super) struct MemberState {
    pub carrier: Carrier,
    /// Since when `carrier` is in use.
    pub since: Time,
    pub wanted: Carrier,
    /// The order without an outcome yet, and when it was given.
    pub order: Option<(Carrier, Time)>,
    /// The last order to a helper timed out; the move may still complete.
    pub overdue: bool,
    /// The earliest time of the next order.
    pub not_before: Time,
    /// When the oldest request without a reply was sent.
    pub waits_since: Option<Time>,
}

impl MemberState {
    /// Whether the connection is on the wrong carrier and has no outstanding order.
    pub fn is_to_move(&self) -> bool {
        self.wanted != self.carrier && self.order.is_none()
    }

    /// How long the oldest request has waited on the present carrier.
    pub fn waited(&self, now: Time) -> Option<Duration> {
        self.waits_since.map(|since| now.since(since.max(self.since)))
    }
}

#[derive(Debug)]
pub(super) struct Members {
    slots: Slots<MemberState>,
    helped: u32,
    /// Members with an outstanding order.
    ordered: u32,
    /// Members with a request without a reply.
    waiting: u32,
}

impl Members {
    pub const fn new() -> Members {
        Members { slots: Slots::new(MEMBERS_MAX), helped: 0, ordered: 0, waiting: 0 }
    }

    /// Adds a connection; `None` if there are [`MEMBERS_MAX`].
    pub fn join(&mut self, now: Time, carrier: Carrier) -> Option<Member> {
        let member = self.slots.insert(MemberState {
            carrier,
            since: now,
            wanted: carrier,
            order: None,
            overdue: false,
            not_before: Time::ZERO,
            waits_since: None,
        })?;
        self.helped += u32::from(carrier == Carrier::Helped);
        Some(Member(member))
    }

    pub fn leave(&mut self, member: Member) -> Option<MemberState> {
        let left = self.slots.remove(member.0)?;
        self.helped -= u32::from(left.carrier == Carrier::Helped);
        self.ordered -= u32::from(left.order.is_some());
        self.waiting -= u32::from(left.waits_since.is_some());
        Some(left)
    }

    /// Sets or ends the outstanding order; returns the previous one.
    pub fn set_order(&mut self, member: Member, order: Option<(Carrier, Time)>) -> Option<(Carrier, Time)> {
        let state = self.at_mut(member)?;
        let before = core::mem::replace(&mut state.order, order);
        self.ordered = self.ordered + u32::from(order.is_some()) - u32::from(before.is_some());
        before
    }

    /// Sets when the oldest request without a reply was sent.
    pub fn set_waits_since(&mut self, member: Member, since: Option<Time>) {
        let Some(state) = self.at_mut(member) else { return };
        let before = core::mem::replace(&mut state.waits_since, since);
        self.waiting = self.waiting + u32::from(since.is_some()) - u32::from(before.is_some());
    }

    pub fn at(&self, member: Member) -> Option<&MemberState> {
        self.slots.get(member.0)
    }

    pub fn at_mut(&mut self, member: Member) -> Option<&mut MemberState> {
        self.slots.get_mut(member.0)
    }

    /// Sets the present carrier. Returns the previous one if the carrier has changed.
    pub fn set_carrier(&mut self, now: Time, member: Member, carrier: Carrier) -> Option<Carrier> {
        let state = self.at_mut(member)?;
        if state.carrier == carrier {
            return None;
        }
        let before = core::mem::replace(&mut state.carrier, carrier);
        (state.since, state.overdue) = (now, false);
        match carrier {
            Carrier::Helped => self.helped += 1,
            Carrier::Direct => self.helped -= 1,
        }
        Some(before)
    }

    pub fn iter(&self) -> impl Iterator<Item = (Member, &MemberState)> {
        self.slots.iter().map(|(key, state)| (Member(key), state))
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = (Member, &mut MemberState)> {
        self.slots.iter_mut().map(|(key, state)| (Member(key), state))
    }

    #[expect(clippy::cast_possible_truncation, reason = "at most MEMBERS_MAX, 2^20")]
    pub fn count(&self) -> u32 {
        self.slots.len() as u32
    }

    pub fn helped(&self) -> u32 {
        self.helped
    }

    pub fn ordered(&self) -> u32 {
        self.ordered
    }

    pub fn waiting(&self) -> u32 {
        self.waiting
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    #[test]
    fn key_of_a_connection_that_has_left_finds_nothing() {
        let mut members = Members::new();
        let first = members.join(Time(1), Carrier::Helped).unwrap();
        assert_eq!((members.count(), members.helped()), (1, 1), "one helped member should be left");
        assert!(
            members.leave(first).is_some() && members.leave(first).is_none(),
            "a member should leave once"
        );
        let second = members.join(Time(2), Carrier::Direct).unwrap();
        assert_eq!((second.0.slot(), members.helped()), (first.0.slot(), 0), "the slot should be reused");
        assert!(
            members.at(first).is_none() && members.at_mut(first).is_none(),
            "the old key should find nothing"
        );
        assert_eq!(members.set_carrier(Time(3), first, Carrier::Helped), None);
        assert_eq!(members.set_carrier(Time(3), second, Carrier::Helped), Some(Carrier::Direct));
        assert_eq!(members.set_carrier(Time(3), second, Carrier::Helped), None);
        assert_eq!(members.iter().map(|(member, _)| member).collect::<Vec<_>>(), [second]);
    }
}
