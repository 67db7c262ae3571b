//! Connections that are sessions of the client library: when what carries them is lost, they go on elsewhere.

use std::cmp::Reverse;
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use rustix::event::Timespec;
use rustix::event::epoll::{self, EventFlags};
use spillway_client::Session;
use spillway_client::session::{CarrierLoss, SessionEvent, SessionSettings};

use super::Worker;
use super::connection::Link;
use super::session_link::SessionLink;
use crate::protocol::Protocol;
use crate::report::Target;

/// Nobody needs a session's timers sooner; fewer wake-ups.
const TIMER_GRAIN_NS: u64 = 1_000_000;
/// After the run servers are told that sessions end, so that they do not wait for them; no longer than so.
const CLOSING_MAX: Duration = Duration::from_secs(2);
const CLOSING_TURN: Timespec = Timespec { tv_sec: 0, tv_nsec: 5_000_000 };

impl<P: Protocol> Worker<P> {
    /// Starts to open a session.
    pub(super) fn session_open(&mut self, index: usize, limit_ns: u64) {
        if !self.groups.is_empty() {
            return self.relief_join(index);
        }
        // Sessions of threads that have one each are spread as well.
        let routes = self.setting.config.routes(index + self.setting.index as usize);
        let server_port = self.setting.config.sessions.and_then(|sessions| sessions.link);
        let settings = SessionSettings { server_port, ..SessionSettings::default() };
        self.session_opened(index, limit_ns, |now| Session::open(now, routes, settings));
    }

    /// Watches a session that was made.
    pub(super) fn session_opened(
        &mut self,
        index: usize,
        limit_ns: u64,
        open: impl FnOnce(Instant) -> io::Result<Session>,
    ) {
        let opened = open(Instant::now()).and_then(|session| {
            epoll::add(&self.epoll, &session, super::token(index), EventFlags::IN)?;
            Ok(session)
        });
        match opened {
            Ok(session) => {
                self.connections[index].link = Link::Session(Box::new(SessionLink::new(session, limit_ns)));
                self.take_session(index);
            }
            Err(e) => self.open_failed(index, e.to_string()),
        }
    }

    /// Something has come on a session's link.
    pub(super) fn session_ready(&mut self, index: usize) {
        if let Link::Session(link) = &mut self.connections[index].link {
            link.session.handle_ready(Instant::now());
            self.take_session(index);
        }
    }

    /// Takes what has come, and hears what the session has to tell: first that it is open.
    fn take_session(&mut self, index: usize) {
        if matches!(&self.connections[index].link, Link::Session(link) if !link.is_open) {
            self.hear_session(index);
        }
        while matches!(&self.connections[index].link, Link::Session(link) if link.is_open && link.session.has_arrived())
            && self.receive(index)
        {}
        self.hear_session(index);
    }

    pub(super) fn hear_session(&mut self, index: usize) {
        while let Link::Session(link) = &mut self.connections[index].link {
            match link.session.poll_event() {
                Some(event) => self.session_event(index, event),
                None if !link.is_open && link.session.is_over() => {
                    let why = link.trouble.take().unwrap_or_else(|| "it was refused".into());
                    self.open_failed(index, why);
                }
                None => break,
            }
        }
        self.set_session_timer(index);
    }

    fn session_event(&mut self, index: usize, event: SessionEvent) {
        self.relief_note(index, &event);
        let connection = &mut self.connections[index];
        let Link::Session(link) = &mut connection.link else { return };
        match event {
            SessionEvent::Moved(address) => {
                let was_open = std::mem::replace(&mut link.is_open, true);
                let was_told = std::mem::take(&mut link.is_moving);
                let carrier = self.carrier_at(address);
                self.moved(index, carrier);
                let connection = &mut self.connections[index];
                if was_told && connection.wanted != carrier {
                    self.move_failed(index);
                }
                self.connections[index].wanted = carrier;
                if was_open {
                    self.samples.carried_on.add(self.clock.now_ns() / self.bin_ns);
                    self.go_on(index);
                } else {
                    self.is_open_now(index);
                }
            }
            SessionEvent::CarrierLost { address, why } => {
                let what = format!("{address}: {why}");
                if link.is_open && !matches!(why, CarrierLoss::Asked | CarrierLoss::SentAway) {
                    self.trouble(|| format!("session {index} is not carried any more by {what}"));
                } else {
                    link.trouble = Some(what);
                }
            }
            SessionEvent::Accepted => {}
            SessionEvent::Room => self.send_rest(index),
        }
    }

    /// Which carrier a link port is.
    fn carrier_at(&self, address: SocketAddr) -> Target {
        let own = self.setting.config.sessions.and_then(|sessions| sessions.link);
        if own == Some(address) { Target::Direct } else { Target::Helper }
    }

    /// Moves a session to where it is wanted, with whatever is under way on it.
    pub(super) fn session_change(&mut self, index: usize) {
        let connection = &self.connections[index];
        let wanted = connection.wanted;
        let is_moving = matches!(&connection.link, Link::Session(link) if link.is_moving);
        if wanted == connection.carrier || is_moving {
            return;
        }
        let routes = self.setting.config.routes(index + self.setting.index as usize);
        let route = routes.iter().position(|route| self.carrier_at(route.address) == wanted);
        let Link::Session(link) = &mut self.connections[index].link else { return };
        match route.map(|route| link.session.move_to(Instant::now(), route)) {
            Some(Ok(())) => {
                link.is_moving = true;
                self.hear_session(index);
            }
            _ => {
                self.connections[index].wanted = self.connections[index].carrier;
                self.trouble(|| format!("session {index} has no way to be {wanted:?}"));
                self.move_failed(index);
            }
        }
    }

    /// Time has come for a session to do something, or for its opening to end.
    pub(super) fn session_timeout(&mut self, index: usize, at_ns: u64) {
        let now_ns = self.clock.now_ns();
        let Link::Session(link) = &mut self.connections[index].link else { return };
        if link.timer_ns != at_ns {
            return;
        }
        link.timer_ns = u64::MAX;
        if !link.is_open && now_ns >= link.limit_ns {
            let why = link.trouble.take().unwrap_or_else(|| "nothing carries it".into());
            return self.open_failed(index, format!("no answer within 5 s: {why}"));
        }
        link.session.handle_timeout(Instant::now());
        self.take_session(index);
    }

    /// Has `session_timeout` called when the session wants it, or a little later.
    pub(super) fn set_session_timer(&mut self, index: usize) {
        let Link::Session(link) = &mut self.connections[index].link else { return };
        let wanted_ns = link.session.poll_timeout().map_or(u64::MAX, |at| {
            let in_ns = at.saturating_duration_since(Instant::now()).as_nanos();
            self.clock.now_ns().saturating_add(u64::try_from(in_ns).unwrap_or(u64::MAX))
        });
        let at_ns = if link.is_open { wanted_ns } else { wanted_ns.min(link.limit_ns) };
        let at_ns = at_ns.checked_next_multiple_of(TIMER_GRAIN_NS).unwrap_or(u64::MAX);
        // One that rings too early is set anew then: deadlines move on with each reply.
        if at_ns < link.timer_ns {
            link.timer_ns = at_ns;
            self.timers.push(Reverse((at_ns, index as u32)));
        }
    }

    /// Sets a session's timer again after the clock was set.
    pub(super) fn renew_session_timer(&mut self, index: usize) {
        if let Link::Session(link) = &mut self.connections[index].link {
            link.timer_ns = u64::MAX;
            self.set_session_timer(index);
        }
    }

    /// Ends all sessions in order. Their servers would wait a while for them otherwise.
    pub(super) fn close_sessions(&mut self) {
        let links = self.connections.iter_mut().map(|connection| std::mem::take(&mut connection.link));
        let mut open: Vec<Session> = links
            .filter_map(|link| match link {
                Link::Session(link) if link.is_open => Some(link.session),
                _ => None,
            })
            .collect();
        let begun = Instant::now();
        open.iter_mut().for_each(|session| session.close(begun));
        while !open.is_empty() && begun.elapsed() < CLOSING_MAX {
            let mut space = [std::mem::MaybeUninit::<epoll::Event>::uninit(); 64];
            // Whichever it is, all are asked; and without it, all the same.
            let _ = epoll::wait(&self.epoll, &mut space, Some(&CLOSING_TURN));
            let now = Instant::now();
            open.retain_mut(|session| {
                session.handle_ready(now);
                session.handle_timeout(now);
                !session.is_over()
            });
        }
    }
}
