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
use crate::ask::{Ask, Asked};

/// Maximum of concurrent [`Ask`]s, each of which has a descriptor; further members wait. Answers take a fraction of a
/// millisecond.
const UNDER_WAY_MAX: usize = 128;
/// Maximum of events from one `epoll_wait`.
const EVENTS: usize = 64;

/// Members whose helpers are being chosen.
#[derive(Debug)]
pub(super) struct Asking {
    asked: usize,
    poller: OwnedFd,
    /// By number, in the order in which the `Ask`s began, which is also the order of their deadlines.
    under_way: BTreeMap<u64, (Member, Ask)>,
    next: u64,
    waiting: VecDeque<Member>,
    chosen: VecDeque<(Member, Asked)>,
}

impl Asking {
    pub(super) fn new(asked: usize) -> io::Result<Asking> {
        Ok(Asking {
            asked,
            poller: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            under_way: BTreeMap::new(),
            next: 0,
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
                Ok(ask) => {
                    self.under_way.insert(self.next, (member, ask));
                    self.next += 1;
                }
                // Without a descriptor, a connection to a helper would fail, too.
                Err(_) => self.chosen.push_back((member, Asked::Nobody)),
            }
        }
    }

    fn start(&self, now: Instant, helpers: &[LinkTarget]) -> io::Result<Ask> {
        if helpers.is_empty() {
            return Err(io::ErrorKind::NotFound.into());
        }
        let ask = Ask::start(now, helpers, self.asked)?;
        epoll::add(&self.poller, &ask, EventData::new_u64(self.next), EventFlags::IN)?;
        Ok(ask)
    }

    /// Stops choosing a helper for a member.
    pub(super) fn cancel(&mut self, member: Member) {
        self.waiting.retain(|one| *one != member);
        self.chosen.retain(|(one, _)| *one != member);
        self.under_way.retain(|_, (one, _)| *one != member);
    }

    /// Stops choosing for all members, and returns them.
    pub(super) fn take_all(&mut self) -> Vec<Member> {
        let under_way = std::mem::take(&mut self.under_way).into_values().map(|(member, _)| member);
        let chosen = std::mem::take(&mut self.chosen).into_iter().map(|(member, _)| member);
        self.waiting.drain(..).chain(under_way).chain(chosen).collect()
    }

    /// Receives answers. Call it when the descriptor is ready.
    pub(super) fn handle_ready(&mut self, now: Instant, helpers: &[LinkTarget]) {
        let mut space = [MaybeUninit::<epoll::Event>::uninit(); EVENTS];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        // Fails only with EINTR; the descriptor stays ready then.
        let Ok((events, _)) = epoll::wait(&self.poller, &mut space, Some(&at_once)) else { return };
        for event in events {
            let number = event.data.u64();
            if let Some((_, ask)) = self.under_way.get_mut(&number) {
                ask.handle_ready();
                self.settle(now, number);
            }
        }
        self.start_waiting(now, helpers);
    }

    /// Ends `Ask`s whose time to answer is over.
    pub(super) fn handle_timeout(&mut self, now: Instant, helpers: &[LinkTarget]) {
        while let Some((&number, (_, ask))) = self.under_way.first_key_value()
            && ask.poll_timeout() <= now
        {
            self.settle(now, number);
        }
        self.start_waiting(now, helpers);
    }

    fn settle(&mut self, now: Instant, number: u64) {
        let Some((member, ask)) = self.under_way.get_mut(&number) else { return };
        if let Some(asked) = ask.poll(now) {
            self.chosen.push_back((*member, asked));
            self.under_way.remove(&number);
        }
    }

    #[must_use]
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.under_way.first_key_value().map(|(_, (_, ask))| ask.poll_timeout())
    }

    /// The next outcome.
    pub(super) fn poll(&mut self) -> Option<(Member, Asked)> {
        self.chosen.pop_front()
    }
}

impl AsFd for Asking {
    /// Readable when a helper has answered.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.poller.as_fd()
    }
}
