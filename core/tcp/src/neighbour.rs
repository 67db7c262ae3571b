//! ARP (RFC 826): maps IPv4 addresses to Ethernet addresses.
//!
//! Entries are learned only from replies to our requests and from requests for our address. An address is requested at
//! most once a second (RFC 1122 §2.3.2.1). Frames are not queued here (§2.3.2.2): data waits in its connection until the
//! address is resolved.

use alloc::vec::Vec;
use core::net::Ipv4Addr;
use core::time::Duration;

use spillway_transport::Time;
use spillway_wire::packet::ethernet::Mac;

use crate::settings::is_host;

/// Maximum number of entries, resolved or not. Beyond it the entry whose last use is oldest is removed, unless it was
/// requested within the last second.
pub const NEIGHBOURS_MAX: usize = 256;
/// Time between two requests for one address.
pub const ASK_EVERY: Duration = Duration::from_secs(1);
/// Unanswered requests after which an entry is removed.
pub const QUESTIONS_MAX: u8 = 3;
/// How long an entry is valid without being requested again.
pub const REACHABLE_FOR: Duration = Duration::from_secs(30);

/// The kind of ARP packet that an address was learned from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    /// A reply to this stack; it counts only after a request.
    Reply,
    /// The sender of a request for this stack's address: it is about to send packets here.
    Question,
}

/// The ARP cache of one stack.
#[derive(Debug, Default)]
pub struct Neighbours {
    /// Sorted by address.
    entries: Vec<Entry>,
    /// Index of the entry looked up last: most stacks send through one router.
    last: usize,
    /// The earliest time at which an entry must be requested or removed.
    next_at: Option<Time>,
}

#[derive(Debug)]
struct Entry {
    ip: Ipv4Addr,
    state: State,
    used_at: Time,
    /// Requests since the last answer.
    asked: u8,
    ask_at: Time,
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// Not resolved yet.
    Incomplete,
    /// Resolved. The first lookup after `until` sets `is_doubted`: the address is requested again, and used meanwhile.
    Known { mac: Mac, until: Time, is_doubted: bool },
}

impl Entry {
    fn asks(&self) -> bool {
        matches!(self.state, State::Incomplete | State::Known { is_doubted: true, .. })
    }
}

impl Neighbours {
    pub fn new() -> Neighbours {
        Neighbours::default()
    }

    /// The Ethernet address of a neighbour. `None`: not resolved; a request follows, so look it up again later.
    pub fn lookup(&mut self, now: Time, ip: Ipv4Addr) -> Option<Mac> {
        if self.entries.get(self.last).is_none_or(|entry| entry.ip != ip) {
            self.last = self.entry(now, ip)?;
        }
        let entry = &mut self.entries[self.last];
        entry.used_at = now;
        let State::Known { mac, until, is_doubted } = &mut entry.state else {
            // The address is still needed: without further requests its connection would never be established.
            if entry.asked == QUESTIONS_MAX && entry.ask_at <= now {
                entry.asked = 0;
            }
            return None;
        };
        let mac = *mac;
        if *until <= now && !*is_doubted {
            *is_doubted = true;
            let ask_at = entry.ask_at;
            self.wake_at(ask_at);
        }
        Some(mac)
    }

    /// Frames to this neighbour seem to be lost: the next lookup causes a new request.
    pub fn doubt(&mut self, now: Time, ip: Ipv4Addr) {
        if let Ok(at) = self.position(ip)
            && let State::Known { until, .. } = &mut self.entries[at].state
        {
            *until = (*until).min(now);
        }
    }

    /// Learns the Ethernet address of a neighbour from an ARP packet.
    pub fn learned(&mut self, now: Time, ip: Ipv4Addr, mac: Mac, heard: Heard) {
        if !is_host(ip) || !mac.is_unicast() {
            return;
        }
        let at = match self.position(ip) {
            Ok(at) if heard == Heard::Reply && !(self.entries[at].asks() && self.entries[at].asked > 0) => {
                return;
            }
            Ok(at) => at,
            Err(_) if heard == Heard::Reply => return,
            Err(_) => match self.entry(now, ip) {
                Some(at) => at,
                None => return,
            },
        };
        let entry = &mut self.entries[at];
        entry.state = State::Known { mac, until: now + REACHABLE_FOR, is_doubted: false };
        entry.asked = 0;
    }

    /// The next address to request by broadcast. Call it until it returns `None`; then
    /// [`poll_timeout`](Neighbours::poll_timeout) says when to call it again.
    #[inline]
    #[must_use]
    pub fn poll_question(&mut self, now: Time) -> Option<Ipv4Addr> {
        if self.next_at.is_none_or(|at| now < at) { None } else { self.next_question(now) }
    }

    fn next_question(&mut self, now: Time) -> Option<Ipv4Addr> {
        let mut at = 0;
        while at < self.entries.len() {
            let entry = &mut self.entries[at];
            if !entry.asks() || entry.ask_at > now {
                at += 1;
            } else if entry.asked < QUESTIONS_MAX {
                entry.asked += 1;
                entry.ask_at = now + ASK_EVERY;
                return Some(entry.ip);
            } else {
                self.entries.remove(at);
            }
        }
        self.next_at = self.entries.iter().filter(|entry| entry.asks()).map(|entry| entry.ask_at).min();
        None
    }

    /// When to call [`Neighbours::poll_question`] next.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        self.next_at
    }

    fn position(&self, ip: Ipv4Addr) -> Result<usize, usize> {
        self.entries.binary_search_by_key(&ip, |entry| entry.ip)
    }

    /// The index of an address; a new entry is requested at once. `None` if no host can have the address, or if there is no
    /// room.
    fn entry(&mut self, now: Time, ip: Ipv4Addr) -> Option<usize> {
        let place = match self.position(ip) {
            Ok(at) => return Some(at),
            Err(_) if !is_host(ip) => return None,
            Err(place) => place,
        };
        let mut at = place;
        if self.entries.len() >= NEIGHBOURS_MAX {
            // Keep entries requested within the last second: a new one for that address would be requested too early.
            let may_go = |at: &usize| self.entries[*at].ask_at <= now;
            let oldest = (0..self.entries.len()).filter(may_go).min_by_key(|at| self.entries[*at].used_at)?;
            self.entries.remove(oldest);
            at -= usize::from(oldest < place);
        }
        self.entries.insert(at, Entry { ip, state: State::Incomplete, used_at: now, asked: 0, ask_at: now });
        self.wake_at(now);
        Some(at)
    }

    fn wake_at(&mut self, at: Time) {
        self.next_at = Some(self.next_at.map_or(at, |next| next.min(at)));
    }
}

#[cfg(test)]
mod tests;
