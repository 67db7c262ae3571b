//! Sessions that the client library's policy moves. Each group simulates one client process with its own policy.

use std::cmp::Reverse;
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, EventData, EventFlags};
use spillway_client::relief::{ActivationSettings, Move};
use spillway_client::session::{SessionEvent, SessionSettings};
use spillway_client::{Override, Relief, ReliefSettings};

use super::Worker;
use super::connection::State;
use super::group::Group;
use crate::config::PolicySettings;
use crate::error::Error;
use crate::protocol::Protocol;

/// Low bits of a group's token. Sockets have other bits (see `split_token`); the eventfd's number exceeds all groups.
const GROUP_MARK: u64 = 3;
const MARK_BITS: u32 = 2;
/// Rounds timers up to save wake-ups; decisions are about 100 ms apart.
const TIMER_GRAIN_NS: u64 = 1_000_000;

impl<P: Protocol> Worker<P> {
    /// Makes the groups that this worker's connections belong to.
    pub(super) fn make_groups(&mut self) -> Result<(), Error> {
        let config = self.setup.config.clone();
        let Some((link_port, self_relief)) = config.self_relief() else { return Ok(()) };
        let PolicySettings { group, asked } = self_relief;
        for number in 0..self.connections.len().div_ceil(group as usize) {
            let server = config.helpers.target(link_port);
            let settings = ReliefSettings {
                activation: ActivationSettings { sla: config.sla, ..ActivationSettings::default() },
                asked,
                session: SessionSettings::default(),
                ..ReliefSettings::new(server, config.helpers.targets())
            };
            let failed = |error| Error::system("cannot start the client library's relief", error);
            let relief = Relief::new(Instant::now(), settings).map_err(failed)?;
            let token = EventData::new_u64((number as u64) << MARK_BITS | GROUP_MARK);
            epoll::add(&self.epoll, &relief, token, EventFlags::IN).map_err(|error| {
                Error::system("cannot add the client library's relief to the epoll set", error)
            })?;
            self.groups.push(Group::new(relief));
        }
        Ok(())
    }

    fn group_of(&self, index: usize) -> usize {
        let size = self.setup.config.self_relief().map_or(1, |(_, self_relief)| self_relief.group as usize);
        index / size.max(1)
    }

    /// Adds a connection to its group, whose first move opens it.
    pub(super) fn relief_join(&mut self, index: usize) {
        let number = self.group_of(index);
        let group = &mut self.groups[number];
        match group.relief.join(Instant::now()) {
            Some(member) => {
                group.members.insert(member, index as u32);
                self.connections[index].member = Some(member);
                self.touch_group(number);
            }
            None => self.open_failed(index, "the group has too many connections".into()),
        }
    }

    /// Removes a closed connection from its group.
    pub(super) fn relief_leave(&mut self, index: usize) {
        let Some(member) = self.connections[index].member.take() else { return };
        let number = self.group_of(index);
        let group = &mut self.groups[number];
        group.members.remove(&member);
        group.relief.leave(Instant::now(), member);
        self.touch_group(number);
    }

    /// Reports a pending request by its intended send time, or `None`.
    pub(super) fn relief_pending_since(&mut self, index: usize, since_ns: Option<u64>) {
        let Some(member) = self.connections[index].member else { return };
        let since = since_ns.map(|since_ns| {
            let waited = Duration::from_nanos(self.clock.now_ns().saturating_sub(since_ns));
            let now = Instant::now();
            now.checked_sub(waited).unwrap_or(now)
        });
        let number = self.group_of(index);
        self.groups[number].relief.waits_since(member, since);
    }

    /// Reports a reply's latency.
    pub(super) fn relief_measured(&mut self, index: usize, latency_ns: u64) {
        let Some(member) = self.connections[index].member else { return };
        let number = self.group_of(index);
        let relief = &mut self.groups[number].relief;
        relief.waits_since(member, None);
        relief.measured(Instant::now(), member, Duration::from_nanos(latency_ns));
        self.touch_group(number);
    }

    /// Reports an event of the session.
    pub(super) fn relief_session_event(&mut self, index: usize, event: &SessionEvent) {
        let Some(member) = self.connections[index].member else { return };
        let number = self.group_of(index);
        self.groups[number].relief.note(Instant::now(), member, event);
        self.touch_group(number);
    }

    /// Overrides the policy of all groups.
    pub(super) fn override_relief(&mut self, relief: Override) {
        for number in 0..self.groups.len() {
            self.groups[number].relief.say(Instant::now(), relief, None);
            self.touch_group(number);
        }
    }

    /// Handles an epoll event whose token is not a connection's. False if the token is not a group's either.
    pub(super) fn group_ready(&mut self, token: u64) -> bool {
        let number = (token >> MARK_BITS) as usize;
        let Some(group) = self.groups.get_mut(number) else { return false };
        group.relief.handle_ready(Instant::now());
        self.touch_group(number);
        true
    }

    fn touch_group(&mut self, number: usize) {
        if !std::mem::replace(&mut self.groups[number].is_touched, true) {
            self.touched_groups.push(number as u32);
        }
    }

    /// Time of the next work for groups: 0 if a group must be polled now.
    pub(super) fn next_group_ns(&self) -> Option<u64> {
        if !self.touched_groups.is_empty() {
            return Some(0);
        }
        self.group_timers.peek().map(|Reverse((at_ns, _))| *at_ns)
    }

    /// Handles due timers and executes the groups' decisions.
    pub(super) fn poll_groups(&mut self) {
        let now_ns = self.clock.now_ns();
        while let Some(&Reverse((at_ns, number))) =
            self.group_timers.peek().filter(|Reverse((at, _))| *at <= now_ns)
        {
            self.group_timers.pop();
            let group = &mut self.groups[number as usize];
            if group.timer_ns == at_ns {
                group.timer_ns = u64::MAX;
                self.touch_group(number as usize);
            }
        }
        for number in std::mem::take(&mut self.touched_groups) {
            let number = number as usize;
            self.groups[number].is_touched = false;
            self.groups[number].relief.handle_timeout(Instant::now());
            while let Some(next_move) = self.groups[number].relief.poll_move() {
                self.relief_move(number, next_move);
            }
            while let Some(notice) = self.groups[number].relief.poll_notice() {
                self.decided(format!("group {number}: {}: {notice}", notice.label()));
            }
            self.set_group_timer(number);
        }
    }

    fn set_group_timer(&mut self, number: usize) {
        let group = &mut self.groups[number];
        let Some(at) = group.relief.poll_timeout() else { return };
        let in_ns = at.saturating_duration_since(Instant::now()).as_nanos();
        let at_ns = self.clock.now_ns().saturating_add(u64::try_from(in_ns).unwrap_or(u64::MAX));
        let at_ns = at_ns.checked_next_multiple_of(TIMER_GRAIN_NS).unwrap_or(u64::MAX);
        if at_ns < group.timer_ns {
            group.timer_ns = at_ns;
            self.group_timers.push(Reverse((at_ns, number as u32)));
        }
    }

    /// Replaces all timers after the clock was set.
    pub(super) fn renew_group_timers(&mut self) {
        self.group_timers.clear();
        for number in 0..self.groups.len() {
            self.groups[number].timer_ns = u64::MAX;
            self.touch_group(number);
        }
    }

    fn relief_move(&mut self, number: usize, next_move: Move) {
        let Some(&index) = self.groups[number].members.get(&next_move.member) else { return };
        let index = index as usize;
        let failed = match &mut self.connections[index].state {
            State::Session(state) => next_move.apply(Instant::now(), &mut state.session).err(),
            _ => {
                let deadline_ns = self.clock.now_ns() + super::opening::ATTEMPT_NS;
                return self.session_opened(index, deadline_ns, |now| next_move.open(now));
            }
        };
        match failed {
            None => self.poll_session(index),
            Some(error) => self.trouble(|| format!("session {index} cannot be moved: {error}")),
        }
    }
}
