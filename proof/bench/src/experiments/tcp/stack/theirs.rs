//! An echo server on smoltcp.

use std::ops::Range;

use smoltcp::iface::{Config, Interface, PollIngressSingleResult, SocketHandle, SocketSet};
use smoltcp::phy::{Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::socket::tcp::{Socket, SocketBuffer};
use smoltcp::time::Instant;
use smoltcp::wire::{EthernetAddress, IpCidr};
use spillway_transport::Time;

use super::server::Echo;
use crate::experiments::common::script::{
    CLIENT_IP, CLIENT_MAC, Frames, MESSAGE_BYTES, MTU, PORT, STACK_IP, STACK_MAC,
};

/// Size of each of a connection's two buffers: small, so that they stay in the cache.
const BUFFER_BYTES: usize = 4096;

pub struct Theirs {
    interface: Interface,
    sockets: SocketSet<'static>,
    handles: Vec<SocketHandle>,
}

impl Theirs {
    pub fn new(connections: usize) -> Result<Theirs, String> {
        let (frames, mut out) = (arp_request(), Frames::new(4));
        let mut wire = Wire { frames: &frames, range: 0..1, out: &mut out };
        let mut config = Config::new(EthernetAddress(STACK_MAC.0).into());
        config.random_seed = 7;
        let mut interface = Interface::new(config, &mut wire, Instant::ZERO);
        let address = IpCidr::new(STACK_IP.into(), 24);
        let mut is_full = false;
        interface.update_ip_addrs(|addresses| is_full = addresses.push(address).is_err());
        if is_full {
            return Err("smoltcp cannot store its address".into());
        }
        let mut sockets = SocketSet::new(Vec::new());
        let mut handles = Vec::new();
        for _ in 0..connections {
            let buffer = || SocketBuffer::new(vec![0; BUFFER_BYTES]);
            let mut socket = Socket::new(buffer(), buffer());
            socket.set_tsval_generator(Some(|| 1));
            socket.set_nagle_enabled(false);
            socket.listen(PORT).map_err(|error| error.to_string())?;
            handles.push(sockets.add(socket));
        }
        // smoltcp takes the client's MAC address only from ARP; our stack takes it from any frame.
        interface.poll(Instant::ZERO, &mut wire, &mut sockets);
        if out.len() != 1 {
            return Err("smoltcp does not answer ARP".into());
        }
        Ok(Theirs { interface, sockets, handles })
    }
}

impl Echo for Theirs {
    fn turn(&mut self, now: Time, frames: &Frames, range: Range<usize>, owners: &[usize], out: &mut Frames) {
        let now = Instant::from_micros((now.0 / 1000) as i64); // the clock starts near 0
        let mut wire = Wire { frames, range: range.clone(), out };
        let Theirs { interface, sockets, handles } = self;
        while interface.poll_ingress_single(now, &mut wire, sockets) != PollIngressSingleResult::None {}
        // smoltcp has no list of readable sockets; `owners` contains those with new data.
        for index in range {
            let socket = sockets.get_mut::<Socket<'_>>(handles[owners[index]]);
            let mut message = [0; MESSAGE_BYTES];
            if socket.can_recv() {
                let length = socket.recv_slice(&mut message).unwrap_or(0);
                let _ = socket.send_slice(&message[..length]);
            }
        }
        interface.poll_egress(now, &mut wire, sockets);
    }
}

fn arp_request() -> Frames {
    use spillway_wire::packet::arp::{Operation, Packet};
    use spillway_wire::packet::ethernet::{HEADER_BYTES, Header, KIND_ARP, Mac};
    let mut frames = Frames::new(1);
    frames.push(|slot| {
        let packet = Packet {
            operation: Operation::Request,
            sender_mac: CLIENT_MAC,
            sender_ip: CLIENT_IP,
            target_mac: Mac::ZERO,
            target_ip: STACK_IP,
        };
        Header { target: Mac::BROADCAST, source: CLIENT_MAC, kind: KIND_ARP }.emit(slot.first_chunk_mut()?);
        packet.emit(slot[HEADER_BYTES..].first_chunk_mut()?);
        Some(HEADER_BYTES + spillway_wire::packet::arp::BYTES)
    });
    frames
}

/// The frames as a smoltcp device, without copying.
struct Wire<'f> {
    frames: &'f Frames,
    range: Range<usize>,
    out: &'f mut Frames,
}

struct Received<'f>(&'f [u8]);
struct Transmit<'f>(&'f mut Frames);

impl Device for Wire<'_> {
    type RxToken<'a>
        = Received<'a>
    where
        Self: 'a;
    type TxToken<'a>
        = Transmit<'a>
    where
        Self: 'a;

    fn receive(&mut self, _now: Instant) -> Option<(Received<'_>, Transmit<'_>)> {
        let index = self.range.next()?;
        Some((Received(self.frames.get(index)), Transmit(self.out)))
    }

    fn transmit(&mut self, _now: Instant) -> Option<Transmit<'_>> {
        Some(Transmit(self.out))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ethernet;
        capabilities.max_transmission_unit = 14 + usize::from(MTU);
        capabilities
    }
}

impl RxToken for Received<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, read: F) -> R {
        read(self.0)
    }
}

impl TxToken for Transmit<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, length: usize, write: F) -> R {
        let (mut write, mut result) = (Some(write), None);
        self.0.push(|slot| {
            result = write.take().map(|write| write(&mut slot[..length]));
            Some(length)
        });
        match (result, write) {
            (Some(result), _) => result,
            // The queue is full: smoltcp writes the frame to a scratch buffer, and it is lost.
            (None, Some(write)) => write(&mut vec![0; length]),
            (None, None) => unreachable!("`write` is taken only together with a result"),
        }
    }
}
