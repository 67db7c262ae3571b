//! Opening connections: all of them before the run, lost ones again during it.

use std::cmp::Reverse;

use rustix::event::epoll::{self, EventFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use super::Worker;
use super::connection::Link;
use crate::error::Error;
use crate::protocol::Protocol;

/// Connections being opened at a time: fewer than the shortest usual backlog (128), or the kernel would drop
/// handshakes and repeat them a second later.
const OPENING_MAX: usize = 64;
/// An attempt may take so long: two lost handshakes, and a third.
pub(super) const ATTEMPT_NS: u64 = 5_000_000_000;
/// Pause after a loss, doubled per failed attempt.
const PAUSE_NS: u64 = 50_000_000;
const PAUSE_DOUBLINGS_MAX: u32 = 6;

impl<P: Protocol> Worker<P> {
    /// Opens every connection; the first failure ends the attempt.
    pub(super) fn open_all(&mut self) -> Result<(), Error> {
        let total = self.connections.len();
        loop {
            let now_ns = self.clock.now_ns();
            self.open_due(now_ns);
            if let Some(why) = self.last_failure.take() {
                let open = self.connections.iter().filter(|c| c.is_open()).count();
                let what = format!("cannot connect: {why} ({open} of {total} connections were open)");
                return Err(Error::server(self.server, what));
            }
            if self.opening == 0 && self.to_open.is_empty() {
                return Ok(());
            }
            self.wait(now_ns)?;
        }
    }

    /// Starts what is to be opened, as far as the limit allows, and acts on due pauses and limits.
    pub(super) fn open_due(&mut self, now_ns: u64) {
        while let Some(&Reverse((at_ns, index))) = self.timers.peek().filter(|Reverse((at, _))| *at <= now_ns)
        {
            self.timers.pop();
            match &self.connections[index as usize].link {
                Link::Closed => self.to_open.push_back(index),
                Link::Opening { limit_ns, .. } if *limit_ns == at_ns => {
                    self.open_failed(index as usize, "no answer within 5 s".into());
                }
                Link::Library { .. } => self.library_timeout(index as usize),
                Link::Session(_) => self.session_timeout(index as usize, at_ns),
                _ => {}
            }
        }
        let over = self.running && now_ns >= self.end_ns;
        while self.opening < OPENING_MAX && !over {
            let Some(index) = self.to_open.pop_front() else { break };
            self.open(index as usize, now_ns);
        }
    }

    fn open(&mut self, index: usize, now_ns: u64) {
        let limit_ns = now_ns + ATTEMPT_NS;
        let family = if self.server.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        self.opening += 1;
        if self.setting.config.sessions.is_some() {
            return self.session_open(index, limit_ns);
        }
        if !self.targets.is_empty() {
            return self.library_open(index);
        }
        let started = rustix::net::socket_with(family, SocketType::STREAM, flags, None).and_then(|socket| {
            sockopt::set_tcp_nodelay(&socket, true)?;
            match rustix::net::connect(&socket, &self.server) {
                Ok(()) | Err(Errno::INPROGRESS) => {}
                Err(e) => return Err(e),
            }
            epoll::add(&self.epoll, &socket, super::token(index), EventFlags::OUT)?;
            Ok(socket)
        });
        match started {
            Ok(socket) => {
                self.connections[index].link = Link::Opening { socket, limit_ns };
                self.timers.push(Reverse((limit_ns, index as u32)));
            }
            Err(e) => self.open_failed(index, explain(e)),
        }
    }

    /// The kernel has finished connecting, one way or the other.
    pub(super) fn opened(&mut self, index: usize) {
        let Link::Opening { socket, .. } = std::mem::take(&mut self.connections[index].link) else { return };
        let outcome = sockopt::socket_error(&socket)
            .and_then(|outcome| outcome)
            .and_then(|()| epoll::modify(&self.epoll, &socket, super::token(index), EventFlags::IN));
        match outcome {
            Ok(()) => {
                self.connections[index].link = Link::Plain(socket);
                self.is_open_now(index);
            }
            Err(e) => self.open_failed(index, explain(e)),
        }
    }

    /// A connection that was being opened can be used.
    pub(super) fn is_open_now(&mut self, index: usize) {
        self.opening -= 1;
        self.connections[index].attempts = 0;
        if self.running {
            self.go_on(index);
        }
    }

    pub(super) fn open_failed(&mut self, index: usize, why: String) {
        self.opening -= 1;
        self.relief_leave(index);
        let connection = &mut self.connections[index];
        connection.link = Link::Closed;
        connection.attempts += 1;
        self.pause(index);
        if self.running {
            self.trouble(|| format!("connection {index} cannot be opened again: {why}"));
        } else {
            self.last_failure = Some(why);
        }
    }

    /// Has a closed connection opened again after a while.
    pub(super) fn pause(&mut self, index: usize) {
        let doublings = self.connections[index].attempts.min(PAUSE_DOUBLINGS_MAX);
        // Spread, so that not all come at once.
        let spread_ns = u64::from(self.assign.below(PAUSE_NS as u32));
        let at_ns = self.clock.now_ns() + (PAUSE_NS << doublings) + spread_ns;
        self.timers.push(Reverse((at_ns, index as u32)));
    }
}

fn explain(e: Errno) -> String {
    match e {
        Errno::CONNREFUSED => format!("{e}; nothing listens there, or its backlog is full"),
        Errno::MFILE | Errno::NFILE => format!("{e}; raise the limit on open files (ulimit -n)"),
        Errno::ADDRNOTAVAIL => {
            format!("{e}; no free local port: use fewer connections or more client addresses")
        }
        _ => e.to_string(),
    }
}
