//! Counts the links with a timeout: for the peer's authentication, or for the rest of a record.

use core::net::IpAddr;
use core::sync::atomic::{AtomicU32, Ordering};
use std::sync::Mutex;

use spillway_batch::Unauthenticated;
use spillway_batch::unauthenticated::Bounds;

use crate::{lock, sys};

/// Maximum number of links without authentication, so that peers without a key cannot use up the server's descriptors.
const UNAUTHENTICATED_MAX: usize = 256;

/// A link whose peer has not authenticated yet: its index, and its serial number, which is never reused.
pub(crate) type Newcomer = (u32, u64);

/// Links whose peers have not authenticated yet. Lock order: a link's lock first, then this one.
static UNAUTHENTICATED: Mutex<Unauthenticated<Newcomer>> =
    Mutex::new(Unauthenticated::new(Bounds { total_any_age: UNAUTHENTICATED_MAX, ..Bounds::DEFAULT }));
/// Length of [`UNAUTHENTICATED`], to read without its lock.
static HANDSHAKES: AtomicU32 = AtomicU32::new(0);
/// The number of links with a read timeout: the rest of a record is awaited, or reading is paused.
static READ_TIMEOUTS: AtomicU32 = AtomicU32::new(0);

/// Records a link without authentication. If there are too many, returns another such link, which must be closed.
pub(crate) fn begin(peer: IpAddr, newcomer: Newcomer) -> Option<Newcomer> {
    let mut unauthenticated = lock(&UNAUTHENTICATED);
    let victim = unauthenticated.begin(sys::now(), peer, newcomer);
    HANDSHAKES.store(unauthenticated.len() as u32, Ordering::Relaxed); // at most UNAUTHENTICATED_MAX
    victim
}

/// The peer of a link has named an accepted key, and has yet to prove that it has the key.
pub(crate) fn named_key(newcomer: Newcomer) {
    lock(&UNAUTHENTICATED).named_key(newcomer);
}

/// Removes a link: its peer has authenticated, or the link has ended before that.
pub(crate) fn end(newcomer: Newcomer) {
    let mut unauthenticated = lock(&UNAUTHENTICATED);
    unauthenticated.end(newcomer);
    HANDSHAKES.store(unauthenticated.len() as u32, Ordering::Relaxed); // at most UNAUTHENTICATED_MAX
}

/// Counts a link that has got (`has_one`) or lost a read timeout.
pub(crate) fn count_read_timeout(has_one: bool) {
    if has_one {
        READ_TIMEOUTS.fetch_add(1, Ordering::Relaxed);
    } else {
        READ_TIMEOUTS.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Whether any link has a handshake or a read timeout pending.
pub(crate) fn any_pending() -> bool {
    HANDSHAKES.load(Ordering::Relaxed) > 0 || READ_TIMEOUTS.load(Ordering::Relaxed) > 0
}
