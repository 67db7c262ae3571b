//! What a watching thread has found, until a loop polls it.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::{EventfdFlags, eventfd};

use crate::{Entry, Notice, tidy};

/// Notices that wait to be polled; when more come, the oldest go.
pub(crate) const NOTICES_MAX: usize = 64;

/// The two ends: of the thread that watches, and of the loop that polls.
///
/// # Errors
/// The host has no descriptors left.
pub(crate) fn channel() -> io::Result<(Sender, News)> {
    let shared = Arc::new(Shared {
        signal: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        waiting: Mutex::default(),
    });
    Ok((Sender { shared: Arc::clone(&shared) }, News { shared }))
}

/// The polling loop's end.
#[derive(Debug)]
pub(crate) struct News {
    shared: Arc<Shared>,
}

impl News {
    #[must_use]
    pub(crate) fn poll_list(&mut self) -> Option<Vec<Entry>> {
        let mut waiting = self.shared.waiting();
        let list = waiting.list.take();
        self.shared.calm(&waiting);
        list
    }

    #[must_use]
    pub(crate) fn poll_notice(&mut self) -> Option<Notice> {
        let mut waiting = self.shared.waiting();
        let notice = waiting.notices.pop_front();
        self.shared.calm(&waiting);
        notice
    }

    pub(crate) fn trouble(&self) -> Option<String> {
        self.shared.waiting().trouble.clone()
    }

    #[cfg(test)]
    pub(crate) fn sender(&self) -> Sender {
        Sender { shared: Arc::clone(&self.shared) }
    }
}

/// Readable as long as there is a list or a notice.
impl AsFd for News {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.signal.as_fd()
    }
}

#[derive(Debug)]
struct Shared {
    signal: OwnedFd,
    waiting: Mutex<Waiting>,
}

/// What has not been polled yet.
#[derive(Debug, Default)]
struct Waiting {
    list: Option<Vec<Entry>>,
    /// The list before, given or not.
    last: Option<Vec<Entry>>,
    notices: VecDeque<Notice>,
    trouble: Option<String>,
}

impl Shared {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self) {
        // It fails only where it is readable since 2^64 - 2 times.
        let _ = rustix::io::write(&self.signal, &1_u64.to_ne_bytes());
    }

    /// Takes the signal back when nothing waits. With the lock held, so that none is lost.
    fn calm(&self, waiting: &Waiting) {
        if waiting.list.is_none() && waiting.notices.is_empty() {
            // Nothing to take back is an error, too.
            let _ = rustix::io::read(&self.signal, &mut [0; 8]);
        }
    }
}

/// The watching thread's end.
#[derive(Debug)]
pub(crate) struct Sender {
    shared: Arc<Shared>,
}

impl Sender {
    /// The list as it is now. That it is too long is told when it is news.
    pub(crate) fn list(&self, mut list: Vec<Entry>) {
        let too_many = tidy(&mut list);
        let mut waiting = self.shared.waiting();
        if waiting.last.as_ref() == Some(&list) {
            return;
        }
        waiting.last = Some(list.clone());
        waiting.list = Some(list);
        self.shared.wake();
        drop(waiting);
        if too_many {
            self.notice(Notice::TooMany);
        }
    }

    pub(crate) fn notice(&self, notice: Notice) {
        let mut waiting = self.shared.waiting();
        if waiting.notices.len() == NOTICES_MAX {
            waiting.notices.pop_front();
        }
        waiting.notices.push_back(notice);
        self.shared.wake();
    }

    /// Told when it is news.
    pub(crate) fn failed(&self, source: &str, why: String) {
        let before = self.shared.waiting().trouble.replace(why.clone());
        if before.as_ref() != Some(&why) {
            self.notice(Notice::Failed { source: source.to_owned(), why });
        }
    }

    /// Told where it had failed.
    pub(crate) fn fine(&self, source: &str) {
        let had_failed = self.shared.waiting().trouble.take().is_some();
        if had_failed {
            self.notice(Notice::Back { source: source.to_owned() });
        }
    }
}
