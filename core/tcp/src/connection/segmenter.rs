//! What to send next, and its bytes (RFC 9293 §3.7, §3.8.6.2.1).

use spillway_transport::Time;
use spillway_wire::packet::ethernet::{self, Mac};
use spillway_wire::packet::tcp::{self, Flags, Options, SackBlocks, Timestamps};
use spillway_wire::packet::{checksum, ipv4};

use super::{Connection, State};
use crate::flow::Flow;
use crate::seq::{FIRST, Seq};
use crate::settings::Settings;

/// Before a TCP header: Ethernet and IPv4.
pub(crate) const TCP_AT: usize = ethernet::HEADER_BYTES + ipv4::HEADER_BYTES;
/// NOP, NOP, timestamps.
const STAMPS_BYTES: u32 = 12;

/// One segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Plan {
    /// Sequence numbers from..to; SYN and FIN count one.
    Bytes { from: Seq, to: Seq, is_new: bool, is_probe: bool },
    /// Nothing but an acknowledgement.
    Acknowledge,
    /// One that cannot be accepted, so that the peer answers.
    Question,
}

impl Connection {
    /// Bytes of payload in a full segment without SACK blocks.
    pub(super) fn payload_max(&self) -> u32 {
        u32::from(self.agreed.mss) - if self.agreed.stamps.is_some() { STAMPS_BYTES } else { 0 }
    }

    /// The same with the blocks that are to be told now.
    fn payload_now(&self) -> u32 {
        let many = self.sack_blocks().as_slice().len() as u32; // at most 4
        let sack_bytes = if many == 0 { 0 } else { 4 + 8 * many };
        self.payload_max() - sack_bytes
    }

    /// Whether there is anything to send now.
    pub(crate) fn wants_transmit(&self, settings: &Settings) -> bool {
        self.plan(settings).is_some()
    }

    /// Writes the next frame, if there is one: its length. `slot` holds a frame of the MTU.
    pub(crate) fn transmit(
        &mut self,
        now: Time,
        settings: &Settings,
        target: Mac,
        slot: &mut [u8],
    ) -> Option<usize> {
        self.recovery.on_idle(now);
        let plan = self.plan(settings)?;
        let length = self.write(now, settings, target, slot, plan);
        self.sent(now, plan);
        Some(length)
    }

    fn plan(&self, settings: &Settings) -> Option<Plan> {
        if self.is_lost() {
            return None;
        }
        let old = |(from, to), is_probe| Plan::Bytes { from, to, is_new: false, is_probe };
        if self.repeat_syn && self.recovery.nxt() > FIRST {
            return Some(old((FIRST, FIRST + 1), false));
        }
        let mss = self.payload_now();
        if let Some(range) = self.recovery.next_retransmission(mss) {
            return Some(old(range, false));
        }
        if self.recovery.wants_probe() {
            let fresh = self.fresh(settings, u64::from(mss));
            return fresh.map(|(from, to)| Plan::Bytes { from, to, is_new: true, is_probe: true }).or_else(
                || {
                    let (from, to) = self.recovery.last_segment()?;
                    Some(old((from.max(to.saturating_sub(u64::from(mss))), to), true))
                },
            );
        }
        if let Some((from, to)) = self.fresh(settings, self.recovery.send_room()) {
            return Some(Plan::Bytes { from, to, is_new: true, is_probe: false });
        }
        if let Some(range) = self.recovery.spare_retransmission(mss) {
            return Some(old(range, false));
        }
        if self.persist.is_due {
            return Some(Plan::Question);
        }
        (self.acking.is_due && self.state != State::SynSent).then_some(Plan::Acknowledge)
    }

    /// New sequence numbers that may go now, a segment's worth.
    fn fresh(&self, settings: &Settings, room: u64) -> Option<(Seq, Seq)> {
        let nxt = self.recovery.nxt();
        if nxt == FIRST {
            return Some((FIRST, FIRST + 1));
        }
        if !self.is_opened {
            return None;
        }
        let (end, una) = (self.queue.end(), self.recovery.una());
        let mss = u64::from(self.payload_now());
        let within_window = (una + self.peer_window.size).saturating_sub(nxt);
        let bytes = end.saturating_sub(nxt).min(within_window).min(room).min(mss);
        let is_all = nxt + bytes == end;
        // A FIN needs no window once all before it is acknowledged: nothing else would ask about the window.
        let may_fin = within_window > bytes || (bytes == 0 && una == nxt);
        let fin = u64::from(is_all && may_fin && self.fin == Some(end));
        if bytes == 0 {
            return (fin > 0).then_some((nxt, nxt + 1));
        }
        let is_idle = una == nxt;
        let is_worth = bytes == mss
            || (is_all && (!settings.is_nagle || is_idle || fin > 0))
            || bytes >= (self.peer_window.largest / 2).max(1)
            || self.persist.is_override;
        is_worth.then_some((nxt, nxt + bytes + fin))
    }

    /// There is something to send, nothing is on its way, and only the peer's window is against it.
    pub(super) fn is_window_blocked(&self, settings: &Settings) -> bool {
        let is_idle = self.recovery.una() == self.recovery.nxt();
        let has_more = self.queue.end() > self.recovery.nxt();
        is_idle
            && has_more
            && self.is_opened
            && !self.is_lost()
            && self.fresh(settings, self.recovery.send_room().max(1)).is_none()
    }

    fn sent(&mut self, now: Time, plan: Plan) {
        match plan {
            Plan::Bytes { from, to, is_new, is_probe } => {
                if is_new {
                    self.recovery.on_sent(now, to);
                    if self.fin.is_some_and(|fin| to > fin) {
                        self.acking.with_fin = self.receiving.acknowledged();
                    }
                } else {
                    self.recovery.on_retransmitted(now, from, to);
                }
                if is_probe {
                    self.recovery.on_probe(now);
                }
                self.repeat_syn &= from != FIRST;
                self.persist.is_override = false;
            }
            Plan::Question => self.persist.is_due = false,
            Plan::Acknowledge => {}
        }
        if self.state != State::SynSent {
            self.receiving.edge = self.receiving.window().1.max(self.receiving.edge);
            self.acking.sent(self.receiving.acknowledged());
        }
    }

    fn write(&self, now: Time, settings: &Settings, target: Mac, slot: &mut [u8], plan: Plan) -> usize {
        let (from, to) = match plan {
            Plan::Bytes { from, to, .. } => (from, to),
            Plan::Acknowledge => (self.recovery.nxt(), self.recovery.nxt()),
            Plan::Question => (self.recovery.una() - 1, self.recovery.una() - 1),
        };
        let (is_syn, is_fin) =
            (from == FIRST && to > FIRST, self.fin.is_some_and(|fin| from <= fin && to > fin));
        let start = from + u64::from(is_syn);
        let bytes = (to - start) as usize - usize::from(is_fin); // a segment's worth
        let is_last = bytes > 0 && to == self.queue.end();
        let header = self.header(now, settings, from, is_syn, is_fin, is_last);
        let payload_at = TCP_AT + header.header_bytes();
        if bytes > 0 {
            self.queue.copy(start, &mut slot[payload_at..payload_at + bytes]);
        }
        write_headers(settings, self.flow, target, &header, bytes, slot)
    }

    pub(super) fn header(
        &self,
        now: Time,
        settings: &Settings,
        from: Seq,
        is_syn: bool,
        is_fin: bool,
        is_last: bool,
    ) -> tcp::Header {
        let has_ack = self.state != State::SynSent;
        let mut flags = if has_ack { Flags::ACK } else { Flags(0) };
        if is_syn {
            flags |= Flags::SYN;
        }
        if is_fin {
            flags |= Flags::FIN;
        }
        if is_last {
            flags |= Flags::PSH;
        }
        // A SYN's is not shifted, and one that is said again tells no more than the first: bytes may have come meanwhile.
        let left = self.receiving.edge.saturating_sub(self.receiving.acknowledged());
        let window = match (is_syn, has_ack) {
            (false, _) => self.receiving.window().0,
            (true, true) => {
                u16::try_from(left).map_or(settings.initial_window, |left| left.min(settings.initial_window))
            }
            (true, false) => settings.initial_window,
        };
        let ack = if has_ack { self.receiving.base.low(self.receiving.acknowledged()) } else { 0 };
        tcp::Header {
            source: self.flow.local.port(),
            target: self.flow.peer.port(),
            seq: self.base.low(from),
            ack,
            flags,
            window,
            urgent: 0,
            options: self.options(now, settings, is_syn),
        }
    }

    fn options(&self, now: Time, settings: &Settings, is_syn: bool) -> Options {
        let echo = |recent| if self.state == State::SynSent { 0 } else { recent };
        let stamps = self.agreed.stamps;
        let timestamps =
            stamps.map(|stamps| Timestamps { value: stamps.now(now), echo: echo(stamps.recent) });
        if is_syn {
            let has_scale = self.agreed.has_scale;
            let scale =
                if self.state == State::SynSent { settings.window_scale() } else { self.receiving.scale };
            return Options {
                mss: Some(settings.mss()),
                window_scale: has_scale.then_some(scale),
                sack_permitted: self.agreed.has_sack,
                timestamps,
                sack: SackBlocks::default(),
            };
        }
        Options { timestamps, sack: self.sack_blocks(), ..Options::default() }
    }

    /// RFC 2018 §4, RFC 2883 §4: what came twice first, then what came out of order. Nothing that a gate holds back: Linux
    /// takes a head that is told so for one that is given up again.
    fn sack_blocks(&self) -> SackBlocks {
        let mut blocks = SackBlocks::default();
        if !self.agreed.has_sack || (self.receiving.late.is_empty() && self.acking.duplicate.is_none()) {
            return blocks;
        }
        let base = self.receiving.base;
        let acknowledged = self.receiving.acknowledged();
        if let Some((from, to)) = self.acking.duplicate.filter(|(_, to)| *to <= acknowledged) {
            blocks.push(base.low(from), base.low(to));
        }
        let mut late = [(0, 0); 4];
        let many = self.receiving.blocks(&mut late);
        let most = if self.agreed.stamps.is_some() { 3 } else { 4 };
        for (from, to) in late[..many].iter().take(most - blocks.as_slice().len()) {
            blocks.push(base.low(*from), base.low(*to));
        }
        blocks
    }
}

/// Writes all headers before a payload that is in its place already: the frame's length.
pub(crate) fn write_headers(
    settings: &Settings,
    flow: Flow,
    target: Mac,
    header: &tcp::Header,
    payload_bytes: usize,
    slot: &mut [u8],
) -> usize {
    let tcp_bytes = header.header_bytes() + payload_bytes;
    let (source_ip, target_ip) = (*flow.local.ip(), *flow.peer.ip());
    let pseudo = checksum::pseudo_v4(source_ip, target_ip, ipv4::PROTOCOL_TCP, tcp_bytes as u32);
    header.emit(&mut slot[TCP_AT..TCP_AT + tcp_bytes], payload_bytes, pseudo);
    write_network(settings, flow, target, ipv4::PROTOCOL_TCP, tcp_bytes, slot)
}

/// Writes Ethernet and IPv4 before a payload that is in its place already: the frame's length.
pub(crate) fn write_network(
    settings: &Settings,
    flow: Flow,
    target: Mac,
    protocol: u8,
    payload_bytes: usize,
    slot: &mut [u8],
) -> usize {
    let packet = ipv4::Header {
        source: *flow.local.ip(),
        target: *flow.peer.ip(),
        protocol,
        ttl: settings.ttl,
        dscp_ecn: settings.dscp << 2,
        ident: 0, // packets that are never fragmented need none (RFC 6864 §4.1)
        dont_fragment: true,
        payload_bytes: payload_bytes as u16, // at most the MTU
    };
    let frame = ethernet::Header { target, source: settings.mac, kind: ethernet::KIND_IPV4 };
    if let Some(head) = slot.first_chunk_mut() {
        frame.emit(head);
    }
    if let Some(head) = slot[ethernet::HEADER_BYTES..].first_chunk_mut() {
        packet.emit(head);
    }
    TCP_AT + payload_bytes
}
