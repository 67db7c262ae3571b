//! Health check: whether new clients would find a carrier. The link ports are probed if neither a session
//! with a carrier nor a recent failure shows it.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketFlags, SocketType, sockopt};

/// How long a session's failure counts. After that, link ports are probed, so that a sidecar that gets no clients from
/// its load balancer can become healthy again.
const HISTORY_VALID: Duration = Duration::from_secs(10);
/// Timeout for all probed link ports together; less than the usual timeout of health checks.
const PROBE_TIMEOUT: Duration = Duration::from_millis(500);
/// How long a probe's result is reused.
const PROBE_VALID: Duration = Duration::from_secs(2);
/// Maximum number of helpers that are probed in addition to the server.
const HELPERS_PROBED_MAX: usize = 7;

/// When the sessions of one thread last got or lost a carrier.
#[derive(Debug, Default)]
pub(crate) struct CarrierHistory {
    last: Mutex<LastEvents>,
}

#[derive(Clone, Debug, Default)]
struct LastEvents {
    carried: Option<Instant>,
    /// When a new client's session got its first carrier.
    first_carried: Option<Instant>,
    /// When a carrier was lost or rejected a session.
    failed: Option<Failure>,
    /// When a client was closed because its session found no carrier.
    no_carrier: Option<Failure>,
}

#[derive(Clone, Debug)]
struct Failure {
    at: Instant,
    what: String,
}

impl CarrierHistory {
    /// Records that a session has got a carrier. `is_first`: it is the session's first carrier.
    pub fn note_carried(&self, now: Instant, is_first: bool) {
        let mut last = self.last();
        last.carried = Some(now);
        if is_first {
            last.first_carried = Some(now);
        }
    }

    /// Records that a carrier was lost or has rejected a session.
    pub fn note_failed(&self, now: Instant, address: SocketAddr, why: &impl std::fmt::Display) {
        self.last().failed = Some(Failure { at: now, what: format!("{address}: {why}") });
    }

    /// Records that a client was closed because its session found no carrier.
    pub fn note_no_carrier(&self, now: Instant, server: SocketAddr) {
        let failure = Failure { at: now, what: format!("{server}: a client was not carried in time") };
        let mut last = self.last();
        last.failed = Some(failure.clone());
        last.no_carrier = Some(failure);
    }

    fn last(&self) -> MutexGuard<'_, LastEvents> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The health check. Probes link ports if no client has a carrier and no recent failure is known.
#[derive(Debug, Default)]
pub(crate) struct CarrierHealth {
    last_probe: Mutex<Option<(Instant, Result<(), String>)>>,
}

impl CarrierHealth {
    /// Checks whether new clients would find a carrier. Probing blocks for up to [`PROBE_TIMEOUT`].
    ///
    /// `is_carrying`: some client has a carrier now. Then only the outcome of new clients counts: the loss of a carrier
    /// does not affect them, but they fail if the server has reached its limit of sessions or changed its key.
    ///
    /// # Errors
    /// A new client would find no carrier; the text says why.
    pub fn check<'a>(
        &self,
        histories: impl Iterator<Item = &'a CarrierHistory>,
        is_carrying: bool,
        server: SocketAddr,
        helpers: &[SocketAddr],
    ) -> Result<(), String> {
        let newest = newest(histories);
        let (succeeded, failed) = match is_carrying {
            true => (newest.first_carried, newest.no_carrier),
            false => (newest.carried, newest.failed),
        };
        if let Some(Failure { at, what }) = failed
            && succeeded.is_none_or(|succeeded| succeeded < at)
            && at.elapsed() < HISTORY_VALID
        {
            return Err(format!("no carrier: {what}"));
        }
        if is_carrying {
            return Ok(());
        }
        // The lock is held during the probe, so that concurrent checks share its result.
        let mut last_probe = self.last_probe.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((at, result)) = &*last_probe
            && at.elapsed() < PROBE_VALID
        {
            return result.clone();
        }
        let result = probe_ports(server, helpers);
        *last_probe = Some((Instant::now(), result.clone()));
        result
    }
}

fn newest<'a>(histories: impl Iterator<Item = &'a CarrierHistory>) -> LastEvents {
    let newer = |one: Option<Failure>, other: Option<Failure>| {
        one.into_iter().chain(other).max_by_key(|failure| failure.at)
    };
    histories.map(|history| history.last().clone()).fold(LastEvents::default(), |newest, last| LastEvents {
        carried: newest.carried.max(last.carried),
        first_carried: newest.first_carried.max(last.first_carried),
        failed: newer(newest.failed, last.failed),
        no_carrier: newer(newest.no_carrier, last.no_carrier),
    })
}

/// Connects to the link ports of the server and the first helpers. Succeeds if one connection succeeds.
fn probe_ports(server: SocketAddr, helpers: &[SocketAddr]) -> Result<(), String> {
    let mut connecting: Vec<OwnedFd> = Vec::new();
    let mut first_error = None;
    for address in [server].iter().chain(helpers.iter().take(HELPERS_PROBED_MAX)) {
        match begin_connect(*address) {
            Ok(None) => return Ok(()),
            Ok(Some(socket)) => connecting.push(socket),
            Err(error) => drop(first_error.get_or_insert_with(|| error.to_string())),
        }
    }
    let deadline = Instant::now() + PROBE_TIMEOUT;
    while !connecting.is_empty() {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            first_error = Some(format!("no answer within {} ms", PROBE_TIMEOUT.as_millis()));
            break;
        }
        let mut polled: Vec<PollFd<'_>> =
            connecting.iter().map(|socket| PollFd::new(socket, PollFlags::OUT)).collect();
        let timeout = Timespec { tv_sec: 0, tv_nsec: left.subsec_nanos().into() };
        match poll(&mut polled, Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(format!("no carrier: {error}")),
        }
        let ready: Vec<bool> = polled.iter().map(|socket| !socket.revents().is_empty()).collect();
        let mut ready = ready.into_iter();
        let mut is_reached = false;
        connecting.retain(|socket| {
            if !ready.next().unwrap_or(false) {
                return true;
            }
            match sockopt::socket_error(socket) {
                Ok(Ok(())) => is_reached = true,
                Ok(Err(error)) | Err(error) => drop(first_error.get_or_insert_with(|| error.to_string())),
            }
            false
        });
        if is_reached {
            return Ok(());
        }
    }
    let tried = match helpers.len() {
        0 => "no helper is known".to_owned(),
        helpers => format!("none of {} helpers either", helpers.min(HELPERS_PROBED_MAX)),
    };
    Err(format!("no carrier: {server} cannot be reached ({}), {tried}", first_error.unwrap_or_default()))
}

/// Starts a non-blocking connect. `None`: the connection is established already.
fn begin_connect(address: SocketAddr) -> Result<Option<OwnedFd>, Errno> {
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

    fn closed_port() -> SocketAddr {
        spillway_ports::free_address()
    }

    fn open_port() -> (TcpListener, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        (listener, address)
    }

    #[test]
    fn check_without_sessions_probes_link_ports() {
        let (_listener, open) = open_port();
        let check =
            |server, helpers: &[_]| CarrierHealth::default().check([].into_iter(), false, server, helpers);
        assert_eq!(check(open, &[]), Ok(()));
        assert_eq!(
            check(closed_port(), &[closed_port(), open]),
            Ok(()),
            "one reachable helper should be enough"
        );
        let why = check(closed_port(), &[]).unwrap_err();
        assert!(why.contains("refused") && why.contains("no helper is known"), "{why}");
        let why = check(closed_port(), &[closed_port(), closed_port()]).unwrap_err();
        assert!(why.contains("none of 2 helpers"), "{why}");
        assert_eq!(
            CarrierHealth::default().check([].into_iter(), true, closed_port(), &[]),
            Ok(()),
            "no port should be probed while a client has a carrier"
        );
    }

    #[test]
    fn probe_result_is_reused() {
        let (listener, open) = open_port();
        let carriers = CarrierHealth::default();
        assert_eq!(carriers.check([].into_iter(), false, open, &[]), Ok(()));
        drop(listener);
        assert_eq!(carriers.check([].into_iter(), false, open, &[]), Ok(()));
    }

    #[test]
    fn check_fails_after_a_new_client_found_no_carrier_although_others_have_one() {
        let (_listener, open) = open_port();
        let (one, other, now) = (CarrierHistory::default(), CarrierHistory::default(), Instant::now());
        let check = || CarrierHealth::default().check([&one, &other].into_iter(), true, open, &[]);
        let later = |ms| now + Duration::from_millis(ms);
        one.note_carried(now, true);
        one.note_failed(later(1), open, &"closed");
        assert_eq!(check(), Ok(()), "a lost carrier should not fail the check");
        other.note_no_carrier(later(2), open);
        other.note_carried(later(3), false);
        let why = check().unwrap_err();
        assert!(why.contains("not carried in time") && why.contains(&open.to_string()), "{why}");
        one.note_carried(later(4), true);
        assert_eq!(check(), Ok(()));
        // A failure that is older than HISTORY_VALID.
        if let Some(before) = now.checked_sub(HISTORY_VALID) {
            let old = CarrierHistory::default();
            old.note_no_carrier(before, open);
            assert_eq!(CarrierHealth::default().check([&old].into_iter(), true, open, &[]), Ok(()));
        }
    }

    #[test]
    fn check_fails_while_the_last_event_is_a_recent_failure() {
        let (_listener, open) = open_port();
        let (one, other, now) = (CarrierHistory::default(), CarrierHistory::default(), Instant::now());
        let check = || CarrierHealth::default().check([&one, &other].into_iter(), false, open, &[]);
        one.note_failed(now, open, &"the key is not known");
        let why = check().unwrap_err();
        assert!(why.contains("the key is not known") && why.contains(&open.to_string()), "{why}");
        // Then a session of another thread gets a carrier.
        other.note_carried(now + Duration::from_millis(1), false);
        assert_eq!(check(), Ok(()));
        one.note_failed(now + Duration::from_millis(2), open, &"closed");
        assert!(check().unwrap_err().contains("closed"));
        // A failure that is older than HISTORY_VALID.
        if let Some(before) = now.checked_sub(HISTORY_VALID) {
            let old = CarrierHistory::default();
            old.note_failed(before, open, &"closed");
            assert_eq!(CarrierHealth::default().check([&old].into_iter(), false, open, &[]), Ok(()));
        }
    }
}
