//! One link: its socket, its [`ServerLink`], and buffers between the two.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use spillway_batch::{CloseReason, Id, Scratch, ServerLink};
use spillway_transport::{Time, Unsent};

use crate::event::LinkLoss;
use crate::listener::Accepted;
use crate::watch::Interest;

#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) socket: OwnedFd,
    pub(crate) end: ServerLink,
    /// A batch that the socket has not taken completely.
    unsent: Unsent,
    /// The link is in `Links::touched`.
    pub(crate) touched: bool,
    /// The link is in `Links::read_timeouts`.
    pub(crate) has_read_timeout: bool,
    pub(crate) authenticated: bool,
    pub(crate) watched: Option<Interest>,
    /// Connections of a lost link whose end was not reported to the application yet.
    pub(crate) orphans: Vec<Id>,
    pub(crate) lost: Option<LinkLoss>,
    /// The beginning of an incomplete frame, for `decompose_run`: at most the longest frame.
    partial_frame: Vec<u8>,
    /// Plaintext of an encrypted link that did not fit the application's buffer. Shorter than that buffer and one
    /// record together.
    plaintext: Vec<u8>,
    plaintext_start: usize,
}

impl Link {
    pub(crate) fn new(accepted: Accepted, end: ServerLink) -> Link {
        Link {
            socket: accepted.socket,
            end,
            unsent: Unsent::default(),
            touched: false,
            has_read_timeout: false,
            authenticated: false,
            watched: None,
            orphans: Vec::new(),
            lost: None,
            partial_frame: Vec::new(),
            plaintext: Vec::new(),
            plaintext_start: 0,
        }
    }

    pub(crate) fn peer(&self) -> SocketAddr {
        self.end.peer()
    }

    fn may_read(&self) -> bool {
        self.lost.is_none() && self.end.may_read()
    }

    pub(crate) fn interest(&self) -> Interest {
        // Plaintext that waits here does not make the socket readable. It is nearly always writable, so that
        // epoll reports the link at once if it is watched for that.
        let may_read = self.may_read();
        let has_work = !self.unsent.is_empty() || (self.has_plaintext() && may_read);
        Interest { readable: may_read, writable: self.lost.is_none() && has_work }
    }

    /// Receives into the buffer. Returns the number of bytes, 0 if none are available. After an error the link is lost.
    pub(crate) fn receive(
        &mut self,
        now: Time,
        buffer: &mut [u8],
        scratch: &mut Scratch,
    ) -> Result<usize, LinkLoss> {
        if !self.may_read() || buffer.is_empty() {
            return Ok(0);
        }
        let held = self.partial_frame.len();
        if held >= buffer.len() {
            let problem = "the buffer is shorter than a frame: see RUN_BUFFER_BYTES";
            return Err(LinkLoss::Socket(io::Error::new(io::ErrorKind::InvalidInput, problem)));
        }
        if self.has_plaintext() {
            return Ok(self.deliver_plaintext(buffer));
        }
        let is_encrypted = self.end.is_encrypted();
        let room = match self.end.handshake_bytes_needed() {
            0 => buffer.len() - held,
            // Bytes after the handshake may be encrypted: receive them when that is known.
            needed => needed.min(buffer.len() - held),
        };
        loop {
            match recv(&self.socket, &mut buffer[held..held + room], RecvFlags::empty()) {
                Ok((_, 0)) => return Err(LinkLoss::Closed),
                Ok((_, received)) if is_encrypted => return self.decrypt(now, buffer, received, scratch),
                Ok((_, received)) => {
                    buffer[..held].copy_from_slice(&self.partial_frame);
                    self.partial_frame.clear();
                    return Ok(held + received);
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(0),
                Err(error) => return Err(LinkLoss::Socket(error.into())),
            }
        }
    }

    /// Decrypts received bytes, which are in the buffer behind a gap of the length of `partial_frame`. Returns the
    /// number of bytes in the buffer: `partial_frame`, and plaintext.
    fn decrypt(
        &mut self,
        now: Time,
        buffer: &mut [u8],
        received: usize,
        scratch: &mut Scratch,
    ) -> Result<usize, LinkLoss> {
        let held = self.partial_frame.len();
        self.end.unseal(now, &buffer[held..held + received], scratch);
        let plaintext = scratch.opened();
        if plaintext.is_empty() {
            // The record is incomplete, or `decompose` returns the error.
            return self.end.decompose(now, &mut &[][..]).map(|_| 0).map_err(LinkLoss::ProtocolError);
        }
        let (fitting, later) = plaintext.split_at(plaintext.len().min(buffer.len() - held));
        buffer[..held].copy_from_slice(&self.partial_frame);
        buffer[held..held + fitting.len()].copy_from_slice(fitting);
        self.partial_frame.clear();
        self.plaintext.extend_from_slice(later);
        Ok(held + fitting.len())
    }

    /// Whether plaintext waits for the application's next buffer.
    pub(crate) fn has_plaintext(&self) -> bool {
        self.plaintext_start < self.plaintext.len()
    }

    fn deliver_plaintext(&mut self, buffer: &mut [u8]) -> usize {
        let held = self.partial_frame.len();
        buffer[..held].copy_from_slice(&self.partial_frame);
        self.partial_frame.clear();
        let rest = &self.plaintext[self.plaintext_start..];
        let taken = rest.len().min(buffer.len() - held);
        buffer[held..held + taken].copy_from_slice(&rest[..taken]);
        self.plaintext_start += taken;
        if !self.has_plaintext() {
            (self.plaintext, self.plaintext_start) = (Vec::new(), 0);
        }
        held + taken
    }

    /// Stores the beginning of a frame: the next received bytes are put after it.
    pub(crate) fn keep_partial_frame(&mut self, partial_frame: &[u8]) {
        self.partial_frame.extend_from_slice(partial_frame);
    }

    /// Sends batches until the socket's buffer is full or nothing is left.
    pub(crate) fn push(&mut self, now: Time) -> io::Result<()> {
        let next = |spent| {
            self.end.recycle(spent);
            self.end.flush(now)
        };
        self.unsent.send_all(next, |bytes| match send(&self.socket, bytes, SendFlags::NOSIGNAL) {
            Ok(sent) => Ok(Some(sent)),
            Err(Errno::INTR) => Ok(Some(0)),
            Err(Errno::AGAIN) => Ok(None),
            Err(error) => Err(error.into()),
        })
    }

    /// Marks the link as lost: nothing more is received or sent, and its open connections are orphans.
    pub(crate) fn lose(&mut self, why: LinkLoss) {
        self.orphans = self.end.ids().filter(|id| self.end.is_open(*id)).collect();
        for id in &self.orphans {
            self.end.close(*id, CloseReason::Reset);
        }
        self.lost = Some(why);
    }
}
