//! The page of this process, and its counters.

use core::sync::atomic::{AtomicI32, Ordering};
use std::sync::OnceLock;

use libc::c_int;

use super::files;
use super::layout::{Counter, Request, header};
use super::page::Page;
use crate::sys;
use crate::table::{self, Entry};

static PAGE: OnceLock<Page> = OnceLock::new();
/// The descriptor that is readable after a reader's request; -1 for none.
static WATCH: AtomicI32 = AtomicI32::new(-1);

/// The page; `None` before [`publish`].
#[inline]
pub(super) fn page() -> Option<&'static Page> {
    PAGE.get()
}

/// Makes this the process's page; false if the process has one.
pub(super) fn publish(page: Page) -> bool {
    PAGE.set(page).is_ok()
}

/// Adds one to a counter.
pub(crate) fn count(counter: Counter) {
    if let Some(page) = page() {
        page.word(header::COUNTERS + counter as usize).fetch_add(1, Ordering::Relaxed);
    }
}

pub(crate) fn add(counter: Counter, count: u64) {
    if let Some(page) = page() {
        page.word(header::COUNTERS + counter as usize).fetch_add(count, Ordering::Relaxed);
    }
}

/// Lets an epoll set report readers' requests. If that fails, requests are handled at the next other event.
pub(crate) fn watch_in(set: c_int, tag: u64) {
    let Some(Ok(fd)) = page().map(Page::watch) else { return };
    if sys::epoll_ctl(set, libc::EPOLL_CTL_ADD, fd, libc::EPOLLIN as u32, tag).is_err() {
        sys::close(fd);
        return;
    }
    table::record(fd, Entry::Library);
    WATCH.store(fd, Ordering::Release);
}

/// Empties the watch, so that epoll reports the next request.
pub(crate) fn drain_watch() {
    let mut buffer = [0; 1024];
    while let Ok(1..) = files::read(WATCH.load(Ordering::Acquire), &mut buffer) {}
}

/// A reader's request that was not [carried out](PendingRequest::mark_done) yet.
pub(crate) fn pending_request() -> Option<PendingRequest> {
    let page = page()?;
    let word = page.word(header::REQUEST).load(Ordering::Acquire);
    (word != page.word(header::ANSWERED).load(Ordering::Relaxed)).then_some(PendingRequest { page, word })
}

/// A reader's request.
pub(crate) struct PendingRequest {
    page: &'static Page,
    word: u64,
}

impl PendingRequest {
    /// The request; `None` if this version has no such request.
    pub(crate) fn request(&self) -> Option<Request> {
        Request::of(self.word)
    }

    /// Marks the request as carried out.
    pub(crate) fn mark_done(self) {
        self.page.word(header::ANSWERED).store(self.word, Ordering::Release);
    }
}
