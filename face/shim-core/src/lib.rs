//! What the preload shim does inside somebody's server.
//!
//! The `shim` crate exports the C names; each asks [`table::is_real`], one atomic load, and passes real
//! descriptors on to libc. Everything else comes here:
//!
//! - [`start`]: configuration from the environment, key files, libc's own functions
//! - [`epoll`]: virtual events returned without a system call, the kernel looked at often enough
//! - [`data`]: reading and writing virtual connections
//! - [`descriptors`]: listening, accepting, closing, duplicating, flags
//! - [`names`]: addresses and socket options
//! - [`poll`]: `poll` with virtual connections among real descriptors
//!
//! Beneath them: links (one lock each), connections, epoll sets with their ready lists, and the accept queue.
//! Locks are taken in the order link, accept queue, connection, set. Nothing here panics on what the kernel, a
//! peer or the application does; errno changes only as the named function's result; our own I/O uses raw system
//! calls, because libc's names are ours in this process.

mod address;
mod connections;
mod link;
mod links;
mod listeners;
mod log;
mod port;
mod ready;
mod sys;
mod threads;

pub mod config;
pub mod data;
pub mod descriptors;
pub mod epoll;
pub mod fork;
pub mod names;
pub mod poll;
pub mod real;
pub mod table;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Runs once, before the application: finds libc's functions and reads the configuration.
pub fn start() {
    real::resolve_all();
    port::configure(config::from_environment());
}

/// A poisoned lock is taken as it is: nothing here panics with a lock held, and the application must go on.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
