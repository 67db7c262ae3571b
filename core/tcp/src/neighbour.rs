//! Maps IP addresses of next hops to Ethernet addresses. The stack resolves IPv4 addresses by ARP (RFC 826), or the
//! driver resolves addresses of both families.
//!
//! ARP entries are learned only from replies to our requests, and from requests for our address. An address is
//! requested at most once a second (RFC 1122 §2.3.2.1). Frames are not queued here (§2.3.2.2): bytes stay in their
//! connection until the address is resolved.

use alloc::vec::Vec;
use core::net::IpAddr;
use core::time::Duration;

use spillway_transport::Time;
use spillway_wire::packet::ethernet::Mac;

use crate::settings::is_host;

/// Maximum number of entries, resolved or not. At the limit a new entry replaces the least recently used one of those
/// that were not requested within the last second.
pub const NEIGHBOURS_MAX: usize = 256;
/// The same with [`Resolver::Driver`](crate::Resolver::Driver), where each peer has an entry, not each next hop.
pub const NEXT_HOPS_MAX: usize = 4096;
pub const REQUEST_INTERVAL: Duration = Duration::from_secs(1);
/// Number of unanswered requests after which an entry is removed.
pub const REQUESTS_MAX: u8 = 3;
/// Time for which an entry is used before its address is requested again.
pub const REACHABLE_TIME: Duration = Duration::from_secs(30);

/// The kind of ARP packet that an address was learned from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LearnedFrom {
    /// A reply to this stack; ignored unless this stack has sent a request.
    Reply,
    /// A request for this stack's address, whose sender is about to send packets to it.
    Request,
}

#[derive(Debug)]
pub struct Neighbours {
    entries_max: usize,
    /// Sorted by address.
    entries: Vec<Entry>,
    /// Index of the entry looked up last: most stacks send to one router.
    last: usize,
    /// The earliest time at which an entry must be requested or removed.
    next_at: Option<Time>,
}

#[derive(Debug)]
struct Entry {
    ip: IpAddr,
    state: State,
    used_at: Time,
    /// Requests sent since the last reply.
    requests: u8,
    request_at: Time,
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// Not resolved yet.
    Incomplete,
    /// Resolved. The first lookup after `until` sets `is_doubted`: the address is requested again, and used meanwhile.
    Known { mac: Mac, until: Time, is_doubted: bool },
}

impl Entry {
    fn needs_request(&self) -> bool {
        matches!(self.state, State::Incomplete | State::Known { is_doubted: true, .. })
    }
}

impl Neighbours {
    pub fn new(entries_max: usize) -> Neighbours {
        Neighbours { entries_max, entries: Vec::new(), last: 0, next_at: None }
    }

    /// The Ethernet address of a neighbour. `None` if it is not resolved: a request follows, so call it again later.
    pub fn lookup(&mut self, now: Time, ip: IpAddr) -> Option<Mac> {
        if self.entries.get(self.last).is_none_or(|entry| entry.ip != ip) {
            self.last = self.entry(now, ip)?;
        }
        let entry = &mut self.entries[self.last];
        entry.used_at = now;
        let State::Known { mac, until, is_doubted } = &mut entry.state else {
            // The address is still needed: restart the requests, or its connection would never be established.
            if entry.requests == REQUESTS_MAX && entry.request_at <= now {
                entry.requests = 0;
            }
            return None;
        };
        let mac = *mac;
        if *until <= now && !*is_doubted {
            *is_doubted = true;
            let request_at = entry.request_at;
            self.wake_at(request_at);
        }
        Some(mac)
    }

    /// Records that frames to this neighbour seem to be lost: the next lookup causes a new request.
    pub fn doubt(&mut self, now: Time, ip: IpAddr) {
        if let Ok(at) = self.position(ip)
            && let State::Known { until, .. } = &mut self.entries[at].state
        {
            *until = (*until).min(now);
        }
    }

    /// Learns the Ethernet address of a neighbour from an ARP packet.
    pub fn learn(&mut self, now: Time, ip: IpAddr, mac: Mac, source: LearnedFrom) {
        if !is_host(ip) || !mac.is_unicast() {
            return;
        }
        let at = match self.position(ip) {
            Ok(at)
                if source == LearnedFrom::Reply
                    && !(self.entries[at].needs_request() && self.entries[at].requests > 0) =>
            {
                return;
            }
            Ok(at) => at,
            Err(_) if source == LearnedFrom::Reply => return,
            Err(_) => match self.entry(now, ip) {
                Some(at) => at,
                None => return,
            },
        };
        let entry = &mut self.entries[at];
        entry.state = State::Known { mac, until: now + REACHABLE_TIME, is_doubted: false };
        entry.requests = 0;
    }

    /// Sets the Ethernet address that the driver has found for the next hop to `ip`; `None` if it has found none. No
    /// effect if there is no entry for `ip`, because the stack does not use it.
    pub fn set(&mut self, now: Time, ip: IpAddr, mac: Option<Mac>) {
        let Ok(at) = self.position(ip) else { return };
        let entry = &mut self.entries[at];
        match mac.filter(|mac| mac.is_unicast()) {
            Some(mac) => {
                entry.state = State::Known { mac, until: now + REACHABLE_TIME, is_doubted: false };
                entry.requests = 0;
            }
            None => {
                if matches!(entry.state, State::Known { .. }) {
                    (entry.state, entry.requests) = (State::Incomplete, 0);
                    entry.request_at = entry.request_at.max(now);
                    let request_at = entry.request_at;
                    self.wake_at(request_at);
                }
            }
        }
    }

    /// The next address to resolve, by an ARP request or by the driver. Call it until it returns `None`;
    /// [`poll_timeout`](Neighbours::poll_timeout) then returns the time of the next call.
    #[inline]
    #[must_use]
    pub fn poll_request(&mut self, now: Time) -> Option<IpAddr> {
        if self.next_at.is_none_or(|at| now < at) { None } else { self.next_request(now) }
    }

    fn next_request(&mut self, now: Time) -> Option<IpAddr> {
        let mut at = 0;
        while at < self.entries.len() {
            let entry = &mut self.entries[at];
            if !entry.needs_request() || entry.request_at > now {
                at += 1;
            } else if entry.requests < REQUESTS_MAX {
                entry.requests += 1;
                entry.request_at = now + REQUEST_INTERVAL;
                return Some(entry.ip);
            } else {
                self.entries.remove(at);
            }
        }
        self.next_at =
            self.entries.iter().filter(|entry| entry.needs_request()).map(|entry| entry.request_at).min();
        None
    }

    /// When to call [`Neighbours::poll_request`] next.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        self.next_at
    }

    fn position(&self, ip: IpAddr) -> Result<usize, usize> {
        self.entries.binary_search_by_key(&ip, |entry| entry.ip)
    }

    /// The index of the entry of an address, which is added if it is missing, and is then requested at once. `None` if
    /// the address is not a host's, or if there is no room.
    fn entry(&mut self, now: Time, ip: IpAddr) -> Option<usize> {
        let insert_at = match self.position(ip) {
            Ok(at) => return Some(at),
            Err(_) if !is_host(ip) => return None,
            Err(insert_at) => insert_at,
        };
        let mut at = insert_at;
        if self.entries.len() >= self.entries_max {
            // Entries requested within the last second stay: if one were removed and added again, its address would be
            // requested twice within a second.
            let is_removable = |at: &usize| self.entries[*at].request_at <= now;
            let oldest =
                (0..self.entries.len()).filter(is_removable).min_by_key(|at| self.entries[*at].used_at)?;
            self.entries.remove(oldest);
            at -= usize::from(oldest < insert_at);
        }
        self.entries
            .insert(at, Entry { ip, state: State::Incomplete, used_at: now, requests: 0, request_at: now });
        self.wake_at(now);
        Some(at)
    }

    fn wake_at(&mut self, at: Time) {
        self.next_at = Some(self.next_at.map_or(at, |next| next.min(at)));
    }
}

#[cfg(test)]
mod tests;
