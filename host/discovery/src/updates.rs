//! Carries lists and notices from a watching thread to an event loop.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::{EventfdFlags, eventfd};

use crate::{Entry, Notice, sort_and_bound};

/// Maximal number of waiting notices; more displace the oldest ones.
pub(crate) const NOTICES_MAX: usize = 64;

/// Creates a channel: the watching thread has the [`Sender`], the event loop polls the [`Updates`]. Fails if the host
/// has no descriptors left.
pub(crate) fn channel() -> io::Result<(Sender, Updates)> {
    let shared = Arc::new(Shared {
        signal: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        waiting: Mutex::default(),
    });
    Ok((Sender { shared: Arc::clone(&shared) }, Updates { shared }))
}

#[derive(Debug)]
pub(crate) struct Updates {
    shared: Arc<Shared>,
}

impl Updates {
    #[must_use]
    pub(crate) fn poll_list(&mut self) -> Option<Vec<Entry>> {
        let mut waiting = self.shared.waiting();
        let list = waiting.list.take();
        self.shared.clear_signal(&waiting);
        list
    }

    #[must_use]
    pub(crate) fn poll_notice(&mut self) -> Option<Notice> {
        let mut waiting = self.shared.waiting();
        let notice = waiting.notices.pop_front();
        self.shared.clear_signal(&waiting);
        notice
    }

    pub(crate) fn error(&self) -> Option<String> {
        self.shared.waiting().error.clone()
    }

    #[cfg(test)]
    pub(crate) fn sender(&self) -> Sender {
        Sender { shared: Arc::clone(&self.shared) }
    }
}

/// Readable while a list or a notice waits.
impl AsFd for Updates {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.signal.as_fd()
    }
}

#[derive(Debug)]
struct Shared {
    signal: OwnedFd,
    waiting: Mutex<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    list: Option<Vec<Entry>>,
    /// The last list set, whether it was polled or not.
    last: Option<Vec<Entry>>,
    /// Whether the last list set was too long.
    is_too_long: bool,
    notices: VecDeque<Notice>,
    error: Option<String>,
}

impl Shared {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self) {
        // Fails only if the counter is full. The descriptor is readable then.
        let _ = rustix::io::write(&self.signal, &1_u64.to_ne_bytes());
    }

    /// Clears the signal when nothing waits. The lock is held, so that no signal is lost.
    fn clear_signal(&self, waiting: &Waiting) {
        if waiting.list.is_none() && waiting.notices.is_empty() {
            // Fails if there is no signal to clear.
            let _ = rustix::io::read(&self.signal, &mut [0; 8]);
        }
    }
}

#[derive(Debug)]
pub(crate) struct Sender {
    shared: Arc<Shared>,
}

impl Sender {
    /// Sets the present list. Reports a list that is too long, unless the previous one was too long as well.
    pub(crate) fn set_list(&self, mut list: Vec<Entry>) {
        let is_too_long = sort_and_bound(&mut list);
        let mut waiting = self.shared.waiting();
        let was_too_long = std::mem::replace(&mut waiting.is_too_long, is_too_long);
        if waiting.last.as_ref() != Some(&list) {
            waiting.last = Some(list.clone());
            waiting.list = Some(list);
            self.shared.wake();
        }
        drop(waiting);
        if is_too_long && !was_too_long {
            self.add_notice(Notice::TooMany);
        }
    }

    pub(crate) fn add_notice(&self, notice: Notice) {
        let mut waiting = self.shared.waiting();
        if waiting.notices.len() == NOTICES_MAX {
            waiting.notices.pop_front();
        }
        waiting.notices.push_back(notice);
        self.shared.wake();
    }

    /// Sets the source's error, and reports it unless it is the same as before.
    pub(crate) fn report_failure(&self, source: &str, why: String) {
        let before = self.shared.waiting().error.replace(why.clone());
        if before.as_ref() != Some(&why) {
            self.add_notice(Notice::Failed { source: source.to_owned(), why });
        }
    }

    /// Clears the source's error, and reports that the source answers again.
    pub(crate) fn report_success(&self, source: &str) {
        let had_failed = self.shared.waiting().error.take().is_some();
        if had_failed {
            self.add_notice(Notice::Recovered { source: source.to_owned() });
        }
    }
}
