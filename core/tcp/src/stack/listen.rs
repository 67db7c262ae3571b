//! Connections that peers open (RFC 9293 §3.10.7.2), and SYN cookies when half-open ones have no room (RFC 4987 §3.6).

use alloc::boxed::Box;

use spillway_transport::Conn;
use spillway_wire::packet::ethernet::Mac;
use spillway_wire::packet::tcp::{self, Flags, Options, SackBlocks, Timestamps};

use super::Stack;
use super::replies::Reply;
use crate::connection::{Connection, Opening};
use crate::cookies;
use crate::dropped::Dropped;
use crate::flow::Flow;
use crate::narrow::low_half;
use crate::settings::Listener;

/// Minimum distance of an initial sequence number from the last number that an earlier connection of the flow used.
const INITIAL_DISTANCE_MIN: u32 = 1 << 16;

#[derive(Clone, Copy, Debug)]
pub(super) enum ListenResult {
    /// The segment is answered by a reset.
    Refused(Dropped),
    /// The segment is ignored.
    Dropped(Dropped),
    Handled,
    /// The segment has created this connection, which must handle it.
    Continues(Conn),
}

impl Stack {
    /// Handles a segment without a connection. `last_seq`: the last sequence number that this end used in an
    /// earlier connection of the flow, if that connection is remembered in `time_waits`.
    pub(super) fn handle_at_listener(
        &mut self,
        flow: Flow,
        mac: Mac,
        header: &tcp::Header,
        last_seq: Option<u32>,
    ) -> ListenResult {
        let Some(listener) = self.listeners.open_at(flow.local()) else {
            return ListenResult::Refused(Dropped::NoListener);
        };
        let has = |flag| header.flags.contains(flag);
        if has(Flags::RST) {
            return ListenResult::Dropped(Dropped::StrayReset);
        }
        if has(Flags::ACK) {
            return if has(Flags::SYN) {
                ListenResult::Refused(Dropped::NoConnection)
            } else {
                self.accept_cookie(listener, flow, mac, header)
            };
        }
        if !has(Flags::SYN) {
            return ListenResult::Dropped(Dropped::NotASyn);
        }
        if has(Flags::FIN) {
            return ListenResult::Dropped(Dropped::SynWithFin);
        }
        // If the table is full the SYN is dropped: when the peer retransmits it, there may be room.
        let free = self.places_for_peers();
        if free == 0 {
            return ListenResult::Dropped(Dropped::TableFull);
        }
        // Half-open connections take at most half of the places that other connections leave: peers that return cookies
        // need places, too.
        if self.half_open >= self.settings.half_open_max || self.half_open + 1 >= free {
            // A cookie's sequence number may be one that the earlier connection used (RFC 6191), so none is sent. The
            // peer retransmits its SYN.
            return match last_seq {
                Some(_) => ListenResult::Dropped(Dropped::SynQueueFull),
                None => self.send_cookie(flow, mac, header),
            };
        }
        let Some(conn) = self.table.next() else { return ListenResult::Dropped(Dropped::TableFull) };
        self.time_waits.forget(&flow);
        self.open(conn, listener, flow, mac, header, last_seq);
        ListenResult::Handled
    }

    /// Free places in the table of connections, without those that are kept for imported connections.
    pub(super) fn free_places(&self) -> u32 {
        let taken = self.table.len().saturating_add(self.kept_places);
        self.settings.connections_max.saturating_sub(u32::try_from(taken).unwrap_or(u32::MAX))
    }

    /// [`free_places`](Self::free_places) without those that are kept for connections that this end opens.
    fn places_for_peers(&self) -> u32 {
        let opened = u32::try_from(self.table.opened()).unwrap_or(u32::MAX);
        self.free_places().saturating_sub(self.settings.connect_reserve.saturating_sub(opened))
    }

    fn open(
        &mut self,
        conn: Conn,
        listener: (u16, Listener),
        flow: Flow,
        mac: Mac,
        syn: &tcp::Header,
        last_seq: Option<u32>,
    ) {
        let mut initial = self.isn.initial(self.now, flow.local(), flow.peer());
        let is_near =
            |last: &u32| initial.wrapping_sub(*last).cast_signed() < INITIAL_DISTANCE_MIN.cast_signed();
        if let Some(last) = last_seq.filter(is_near) {
            // The earlier connection sent faster than the clock ticks (RFC 9293 §3.6.1, MAY-2, condition 1).
            initial = last.wrapping_add(INITIAL_DISTANCE_MIN);
        }
        let opening = self.opening(conn, listener, flow, mac, initial);
        self.half_open += 1;
        self.table.add(Box::new(Connection::accept(self.now, &self.settings, opening, syn)));
        self.with(conn, |_, _| {});
    }

    fn opening(
        &self,
        conn: Conn,
        (index, listener): (u16, Listener),
        flow: Flow,
        mac: Mac,
        initial: u32,
    ) -> Opening {
        Opening {
            conn,
            flow,
            listener: Some(index),
            is_gated: listener.is_gated,
            mac: Some(mac),
            initial,
            timestamp_offset: self.timestamp_offset(flow),
        }
    }

    /// Answers a SYN with a cookie, without storing a connection.
    fn send_cookie(&mut self, flow: Flow, mac: Mac, syn: &tcp::Header) -> ListenResult {
        self.used_cookies.advance_to(self.cookies.counter(self.now));
        if !self.used_cookies.has_room_for(flow.peer().ip()) {
            return ListenResult::Dropped(Dropped::SynQueueFull); // the peer retransmits its SYN
        }
        let binding = cookie_binding(flow, syn.seq);
        let options = &syn.options;
        let offered = cookies::SynOptions {
            mss: options.mss.unwrap_or(flow.mss_default()),
            window_scale: options.window_scale,
            sack: options.sack_permitted,
        };
        let clock = options.timestamps.map(|_| self.timestamp(flow));
        let answer = self.cookies.answer(self.now, binding, offered, clock);
        let timestamps = answer.timestamp.zip(options.timestamps);
        // Without timestamps a cookie cannot keep the other options.
        let header = tcp::Header {
            source: flow.local_port(),
            target: flow.peer_port(),
            seq: answer.initial,
            ack: syn.seq.wrapping_add(1),
            flags: Flags::SYN | Flags::ACK,
            window: self.settings.initial_window,
            urgent: 0,
            options: Options {
                mss: Some(self.settings.mss(&flow)),
                window_scale: timestamps.and(options.window_scale).map(|_| self.settings.window_scale()),
                sack_permitted: timestamps.is_some() && options.sack_permitted,
                timestamps: timestamps.map(|(value, theirs)| Timestamps { value, echo: theirs.value }),
                sack: SackBlocks::default(),
            },
        };
        self.counters.cookies_sent += 1;
        self.cookies_until = self.now + cookies::VALID;
        self.replies.push(Reply::Segment { flow, mac: Some(mac), header }, &mut self.counters);
        ListenResult::Handled
    }

    /// Handles an ACK that may return a cookie. Accepts cookies only while cookies of this stack may be outstanding:
    /// the stack does not know which cookies were used on another stack, or here before a restart.
    fn accept_cookie(
        &mut self,
        listener: (u16, Listener),
        flow: Flow,
        mac: Mac,
        header: &tcp::Header,
    ) -> ListenResult {
        if self.now >= self.cookies_until {
            return ListenResult::Refused(Dropped::NoConnection);
        }
        let initial = header.ack.wrapping_sub(1);
        let peer_initial = header.seq.wrapping_sub(1);
        let echo = header.options.timestamps.map(|theirs| theirs.echo);
        let binding = cookie_binding(flow, peer_initial);
        let Some(cookie) = self.cookies.check(self.now, binding, initial, echo) else {
            // This may be a later segment of a peer whose first ACK was lost: its numbers do not match the cookie, but
            // those of the retransmitted first segment will. A reset would end the connection, which is established for
            // the peer.
            return ListenResult::Dropped(Dropped::CookieInvalid);
        };
        self.used_cookies.advance_to(self.cookies.counter(self.now));
        if self.used_cookies.contains(binding, initial) {
            // The segment is a late copy: the connection of this cookie has ended.
            return ListenResult::Refused(Dropped::CookieUsed);
        }
        if !self.used_cookies.has_room_for(flow.peer().ip()) {
            return ListenResult::Dropped(Dropped::CookiesFull);
        }
        if self.places_for_peers() == 0 {
            return ListenResult::Dropped(Dropped::TableFull);
        }
        let Some(conn) = self.table.next() else { return ListenResult::Dropped(Dropped::TableFull) };
        let syn = tcp::Header {
            seq: peer_initial,
            ack: 0,
            flags: Flags::SYN,
            options: Options {
                mss: Some(cookie.mss),
                window_scale: cookie.window_scale,
                sack_permitted: cookie.sack,
                ..header.options
            },
            ..*header
        };
        self.counters.cookies_accepted += 1;
        self.used_cookies.add(binding, initial);
        let opening = self.opening(conn, listener, flow, mac, initial);
        let mut connection = Connection::accept(self.now, &self.settings, opening, &syn);
        connection.count_cookie_as_syn(self.now);
        self.table.add(Box::new(connection));
        self.half_open += 1; // until the connection has handled the segment
        ListenResult::Continues(conn)
    }

    fn timestamp(&self, flow: Flow) -> u32 {
        let milliseconds = low_half(self.now.as_nanos() / 1_000_000); // wraps
        milliseconds.wrapping_add(self.timestamp_offset(flow))
    }
}

pub(super) fn cookie_binding(flow: Flow, peer_initial: u32) -> cookies::Binding {
    cookies::Binding { local: flow.local(), peer: flow.peer(), peer_initial }
}
