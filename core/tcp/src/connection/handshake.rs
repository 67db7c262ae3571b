//! Opening a connection (RFC 9293 §3.5, §3.10.7.3; RFC 7323 §2.2; RFC 2018 §2).

use spillway_transport::{LostReason, Time};
use spillway_wire::packet::tcp::{self, Flags};

use super::accept_segment::TimestampState;
use super::receiving::Receiving;
use super::{Connection, Context, Opening, State};
use crate::dropped::Dropped;
use crate::event::StackEvent;
use crate::flow::Flow;
use crate::recovery::{self, Recovery};
use crate::seq::{Base, FIRST, Seq};
use crate::settings::Settings;
use crate::timer::Timer;

/// Smaller segment sizes are raised to this value, as in Linux: otherwise segments would be mostly headers.
pub(super) const MSS_MIN: u16 = 88;

/// Maximum number of changes of the local port; after them a connection stays, although its packets arrive at
/// another queue. Each change costs a round trip. With 16 queues, 64 ports in a row lead to other queues in
/// one of sixty cases.
const PORT_CHANGES_MAX: u8 = 64;

/// The options that both SYNs have negotiated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Agreed {
    /// The largest segment that the peer accepts, options not counted (RFC 6691).
    pub(super) mss: u16,
    pub(super) has_sack: bool,
    /// Both ends scale their windows, possibly by 0 bits (RFC 7323 §2.2).
    pub(super) has_scale: bool,
    pub(super) timestamps: Option<TimestampState>,
}

impl Agreed {
    /// All options that our SYN offers.
    pub(super) fn offered(settings: &Settings, flow: &Flow, offset: u32) -> Agreed {
        let timestamps = TimestampState { offset, recent: None, recent_at: Time::ZERO };
        Agreed { mss: settings.mss(flow), has_sack: true, has_scale: true, timestamps: Some(timestamps) }
    }

    /// The options in use with a peer whose SYN has `options`.
    pub(super) fn negotiated(
        settings: &Settings,
        flow: &Flow,
        options: &tcp::Options,
        offset: u32,
        now: Time,
    ) -> Agreed {
        let state = |recent| TimestampState { offset, recent: Some(recent), recent_at: now };
        let timestamps = options.timestamps.map(|theirs| state(theirs.value));
        let mss = options.mss.unwrap_or(flow.mss_default()).clamp(MSS_MIN, settings.mss(flow));
        let has_scale = options.window_scale.is_some();
        Agreed { mss, has_sack: options.sack_permitted, has_scale, timestamps }
    }
}

impl Connection {
    /// A connection that this end opens.
    pub(crate) fn connect(now: Time, settings: &Settings, opening: Opening) -> Connection {
        let agreed = Agreed::offered(settings, &opening.flow, opening.timestamp_offset);
        let receiving = Receiving::new(0, settings.window_scale(), settings.initial_window, false);
        let mut connection = Connection::new(now, settings, opening, State::SynSent, agreed, receiving);
        connection.timers.set(Timer::Opening, now + settings.give_up_opening_after);
        connection
    }

    /// A connection that a peer opens with this SYN.
    pub(crate) fn accept(now: Time, settings: &Settings, opening: Opening, syn: &tcp::Header) -> Connection {
        let agreed = Agreed::negotiated(settings, &opening.flow, &syn.options, opening.timestamp_offset, now);
        let scale = if syn.options.window_scale.is_some() { settings.window_scale() } else { 0 };
        let receiving = Receiving::new(syn.seq, scale, settings.initial_window, opening.is_gated);
        let mut connection = Connection::new(now, settings, opening, State::SynReceived, agreed, receiving);
        connection.timers.set(Timer::Opening, now + settings.give_up_accepting_after);
        connection.peer_window.scale = syn.options.window_scale.unwrap_or(0);
        connection.peer_window.update(FIRST, 0, syn.window, true);
        connection
    }

    /// Whether a segment is the answer to this end's SYN, and the connection may be opened from another port
    /// instead of handling the answer.
    pub(crate) fn may_change_port(&self, header: &tcp::Header) -> bool {
        let is_answer = header.flags.contains(Flags::SYN | Flags::ACK) && !header.flags.contains(Flags::RST);
        let acknowledged = self.base.expand(header.ack, self.recovery.una());
        self.state == State::SynSent
            && is_answer
            && (acknowledged, self.recovery.nxt()) == (FIRST + 1, FIRST + 1)
            && self.port_changes < PORT_CHANGES_MAX
    }

    /// Begins to open the connection again, on another flow. Bytes that the application has granted stay
    /// granted.
    pub(crate) fn open_again(&mut self, now: Time, settings: &Settings, opening: &Opening) {
        debug_assert_eq!(self.flow, opening.flow, "the table should have the new flow");
        self.agreed = Agreed::offered(settings, &opening.flow, opening.timestamp_offset);
        self.base = Base::new(opening.initial);
        self.recovery = Recovery::new(now, &settings.recovery, u32::from(self.agreed.mss), false, FIRST);
        // The limit for opening the connection stays.
        Timer::VALUES
            .into_iter()
            .filter(|timer| *timer != Timer::Opening)
            .for_each(|timer| self.timers.stop(timer));
        self.must_repeat_syn = false;
        self.port_changes += 1;
    }

    /// Handles a segment in SYN-SENT (RFC 9293 §3.10.7.3). Returns whether it has to be answered with a reset.
    pub(super) fn handle_in_syn_sent(&mut self, cx: &mut Context<'_>, header: &tcp::Header) -> bool {
        let has = |flag| header.flags.contains(flag);
        let ack = self.base.expand(header.ack, self.recovery.una());
        let is_acked = has(Flags::ACK) && ack > self.recovery.una() && ack <= self.recovery.nxt();
        if has(Flags::RST) {
            if is_acked {
                cx.counters.resets_received += 1;
                self.lose(LostReason::Refused);
            } else {
                cx.drop(Dropped::StrayReset);
            }
            return false;
        }
        if has(Flags::ACK) && !is_acked {
            cx.drop(Dropped::BadHandshakeAck);
            return true;
        }
        if !has(Flags::SYN) {
            cx.drop(Dropped::NotASyn);
            return false;
        }
        let offset = self.agreed.timestamps.map_or(0, |ours| ours.offset);
        self.agreed = Agreed::negotiated(cx.settings, &self.flow, &header.options, offset, cx.now);
        let scales = header.options.window_scale.map(|theirs| (cx.settings.window_scale(), theirs));
        let (own_scale, peer_scale) = scales.unwrap_or((0, 0));
        // The other fields of `receiving` stay: the application may have granted bytes already.
        (self.receiving.base, self.receiving.scale) = (Base::new(header.seq), own_scale);
        self.peer_window.scale = peer_scale;
        // Without the ACK flag the acknowledgement field is undefined.
        let advertised_with = if is_acked { ack } else { self.recovery.una() };
        self.peer_window.update(FIRST, advertised_with, header.window, true);
        if is_acked {
            self.establish(cx, ack);
            self.acking.is_due = true;
        } else {
            // Simultaneous open (§3.5, figure 7).
            self.state = State::SynReceived;
            self.must_repeat_syn = true;
        }
        false
    }

    /// Establishes the connection: our SYN is acknowledged, and the peer's has arrived.
    pub(super) fn establish(&mut self, cx: &mut Context<'_>, ack: Seq) {
        self.state = if self.fin.is_some() { State::FinWait1 } else { State::Established };
        self.is_opened = true;
        self.timers.stop(Timer::Opening);
        // A SYN-ACK that is still to be sent becomes an acknowledgement.
        self.acking.is_due |= core::mem::take(&mut self.must_repeat_syn);
        self.acknowledge_syn(cx.now, ack);
        self.last_received_at = cx.now;
        let event = StackEvent::Opened { peer: self.flow.peer(), listener: self.listener };
        cx.events.push(self.conn, event);
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
