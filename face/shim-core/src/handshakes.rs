//! Links whose peers have yet to do something in time: to authenticate, or to send the rest of a record.

use core::net::IpAddr;
use core::sync::atomic::{AtomicU32, Ordering};
use std::sync::Mutex;

use spillway_batch::Unauthenticated;
use spillway_batch::unauthenticated::Bounds;

use crate::{lock, sys};

/// Links that have yet to authenticate, whatever their age: strangers must not use up the server's descriptors.
const YOUNG_MAX: usize = 256;

/// A link whose peer has yet to authenticate: its index, and a serial number that no other link ever has.
pub(crate) type Newcomer = (u32, u64);

/// Links whose peers have yet to authenticate. Locked with a link's lock held, never the other way round.
static UNAUTHENTICATED: Mutex<Unauthenticated<Newcomer>> =
    Mutex::new(Unauthenticated::new(Bounds { young: YOUNG_MAX, ..Bounds::DEFAULT }));
/// The number of these links.
static HANDSHAKES: AtomicU32 = AtomicU32::new(0);
/// The number of links with a read timeout: the rest of a record is awaited, or reading is paused.
static READ_TIMEOUTS: AtomicU32 = AtomicU32::new(0);

/// Begins a handshake. Returns a link that must end to make room for it, if there are too many.
pub(crate) fn begin(peer: IpAddr, newcomer: Newcomer) -> Option<Newcomer> {
    let mut unauthenticated = lock(&UNAUTHENTICATED);
    let victim = unauthenticated.begin(sys::now(), peer, newcomer);
    HANDSHAKES.store(unauthenticated.len() as u32, Ordering::Relaxed); // at most YOUNG_MAX
    victim
}

/// The peer of a link has named an accepted key, which it has yet to prove.
pub(crate) fn named_key(newcomer: Newcomer) {
    lock(&UNAUTHENTICATED).named_key(newcomer);
}

/// A peer has authenticated, or its link has ended before.
pub(crate) fn authenticated_or_gone(newcomer: Newcomer) {
    let mut unauthenticated = lock(&UNAUTHENTICATED);
    unauthenticated.end(newcomer);
    HANDSHAKES.store(unauthenticated.len() as u32, Ordering::Relaxed); // at most YOUNG_MAX
}

/// Counts a link that begins (`has_one`) or ceases to have a read timeout.
pub(crate) fn wait_for_read_timeout(has_one: bool) {
    if has_one {
        READ_TIMEOUTS.fetch_add(1, Ordering::Relaxed);
    } else {
        READ_TIMEOUTS.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Whether any link has a handshake or a read timeout to wait for.
pub(crate) fn are_there() -> bool {
    HANDSHAKES.load(Ordering::Relaxed) > 0 || READ_TIMEOUTS.load(Ordering::Relaxed) > 0
}
