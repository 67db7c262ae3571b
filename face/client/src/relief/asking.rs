//! Choosing a helper for each of many members.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use rustix::event::epoll;
use spillway_policy::Member;

use crate::settings::LinkTarget;

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// This one, by its place in the list.
    Helper(usize),
    /// None takes clients.
    Nobody,
}

/// Members whose helpers are being chosen.
#[derive(Debug)]
pub(super) struct Asking {
    chosen: VecDeque<(Member, Answer)>,
    poller: OwnedFd,
}

impl Asking {
    pub(super) fn new(_asked: usize) -> io::Result<Asking> {
        Ok(Asking { chosen: VecDeque::new(), poller: epoll::create(epoll::CreateFlags::CLOEXEC)? })
    }

    pub(super) fn begin(
        &mut self,
        _now: Instant,
        member: Member,
        helpers: &[LinkTarget],
        random: impl FnOnce() -> f64,
    ) {
        let answer = match helpers.len() {
            0 => Answer::Nobody,
            count => Answer::Helper((random() * count as f64) as usize),
        };
        self.chosen.push_back((member, answer));
    }

    pub(super) fn cancel(&mut self, member: Member) {
        self.chosen.retain(|(one, _)| *one != member);
    }

    /// Nobody is asked any more.
    pub(super) fn take_all(&mut self) -> VecDeque<(Member, Answer)> {
        std::mem::take(&mut self.chosen)
    }

    pub(super) fn poll(&mut self) -> Option<(Member, Answer)> {
        self.chosen.pop_front()
    }
}

impl AsFd for Asking {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.poller.as_fd()
    }
}
