//! Peers without a key, which hold many silent connections to a port and replace connections that end.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType};

/// Time between two checks of all connections.
const CHECK_INTERVAL: Duration = Duration::from_millis(5);

/// Time for all connections to open.
const OPEN_TIMEOUT: Duration = Duration::from_secs(60);

/// A thread that holds silent connections until it is dropped.
#[derive(Debug)]
pub struct SilentPeers {
    stop: Arc<AtomicBool>,
    opened: Arc<AtomicUsize>,
    thread: Option<JoinHandle<()>>,
}

impl SilentPeers {
    /// Holds `count` connections to `target`, from `sources` loopback addresses in turn. Returns when `count`
    /// connections have been opened, replacements included.
    ///
    /// # Panics
    /// The connections were not opened within [`OPEN_TIMEOUT`], for example because `target` refuses them.
    pub fn hold(target: SocketAddr, count: usize, sources: usize) -> SilentPeers {
        SilentPeers::hold_within(target, count, sources, OPEN_TIMEOUT)
    }

    fn hold_within(target: SocketAddr, count: usize, sources: usize, timeout: Duration) -> SilentPeers {
        let (stop, opened) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let thread = {
            let (stop, opened) = (stop.clone(), opened.clone());
            std::thread::spawn(move || hold_open(target, count, sources.max(1), &stop, &opened))
        };
        // Created before the wait, so that a panic drops it, which ends the thread.
        let peers = SilentPeers { stop, opened, thread: Some(thread) };
        let deadline = Instant::now() + timeout;
        while peers.opened() < count {
            let opened = peers.opened();
            assert!(
                Instant::now() < deadline,
                "{opened} of {count} connections to {target} opened within {timeout:?}"
            );
            std::thread::sleep(CHECK_INTERVAL);
        }
        peers
    }

    /// Number of connections opened so far, replacements included.
    pub fn opened(&self) -> usize {
        self.opened.load(Ordering::Relaxed)
    }
}

impl Drop for SilentPeers {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn hold_open(target: SocketAddr, count: usize, sources: usize, stop: &AtomicBool, opened: &AtomicUsize) {
    let mut connections: Vec<Option<OwnedFd>> = (0..count).map(|_| None).collect();
    let mut opening_number = 0;
    while !stop.load(Ordering::Relaxed) {
        for connection in &mut connections {
            if connection.as_ref().is_none_or(has_ended) {
                opening_number += 1;
                // After a failure, for example because the target's accept queue is full, the next check tries again.
                *connection = open(target, opening_number % sources).ok();
                opened.fetch_add(usize::from(connection.is_some()), Ordering::Relaxed);
            }
        }
        std::thread::sleep(CHECK_INTERVAL);
    }
}

fn has_ended(socket: &OwnedFd) -> bool {
    let mut byte = [0_u8; 1];
    match rustix::net::recv(socket, &mut byte, RecvFlags::DONTWAIT) {
        Ok((_, received)) => received == 0,
        Err(error) => error != Errno::AGAIN,
    }
}

fn open(target: SocketAddr, source: usize) -> io::Result<OwnedFd> {
    let socket =
        rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    if source > 0 {
        let [high, low] = (source as u16).to_be_bytes(); // fits: tests use a few thousand sources at most
        rustix::net::bind(&socket, &SocketAddr::from((Ipv4Addr::new(127, 77, high, low), 0)))?;
    }
    rustix::net::connect(&socket, &target)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "0 of 1 connections")]
    fn hold_panics_at_the_timeout_if_the_target_refuses_connections() {
        let timeout = Duration::from_millis(50);
        drop(SilentPeers::hold_within(crate::free_address(), 1, 1, timeout));
    }
}
