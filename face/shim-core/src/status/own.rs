//! The page of this process, once there is one, and its counters.

use core::sync::atomic::{AtomicI32, Ordering};
use std::sync::OnceLock;

use libc::c_int;

use super::files;
use super::layout::{Counter, Request, header};
use super::page::Page;
use crate::sys;
use crate::table::{self, Entry};

static PAGE: OnceLock<Page> = OnceLock::new();
/// Ready when somebody asks for something.
static WATCH: AtomicI32 = AtomicI32::new(-1);

/// The page, once there is one.
#[inline]
pub(super) fn page() -> Option<&'static Page> {
    PAGE.get()
}

/// This is the page from now on; false where there is one.
pub(super) fn publish(page: Page) -> bool {
    PAGE.set(page).is_ok()
}

/// Counts one.
pub(crate) fn count(counter: Counter) {
    if let Some(page) = page() {
        page.word(header::COUNTERS + counter as usize).fetch_add(1, Ordering::Relaxed);
    }
}

/// Counts so many.
pub(crate) fn add(counter: Counter, count: u64) {
    if let Some(page) = page() {
        page.word(header::COUNTERS + counter as usize).fetch_add(count, Ordering::Relaxed);
    }
}

/// Has an epoll set report when somebody asks for something. Where that cannot be had, what is asked for is seen when
/// something else comes.
pub(crate) fn watch_in(set: c_int, tag: u64) {
    let Some(Ok(fd)) = page().map(Page::watch) else { return };
    if sys::epoll_ctl(set, libc::EPOLL_CTL_ADD, fd, libc::EPOLLIN as u32, tag).is_err() {
        sys::close(fd);
        return;
    }
    table::note(fd, Entry::Own);
    WATCH.store(fd, Ordering::Release);
}

/// Epoll says that somebody asks for something: from now on it says so of what is asked for later.
pub(crate) fn take_watch() {
    let mut buffer = [0; 1024];
    while let Ok(1..) = files::read(WATCH.load(Ordering::Acquire), &mut buffer) {}
}

/// What a reader asks for that was not [answered](Asked::answered), if anything.
pub(crate) fn asked() -> Option<Asked> {
    let page = page()?;
    let word = page.word(header::REQUEST).load(Ordering::Acquire);
    (word != page.word(header::ANSWERED).load(Ordering::Relaxed)).then_some(Asked { page, word })
}

/// Something that a reader asks for.
pub(crate) struct Asked {
    page: &'static Page,
    word: u64,
}

impl Asked {
    /// What it is; `None` for what this version does not know.
    pub(crate) fn request(&self) -> Option<Request> {
        Request::of(self.word)
    }

    /// It is done.
    pub(crate) fn answered(self) {
        self.page.word(header::ANSWERED).store(self.word, Ordering::Release);
    }
}
