//! Which process owns the links, across `fork` and `vfork`.
//!
//! A forked child must never send frames on its parent's links, and its copies of the parent's sockets must not keep
//! the links alive: when the parent ends a link, or dies, the peer must notice, although the child still runs. So once
//! the link port is claimed, a child closes its copies before `fork` returns in the child, and passes every call on to
//! libc. If the fork comes before the claim, as in daemons, the child may claim the port.
//!
//! Two marks distinguish the processes. One is a page that the kernel wipes in children (`MADV_WIPEONFORK`); to read
//! the page costs one load. Between `vfork` and `exec`, the child runs in the parent's memory, where the page is not
//! wiped; the other mark, the process id, distinguishes such a child.

use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, Ordering};

use crate::sys;
use crate::table::{self, Entry};

/// Holds 1 in the process that it belongs to (see [`adopt`]), and 0 in that process's children.
static PAGE: AtomicPtr<AtomicU32> = AtomicPtr::new(null_mut());
/// The process that the page belongs to; 0 without a page.
static OWNER: AtomicI32 = AtomicI32::new(0);
/// Whether this process or its parent has claimed the link port.
static CLAIMED: AtomicBool = AtomicBool::new(false);
/// Whether this process has called `fork`, or its parent had before it forked this process.
static FORKED: AtomicBool = AtomicBool::new(false);

/// Whether this process may act for the links: it was not forked after the link port was claimed. Also true between
/// `vfork` and `exec`: see [`is_owner_process`].
#[inline]
pub fn is_owner() -> bool {
    is_unforked() || !CLAIMED.load(Ordering::Acquire)
}

#[inline]
fn is_unforked() -> bool {
    let page = PAGE.load(Ordering::Acquire);
    // SAFETY: a non-null pointer refers to a mapping that is never unmapped.
    page.is_null() || unsafe { &*page }.load(Ordering::Relaxed) == 1
}

/// Like [`is_owner`], but false between `vfork` and `exec`: such a child has its own descriptors but shares these
/// tables, so a descriptor that it creates or closes must not be recorded. Costs a system call.
pub(crate) fn is_owner_process() -> bool {
    if !is_unforked() {
        if CLAIMED.load(Ordering::Acquire) {
            return false;
        }
        adopt(); // created without libc's `fork`, so `in_child` did not run
    }
    let owner = OWNER.load(Ordering::Relaxed);
    owner == 0 || owner == sys::process_id()
}

/// Makes this process the page's owner.
fn adopt() {
    let page = PAGE.load(Ordering::Acquire);
    if !page.is_null() {
        OWNER.store(sys::process_id(), Ordering::Relaxed);
        // SAFETY: as in `is_unforked`.
        unsafe { &*page }.store(1, Ordering::Release);
    }
}

/// Logs, once, that a forked child uses a helped connection of its parent.
#[cold]
pub(crate) fn log_use_by_child() {
    static LOGGED: AtomicBool = AtomicBool::new(false);
    if !LOGGED.swap(true, Ordering::Relaxed) {
        crate::log::line(format_args!(
            "a forked child uses a helped connection: the call fails, because only the accepting process may use it"
        ));
    }
}

/// Sets up both marks, before the application runs. If the kernel cannot wipe pages, [`claim`] fails later.
pub(crate) fn prepare() {
    if !PAGE.load(Ordering::Acquire).is_null() {
        return;
    }
    if let Ok(page) = wiped_page() {
        PAGE.store(page, Ordering::Release);
        adopt();
        let before = sys::errno();
        // SAFETY: the handler stays loaded as long as the process runs: a preloaded library is never unloaded.
        unsafe { libc::pthread_atfork(None, Some(in_parent), Some(in_child)) };
        sys::set_errno(before);
    }
}

fn wiped_page() -> Result<*mut AtomicU32, sys::Errno> {
    let before = sys::errno();
    // SAFETY: a new anonymous mapping of one page; no other memory is affected.
    let page = unsafe {
        libc::mmap(
            null_mut(),
            4096,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    // SAFETY: the page was just mapped.
    let failed = page == libc::MAP_FAILED || unsafe { libc::madvise(page, 4096, libc::MADV_WIPEONFORK) } != 0;
    let error = sys::errno();
    sys::set_errno(before);
    // The mapping is zeroed, aligned and large enough for one word.
    if failed { Err(error) } else { Ok(page.cast::<AtomicU32>()) }
}

/// Claims the link port for this process: from here on, forked children pass all calls on to libc.
pub(crate) fn claim() -> Result<(), sys::Errno> {
    if PAGE.load(Ordering::Acquire).is_null() {
        return Err(libc::ENOSYS); // older than Linux 4.14
    }
    CLAIMED.store(true, Ordering::Release);
    Ok(())
}

/// See [`FORKED`].
pub(crate) fn has_forked() -> bool {
    FORKED.load(Ordering::Relaxed)
}

/// Runs in the parent before `fork` returns there.
extern "C" fn in_parent() {
    FORKED.store(true, Ordering::Relaxed);
}

/// Runs in a child before `fork` returns there. Other threads of the parent may have held any lock, so this uses only
/// system calls and atomics.
extern "C" fn in_child() {
    if !CLAIMED.load(Ordering::Acquire) {
        return adopt();
    }
    for (fd, entry) in table::entries_in(0..=u32::MAX) {
        if entry == Entry::Library {
            sys::close(fd);
            table::record(fd, Entry::Real);
        }
    }
}
