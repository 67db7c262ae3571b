//! The stack: frames in, frames out, for many connections.
//!
//! - `table`: connections by slot and by flow; `time_wait`: those that have closed
//! - `input`: from a frame to a connection; `icmp`: what routers and `ping` say
//! - `listen`: those that begin; `used_cookies`: of which cookies one has
//! - `moving`: connections that leave and come
//! - `output`: from a connection to a frame; `replies`: answers that belong to no connection
//! - `verbs`: [`Transport`](spillway_transport::Transport)

mod icmp;
mod input;
mod listen;
mod moving;
mod output;
mod replies;
mod table;
mod time_wait;
mod used_cookies;
mod verbs;

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use spillway_transport::{Conn, LostReason, Time};
use spillway_wire::packet::ethernet::Mac;
use spillway_wire::packet::tcp::{self, Flags};

use crate::connection::{Connection, Context, Ended, Spent};
use crate::cookies::Cookies;
use crate::counters::Counters;
use crate::dropped::{Dropped, Dropping, Drops};
use crate::event::{Events, StackEvent};
use crate::flow::Flow;
use crate::isn::Isn;
use crate::narrow::in_packet;
use crate::neighbour::Neighbours;
use crate::settings::{Settings, SettingsError};
use crate::timers::Wheel;
use replies::{Replies, Reply};
use table::Table;
use time_wait::{TimeWait, TimeWaits};
use used_cookies::UsedCookies;

/// One core's TCP. Verbs are called by one driver, in turns:
///
/// 1. [`handle_frame`](Self::handle_frame) for each frame that is there; its [`Delivery`](crate::Delivery) goes to the
///    application, then all of [`poll_event`](Self::poll_event);
/// 2. [`handle_timeout`](Self::handle_timeout) when [`poll_timeout`](Self::poll_timeout) has come, and events again;
/// 3. [`poll_transmit`](Self::poll_transmit) until there is nothing.
///
/// Between them the application uses [`Transport`](spillway_transport::Transport). [`drive`](crate::drive) does this for
/// an [`Application`](spillway_transport::Application).
#[derive(Debug)]
pub struct Stack {
    settings: Settings,
    /// Of the last verb that had one.
    now: Time,
    table: Table,
    events: Events,
    spent: Spent,
    counters: Counters,
    drops: Drops,
    /// Something was done with them: they may have something to send, and another time to wake.
    touched: VecDeque<u32>,
    /// Have something to send, and nobody knows yet to whom.
    unresolved: Vec<Conn>,
    wheel: Wheel,
    replies: Replies,
    neighbours: Neighbours,
    listening: Vec<bool>,
    half_open: u32,
    /// That wait for others, or for a grant, of all connections.
    late_bytes: usize,
    /// Bytes of memory of all send queues.
    held_bytes: usize,
    time_waits: TimeWaits,
    isn: Isn,
    cookies: Cookies,
    /// Until then a peer may come back with a cookie.
    cookies_until: Time,
    used_cookies: UsedCookies,
    next_port: u16,
    /// A connection has come with an address that may not be ours.
    has_moved_here: bool,
}

impl Stack {
    /// A stack without connections, all listeners closed.
    ///
    /// # Errors
    /// Settings that cannot be.
    pub fn new(now: Time, settings: Settings) -> Result<Stack, SettingsError> {
        settings.check()?;
        Ok(Stack {
            now,
            table: Table::new(settings.connections_max, settings.key),
            events: Events::default(),
            spent: Spent::default(),
            counters: Counters::default(),
            drops: Drops::default(),
            touched: VecDeque::new(),
            unresolved: Vec::new(),
            wheel: Wheel::new(now),
            replies: Replies::default(),
            neighbours: Neighbours::new(),
            listening: alloc::vec![false; settings.listeners.len()],
            half_open: 0,
            late_bytes: 0,
            held_bytes: 0,
            time_waits: TimeWaits::new(settings.time_wait_max, settings.key),
            isn: Isn::new(settings.key, settings.clock_at_zero),
            cookies: Cookies::new(settings.key, settings.clock_at_zero),
            cookies_until: Time::ZERO,
            used_cookies: UsedCookies::new(settings.cookies_max, settings.key),
            next_port: 0,
            has_moved_here: false,
            settings,
        })
    }

    /// What it was told.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// What has happened since it was made.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Keeps the last `kept_max` frames and segments that are dropped from now on, for [`poll_dropped`](Self::poll_dropped).
    /// 0, as at first, keeps none: then drops are only [counted](Self::counters).
    pub fn watch_drops(&mut self, kept_max: usize) {
        self.drops.watch(kept_max);
    }

    /// What was dropped, and why, oldest first. Poll as often as it is of interest: only the last few are kept.
    #[must_use]
    pub fn poll_dropped(&mut self) -> Option<Dropping> {
        self.drops.poll()
    }

    /// What was received has no effect.
    #[cold]
    fn drop_it(&mut self, reason: Dropped) {
        self.drops.add(self.now, reason, &mut self.counters);
    }

    /// Connections, half-open ones included.
    pub fn connections(&self) -> usize {
        self.table.len()
    }

    /// Whether [`poll_event`](Self::poll_event) has something.
    pub(crate) fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// What happened next, if anything. Poll until there is nothing, after each frame and each timeout.
    #[must_use]
    pub fn poll_event(&mut self) -> Option<(Conn, StackEvent)> {
        loop {
            let (conn, event) = self.events.pop()?;
            if self.table.get(conn).is_none() {
                continue; // aborted meanwhile
            }
            if matches!(event, StackEvent::Lost(_)) {
                self.free(conn);
            }
            return Some((conn, event));
        }
    }

    /// When [`handle_timeout`](Self::handle_timeout) is due: exact, or a little early. Ask after each turn; before
    /// [`poll_transmit`](Self::poll_transmit) has nothing more it is now.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        if !self.touched.is_empty() {
            return Some(self.now);
        }
        let others = [self.wheel.next_at(), self.neighbours.poll_timeout(), self.time_waits.next_at()];
        others.into_iter().flatten().min()
    }

    /// Whether [`handle_timeout`](Self::handle_timeout) would find something; now and then it does not.
    #[inline]
    pub(crate) fn is_timeout_due(&self, now: Time) -> bool {
        let is_due = |at: Option<Time>| at.is_some_and(|at| at <= now);
        self.wheel.may_be_due(now)
            || is_due(self.neighbours.poll_timeout())
            || is_due(self.time_waits.next_at())
    }

    /// Time has come to [`poll_timeout`](Self::poll_timeout). Early or late calls do no harm.
    pub fn handle_timeout(&mut self, now: Time) {
        self.now = self.now.max(now);
        self.time_waits.expire(self.now);
        self.touch_unresolved();
        while let Some(slot) = self.wheel.poll(self.now) {
            if let Some(conn) = self.table.at(slot).map(|connection| connection.conn) {
                self.with(conn, |connection, cx| connection.handle_timeout(cx));
            }
        }
    }

    /// Whoever waits for somebody's Ethernet address looks again.
    fn touch_unresolved(&mut self) {
        for conn in self.unresolved.drain(..) {
            if let Some(connection) = self.table.get_mut(conn) {
                connection.is_unresolved = false;
                touch(&mut self.touched, connection);
            }
        }
    }

    /// Does something with a connection, and what follows of it.
    #[inline]
    fn with<R>(&mut self, conn: Conn, act: impl FnOnce(&mut Connection, &mut Context<'_>) -> R) -> Option<R> {
        let connection = self.table.get_mut(conn)?;
        let mut cx = Context {
            now: self.now,
            settings: &self.settings,
            events: &mut self.events,
            spent: &mut self.spent,
            counters: &mut self.counters,
            drops: &mut self.drops,
            late_room: self.settings.reassembly_total_max.saturating_sub(self.late_bytes),
        };
        let was_half_open = connection.is_half_open();
        let result = act(connection, &mut cx);
        self.half_open -= u32::from(was_half_open && !connection.is_half_open());
        connection.count_late(&mut self.late_bytes);
        connection.count_held(&mut self.held_bytes);
        if connection.is_lost() {
            self.end(conn);
        } else {
            touch(&mut self.touched, connection);
        }
        Some(result)
    }

    /// A connection is over: nothing finds it any more but the event that says so.
    fn end(&mut self, conn: Conn) {
        let Some(connection) = self.table.get(conn) else {
            debug_assert!(false, "the caller has just found that this connection of the table is over");
            return;
        };
        let (flow, mac) = (connection.flow, connection.mac.or(connection.mac_in_doubt));
        let last = connection.last_words(self.now);
        let (is_known, ended, lost) = (connection.is_known(), connection.ended(), connection.lost_reason());
        self.wheel.disarm(conn.slot);
        if self.table.forget_flow(flow, conn) {
            if ended == Some(Ended::TimeWait) {
                let expiry = self.now + self.settings.time_wait;
                let (acknowledgement, stamps) = (last.acknowledgement, last.stamps);
                let entry = TimeWait::Closed { acknowledgement, stamps };
                self.counters.time_waits_forgotten += u64::from(self.time_waits.add(flow, expiry, entry));
                if last.is_due {
                    let header = last.acknowledgement;
                    self.replies.push(Reply::Segment { flow, mac, header }, &mut self.counters);
                }
            } else if lost == Some(LostReason::TimedOut) {
                self.counters.resets_sent += 1;
                self.replies.push(Reply::Segment { flow, mac, header: last.reset }, &mut self.counters);
                self.remember_broken(flow);
            }
        }
        if !is_known {
            self.free(conn);
        }
    }

    fn free(&mut self, conn: Conn) {
        if let Some(connection) = self.table.get_mut(conn) {
            connection.drop_late(&mut self.late_bytes);
            connection.drop_held(&mut self.held_bytes);
            self.table.free(conn);
        }
    }

    /// The answer to a segment that belongs to nothing (RFC 9293 §3.10.7.1).
    fn refuse(&mut self, flow: Flow, mac: Mac, header: &tcp::Header, bytes: usize) {
        if header.flags.contains(Flags::RST) {
            return;
        }
        let length = u32::from(in_packet(bytes))
            + u32::from(header.flags.contains(Flags::SYN))
            + u32::from(header.flags.contains(Flags::FIN));
        let (seq, ack, flags) = if header.flags.contains(Flags::ACK) {
            (header.ack, 0, Flags::RST)
        } else {
            (0, header.seq.wrapping_add(length), Flags::RST | Flags::ACK)
        };
        let reset = tcp::Header {
            source: flow.local.port(),
            target: flow.peer.port(),
            seq,
            ack,
            flags,
            window: 0,
            urgent: 0,
            options: tcp::Options::default(),
        };
        self.counters.resets_sent += 1;
        self.replies.push(Reply::Segment { flow, mac: Some(mac), header: reset }, &mut self.counters);
    }
}

/// After anything that was done with a connection: it may have something to send. What that is, and when it wants to be
/// woken, is found out once, when the turn ends.
#[inline]
fn touch(touched: &mut VecDeque<u32>, connection: &mut Connection) {
    if !core::mem::replace(&mut connection.is_touched, true) {
        touched.push_back(connection.conn.slot);
    }
}
