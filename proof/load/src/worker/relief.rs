//! Connections that go to helpers and back by themselves, in groups: each is a process with a relief of its own.

use std::cmp::Reverse;
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, EventData, EventFlags};
use spillway_client::relief::{ActivationSettings, Move};
use spillway_client::session::{SessionEvent, SessionSettings};
use spillway_client::{Override, Relief, ReliefSettings};

use super::Worker;
use super::connection::Link;
use super::group::Group;
use crate::config::SelfRelief;
use crate::error::Error;
use crate::protocol::Protocol;

/// No socket of a connection is marked with these bits (see `split_token`), and the eventfd has a number beyond all groups.
const GROUP_MARK: u64 = 3;
const MARK_BITS: u32 = 2;
/// Fewer wake-ups; decisions are about a tenth of a second apart.
const TIMER_GRAIN_NS: u64 = 1_000_000;

impl<P: Protocol> Worker<P> {
    /// Makes the groups that this worker's connections belong to.
    pub(super) fn make_groups(&mut self) -> Result<(), Error> {
        let config = self.setting.config.clone();
        let Some((link, wanted)) = config.self_relief() else { return Ok(()) };
        let SelfRelief { group, asked } = wanted;
        for number in 0..self.connections.len().div_ceil(group as usize) {
            let server = config.helpers.target(link);
            let settings = ReliefSettings {
                activation: ActivationSettings { sla: config.sla, ..ActivationSettings::default() },
                asked,
                session: SessionSettings::default(),
                ..ReliefSettings::new(server, config.helpers.targets())
            };
            let failed = |error| Error::system("cannot begin a relief", error);
            let relief = Relief::new(Instant::now(), settings).map_err(failed)?;
            let token = EventData::new_u64((number as u64) << MARK_BITS | GROUP_MARK);
            epoll::add(&self.epoll, &relief, token, EventFlags::IN)
                .map_err(|error| Error::system("cannot watch a relief", error))?;
            self.groups.push(Group::new(relief));
        }
        Ok(())
    }

    fn group_of(&self, index: usize) -> usize {
        let size = self.setting.config.self_relief().map_or(1, |(_, wanted)| wanted.group as usize);
        index / size.max(1)
    }

    /// A connection is to be opened where its group is; the first move says where.
    pub(super) fn relief_join(&mut self, index: usize) {
        let number = self.group_of(index);
        let group = &mut self.groups[number];
        match group.relief.join(Instant::now()) {
            Some(member) => {
                group.members.insert(member, index as u32);
                self.connections[index].member = Some(member);
                self.touch_group(number);
            }
            None => self.open_failed(index, "its group has too many connections".into()),
        }
    }

    /// A connection is closed.
    pub(super) fn relief_leave(&mut self, index: usize) {
        let Some(member) = self.connections[index].member.take() else { return };
        let number = self.group_of(index);
        let group = &mut self.groups[number];
        group.members.remove(&member);
        group.relief.leave(Instant::now(), member);
        self.touch_group(number);
    }

    /// A request is under way that was to be sent then; or none is.
    pub(super) fn relief_waits(&mut self, index: usize, since_ns: Option<u64>) {
        let Some(member) = self.connections[index].member else { return };
        let since = since_ns.map(|since_ns| {
            let waited = Duration::from_nanos(self.clock.now_ns().saturating_sub(since_ns));
            let now = Instant::now();
            now.checked_sub(waited).unwrap_or(now)
        });
        let number = self.group_of(index);
        self.groups[number].relief.waits_since(member, since);
    }

    /// Its reply came.
    pub(super) fn relief_measured(&mut self, index: usize, latency_ns: u64) {
        let Some(member) = self.connections[index].member else { return };
        let number = self.group_of(index);
        let relief = &mut self.groups[number].relief;
        relief.waits_since(member, None);
        relief.measured(Instant::now(), member, Duration::from_nanos(latency_ns));
        self.touch_group(number);
    }

    /// Something happened to its session.
    pub(super) fn relief_note(&mut self, index: usize, event: &SessionEvent) {
        let Some(member) = self.connections[index].member else { return };
        let number = self.group_of(index);
        self.groups[number].relief.note(Instant::now(), member, event);
        self.touch_group(number);
    }

    /// The operator's override, for all groups.
    pub(super) fn relief_say(&mut self, word: Override) {
        for number in 0..self.groups.len() {
            self.groups[number].relief.say(Instant::now(), word, None);
            self.touch_group(number);
        }
    }

    /// Epoll says that something is not a connection's. Whether it is a group's.
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

    /// When a group's relief has to do something though nothing happened.
    pub(super) fn next_group_ns(&self) -> Option<u64> {
        if !self.touched_groups.is_empty() {
            return Some(0);
        }
        self.group_timers.peek().map(|Reverse((at_ns, _))| *at_ns)
    }

    /// Does what groups have decided. Touches them again where that is news to them.
    pub(super) fn tend_groups(&mut self) {
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
            while let Some(one) = self.groups[number].relief.poll_move() {
                self.relief_move(number, one);
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

    /// The clock was set: timers were of another one.
    pub(super) fn renew_group_timers(&mut self) {
        self.group_timers.clear();
        for number in 0..self.groups.len() {
            self.groups[number].timer_ns = u64::MAX;
            self.touch_group(number);
        }
    }

    fn relief_move(&mut self, number: usize, one: Move) {
        let Some(&index) = self.groups[number].members.get(&one.member) else { return };
        let index = index as usize;
        let failed = match &mut self.connections[index].link {
            Link::Session(link) => one.apply(Instant::now(), &mut link.session).err(),
            _ => {
                let limit_ns = self.clock.now_ns() + super::opening::ATTEMPT_NS;
                return self.session_opened(index, limit_ns, |now| one.open(now));
            }
        };
        match failed {
            None => self.hear_session(index),
            Some(error) => self.trouble(|| format!("session {index} cannot be moved: {error}")),
        }
    }
}
