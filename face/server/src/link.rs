//! One link: its socket, its end, and what is between them.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use spillway_batch::{CloseReason, Id, ServerLink};
use spillway_transport::{Chunk, Time};

use crate::event::LinkEnd;
use crate::listener::Accepted;
use crate::watch::Interest;

/// A link, its socket, and what is between them.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) socket: OwnedFd,
    pub(crate) end: ServerLink,
    /// A batch of which the socket has not taken all.
    unsent: Chunk,
    /// It is on the list of those with something to send.
    pub(crate) touched: bool,
    pub(crate) authenticated: bool,
    pub(crate) watched: Option<Interest>,
    /// Its connections that the application has yet to be told of, once it is gone.
    pub(crate) orphans: Vec<Id>,
    pub(crate) lost: Option<LinkEnd>,
    /// The beginning of a frame, where runs are taken: at most the longest one.
    cut: Vec<u8>,
}

impl Link {
    pub(crate) fn new(accepted: Accepted, end: ServerLink) -> Link {
        Link {
            socket: accepted.socket,
            end,
            unsent: Chunk::default(),
            touched: false,
            authenticated: false,
            watched: None,
            orphans: Vec::new(),
            lost: None,
            cut: Vec::new(),
        }
    }

    pub(crate) fn peer(&self) -> SocketAddr {
        self.end.peer()
    }

    fn may_read(&self) -> bool {
        self.lost.is_none() && self.end.may_read()
    }

    pub(crate) fn interest(&self) -> Interest {
        Interest { readable: self.may_read(), writable: self.lost.is_none() && !self.unsent.is_empty() }
    }

    /// Bytes received; 0 when there are none now. `Err`: the link is gone.
    pub(crate) fn receive(&mut self, buffer: &mut [u8]) -> Result<usize, LinkEnd> {
        if !self.may_read() || buffer.is_empty() {
            return Ok(0);
        }
        let held = self.cut.len();
        if held >= buffer.len() {
            let what = "the buffer is shorter than a frame: see RUN_BUFFER_BYTES";
            return Err(LinkEnd::Socket(io::Error::new(io::ErrorKind::InvalidInput, what)));
        }
        loop {
            match recv(&self.socket, &mut buffer[held..], RecvFlags::empty()) {
                Ok((_, 0)) => return Err(LinkEnd::Closed),
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

    /// Has these bytes before what is received next.
    pub(crate) fn keep(&mut self, cut: &[u8]) {
        self.cut.extend_from_slice(cut);
    }

    /// Gives the socket what it takes.
    pub(crate) fn push(&mut self, now: Time) -> io::Result<()> {
        loop {
            if self.unsent.is_empty() {
                let Some(batch) = self.end.flush(now) else { return Ok(()) };
                self.unsent = batch;
            }
            match send(&self.socket, self.unsent.as_slice(), SendFlags::NOSIGNAL) {
                Ok(sent) => self.unsent.advance(sent),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
            if self.unsent.is_empty() {
                let spent = std::mem::take(&mut self.unsent);
                self.end.recycle(spent);
            }
        }
    }

    /// It is gone: nothing more comes or goes, and its connections are orphans.
    pub(crate) fn lose(&mut self, why: LinkEnd) {
        self.orphans = self.end.ids().filter(|id| self.end.is_open(*id)).collect();
        for id in &self.orphans {
            self.end.close(*id, CloseReason::Reset);
        }
        self.lost = Some(why);
    }
}
