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
            let available = self.available;
            let standing = self.members.at_mut(member).filter(|standing| {
                let can = available || standing.wanted == Carrier::Direct;
                standing.is_to_move() && standing.not_before <= now && can
            });
            let Some(standing) = standing else {
                self.moves.pop_front();
                continue;
            };
            let wanted = standing.wanted;
            let mut slower = self.returns.as_mut().filter(|_| wanted == Carrier::Direct);
            let is_due = slower.as_ref().is_none_or(|returns| returns.next_at() <= now);
            if !is_due || !self.limiter.take_at_random(now, &mut self.random) {
                return None;
            }
            if let Some(returns) = &mut slower {
                returns.take_at_random(now, &mut self.random);
            }
            self.moves.pop_front();
            self.members.set_order(member, Some((wanted, now)));
            self.counters.ordered(wanted);
            return Some(match wanted {
                Carrier::Helped => Order::Help(member),
                Carrier::Direct => Order::Direct(member),
            });
        }
        None
    }

    /// When the next order may be given, if any member is to move.
    pub(super) fn next_move_at(&self) -> Option<Time> {
        let first = self.members.at(*self.moves.front()?)?;
        let returns = self.returns.as_ref().filter(|_| first.wanted == Carrier::Direct);
        Some(self.limiter.next_at().max(returns.map_or(Time::ZERO, Limiter::next_at)))
    }

    /// All members return, spread over time. Returns how many must move.
    pub(super) fn want_return(&mut self, now: Time) -> u32 {
        let over_ms = self.settings.returning.as_millis().max(1);
        let per_s = (u128::from(self.members.helped()) * 1000).div_ceil(over_ms);
        self.returns = Some(Limiter::new(u32::try_from(per_s).unwrap_or(u32::MAX)));
        self.want(now, Carrier::Direct)
    }

    /// Queues all members that are to move and may, in random order.
    pub(super) fn line_up(&mut self, now: Time) {
        let ready = |(member, standing): (Member, &MemberState)| {
            (standing.is_to_move() && standing.not_before <= now).then_some(member)
        };
        let mut ready: Vec<Member> = self.members.iter().filter_map(ready).collect();
        self.random.shuffle(&mut ready);
        self.moves = ready.into();
    }

    /// All members go to this carrier. Returns how many must move.
    pub(super) fn want_all(&mut self, now: Time, wanted: Carrier) -> u32 {
        self.returns = None;
        self.want(now, wanted)
    }

    fn want(&mut self, now: Time, wanted: Carrier) -> u32 {
        let mut moving = 0;
        for (_, standing) in self.members.iter_mut() {
            (standing.wanted, standing.overdue) = (wanted, false);
            standing.not_before = Time::ZERO;
            moving += u32::from(standing.carrier != wanted);
        }
        self.line_up(now);
        moving
    }

    /// Cancels the moves of direct members to helpers.
    pub(super) fn want_direct_to_stay(&mut self) {
        for (_, standing) in self.members.iter_mut() {
            if standing.carrier == Carrier::Direct {
                standing.wanted = Carrier::Direct;
            }
        }
    }

    /// Moves `canaries` random members from the other carrier to this one.
    pub(super) fn send_canaries(&mut self, now: Time, canaries: u32, wanted: Carrier) {
        let elsewhere = self.members.iter().filter(|(_, standing)| standing.carrier != wanted);
        let mut chosen: Vec<Member> = elsewhere.map(|(member, _)| member).collect();
        self.returns = None;
        self.random.shuffle(&mut chosen);
        chosen.truncate(canaries as usize);
        for member in chosen {
            if let Some(standing) = self.members.at_mut(member) {
                (standing.wanted, standing.not_before) = (wanted, Time::ZERO);
            }
        }
        self.line_up(now);
    }

    /// Fails orders that have timed out without a report.
    pub(super) fn expire_orders(&mut self, now: Time) {
        let timeout = self.settings.order_timeout;
        if self.members.ordered() == 0 {
            return;
        }
        let expired = |(member, standing): (Member, &MemberState)| {
            standing.order.filter(|(_, given)| now.since(*given) >= timeout).map(|_| member)
        };
        let expired: Vec<Member> = self.members.iter().filter_map(expired).collect();
        for member in expired {
            self.not_moved(now, member);
            if let Some(standing) = self.members.at_mut(member) {
                standing.overdue = standing.wanted == Carrier::Helped;
            }
        }
    }

    /// Whether any member is moving, or queued to move.
    pub(super) fn is_moving(&self) -> bool {
        !self.moves.is_empty() || self.members.ordered() > 0
    }

    /// A random time up to `longest`, or less for large groups, whose moves are spread anyway.
    pub(super) fn spread(&mut self, longest: Duration) -> Duration {
        const PACED: u32 = 20;
        let members = self.members.count().max(1);
        let longest = if members > PACED { longest * PACED / members } else { longest };
        self.random.time(longest)
    }
}
