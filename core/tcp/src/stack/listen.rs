//! Connections that peers open (RFC 9293 §3.10.7.2), and SYN cookies when there are too many (RFC 4987 §3.6).

use alloc::boxed::Box;
use core::net::SocketAddrV4;

use spillway_transport::Conn;
use spillway_wire::packet::ethernet::Mac;
use spillway_wire::packet::tcp::{self, Flags, Options, SackBlocks, Timestamps};

use super::Stack;
use super::replies::Reply;
use crate::connection::{Connection, Opening};
use crate::cookies;
use crate::dropped::Dropped;
use crate::flow::Flow;
use crate::narrow::{in_field, low_half};

/// Distance of an initial sequence number from the last one that an earlier connection of the same flow used.
const APART: u32 = 1 << 16;

/// The result of a segment at a listener.
#[derive(Clone, Copy, Debug)]
pub(super) enum Taken {
    /// The segment is answered by a reset.
    Refused(Dropped),
    /// The segment is ignored.
    Dropped(Dropped),
    /// Nothing more is to be done with the segment.
    Done,
    /// The segment has created this connection, which must handle it.
    Continues(Conn),
}

impl Stack {
    /// The open listener at an address.
    pub(super) fn listener(&self, address: SocketAddrV4) -> Option<usize> {
        let at = self.settings.listeners.iter().position(|listener| listener.address == address);
        at.filter(|at| self.listening[*at])
    }

    /// Handles a segment of no connection. `last`: our last sequence number in a closed connection of the same flow.
    pub(super) fn handle_at_listener(
        &mut self,
        flow: Flow,
        mac: Mac,
        header: &tcp::Header,
        last: Option<u32>,
    ) -> Taken {
        let Some(listener) = self.listener(flow.local) else { return Taken::Refused(Dropped::NoListener) };
        let has = |flag| header.flags.contains(flag);
        if has(Flags::RST) {
            return Taken::Dropped(Dropped::StrayReset);
        }
        if has(Flags::ACK) {
            return if has(Flags::SYN) {
                Taken::Refused(Dropped::NoConnection)
            } else {
                self.accept_cookie(listener, flow, mac, header)
            };
        }
        if !has(Flags::SYN) {
            return Taken::Dropped(Dropped::NotASyn);
        }
        if self.half_open >= self.settings.half_open_max {
            return self.send_cookie(flow, mac, header);
        }
        // If the table is full the peer retransmits its SYN, and there may be room then.
        let Some(conn) = self.table.next() else { return Taken::Dropped(Dropped::TableFull) };
        self.begin(conn, listener, flow, mac, header, last);
        Taken::Done
    }

    fn begin(
        &mut self,
        conn: Conn,
        listener: usize,
        flow: Flow,
        mac: Mac,
        syn: &tcp::Header,
        last: Option<u32>,
    ) {
        let mut initial = self.isn.initial(self.now, flow.local.into(), flow.peer.into());
        if let Some(last) =
            last.filter(|last| initial.wrapping_sub(*last).cast_signed() < APART.cast_signed())
        {
            // The earlier connection sent faster than the clock ticks (RFC 9293 §3.6.1, MAY-2, 1).
            initial = last.wrapping_add(APART);
        }
        let opening = self.opening(conn, listener, flow, mac, initial);
        self.half_open += 1;
        self.table.add(Box::new(Connection::accept(self.now, &self.settings, opening, syn)));
        self.with(conn, |_, _| {});
    }

    fn opening(&self, conn: Conn, listener: usize, flow: Flow, mac: Mac, initial: u32) -> Opening {
        Opening {
            conn,
            flow,
            listener: Some(in_field(listener as u64)), // settings allow no more listeners
            is_gated: self.settings.listeners[listener].is_gated,
            mac: Some(mac),
            initial,
            timestamp_offset: self.timestamp_offset(flow),
        }
    }

    /// Answers a SYN by a cookie, without storing a connection.
    fn send_cookie(&mut self, flow: Flow, mac: Mac, syn: &tcp::Header) -> Taken {
        self.used_cookies.turn(self.cookies.counter(self.now));
        if !self.used_cookies.may_take() {
            return Taken::Dropped(Dropped::SynQueueFull); // the peer retransmits its SYN
        }
        let ends = cookie_flow(flow, syn.seq);
        let options = &syn.options;
        let offered = cookies::Cookie {
            mss: options.mss.unwrap_or(crate::connection::MSS_DEFAULT),
            window_scale: options.window_scale,
            sack: options.sack_permitted,
        };
        let clock = options.timestamps.map(|_| self.timestamp(flow));
        let answer = self.cookies.answer(self.now, ends, offered, clock);
        let stamps = answer.timestamp.zip(options.timestamps);
        // Without timestamps a cookie cannot keep the other options.
        let header = tcp::Header {
            source: flow.local.port(),
            target: flow.peer.port(),
            seq: answer.initial,
            ack: syn.seq.wrapping_add(1),
            flags: Flags::SYN | Flags::ACK,
            window: self.settings.initial_window,
            urgent: 0,
            options: Options {
                mss: Some(self.settings.mss()),
                window_scale: stamps.and(options.window_scale).map(|_| self.settings.window_scale()),
                sack_permitted: stamps.is_some() && options.sack_permitted,
                timestamps: stamps.map(|(value, told)| Timestamps { value, echo: told.value }),
                sack: SackBlocks::default(),
            },
        };
        self.counters.cookies_sent += 1;
        self.cookies_until = self.now + cookies::VALID;
        self.replies.push(Reply::Segment { flow, mac: Some(mac), header }, &mut self.counters);
        Taken::Done
    }

    /// Handles an ACK that may return a cookie. Accepts cookies only while some of this stack's own may be outstanding: it
    /// cannot know whether a cookie of another stack, or of its own before a restart, was used.
    fn accept_cookie(&mut self, listener: usize, flow: Flow, mac: Mac, header: &tcp::Header) -> Taken {
        if self.now >= self.cookies_until {
            return Taken::Refused(Dropped::NoConnection);
        }
        let initial = header.ack.wrapping_sub(1);
        let peer_initial = header.seq.wrapping_sub(1);
        let echo = header.options.timestamps.map(|told| told.echo);
        let ends = cookie_flow(flow, peer_initial);
        let Some(cookie) = self.cookies.check(self.now, ends, initial, echo) else {
            // The peer's first ACK may have been lost, and this be a later segment, which does not verify. A reset would end
            // a connection that the peer takes for established; a retransmission of the first segment may verify.
            return Taken::Dropped(Dropped::CookieInvalid);
        };
        self.used_cookies.turn(self.cookies.counter(self.now));
        if self.used_cookies.contains(ends, initial) {
            // The connection that this cookie began is over, and the segment is late.
            return Taken::Refused(Dropped::CookieUsed);
        }
        if !self.used_cookies.may_take() {
            return Taken::Dropped(Dropped::CookiesFull);
        }
        let Some(conn) = self.table.next() else { return Taken::Dropped(Dropped::TableFull) };
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
        self.used_cookies.add(ends, initial);
        let opening = self.opening(conn, listener, flow, mac, initial);
        let mut connection = Connection::accept(self.now, &self.settings, opening, &syn);
        connection.answered_by_cookie(self.now);
        self.table.add(Box::new(connection));
        self.half_open += 1; // until it has handled the segment itself
        Taken::Continues(conn)
    }

    fn timestamp(&self, flow: Flow) -> u32 {
        let milliseconds = low_half(self.now.as_nanos() / 1_000_000); // wraps
        milliseconds.wrapping_add(self.timestamp_offset(flow))
    }
}

pub(super) fn cookie_flow(flow: Flow, peer_initial: u32) -> cookies::Flow {
    cookies::Flow { local: flow.local.into(), peer: flow.peer.into(), peer_initial }
}
