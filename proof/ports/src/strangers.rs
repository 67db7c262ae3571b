//! Peers without a key: they hold many silent connections to a port and replace those that end.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType};

/// Time between two checks of all connections.
const PAUSE: Duration = Duration::from_millis(5);

/// A thread that holds silent connections until it is dropped.
#[derive(Debug)]
pub struct SilentPeers {
    stop: Arc<AtomicBool>,
    opened: Arc<AtomicUsize>,
    thread: Option<JoinHandle<()>>,
}

impl SilentPeers {
    /// Holds `count` connections to `target`, from `sources` loopback addresses in turn. Returns when each connection
    /// was opened once.
    pub fn hold(target: SocketAddr, count: usize, sources: usize) -> SilentPeers {
        let (stop, opened) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let thread = {
            let (stop, opened) = (stop.clone(), opened.clone());
            std::thread::spawn(move || keep(target, count, sources.max(1), &stop, &opened))
        };
        while opened.load(Ordering::Relaxed) < count && !thread.is_finished() {
            std::thread::sleep(PAUSE);
        }
        SilentPeers { stop, opened, thread: Some(thread) }
    }

    /// Connections opened so far, replacements included.
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

fn keep(target: SocketAddr, count: usize, sources: usize, stop: &AtomicBool, opened: &AtomicUsize) {
    let mut held: Vec<Option<OwnedFd>> = (0..count).map(|_| None).collect();
    let mut next = 0;
    while !stop.load(Ordering::Relaxed) {
        for place in &mut held {
            if place.as_ref().is_none_or(has_ended) {
                next += 1;
                // A target whose accept queue is full refuses the connection; the next check tries again.
                *place = open(target, next % sources).ok();
                opened.fetch_add(usize::from(place.is_some()), Ordering::Relaxed);
            }
        }
        std::thread::sleep(PAUSE);
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
        let [high, low] = (source as u16).to_be_bytes(); // tests use a few thousand sources at most
        rustix::net::bind(&socket, &SocketAddr::from((Ipv4Addr::new(127, 77, high, low), 0)))?;
    }
    rustix::net::connect(&socket, &target)?;
    Ok(socket)
}
