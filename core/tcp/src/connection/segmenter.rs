//! Chooses the next segment, and writes it (RFC 9293 §3.7, §3.8.6.2.1).

use core::net::Ipv6Addr;

use spillway_transport::Time;
use spillway_wire::packet::checksum::Sum;
use spillway_wire::packet::ethernet::{self, Mac};
use spillway_wire::packet::tcp::{self, Flags, Options, SackBlocks, Timestamps};
use spillway_wire::packet::{checksum, ipv4, ipv6};

use super::accept_segment::TimestampState;
use super::receiving::{Advertised, WindowUpdate};
use super::{Connection, State};
use crate::flow::{Addresses, Flow, TCP_AT_V4};
use crate::narrow::{in_memory, in_packet};
use crate::seq::{FIRST, Seq};
use crate::settings::Settings;

/// Bytes of the timestamps option and the two no-operations before it.
const TIMESTAMPS_BYTES: u32 = 12;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Plan {
    /// Sequence numbers `from..to`; SYN and FIN count one each.
    Bytes { from: Seq, to: Seq, is_new: bool, is_probe: bool },
    /// A pure acknowledgement.
    Acknowledge,
    /// A keep-alive or window probe: a segment without bytes that is not acceptable, so that the peer answers.
    EmptyProbe,
}

impl Connection {
    /// Bytes of payload in a full segment without SACK blocks.
    #[inline]
    pub(super) fn payload_max(&self) -> u32 {
        u32::from(self.agreed.mss) - if self.agreed.timestamps.is_some() { TIMESTAMPS_BYTES } else { 0 }
    }

    /// Bytes of payload in a full segment with the SACK blocks that are to be sent now.
    fn payload_now(&self) -> u32 {
        if !self.may_have_sack_blocks() {
            return self.payload_max();
        }
        let count = u32::from(in_packet(self.sack_blocks().as_slice().len())); // at most 4
        let sack_bytes = if count == 0 { 0 } else { 4 + 8 * count };
        self.payload_max() - sack_bytes
    }

    /// Writes the next frame into `slot`, which has room for the MTU, and returns the frame's length. Counts a repeated
    /// segment in `retransmitted`.
    pub(crate) fn transmit(
        &mut self,
        now: Time,
        settings: &Settings,
        target: Mac,
        slot: &mut [u8],
        retransmitted: &mut u64,
    ) -> Option<usize> {
        if self.recovery.in_flight() == 0 {
            if self.persist.is_blocked() {
                self.recovery.on_blocked(now);
            } else {
                self.recovery.on_idle(now);
            }
        }
        let plan = self.plan(settings)?;
        *retransmitted += u64::from(matches!(plan, Plan::Bytes { is_new: false, .. }));
        let advertised = self.receiving.to_advertise();
        let length = self.write(now, settings, target, slot, plan, advertised);
        self.on_sent(now, plan, advertised);
        Some(length)
    }

    pub(crate) fn wants_transmit(&self, settings: &Settings) -> bool {
        self.plan(settings).is_some()
    }

    /// A quick check. `true`: there is nothing more to send; `false`: there may be something.
    #[inline]
    pub(crate) fn has_sent_all(&self) -> bool {
        self.recovery.is_quiet()
            && self.recovery.nxt() >= self.queue.end()
            && self.is_opened
            && self.fin.is_none()
            && !self.acking.is_due
            && !self.persist.is_due
    }

    fn plan(&self, settings: &Settings) -> Option<Plan> {
        if self.is_lost() {
            return None;
        }
        let repeated = |(from, to), is_probe| Plan::Bytes { from, to, is_new: false, is_probe };
        if self.must_repeat_syn && self.recovery.nxt() > FIRST {
            return Some(repeated((FIRST, FIRST + 1), false));
        }
        let mss = self.payload_now();
        if self.recovery.is_quiet() {
            if let Some((from, to)) = self.next_new_range(settings, mss, self.recovery.quiet_room()) {
                return Some(Plan::Bytes { from, to, is_new: true, is_probe: false });
            }
            return self.plan_without_bytes();
        }
        if let Some(range) = self.recovery.next_retransmission(mss) {
            return Some(repeated(range, false));
        }
        if self.recovery.wants_probe() {
            let new_range = self.next_new_range(settings, mss, u64::from(mss));
            return new_range
                .map(|(from, to)| Plan::Bytes { from, to, is_new: true, is_probe: true })
                .or_else(|| {
                    let (from, to) = self.recovery.last_segment()?;
                    Some(repeated((from.max(to.saturating_sub(u64::from(mss))), to), true))
                });
        }
        if let Some((from, to)) = self.next_new_range(settings, mss, self.recovery.send_room()) {
            return Some(Plan::Bytes { from, to, is_new: true, is_probe: false });
        }
        if let Some(range) = self.recovery.spare_retransmission(mss) {
            return Some(repeated(range, false));
        }
        self.plan_without_bytes()
    }

    fn plan_without_bytes(&self) -> Option<Plan> {
        if self.persist.is_due {
            return Some(Plan::EmptyProbe);
        }
        let is_update_due =
            || self.is_opened && self.receiving.window_update(self.agreed.mss) == WindowUpdate::Due;
        let is_due = self.acking.is_due || is_update_due();
        (is_due && self.state != State::SynSent).then_some(Plan::Acknowledge)
    }

    /// New sequence numbers that may be sent now, at most one segment.
    #[inline]
    fn next_new_range(&self, settings: &Settings, mss: u32, room: u64) -> Option<(Seq, Seq)> {
        let nxt = self.recovery.nxt();
        if nxt == FIRST {
            return Some((FIRST, FIRST + 1));
        }
        let (end, una) = (self.queue.end(), self.recovery.una());
        if !self.is_opened || (nxt >= end && self.fin.is_none()) {
            return None;
        }
        let mss = u64::from(mss);
        let within_window = (una + self.peer_window.size).saturating_sub(nxt);
        let bytes = end.saturating_sub(nxt).min(within_window).min(room).min(mss);
        let is_all = nxt + bytes == end;
        // A FIN needs no window once all bytes before it are acknowledged: no other segment would probe the window.
        let may_send_fin = within_window > bytes || (bytes == 0 && una == nxt);
        let fin = u64::from(is_all && may_send_fin && self.fin == Some(end));
        if bytes == 0 {
            return (fin > 0).then_some((nxt, nxt + 1));
        }
        let is_idle = una == nxt;
        let is_worthwhile = bytes == mss
            || (is_all && (!settings.is_nagle || is_idle || fin > 0))
            || bytes >= (self.peer_window.largest / 2).max(1)
            || self.persist.is_override;
        is_worthwhile.then_some((nxt, nxt + bytes + fin))
    }

    /// Whether bytes are queued, none are in flight, and only the peer's window prevents sending.
    pub(super) fn is_blocked_by_window(&self, settings: &Settings) -> bool {
        let is_idle = self.recovery.una() == self.recovery.nxt();
        let has_more = self.queue.end() > self.recovery.nxt();
        is_idle
            && has_more
            && self.is_opened
            && !self.is_lost()
            && self.next_new_range(settings, self.payload_now(), self.recovery.send_room().max(1)).is_none()
    }

    fn on_sent(&mut self, now: Time, plan: Plan, advertised: Advertised) {
        match plan {
            Plan::Bytes { from, to, is_new, is_probe } => {
                if is_new {
                    self.recovery.on_sent(now, to, &mut self.timers);
                    self.acking.on_bytes_sent();
                    if self.fin.is_some_and(|fin| to > fin) {
                        self.acking.sent_with_fin = advertised.acknowledged;
                    }
                } else {
                    self.recovery.on_retransmitted(now, from, to, &mut self.timers);
                }
                if is_probe {
                    self.recovery.on_probe(now, &mut self.timers);
                }
                self.must_repeat_syn &= from != FIRST;
                self.persist.is_override = false;
            }
            Plan::EmptyProbe => self.persist.is_due = false,
            Plan::Acknowledge => {}
        }
        if self.state != State::SynSent {
            let is_syn = matches!(plan, Plan::Bytes { from: FIRST, .. });
            if !is_syn {
                self.receiving.on_advertised(advertised); // the window of a SYN is not scaled, and was recorded before
            }
            let receiving = &self.receiving;
            self.acking.on_sent(now, advertised.acknowledged, || receiving.is_held_back(), &mut self.timers);
            if !is_syn && !self.acking.duplicates.is_empty() {
                self.on_duplicate_reported(advertised);
            }
        }
    }

    /// Removes the duplicate that the segment has reported; if others remain, another acknowledgement is due.
    #[cold]
    fn on_duplicate_reported(&mut self, advertised: Advertised) {
        let received = self.receiving.received();
        let duplicates = &mut self.acking.duplicates;
        if let Some(range) = duplicates.next(advertised.acknowledged, received) {
            duplicates.remove_reported(range);
            self.acking.is_due = self.acking.duplicates.next(advertised.acknowledged, received).is_some();
        }
    }

    fn write(
        &self,
        now: Time,
        settings: &Settings,
        target: Mac,
        slot: &mut [u8],
        plan: Plan,
        advertised: Advertised,
    ) -> usize {
        let (from, to, is_probe) = match plan {
            Plan::Bytes { from, to, is_probe, .. } => (from, to, is_probe),
            Plan::Acknowledge => (self.recovery.nxt(), self.recovery.nxt(), false),
            Plan::EmptyProbe => (self.recovery.una() - 1, self.recovery.una() - 1, false),
        };
        if from == FIRST && to > FIRST {
            return self.write_syn(now, settings, target, slot);
        }
        let is_fin = self.fin.is_some_and(|fin| from <= fin && to > fin);
        let bytes = in_memory(to - from) - usize::from(is_fin);
        let is_last = bytes > 0 && to == self.queue.end();
        let fin = if is_fin { Flags::FIN } else { Flags::NONE };
        // Linux acknowledges a pushed segment once its program has read it, and any other single segment after 40 ms.
        let psh = if is_last || (is_probe && bytes > 0) { Flags::PSH } else { Flags::NONE };
        let header = self.header(now, from, fin | psh, advertised);
        let payload_at = self.flow.tcp_at() + header.header_bytes();
        if bytes > 0 {
            self.queue.copy(from, &mut slot[payload_at..payload_at + bytes]);
        }
        write_headers(settings, &self.flow, target, &header, bytes, slot)
    }

    /// The header of a segment other than a SYN, with these flags besides ACK.
    #[inline]
    pub(super) fn header(&self, now: Time, from: Seq, flags: Flags, advertised: Advertised) -> tcp::Header {
        let timestamps = self.agreed.timestamps;
        let timestamps = timestamps.map(|ours| Timestamps { value: ours.value_at(now), echo: ours.echo() });
        let sack = if self.may_have_sack_blocks() { self.sack_blocks() } else { SackBlocks::default() };
        tcp::Header {
            source: self.flow.local_port(),
            target: self.flow.peer_port(),
            seq: self.base.on_wire(from),
            ack: self.receiving.base.on_wire(advertised.acknowledged),
            flags: flags | Flags::ACK,
            window: advertised.window,
            urgent: 0,
            options: Options { timestamps, sack, ..Options::default() },
        }
    }

    #[cold]
    fn write_syn(&self, now: Time, settings: &Settings, target: Mac, slot: &mut [u8]) -> usize {
        let is_answer = self.state != State::SynSent;
        let acknowledged = self.receiving.acknowledged();
        // The window is not scaled. A repeated SYN advertises no more than the first: bytes may have arrived since.
        let left = u16::try_from(self.receiving.edge.saturating_sub(acknowledged)).unwrap_or(u16::MAX);
        let (ack, flags, window) = if is_answer {
            let ack = self.receiving.base.on_wire(acknowledged);
            (ack, Flags::SYN | Flags::ACK, settings.initial_window.min(left))
        } else {
            (0, Flags::SYN, settings.initial_window)
        };
        let echo = |ours: TimestampState| if is_answer { ours.echo() } else { 0 };
        let option = |ours: TimestampState| Timestamps { value: ours.value_at(now), echo: echo(ours) };
        let scale = if is_answer { self.receiving.scale } else { settings.window_scale() };
        let header = tcp::Header {
            source: self.flow.local_port(),
            target: self.flow.peer_port(),
            seq: self.base.on_wire(FIRST),
            ack,
            flags,
            window,
            urgent: 0,
            options: Options {
                mss: Some(settings.mss(&self.flow)),
                window_scale: self.agreed.has_scale.then_some(scale),
                sack_permitted: self.agreed.has_sack,
                timestamps: self.agreed.timestamps.map(option),
                sack: SackBlocks::default(),
            },
        };
        write_headers(settings, &self.flow, target, &header, 0, slot)
    }

    #[inline]
    fn may_have_sack_blocks(&self) -> bool {
        (!self.receiving.waiting.is_empty() || !self.acking.duplicates.is_empty()) && self.agreed.has_sack
    }

    /// RFC 2018 §4, RFC 2883 §4: a duplicate first, then the block around it, then other blocks out of order. The
    /// blocks have no bytes that the gate holds back: Linux treats a SACKed but unacknowledged first segment as
    /// reneging.
    fn sack_blocks(&self) -> SackBlocks {
        let mut blocks = SackBlocks::default();
        let receiving = &self.receiving;
        let mut push_block =
            |(from, to): (Seq, Seq)| blocks.push(receiving.base.on_wire(from), receiving.base.on_wire(to));
        let mut room = if self.agreed.timestamps.is_some() { 3 } else { 4 };
        let mut around = None;
        if !self.acking.duplicates.is_empty()
            && let Some(range) = self.acking.duplicates.next(receiving.acknowledged(), receiving.received())
        {
            around = receiving.waiting.block_around(range.0);
            for block in [Some(range), around].into_iter().flatten() {
                push_block(block);
                room -= 1;
            }
        }
        let mut waiting = [(0, 0); 5];
        let count = receiving.blocks(&mut waiting);
        waiting[..count]
            .iter()
            .filter(|block| Some(**block) != around)
            .take(room)
            .for_each(|block| push_block(*block));
        blocks
    }
}

/// Writes all headers before a payload that is already in place, and returns the frame's length.
#[inline(always)]
pub(crate) fn write_headers(
    settings: &Settings,
    flow: &Flow,
    target: Mac,
    header: &tcp::Header,
    payload_bytes: usize,
    slot: &mut [u8],
) -> usize {
    let tcp_bytes = header.header_bytes() + payload_bytes;
    let length = u32::from(in_packet(tcp_bytes));
    match *flow.addresses() {
        Addresses::V4 { local, peer } => {
            let pseudo = checksum::pseudo_v4(local, peer, ipv4::PROTOCOL_TCP, length);
            header.emit(&mut slot[TCP_AT_V4..TCP_AT_V4 + tcp_bytes], payload_bytes, pseudo);
        }
        Addresses::V6 { local, peer } => {
            let pseudo = checksum::pseudo_v6(local, peer, ipv4::PROTOCOL_TCP, length);
            emit_over_ipv6(header, payload_bytes, pseudo, &mut slot[flow.tcp_at()..]);
        }
    }
    write_network(settings, flow, target, ipv4::PROTOCOL_TCP, tcp_bytes, slot)
}

/// Not inlined, so that the code for IPv4, which is inlined, stays short.
#[inline(never)]
fn emit_over_ipv6(header: &tcp::Header, payload_bytes: usize, pseudo: Sum, out: &mut [u8]) {
    header.emit(out, payload_bytes, pseudo);
}

/// Writes the Ethernet and IP headers before a payload that is already in place, and returns the frame's length.
#[inline(always)]
pub(crate) fn write_network(
    settings: &Settings,
    flow: &Flow,
    target: Mac,
    protocol: u8,
    payload_bytes: usize,
    slot: &mut [u8],
) -> usize {
    let payload_length = in_packet(payload_bytes);
    let kind = match *flow.addresses() {
        Addresses::V4 { local, peer } => {
            let packet = ipv4::Header {
                source: local,
                target: peer,
                protocol,
                ttl: settings.ttl,
                dscp_ecn: settings.dscp << 2,
                ident: 0, // not used in packets that are never fragmented (RFC 6864 §4.1)
                dont_fragment: true,
                payload_bytes: payload_length,
            };
            emit_at(slot, ethernet::HEADER_BYTES, |head| packet.emit(head));
            ethernet::KIND_IPV4
        }
        Addresses::V6 { local, peer } => {
            write_ipv6(settings, (local, peer), protocol, payload_length, slot);
            ethernet::KIND_IPV6
        }
    };
    let frame = ethernet::Header { target, source: settings.mac, kind };
    emit_at(slot, 0, |head| frame.emit(head));
    flow.tcp_at() + payload_bytes
}

#[inline(never)]
fn write_ipv6(
    settings: &Settings,
    (source, target): (Ipv6Addr, Ipv6Addr),
    protocol: u8,
    payload_bytes: u16,
    slot: &mut [u8],
) {
    let packet = ipv6::Header {
        source,
        target,
        protocol,
        hop_limit: settings.ttl,
        dscp_ecn: settings.dscp << 2,
        // No label (RFC 6437 §3): routers can balance load by the ports, as for IPv4, and a label would change when the
        // connection moves to a host with another key.
        flow_label: 0,
        payload_bytes,
    };
    emit_at(slot, ethernet::HEADER_BYTES, |head| packet.emit(head));
}

/// Writes a header of fixed length at an offset of the slot.
#[inline(always)]
fn emit_at<const N: usize>(slot: &mut [u8], at: usize, emit: impl FnOnce(&mut [u8; N])) {
    match slot[at..].first_chunk_mut() {
        Some(head) => emit(head),
        None => debug_assert!(false, "the slot should hold a frame: `poll_transmit` checks its length"),
    }
}
