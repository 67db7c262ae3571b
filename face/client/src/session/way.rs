//! One carrier of a session: a link of its own to a link port, with one connection on it.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use spillway_batch::{Id, Limits, OpenerLink};
use spillway_session::{ClientSession, OnOpenerLink};
use spillway_transport::Time;

use crate::outbox::Outbox;
use crate::settings::LinkTarget;
use crate::socket;

/// Bytes that wait on a link before the socket has taken them: what is beyond waits in the session.
const PENDING_BYTES_MAX: usize = 64 * 1024;

#[derive(Debug)]
pub(super) struct Way {
    pub(super) socket: OwnedFd,
    pub(super) target: SocketAddr,
    server: Option<SocketAddr>,
    pub(super) link: OpenerLink,
    id: Option<Id>,
    unsent: Outbox,
    is_connected: bool,
    /// The server has to answer until then.
    pub(super) deadline: Instant,
    /// What the poll descriptor was told to wait for.
    pub(super) waits_to_write: Option<bool>,
}

impl Way {
    /// Starts to connect, from this port number if it is free.
    pub(super) fn start(
        now: (Instant, Time),
        target: &LinkTarget,
        local_port: Option<u16>,
        within: Duration,
    ) -> io::Result<Way> {
        let config = target.opener(Limits::default());
        Ok(Way {
            socket: socket::start_from(target.address, local_port)?,
            target: target.address,
            server: target.server,
            link: OpenerLink::new(&config, now.1, spillway_keys::fresh()?),
            id: None,
            unsent: Outbox::default(),
            is_connected: false,
            deadline: now.0 + within,
            waits_to_write: None,
        })
    }

    /// Whether TCP is connected, asked until it is.
    pub(super) fn is_connected(&mut self) -> io::Result<bool> {
        if !self.is_connected {
            self.is_connected = socket::is_connected(&self.socket)?;
        }
        Ok(self.is_connected)
    }

    /// Says the session's first words. Whether the link can carry a session.
    pub(super) fn say_first_words(&mut self, now: Time, session: &mut ClientSession) -> io::Result<bool> {
        let address = socket::local_address(&self.socket)?;
        self.id = self.link.open_relayed(session.open(now, address, self.server)).ok();
        Ok(self.id.is_some())
    }

    /// Asks the server for a sign of life.
    pub(super) fn ask(&mut self, session: &mut ClientSession) {
        if let Some(id) = self.id {
            session.ask(&mut OnOpenerLink { link: &mut self.link, id, pending_bytes_max: PENDING_BYTES_MAX });
        }
    }

    /// Gives the socket what it takes of what the session has for it.
    pub(super) fn push(&mut self, now: Time, session: &mut ClientSession) -> io::Result<()> {
        if !self.is_connected {
            return Ok(());
        }
        let id = self.id;
        self.unsent.push(now, &mut self.link, &self.socket, |link| {
            if let Some(id) = id {
                session.transmit(now, &mut OnOpenerLink { link, id, pending_bytes_max: PENDING_BYTES_MAX });
            }
        })
    }

    /// Bytes of memory that hold what the socket has not taken, and what has come of an incomplete record.
    pub(super) fn held_bytes(&self) -> usize {
        let link = if self.link.pending() == 0 { self.link.held_incomplete() } else { self.link.held() };
        link + if self.unsent.is_empty() { 0 } else { self.unsent.capacity() }
    }

    pub(super) fn wants_to_write(&self) -> bool {
        !self.is_connected || !self.unsent.is_empty()
    }
}
