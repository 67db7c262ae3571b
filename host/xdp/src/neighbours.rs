//! Ethernet addresses of next hops, from the kernel's routes and neighbours (rtnetlink(7)).
//!
//! A stack that shares its address with the kernel cannot resolve neighbours itself: the answers go to the
//! kernel. So the kernel resolves unknown neighbours, and confirms known ones while the stack uses them.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};

use netlink_packet_core::{NLM_F_CREATE, NLM_F_REPLACE, NLM_F_REQUEST, NetlinkPayload};
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::route::{RouteAddress, RouteAttribute, RouteMessage, RouteVia};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::Socket;
use netlink_sys::protocols::NETLINK_ROUTE;
use spillway_wire::packet::ethernet::Mac;

use crate::interface::Interface;
use crate::netlink;

/// Maximum number of targets with a remembered next hop. One more replaces the oldest, whose changes are not
/// reported until the next [`ask`](KernelNeighbours::ask) for it.
pub const TARGETS_MAX: usize = 4096;
/// Buffer for one datagram of the kernel. Messages about single neighbours and routes are shorter.
const MESSAGE_BYTES_MAX: usize = 32 * 1024;
/// `RTNLGRP_NEIGH` of <linux/rtnetlink.h>: the kernel reports changes of neighbours.
const GROUP_NEIGHBOURS: u32 = 3;

/// The next hop to a peer, or the lack of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resolved {
    /// The peer's address.
    pub target: IpAddr,
    /// Ethernet address of the next hop. `None`: no route through this interface, or no answer of the hop.
    pub mac: Option<Mac>,
}

/// Finds next hops through one interface in the kernel's tables of one network namespace.
pub struct KernelNeighbours {
    socket: Socket,
    interface: u32,
    /// Route requests without an answer yet, oldest first: sequence number and target.
    route_requests: VecDeque<(u32, IpAddr)>,
    sequence: u32,
    hops: BTreeMap<IpAddr, IpAddr>,
    /// Targets in the order in which their next hops were learned.
    order: VecDeque<IpAddr>,
    resolved: VecDeque<Resolved>,
    buffer: Vec<u8>,
}

impl std::fmt::Debug for KernelNeighbours {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KernelNeighbours").field("interface", &self.interface).finish_non_exhaustive()
    }
}

impl KernelNeighbours {
    /// Opens a connection to the kernel, in the calling thread's network namespace.
    ///
    /// # Errors
    /// The process has no file descriptors left.
    pub fn open(interface: &Interface) -> io::Result<KernelNeighbours> {
        let socket = netlink::connect(NETLINK_ROUTE)?;
        socket.set_non_blocking(true)?;
        socket.add_membership(GROUP_NEIGHBOURS)?;
        Ok(KernelNeighbours {
            socket,
            interface: interface.index,
            route_requests: VecDeque::new(),
            sequence: 0,
            hops: BTreeMap::new(),
            order: VecDeque::new(),
            resolved: VecDeque::new(),
            buffer: Vec::with_capacity(MESSAGE_BYTES_MAX),
        })
    }

    /// Requests the next hop to a peer. [`poll`](Self::poll) returns the answer and later changes. Call it
    /// again while the peer is used, at most once every few seconds, so that the kernel keeps the neighbour.
    ///
    /// # Errors
    /// The system has failed.
    pub fn ask(&mut self, target: IpAddr) -> io::Result<()> {
        let mut route = RouteMessage::default();
        route.header.address_family = family(target);
        route.header.destination_prefix_length = if target.is_ipv4() { 32 } else { 128 };
        route.attributes.push(RouteAttribute::Destination(target.into()));
        if matches!(target, IpAddr::V6(ip) if ip.is_unicast_link_local()) {
            // A link-local address is ambiguous without its link (RFC 4007 §6).
            route.attributes.push(RouteAttribute::Oif(self.interface));
        }
        let sequence = self.send(RouteNetlinkMessage::GetRoute(route), NLM_F_REQUEST)?;
        if self.route_requests.len() == TARGETS_MAX {
            self.route_requests.pop_front(); // the oldest request: its answer must have been lost
        }
        self.route_requests.push_back((sequence, target));
        Ok(())
    }

    /// The next answer or change. Call it until it returns `None`, after each [`ask`](Self::ask) and whenever
    /// the descriptor is readable.
    ///
    /// # Errors
    /// The system has failed.
    pub fn poll(&mut self) -> io::Result<Option<Resolved>> {
        loop {
            if let Some(resolved) = self.resolved.pop_front() {
                return Ok(Some(resolved));
            }
            self.buffer.clear();
            match self.socket.recv(&mut self.buffer, 0) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                // The socket's buffer overflowed. The stack repeats its requests every 30 s.
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => continue,
                Err(error) => return Err(error),
            }
            let messages = std::mem::take(&mut self.buffer);
            self.handle(&messages)?;
            self.buffer = messages;
        }
    }

    fn handle(&mut self, datagram: &[u8]) -> io::Result<()> {
        for message in netlink::messages(datagram) {
            let Ok(message) = message else { continue };
            match message.payload {
                NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewRoute(route)) => {
                    self.handle_route(message.header.sequence_number, &route)?;
                }
                NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewNeighbour(neighbour)) => {
                    self.handle_neighbour(&neighbour);
                }
                NetlinkPayload::Error(error) if error.code.is_some() => {
                    // No route to the target. Errors of neighbour requests match no route request.
                    if let Some(target) = self.answered(message.header.sequence_number) {
                        self.resolved.push_back(Resolved { target, mac: None });
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Removes the route request with this sequence number and returns its target.
    fn answered(&mut self, sequence: u32) -> Option<IpAddr> {
        let at = self.route_requests.iter().position(|(number, _)| *number == sequence)?;
        self.route_requests.remove(at).map(|(_, target)| target)
    }

    fn handle_route(&mut self, sequence: u32, route: &RouteMessage) -> io::Result<()> {
        let Some(target) = self.answered(sequence) else { return Ok(()) };
        let is_ours = route.attributes.contains(&RouteAttribute::Oif(self.interface));
        if !is_ours {
            self.resolved.push_back(Resolved { target, mac: None });
            return Ok(());
        }
        let gateway = route.attributes.iter().find_map(|attribute| match attribute {
            RouteAttribute::Gateway(RouteAddress::Inet(ip)) | RouteAttribute::Via(RouteVia::Inet(ip)) => {
                Some(IpAddr::V4(*ip))
            }
            RouteAttribute::Gateway(RouteAddress::Inet6(ip)) | RouteAttribute::Via(RouteVia::Inet6(ip)) => {
                Some(IpAddr::V6(*ip))
            }
            _ => None,
        });
        let hop = gateway.unwrap_or(target);
        self.remember(target, hop);
        // Lets the kernel resolve an unknown neighbour and confirm a known one, as if it had sent a packet (NTF_USE).
        let mut used = self.neighbour(hop);
        used.header.flags = NeighbourFlags::Use;
        self.send(RouteNetlinkMessage::NewNeighbour(used), NLM_F_REQUEST | NLM_F_CREATE | NLM_F_REPLACE)?;
        let present = self.neighbour(hop);
        self.send(RouteNetlinkMessage::GetNeighbour(present), NLM_F_REQUEST)?;
        Ok(())
    }

    fn handle_neighbour(&mut self, neighbour: &NeighbourMessage) {
        if neighbour.header.ifindex != self.interface {
            return;
        }
        let hop = neighbour.attributes.iter().find_map(|attribute| match attribute {
            NeighbourAttribute::Destination(NeighbourAddress::Inet(ip)) => Some(IpAddr::V4(*ip)),
            NeighbourAttribute::Destination(NeighbourAddress::Inet6(ip)) => Some(IpAddr::V6(*ip)),
            _ => None,
        });
        let mac = neighbour.attributes.iter().find_map(|attribute| match attribute {
            NeighbourAttribute::LinkLayerAddress(bytes) => bytes.first_chunk().map(|bytes| Mac(*bytes)),
            _ => None,
        });
        let mac = match neighbour.header.state {
            // The kernel is still resolving: a change follows.
            NeighbourState::None | NeighbourState::Incomplete => return,
            NeighbourState::Failed => None,
            _ => mac,
        };
        let targets =
            self.hops.iter().filter(|(_, through)| Some(**through) == hop).map(|(target, _)| *target);
        self.resolved.extend(targets.map(|target| Resolved { target, mac }));
    }

    fn remember(&mut self, target: IpAddr, hop: IpAddr) {
        if self.hops.insert(target, hop).is_some() {
            return;
        }
        self.order.push_back(target);
        if self.order.len() > TARGETS_MAX
            && let Some(first) = self.order.pop_front()
        {
            self.hops.remove(&first);
        }
    }

    fn neighbour(&self, hop: IpAddr) -> NeighbourMessage {
        let mut message = NeighbourMessage::default();
        message.header.family = family(hop);
        message.header.ifindex = self.interface;
        message.attributes.push(NeighbourAttribute::Destination(match hop {
            IpAddr::V4(ip) => NeighbourAddress::Inet(ip),
            IpAddr::V6(ip) => NeighbourAddress::Inet6(ip),
        }));
        message
    }

    fn send(&mut self, message: RouteNetlinkMessage, flags: u16) -> io::Result<u32> {
        self.sequence = self.sequence.wrapping_add(1);
        netlink::send(&self.socket, message, flags, self.sequence)?;
        Ok(self.sequence)
    }
}

impl AsFd for KernelNeighbours {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn family(address: IpAddr) -> AddressFamily {
    match address {
        IpAddr::V4(_) => AddressFamily::Inet,
        IpAddr::V6(_) => AddressFamily::Inet6,
    }
}
