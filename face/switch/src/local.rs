//! Control messages of this host's own server, in host mode.
//!
//! The control endpoint is an address of this host, so that the messages of the host's own server to it reach neither an
//! interface nor the XDP program. The daemon receives these messages with a UDP socket at the endpoint, runs the program on
//! each, and sends what the program returns: the answer to the server, or the message for another server. A message for the
//! host's own server arrives at this socket, too: the program passes it to the kernel with its addresses, because the
//! kernel drops packets from outside with a source address of its own.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::{set_ip_freebind, set_ipv6_freebind};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with};
use spillway_auth::SwitchKey;
use spillway_wire::switch::{MESSAGE_BYTES, ServerId, View};

use crate::config::Server;
use crate::datagram;
use crate::tables::Tables;

/// Maximum number of datagrams that one turn reads from one endpoint: a flood at one endpoint delays neither the other one nor
/// the daemon's end.
const TURN_DATAGRAMS_MAX: usize = 64;

/// This host's own server.
#[derive(Clone, Debug)]
pub(crate) struct LocalServer {
    pub(crate) id: ServerId,
    pub(crate) address: IpAddr,
    pub(crate) key: SwitchKey,
}

impl LocalServer {
    /// `None` if the server's key was not read.
    pub(crate) fn of(server: &Server) -> Option<LocalServer> {
        let key = server.key.as_ref()?.switch_key();
        Some(LocalServer { id: ServerId(server.id), address: server.address, key })
    }
}

/// The sockets at the control endpoints, and the numbers of datagrams that arrived there.
#[derive(Debug, Default)]
pub(crate) struct Local {
    endpoints: Mutex<Vec<Arc<Endpoint>>>,
    handled: AtomicU64,
    dropped: AtomicU64,
}

/// A socket at a control endpoint.
#[derive(Debug)]
pub(crate) struct Endpoint {
    at: SocketAddr,
    socket: UdpSocket,
}

impl Local {
    /// Opens sockets for these control endpoints; pass them to [`replace`](Self::replace). An endpoint that already has a
    /// socket keeps that socket.
    ///
    /// # Errors
    /// Another program has the port.
    pub(crate) fn open(&self, control: &[SocketAddr]) -> Result<Vec<Arc<Endpoint>>, String> {
        let present = self.endpoints();
        let open = |at: &SocketAddr| match present.iter().find(|endpoint| endpoint.at == *at) {
            Some(endpoint) => Ok(Arc::clone(endpoint)),
            None => Endpoint::open(*at).map(Arc::new).map_err(|error| cannot_receive(*at, &error)),
        };
        control.iter().map(open).collect()
    }

    /// Receives at these endpoints from now on.
    pub(crate) fn replace(&self, endpoints: Vec<Arc<Endpoint>>) {
        *self.endpoints() = endpoints;
    }

    /// Datagrams that were handled, and datagrams that were dropped.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.handled.load(Ordering::Relaxed), self.dropped.load(Ordering::Relaxed))
    }

    /// Waits for datagrams, at most for `timeout`, which is below a second, and handles a bounded number of them. `server`: this host's own server.
    pub(crate) fn turn<T: Tables>(&self, timeout: Duration, tables: &T, server: Option<&LocalServer>) {
        let endpoints = self.endpoints().clone();
        let mut waiting: Vec<PollFd<'_>> =
            endpoints.iter().map(|endpoint| PollFd::new(&endpoint.socket, PollFlags::IN)).collect();
        let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(timeout.subsec_nanos()) };
        // After an interrupted or failed call the sockets are read as well: reading does not block.
        let _ = poll(&mut waiting, Some(&timeout));
        for endpoint in &endpoints {
            for _ in 0..TURN_DATAGRAMS_MAX {
                let mut buffer = [0; MESSAGE_BYTES + 1];
                let Ok((bytes, source)) = endpoint.socket.recv_from(&mut buffer) else { break };
                let is_handled = endpoint.handle(&buffer[..bytes], source, tables, server).is_some();
                let counter = if is_handled { &self.handled } else { &self.dropped };
                counter.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    fn endpoints(&self) -> MutexGuard<'_, Vec<Arc<Endpoint>>> {
        self.endpoints.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Endpoint {
    /// Opens a socket at an address that this host may get later.
    fn open(at: SocketAddr) -> io::Result<Endpoint> {
        let family = if at.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(family, SocketType::DGRAM, flags, None)?;
        match at {
            SocketAddr::V4(_) => set_ip_freebind(&socket, true)?,
            SocketAddr::V6(_) => set_ipv6_freebind(&socket, true)?,
        }
        bind(&socket, &at)?;
        Ok(Endpoint { at, socket: socket.into() })
    }

    /// Handles a datagram; `None` if it is dropped.
    fn handle<T: Tables>(
        &self,
        payload: &[u8],
        source: SocketAddr,
        tables: &T,
        server: Option<&LocalServer>,
    ) -> Option<()> {
        let payload: &[u8; MESSAGE_BYTES] = payload.try_into().ok()?;
        let server = server?;
        if View::new(payload).ok()?.is_from_switch() {
            return self.deliver(payload, tables, server);
        }
        // While the program is not attached, messages of other hosts arrive here, too.
        if !is_local(source.ip()) {
            return None;
        }
        let frame = datagram::frame(source.ip(), source.port(), self.at, payload);
        let returned = tables.handle_local(&frame).ok()??;
        let (target, payload) = datagram::read(&returned)?;
        // The program leaves a message for this host's own server addressed to the control endpoint.
        if target == self.at {
            return self.deliver(payload.try_into().ok()?, tables, server);
        }
        self.socket.send_to(payload, target).map(drop).ok()
    }

    /// Sends a message that the program has passed to the kernel to this host's own server, which checks its tag and its epoch
    /// once more.
    fn deliver<T: Tables>(
        &self,
        payload: &[u8; MESSAGE_BYTES],
        tables: &T,
        server: &LocalServer,
    ) -> Option<()> {
        // A message that another host has forged has no valid tag, and ends here.
        server.key.parse(payload).ok()?;
        let port = tables.control_port(server.id).ok()??;
        self.socket.send_to(payload, (server.address, port)).ok().map(drop)
    }
}

fn cannot_receive(at: SocketAddr, error: &io::Error) -> String {
    format!(
        "cannot receive control messages of this host's own server at {at}: {error}; stop the program that has this UDP \
         port (`ss -lunp`), or give another one (control)"
    )
}

/// Whether an address is one of this host's: only then can a socket be bound to it.
fn is_local(address: IpAddr) -> bool {
    UdpSocket::bind((address, 0)).is_ok()
}

#[cfg(test)]
mod tests {
    use spillway_wire::switch::{Answer, Body, Flow, FlowState, Import, Message, Relay, Request, Status};

    use super::*;
    use crate::messages::fresh_key;
    use crate::tables::memory::Memory;

    const TIMEOUT: Duration = Duration::from_millis(500);

    /// A server's socket, connected to the control endpoint.
    fn agent(control: SocketAddr) -> UdpSocket {
        let socket = UdpSocket::bind((control.ip(), 0)).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        socket.connect(control).unwrap();
        socket
    }

    /// A free control endpoint on the loopback interface, and its sockets.
    fn opened() -> (Local, SocketAddr) {
        let local = Local::default();
        let free = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        local.replace(local.open(&[free]).unwrap());
        (local, free)
    }

    fn server(key: &SwitchKey) -> LocalServer {
        LocalServer { id: ServerId(1), address: IpAddr::from([127, 0, 0, 1]), key: key.clone() }
    }

    fn release() -> Message {
        let endpoint = |text: &str| text.parse::<SocketAddr>().unwrap().into();
        let flow = Flow::new(endpoint("10.0.0.7:4000"), endpoint("10.0.0.5:11211")).unwrap();
        let body = Body::Request(Request::Release { flow, generation: 7 });
        Message { sender: ServerId(1), sequence: 5, epoch: 1, body }
    }

    #[test]
    fn a_request_of_this_host_is_answered() {
        let (local, control) = opened();
        let key = fresh_key().unwrap();
        let (tables, agent) = (Memory::new(&key), agent(control));
        agent.send(&key.emit(&release())).unwrap();
        local.turn(TIMEOUT, &tables, Some(&server(&key)));
        let mut answer = [0; MESSAGE_BYTES];
        assert_eq!(agent.recv(&mut answer).unwrap(), MESSAGE_BYTES);
        let Body::Answer(Answer { status, state, .. }) = key.parse(&answer).unwrap().body else {
            panic!("no answer")
        };
        assert_eq!((status, state), (Status::NoEntry, FlowState::None));
        assert_eq!(local.counts(), (1, 0));
    }

    #[test]
    fn other_datagrams_are_dropped_and_a_turn_is_bounded() {
        let (local, control) = opened();
        let key = fresh_key().unwrap();
        let (tables, agent) = (Memory::new(&key), agent(control));
        agent.send(b"short").unwrap();
        agent.send(&[0; MESSAGE_BYTES + 1]).unwrap();
        agent.send(&[0; MESSAGE_BYTES]).unwrap();
        // The message's tag is under another key, so the program drops the message.
        agent.send(&fresh_key().unwrap().emit(&release())).unwrap();
        local.turn(TIMEOUT, &tables, Some(&server(&key)));
        assert_eq!(local.counts(), (0, 4));
        agent.send(&key.emit(&release())).unwrap();
        local.turn(TIMEOUT, &tables, None);
        assert_eq!(local.counts(), (0, 5), "no server of this host is configured");
        (0..=TURN_DATAGRAMS_MAX).for_each(|_| assert_eq!(agent.send(b"flood").unwrap(), 5));
        local.turn(TIMEOUT, &tables, Some(&server(&key)));
        assert_eq!(local.counts(), (0, 5 + TURN_DATAGRAMS_MAX as u64));
    }

    #[test]
    fn a_relayed_message_is_delivered_if_it_has_the_servers_tag() {
        let (local, control) = opened();
        let key = fresh_key().unwrap();
        let (tables, agent) = (Memory::new(&key), agent(control));
        tables.set_control_port(1, agent.local_addr().unwrap().port());
        let Body::Request(Request::Release { flow, .. }) = release().body else { unreachable!() };
        let relay = Relay::Prepared { flow, generation: 8, import: Import::Refused };
        let message = Message { body: Body::Relay(relay), ..release() };
        let relayed = |key: &SwitchKey| key.emit(&message);
        let from_outside = UdpSocket::bind("127.0.0.2:0").unwrap();
        for key in [&fresh_key().unwrap(), &key] {
            from_outside.send_to(&relayed(key), control).unwrap();
        }
        local.turn(TIMEOUT, &tables, Some(&server(&key)));
        let mut delivered = [0; MESSAGE_BYTES];
        agent.recv(&mut delivered).unwrap();
        assert_eq!(delivered, relayed(&key));
        assert_eq!(local.counts(), (1, 1));
    }

    #[test]
    fn sockets_stay_with_their_endpoints_and_an_occupied_port_is_refused() {
        let (local, control) = opened();
        let other = UdpSocket::bind("127.0.0.1:0").unwrap();
        let error = local.open(&[control, other.local_addr().unwrap()]).unwrap_err();
        assert!(error.contains("ss -lunp"), "{error}");
        let again = local.open(&[control]).unwrap();
        assert!(Arc::ptr_eq(&again[0], &local.endpoints()[0]));
        // An address that this host does not have yet.
        assert_eq!(local.open(&["192.0.2.1:9511".parse().unwrap()]).unwrap().len(), 1);
        assert!(!is_local("192.0.2.1".parse().unwrap()) && is_local(control.ip()));
    }
}
