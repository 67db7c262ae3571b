//! The sockets for load queries of a thread whose connections do not use kernel sockets.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use spillway_transport::Time;

use crate::load_queries::LoadQueries;
use crate::sys::{Epoll, EpollEvent};

/// Events fetched at once. The others stay in the kernel.
const EVENTS_MAX: usize = 16;

/// Sockets for load queries by the index of their listener.
pub struct LoadQuerySockets {
    epoll: Epoll,
    sockets: BTreeMap<u16, LoadQueries>,
    events: Vec<EpollEvent>,
}

impl LoadQuerySockets {
    /// A set without sockets.
    ///
    /// # Errors
    /// The process has no file descriptors left.
    pub fn new() -> io::Result<LoadQuerySockets> {
        let events = Vec::with_capacity(EVENTS_MAX);
        Ok(LoadQuerySockets { epoll: Epoll::new()?, sockets: BTreeMap::new(), events })
    }

    /// Sets the socket of a listener. The socket that the listener had before is closed.
    pub fn put(&mut self, now: Time, listener: u16, socket: OwnedFd) {
        let mut queries = LoadQueries::new(socket);
        queries.watch(now, &self.epoll, u64::from(listener));
        self.sockets.insert(listener, queries);
    }

    /// Closes the socket of a listener, if it has one.
    pub fn remove(&mut self, listener: u16) {
        self.sockets.remove(&listener);
    }

    /// The time at which to call [`answer`](Self::answer) even if the descriptor is not readable.
    pub fn next_retry(&self) -> Option<Time> {
        self.sockets.values().filter_map(LoadQueries::retry_at).min()
    }

    /// Answers waiting queries, at a bounded rate: `answer` receives listener, sender, query and a buffer as long as
    /// the query, and returns the length of the answer; 0 sends nothing. `used_up` is called for each listener whose
    /// further queries must wait.
    ///
    /// # Errors
    /// The system has failed.
    pub fn answer(
        &mut self,
        now: Time,
        mut answer: impl FnMut(u16, SocketAddr, &[u8], &mut [u8]) -> usize,
        mut used_up: impl FnMut(u16),
    ) -> io::Result<()> {
        for (listener, queries) in &mut self.sockets {
            if queries.retry_at().is_some_and(|at| at <= now) {
                queries.watch(now, &self.epoll, u64::from(*listener));
            }
        }
        self.epoll.wait(&mut self.events, Some(Duration::ZERO))?;
        for event in self.events.drain(..) {
            // Only listeners' indices are tokens.
            let Ok(listener) = u16::try_from(event.u64) else { continue };
            let Some(queries) = self.sockets.get_mut(&listener) else { continue };
            if queries.answer(now, &self.epoll, |from, query, buffer| answer(listener, from, query, buffer)) {
                used_up(listener);
            }
        }
        Ok(())
    }
}

/// Readable while queries wait.
impl AsFd for LoadQuerySockets {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}
