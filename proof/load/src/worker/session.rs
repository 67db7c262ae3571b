//! Connections that are sessions of the client library, which survive the loss of their carriers.

use std::cmp::Reverse;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use spillway_client::Session;
use spillway_client::session::{CarrierLoss, SessionEvent, SessionSettings};

use super::Worker;
use super::connection::State;
use super::session_state::SessionState;
use crate::engine::Engine;
use crate::protocol::Protocol;
use crate::report::Target;

/// Timers are rounded up to multiples of this, to save wake-ups.
const TIMER_GRAIN_NS: u64 = 1_000_000;
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
const CLOSE_POLL_INTERVAL: Duration = Duration::from_millis(5);

impl<P: Protocol, E: Engine> Worker<P, E> {
    /// Starts the opening of a session, by its group if there is one.
    pub(super) fn open_session(&mut self, index: usize, deadline_ns: u64) {
        if !self.groups.is_empty() {
            return self.join_group(index);
        }
        // The thread's number spreads sessions over helpers even if each thread has a single session.
        let routes = self.setup.config.routes(index + self.setup.index as usize);
        let server_port = self.setup.config.sessions.and_then(|sessions| sessions.server_link);
        let settings = SessionSettings { server_port, ..SessionSettings::default() };
        self.start_session(index, deadline_ns, |now| Session::open(now, routes, settings));
    }

    pub(super) fn start_session(
        &mut self,
        index: usize,
        deadline_ns: u64,
        open: impl FnOnce(Instant) -> io::Result<Session>,
    ) {
        let opened = open(Instant::now()).and_then(|session| {
            self.engine.watch_descriptor(session.as_fd(), super::token(index))?;
            Ok(session)
        });
        match opened {
            Ok(session) => {
                self.connections[index].state =
                    State::Session(Box::new(SessionState::new(session, deadline_ns)));
                self.receive_session(index);
            }
            Err(e) => self.open_failed(index, e.to_string()),
        }
    }

    pub(super) fn handle_session_ready(&mut self, index: usize) {
        if let State::Session(state) = &mut self.connections[index].state {
            state.session.handle_ready(Instant::now());
            self.receive_session(index);
        }
    }

    /// Receives available bytes and handles events. Events are handled first while the session is not open yet.
    fn receive_session(&mut self, index: usize) {
        if matches!(&self.connections[index].state, State::Session(state) if !state.is_open) {
            self.poll_session(index);
        }
        while let State::Session(state) = &self.connections[index].state
            && state.is_open
            && state.session.has_arrived()
            && self.receive(index)
        {}
        self.poll_session(index);
    }

    pub(super) fn poll_session(&mut self, index: usize) {
        while let State::Session(state) = &mut self.connections[index].state {
            match state.session.poll_event() {
                Some(event) => self.handle_session_event(index, event),
                None if !state.is_open && state.session.is_over() => {
                    let why = state.trouble.take().unwrap_or_else(|| "the server refused the session".into());
                    self.open_failed(index, why);
                }
                None => break,
            }
        }
        self.set_session_timer(index);
    }

    fn handle_session_event(&mut self, index: usize, event: SessionEvent) {
        self.report_session_event(index, &event);
        let connection = &mut self.connections[index];
        let State::Session(state) = &mut connection.state else { return };
        match event {
            SessionEvent::Moved(address) => {
                let was_open = std::mem::replace(&mut state.is_open, true);
                let was_moving = std::mem::take(&mut state.is_moving);
                let carrier = self.carrier_at(address);
                self.set_carrier(index, carrier);
                let connection = &mut self.connections[index];
                if was_moving && connection.target != carrier {
                    self.move_failed(index);
                }
                self.connections[index].target = carrier;
                if was_open {
                    self.samples.carrier_changes.add(self.clock.now_ns() / self.bin_ns);
                    self.advance(index);
                } else {
                    self.finish_opening(index);
                }
            }
            SessionEvent::CarrierLost { address, why } => {
                let what = format!("{address}: {why}");
                if state.is_open && !matches!(why, CarrierLoss::LeftOnRequest | CarrierLoss::AskedToMove) {
                    self.report_trouble(|| format!("session {index} is not carried any more by {what}"));
                } else {
                    state.trouble = Some(what);
                }
            }
            SessionEvent::Accepted => {}
            SessionEvent::Room => self.send_rest(index),
        }
    }

    /// The kind of the carrier at a link port's address.
    fn carrier_at(&self, address: SocketAddr) -> Target {
        let server_link = self.setup.config.sessions.and_then(|sessions| sessions.server_link);
        if server_link == Some(address) { Target::Direct } else { Target::Helper }
    }

    /// Moves a session to its target carrier. Pending requests move with the session.
    pub(super) fn move_session_to_target(&mut self, index: usize) {
        let connection = &self.connections[index];
        let target = connection.target;
        let is_moving = matches!(&connection.state, State::Session(state) if state.is_moving);
        if target == connection.carrier || is_moving {
            return;
        }
        let routes = self.setup.config.routes(index + self.setup.index as usize);
        let route = routes.iter().position(|route| self.carrier_at(route.address) == target);
        let State::Session(state) = &mut self.connections[index].state else { return };
        match route.map(|route| state.session.move_to(Instant::now(), route)) {
            Some(Ok(())) => {
                state.is_moving = true;
                self.poll_session(index);
            }
            _ => {
                self.connections[index].target = self.connections[index].carrier;
                self.report_trouble(|| format!("session {index} has no route to {target:?}"));
                self.move_failed(index);
            }
        }
    }

    /// Handles a session's timeout, or the deadline of its opening.
    pub(super) fn handle_session_timeout(&mut self, index: usize, at_ns: u64) {
        let now_ns = self.clock.now_ns();
        let State::Session(state) = &mut self.connections[index].state else { return };
        if state.timer_ns != at_ns {
            return;
        }
        state.timer_ns = u64::MAX;
        if !state.is_open && now_ns >= state.deadline_ns {
            let why = state.trouble.take().unwrap_or_else(|| "no carrier was established".into());
            return self.open_failed(index, format!("no answer within 5 s: {why}"));
        }
        state.session.handle_timeout(Instant::now());
        self.receive_session(index);
    }

    /// Schedules `handle_session_timeout` at or a little after the session's next deadline.
    pub(super) fn set_session_timer(&mut self, index: usize) {
        let State::Session(state) = &mut self.connections[index].state else { return };
        let timeout_ns = state.session.poll_timeout().map_or(u64::MAX, |at| {
            let in_ns = at.saturating_duration_since(Instant::now()).as_nanos();
            self.clock.now_ns().saturating_add(u64::try_from(in_ns).unwrap_or(u64::MAX))
        });
        let at_ns = if state.is_open { timeout_ns } else { timeout_ns.min(state.deadline_ns) };
        let at_ns = at_ns.checked_next_multiple_of(TIMER_GRAIN_NS).unwrap_or(u64::MAX);
        // A timer that is too early is kept, and set again when it is due: each reply postpones the deadline.
        if at_ns < state.timer_ns {
            state.timer_ns = at_ns;
            self.timers.push(Reverse((at_ns, index as u32)));
        }
    }

    pub(super) fn renew_session_timer(&mut self, index: usize) {
        if let State::Session(state) = &mut self.connections[index].state {
            state.timer_ns = u64::MAX;
            self.set_session_timer(index);
        }
    }

    /// Closes all sessions; servers would otherwise keep them until a timeout.
    pub(super) fn close_sessions(&mut self) {
        let states = self.connections.iter_mut().map(|connection| std::mem::take(&mut connection.state));
        let mut open: Vec<Session> = states
            .filter_map(|state| match state {
                State::Session(state) if state.is_open => Some(state.session),
                _ => None,
            })
            .collect();
        let started = Instant::now();
        open.iter_mut().for_each(|session| session.close(started));
        while !open.is_empty() && started.elapsed() < CLOSE_TIMEOUT {
            // The result does not matter: all sessions are polled below.
            let _ = self.engine.wait(CLOSE_POLL_INTERVAL, &mut self.ready);
            let now = Instant::now();
            open.retain_mut(|session| {
                session.handle_ready(now);
                session.handle_timeout(now);
                !session.is_over()
            });
        }
    }
}
