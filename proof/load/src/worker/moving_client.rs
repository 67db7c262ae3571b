//! Connections on moving clients: opened to the server, moved to a helper and back.

use std::cmp::Reverse;
use std::time::{Duration, Instant};

use spillway_moving_client::{
    Carrier, Connection, Event, MoveError, Ready, Route, Settings, Slot, join_token,
};

use super::Worker;
use super::connection::State;
use super::opening::ATTEMPT_NS;
use crate::engine::{Engine, Interest};
use crate::protocol::Protocol;
use crate::report::Target;
use crate::samples::SampleKind;

/// Time for a hot server's application to accept a moved connection.
const ACCEPTED_TIMEOUT: Duration = Duration::from_secs(10);

impl<P: Protocol, E: Engine> Worker<P, E> {
    pub(super) fn open_moving_client(&mut self, index: usize) {
        let settings = Settings {
            connect_timeout: Duration::from_nanos(ATTEMPT_NS),
            accept_timeout: ACCEPTED_TIMEOUT,
            keep_direct: true, // so that a move back needs no new connection
            ..Settings::default()
        };
        match Connection::connect_on(self.engine.network().clone(), Instant::now(), self.server, settings) {
            Ok(connection) => {
                let connection = Box::new(connection);
                self.connections[index].state =
                    State::MovingClient { connection, open: false, prepared: false, falling_back: false };
                self.set_moving_client_timer(index);
                self.schedule_poll(index);
            }
            Err(why) => self.open_failed(index, why.to_string()),
        }
    }

    /// Schedules a poll of a moving client's events, or sets the timer of a session.
    pub(super) fn schedule_poll(&mut self, index: usize) {
        match self.connections[index].state {
            State::MovingClient { .. } => self.clients_to_poll.push(index as u32),
            State::Session(_) => self.set_session_timer(index),
            _ => {}
        }
    }

    /// Handles the events of the moving clients that were used in this turn, and updates the watching of their streams.
    pub(super) fn poll_moving_clients(&mut self) {
        while let Some(index) = self.clients_to_poll.pop() {
            let index = index as usize;
            while let State::MovingClient { connection, .. } = &mut self.connections[index].state {
                let Some(event) = connection.poll_event() else { break };
                self.handle_moving_client_event(index, event);
            }
            if let State::MovingClient { connection, open, .. } = &mut self.connections[index].state
                && let Err(e) = watch(&mut self.engine, connection, index)
            {
                let why = format!("while changing the events to wait for: {e}");
                if *open { self.handle_loss(index, &why) } else { self.open_failed(index, why) }
            }
        }
    }

    pub(super) fn handle_moving_client_ready(&mut self, index: usize, slot: Slot, ready: Ready) {
        let State::MovingClient { connection, .. } = &mut self.connections[index].state else { return };
        let receive = connection.handle_ready(Instant::now(), slot, ready);
        self.schedule_poll(index);
        if receive {
            self.receive(index);
        }
    }

    fn handle_moving_client_event(&mut self, index: usize, event: Event) {
        let State::MovingClient { open, prepared, falling_back, .. } = &mut self.connections[index].state
        else {
            return;
        };
        match event {
            Event::Moved(_) if !*open => {
                *open = true;
                self.finish_opening(index);
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
                let was_falling_back = *falling_back;
                self.handle_move_error(index, to, &why);
                if was_falling_back {
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
                // The server closed the direct connection, which had no pending request.
                let now_ns = self.clock.now_ns();
                self.sample(now_ns, Target::Direct, SampleKind::Reset, 0);
                self.report_trouble(|| {
                    format!("connection {index}: the idle direct connection is lost: {why}")
                });
            }
            Event::Drain { .. } => {
                self.report_trouble(|| {
                    format!("connection {index}: the helper drains; moving to the server")
                });
                if std::mem::replace(&mut self.connections[index].target, Target::Direct) == Target::Helper {
                    self.move_failed(index);
                }
                self.change_carrier(index);
            }
        }
    }

    /// Prepares the target carrier; switches to this carrier if it is prepared and no reply is pending. Call it when
    /// the target changes and when the connection becomes idle.
    pub(super) fn change_carrier(&mut self, index: usize) {
        let connection = &mut self.connections[index];
        let (target, carrier, has_pending) =
            (connection.target, connection.carrier, connection.pending.is_some());
        if matches!(connection.state, State::Session(_)) {
            return self.move_session_to_target(index);
        }
        let State::MovingClient { connection: client, open: true, prepared, falling_back: false } =
            &mut connection.state
        else {
            return;
        };
        let outcome = if target == carrier {
            // A later command cancelled the move.
            client.cancel_move();
            *prepared = false;
            Ok(())
        } else if *prepared {
            if has_pending { Ok(()) } else { client.complete_move() }
        } else if client.is_moving() {
            Ok(())
        } else {
            let route = match target {
                Target::Direct => Route::Direct,
                Target::Helper => Route::Link(&self.targets[index % self.targets.len()]),
            };
            let started = client.prepare_move(Instant::now(), route);
            self.set_moving_client_timer(index);
            started
        };
        self.schedule_poll(index);
        if let Err(why) = outcome {
            let to = match target {
                Target::Direct => Carrier::Direct(self.server),
                Target::Helper => Carrier::Link(self.targets[index % self.targets.len()].address),
            };
            self.handle_move_error(index, to, &why);
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

    /// Ends a failed move. The previous carrier stays in use.
    fn handle_move_error(&mut self, index: usize, to: Carrier, why: &MoveError) {
        let (Carrier::Direct(to) | Carrier::Link(to)) = to;
        self.report_trouble(|| format!("connection {index} cannot be moved to {to}: {why}"));
        let connection = &mut self.connections[index];
        connection.target = connection.carrier;
        if let State::MovingClient { connection, prepared, .. } = &mut connection.state {
            connection.cancel_move();
            *prepared = false;
        }
        self.move_failed(index);
        self.schedule_poll(index);
        self.advance(index);
    }

    /// Handles the loss of the carrier: falls back from a helper to the direct connection. False if impossible.
    pub(super) fn fall_back(&mut self, index: usize) -> bool {
        let connection = &mut self.connections[index];
        if connection.carrier == Target::Direct {
            return false; // the connection is reopened, and then moves to its target
        }
        let started = match &mut connection.state {
            State::MovingClient { connection: client, prepared, falling_back, .. } => {
                client.cancel_move();
                client.discard_carrier();
                (*prepared, *falling_back) = (false, true);
                client.begin_move(Instant::now(), Route::Direct).is_ok()
            }
            _ => false,
        };
        if std::mem::replace(&mut connection.target, Target::Direct) == Target::Helper {
            self.move_failed(index);
        }
        if started {
            self.set_moving_client_timer(index);
            self.schedule_poll(index);
        }
        started
    }

    pub(super) fn handle_moving_client_timeout(&mut self, index: usize) {
        if let State::MovingClient { connection, .. } = &mut self.connections[index].state {
            connection.handle_timeout(Instant::now());
            self.set_moving_client_timer(index);
            self.schedule_poll(index);
            // Requests that a move held back may be due.
            self.advance(index);
        }
    }

    /// Schedules `handle_moving_client_timeout` for the library's next deadline. Stale timers are harmless.
    fn set_moving_client_timer(&mut self, index: usize) {
        if let State::MovingClient { connection, .. } = &self.connections[index].state
            && let Some(at) = connection.poll_timeout()
        {
            let in_ns = at.saturating_duration_since(Instant::now()).as_nanos();
            let in_ns = u64::try_from(in_ns).unwrap_or(u64::MAX);
            self.timers.push(Reverse((self.clock.now_ns().saturating_add(in_ns), index as u32)));
        }
    }
}

/// Makes the engine watch those streams of a moving client that the client waits for.
fn watch<E: Engine>(
    engine: &mut E,
    connection: &mut Connection<E::Network>,
    index: usize,
) -> std::io::Result<()> {
    while let Some(watch) = connection.poll_watch() {
        let token = join_token(index as u64, watch.slot);
        let (readable, writable) = (watch.readable, watch.writable);
        engine.watch(watch.stream, Interest { token, is_new: watch.add, readable, writable })?;
    }
    Ok(())
}
