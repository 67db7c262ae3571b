//! Ethernet addresses of next hops, from the kernel's routes and neighbours (rtnetlink(7)).
//!
//! A stack that shares its address with the kernel cannot resolve neighbours itself: the answers go to the kernel. So it asks
//! the kernel, which resolves unknown neighbours and confirms known ones while the stack uses them.

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

/// Maximum number of targets with a remembered next hop. Beyond it the oldest is forgotten: its changes are not reported
/// until the stack asks for the target again.
pub const TARGETS_MAX: usize = 4096;
/// Bytes of a message from the kernel; longer ones do not occur for single neighbours and routes.
const MESSAGE_BYTES_MAX: usize = 32 * 1024;
/// `RTNLGRP_NEIGH` of <linux/rtnetlink.h>: changes of neighbours.
const GROUP_NEIGHBOURS: u32 = 3;

/// The answer for a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resolved {
    /// The peer's address.
    pub target: IpAddr,
    /// The Ethernet address of the next hop to the peer. `None`: no route leads through this interface, or the next hop does
    /// not answer.
    pub mac: Option<Mac>,
}

/// Asks the kernel of one network namespace for neighbours of one interface.
pub struct KernelNeighbours {
    socket: Socket,
    interface: u32,
    /// Routes asked for, by sequence number, first one first.
    asked: VecDeque<(u32, IpAddr)>,
    sequence: u32,
    /// Next hops by target.
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
    /// The process has no descriptors left.
    pub fn open(interface: &Interface) -> io::Result<KernelNeighbours> {
        let socket = netlink::connect(NETLINK_ROUTE)?;
        socket.set_non_blocking(true)?;
        socket.add_membership(GROUP_NEIGHBOURS)?;
        Ok(KernelNeighbours {
            socket,
            interface: interface.index,
            asked: VecDeque::new(),
            sequence: 0,
            hops: BTreeMap::new(),
            order: VecDeque::new(),
            resolved: VecDeque::new(),
            buffer: Vec::with_capacity(MESSAGE_BYTES_MAX),
        })
    }

    /// Asks for the next hop to a peer. [`poll`](Self::poll) returns the answer, and later changes. Ask again, at most once
    /// every few seconds, while the peer is used: the kernel then confirms the neighbour instead of forgetting it.
    ///
    /// # Errors
    /// The system has failed.
    pub fn ask(&mut self, target: IpAddr) -> io::Result<()> {
        let mut route = RouteMessage::default();
        route.header.address_family = family(target);
        route.header.destination_prefix_length = if target.is_ipv4() { 32 } else { 128 };
        route.attributes.push(RouteAttribute::Destination(target.into()));
        if matches!(target, IpAddr::V6(ip) if ip.is_unicast_link_local()) {
            // Such an address says nothing without its link (RFC 4007 §6).
            route.attributes.push(RouteAttribute::Oif(self.interface));
        }
        let sequence = self.send(RouteNetlinkMessage::GetRoute(route), NLM_F_REQUEST)?;
        if self.asked.len() == TARGETS_MAX {
            self.asked.pop_front(); // its answer was lost
        }
        self.asked.push_back((sequence, target));
        Ok(())
    }

    /// The next answer or change. Call it until it returns `None`, after each question and whenever the descriptor is
    /// readable.
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
                // Changes were lost because there were too many. What matters is asked for again.
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => continue,
                Err(error) => return Err(error),
            }
            let messages = std::mem::take(&mut self.buffer);
            self.handle(&messages)?;
            self.buffer = messages;
        }
    }

    /// Handles the messages of one datagram.
    fn handle(&mut self, datagram: &[u8]) -> io::Result<()> {
        for message in netlink::messages(datagram) {
            let Ok(message) = message else { return Ok(()) };
            match message.payload {
                NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewRoute(route)) => {
                    self.handle_route(message.header.sequence_number, &route)?;
                }
                NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewNeighbour(neighbour)) => {
                    self.handle_neighbour(&neighbour);
                }
                NetlinkPayload::Error(error) if error.code.is_some() => {
                    // There is no route, or the interface has no such neighbour yet.
                    if let Some(target) = self.answered(message.header.sequence_number) {
                        self.resolved.push_back(Resolved { target, mac: None });
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// The target of a question about a route, which is answered now.
    fn answered(&mut self, sequence: u32) -> Option<IpAddr> {
        let at = self.asked.iter().position(|(number, _)| *number == sequence)?;
        self.asked.remove(at).map(|(_, target)| target)
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
            // The answer follows as a change.
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

    /// Sends a request and returns its sequence number.
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
