//! The application's listening sockets, and the queues of virtual connections that wait to be accepted.

use core::net::SocketAddr;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::collections::VecDeque;
use std::sync::Mutex;

use libc::c_int;
use spillway_batch::RefuseReason;

use crate::connections::{self, Connection};
use crate::notify::notify;
use crate::option_values::Options;
use crate::readiness::IN;
use crate::sys::{self, Errno};
use crate::table::{self, Entry};
use crate::wakes::Wakes;
use crate::{address, fork, lock, memberships, prepared, virtual_descriptor};

/// Maximum length of each queue. It must hold all clients of a server when they move at the same time.
const QUEUE_MAX: usize = 16 * 1024;

/// One in this number of accepts prefers a real connection.
const ACCEPTS_PER_REAL: u32 = 8;

static STATE: Mutex<State> = Mutex::new(State {
    listeners: Vec::new(),
    queues: [VecDeque::new(), VecDeque::new()],
    served: None,
    next: 0,
});

/// Number of queued connections, to detect empty queues without the lock.
static QUEUED: AtomicUsize = AtomicUsize::new(0);
/// Number of accepts while virtual connections were queued.
static ACCEPTS: AtomicU32 = AtomicU32::new(0);

struct State {
    listeners: Vec<Listener>,
    /// Indexes of queued connections: one queue for clients with IPv4 addresses, one for IPv6.
    queues: [VecDeque<u32>; 2],
    /// The port for helped clients. Its listeners receive the clients in turn, as with SO_REUSEPORT.
    served: Option<u16>,
    /// Where the search for the next listener begins.
    next: usize,
}

/// A listening TCP socket of the application.
#[derive(Clone, Copy)]
struct Listener {
    fd: c_int,
    /// Index of the connection that stands for the listener in a ready list.
    stand_in: u32,
    family: c_int,
    address: SocketAddr,
    /// Whether virtual connections are accepted from this listener.
    serves: bool,
}

/// The outcome of offering a virtual connection to the application.
pub(crate) enum Offer {
    Queued,
    Refused(RefuseReason),
}

/// The stand-in of a recorded listener.
pub(crate) fn stand_in_of(fd: c_int) -> Option<&'static Connection> {
    match table::entry(fd) {
        Entry::Listener(index) => connections::get(index),
        _ => None,
    }
}

/// Like [`stand_in_of`], for a descriptor that the application begins to wait for: also records a listener that another
/// process has created, as with socket activation.
pub(crate) fn stand_in_or_record(fd: c_int) -> Option<&'static Connection> {
    let is_new = table::is_real(fd)
        && prepared::is_link_port_pending()
        && sys::option(fd, libc::SOL_SOCKET, libc::SO_ACCEPTCONN) == Ok(1);
    if is_new { record(fd) } else { stand_in_of(fd) }
}

/// Records a listening TCP socket of the application. Returns its stand-in; `None` for another descriptor, and in a
/// child process.
pub(crate) fn record(fd: c_int) -> Option<&'static Connection> {
    if let Some(stand_in) = stand_in_of(fd) {
        return Some(stand_in);
    }
    if !fork::is_owner_process() {
        return None;
    }
    let family = sys::option(fd, libc::SOL_SOCKET, libc::SO_DOMAIN).ok()?;
    let is_stream = sys::option(fd, libc::SOL_SOCKET, libc::SO_TYPE) == Ok(libc::SOCK_STREAM);
    if !is_stream || (family != libc::AF_INET && family != libc::AF_INET6) {
        return None;
    }
    // SAFETY: all zeros is a valid sockaddr_storage.
    let mut name: libc::sockaddr_storage = unsafe { core::mem::zeroed() };
    sys::socket_name(fd, &mut name).ok()?;
    let address = address::from_c(&name)?;
    let stand_in = connections::take()?;
    stand_in.readiness.set_can_send(false);
    if !table::record(fd, Entry::Listener(stand_in.index)) {
        connections::give_back(stand_in);
        return None;
    }
    let mut state = lock(&STATE);
    let serves = state.served == Some(address.port());
    state.listeners.push(Listener { fd, stand_in: stand_in.index, family, address, serves });
    state.queue_changed();
    Some(stand_in)
}

/// Records another descriptor of the listener.
pub(crate) fn record_duplicate(fd: c_int, new: c_int) {
    let mut state = lock(&STATE);
    if let Some(listener) = state.listeners.iter().find(|listener| listener.fd == fd).copied()
        && table::record(new, Entry::Listener(listener.stand_in))
    {
        state.listeners.push(Listener { fd: new, ..listener });
    }
}

/// The port of a recorded listener.
pub(crate) fn port_of(fd: c_int) -> Option<u16> {
    lock(&STATE).listeners.iter().find(|listener| listener.fd == fd).map(|listener| listener.address.port())
}

/// From now on, virtual connections are accepted from listeners of this port.
pub(crate) fn serve(port: u16) {
    let mut state = lock(&STATE);
    state.served = Some(port);
    state
        .listeners
        .iter_mut()
        .filter(|listener| listener.address.port() == port)
        .for_each(|listener| listener.serves = true);
}

/// The port whose listeners accept virtual connections.
pub(crate) fn served() -> Option<u16> {
    lock(&STATE).served
}

/// Whether virtual connections are accepted from this listener.
pub(crate) fn is_served(fd: c_int) -> bool {
    lock(&STATE).listeners.iter().any(|listener| listener.fd == fd && listener.serves)
}

/// The application closes a descriptor of a listening socket. If that was the last listener of the served port, returns
/// the queued connections, which the caller must refuse.
#[must_use]
pub(crate) fn remove(fd: c_int, stand_in: u32) -> Vec<&'static Connection> {
    let mut state = lock(&STATE);
    state.listeners.retain(|listener| listener.fd != fd);
    let is_last = state.listeners.iter().all(|listener| listener.stand_in != stand_in);
    table::record(fd, Entry::Real);
    let is_served = state.listeners.iter().any(|listener| listener.serves);
    let refused = if is_served { Default::default() } else { core::mem::take(&mut state.queues) };
    state.queue_changed();
    drop(state);
    if is_last && let Some(connection) = connections::get(stand_in) {
        memberships::leave_all_sets(connection);
        connections::give_back(connection);
    }
    refused.into_iter().flatten().filter_map(connections::get).collect()
}

/// Queues a client's virtual connection to be accepted.
pub(crate) fn offer(connection: &Connection, client: SocketAddr, wakes: &mut Wakes) -> Offer {
    let mut state = lock(&STATE);
    let queue = usize::from(client.is_ipv6());
    let Some(listener) = state.next_listener(queue) else {
        return Offer::Refused(RefuseReason::Unavailable);
    };
    if state.queues[queue].len() >= QUEUE_MAX {
        return Offer::Refused(RefuseReason::Full);
    }
    state.queues[queue].push_back(connection.index);
    state.queue_changed();
    if let Some(stand_in) = connections::get(listener) {
        notify(stand_in, wakes);
    }
    Offer::Queued
}

/// Removes a connection from the queue. Returns whether it was queued.
pub(crate) fn withdraw(connection: &Connection) -> bool {
    if !has_queued() {
        return false;
    }
    let mut state = lock(&STATE);
    for queue in &mut state.queues {
        if let Some(position) = queue.iter().position(|&index| index == connection.index) {
            queue.remove(position);
            state.queue_changed();
            return true;
        }
    }
    false
}

/// Whether a virtual connection waits to be accepted.
pub(crate) fn has_queued() -> bool {
    QUEUED.load(Ordering::Acquire) > 0
}

/// Whether this accept prefers a virtual connection to a real one.
pub(crate) fn prefers_virtual() -> bool {
    ACCEPTS.fetch_add(1, Ordering::Relaxed) % ACCEPTS_PER_REAL != ACCEPTS_PER_REAL - 1
}

/// Accepts the next virtual connection from this listener, with a new descriptor. `Ok(None)` if none is queued. After
/// an error, such as EMFILE, the connection stays queued.
pub(crate) fn accept(fd: c_int, close_on_exec: bool) -> Result<Option<(c_int, &'static Connection)>, Errno> {
    let mut state = lock(&STATE);
    let Some(listener) =
        state.listeners.iter().find(|listener| listener.fd == fd && listener.serves).copied()
    else {
        return Ok(None);
    };
    let own = usize::from(listener.family == libc::AF_INET6);
    let suitable = [own, 1 - own].into_iter().filter(|&queue| state.accepts_from(&listener, queue));
    let Some((queue, index)) =
        suitable.into_iter().find_map(|queue| Some((queue, *state.queues[queue].front()?)))
    else {
        return Ok(None);
    };
    let Some(connection) = connections::get(index) else { return Ok(None) };
    let new = virtual_descriptor::new(listener.family, close_on_exec)?;
    if !table::record(new, Entry::Connection(index)) {
        sys::close(new);
        return Err(libc::EMFILE);
    }
    state.queues[queue].pop_front();
    state.queue_changed();
    let mut inner = connection.lock();
    inner.descriptor_count = 1;
    let client = inner.client.map(|client| address::in_family(client, listener.family));
    // As the kernel reports it: the address that the client has connected to, with the listener's port.
    let local = inner.local.filter(|_| listener.address.ip().is_unspecified()).unwrap_or(listener.address);
    let local = SocketAddr::new(local.ip(), listener.address.port());
    (inner.client, inner.local) = (client, Some(address::in_family(local, listener.family)));
    inner.options = Options::of_listener(fd);
    drop(inner);
    Ok(Some((new, connection)))
}

impl State {
    /// Whether the listener accepts clients of this queue: of its family, or of a family without a listener.
    fn accepts_from(&self, listener: &Listener, queue: usize) -> bool {
        let family = [libc::AF_INET, libc::AF_INET6][queue];
        listener.serves
            && (listener.family == family
                || !self.listeners.iter().any(|other| other.serves && other.family == family))
    }

    /// The stand-in of the next listener in turn; listeners that the application waits for come first.
    fn next_listener(&mut self, queue: usize) -> Option<u32> {
        let count = self.listeners.len();
        let suitable: Vec<usize> = (0..count)
            .map(|offset| (self.next + offset) % count)
            .filter(|&position| self.accepts_from(&self.listeners[position], queue))
            .collect();
        let is_waited_for = |position: &&usize| {
            connections::get(self.listeners[**position].stand_in).is_some_and(|stand_in| {
                stand_in.readiness.is_in_a_set() || stand_in.waiters.load(Ordering::SeqCst) != 0
            })
        };
        let position = *suitable.iter().find(is_waited_for).or(suitable.first())?;
        self.next = position + 1;
        Some(self.listeners[position].stand_in)
    }

    /// Updates the listeners' stand-ins, which are ready while a connection waits for their listener.
    fn queue_changed(&mut self) {
        let waiting = self.queues.each_ref().map(VecDeque::len);
        QUEUED.store(waiting[0] + waiting[1], Ordering::Release);
        for listener in self.listeners.iter().filter(|listener| listener.serves) {
            let Some(stand_in) = connections::get(listener.stand_in) else { continue };
            if (0..2).any(|queue| waiting[queue] > 0 && self.accepts_from(listener, queue)) {
                stand_in.readiness.raise(IN);
            } else {
                stand_in.readiness.lower(IN);
            }
        }
    }
}
