//! Takes connections out of sockets.

use std::os::fd::OwnedFd;
use std::time::Instant;

use rustix::net::sockopt;
use spillway_wire::state::ConnectionState;

use crate::captured::{Captured, Taken};
use crate::copies::{Copies, CopyCounters, CopyLimits, Inbox};
use crate::diag::Diagnosis;
use crate::dump::dump;
use crate::eligible::{self, Eligible};
use crate::error::{CaptureError, Failed, system};
use crate::filter::{self, Filter};
use crate::muted::Muted;
use crate::options;
use crate::programs::{CopyingFilter, PeerStamp, PeerStamps};
use crate::remainder::Remainder;
use crate::repair::Repair;

/// Takes connections out of sockets of one network namespace.
#[derive(Debug)]
pub struct Capturer {
    diagnosis: Diagnosis,
    filter: Filter,
    stamps: Option<Box<dyn PeerStamps>>,
}

impl Capturer {
    /// For sockets of the calling thread's network namespace. Captured sockets drop segments, and states have no TS.Recent:
    /// [`copying`](Self::copying) and [`reading_stamps`](Self::reading_stamps) change that.
    ///
    /// # Errors
    /// The kernel has no diagnosis of sockets, or the process no file descriptors left.
    pub fn open() -> Result<Capturer, CaptureError> {
        Ok(Capturer { diagnosis: Diagnosis::open()?, filter: Filter::Dropping, stamps: None })
    }

    /// Copies what reaches captured sockets, within the limits, instead of dropping it. The connection's next owner gets it.
    #[must_use]
    pub fn copying(self, filter: Box<dyn CopyingFilter>, limits: CopyLimits) -> Capturer {
        Capturer { filter: Filter::Copying(Copies::new(filter, limits)), ..self }
    }

    /// Adds TS.Recent to the states of connections with timestamps.
    #[must_use]
    pub fn reading_stamps(self, stamps: Box<dyn PeerStamps>) -> Capturer {
        Capturer { stamps: Some(stamps), ..self }
    }

    /// Numbers of copied packets; all 0 if captured sockets drop them.
    pub fn copy_counters(&self) -> CopyCounters {
        match &self.filter {
            Filter::Dropping => CopyCounters::default(),
            Filter::Copying(copies) => copies.counters(),
        }
    }

    /// Takes the copies out of the filter's ring, which makes room there. All other calls that need copies do that, too.
    ///
    /// # Errors
    /// The kernel refuses to read the ring.
    pub fn drain(&self) -> Result<(), CaptureError> {
        match &self.filter {
            Filter::Dropping => Ok(()),
            Filter::Copying(copies) => copies.drain(),
        }
    }

    /// Captures the connection of a socket: its state, with the bytes that the application has not read and those that the
    /// peer has not acknowledged. Sends at most an acknowledgement that the kernel has delayed. From now on the socket accepts
    /// no segments, and does not answer them.
    ///
    /// No other thread or process may use the socket meanwhile. The application may have read part of a request, which it
    /// carries to the new owner itself, for example as the state's attachment.
    ///
    /// # Errors
    /// With the socket, whose connection is unchanged: the connection does not move, its queues change constantly, or the
    /// process or the kernel lacks something.
    pub fn export(&mut self, socket: impl Into<OwnedFd>) -> Result<Captured, Failed<OwnedFd>> {
        let fd = socket.into();
        match self.capture(&fd) {
            Ok(taken) => Ok(Captured::new(fd, taken)),
            Err(error) => Err(Failed { kept: fd, error }),
        }
    }

    fn capture(&mut self, fd: &OwnedFd) -> Result<Taken, CaptureError> {
        let eligible = eligible::check(&mut self.diagnosis, fd)?;
        let options = options::read(fd, &eligible)?;
        let repair = Repair::enter(fd)?;
        match self.filtered(repair, fd, &eligible) {
            Ok(read) => {
                let remainder = Remainder::new(&read.state, read.muted, read.inbox);
                let state = ConnectionState { socket_options: Some(options), ..read.state };
                let (cookie, muted) = (eligible.cookie, read.muted);
                Ok(Taken { cookie, state, muted, filtered_at: read.filtered_at, remainder })
            }
            Err(error) => {
                // The error of the capture is reported; a process that could enter repair mode can also leave it.
                let _ = repair.leave(options.reuses_address.unwrap_or(true));
                Err(error)
            }
        }
    }

    fn filtered(&self, repair: Repair<'_>, fd: &OwnedFd, eligible: &Eligible) -> Result<Read, CaptureError> {
        eligible::check_sockmap(fd)?;
        eligible::check_urgent_mark(fd, &eligible.diagnosed)?;
        acknowledge(fd);
        let inbox = self.filter.attach(fd, eligible.cookie)?;
        let filtered_at = Instant::now();
        match self.read(repair, fd, eligible) {
            Ok((state, muted)) => Ok(Read { state, muted, inbox, filtered_at }),
            Err(error) => {
                // As above: only a missing filter could be the reason.
                let _ = filter::detach(fd);
                Err(error)
            }
        }
    }

    fn read(
        &self,
        repair: Repair<'_>,
        fd: &OwnedFd,
        eligible: &Eligible,
    ) -> Result<(ConnectionState, Muted), CaptureError> {
        let stamp = if eligible.diagnosed.info.has_timestamps { self.stamp(eligible)? } else { None };
        let (reading, muted) = dump(repair, fd, eligible.diagnosed.info)?;
        Ok((reading.into_state(eligible, stamp), muted))
    }

    fn stamp(&self, eligible: &Eligible) -> Result<Option<PeerStamp>, CaptureError> {
        let Some(stamps) = &self.stamps else { return Ok(None) };
        stamps
            .read(eligible.local, eligible.peer, eligible.cookie)
            .map_err(system("read the peer's latest timestamp"))
    }
}

/// What was read of a filtered socket.
struct Read {
    state: ConnectionState,
    muted: Muted,
    inbox: Option<Inbox>,
    filtered_at: Instant,
}

/// Captures one connection, as [`Capturer::export`] does. Segments that reach the socket are dropped: hold them elsewhere for the
/// connection's next owner.
///
/// # Errors
/// As [`Capturer::export`].
pub fn export(socket: impl Into<OwnedFd>) -> Result<Captured, Failed<OwnedFd>> {
    let fd = socket.into();
    match Capturer::open() {
        Ok(mut capturer) => capturer.export(fd),
        Err(error) => Err(Failed { kept: fd, error }),
    }
}

/// Makes the kernel send an acknowledgement that it delays. Otherwise the captured socket's timer would send it during the
/// move, with a later timestamp than those of the connection's next owner. The kernel still delays it if there are unread
/// bytes: the state says so.
fn acknowledge(fd: &OwnedFd) {
    // Cannot fail: the option takes any number.
    let _ = sockopt::set_tcp_quickack(fd, true);
}
