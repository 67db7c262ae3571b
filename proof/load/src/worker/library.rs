//! Moving clients: opened direct, moved to a helper and back.

use std::cmp::Reverse;
use std::time::{Duration, Instant};

use rustix::event::epoll::EventFlags;
use spillway_moving_client::{Carrier, Connection, Event, MoveError, Route, Settings, Slot};

use super::Worker;
use super::connection::Link;
use super::opening::ATTEMPT_NS;
use crate::protocol::Protocol;
use crate::report::Target;
use crate::samples::Outcome;

/// How long a hot server's application may take to accept a moved connection.
const ACCEPTED_TIMEOUT: Duration = Duration::from_secs(10);

impl<P: Protocol> Worker<P> {
    /// Starts to open a connection, direct.
    pub(super) fn library_open(&mut self, index: usize) {
        let settings = Settings {
            connect_timeout: Duration::from_nanos(ATTEMPT_NS),
            accepted_timeout: ACCEPTED_TIMEOUT,
            keep_direct: true, // the way back is instant
            ..Settings::default()
        };
        match Connection::connect(Instant::now(), self.server, settings) {
            Ok(connection) => {
                let connection = Box::new(connection);
                self.connections[index].link =
                    Link::Library { connection, open: false, prepared: false, falling_back: false };
                self.set_library_timer(index);
                self.touch(index);
            }
            Err(why) => self.open_failed(index, why.to_string()),
        }
    }

    /// Remembers to ask a connection of the library what it wants.
    pub(super) fn touch(&mut self, index: usize) {
        match self.connections[index].link {
            Link::Library { .. } => self.touched.push(index as u32),
            Link::Session(_) => self.set_session_timer(index),
            _ => {}
        }
    }

    /// Hears what touched connections have to tell, and watches for what they wait for.
    pub(super) fn tend_touched(&mut self) {
        while let Some(index) = self.touched.pop() {
            let index = index as usize;
            while let Link::Library { connection, .. } = &mut self.connections[index].link {
                let Some(event) = connection.poll_event() else { break };
                self.library_event(index, event);
            }
            if let Link::Library { connection, open, .. } = &mut self.connections[index].link
                && let Err(e) = connection.watch_in(&self.epoll, index as u64)
            {
                let why = format!("while changing what to wait for: {e}");
                if *open { self.lose(index, &why) } else { self.open_failed(index, why) }
            }
        }
    }

    pub(super) fn library_ready(&mut self, index: usize, slot: Slot, flags: EventFlags) {
        let Link::Library { connection, .. } = &mut self.connections[index].link else { return };
        let receive = connection.handle_ready(Instant::now(), slot, flags.into());
        self.touch(index);
        if receive {
            self.receive(index);
        }
    }

    fn library_event(&mut self, index: usize, event: Event) {
        let Link::Library { open, prepared, falling_back, .. } = &mut self.connections[index].link else {
            return;
        };
        match event {
            Event::Moved(_) if !*open => {
                *open = true;
                self.is_open_now(index);
            }
            Event::Moved(carrier) => {
                (*prepared, *falling_back) = (false, false);
                let now = match carrier {
                    Carrier::Direct(_) => Target::Direct,
                    Carrier::Link(_) => Target::Helper,
                };
                self.moved(index, now);
                self.go_on(index);
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
                self.go_on(index);
            }
            Event::Room => self.send_rest(index),
            Event::Readable => {
                self.receive(index);
            }
            Event::IdleDirectLost(why) => {
                // A connection that the other side closed, though no request was on it.
                let now_ns = self.clock.now_ns();
                self.sample(now_ns, Target::Direct, Outcome::Reset, 0);
                self.trouble(|| format!("connection {index}: its idle direct connection is lost: {why}"));
            }
            Event::Drain { .. } => {
                self.trouble(|| format!("connection {index}: the helper asks to leave it; goes direct"));
                if std::mem::replace(&mut self.connections[index].wanted, Target::Direct) == Target::Helper {
                    self.move_failed(index);
                }
                self.change_carrier(index);
            }
        }
    }

    /// The wanted carrier changed, or the one in use fell idle: makes the wanted one ready, or, when it is and no
    /// reply is awaited, changes over to it.
    pub(super) fn change_carrier(&mut self, index: usize) {
        let connection = &mut self.connections[index];
        let (wanted, carrier, busy) = (connection.wanted, connection.carrier, connection.pending.is_some());
        if matches!(connection.link, Link::Session(_)) {
            return self.session_change(index);
        }
        let Link::Library { connection: library, open: true, prepared, falling_back: false } =
            &mut connection.link
        else {
            return;
        };
        let outcome = if wanted == carrier {
            // The word was taken back before the move was complete.
            library.cancel_move();
            *prepared = false;
            Ok(())
        } else if *prepared {
            if busy { Ok(()) } else { library.complete_move() }
        } else if library.is_moving() {
            Ok(())
        } else {
            let route = match wanted {
                Target::Direct => Route::Direct,
                Target::Helper => Route::Link(&self.targets[index % self.targets.len()]),
            };
            let begun = library.prepare_move(Instant::now(), route);
            self.set_library_timer(index);
            begun
        };
        self.touch(index);
        if let Err(why) = outcome {
            let to = match wanted {
                Target::Direct => Carrier::Direct(self.server),
                Target::Helper => Carrier::Link(self.targets[index % self.targets.len()].address),
            };
            self.cannot_move(index, to, &why);
        }
    }

    /// Bytes travel by this carrier from now on.
    pub(super) fn moved(&mut self, index: usize, now: Target) {
        let before = std::mem::replace(&mut self.connections[index].carrier, now);
        match (before, now) {
            (Target::Direct, Target::Helper) => self.helped_now += 1,
            (Target::Helper, Target::Direct) => self.helped_now -= 1,
            _ => {}
        }
    }

    /// The move is off; what carried the bytes before still does, if it is not lost.
    fn cannot_move(&mut self, index: usize, to: Carrier, why: &MoveError) {
        let (Carrier::Direct(to) | Carrier::Link(to)) = to;
        self.trouble(|| format!("connection {index} cannot be moved to {to}: {why}"));
        let connection = &mut self.connections[index];
        connection.wanted = connection.carrier;
        if let Link::Library { connection, prepared, .. } = &mut connection.link {
            connection.cancel_move();
            *prepared = false;
        }
        self.move_failed(index);
        self.touch(index);
        self.go_on(index);
    }

    /// What carried the bytes is lost. If that was a helper, begins to use the direct connection; false if there
    /// is no such way.
    pub(super) fn fall_back(&mut self, index: usize) -> bool {
        let connection = &mut self.connections[index];
        if connection.carrier == Target::Direct {
            return false; // opened again it moves on to where it is wanted
        }
        let begun = match &mut connection.link {
            Link::Library { connection: library, prepared, falling_back, .. } => {
                library.cancel_move();
                library.abandon();
                (*prepared, *falling_back) = (false, true);
                library.begin_move(Instant::now(), Route::Direct).is_ok()
            }
            _ => false,
        };
        if std::mem::replace(&mut connection.wanted, Target::Direct) == Target::Helper {
            self.move_failed(index);
        }
        if begun {
            self.set_library_timer(index);
            self.touch(index);
        }
        begun
    }

    pub(super) fn library_timeout(&mut self, index: usize) {
        if let Link::Library { connection, .. } = &mut self.connections[index].link {
            connection.handle_timeout(Instant::now());
            self.set_library_timer(index);
            self.touch(index);
            // It may have been held for long enough.
            self.go_on(index);
        }
    }

    /// Has `library_timeout` called when the library wants it. A timer that is not needed any more does nothing.
    fn set_library_timer(&mut self, index: usize) {
        if let Link::Library { connection, .. } = &self.connections[index].link
            && let Some(at) = connection.poll_timeout()
        {
            let in_ns = at.saturating_duration_since(Instant::now()).as_nanos();
            let in_ns = u64::try_from(in_ns).unwrap_or(u64::MAX);
            self.timers.push(Reverse((self.clock.now_ns().saturating_add(in_ns), index as u32)));
        }
    }
}
