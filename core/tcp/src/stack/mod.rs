//! The stack: frames in, frames out, for many connections.
//!
//! - `table`: connections by slot and by flow; `time_wait`: closed connections
//! - `input`: from a frame to a connection; `icmp`: errors from routers, `ping`
//! - `listeners`: addresses at which peers may connect; `listen`: connections that peers open; `used_cookies`: cookies
//!   that were accepted
//! - `moving`: connections that are exported and imported; `reopening`: those opened again from another port
//! - `output`: from a connection to a frame; `replies`: replies outside of connections
//! - `changes`: limits that change while the stack runs
//! - `verbs`: [`Transport`](spillway_transport::Transport)

mod changes;
mod icmp;
mod input;
mod listen;
mod listeners;
mod moving;
mod output;
mod reopening;
mod replies;
mod table;
mod time_wait;
mod used_cookies;
mod verbs;

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::net::IpAddr;

use spillway_transport::{Conn, LostReason, Time};
use spillway_wire::packet::ethernet::Mac;
use spillway_wire::packet::tcp::{self, Flags};

use crate::connection::{Connection, Context, Ended, SpentChunks};
use crate::cookies::Cookies;
use crate::counters::Counters;
use crate::dropped::{Dropped, Dropping, Drops};
use crate::event::{Events, StackEvent};
use crate::flow::Flow;
use crate::isn::Isn;
use crate::narrow::in_packet;
use crate::neighbour::{NEIGHBOURS_MAX, NEXT_HOPS_MAX, Neighbours};
use crate::settings::{Listener, Resolver, Settings, SettingsError};
use crate::timers::Wheel;
use listeners::Listeners;
use replies::{Replies, Reply};
use table::Table;
use time_wait::{TimeWait, TimeWaits};
use used_cookies::UsedCookies;

/// The TCP stack of one core. A driver calls its methods in turns:
///
/// 1. [`handle_frame`](Self::handle_frame) for each waiting frame; its [`Delivery`](crate::Delivery) goes to the
///    application, then all of [`poll_event`](Self::poll_event);
/// 2. [`handle_timeout`](Self::handle_timeout) when the time of [`poll_timeout`](Self::poll_timeout) has come, then all
///    of [`poll_event`](Self::poll_event) again;
/// 3. [`poll_transmit`](Self::poll_transmit) until it returns `None`.
///
/// Between these calls the application uses [`Transport`](spillway_transport::Transport). [`drive`](crate::drive) makes
/// the calls for an [`Application`](spillway_transport::Application).
#[derive(Debug)]
pub struct Stack {
    settings: Settings,
    /// The latest time that a caller has passed.
    now: Time,
    table: Table,
    /// Free places of the table that only imported connections may take.
    kept_places: usize,
    events: Events,
    spent: SpentChunks,
    counters: Counters,
    drops: Drops,
    /// Slots of connections that have changed in this turn: they may have something to send, or a new wake-up time.
    touched: VecDeque<u32>,
    /// Connections that have something to send while the Ethernet address of their next hop is unknown.
    unresolved: Vec<Conn>,
    wheel: Wheel,
    replies: Replies,
    /// Replies sent since the last segment was sent.
    replies_in_a_row: u32,
    neighbours: Neighbours,
    listeners: Listeners,
    half_open: u32,
    /// Bytes of all connections that are out of order or not granted yet.
    waiting_bytes: usize,
    /// Memory of all send queues, in bytes.
    held_bytes: usize,
    time_waits: TimeWaits,
    isn: Isn,
    cookies: Cookies,
    /// Time until which a peer may return a cookie of this stack.
    cookies_until: Time,
    used_cookies: UsedCookies,
    next_port: u16,
    /// Whether a connection was imported whose local address is not this stack's own.
    has_foreign_connections: bool,
}

impl Stack {
    /// A stack without connections, with all listeners closed.
    ///
    /// # Errors
    /// The first invalid setting.
    pub fn new(now: Time, settings: Settings) -> Result<Stack, SettingsError> {
        settings.check()?;
        Ok(Stack {
            now,
            table: Table::new(settings.connections_max, settings.key),
            kept_places: 0,
            events: Events::default(),
            spent: SpentChunks::default(),
            counters: Counters::default(),
            drops: Drops::default(),
            touched: VecDeque::new(),
            unresolved: Vec::new(),
            wheel: Wheel::new(now),
            replies: Replies::default(),
            replies_in_a_row: 0,
            neighbours: Neighbours::new(match settings.resolver {
                Resolver::Arp => NEIGHBOURS_MAX,
                Resolver::Driver => NEXT_HOPS_MAX,
            }),
            listeners: Listeners::new(&settings, settings.key),
            half_open: 0,
            waiting_bytes: 0,
            held_bytes: 0,
            time_waits: TimeWaits::new(settings.time_wait_max, settings.key),
            isn: Isn::new(settings.key, settings.clock_at_zero),
            cookies: Cookies::new(settings.key, settings.clock_at_zero),
            cookies_until: Time::ZERO,
            used_cookies: UsedCookies::new(settings.cookies_max, settings.key),
            next_port: 0,
            has_foreign_connections: false,
            settings,
        })
    }

    /// The settings that the stack was created with.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Whether a local address is the stack's own or a listener's. The addresses of imported connections do not count.
    #[inline]
    fn is_local(&self, ip: IpAddr) -> bool {
        self.listeners.has_address(ip)
    }

    /// Sets or removes the listener with this index. A new listener is closed. Connections of the previous listener
    /// stay.
    ///
    /// # Errors
    /// The listener's address is not one of a host, its port is 0, or the settings do not permit IPv6.
    pub fn set_listener(&mut self, index: u16, listener: Option<Listener>) -> Result<(), SettingsError> {
        if let Some(listener) = &listener {
            listener.check(&self.settings)?;
        }
        self.listeners.set(index, listener);
        Ok(())
    }

    /// With [`Resolver::Driver`]: a peer whose next hop the driver must find and pass to
    /// [`set_next_hop`](Self::set_next_hop). Call it at the end of each turn until it returns `None`. A peer in use is
    /// returned again every 30 s, so that the kernel confirms the next hop's address.
    #[must_use]
    pub fn poll_next_hop_request(&mut self) -> Option<IpAddr> {
        match self.settings.resolver {
            Resolver::Arp => None,
            Resolver::Driver => self.neighbours.poll_request(self.now),
        }
    }

    /// Sets the Ethernet address of the next hop to a peer; `None` if there is no route or the next hop does not
    /// answer.
    pub fn set_next_hop(&mut self, now: Time, peer: IpAddr, mac: Option<Mac>) {
        self.now = self.now.max(now);
        self.neighbours.set(self.now, peer.to_canonical(), mac);
        self.touch_unresolved();
    }

    /// Totals since the stack was created.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Keeps the last `kept_max` frames and segments that are dropped after this call, for
    /// [`poll_dropped`](Self::poll_dropped). 0, the default, keeps none: drops are only [counted](Self::counters).
    pub fn watch_drops(&mut self, kept_max: usize) {
        self.drops.watch(kept_max);
    }

    /// Removes and returns the oldest kept drop.
    #[must_use]
    pub fn poll_dropped(&mut self) -> Option<Dropping> {
        self.drops.poll()
    }

    #[cold]
    fn count_drop(&mut self, reason: Dropped) {
        self.drops.add(self.now, reason, &mut self.counters);
    }

    /// The number of connections, half-open ones included.
    pub fn connections(&self) -> usize {
        self.table.len()
    }

    /// The number of connections that peers have opened and that are not established yet.
    pub fn half_open_connections(&self) -> usize {
        self.half_open as usize // fits: a part of the table
    }

    /// Whether [`poll_event`](Self::poll_event) may return an event.
    pub(crate) fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// The next event. Call it until it returns `None`, after each frame and each timeout.
    #[must_use]
    pub fn poll_event(&mut self) -> Option<(Conn, StackEvent)> {
        loop {
            let (conn, event) = self.events.pop()?;
            if self.table.get(conn).is_none() {
                continue; // the connection was aborted after the event
            }
            if matches!(event, StackEvent::Lost(_)) {
                self.free(conn);
            }
            return Some((conn, event));
        }
    }

    /// When [`handle_timeout`](Self::handle_timeout) is due; the time may be early. Call it after
    /// [`poll_transmit`](Self::poll_transmit) has returned `None`: before that it may return the present time.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        if !self.touched.is_empty() {
            return Some(self.now);
        }
        let others = [self.wheel.next_at(), self.neighbours.poll_timeout(), self.time_waits.next_at()];
        others.into_iter().flatten().min()
    }

    /// Whether [`handle_timeout`](Self::handle_timeout) is due; may be `true` too early.
    #[inline]
    pub(crate) fn is_timeout_due(&self, now: Time) -> bool {
        let is_due = |at: Option<Time>| at.is_some_and(|at| at <= now);
        self.wheel.may_be_due(now)
            || is_due(self.neighbours.poll_timeout())
            || is_due(self.time_waits.next_at())
    }

    /// Handles expired timers. Call it at the time that [`poll_timeout`](Self::poll_timeout) returns; early or late
    /// calls are harmless.
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

    /// Touches all connections that wait for an Ethernet address, so that the address is looked up again; replies that wait
    /// for one are sent.
    fn touch_unresolved(&mut self) {
        self.replies.retry();
        for conn in self.unresolved.drain(..) {
            if let Some(connection) = self.table.get_mut(conn) {
                connection.is_unresolved = false;
                touch(&mut self.touched, connection);
            }
        }
    }

    /// Runs `act` on a connection, then updates the stack's totals and ends the connection if it is lost.
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
            waiting_bytes_free: self.settings.reassembly_total_max.saturating_sub(self.waiting_bytes),
        };
        let was_half_open = connection.is_half_open();
        let result = act(connection, &mut cx);
        self.half_open -= u32::from(was_half_open && !connection.is_half_open());
        connection.count_waiting(&mut self.waiting_bytes);
        connection.count_held(&mut self.held_bytes);
        if connection.is_lost() {
            self.end(conn);
        } else {
            touch(&mut self.touched, connection);
        }
        Some(result)
    }

    /// Removes a connection that has ended from the flow table. Its slot is freed when its `Lost` event is polled, or
    /// at once if the application gets no such event.
    fn end(&mut self, conn: Conn) {
        let Some(connection) = self.table.get(conn) else {
            debug_assert!(false, "the ended connection should be in the table");
            return;
        };
        let (flow, mac) = (connection.flow, connection.next_hop.known());
        let final_segments = connection.final_segments(self.now);
        let (is_visible, ended, lost) =
            (connection.is_visible(), connection.ended(), connection.lost_reason());
        self.wheel.disarm(conn.slot);
        if self.table.forget_flow(flow, conn) {
            if ended == Some(Ended::TimeWait) {
                let expiry = self.now + self.settings.time_wait;
                let (acknowledgement, ts_recent) = (final_segments.acknowledgement, final_segments.ts_recent);
                let entry = TimeWait::Closed { acknowledgement, ts_recent };
                self.counters.time_waits_forgotten += u64::from(self.time_waits.add(flow, expiry, entry));
                if final_segments.is_due {
                    let header = final_segments.acknowledgement;
                    self.replies.push(Reply::Segment { flow, mac, header }, &mut self.counters);
                }
            } else if lost == Some(LostReason::TimedOut) && is_visible {
                // A half-open connection ends silently: its peer may be repeating its SYN, or the SYN was forged.
                self.counters.resets_sent += 1;
                let header = final_segments.reset;
                self.replies.push(Reply::Segment { flow, mac, header }, &mut self.counters);
                self.remember_aborted(flow);
            }
        }
        if !is_visible {
            self.free(conn);
        }
    }

    fn free(&mut self, conn: Conn) -> Option<Box<Connection>> {
        let connection = self.table.get_mut(conn)?;
        connection.uncount_waiting(&mut self.waiting_bytes);
        connection.uncount_held(&mut self.held_bytes);
        self.table.free(conn)
    }

    /// Answers a segment without a connection by a reset (RFC 9293 §3.10.7.1).
    fn send_reset(&mut self, flow: Flow, mac: Mac, header: &tcp::Header, bytes: usize) {
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
            source: flow.local_port(),
            target: flow.peer_port(),
            seq,
            ack,
            flags,
            window: 0,
            urgent: 0,
            options: tcp::Options::default(),
        };
        self.counters.resets_sent += 1;
        let mac = self.back_to(flow, mac);
        self.replies.push(Reply::Segment { flow, mac, header: reset }, &mut self.counters);
    }

    /// The Ethernet address for the reply to a segment that came from `mac`. `None`: the next hop's, which must be resolved.
    fn back_to(&self, flow: Flow, mac: Mac) -> Option<Mac> {
        (self.settings.one_way_at != Some(flow.local())).then_some(mac)
    }
}

/// Queues a connection after any change. Its next segments and its wake-up time are computed once, at the end of the
/// turn.
#[inline]
fn touch(touched: &mut VecDeque<u32>, connection: &mut Connection) {
    if !core::mem::replace(&mut connection.is_touched, true) {
        touched.push_back(connection.conn.slot);
    }
}
