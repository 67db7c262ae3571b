//! What the preload library does inside a server process.
//!
//! The `shim` crate exports the C names. Each tests [`table::is_real`], one atomic load, and passes calls on real
//! descriptors to libc. All other calls come here:
//!
//! - [`start`]: configuration from the environment, key files, libc's own functions
//! - [`epoll`]: returns virtual events without a system call, and polls the kernel at bounded intervals
//! - [`data`], [`multiple_messages`], [`kernel_copies`]: reading and writing virtual connections
//! - [`accept`], [`descriptors`]: listening, accepting, closing, duplicating, flags
//! - [`connection_addresses`], [`options`]: addresses and socket options
//! - [`poll`], [`select`]: waits for virtual connections and real descriptors together
//! - [`system_call`]: system calls by number; io_uring is refused
//! - [`finish`]: closes helped connections when the process ends
//! - [`allocator`]: the application's heap; memory from the kernel for the thread that ends the process
//! - [`fairness`]: bounds the time for which direct connections wait behind virtual ones
//! - [`status`]: the status page in shared memory, requests to turn helping off, and the operator's override of relief
//!
//! These use links (one lock each), connections, epoll sets with their ready lists, blocked threads, and the accept
//! queue. Locks are taken in the order helping or release, link, accept queue, connection, memberships, set, blocked
//! threads. Nothing here panics on an action of the kernel, a peer or the application; errno changes only as the result
//! of a called function; I/O on links uses raw system calls, because this library defines libc's names. Key files and
//! status pages are read with std, whose `close` reaches this library with a real descriptor and takes no lock.

mod address;
mod blocked;
mod blocking;
mod carrier_name;
mod connections;
mod ending;
mod environment;
mod epoll_set;
mod errno;
mod handshakes;
mod helping;
mod helping_deadline;
mod io_vectors;
mod link;
mod link_slots;
mod links;
mod listeners;
mod lock_deadline;
mod log;
mod memberships;
mod nonblocking;
mod notify;
mod option_values;
mod orders;
mod port;
mod prepared;
mod readiness;
mod release;
mod release_timer;
mod relief;
mod relief_override;
mod rotation;
mod sessions;
mod signals;
mod standard_error;
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
pub mod connection_addresses;
pub mod data;
pub mod descriptors;
pub mod epoll;
pub mod fairness;
pub mod fork;
pub mod kernel_copies;
pub mod multiple_messages;
pub mod options;
pub mod poll;
pub mod real;
pub mod select;
pub mod status;
pub mod system_call;
pub mod table;

use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

/// Finds libc's functions and reads the configuration. Called once, before the application runs.
pub fn start() {
    real::resolve_all();
    standard_error::start();
    port::configure(config::from_environment());
    if prepared::is_configured() {
        fork::prepare();
    }
}

/// Whether the link port is still closed: it opens when the application first waits on the listening socket of its
/// ordinary port.
#[inline]
pub fn is_listener_awaited() -> bool {
    prepared::is_link_port_pending()
}

/// Ends the links. Called when the process ends in order: `main` has returned, or `exit` was called.
pub fn finish() {
    ending::end();
    status::finish();
}

/// Locks a mutex, also a poisoned one: nothing here panics with a lock held, and the application must continue.
/// Preserves errno, which waiting for another thread changes.
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
