//! How long the kernel has a connection: it may send the last bytes, and the end, long after the application has closed the
//! socket (Prism §4.3). Until then the switch must know where these segments come from.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::fd::{AsFd, BorrowedFd};

use rustix::net::sockopt;
use spillway_bpf::RemovedSockets;
use spillway_moves::ConnectionEnds;
use spillway_transport::Conn;

use crate::error::OpenError;
use crate::faults::{Fault, Faults};

/// The sockets of connections, until the kernel has removed them.
#[derive(Debug)]
pub(crate) struct Lifetimes {
    removed: RemovedSockets,
    open: BTreeMap<Conn, (u64, ConnectionEnds)>,
    /// Cookies of sockets in `open` that the kernel has removed already.
    gone_early: BTreeSet<u64>,
    /// The inverse of `open`.
    cookies: BTreeMap<u64, Conn>,
    /// Connections that have ended for the application, by the cookies of their sockets.
    lingering: BTreeMap<u64, ConnectionEnds>,
    /// Connections whose sockets were removed.
    gone: VecDeque<ConnectionEnds>,
}

impl Lifetimes {
    /// `connections_max`: connections at a time. As many again may linger.
    pub(crate) fn open(connections_max: usize) -> Result<Lifetimes, OpenError> {
        let watched_max = u32::try_from(connections_max.saturating_mul(2)).unwrap_or(u32::MAX);
        let removed = RemovedSockets::load(watched_max).map_err(OpenError::Program)?;
        Ok(Lifetimes {
            removed,
            open: BTreeMap::new(),
            cookies: BTreeMap::new(),
            gone_early: BTreeSet::new(),
            lingering: BTreeMap::new(),
            gone: VecDeque::new(),
        })
    }

    /// A connection is here. A socket that is not watched counts as removed when it is closed.
    pub(crate) fn begin(&mut self, conn: Conn, ends: ConnectionEnds, socket: impl AsFd) {
        let Ok(cookie) = sockopt::socket_cookie(socket) else { return };
        if self.removed.watch(cookie).is_ok() {
            self.open.insert(conn, (cookie, ends));
            self.cookies.insert(cookie, conn);
        }
    }

    /// The ends of a connection that is here.
    pub(crate) fn ends(&self, conn: Conn) -> Option<ConnectionEnds> {
        self.open.get(&conn).map(|(_, ends)| *ends)
    }

    /// A connection has left, or was reset.
    pub(crate) fn forget(&mut self, conn: Conn) {
        if let Some((cookie, _)) = self.open.remove(&conn) {
            self.cookies.remove(&cookie);
            self.gone_early.remove(&cookie);
            // Fails only if the kernel has no memory: then the entry stays until the socket is removed.
            let _ = self.removed.forget(cookie);
        }
    }

    /// The application has ended a connection. Returns whether the kernel still has it: then
    /// [`poll_gone`](Self::poll_gone) returns it later.
    pub(crate) fn end(&mut self, conn: Conn) -> bool {
        let Some((cookie, ends)) = self.open.remove(&conn) else { return false };
        self.cookies.remove(&cookie);
        let lingers = !self.gone_early.remove(&cookie);
        if lingers {
            self.lingering.insert(cookie, ends);
        }
        lingers
    }

    /// Takes note of sockets that were removed.
    pub(crate) fn collect(&mut self, faults: &mut Faults) {
        loop {
            match self.removed.poll() {
                Ok(None) => return,
                Ok(Some(removal)) => match self.lingering.remove(&removal.cookie) {
                    Some(ends) => self.gone.push_back(ends),
                    None => {
                        if self.cookies.contains_key(&removal.cookie) {
                            self.gone_early.insert(removal.cookie);
                        }
                    }
                },
                Err(error) => return faults.add(Fault::NotWatched(error)),
            }
        }
    }

    /// The next connection that lingered, and that the kernel does not have any more.
    pub(crate) fn poll_gone(&mut self) -> Option<ConnectionEnds> {
        self.gone.pop_front()
    }
}

/// Readable when sockets were removed.
impl AsFd for Lifetimes {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.removed.as_fd()
    }
}
