//! The sockets of one thread: the state behind [`Transport`](spillway_transport::Transport).

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::epoll::EventFlags;
use rustix::net::sockopt;
use spillway_parts::TimerQueue;
use spillway_transport::{Conn, LostReason, Time};

use crate::connection::{Connection, FlushOutcome};
use crate::limiter::Limiter;
use crate::listen::{ContextListeners, Listener};
use crate::load_queries::LoadQueries;
use crate::outgoing::Pool;
use crate::reason::reason;
use crate::sys::Epoll;
use crate::table::Table;
use crate::{Config, Notice};

/// Interval at which acknowledgements are queried and reported.
const WATCH_INTERVAL: Duration = Duration::from_millis(20);

/// Events of a connection. They are edge triggered and registered once, so that messages need no call of epoll_ctl.
const CONNECTION_EVENTS: EventFlags = EventFlags::IN
    .union(EventFlags::OUT)
    .union(EventFlags::RDHUP)
    .union(EventFlags::PRI)
    .union(EventFlags::ET);

/// The sockets of one thread. Applications and commands see it as a [`Transport`](spillway_transport::Transport).
pub struct Sockets {
    pub(crate) config: Config,
    /// All descriptors, except those in `urgent`; `urgent` itself is one of them.
    pub(crate) epoll: Epoll,
    /// The connections that this thread opened, if other events may wait (`input_patience`).
    pub(crate) urgent: Option<Epoll>,
    pub(crate) table: Table,
    /// Listeners by their index.
    pub(crate) listeners: BTreeMap<u16, Listener>,
    /// Listeners with something to retry, so that a turn need not look at all listeners.
    pub(crate) retrying: BTreeSet<u16>,
    pub(crate) pool: Pool,
    /// The time of the present turn.
    pub(crate) now: Time,
    /// Connections to flush at the end of the turn.
    pub(crate) dirty: Vec<Conn>,
    /// Connections readable without a new event: the grant came after the data, or a read left data in the kernel.
    pub(crate) ready: VecDeque<Conn>,
    /// Connections with room or a loss to report.
    pub(crate) notes: VecDeque<Conn>,
    /// Connections being opened, with their timeouts.
    pub(crate) connecting: TimerQueue<Conn>,
    /// Connections whose acknowledgements will be queried.
    pub(crate) watch: TimerQueue<Conn>,
    pub(crate) hook: Box<dyn FnMut(Notice) + Send>,
    pub(crate) out_of_descriptors: Limiter,
    pub(crate) out_of_connections: Limiter,
    pub(crate) accept_failures: Limiter,
    pub(crate) listen_failures: Limiter,
    pub(crate) too_many_load_queries: Limiter,
}

impl Sockets {
    pub(crate) fn new(
        config: Config,
        listeners: ContextListeners,
        hook: Box<dyn FnMut(Notice) + Send>,
    ) -> io::Result<Sockets> {
        let epoll = Epoll::new()?;
        let urgent = if config.input_patience.is_zero() { None } else { Some(Epoll::new()?) };
        if let Some(urgent) = &urgent {
            epoll.add(urgent, URGENT_TOKEN, EventFlags::IN)?;
        }
        let mut sockets = Sockets {
            epoll,
            urgent,
            table: Table::new(config.connections_max),
            listeners: (0..).zip(listeners.0.into_iter().map(Listener::new)).collect(),
            retrying: BTreeSet::new(),
            pool: Pool::default(),
            now: Time::ZERO,
            dirty: Vec::new(),
            ready: VecDeque::new(),
            notes: VecDeque::new(),
            connecting: TimerQueue::new(config.connect_timeout),
            watch: TimerQueue::new(WATCH_INTERVAL),
            hook,
            out_of_descriptors: Limiter::default(),
            out_of_connections: Limiter::default(),
            accept_failures: Limiter::default(),
            listen_failures: Limiter::default(),
            too_many_load_queries: Limiter::default(),
            config,
        };
        let indices: Vec<u16> = sockets.listeners.keys().copied().collect();
        indices.into_iter().for_each(|index| sockets.watch_load_queries(index));
        Ok(sockets)
    }

    /// Number of connections, including those being opened.
    pub fn connections(&self) -> usize {
        self.table.len()
    }

    /// Adds a connection to the table and to an epoll set.
    pub(crate) fn register(&mut self, connection: Connection) -> io::Result<Conn> {
        let conn = self.table.next().ok_or(io::ErrorKind::OutOfMemory)?; // callers have checked that there is room
        let set = self.urgent.as_ref().filter(|_| connection.is_connecting()).unwrap_or(&self.epoll);
        if let Err(error) = set.add(connection.fd(), connection_token(conn), CONNECTION_EVENTS) {
            // A reset, because the peer could mistake an orderly end for an empty answer.
            close_with_reset(connection.into_socket(&mut self.pool));
            return Err(error);
        }
        let inserted = self.table.insert(connection);
        debug_assert_eq!(inserted, Some(conn), "`insert` should return the key that `next` announced");
        Ok(conn)
    }

    pub(crate) fn start_connecting(&mut self, now: Time, target: SocketAddr) -> io::Result<Conn> {
        let fd = crate::listen::new_socket(target)?;
        crate::listen::configure(&fd, &self.config)?;
        let stall_ms = u32::try_from(self.config.stall_timeout.as_millis()).unwrap_or(u32::MAX);
        sockopt::set_tcp_user_timeout(&fd, stall_ms)?;
        match rustix::net::connect(&fd, &target) {
            // The first event also reports a connection that is established at once.
            Ok(()) | Err(rustix::io::Errno::INPROGRESS) => {
                let conn = self.register(Connection::connecting(fd))?;
                let table = &self.table;
                self.connecting.start(now, conn, |conn| is_connecting(table, *conn));
                Ok(conn)
            }
            // No local port is left: the application receives `Full`.
            Err(error @ (rustix::io::Errno::ADDRNOTAVAIL | rustix::io::Errno::AGAIN)) => Err(error.into()),
            Err(error) => {
                let conn = self.table.insert(Connection::connecting(fd)).ok_or(io::ErrorKind::OutOfMemory)?;
                self.lose(conn, reason(error));
                Ok(conn)
            }
        }
    }

    /// Flushes the connection at the end of the turn.
    pub(crate) fn mark_dirty(&mut self, conn: Conn) {
        if let Some(connection) = self.table.get_mut(conn)
            && connection.enter_dirty()
        {
            self.dirty.push(conn);
        }
    }

    /// Reads the connection without waiting for an event, in this turn or the next.
    pub(crate) fn mark_ready(&mut self, conn: Conn) {
        if let Some(connection) = self.table.get_mut(conn)
            && connection.enter_ready()
        {
            self.ready.push_back(conn);
        }
    }

    /// Marks a connection as dead. Its loss is reported in the next turn.
    pub(crate) fn lose(&mut self, conn: Conn, reason: LostReason) {
        if let Some(connection) = self.table.get_mut(conn) {
            connection.mark_dead(reason, &mut self.pool);
            self.note(conn);
        }
    }

    pub(crate) fn note(&mut self, conn: Conn) {
        if let Some(connection) = self.table.get_mut(conn)
            && connection.enter_notes()
        {
            self.notes.push_back(conn);
        }
    }

    /// Ends a connection with a reset, without an event.
    pub(crate) fn reset(&mut self, conn: Conn) {
        if let Some(connection) = self.table.remove(conn) {
            close_with_reset(connection.into_socket(&mut self.pool));
        }
    }

    /// Ends all connections with resets, without events.
    pub fn reset_all(&mut self) {
        for conn in self.table.conns() {
            self.reset(conn);
        }
    }

    /// Writes what the turn has queued, usually with one system call for each connection.
    pub(crate) fn flush(&mut self) {
        let mut dirty = std::mem::take(&mut self.dirty);
        for conn in dirty.drain(..) {
            self.flush_connection(conn);
        }
        // Flushing adds no connection to the list, so its allocation can be reused.
        self.dirty = dirty;
    }

    fn flush_connection(&mut self, conn: Conn) {
        let room_below = self.config.queued_bytes_max / 2;
        let Some(connection) = self.table.get_mut(conn) else { return };
        match connection.flush(&mut self.pool, room_below) {
            FlushOutcome::Nothing => {}
            FlushOutcome::Done { has_room, is_watched, has_ended } => {
                if has_room {
                    self.note(conn);
                }
                if is_watched {
                    self.watch_soon(conn);
                }
                if has_ended {
                    self.report_if_ended(conn);
                }
            }
            FlushOutcome::Broken => self.mark_ready(conn),
            FlushOutcome::Lost(reason) => self.lose(conn, reason),
        }
    }

    /// Queries the peer's acknowledgements after [`WATCH_INTERVAL`], if any are outstanding.
    pub(crate) fn watch_soon(&mut self, conn: Conn) {
        if let Some(connection) = self.table.get_mut(conn)
            && connection.enter_watch()
        {
            let table = &self.table;
            let is_wanted = |conn: &Conn| table.get(*conn).is_some_and(Connection::is_in_watch);
            self.watch.start(self.now, conn, is_wanted);
        }
    }

    /// Reports `Lost(Closed)` if the connection has ended in order: see [`Connection::has_ended`].
    pub(crate) fn report_if_ended(&mut self, conn: Conn) {
        if let Some(connection) = self.table.get_mut(conn)
            && connection.has_ended()
        {
            self.lose(conn, LostReason::Closed);
        }
    }

    /// The next time at which a timeout, a query or a retry is due.
    pub(crate) fn next_deadline(&mut self) -> Option<Time> {
        let table = &self.table;
        let connect = self.connecting.poll_needed_timeout(|conn| is_connecting(table, *conn));
        let watch = self.watch.poll_timeout();
        let retry_at = self.retrying.iter().filter_map(|index| self.listeners.get(index)?.next_retry()).min();
        debug_assert_eq!(
            retry_at,
            self.listeners.values().filter_map(Listener::next_retry).min(),
            "`retrying` should hold every listener with a retry"
        );
        [connect, watch, retry_at].into_iter().flatten().min()
    }

    /// Updates `retrying` for this listener. Must be called after each change of its [`Listener::next_retry`].
    pub(crate) fn note_retry(&mut self, index: u16) {
        if self.listeners.get(&index).and_then(Listener::next_retry).is_some() {
            self.retrying.insert(index);
        } else {
            self.retrying.remove(&index);
        }
    }

    /// Watches the socket for load queries at a listener's address.
    pub(crate) fn watch_load_queries(&mut self, index: u16) {
        if let Some(load_queries) =
            self.listeners.get_mut(&index).and_then(|listener| listener.load_queries.as_mut())
        {
            load_queries.watch(self.now, &self.epoll, query_token(index));
            self.note_retry(index);
        }
    }

    /// Answers the load queries that wait at a listener's address.
    pub(crate) fn answer_load_queries(
        &mut self,
        index: u16,
        answer: impl FnMut(SocketAddr, &[u8], &mut [u8]) -> usize,
    ) {
        let Some(load_queries) =
            self.listeners.get_mut(&index).and_then(|listener| listener.load_queries.as_mut())
        else {
            return;
        };
        if load_queries.answer(self.now, &self.epoll, answer) {
            self.note_retry(index);
            if self.too_many_load_queries.count(self.now).is_some() {
                (self.hook)(Notice::TooManyLoadQueries { listener: index });
            }
        }
    }

    /// Resumes watching the first socket for load queries whose pause has ended.
    pub(crate) fn retry_load_queries(&mut self) {
        // Other sockets that are due follow in the next turns.
        if let Some(index) =
            self.due_listener(|listener| listener.load_queries.as_ref().and_then(LoadQueries::retry_at))
        {
            self.watch_load_queries(index);
        }
    }

    /// The first listener for which the time that `retry` returns has passed.
    pub(crate) fn due_listener(&self, retry: impl Fn(&Listener) -> Option<Time>) -> Option<u16> {
        let is_due = |index: &&u16| {
            self.listeners.get(index).and_then(&retry).is_some_and(|retry_at| retry_at <= self.now)
        };
        self.retrying.iter().find(is_due).copied()
    }
}

pub(crate) fn is_connecting(table: &Table, conn: Conn) -> bool {
    table.get(conn).is_some_and(Connection::is_connecting)
}

/// Closes a socket so that the peer is reset.
pub(crate) fn close_with_reset(fd: OwnedFd) {
    // Cannot fail on an open socket.
    let _ = sockopt::set_socket_linger(&fd, Some(Duration::ZERO));
    drop(fd);
}

/// The epoll token of a connection. Its generation is never 0; tokens of other descriptors have generation 0.
pub(crate) fn connection_token(conn: Conn) -> u64 {
    u64::from(conn.generation) << 32 | u64::from(conn.slot)
}

/// In a token, distinguishes the socket for load queries from its listener.
const LOAD_QUERIES: u32 = 1 << 16;

pub(crate) fn query_token(listener: u16) -> u64 {
    u64::from(LOAD_QUERIES | u32::from(listener))
}

/// The listener to whose socket for load queries this slot belongs.
pub(crate) fn listener_of_load_queries(slot: u32) -> Option<u16> {
    slot.checked_sub(LOAD_QUERIES).and_then(|index| u16::try_from(index).ok())
}

/// The token of the mailbox's eventfd.
pub(crate) const WAKE_TOKEN: u64 = u32::MAX as u64;

/// The token of the urgent set.
pub(crate) const URGENT_TOKEN: u64 = u32::MAX as u64 - 1;
