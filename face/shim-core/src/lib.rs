//! What the preload library does inside a server process.
//!
//! The `shim` crate exports the C names. Each tests [`table::is_real`], one atomic load, and passes calls on real
//! descriptors to libc. All other calls come here:
//!
//! - [`start`]: configuration from the environment, key files, libc's own functions
//! - [`epoll`]: returns virtual events without a system call, and polls the kernel often enough
//! - [`data`], [`several`], [`files`]: reading and writing virtual connections
//! - [`accept`], [`descriptors`]: listening, accepting, closing, duplicating, flags
//! - [`names`], [`options`]: addresses and socket options
//! - [`poll`], [`select`]: with virtual connections among real descriptors
//! - [`raw`]: system calls by number; io_uring is refused
//! - [`finish`]: closes helped connections when the process ends
//! - [`allocator`]: the application's heap; memory from the kernel for the thread that ends the process
//! - [`turns`]: how long direct connections wait behind virtual ones
//! - [`status`]: the status page in shared memory, its off switch, and the operator's override of relief
//!
//! Beneath them: links (one lock each), connections, epoll sets with their ready lists, blocked threads, and the
//! accept queue. Locks are taken in the order switch or release, link, accept queue, connection, memberships, set,
//! blocked threads. Nothing here panics on what the kernel, a peer or the application does; errno changes only as the
//! result of a called function; I/O on links uses raw system calls, because this library defines libc's names. Key
//! files and status pages are read by std, whose `close` reaches this library with a real descriptor: no lock.

mod address;
mod blocked;
mod blocking;
mod carrier_name;
mod connections;
mod ending;
mod environment;
mod errno;
mod handshakes;
mod io_vectors;
mod link;
mod link_places;
mod links;
mod listeners;
mod log;
mod nonblocking;
mod option_values;
mod orders;
mod patience;
mod port;
mod prepared;
mod ready;
mod release;
mod release_timer;
mod relief;
mod relief_override;
mod rotation;
mod sessions;
mod signals;
mod source;
mod standard_error;
mod switch;
mod sys;
mod tag;
mod threads;
mod upkeep;
mod virtual_descriptor;
mod waiters;
mod wakes;

pub mod accept;
pub mod allocator;
pub mod config;
pub mod data;
pub mod descriptors;
pub mod epoll;
pub mod files;
pub mod fork;
pub mod names;
pub mod options;
pub mod poll;
pub mod raw;
pub mod real;
pub mod select;
pub mod several;
pub mod status;
pub mod table;
pub mod turns;

use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

/// Runs once, before the application: finds libc's functions and reads the configuration.
pub fn start() {
    real::resolve_all();
    standard_error::start();
    port::configure(config::from_environment());
    if prepared::is_configured() {
        fork::prepare();
    }
}

/// Whether the application has not yet waited for the listener that is to accept helped clients.
#[inline]
pub fn is_listener_awaited() -> bool {
    prepared::is_wanted()
}

/// Runs when the process ends in order: `main` returned, or `exit` was called.
pub fn finish() {
    ending::end();
    status::finish();
}

/// Takes a poisoned lock as it is: nothing here panics with a lock held, and the application must go on. Preserves
/// errno, which waiting for another thread changes, so that calls that succeed need not.
#[inline]
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    match mutex.try_lock() {
        Ok(guard) => guard,
        Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
        Err(TryLockError::WouldBlock) => wait_for(mutex),
    }
}

#[cold]
fn wait_for<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    let before = sys::errno();
    let guard = mutex.lock().unwrap_or_else(PoisonError::into_inner);
    sys::set_errno(before);
    guard
}
