//! Chooses a helper for each of many members, which may all need one at the same moment.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};
use spillway_policy::Member;

use crate::LinkTarget;
use crate::load_queries::{LoadQueries, LoadQueryOutcome};

/// Maximum number of concurrent [`LoadQueries`], each of which has a descriptor. Further members wait, which
/// is short: answers take a fraction of a millisecond.
const UNDER_WAY_MAX: usize = 128;
const EVENTS_MAX: usize = 64;

/// Members whose helpers are being chosen.
#[derive(Debug)]
pub(super) struct HelperChoices {
    helpers_asked: usize,
    poller: OwnedFd,
    /// By number: in the order in which the queries were sent, which is also the order of their deadlines.
    under_way: BTreeMap<u64, (Member, LoadQueries)>,
    next_number: u64,
    waiting: VecDeque<Member>,
    chosen: VecDeque<(Member, LoadQueryOutcome)>,
}

impl HelperChoices {
    pub(super) fn new(helpers_asked: usize) -> io::Result<HelperChoices> {
        Ok(HelperChoices {
            helpers_asked,
            poller: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            under_way: BTreeMap::new(),
            next_number: 0,
            waiting: VecDeque::new(),
            chosen: VecDeque::new(),
        })
    }

    /// Begins to choose one of these helpers for a member.
    pub(super) fn begin(&mut self, now: Instant, member: Member, helpers: &[LinkTarget]) {
        self.cancel(member);
        self.waiting.push_back(member);
        self.start_waiting(now, helpers);
    }

    fn start_waiting(&mut self, now: Instant, helpers: &[LinkTarget]) {
        while self.under_way.len() < UNDER_WAY_MAX {
            let Some(member) = self.waiting.pop_front() else { break };
            match self.start(now, helpers) {
                Ok(queries) => {
                    self.under_way.insert(self.next_number, (member, queries));
                    self.next_number += 1;
                }
                // Without a descriptor, a connection to a helper would fail, too.
                Err(_) => self.chosen.push_back((member, LoadQueryOutcome::NoHelper)),
            }
        }
    }

    fn start(&self, now: Instant, helpers: &[LinkTarget]) -> io::Result<LoadQueries> {
        if helpers.is_empty() {
            return Err(io::ErrorKind::NotFound.into());
        }
        let queries = LoadQueries::start(now, helpers, self.helpers_asked)?;
        epoll::add(&self.poller, &queries, EventData::new_u64(self.next_number), EventFlags::IN)?;
        Ok(queries)
    }

    /// Stops choosing a helper for a member.
    pub(super) fn cancel(&mut self, member: Member) {
        self.waiting.retain(|other| *other != member);
        self.chosen.retain(|(other, _)| *other != member);
        self.under_way.retain(|_, (other, _)| *other != member);
    }

    /// Stops choosing for all members, and returns them.
    pub(super) fn take_all(&mut self) -> Vec<Member> {
        let under_way = std::mem::take(&mut self.under_way).into_values().map(|(member, _)| member);
        let chosen = std::mem::take(&mut self.chosen).into_iter().map(|(member, _)| member);
        self.waiting.drain(..).chain(under_way).chain(chosen).collect()
    }

    /// Receives answers. Call it when the descriptor is ready.
    pub(super) fn handle_ready(&mut self, now: Instant, helpers: &[LinkTarget]) {
        let mut space = [MaybeUninit::<epoll::Event>::uninit(); EVENTS_MAX];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        // Fails only with EINTR; the descriptor stays ready then.
        let Ok((events, _)) = epoll::wait(&self.poller, &mut space, Some(&at_once)) else { return };
        for event in events {
            let number = event.data.u64();
            if let Some((_, queries)) = self.under_way.get_mut(&number) {
                queries.handle_ready();
                self.poll_queries(now, number);
            }
        }
        self.start_waiting(now, helpers);
    }

    /// Ends `LoadQueries` whose deadline has passed.
    pub(super) fn handle_timeout(&mut self, now: Instant, helpers: &[LinkTarget]) {
        while let Some((&number, (_, queries))) = self.under_way.first_key_value()
            && queries.poll_timeout() <= now
        {
            self.poll_queries(now, number);
        }
        self.start_waiting(now, helpers);
    }

    fn poll_queries(&mut self, now: Instant, number: u64) {
        let Some((member, queries)) = self.under_way.get_mut(&number) else { return };
        if let Some(outcome) = queries.poll(now) {
            self.chosen.push_back((*member, outcome));
            self.under_way.remove(&number);
        }
    }

    #[must_use]
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.under_way.first_key_value().map(|(_, (_, queries))| queries.poll_timeout())
    }

    pub(super) fn poll(&mut self) -> Option<(Member, LoadQueryOutcome)> {
        self.chosen.pop_front()
    }
}

impl AsFd for HelperChoices {
    /// Readable when a helper has answered.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.poller.as_fd()
    }
}
