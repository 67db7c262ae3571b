//! Connections on moving clients: opened to the server, moved to a helper and back.

use std::cmp::Reverse;
use std::time::{Duration, Instant};

use rustix::event::epoll::EventFlags;
use spillway_moving_client::{Carrier, Connection, Event, MoveError, Route, Settings, Slot};

use super::Worker;
use super::connection::State;
use super::opening::ATTEMPT_NS;
use crate::protocol::Protocol;
use crate::report::Target;
use crate::samples::Outcome;

/// Time for a hot server's application to accept a moved connection.
const ACCEPTED_TIMEOUT: Duration = Duration::from_secs(10);

impl<P: Protocol> Worker<P> {
    pub(super) fn library_open(&mut self, index: usize) {
        let settings = Settings {
            connect_timeout: Duration::from_nanos(ATTEMPT_NS),
            accepted_timeout: ACCEPTED_TIMEOUT,
            keep_direct: true, // makes the move back instant
            ..Settings::default()
        };
        match Connection::connect(Instant::now(), self.server, settings) {
            Ok(connection) => {
                let connection = Box::new(connection);
                self.connections[index].state =
                    State::Library { connection, open: false, prepared: false, falling_back: false };
                self.set_library_timer(index);
                self.touch(index);
            }
            Err(why) => self.open_failed(index, why.to_string()),
        }
    }

    /// Schedules a poll of a moving client's events, or the timer of a session.
    pub(super) fn touch(&mut self, index: usize) {
        match self.connections[index].state {
            State::Library { .. } => self.touched.push(index as u32),
            State::Session(_) => self.set_session_timer(index),
            _ => {}
        }
    }

    /// Handles the events of moving clients used in this turn, and updates their epoll registrations.
    pub(super) fn poll_touched(&mut self) {
        while let Some(index) = self.touched.pop() {
            let index = index as usize;
            while let State::Library { connection, .. } = &mut self.connections[index].state {
                let Some(event) = connection.poll_event() else { break };
                self.library_event(index, event);
            }
            if let State::Library { connection, open, .. } = &mut self.connections[index].state
                && let Err(e) = connection.watch_in(&self.epoll, index as u64)
            {
                let why = format!("while changing what to wait for: {e}");
                if *open { self.handle_loss(index, &why) } else { self.open_failed(index, why) }
            }
        }
    }

    pub(super) fn library_ready(&mut self, index: usize, slot: Slot, flags: EventFlags) {
        let State::Library { connection, .. } = &mut self.connections[index].state else { return };
        let receive = connection.handle_ready(Instant::now(), slot, flags.into());
        self.touch(index);
        if receive {
            self.receive(index);
        }
    }

    fn library_event(&mut self, index: usize, event: Event) {
        let State::Library { open, prepared, falling_back, .. } = &mut self.connections[index].state else {
            return;
        };
        match event {
            Event::Moved(_) if !*open => {
                *open = true;
                self.is_open_now(index);
            }
            Event::Moved(carrier) => {
                (*prepared, *falling_back) = (false, false);
                let new_carrier = match carrier {
                    Carrier::Direct(_) => Target::Direct,
                    Carrier::Link(_) => Target::Helper,
                };
                self.set_carrier(index, new_carrier);
                self.advance(index);
            }
            Event::MoveFailed { why, .. } if !*open => self.open_failed(index, why.to_string()),
            Event::MoveFailed { to, why } => {
                *prepared = false;
                let close = *falling_back;
                self.cannot_move(index, to, &why);
                if close {
                    self.close(index);
                }
            }
            Event::Prepared(_) => {
                *prepared = true;
                self.advance(index);
            }
            Event::Room => self.send_rest(index),
            Event::Readable => {
                self.receive(index);
            }
            Event::IdleDirectLost(why) => {
                // The other side closed a connection without a pending request.
                let now_ns = self.clock.now_ns();
                self.sample(now_ns, Target::Direct, Outcome::Reset, 0);
                self.trouble(|| format!("connection {index}: the idle direct connection is lost: {why}"));
            }
            Event::Drain { .. } => {
                self.trouble(|| format!("connection {index}: the helper drains; moving to the server"));
                if std::mem::replace(&mut self.connections[index].target, Target::Direct) == Target::Helper {
                    self.move_failed(index);
                }
                self.change_carrier(index);
            }
        }
    }

    /// Prepares the target carrier, or switches to it if it is prepared and no reply is pending. Call it when the
    /// target changes and when the connection becomes idle.
    pub(super) fn change_carrier(&mut self, index: usize) {
        let connection = &mut self.connections[index];
        let (target, carrier, busy) = (connection.target, connection.carrier, connection.pending.is_some());
        if matches!(connection.state, State::Session(_)) {
            return self.session_change(index);
        }
        let State::Library { connection: library, open: true, prepared, falling_back: false } =
            &mut connection.state
        else {
            return;
        };
        let outcome = if target == carrier {
            // A later command cancelled the move.
            library.cancel_move();
            *prepared = false;
            Ok(())
        } else if *prepared {
            if busy { Ok(()) } else { library.complete_move() }
        } else if library.is_moving() {
            Ok(())
        } else {
            let route = match target {
                Target::Direct => Route::Direct,
                Target::Helper => Route::Link(&self.targets[index % self.targets.len()]),
            };
            let started = library.prepare_move(Instant::now(), route);
            self.set_library_timer(index);
            started
        };
        self.touch(index);
        if let Err(why) = outcome {
            let to = match target {
                Target::Direct => Carrier::Direct(self.server),
                Target::Helper => Carrier::Link(self.targets[index % self.targets.len()].address),
            };
            self.cannot_move(index, to, &why);
        }
    }

    pub(super) fn set_carrier(&mut self, index: usize, new_carrier: Target) {
        let old_carrier = std::mem::replace(&mut self.connections[index].carrier, new_carrier);
        match (old_carrier, new_carrier) {
            (Target::Direct, Target::Helper) => self.helped_now += 1,
            (Target::Helper, Target::Direct) => self.helped_now -= 1,
            _ => {}
        }
    }

    /// Cancels a failed move. The previous carrier stays in use.
    fn cannot_move(&mut self, index: usize, to: Carrier, why: &MoveError) {
        let (Carrier::Direct(to) | Carrier::Link(to)) = to;
        self.trouble(|| format!("connection {index} cannot be moved to {to}: {why}"));
        let connection = &mut self.connections[index];
        connection.target = connection.carrier;
        if let State::Library { connection, prepared, .. } = &mut connection.state {
            connection.cancel_move();
            *prepared = false;
        }
        self.move_failed(index);
        self.touch(index);
        self.advance(index);
    }

    /// Handles the loss of the carrier: falls back from a helper to the direct connection. False if there is none.
    pub(super) fn fall_back(&mut self, index: usize) -> bool {
        let connection = &mut self.connections[index];
        if connection.carrier == Target::Direct {
            return false; // the reopened connection moves to its target
        }
        let started = match &mut connection.state {
            State::Library { connection: library, prepared, falling_back, .. } => {
                library.cancel_move();
                library.abandon();
                (*prepared, *falling_back) = (false, true);
                library.begin_move(Instant::now(), Route::Direct).is_ok()
            }
            _ => false,
        };
        if std::mem::replace(&mut connection.target, Target::Direct) == Target::Helper {
            self.move_failed(index);
        }
        if started {
            self.set_library_timer(index);
            self.touch(index);
        }
        started
    }

    pub(super) fn library_timeout(&mut self, index: usize) {
        if let State::Library { connection, .. } = &mut self.connections[index].state {
            connection.handle_timeout(Instant::now());
            self.set_library_timer(index);
            self.touch(index);
            // The hold of a move may have ended.
            self.advance(index);
        }
    }

    /// Schedules `library_timeout` for the library's next deadline. Stale timers are harmless.
    fn set_library_timer(&mut self, index: usize) {
        if let State::Library { connection, .. } = &self.connections[index].state
            && let Some(at) = connection.poll_timeout()
        {
            let in_ns = at.saturating_duration_since(Instant::now()).as_nanos();
            let in_ns = u64::try_from(in_ns).unwrap_or(u64::MAX);
            self.timers.push(Reverse((self.clock.now_ns().saturating_add(in_ns), index as u32)));
        }
    }
}
