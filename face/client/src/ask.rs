//! Asking a few helpers how loaded they are, before a client goes to one of them (PostMan §5.2).
//!
//! An [`Ask`] lives in a loop of the caller's: watch [its descriptor](AsFd) for reading, call
//! [`handle_ready`](Ask::handle_ready) when it is ready, wait no longer than [`poll_timeout`](Ask::poll_timeout), and ask
//! [`poll`](Ask::poll) after both. It is one UDP socket, from the port number that the client shall connect from: the
//! helper's thread that answers is then the one that will serve. It is closed with the [`Ask`].

use std::io;
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{self, AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, sockopt};
use spillway_auth::{Key, prove_ask, verify_load};
use spillway_policy::{Choice, Decision};
use spillway_session::Jitter;
use spillway_wire::load::{Ask as Question, LOAD_BYTES};
use spillway_wire::preamble::{KeyId, NONCE_BYTES};

use crate::LinkTarget;
use crate::{jitter, socket};

/// How long helpers have to answer when nobody says otherwise. Within a data centre an answer takes a fraction of a
/// millisecond, and one that takes longer than this is of a helper with too much to do.
pub const ASK_TIMEOUT: Duration = Duration::from_millis(20);

/// Datagrams taken in one turn: answers are few, strangers' datagrams may be many.
const PER_TURN: usize = 64;

/// Where a client is to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// To this one of the helpers, by index.
    Helper {
        /// Which.
        helper: usize,
        /// The port number to connect from, so that it is served by the thread that has answered.
        local_port: u16,
        /// It has answered. Otherwise none has, and this is one at random of those that were asked: datagrams may not get
        /// through where connections do.
        heard: bool,
    },
    /// To none: those that have answered take no more clients, and no answer counts as full.
    Nobody,
}

/// A question to a few helpers of many.
#[derive(Debug)]
pub struct Ask {
    socket: OwnedFd,
    local_port: u16,
    choice: Choice,
    /// In the order of the choice's places.
    questions: Vec<Outstanding>,
    deadline: Instant,
    jitter: Jitter,
}

#[derive(Debug)]
struct Outstanding {
    address: SocketAddr,
    key: Key,
    nonce: [u8; NONCE_BYTES],
}

impl Ask {
    /// Asks `d` of these helpers, chosen at random: each for itself, and for the same port number. They have
    /// [`ASK_TIMEOUT`] to answer.
    ///
    /// # Errors
    /// The host has no descriptors, no free ports, or no random bytes. A helper that cannot be reached is no error: it does
    /// not answer.
    pub fn start(now: Instant, helpers: &[LinkTarget], d: usize) -> io::Result<Ask> {
        Ask::start_within(now, helpers, d, ASK_TIMEOUT)
    }

    /// As [`start`](Self::start), with another time to answer.
    ///
    /// # Errors
    /// As of `start`.
    pub fn start_within(now: Instant, helpers: &[LinkTarget], d: usize, within: Duration) -> io::Result<Ask> {
        let mut jitter = Jitter::seeded(jitter::seed()?);
        let choice = Choice::new(helpers.len(), d, &mut || jitter.fraction());
        let chosen: Vec<&LinkTarget> = choice.asked().map(|helper| &helpers[helper]).collect();
        let is_ipv6 = chosen.iter().any(|target| target.address.is_ipv6());
        let socket = open(is_ipv6)?;
        let local_port = socket::local_address(&socket)?.port();
        let mut questions = Vec::with_capacity(chosen.len());
        for target in &chosen {
            let nonce = spillway_keys::fresh_nonce()?;
            let asked = u8::try_from(chosen.len()).unwrap_or(u8::MAX);
            let question = Question { asked, key: KeyId([0; 8]), nonce, server: target.server };
            let bytes = prove_ask(&target.key, question);
            // One that does not leave is one that is not answered.
            let _ = net::sendto(&socket, &bytes, SendFlags::NOSIGNAL, &as_seen(target.address, is_ipv6));
            let (address, key) = (target.address, target.key.clone());
            questions.push(Outstanding { address, key, nonce });
        }
        Ok(Ask { socket, local_port, choice, questions, deadline: now + within, jitter })
    }

    /// Takes the answers that have come. What is forged, stale, of somebody else or none at all is passed over.
    pub fn handle_ready(&mut self) {
        // One byte more than an answer has: what is longer is none.
        let mut buffer = [MaybeUninit::uninit(); LOAD_BYTES + 1];
        for _ in 0..PER_TURN {
            match net::recvfrom(&self.socket, &mut buffer, RecvFlags::TRUNC) {
                Ok(((bytes, _), length, from)) => {
                    let from = from.and_then(|from| SocketAddr::try_from(from).ok());
                    if let Some(from) = from.filter(|_| length == bytes.len()) {
                        self.answered(from, bytes);
                    }
                }
                Err(Errno::INTR) => {}
                Err(_) => return,
            }
        }
    }

    fn answered(&mut self, from: SocketAddr, bytes: &[u8]) {
        let is_of = |question: &&Outstanding| is_same(question.address, from);
        for (place, question) in self.questions.iter().enumerate().filter(|(_, question)| is_of(question)) {
            if let Ok(load) = verify_load(&question.key, &question.nonce, bytes) {
                return self.choice.answered(place, load);
            }
        }
    }

    /// What has come of it: once all have answered, or their time is over. To be asked once.
    pub fn poll(&mut self, now: Instant) -> Option<Asked> {
        if !self.choice.is_complete() && now < self.deadline {
            return None;
        }
        let jitter = &mut self.jitter;
        let (place, heard) = match self.choice.decide(&mut || jitter.fraction()) {
            Decision::Lowest(place) => (place, true),
            Decision::Unheard(place) => (place, false),
            Decision::AllFull | Decision::NoHelpers => return Some(Asked::Nobody),
        };
        let helper = self.choice.helper(place);
        Some(helper.map_or(Asked::Nobody, |helper| Asked::Helper {
            helper,
            local_port: self.local_port,
            heard,
        }))
    }

    /// When to ask [`poll`](Self::poll) at the latest.
    #[must_use]
    pub fn poll_timeout(&self) -> Instant {
        self.deadline
    }
}

impl AsFd for Ask {
    /// Readable when somebody has answered.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// A socket at a free port; one for IPv6 reaches helpers of IPv4, too.
fn open(is_ipv6: bool) -> io::Result<OwnedFd> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let family = if is_ipv6 { AddressFamily::INET6 } else { AddressFamily::INET };
    let socket = net::socket_with(family, SocketType::DGRAM, flags, None)?;
    let any: IpAddr = if is_ipv6 { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
    if is_ipv6 {
        sockopt::set_ipv6_v6only(&socket, false)?;
    }
    net::bind(&socket, &SocketAddr::new(any, 0))?;
    Ok(socket)
}

/// An address as a socket of this kind knows it.
fn as_seen(address: SocketAddr, is_ipv6: bool) -> SocketAddr {
    match address.ip() {
        IpAddr::V4(ip) if is_ipv6 => SocketAddr::new(ip.to_ipv6_mapped().into(), address.port()),
        _ => address,
    }
}

fn is_same(one: SocketAddr, other: SocketAddr) -> bool {
    one.port() == other.port() && one.ip().to_canonical() == other.ip().to_canonical()
}

#[cfg(test)]
mod tests;
