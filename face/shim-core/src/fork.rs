//! Who owns the links across `fork`.
//!
//! A child must never emit frames on its parent's links. The page that says "active" is wiped in children by the
//! kernel. It is made when the link port opens: a fork before that, as daemons do, changes nothing.

use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, Ordering};

use crate::sys;

static PAGE: AtomicPtr<AtomicU32> = AtomicPtr::new(null_mut());
static OWNER: AtomicI32 = AtomicI32::new(0);

/// Whether this process may act for the links: it is not a child forked after the link port opened.
#[inline]
pub fn is_owner() -> bool {
    let page = PAGE.load(Ordering::Acquire);
    // SAFETY: once set, it points at a mapping that stays for the life of the process.
    page.is_null() || unsafe { &*page }.load(Ordering::Relaxed) == 1
}

/// As [`is_owner`], and also false between `vfork` and `exec`, where the child has our memory. Costs a system call.
pub(crate) fn is_owner_process() -> bool {
    let owner = OWNER.load(Ordering::Relaxed);
    is_owner() && (owner == 0 || owner == sys::process_id())
}

/// A forked child uses a helped connection of its parent's. Says so, once.
#[cold]
pub(crate) fn tell_inert() {
    static TOLD: AtomicBool = AtomicBool::new(false);
    if !TOLD.swap(true, Ordering::Relaxed) {
        crate::log::line(format_args!(
            "a forked child uses a helped connection, which only the process that accepted it can: not connected"
        ));
    }
}

/// From here on, children are inert.
pub(crate) fn claim() -> Result<(), sys::Errno> {
    if !PAGE.load(Ordering::Acquire).is_null() {
        return Ok(());
    }
    let before = sys::errno();
    // SAFETY: a fresh anonymous mapping of one page; nothing else is touched.
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
    if failed {
        let error = sys::errno();
        sys::set_errno(before);
        return Err(error);
    }
    let page = page.cast::<AtomicU32>();
    // SAFETY: the mapping is zeroed, aligned and large enough for the one word used of it.
    unsafe { &*page }.store(1, Ordering::Relaxed);
    OWNER.store(sys::process_id(), Ordering::Relaxed);
    PAGE.store(page, Ordering::Release);
    Ok(())
}
