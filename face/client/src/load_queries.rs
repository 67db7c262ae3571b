//! Queries a few helpers for their load, before a client chooses one of them (PostMan §5.2).
//!
//! [`LoadQueries`] run in the caller's event loop: watch [their descriptor](AsFd) for reading, call
//! [`handle_ready`](LoadQueries::handle_ready) when it is ready, wait no longer than
//! [`poll_timeout`](LoadQueries::poll_timeout), and call [`poll`](LoadQueries::poll) after both. All queries use one
//! UDP socket. Connect to the helper from the same port number: then the thread that has answered serves the
//! client.

use std::io;
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{self, AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, sockopt};
use spillway_auth::{Key, prove_query, verify_load};
use spillway_policy::{Choice, Decision};
use spillway_session::Jitter;
use spillway_wire::load::{LOAD_REPLY_BYTES, LoadQuery};
use spillway_wire::preamble::{KeyId, NONCE_BYTES};

use crate::LinkTarget;
use crate::{jitter, socket};

/// Default time for helpers to answer. Within a data centre an answer takes a fraction of a millisecond; a helper that takes
/// longer than this is overloaded.
pub const LOAD_QUERY_TIMEOUT: Duration = Duration::from_millis(20);

/// Maximum number of datagrams received in one turn: any host may send to this socket.
const DATAGRAMS_PER_TURN: usize = 64;

/// The outcome of [`LoadQueries`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadQueryOutcome {
    /// Connect to this helper.
    Helper {
        /// Index in the list of helpers.
        helper: usize,
        /// The port number to connect from, so that the thread that has answered serves the client.
        local_port: u16,
        /// Whether the helper has answered. If not, no helper has, and `helper` is a random one of those queried,
        /// because a firewall may drop datagrams and let connections pass.
        answered: bool,
    },
    /// Connect to no helper: those that have answered accept no clients, and the others count as full.
    NoHelper,
}

/// Load queries to a few of many helpers, sent at the same time.
#[derive(Debug)]
pub struct LoadQueries {
    socket: OwnedFd,
    local_port: u16,
    choice: Choice,
    /// Indexed like the chosen helpers of `choice`.
    outstanding: Vec<Outstanding>,
    deadline: Instant,
    jitter: Jitter,
}

#[derive(Debug)]
struct Outstanding {
    address: SocketAddr,
    key: Key,
    nonce: [u8; NONCE_BYTES],
}

impl LoadQueries {
    /// Queries the load of `d` of these helpers, chosen at random. They have [`LOAD_QUERY_TIMEOUT`] to answer.
    ///
    /// # Errors
    /// The host has no descriptors, no free ports, or no random bytes. A helper that cannot be reached is not an error: it
    /// does not answer.
    pub fn start(now: Instant, helpers: &[LinkTarget], d: usize) -> io::Result<LoadQueries> {
        LoadQueries::start_within(now, helpers, d, LOAD_QUERY_TIMEOUT)
    }

    /// As [`start`](Self::start), with the time `within` to answer.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_within(
        now: Instant,
        helpers: &[LinkTarget],
        d: usize,
        within: Duration,
    ) -> io::Result<LoadQueries> {
        let mut jitter = Jitter::seeded(jitter::seed()?);
        let choice = Choice::new(helpers.len(), d, &mut || jitter.fraction());
        let chosen: Vec<&LinkTarget> = choice.helpers_asked().map(|helper| &helpers[helper]).collect();
        let wants_ipv6 = chosen.iter().any(|target| target.address.is_ipv6());
        let (socket, is_ipv6) = open_or_fall_back(wants_ipv6, open)?;
        let local_port = socket::local_address(&socket)?.port();
        let mut outstanding = Vec::with_capacity(chosen.len());
        for target in &chosen {
            let nonce = spillway_keys::fresh_nonce()?;
            let helpers_asked = u8::try_from(chosen.len()).unwrap_or(u8::MAX);
            let query = LoadQuery { helpers_asked, key: KeyId([0; 8]), nonce, server: target.server };
            let bytes = prove_query(&target.key, query);
            // A query that cannot be sent counts as unanswered.
            let _ = net::sendto(&socket, &bytes, SendFlags::NOSIGNAL, &in_family(target.address, is_ipv6));
            let (address, key) = (target.address, target.key.clone());
            outstanding.push(Outstanding { address, key, nonce });
        }
        Ok(LoadQueries { socket, local_port, choice, outstanding, deadline: now + within, jitter })
    }

    /// Receives answers. Ignores datagrams that are forged, stale, from another address, or not answers.
    pub fn handle_ready(&mut self) {
        // One byte more than an answer, so that longer datagrams are recognised.
        let mut buffer = [MaybeUninit::uninit(); LOAD_REPLY_BYTES + 1];
        for _ in 0..DATAGRAMS_PER_TURN {
            match net::recvfrom(&self.socket, &mut buffer, RecvFlags::TRUNC) {
                Ok(((bytes, _), length, from)) => {
                    let from = from.and_then(|from| SocketAddr::try_from(from).ok());
                    if let Some(from) = from.filter(|_| length == bytes.len()) {
                        self.handle_answer(from, bytes);
                    }
                }
                Err(Errno::INTR) => {}
                Err(_) => return,
            }
        }
    }

    fn handle_answer(&mut self, from: SocketAddr, bytes: &[u8]) {
        let is_from = |query: &&Outstanding| is_same_address(query.address, from);
        for (index, query) in self.outstanding.iter().enumerate().filter(|(_, query)| is_from(query)) {
            if let Ok(load) = verify_load(&query.key, &query.nonce, bytes) {
                return self.choice.answered(index, load);
            }
        }
    }

    /// The outcome, once all helpers have answered or their time is over. Do not call it again after an outcome.
    pub fn poll(&mut self, now: Instant) -> Option<LoadQueryOutcome> {
        if !self.choice.is_complete() && now < self.deadline {
            return None;
        }
        let jitter = &mut self.jitter;
        let (index, answered) = match self.choice.decide(&mut || jitter.fraction()) {
            Decision::Lowest(index) => (index, true),
            Decision::Unanswered(index) => (index, false),
            Decision::AllFull | Decision::NoHelpers => return Some(LoadQueryOutcome::NoHelper),
        };
        let helper = self.choice.helper(index);
        Some(helper.map_or(LoadQueryOutcome::NoHelper, |helper| LoadQueryOutcome::Helper {
            helper,
            local_port: self.local_port,
            answered,
        }))
    }

    /// When to call [`poll`](Self::poll) at the latest.
    #[must_use]
    pub fn poll_timeout(&self) -> Instant {
        self.deadline
    }
}

impl AsFd for LoadQueries {
    /// Readable when a datagram has arrived.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// A socket, and whether it is an IPv6 socket. On a host without IPv6, the IPv6 helpers count as unanswered.
fn open_or_fall_back<S>(wants_ipv6: bool, open: impl Fn(bool) -> io::Result<S>) -> io::Result<(S, bool)> {
    match open(wants_ipv6) {
        Err(_) if wants_ipv6 => Ok((open(false)?, false)),
        outcome => Ok((outcome?, wants_ipv6)),
    }
}

/// A socket at a free port. An IPv6 socket also reaches IPv4 helpers.
fn open(is_ipv6: bool) -> io::Result<OwnedFd> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let family = if is_ipv6 { AddressFamily::INET6 } else { AddressFamily::INET };
    let socket = net::socket_with(family, SocketType::DGRAM, flags, None)?;
    let unspecified: IpAddr =
        if is_ipv6 { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
    if is_ipv6 {
        sockopt::set_ipv6_v6only(&socket, false)?;
    }
    net::bind(&socket, &SocketAddr::new(unspecified, 0))?;
    Ok(socket)
}

/// The address as a socket of this family needs it: IPv4-mapped for an IPv6 socket.
fn in_family(address: SocketAddr, is_ipv6: bool) -> SocketAddr {
    match address.ip() {
        IpAddr::V4(ip) if is_ipv6 => SocketAddr::new(ip.to_ipv6_mapped().into(), address.port()),
        _ => address,
    }
}

fn is_same_address(first: SocketAddr, second: SocketAddr) -> bool {
    first.port() == second.port() && first.ip().to_canonical() == second.ip().to_canonical()
}

#[cfg(test)]
mod tests;
