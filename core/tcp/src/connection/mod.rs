//! One connection: the state machine of RFC 9293, in parts.
//!
//! - `handshake`: opening; `close`: closing
//! - `expected`: the fast path for expected segments
//! - `accept_segment`: checks of segments: from the peer, in the window, not old
//! - `receiving`: the receiving direction, with bytes out of order; `gate`: the limit of acknowledgements
//! - `ack`: sending and receiving acknowledgements; `duplicates`: ranges to report by D-SACK
//! - `send_queue`: bytes from the application; `window`: the peer's window; `persist`: probes of a closed window
//! - `export`, `import`: moving to another stack
//! - `segmenter`: the choice of the next segment, and its bytes; `final_segments`: segments after a connection's end

mod accept_segment;
mod ack;
mod close;
mod duplicates;
mod expected;
mod export;
mod final_segments;
mod gate;
mod handshake;
mod import;
mod persist;
mod receiving;
mod segmenter;
mod send_queue;
mod window;

use core::ops::Range;

use spillway_transport::{Chunk, Conn, LostReason, Time};
use spillway_wire::packet::ethernet::Mac;
use spillway_wire::packet::tcp::{self, Flags};

use crate::counters::Counters;
use crate::dropped::{Dropped, Drops};
use crate::event::{Events, StackEvent};
use crate::flow::Flow;
use crate::narrow::in_memory;
use crate::recovery::{self, Recovery};
use crate::seq::{Base, FIRST, Seq};
use crate::settings::Settings;
use crate::timer::{Timer, Timers};
use ack::Acking;
use handshake::Agreed;
use persist::Persist;
use receiving::{Receiving, Room, WindowUpdate};
use send_queue::SendQueue;
use window::PeerWindow;

pub(crate) use close::Ended;
pub(crate) use segmenter::{write_headers, write_network};
pub(crate) use send_queue::SpentChunks;

/// Consecutive timeouts after which the next hop is resolved again: R1 of RFC 9293 §3.8.3. Fewer than the 3
/// that SHLD-10 recommends, because this costs only a request: frames are still sent to the old address.
const DOUBTED_AFTER: u32 = 2;

/// The states of RFC 9293 §3.3.2 except LISTEN: `stack::listeners` has the listeners, and `stack::time_wait` most of
/// TIME-WAIT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the RFC defines the names")]
pub(crate) enum State {
    SynSent,
    SynReceived,
    Established,
    FinWait1,
    FinWait2,
    CloseWait,
    Closing,
    LastAck,
    TimeWait,
    Closed,
}

/// The parts of the stack that a connection's methods may use.
pub(crate) struct Context<'a> {
    pub(crate) now: Time,
    pub(crate) settings: &'a Settings,
    pub(crate) events: &'a mut Events,
    pub(crate) spent: &'a mut SpentChunks,
    pub(crate) counters: &'a mut Counters,
    pub(crate) drops: &'a mut Drops,
    /// Room left in the stack for bytes that are out of order or not granted.
    pub(crate) waiting_bytes_free: usize,
}

impl Context<'_> {
    /// Counts the current segment, or a part of it, as dropped.
    #[cold]
    pub(crate) fn drop(&mut self, reason: Dropped) {
        self.drops.add(self.now, reason, self.counters);
    }
}

/// The parameters of a new connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Opening {
    pub(crate) conn: Conn,
    pub(crate) flow: Flow,
    /// `None`: this end opens the connection.
    pub(crate) listener: Option<u16>,
    pub(crate) is_gated: bool,
    pub(crate) mac: Option<Mac>,
    /// Initial sequence number of this end.
    pub(crate) initial: u32,
    pub(crate) timestamp_offset: u32,
}

#[derive(Debug, Default)]
pub(crate) struct SegmentResult {
    /// In-order bytes: their range in the payload, and the stream offset after them.
    pub(crate) delivery: Option<(Range<usize>, u64)>,
    /// The segment must be answered with a reset.
    pub(crate) must_reset: bool,
}

#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) conn: Conn,
    pub(crate) flow: Flow,
    pub(crate) listener: Option<u16>,
    /// The next hop's Ethernet address: the source of the peer's last accepted segment.
    pub(crate) mac: Option<Mac>,
    /// The Ethernet address used while `mac` is unknown: the one in the neighbour cache, or the previous `mac`.
    pub(crate) mac_in_doubt: Option<Mac>,
    /// The next hop's entry in the neighbour cache must be marked as doubtful before its next lookup.
    pub(crate) must_doubt_neighbour: bool,
    /// The connection is in the stack's list of touched connections.
    pub(crate) is_touched: bool,
    /// The connection is in the stack's list of those that wait for an Ethernet address.
    pub(crate) is_unresolved: bool,
    state: State,
    /// Maps this end's sequence numbers to the wire.
    base: Base,
    agreed: Agreed,
    recovery: Recovery,
    queue: SendQueue,
    /// Sequence number of this end's FIN; no byte follows it.
    fin: Option<Seq>,
    receiving: Receiving,
    acking: Acking,
    peer_window: PeerWindow,
    persist: Persist,
    /// All timers of the connection; its parts set and stop them.
    timers: Timers,
    /// The SYN must be sent again at once.
    must_repeat_syn: bool,
    /// Changes of the local port while the connection was opened.
    port_changes: u8,
    /// Arrival time of the peer's last acceptable segment.
    last_received_at: Time,
    is_watched: bool,
    wants_room: bool,
    /// The connection is established, or has been.
    is_opened: bool,
    /// This connection's share of the stack's total of waiting bytes.
    waiting_counted: usize,
    /// This connection's share of the stack's total of send queue memory.
    held_counted: usize,
    reported_acknowledged: u64,
    reported_finished: bool,
    reported_lost: bool,
    lost: Option<LostReason>,
    ended: Option<Ended>,
}

impl Connection {
    fn new(
        now: Time,
        settings: &Settings,
        opening: Opening,
        state: State,
        agreed: Agreed,
        receiving: Receiving,
    ) -> Connection {
        let last_sent = receiving.next;
        Connection {
            conn: opening.conn,
            flow: opening.flow,
            listener: opening.listener,
            mac: opening.mac,
            mac_in_doubt: None,
            must_doubt_neighbour: false,
            is_touched: false,
            is_unresolved: false,
            state,
            base: Base::new(opening.initial),
            agreed,
            recovery: Recovery::new(now, &settings.recovery, u32::from(agreed.mss), false, FIRST),
            queue: SendQueue::new(FIRST + 1),
            fin: None,
            receiving,
            acking: Acking::new(last_sent),
            peer_window: PeerWindow::default(),
            persist: Persist::default(),
            timers: Timers::default(),
            must_repeat_syn: false,
            port_changes: 0,
            last_received_at: now,
            is_watched: false,
            wants_room: false,
            is_opened: false,
            waiting_counted: 0,
            held_counted: 0,
            reported_acknowledged: 0,
            reported_finished: false,
            reported_lost: false,
            lost: None,
            ended: None,
        }
    }

    /// Handles a segment of this connection; its checksum was verified.
    pub(crate) fn handle_segment(
        &mut self,
        cx: &mut Context<'_>,
        source: Mac,
        header: &tcp::Header,
        payload: &[u8],
    ) -> SegmentResult {
        let mut handled = SegmentResult::default();
        if self.handle_expected(cx, source, header, payload, &mut handled) {
            return handled;
        }
        match self.state {
            State::Closed => {
                debug_assert!(false, "the flow of an ended connection should not be in the table")
            }
            State::SynSent => handled.must_reset = self.handle_in_syn_sent(cx, header),
            _ => self.handle_synchronised(cx, source, header, payload, &mut handled),
        }
        self.push_events(cx);
        handled
    }

    fn handle_synchronised(
        &mut self,
        cx: &mut Context<'_>,
        source: Mac,
        header: &tcp::Header,
        payload: &[u8],
        handled: &mut SegmentResult,
    ) {
        let seq = self.receiving.base.expand(header.seq, self.receiving.next);
        if !self.accept_segment(cx, seq, header, payload) {
            return;
        }
        if self.state == State::SynReceived {
            let (una, nxt) = (self.recovery.una(), self.recovery.nxt());
            let ack = self.base.expand(header.ack, una);
            if ack <= una || ack > nxt {
                cx.drop(Dropped::BadHandshakeAck);
                handled.must_reset = true;
                return;
            }
            // The window field of the SYN was not scaled, so this segment sets the peer's window as well.
            self.peer_window.update(seq, ack, header.window, header.flags.contains(Flags::SYN));
            self.establish(cx, ack);
        } else if !self.handle_ack(cx, seq, header, payload.len()) {
            return;
        }
        self.remember_timestamp(cx.now, seq, header);
        self.last_received_at = cx.now;
        self.mac = Some(source);
        self.handle_payload(cx, seq, header, payload, handled);
    }

    fn handle_payload(
        &mut self,
        cx: &mut Context<'_>,
        seq: Seq,
        header: &tcp::Header,
        payload: &[u8],
        handled: &mut SegmentResult,
    ) {
        let has_fin = header.flags.contains(Flags::FIN);
        if payload.is_empty() && !has_fin {
            return;
        }
        if self.receiving.is_finished() {
            return cx.drop(Dropped::AfterEnd);
        }
        let ahead = cx.settings.reassembly_bytes_max;
        let room = Room { ahead, bytes: ahead.min(self.waiting_counted + cx.waiting_bytes_free) };
        let before = self.receiving.acknowledged();
        let start = seq + u64::from(header.flags.contains(Flags::SYN));
        let taken = self.receiving.take(start, payload, has_fin, room);
        if let Some(range) = taken.direct {
            // Waiting bytes that follow these are delivered below.
            let end = start + range.end as u64 - FIRST - 1;
            if cx.events.is_empty() {
                handled.delivery = Some((range, end));
            } else {
                let bytes = payload[range].to_vec();
                cx.events.push(self.conn, StackEvent::Data { end, bytes });
            }
        }
        if self.receiving.has_waiting() {
            self.deliver_waiting(cx);
        }
        if taken.has_no_room {
            cx.drop(Dropped::NoRoom);
        }
        let rise = self.receiving.acknowledged() - before;
        if let Some((from, to)) = taken.duplicate.filter(|_| self.agreed.has_sack) {
            self.acking.duplicates.add(from, to);
        }
        if taken.is_out_of_order || self.receiving.is_finished() {
            self.acking.on_out_of_order(cx.now, taken.is_disordered);
        } else if rise > 0 {
            let (segment, delay) = (payload.len() as u64, cx.settings.delayed_ack);
            self.acking.on_bytes(cx.now, rise, segment, delay, &mut self.timers);
        }
        if self.receiving.is_finished() {
            self.on_fin();
        }
    }

    /// Delivers bytes that waited because they arrived out of order or before they were granted.
    fn deliver_waiting(&mut self, cx: &mut Context<'_>) {
        while let Some(bytes) = self.receiving.take_waiting() {
            let end = self.receiving.offset();
            cx.events.push(self.conn, StackEvent::Data { end, bytes });
        }
    }

    /// The application grants `bytes` more. Bytes that [wait](Self::has_waiting) may then be delivered.
    pub(crate) fn grant(&mut self, bytes: u32) {
        if !self.is_lost() {
            self.receiving.grant(bytes);
        }
    }

    /// Whether received bytes wait for a gap to be filled, or for a grant.
    pub(crate) fn has_waiting(&self) -> bool {
        self.receiving.has_waiting() && self.is_opened && !self.is_lost()
    }

    pub(crate) fn waiting_bytes(&self) -> usize {
        self.receiving.waiting.bytes()
    }

    /// Updates this connection's share of the stack's total of waiting bytes.
    #[inline]
    pub(crate) fn count_waiting(&mut self, total: &mut usize) {
        if self.waiting_counted > 0 || self.receiving.has_waiting() {
            let bytes = self.waiting_bytes();
            *total = *total - self.waiting_counted + bytes;
            self.waiting_counted = bytes;
        }
    }

    pub(crate) fn uncount_waiting(&mut self, total: &mut usize) {
        *total -= core::mem::take(&mut self.waiting_counted);
    }

    /// Memory of the send queue, in bytes.
    pub(crate) fn held(&self) -> usize {
        self.queue.held()
    }

    /// Updates this connection's share of the stack's total of send queue memory.
    #[inline]
    pub(crate) fn count_held(&mut self, total: &mut usize) {
        let held = self.queue.held();
        *total = *total - self.held_counted + held;
        self.held_counted = held;
    }

    pub(crate) fn uncount_held(&mut self, total: &mut usize) {
        *total -= core::mem::take(&mut self.held_counted);
    }

    pub(crate) fn deliver_granted(&mut self, cx: &mut Context<'_>) {
        let before = self.receiving.next;
        self.deliver_waiting(cx);
        if self.receiving.next > before && self.receiving.is_finished() {
            self.on_fin();
        }
        self.push_events(cx);
    }

    /// Opens the gate up to a stream offset.
    pub(crate) fn release(&mut self, cx: &mut Context<'_>, through: u64) {
        let before = self.receiving.acknowledged();
        self.receiving.gate.open(through);
        if self.receiving.acknowledged() > before {
            self.acking.is_due = true;
        }
        self.push_events(cx);
    }

    /// Free room of the send buffer in bytes; 0 while the connection cannot send.
    pub(crate) fn room(&self, settings: &Settings) -> usize {
        if self.fin.is_some() || self.is_lost() || !self.is_opened {
            return 0;
        }
        settings.send_buffer_bytes.saturating_sub(self.queue.len())
    }

    fn has_much_room(&self, settings: &Settings) -> bool {
        self.queue.len() == 0 || self.room(settings) >= settings.send_buffer_bytes / 4
    }

    /// Queues as many bytes as fit, and returns their number.
    pub(crate) fn send(&mut self, settings: &Settings, spent: &mut SpentChunks, bytes: &[u8]) -> usize {
        let accepted = bytes.len().min(self.room(settings));
        self.queue.push(&bytes[..accepted], spent);
        self.wants_room |= accepted < bytes.len();
        accepted
    }

    /// Requests a `Room` event for the time when a quarter of the send buffer is free.
    pub(crate) fn want_room(&mut self) {
        self.wants_room = true;
    }

    /// Queues a whole chunk, or returns it.
    pub(crate) fn send_chunk(&mut self, settings: &Settings, chunk: Chunk) -> Result<(), Chunk> {
        let room = self.room(settings);
        if chunk.is_empty() && room > 0 {
            return Ok(());
        }
        if room == 0 || (chunk.len() > room && self.queue.len() > 0) {
            self.wants_room = true;
            return Err(chunk);
        }
        self.queue.push_chunk(chunk);
        Ok(())
    }

    /// The number of queued bytes that were never sent.
    pub(crate) fn queued(&self) -> usize {
        in_memory(self.queue.end().saturating_sub(self.recovery.nxt().max(self.queue.start())))
    }

    pub(crate) fn watch(&mut self, is_watched: bool) {
        self.is_watched = is_watched;
    }

    /// The stream offset up to which the peer has acknowledged this end's bytes.
    fn acknowledged_offset(&self) -> u64 {
        let una = self.recovery.una().min(self.queue.end());
        una.saturating_sub(FIRST + 1)
    }

    /// Whether a peer is opening this connection, which is not established yet.
    pub(crate) fn is_half_open(&self) -> bool {
        self.state == State::SynReceived && self.listener.is_some()
    }

    /// Whether the application gets events of this connection. A connection opened by a peer is visible once it has
    /// been established.
    pub(crate) fn is_visible(&self) -> bool {
        self.listener.is_none() || self.is_opened
    }

    pub(crate) fn ended(&self) -> Option<Ended> {
        self.ended
    }

    /// When [`handle_timeout`](Self::handle_timeout) is due. Valid after [`settle`](Self::settle).
    #[inline]
    pub(crate) fn wakes_at(&self) -> Time {
        self.timers.next()
    }

    pub(crate) fn handle_timeout(&mut self, cx: &mut Context<'_>) {
        let now = cx.now;
        let recovery_timer = Recovery::first_expired(now, &self.timers);
        for timer in Timer::VALUES {
            if !self.timers.is_expired(timer, now) {
                continue;
            }
            match timer {
                Timer::Acknowledge => self.acking.on_delayed(&mut self.timers),
                Timer::Repeat => self.acking.on_repeat(self.receiving.is_held_back(), &mut self.timers),
                Timer::Reordering | Timer::Probe | Timer::Retransmission if recovery_timer != Some(timer) => {
                }
                Timer::Reordering => _ = self.recovery.on_overdue(now, &mut self.timers),
                Timer::Probe => self.recovery.on_probe_due(now, &mut self.timers),
                Timer::Retransmission => self.on_retransmission_timeout(cx),
                Timer::Persist => self.on_window_closed_long(cx),
                Timer::KeepAlive => self.on_idle(cx),
                Timer::Opening => self.give_up(cx),
            }
        }
        self.give_up_if_silent(cx);
        self.push_events(cx);
    }

    fn on_retransmission_timeout(&mut self, cx: &mut Context<'_>) {
        cx.counters.timeouts += 1;
        self.recovery.on_timeout(cx.now, &mut self.timers);
        // SYN-ACKs go to the sender of the SYN: forged SYNs must not fill the tables of neighbours, here or in a kernel.
        if self.recovery.timeouts() >= DOUBTED_AFTER && !self.is_half_open() {
            self.doubt_neighbour();
        }
    }

    /// Resolves the next hop again, because frames may go to an interface that no longer exists. Until the next hop is
    /// resolved, frames are sent to the old address.
    fn doubt_neighbour(&mut self) {
        self.mac_in_doubt = self.mac.take().or(self.mac_in_doubt);
        self.must_doubt_neighbour = true;
    }

    /// Sets the persist, delayed acknowledgement and keep-alive timers. Call it at the end of a turn, after all output.
    #[inline]
    pub(crate) fn settle(&mut self, now: Time, settings: &Settings) {
        if self.recovery.in_flight() == 0 && self.is_blocked_by_window(settings) {
            let is_closed = self.peer_window.size == 0;
            self.persist.start(is_closed, now, self.recovery.rto(), &mut self.timers);
        } else {
            self.persist.stop(&mut self.timers);
        }
        // A small growth of the window is advertised after a delay (RFC 9293 §3.8.6.2.2).
        let owes = self.acking.owes(&self.timers);
        if self.is_opened && !owes && self.receiving.window_update(self.agreed.mss) != WindowUpdate::None {
            self.acking.owe_within(now, settings.delayed_ack, &mut self.timers);
        }
        self.arm_keep_alive(settings);
    }

    /// Handles the acknowledgement of this end's SYN; the peer's options are known.
    fn acknowledge_syn(&mut self, now: Time, ack: Seq) {
        self.recovery.set_mss(self.payload_max());
        self.recovery.on_ack(
            now,
            &recovery::Ack {
                una: ack,
                sack: &[],
                dsack: None,
                is_duplicate: false,
                has_sack: self.agreed.has_sack,
                rtt: None,
                peer_window: self.peer_window.size,
            },
            &mut self.timers,
        );
    }
}
