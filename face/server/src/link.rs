//! One link: its socket, its [`ServerLink`], and buffers between the two.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use spillway_batch::{CloseReason, Id, Scratch, ServerLink};
use spillway_transport::{Time, Unsent};

use crate::event::LinkEnd;
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
    /// Connections of a lost link whose end the application has yet to be told.
    pub(crate) orphans: Vec<Id>,
    pub(crate) lost: Option<LinkEnd>,
    /// The beginning of an incomplete frame, for `decompose_run`: at most the longest frame.
    cut: Vec<u8>,
    /// Plaintext of an encrypted link that did not fit the application's buffer: less than that buffer and a record.
    opened: Vec<u8>,
    opened_start: usize,
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
            cut: Vec::new(),
            opened: Vec::new(),
            opened_start: 0,
        }
    }

    pub(crate) fn peer(&self) -> SocketAddr {
        self.end.peer()
    }

    fn may_read(&self) -> bool {
        self.lost.is_none() && self.end.may_read()
    }

    pub(crate) fn interest(&self) -> Interest {
        // Plaintext in `opened` makes no socket readable. Watching for writability makes epoll report the link at once.
        let may_read = self.may_read();
        let wants_turn = !self.unsent.is_empty() || (self.has_opened() && may_read);
        Interest { readable: may_read, writable: self.lost.is_none() && wants_turn }
    }

    /// Receives into the buffer: the number of bytes, 0 if none are available. `Err`: the link is lost.
    pub(crate) fn receive(
        &mut self,
        now: Time,
        buffer: &mut [u8],
        scratch: &mut Scratch,
    ) -> Result<usize, LinkEnd> {
        if !self.may_read() || buffer.is_empty() {
            return Ok(0);
        }
        let held = self.cut.len();
        if held >= buffer.len() {
            let what = "the buffer is shorter than a frame: see RUN_BUFFER_BYTES";
            return Err(LinkEnd::Socket(io::Error::new(io::ErrorKind::InvalidInput, what)));
        }
        if self.has_opened() {
            return Ok(self.hand_out(buffer));
        }
        let is_encrypted = self.end.is_encrypted();
        let room = match self.end.handshake_bytes_needed() {
            0 => buffer.len() - held,
            // Bytes after the handshake may be encrypted: receive them when that is known.
            wanted => wanted.min(buffer.len() - held),
        };
        loop {
            match recv(&self.socket, &mut buffer[held..held + room], RecvFlags::empty()) {
                Ok((_, 0)) => return Err(LinkEnd::Closed),
                Ok((_, received)) if is_encrypted => return self.open(now, buffer, received, scratch),
                Ok((_, received)) => {
                    buffer[..held].copy_from_slice(&self.cut);
                    self.cut.clear();
                    return Ok(held + received);
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(0),
                Err(error) => return Err(LinkEnd::Socket(error.into())),
            }
        }
    }

    /// Decrypts received bytes, which are in the buffer after a place for `cut`.
    fn open(
        &mut self,
        now: Time,
        buffer: &mut [u8],
        received: usize,
        scratch: &mut Scratch,
    ) -> Result<usize, LinkEnd> {
        let held = self.cut.len();
        self.end.unseal(now, &buffer[held..held + received], scratch);
        let opened = scratch.opened();
        if opened.is_empty() {
            // The record is incomplete, or `decompose` returns the error.
            return self.end.decompose(now, &mut &[][..]).map(|_| 0).map_err(LinkEnd::Broken);
        }
        let (now, later) = opened.split_at(opened.len().min(buffer.len() - held));
        buffer[..held].copy_from_slice(&self.cut);
        buffer[held..held + now.len()].copy_from_slice(now);
        self.cut.clear();
        self.opened.extend_from_slice(later);
        Ok(held + now.len())
    }

    /// Whether plaintext waits for the application's next buffer.
    pub(crate) fn has_opened(&self) -> bool {
        self.opened_start < self.opened.len()
    }

    fn hand_out(&mut self, buffer: &mut [u8]) -> usize {
        let held = self.cut.len();
        buffer[..held].copy_from_slice(&self.cut);
        self.cut.clear();
        let rest = &self.opened[self.opened_start..];
        let taken = rest.len().min(buffer.len() - held);
        buffer[held..held + taken].copy_from_slice(&rest[..taken]);
        self.opened_start += taken;
        if !self.has_opened() {
            (self.opened, self.opened_start) = (Vec::new(), 0);
        }
        held + taken
    }

    /// Puts these bytes before those that are received next.
    pub(crate) fn keep(&mut self, cut: &[u8]) {
        self.cut.extend_from_slice(cut);
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
    pub(crate) fn lose(&mut self, why: LinkEnd) {
        self.orphans = self.end.ids().filter(|id| self.end.is_open(*id)).collect();
        for id in &self.orphans {
            self.end.close(*id, CloseReason::Reset);
        }
        self.lost = Some(why);
    }
}
