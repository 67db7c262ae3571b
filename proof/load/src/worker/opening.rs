//! Opening of all connections before the run, and of lost ones during the run.

use std::cmp::Reverse;
use std::io;

use rustix::io::Errno;
use spillway_moving_client::{Network, Stream};

use super::Worker;
use super::connection::State;
use crate::engine::{Engine, Interest};
use crate::error::Error;
use crate::protocol::Protocol;

/// Limit of simultaneous attempts: below the shortest usual backlog (128). The server's kernel drops SYNs beyond the
/// backlog, and a dropped SYN is retransmitted only after a second.
const OPENING_MAX: usize = 64;
/// Timeout of an attempt: long enough for a third SYN, which Linux sends after 3 s at the latest.
pub(super) const ATTEMPT_NS: u64 = 5_000_000_000;
/// Pause before a lost connection is reopened, doubled after each failed attempt.
const REOPEN_PAUSE_NS: u64 = 50_000_000;
const REOPEN_PAUSE_DOUBLINGS_MAX: u32 = 6;

impl<P: Protocol, E: Engine> Worker<P, E> {
    /// Opens every connection. Fails if any attempt fails.
    pub(super) fn open_all(&mut self) -> Result<(), Error> {
        let total = self.connections.len();
        loop {
            let now_ns = self.clock.now_ns();
            self.open_due(now_ns);
            if let Some(why) = self.last_failure.take() {
                let open = self.connections.iter().filter(|connection| connection.is_open()).count();
                let what = format!("cannot connect: {why} ({open} of {total} connections were open)");
                return Err(Error::server(self.server, what));
            }
            if self.opening_connections == 0 && self.to_open.is_empty() {
                return Ok(());
            }
            self.wait(now_ns)?;
        }
    }

    /// Handles due timers, and starts attempts within `OPENING_MAX`.
    pub(super) fn open_due(&mut self, now_ns: u64) {
        while let Some(&Reverse((at_ns, index))) = self.timers.peek().filter(|Reverse((at, _))| *at <= now_ns)
        {
            self.timers.pop();
            match &self.connections[index as usize].state {
                State::Closed => self.to_open.push_back(index),
                State::Opening { deadline_ns, .. } if *deadline_ns == at_ns => {
                    let why = self.engine.explain_silence();
                    let why = why.map_or_else(String::new, |why| format!(": {why}"));
                    self.open_failed(index as usize, format!("no answer within 5 s{why}"));
                }
                State::MovingClient { .. } => self.handle_moving_client_timeout(index as usize),
                State::Session(_) => self.handle_session_timeout(index as usize, at_ns),
                _ => {}
            }
        }
        let has_ended = self.is_running && now_ns >= self.end_ns;
        while self.opening_connections < OPENING_MAX && !has_ended {
            let Some(index) = self.to_open.pop_front() else { break };
            self.start_opening(index as usize, now_ns);
        }
    }

    fn start_opening(&mut self, index: usize, now_ns: u64) {
        let deadline_ns = now_ns + ATTEMPT_NS;
        self.opening_connections += 1;
        if self.setup.config.sessions.is_some() {
            return self.open_session(index, deadline_ns);
        }
        if !self.targets.is_empty() {
            return self.open_moving_client(index);
        }
        let interest = Interest { token: super::token(index), is_new: true, readable: false, writable: true };
        let started = self.engine.network().connect(self.server).and_then(|stream| {
            self.engine.watch(&stream, interest)?;
            Ok(stream)
        });
        match started {
            Ok(stream) => {
                self.connections[index].state = State::Opening { stream, deadline_ns };
                self.timers.push(Reverse((deadline_ns, index as u32)));
            }
            Err(e) => self.open_failed(index, explain(&e)),
        }
    }

    /// Handles a stream that is ready while it is being connected: the attempt may have succeeded or failed.
    pub(super) fn handle_connected(&mut self, index: usize) {
        let State::Opening { stream, deadline_ns } = std::mem::take(&mut self.connections[index].state)
        else {
            return;
        };
        let interest =
            Interest { token: super::token(index), is_new: false, readable: true, writable: false };
        match stream.is_connected() {
            Ok(false) => self.connections[index].state = State::Opening { stream, deadline_ns },
            Ok(true) => match self.engine.watch(&stream, interest) {
                Ok(()) => {
                    self.connections[index].state = State::Plain(stream);
                    self.finish_opening(index);
                }
                Err(e) => self.open_failed(index, explain(&e)),
            },
            Err(e) => self.open_failed(index, explain(&e)),
        }
    }

    /// Counts a successful attempt. The connection can send requests now.
    pub(super) fn finish_opening(&mut self, index: usize) {
        self.opening_connections -= 1;
        self.connections[index].attempts = 0;
        if self.is_running {
            self.advance(index);
        }
    }

    pub(super) fn open_failed(&mut self, index: usize, why: String) {
        self.opening_connections -= 1;
        self.leave_group(index);
        let connection = &mut self.connections[index];
        connection.state = State::Closed;
        connection.attempts += 1;
        self.schedule_reopening(index);
        if self.is_running {
            self.report_trouble(|| format!("cannot reopen connection {index}: {why}"));
        } else {
            self.last_failure = Some(why);
        }
    }

    pub(super) fn schedule_reopening(&mut self, index: usize) {
        let doublings = self.connections[index].attempts.min(REOPEN_PAUSE_DOUBLINGS_MAX);
        // A random part spreads the attempts of connections that were lost at the same time.
        let spread_ns = u64::from(self.assignment_random.below(REOPEN_PAUSE_NS as u32));
        let at_ns = self.clock.now_ns() + (REOPEN_PAUSE_NS << doublings) + spread_ns;
        self.timers.push(Reverse((at_ns, index as u32)));
    }
}

fn explain(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => {
            return format!("{error}; the port is closed, or its backlog is full");
        }
        io::ErrorKind::AddrNotAvailable => {
            return format!("{error}; no free local port: use fewer connections or more client addresses");
        }
        _ => {}
    }
    match Errno::from_io_error(error) {
        Some(Errno::MFILE | Errno::NFILE) => format!("{error}; raise the limit on open files (ulimit -n)"),
        _ => error.to_string(),
    }
}
