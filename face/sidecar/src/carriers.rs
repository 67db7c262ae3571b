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
    /// When a new client's session got its first.
    began: Option<Instant>,
    /// When a carrier was lost or did not take a session.
    failed: Option<Failure>,
    /// When a client was ended because nothing carried it.
    ended: Option<Failure>,
}

#[derive(Clone, Debug)]
struct Failure {
    at: Instant,
    what: String,
}

impl Seen {
    /// A session is carried; `is_first`: for the first time.
    pub fn note_carried(&self, now: Instant, is_first: bool) {
        let mut last = self.last();
        last.carried = Some(now);
        if is_first {
            last.began = Some(now);
        }
    }

    /// A session has lost its carrier, or did not get it.
    pub fn note_failed(&self, now: Instant, address: SocketAddr, why: &impl std::fmt::Display) {
        self.last().failed = Some(Failure { at: now, what: format!("{address}: {why}") });
    }

    /// A client was ended because nothing carried it.
    pub fn note_no_carrier(&self, now: Instant, server: SocketAddr) {
        let failure = Failure { at: now, what: format!("{server}: a client was not carried in time") };
        let mut last = self.last();
        last.failed = Some(failure.clone());
        last.ended = Some(failure);
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
    /// Why new clients would find no carrier, if that is so. `is_carrying`: some client is carried now. New ones need not
    /// be, where the server takes no more sessions or another key; a carrier that was lost or refused says little then.
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
        let newest = newest(seen);
        let (succeeded, failed) = match is_carrying {
            true => (newest.began, newest.ended),
            false => (newest.carried, newest.failed),
        };
        if let Some(Failure { at, what }) = failed
            && succeeded.is_none_or(|succeeded| succeeded < at)
            && at.elapsed() < SEEN_COUNTS
        {
            return Err(format!("no carrier: {what}"));
        }
        if is_carrying {
            return Ok(());
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
fn newest<'a>(seen: impl Iterator<Item = &'a Seen>) -> Last {
    let newer =
        |one: Option<Failure>, other: Option<Failure>| one.into_iter().chain(other).max_by_key(|one| one.at);
    seen.map(|seen| seen.last().clone()).fold(Last::default(), |newest, last| Last {
        carried: newest.carried.max(last.carried),
        began: newest.began.max(last.began),
        failed: newer(newest.failed, last.failed),
        ended: newer(newest.ended, last.ended),
    })
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
    fn new_clients_that_are_not_carried_count_although_old_ones_are() {
        let (_listener, there) = somebody();
        let (one, other, now) = (Seen::default(), Seen::default(), Instant::now());
        let check = || Carriers::default().check([&one, &other].into_iter(), true, there, &[]);
        let later = |ms| now + Duration::from_millis(ms);
        one.note_carried(now, true);
        one.note_failed(later(1), there, &"closed");
        assert_eq!(check(), Ok(()), "a helper that takes nobody keeps no new client away");
        other.note_no_carrier(later(2), there);
        other.note_carried(later(3), false);
        let why = check().unwrap_err();
        assert!(why.contains("not carried in time") && why.contains(&there.to_string()), "{why}");
        one.note_carried(later(4), true);
        assert_eq!(check(), Ok(()));
        // Of long ago.
        if let Some(before) = now.checked_sub(SEEN_COUNTS) {
            let old = Seen::default();
            old.note_no_carrier(before, there);
            assert_eq!(Carriers::default().check([&old].into_iter(), true, there, &[]), Ok(()));
        }
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
        other.note_carried(now + Duration::from_millis(1), false);
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
