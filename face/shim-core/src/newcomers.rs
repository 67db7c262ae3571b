//! Links whose peers have yet to do something in time: to authenticate, or to send the rest of a record.

use core::net::IpAddr;
use core::sync::atomic::{AtomicU32, Ordering};
use std::sync::Mutex;

use spillway_batch::Unauthenticated;
use spillway_batch::unauthenticated::Bounds;

use crate::{lock, sys};

/// Links that have yet to authenticate, whatever their age: strangers must not use up the server's descriptors.
const YOUNG_MAX: usize = 256;

/// A link whose peer has yet to authenticate: its place, and a serial number that no other link ever has.
pub(crate) type Newcomer = (u32, u64);

/// Links whose peers have not authenticated yet, by place and serial number. Locked with a link's lock held, never the
/// other way round.
static UNAUTHENTICATED: Mutex<Unauthenticated<Newcomer>> =
    Mutex::new(Unauthenticated::new(Bounds { young: YOUNG_MAX, ..Bounds::DEFAULT }));
/// How many those are.
static HANDSHAKES: AtomicU32 = AtomicU32::new(0);
/// Links on which the rest of a record is awaited, or that are not read for a time.
static READ_TIMEOUTS: AtomicU32 = AtomicU32::new(0);

/// A handshake begins. Returns the one that has to end for it.
pub(crate) fn begin(peer: IpAddr, newcomer: Newcomer) -> Option<Newcomer> {
    let mut unauthenticated = lock(&UNAUTHENTICATED);
    let victim = unauthenticated.begin(sys::now(), peer, newcomer);
    HANDSHAKES.store(unauthenticated.len() as u32, Ordering::Relaxed); // at most YOUNG_MAX
    victim
}

/// The peer of a link has named an accepted key, and has yet to prove it.
pub(crate) fn named_key(newcomer: Newcomer) {
    lock(&UNAUTHENTICATED).named_key(newcomer);
}

/// A peer has authenticated, or went before it did.
pub(crate) fn authenticated_or_gone(newcomer: Newcomer) {
    let mut unauthenticated = lock(&UNAUTHENTICATED);
    unauthenticated.end(newcomer);
    HANDSHAKES.store(unauthenticated.len() as u32, Ordering::Relaxed); // at most YOUNG_MAX
}

/// A link has a read timeout from now on, or no more.
pub(crate) fn wait_for_read_timeout(has_one: bool) {
    if has_one {
        READ_TIMEOUTS.fetch_add(1, Ordering::Relaxed);
    } else {
        READ_TIMEOUTS.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Whether a peer has yet to authenticate, to send the rest of a record, or to be read on from.
pub(crate) fn are_there() -> bool {
    HANDSHAKES.load(Ordering::Relaxed) > 0 || READ_TIMEOUTS.load(Ordering::Relaxed) > 0
}
