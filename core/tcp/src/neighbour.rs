//! Which Ethernet address an IPv4 address has (RFC 826).
//!
//! Only answers to our questions and questions for our address teach anything; there is at most one question a second for
//! an address (RFC 1122 §2.3.2.1). Frames do not wait here for an address (§2.3.2.2): what is to be sent waits in its
//! connection.

use alloc::vec::Vec;
use core::net::Ipv4Addr;
use core::time::Duration;

use spillway_transport::Time;
use spillway_wire::packet::ethernet::Mac;

use crate::settings::is_host;

/// Neighbours that are known or asked for, at most. The one that was not used for longest gives way, unless
/// it was asked for within the last second.
pub const NEIGHBOURS_MAX: usize = 256;
/// An address is not asked for more often than this.
pub const ASK_EVERY: Duration = Duration::from_secs(1);
/// Questions without an answer, after which what is known is forgotten.
pub const QUESTIONS_MAX: u8 = 3;
/// What was learned is not doubted for so long.
pub const REACHABLE_FOR: Duration = Duration::from_secs(30);

/// How an address was heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    /// In a reply to us. It counts if we have asked.
    Reply,
    /// As the sender of a question for our address: it is going to talk to us.
    Question,
}

/// What is known of the neighbours of one stack.
#[derive(Debug, Default)]
pub struct Neighbours {
    /// By address.
    entries: Vec<Entry>,
    /// Where the one was that was looked up last: most stacks talk through one router.
    last: usize,
    /// The earliest time at which something is to be asked or given up.
    next_at: Option<Time>,
}

#[derive(Debug)]
struct Entry {
    ip: Ipv4Addr,
    state: State,
    used_at: Time,
    /// Questions since something was heard last, and when the next may be asked.
    asked: u8,
    ask_at: Time,
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// Nobody has answered yet.
    Incomplete,
    /// Known. Doubted after that time: then whoever uses it has it asked for again.
    Known { mac: Mac, until: Time, is_doubted: bool },
}

impl Entry {
    fn asks(&self) -> bool {
        matches!(self.state, State::Incomplete | State::Known { is_doubted: true, .. })
    }
}

impl Neighbours {
    /// Knows nobody.
    pub fn new() -> Neighbours {
        Neighbours::default()
    }

    /// The Ethernet address of a neighbour. `None`: it will be asked for; come again.
    pub fn lookup(&mut self, now: Time, ip: Ipv4Addr) -> Option<Mac> {
        if self.entries.get(self.last).is_none_or(|entry| entry.ip != ip) {
            self.last = self.entry(now, ip)?;
        }
        let entry = &mut self.entries[self.last];
        entry.used_at = now;
        let State::Known { mac, until, is_doubted } = &mut entry.state else {
            // Somebody still wants it: questions go on, or its connection would never be opened.
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

    /// Frames to this one seem not to arrive: whoever looks it up next has it asked for again.
    pub fn doubt(&mut self, now: Time, ip: Ipv4Addr) {
        if let Ok(at) = self.position(ip)
            && let State::Known { until, .. } = &mut self.entries[at].state
        {
            *until = (*until).min(now);
        }
    }

    /// A neighbour has told its address.
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

    /// An address to ask for now, to everybody. Ask until there is none; then
    /// [`poll_timeout`](Neighbours::poll_timeout) tells when to ask again.
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

    /// Where an address is; a new one is to be asked for at once. `None` for what is no host's, and where there is
    /// no room.
    fn entry(&mut self, now: Time, ip: Ipv4Addr) -> Option<usize> {
        let place = match self.position(ip) {
            Ok(at) => return Some(at),
            Err(_) if !is_host(ip) => return None,
            Err(place) => place,
        };
        let mut at = place;
        if self.entries.len() >= NEIGHBOURS_MAX {
            // Not who was asked for just now: who comes back at once would be asked for again.
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
