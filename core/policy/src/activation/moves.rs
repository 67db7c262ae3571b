//! Orders to single members: which member moves where, and when.

use alloc::vec::Vec;
use core::time::Duration;

use spillway_transport::Time;

use super::member::{Carrier, Member, MemberState};
use super::{Activation, Order};
use crate::limiter::Limiter;

impl Activation {
    /// The next order, if the rate limit allows one.
    pub(super) fn next_move(&mut self, now: Time) -> Option<Order> {
        while let Some(member) = self.moves.front().copied() {
            let has_helpers = self.has_helpers;
            let state = self.members.at_mut(member).filter(|state| {
                let is_possible = has_helpers || state.wanted == Carrier::Direct;
                state.is_to_move() && state.not_before <= now && is_possible
            });
            let Some(state) = state else {
                self.moves.pop_front();
                continue;
            };
            let wanted = state.wanted;
            let mut return_limiter = self.return_limiter.as_mut().filter(|_| wanted == Carrier::Direct);
            let is_due = return_limiter.as_ref().is_none_or(|return_limiter| return_limiter.next_at() <= now);
            if !is_due || !self.limiter.take_at_random(now, &mut self.random) {
                return None;
            }
            if let Some(return_limiter) = &mut return_limiter {
                return_limiter.take_at_random(now, &mut self.random);
            }
            self.moves.pop_front();
            self.members.set_order(member, Some((wanted, now)));
            self.counters.count_order(wanted);
            return Some(match wanted {
                Carrier::Helped => Order::ToHelper(member),
                Carrier::Direct => Order::Direct(member),
            });
        }
        None
    }

    /// When the next order may be given, if any member is to move.
    pub(super) fn next_move_at(&self) -> Option<Time> {
        let first = self.members.at(*self.moves.front()?)?;
        let return_limiter = self.return_limiter.as_ref().filter(|_| first.wanted == Carrier::Direct);
        Some(self.limiter.next_at().max(return_limiter.map_or(Time::ZERO, Limiter::next_at)))
    }

    /// Orders all members to return, spread over time. Returns how many must move.
    pub(super) fn return_all(&mut self, now: Time) -> u32 {
        let spread_ms = self.settings.returning.as_millis().max(1);
        let per_s = (u128::from(self.members.helped()) * 1000).div_ceil(spread_ms);
        self.return_limiter = Some(Limiter::new(u32::try_from(per_s).unwrap_or(u32::MAX)));
        self.set_wanted(now, Carrier::Direct)
    }

    /// Queues all members that must move and may move now, in random order.
    pub(super) fn queue_moves(&mut self, now: Time) {
        let ready = |(member, state): (Member, &MemberState)| {
            (state.is_to_move() && state.not_before <= now).then_some(member)
        };
        let mut ready: Vec<Member> = self.members.iter().filter_map(ready).collect();
        self.random.shuffle(&mut ready);
        self.moves = ready.into();
    }

    /// Orders all members to this carrier. Returns how many must move.
    pub(super) fn move_all(&mut self, now: Time, wanted: Carrier) -> u32 {
        self.return_limiter = None;
        self.set_wanted(now, wanted)
    }

    fn set_wanted(&mut self, now: Time, wanted: Carrier) -> u32 {
        let mut moving = 0;
        for (_, state) in self.members.iter_mut() {
            (state.wanted, state.overdue) = (wanted, false);
            state.not_before = Time::ZERO;
            moving += u32::from(state.carrier != wanted);
        }
        self.queue_moves(now);
        moving
    }

    /// Cancels the moves of direct members to helpers.
    pub(super) fn cancel_moves_to_helpers(&mut self) {
        for (_, state) in self.members.iter_mut() {
            if state.carrier == Carrier::Direct {
                state.wanted = Carrier::Direct;
            }
        }
    }

    /// Moves `canaries` random members from the other carrier to this one.
    pub(super) fn send_canaries(&mut self, now: Time, canaries: u32, wanted: Carrier) {
        let candidates = self.members.iter().filter(|(_, state)| state.carrier != wanted);
        let mut chosen: Vec<Member> = candidates.map(|(member, _)| member).collect();
        self.return_limiter = None;
        self.random.shuffle(&mut chosen);
        chosen.truncate(canaries as usize);
        for member in chosen {
            if let Some(state) = self.members.at_mut(member) {
                (state.wanted, state.not_before) = (wanted, Time::ZERO);
            }
        }
        self.queue_moves(now);
    }

    /// Treats orders that have timed out without a report as failed.
    pub(super) fn expire_orders(&mut self, now: Time) {
        let timeout = self.settings.order_timeout;
        if self.members.ordered() == 0 {
            return;
        }
        let expired = |(member, state): (Member, &MemberState)| {
            state.order.filter(|(_, given)| now.since(*given) >= timeout).map(|_| member)
        };
        let expired: Vec<Member> = self.members.iter().filter_map(expired).collect();
        for member in expired {
            self.not_moved(now, member);
            if let Some(state) = self.members.at_mut(member) {
                state.overdue = state.wanted == Carrier::Helped;
            }
        }
    }

    /// Whether any member is moving, or queued to move.
    pub(super) fn is_moving(&self) -> bool {
        !self.moves.is_empty() || self.members.ordered() > 0
    }

    /// A random time up to `longest`; less for large groups, whose moves the rate limit spreads.
    pub(super) fn random_spread(&mut self, longest: Duration) -> Duration {
        const SPREAD_BY_RATE: u32 = 20;
        let members = self.members.count().max(1);
        let longest = if members > SPREAD_BY_RATE { longest * SPREAD_BY_RATE / members } else { longest };
        self.random.time(longest)
    }
}
