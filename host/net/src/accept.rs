//! Listening and accepting: the work of one turn is bounded, and a lack of file descriptors is handled.

use std::net::SocketAddr;
use std::time::Duration;

use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use rustix::net::{SocketFlags, acceptfrom_with};
use spillway_transport::{Application, Event, HostLimit};

use crate::Notice;
use crate::connection::Connection;
use crate::context::Context;
use crate::listen::{BoundListener, Listener, set_keep_alive};
use crate::sockets::{Sockets, close_with_reset};
use crate::sys::unaccepted;

/// Pause after `accept` has failed. Meanwhile new peers wait in the kernel's accept queue; if the failure was a lack of
/// file descriptors, they are refused.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Pause before a listener that could not be opened is tried again.
const LISTEN_PAUSE: Duration = Duration::from_secs(1);

const ACCEPT_FLAGS: SocketFlags = SocketFlags::NONBLOCK.union(SocketFlags::CLOEXEC);

impl<A: Application> Context<A> {
    /// Accepts the connections that wait at a listener, at most `accepts_per_turn`.
    pub(crate) fn accept(&mut self, index: u16) {
        for _ in 0..self.sockets.config.accepts_per_turn {
            // The application may have closed the listener while it handled the last event.
            let Some(listener) = self.sockets.listeners.get(&index).filter(|listener| listener.is_listening)
            else {
                return;
            };
            match acceptfrom_with(&listener.fd, ACCEPT_FLAGS) {
                Ok((fd, address)) => {
                    let peer = address.and_then(|address| SocketAddr::try_from(address).ok());
                    if self.sockets.table.is_full() {
                        close_with_reset(fd);
                        self.sockets.report_connections_exhausted();
                        self.report_refused(index, HostLimit::Connections, 1);
                        continue;
                    }
                    // Cannot fail: the peer of a TCP socket has an internet address.
                    let Some(peer) = peer else { continue };
                    match self.sockets.register(Connection::opened(fd)) {
                        Ok(conn) => {
                            self.report(conn, Event::Opened { peer, listener: Some(index) });
                            // A peer's first bytes have often arrived already. The application receives
                            // them before the next peer is accepted, because it may prefer active peers.
                            if let Some(connection) = self.sockets.table.get_mut(conn) {
                                connection.note_readable();
                                self.read(conn);
                            }
                        }
                        Err(error) => {
                            self.report_refused(index, HostLimit::Memory, 1);
                            return self.sockets.pause_accepting(index, error.raw_os_error());
                        }
                    }
                }
                Err(Errno::AGAIN) => return,
                Err(error @ (Errno::MFILE | Errno::NFILE)) => {
                    let peers = self.sockets.refuse_without_descriptors(index, error);
                    if peers > 0 {
                        self.report_refused(index, HostLimit::Descriptors, peers);
                    }
                    return;
                }
                Err(error @ (Errno::NOBUFS | Errno::NOMEM)) => {
                    return self.sockets.pause_accepting(index, Some(error.raw_os_error()));
                }
                // The peer has closed the connection already, or a firewall rejects it: accept the next one.
                Err(_) => {}
            }
        }
    }
}

impl Sockets {
    pub(crate) fn open_listener(&mut self, index: u16) {
        let Some(listener) = self.listeners.get_mut(&index) else { return };
        let opened = listener.open(self.config.backlog);
        match opened.and_then(|()| self.epoll.add(&listener.fd, u64::from(index), EventFlags::IN)) {
            Ok(()) => {
                listener.retry_at = None;
                self.report_steering(index);
            }
            Err(error) => {
                listener.close();
                listener.retry_at = Some(self.now + LISTEN_PAUSE);
                if self.listen_failures.count(self.now).is_some() {
                    let error = error.raw_os_error().unwrap_or(0);
                    (self.hook)(Notice::ListenFailed { listener: index, error });
                }
            }
        }
        self.note_retry(index);
    }

    pub(crate) fn close_listener(&mut self, index: u16) {
        if let Some(listener) = self.listeners.get_mut(&index).filter(|listener| listener.is_listening) {
            self.epoll.remove(&listener.fd);
            listener.close();
            self.report_steering(index);
        }
    }

    /// Reports that the source port does not determine the thread of a peer.
    fn report_steering(&mut self, index: u16) {
        if let Some(fault) = self.listeners.get(&index).and_then(Listener::take_steering_fault) {
            (self.hook)(Notice::NotSteered { listener: index, fault });
        }
    }

    /// Retries the first listener that is due.
    pub(crate) fn retry_listeners(&mut self) {
        // Other listeners that are due follow in the next turns.
        let Some(index) = self.due_listener(|listener| listener.retry_at) else { return };
        let Some(listener) = self.listeners.get_mut(&index) else { return };
        listener.retry_at = None;
        if !listener.is_listening {
            self.open_listener(index);
        } else if let Err(error) = self.epoll.add(&listener.fd, u64::from(index), EventFlags::IN) {
            self.pause_accepting(index, error.raw_os_error());
        }
        self.note_retry(index);
    }

    /// Sets the listener of an index. The listener that had this index is closed; the kernel resets its waiting peers.
    pub fn put_listener(&mut self, index: u16, listener: BoundListener) {
        self.drop_listener(index);
        self.listeners.insert(index, Listener::new(listener));
        self.watch_load_queries(index);
    }

    /// Closes a listener and its socket.
    pub fn drop_listener(&mut self, index: u16) {
        self.close_listener(index);
        self.listeners.remove(&index);
        self.note_retry(index);
    }

    /// Sets the idle time before keep-alive probes for peers that connect from now on; `None` switches the probes off.
    pub fn set_keep_alive(&mut self, index: u16, idle: Option<Duration>) {
        if let Some(listener) = self.listeners.get(&index) {
            // Cannot fail on an open TCP socket; otherwise the previous setting remains.
            let _ = set_keep_alive(&listener.fd, idle);
        }
    }

    /// Sets [`Config::connections_max`](crate::Config::connections_max). Existing connections beyond the limit remain.
    pub fn set_connections_max(&mut self, connections: usize) {
        self.config.connections_max = connections;
        self.table.set_limit(connections);
    }

    /// Sets [`Config::input_patience`](crate::Config::input_patience). No effect if the context was created with zero.
    pub fn set_input_patience(&mut self, patience: Duration) {
        self.config.input_patience = patience;
    }

    fn report_connections_exhausted(&mut self) {
        if let Some(refused) = self.out_of_connections.count(self.now) {
            (self.hook)(Notice::ConnectionsExhausted { refused });
        }
    }

    /// Without a descriptor a peer can be neither accepted nor refused, and epoll would report it in each turn. So the
    /// listener closes for [`ACCEPT_PAUSE`]: the host resets waiting peers and refuses new ones. (A spare descriptor
    /// would not help: another thread could take it.) Returns the number of peers that were waiting.
    fn refuse_without_descriptors(&mut self, index: u16, error: Errno) -> u64 {
        let Some(listener) = self.listeners.get_mut(&index) else { return 0 };
        // Without a free descriptor `accept` fails even if no peer waits. `unaccepted` cannot fail: the socket listens.
        let waiting = unaccepted(&listener.fd).unwrap_or(1);
        if waiting == 0 {
            return 0;
        }
        self.epoll.remove(&listener.fd);
        listener.close();
        listener.retry_at = Some(self.now + ACCEPT_PAUSE);
        self.note_retry(index);
        if self.out_of_descriptors.count(self.now).is_some() {
            (self.hook)(Notice::DescriptorsExhausted { host: error == Errno::NFILE });
        }
        u64::from(waiting)
    }

    fn pause_accepting(&mut self, index: u16, error: Option<i32>) {
        let Some(listener) = self.listeners.get_mut(&index) else { return };
        self.epoll.remove(&listener.fd);
        listener.retry_at = Some(self.now + ACCEPT_PAUSE);
        self.note_retry(index);
        if self.accept_failures.count(self.now).is_some() {
            let notice = Notice::AcceptFailed { listener: index, error: error.unwrap_or(0) };
            (self.hook)(notice);
        }
    }
}
