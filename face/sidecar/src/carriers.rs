//! Whether new clients would find a carrier: what sessions have seen last, and a look where there are no sessions to see it.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketFlags, SocketType, sockopt};

/// What sessions have seen counts for this time; after it link ports are looked at again, so that a sidecar whose load
/// balancer has left it can become healthy without clients.
const SEEN_COUNTS: Duration = Duration::from_secs(10);
/// For all link ports that are tried, together: less than health checks wait.
const LOOK_PATIENCE: Duration = Duration::from_millis(500);
/// A look counts for this time, however many ask.
const LOOK_COUNTS: Duration = Duration::from_secs(2);
/// Helpers that are tried beside the server.
const HELPERS_TRIED_MAX: usize = 7;

/// What the sessions of one thread have seen of their carriers.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    last: Mutex<Last>,
}

#[derive(Clone, Debug, Default)]
struct Last {
    /// When a session got a carrier.
    carried: Option<Instant>,
    /// When a carrier was lost or did not take a session.
    failed: Option<Failure>,
}

#[derive(Clone, Debug)]
struct Failure {
    at: Instant,
    what: String,
}

impl Seen {
    /// A session is carried.
    pub fn note_carried(&self, now: Instant) {
        self.last().carried = Some(now);
    }

    /// A session has lost its carrier, or did not get it.
    pub fn note_failed(&self, now: Instant, address: SocketAddr, why: &impl std::fmt::Display) {
        self.last().failed = Some(Failure { at: now, what: format!("{address}: {why}") });
    }

    fn last(&self) -> MutexGuard<'_, Last> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Looks at link ports, where sessions do not say whether there is a carrier.
#[derive(Debug, Default)]
pub(crate) struct Carriers {
    look: Mutex<Option<(Instant, Result<(), String>)>>,
}

impl Carriers {
    /// Why new clients would find no carrier, if that is so. `is_carrying`: some client is carried now.
    ///
    /// # Errors
    /// There is no carrier, as far as is known.
    pub fn check<'a>(
        &self,
        seen: impl Iterator<Item = &'a Seen>,
        is_carrying: bool,
        server: SocketAddr,
        helpers: &[SocketAddr],
    ) -> Result<(), String> {
        if is_carrying {
            return Ok(());
        }
        let (carried, failed) = newest(seen);
        if let Some(Failure { at, what }) = failed
            && carried.is_none_or(|carried| carried < at)
            && at.elapsed() < SEEN_COUNTS
        {
            return Err(format!("no carrier: {what}"));
        }
        // Held while looking: others wait for the same answer.
        let mut look = self.look.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((at, found)) = &*look
            && at.elapsed() < LOOK_COUNTS
        {
            return found.clone();
        }
        let found = reach(server, helpers);
        *look = Some((Instant::now(), found.clone()));
        found
    }
}

/// The newest of what all threads have seen.
fn newest<'a>(seen: impl Iterator<Item = &'a Seen>) -> (Option<Instant>, Option<Failure>) {
    let (mut carried, mut failed): (Option<Instant>, Option<Failure>) = (None, None);
    for last in seen.map(|seen| seen.last().clone()) {
        carried = carried.max(last.carried);
        if last.failed.as_ref().map(|one| one.at) > failed.as_ref().map(|one| one.at) {
            failed = last.failed;
        }
    }
    (carried, failed)
}

/// Whether the server's link port or one of the helpers' can be connected to.
fn reach(server: SocketAddr, helpers: &[SocketAddr]) -> Result<(), String> {
    let mut waits: Vec<OwnedFd> = Vec::new();
    let mut why = None;
    for address in [server].iter().chain(helpers.iter().take(HELPERS_TRIED_MAX)) {
        match begin(*address) {
            Ok(None) => return Ok(()),
            Ok(Some(socket)) => waits.push(socket),
            Err(error) => drop(why.get_or_insert_with(|| error.to_string())),
        }
    }
    let deadline = Instant::now() + LOOK_PATIENCE;
    while !waits.is_empty() {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            why = Some(format!("no answer within {} ms", LOOK_PATIENCE.as_millis()));
            break;
        }
        let mut asked: Vec<PollFd<'_>> =
            waits.iter().map(|socket| PollFd::new(socket, PollFlags::OUT)).collect();
        let timeout = Timespec { tv_sec: 0, tv_nsec: left.subsec_nanos().into() };
        match poll(&mut asked, Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(format!("no carrier: {error}")),
        }
        let is_ready: Vec<bool> = asked.iter().map(|one| !one.revents().is_empty()).collect();
        let mut is_ready = is_ready.into_iter();
        let mut is_reached = false;
        waits.retain(|socket| {
            if !is_ready.next().unwrap_or(false) {
                return true;
            }
            match sockopt::socket_error(socket) {
                Ok(Ok(())) => is_reached = true,
                Ok(Err(error)) | Err(error) => drop(why.get_or_insert_with(|| error.to_string())),
            }
            false
        });
        if is_reached {
            return Ok(());
        }
    }
    let tried = match helpers.len() {
        0 => "no helper is known".to_owned(),
        helpers => format!("none of {} helpers either", helpers.min(HELPERS_TRIED_MAX)),
    };
    Err(format!("no carrier: {server} cannot be reached ({}), {tried}", why.unwrap_or_default()))
}

/// Begins to connect; `None` where that is done at once.
fn begin(address: SocketAddr) -> Result<Option<OwnedFd>, Errno> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = net::socket_with(family, SocketType::STREAM, flags, None)?;
    match net::connect(&socket, &address) {
        Ok(()) => Ok(None),
        Err(Errno::INPROGRESS | Errno::INTR) => Ok(Some(socket)),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    fn nobody() -> SocketAddr {
        spillway_ports::free_address()
    }

    fn somebody() -> (TcpListener, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        (listener, address)
    }

    #[test]
    fn without_sessions_link_ports_are_looked_at() {
        let (_listener, there) = somebody();
        let check = |server, helpers: &[_]| Carriers::default().check([].into_iter(), false, server, helpers);
        assert_eq!(check(there, &[]), Ok(()));
        assert_eq!(check(nobody(), &[nobody(), there]), Ok(()), "a helper is enough");
        let why = check(nobody(), &[]).unwrap_err();
        assert!(why.contains("refused") && why.contains("no helper is known"), "{why}");
        let why = check(nobody(), &[nobody(), nobody()]).unwrap_err();
        assert!(why.contains("none of 2 helpers"), "{why}");
        assert_eq!(Carriers::default().check([].into_iter(), true, nobody(), &[]), Ok(()), "it carries some");
    }

    #[test]
    fn a_look_counts_for_a_while() {
        let (listener, there) = somebody();
        let carriers = Carriers::default();
        assert_eq!(carriers.check([].into_iter(), false, there, &[]), Ok(()));
        drop(listener);
        assert_eq!(carriers.check([].into_iter(), false, there, &[]), Ok(()));
    }

    #[test]
    fn what_sessions_saw_last_counts_while_it_is_new() {
        let (_listener, there) = somebody();
        let (one, other, now) = (Seen::default(), Seen::default(), Instant::now());
        let check = || Carriers::default().check([&one, &other].into_iter(), false, there, &[]);
        one.note_failed(now, there, &"the key is not known");
        let why = check().unwrap_err();
        assert!(why.contains("the key is not known") && why.contains(&there.to_string()), "{why}");
        // Another thread has had a carrier since.
        other.note_carried(now + Duration::from_millis(1));
        assert_eq!(check(), Ok(()));
        one.note_failed(now + Duration::from_millis(2), there, &"closed");
        assert!(check().unwrap_err().contains("closed"));
        // Of long ago.
        if let Some(before) = now.checked_sub(SEEN_COUNTS) {
            let old = Seen::default();
            old.note_failed(before, there, &"closed");
            assert_eq!(Carriers::default().check([&old].into_iter(), false, there, &[]), Ok(()));
        }
    }
}
