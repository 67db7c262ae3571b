//! The programs that look at connections of the kernel's TCP, in a network namespace of each test.

mod peer_timestamp;
mod removed;
mod stragglers;

use std::net::{TcpListener, TcpStream};
use std::process::Command;

use rustix::thread::{UnshareFlags, unshare_unsafe};
use spillway_bpf::BpfError;

/// Returns what was loaded, and moves the thread to a new network namespace. `None` without the privileges.
fn isolated<T>(loaded: Result<T, BpfError>) -> Option<T> {
    let loaded = match loaded {
        Err(error) if error.is_unprivileged() => {
            eprintln!("skipped: {error}");
            return None;
        }
        result => result.unwrap_or_else(|error| panic!("{error}")),
    };
    // SAFETY: the flags do not include FILES, so descriptors stay shared with the other threads.
    if let Err(error) = unsafe { unshare_unsafe(UnshareFlags::NEWNET) } {
        eprintln!("skipped: no network namespace: {error}");
        return None;
    }
    let up = Command::new("ip").args(["link", "set", "lo", "up"]).status().unwrap();
    assert!(up.success());
    Some(loaded)
}

/// The two ends of a new connection.
fn connected(listener: &TcpListener) -> (TcpStream, TcpStream) {
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (client, listener.accept().unwrap().0)
}
