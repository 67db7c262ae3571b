//! Sessions that the client library's policy moves. Each group simulates one client process with its own policy.

use std::cmp::Reverse;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use spillway_client::relief::{ActivationSettings, Move};
use spillway_client::session::{SessionEvent, SessionSettings};
use spillway_client::{Override, Relief, ReliefSettings};

use super::Worker;
use super::connection::State;
use super::group::Group;
use crate::config::PolicySettings;
use crate::engine::Engine;
use crate::error::Error;
use crate::protocol::Protocol;

/// Low bits of a group's token. Tokens of streams have other low bits (see `split_token`). `WAKE_TOKEN` has these low
/// bits, but its number exceeds those of all groups.
const GROUP_MARK: u64 = 3;
const MARK_BITS: u32 = 2;
/// Timers are rounded up to multiples of this, to save wake-ups; decisions are about 100 ms apart.
const TIMER_GRAIN_NS: u64 = 1_000_000;

impl<P: Protocol, E: Engine> Worker<P, E> {
    pub(super) fn create_groups(&mut self) -> Result<(), Error> {
        let config = self.setup.config.clone();
        let Some((link_port, self_relief)) = config.self_relief() else { return Ok(()) };
        let PolicySettings { group, helpers_asked } = self_relief;
        for number in 0..self.connections.len().div_ceil(group as usize) {
            let server = config.helpers.target(link_port);
            let settings = ReliefSettings {
                activation: ActivationSettings { sla: config.sla, ..ActivationSettings::default() },
                helpers_asked,
                session: SessionSettings::default(),
                ..ReliefSettings::new(server, config.helpers.targets())
            };
            let start_error = |error| Error::system("cannot start the client library's relief", error);
            let relief = Relief::new(Instant::now(), settings).map_err(start_error)?;
            let token = (number as u64) << MARK_BITS | GROUP_MARK;
            self.engine
                .watch_descriptor(relief.as_fd(), token)
                .map_err(|error| Error::system("cannot wait for the client library's relief", error))?;
            self.groups.push(Group::new(relief));
        }
        Ok(())
    }

    fn group_of(&self, index: usize) -> usize {
        let size = self.setup.config.self_relief().map_or(1, |(_, self_relief)| self_relief.group as usize);
        index / size.max(1)
    }

    /// Adds a connection to its group. The first move that the group's policy decides for it opens the connection.
    pub(super) fn join_group(&mut self, index: usize) {
        let number = self.group_of(index);
        let group = &mut self.groups[number];
        match group.relief.join(Instant::now()) {
            Some(member) => {
                group.members.insert(member, index as u32);
                self.connections[index].member = Some(member);
                self.schedule_group_poll(number);
            }
            None => self
                .open_failed(index, "the client library's relief has no room for a further session".into()),
        }
    }

    pub(super) fn leave_group(&mut self, index: usize) {
        let Some(member) = self.connections[index].member.take() else { return };
        let number = self.group_of(index);
        let group = &mut self.groups[number];
        group.members.remove(&member);
        group.relief.leave(Instant::now(), member);
        self.schedule_group_poll(number);
    }

    /// Reports to the policy the intended send time of the pending request; `None`: no pending request.
    pub(super) fn report_pending_since(&mut self, index: usize, since_ns: Option<u64>) {
        let Some(member) = self.connections[index].member else { return };
        let since = since_ns.map(|since_ns| {
            let waited = Duration::from_nanos(self.clock.now_ns().saturating_sub(since_ns));
            let now = Instant::now();
            now.checked_sub(waited).unwrap_or(now)
        });
        let number = self.group_of(index);
        self.groups[number].relief.set_oldest_request(member, since);
    }

    pub(super) fn report_latency(&mut self, index: usize, latency_ns: u64) {
        let Some(member) = self.connections[index].member else { return };
        let number = self.group_of(index);
        let relief = &mut self.groups[number].relief;
        relief.set_oldest_request(member, None);
        relief.record_latency(Instant::now(), member, Duration::from_nanos(latency_ns));
        self.schedule_group_poll(number);
    }

    pub(super) fn report_session_event(&mut self, index: usize, event: &SessionEvent) {
        let Some(member) = self.connections[index].member else { return };
        let number = self.group_of(index);
        self.groups[number].relief.handle_event(Instant::now(), member, event);
        self.schedule_group_poll(number);
    }

    pub(super) fn override_relief(&mut self, relief: Override) {
        for number in 0..self.groups.len() {
            self.groups[number].relief.set_override(Instant::now(), relief, None);
            self.schedule_group_poll(number);
        }
    }

    /// Handles a report whose token is not a connection's. Returns false if the token is not a group's either.
    pub(super) fn handle_group_ready(&mut self, token: u64) -> bool {
        let number = (token >> MARK_BITS) as usize;
        let Some(group) = self.groups.get_mut(number) else { return false };
        group.relief.handle_ready(Instant::now());
        self.schedule_group_poll(number);
        true
    }

    fn schedule_group_poll(&mut self, number: usize) {
        if !std::mem::replace(&mut self.groups[number].is_poll_scheduled, true) {
            self.groups_to_poll.push(number as u32);
        }
    }

    /// Time at which a group must be polled next; 0 if one must be polled now.
    pub(super) fn next_group_ns(&self) -> Option<u64> {
        if !self.groups_to_poll.is_empty() {
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
                self.schedule_group_poll(number as usize);
            }
        }
        for number in std::mem::take(&mut self.groups_to_poll) {
            let number = number as usize;
            self.groups[number].is_poll_scheduled = false;
            self.groups[number].relief.handle_timeout(Instant::now());
            while let Some(next_move) = self.groups[number].relief.poll_move() {
                self.execute_relief_move(number, next_move);
            }
            while let Some(notice) = self.groups[number].relief.poll_notice() {
                self.report_decision(format!("group {number}: {}: {notice}", notice.label()));
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

    /// Sets all timers anew after the clock was set.
    pub(super) fn renew_group_timers(&mut self) {
        self.group_timers.clear();
        for number in 0..self.groups.len() {
            self.groups[number].timer_ns = u64::MAX;
            self.schedule_group_poll(number);
        }
    }

    fn execute_relief_move(&mut self, number: usize, next_move: Move) {
        let Some(&index) = self.groups[number].members.get(&next_move.member) else { return };
        let index = index as usize;
        let error = match &mut self.connections[index].state {
            State::Session(state) => next_move.apply(Instant::now(), &mut state.session).err(),
            _ => {
                let deadline_ns = self.clock.now_ns() + super::opening::ATTEMPT_NS;
                return self.start_session(index, deadline_ns, |now| next_move.open(now));
            }
        };
        match error {
            None => self.poll_session(index),
            Some(error) => self.report_trouble(|| format!("session {index} cannot be moved: {error}")),
        }
    }
}
