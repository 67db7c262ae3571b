//! The application's listening sockets, and the queue of virtual connections that it has not accepted yet.

use core::net::SocketAddr;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::collections::VecDeque;
use std::sync::Mutex;

use libc::c_int;
use spillway_batch::RefuseReason;

use crate::connections::{self, Connection, IN};
use crate::ready::{self, Wakes, notify};
use crate::sys::{self, Errno};
use crate::table::{self, Entry};
use crate::{address, links, lock};

/// Virtual connections that wait to be accepted. A move of all clients at once must fit.
const QUEUE_MAX: usize = 16 * 1024;

/// Every so many virtual connections accepted, a real one has the first turn.
const REAL_TURN: u32 = 8;

static STATE: Mutex<State> = Mutex::new(State { listeners: Vec::new(), queue: VecDeque::new() });

/// Length of the queue, so that an empty one is seen without the lock.
static QUEUED: AtomicUsize = AtomicUsize::new(0);
static TURNS: AtomicU32 = AtomicU32::new(0);

struct State {
    listeners: Vec<Listener>,
    queue: VecDeque<u32>,
}

/// A listening TCP socket of the application.
#[derive(Clone, Copy)]
struct Listener {
    fd: c_int,
    /// The entry that stands for it in a ready list.
    stand_in: u32,
    family: c_int,
    address: SocketAddr,
    /// Virtual connections are accepted from it.
    serves: bool,
}

/// What became of a virtual connection that wants to be accepted.
pub(crate) enum Offer {
    Queued,
    Refused(RefuseReason),
}

/// The application listens on a socket. Notes it when it is a TCP one.
pub(crate) fn listening(fd: c_int) -> Option<&'static Connection> {
    if let Entry::Listener(index) = table::entry(fd) {
        return connections::get(index);
    }
    let family = sys::option(fd, libc::SOL_SOCKET, libc::SO_DOMAIN).ok()?;
    let stream = sys::option(fd, libc::SOL_SOCKET, libc::SO_TYPE) == Ok(libc::SOCK_STREAM);
    if !stream || (family != libc::AF_INET && family != libc::AF_INET6) {
        return None;
    }
    // SAFETY: all zeros is a valid sockaddr_storage.
    let mut name: libc::sockaddr_storage = unsafe { core::mem::zeroed() };
    sys::socket_name(fd, &mut name).ok()?;
    let address = address::from_c(&name)?;
    let stand_in = connections::take()?;
    stand_in.source.can_send(false);
    if !table::note(fd, Entry::Listener(stand_in.index)) {
        connections::give_back(stand_in);
        return None;
    }
    lock(&STATE).listeners.push(Listener { fd, stand_in: stand_in.index, family, address, serves: false });
    Some(stand_in)
}

/// The port that a noted listener has.
pub(crate) fn port_of(fd: c_int) -> Option<u16> {
    lock(&STATE).listeners.iter().find(|listener| listener.fd == fd).map(|listener| listener.address.port())
}

/// Virtual connections are accepted from this listener from now on.
pub(crate) fn serve(fd: c_int) {
    lock(&STATE).listeners.iter_mut().filter(|listener| listener.fd == fd).for_each(|one| one.serves = true);
}

/// The application closes a listening socket. Another of the same port takes its place; without one, whoever
/// waits to be accepted is refused.
pub(crate) fn closed(fd: c_int, stand_in: u32, wakes: &mut Wakes) {
    let mut state = lock(&STATE);
    if let Some(position) = state.listeners.iter().position(|listener| listener.fd == fd) {
        let gone = state.listeners.swap_remove(position);
        if gone.serves
            && let Some(heir) =
                state.listeners.iter_mut().find(|one| one.address.port() == gone.address.port())
        {
            heir.serves = true;
        }
    }
    table::note(fd, Entry::Real);
    let is_served = state.listeners.iter().any(|listener| listener.serves);
    let orphans = if is_served { VecDeque::new() } else { core::mem::take(&mut state.queue) };
    QUEUED.store(state.queue.len(), Ordering::Release);
    drop(state);
    for orphan in orphans.into_iter().filter_map(connections::get) {
        links::refuse(orphan, wakes);
        connections::give_back(orphan);
    }
    if let Some(connection) = connections::get(stand_in) {
        ready::forget(connection);
        connections::give_back(connection);
    }
}

/// A virtual connection wants to be accepted.
pub(crate) fn offer(connection: &Connection, wakes: &mut Wakes) -> Offer {
    let mut state = lock(&STATE);
    let Some(listener) = state.listeners.iter().find(|listener| listener.serves).copied() else {
        return Offer::Refused(RefuseReason::Unavailable);
    };
    if state.queue.len() >= QUEUE_MAX {
        return Offer::Refused(RefuseReason::Full);
    }
    state.queue.push_back(connection.index);
    QUEUED.store(state.queue.len(), Ordering::Release);
    if let Some(stand_in) = connections::get(listener.stand_in) {
        stand_in.source.raise(IN);
        notify(stand_in, wakes);
    }
    Offer::Queued
}

/// Takes a connection out of the queue again, if it is still there.
pub(crate) fn withdraw(connection: &Connection) -> bool {
    if !has_queued() {
        return false;
    }
    let mut state = lock(&STATE);
    let Some(position) = state.queue.iter().position(|&index| index == connection.index) else {
        return false;
    };
    state.queue.remove(position);
    state.queue_changed();
    true
}

/// Whether a virtual connection waits to be accepted.
pub(crate) fn has_queued() -> bool {
    QUEUED.load(Ordering::Acquire) > 0
}

/// Whether it is a virtual connection's turn to be accepted, rather than a real one's.
pub(crate) fn virtual_turn() -> bool {
    TURNS.fetch_add(1, Ordering::Relaxed) % REAL_TURN != REAL_TURN - 1
}

/// Accepts the next virtual connection from this listener as a descriptor. `Ok(None)` when none waits; with
/// EMFILE and the like it goes on waiting.
pub(crate) fn accept(fd: c_int, close_on_exec: bool) -> Result<Option<(c_int, &'static Connection)>, Errno> {
    let mut state = lock(&STATE);
    let Some(listener) = state.listeners.iter().find(|one| one.fd == fd && one.serves).copied() else {
        return Ok(None);
    };
    let Some(&index) = state.queue.front() else { return Ok(None) };
    let Some(connection) = connections::get(index) else { return Ok(None) };
    let new = crate::port::new_descriptor(listener.family, close_on_exec)?;
    if !table::note(new, Entry::Connection(index)) {
        sys::close(new);
        return Err(libc::EMFILE);
    }
    state.queue.pop_front();
    state.queue_changed();
    let mut inner = connection.lock();
    inner.references = 1;
    let client = inner.client.map(|client| address::in_family(client, listener.family));
    // What the kernel would name: the address that was connected to, with the listener's port.
    let local = inner.local.filter(|_| listener.address.ip().is_unspecified()).unwrap_or(listener.address);
    let local = SocketAddr::new(local.ip(), listener.address.port());
    (inner.client, inner.local) = (client, Some(address::in_family(local, listener.family)));
    drop(inner);
    Ok(Some((new, connection)))
}

impl State {
    fn queue_changed(&mut self) {
        QUEUED.store(self.queue.len(), Ordering::Release);
        if self.queue.is_empty() {
            for listener in self.listeners.iter().filter(|listener| listener.serves) {
                if let Some(stand_in) = connections::get(listener.stand_in) {
                    stand_in.source.lower(IN);
                }
            }
        }
    }
}
