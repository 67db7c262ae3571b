//! Imports a connection from another stack (Capybara §3.3). Every field is checked, because the state may be forged.

use spillway_transport::{Conn, Time};
use spillway_wire::state::{self, ConnectionState, Finish, Sending, Stage};

use super::accept_segment::TimestampState;
use super::ack::Acking;
use super::handshake::{Agreed, MSS_MIN};
use super::next_hop::NextHop;
use super::receiving::Receiving;
use super::reports::Reports;
use super::send_queue::SendQueue;
use super::window::PeerWindow;
use super::{Connection, Opening, State};
use crate::flow::Flow;
use crate::moving::{self, ImportError};
use crate::reassembly::Reassembly;
use crate::recovery::{self, Recovery};
use crate::seq::{Seq, extended};
use crate::settings::Settings;

/// Bound of sequence numbers: no stream reaches it, and sums of two such numbers do not overflow.
const SEQ_MAX: u64 = 1 << 61;

type Checked<T> = Result<T, ImportError>;

fn ensure(is_right: bool, what: &'static str) -> Checked<()> {
    if is_right { Ok(()) } else { Err(ImportError::Contradiction(what)) }
}

fn import_flow(settings: &Settings, state: &ConnectionState) -> Checked<Flow> {
    let flow = Flow::new(state.local, state.peer);
    let flow = flow.ok_or(ImportError::Contradiction("addresses of two families"))?;
    ensure(flow.peer_port() != 0 && flow.local_port() != 0, "a port of 0")?;
    settings.check_family(flow.local().ip()).map_err(|_| ImportError::Family)?;
    Ok(flow)
}

impl Connection {
    pub(crate) fn import(
        now: Time,
        settings: &Settings,
        conn: Conn,
        state: &ConnectionState,
    ) -> Checked<Connection> {
        let flow = import_flow(settings, state)?;
        check_sending(&state.sending, state.stage)?;
        check_receiving(&state.receiving, state.stage)?;
        let opening = Opening {
            conn,
            flow,
            listener: state.listener,
            is_gated: state.receiving.gate.is_some(),
            mac: None,
            initial: state.sending.initial,
            timestamp_offset: 0,
        };
        let receiving = import_receiving(settings, &state.receiving)?;
        let agreed = import_agreed(now, settings.mss(&flow), &state.agreed)?;
        let mut connection = Connection::new(now, settings, opening, State::Established, agreed, receiving);
        connection.is_opened = true;
        if settings.one_way_at == Some(flow.local()) {
            connection.next_hop = NextHop::one_way();
        }
        connection.import_sending(now, settings, state)?;
        connection.state = match state.stage {
            Stage::Established => State::Established,
            Stage::FinWait1 => State::FinWait1,
            Stage::FinWait2 => State::FinWait2,
            Stage::CloseWait => State::CloseWait,
            Stage::Closing => State::Closing,
            Stage::LastAck => State::LastAck,
        };
        connection.last_received_at = Time(now.0.saturating_sub(state.received_age_ns));
        // One keep-alive probe counts as sent now: otherwise a connection that moves repeatedly would send one after
        // each move.
        if settings
            .keep_alive
            .is_some_and(|keep_alive| now.since(connection.last_received_at) >= keep_alive.idle)
        {
            connection.persist.count_probe(now);
        }
        if let Some(recovery) = &state.recovery {
            connection.persist.set_waiting_since(Time(now.0.saturating_sub(recovery.sent_age_ns)));
        }
        if is_beyond_window(&state.sending) {
            // The last advertised window was too small: bytes beyond it must not end the connection (MUST-37).
            connection.persist.closed_at = Some(connection.last_received_at);
        }
        // Only an owed acknowledgement is sent: for a peer with segments in flight, another one would indicate a loss.
        connection.acking = Acking::imported(extended(state.receiving.acknowledged), state.receiving.owes);
        Ok(connection)
    }

    fn import_sending(&mut self, now: Time, settings: &Settings, state: &ConnectionState) -> Checked<()> {
        let sending = &state.sending;
        let (una, nxt) = (extended(sending.una), extended(sending.nxt));
        let length = sending.queue.len() as u64;
        // An acknowledged FIN lies between the last byte and `una`.
        let start = una - u64::from(sending.finish == Finish::Acknowledged);
        self.queue = SendQueue::new(start);
        sending.queue.chunks().iter().for_each(|chunk| self.queue.push_shared(chunk.clone()));
        let end = start + length;
        let is_finished = sending.finish != Finish::No;
        self.fin = is_finished.then_some(end);
        ensure(nxt <= end + u64::from(is_finished), "more bytes sent than queued")?;
        let last_update = sending.window_update.map(|(seq, ack)| (extended(seq), extended(ack)));
        self.peer_window =
            PeerWindow::restored(sending.window, last_update, sending.scale, sending.window_largest);
        ensure(sending.reported_acknowledged <= sending.una, "more bytes reported than acknowledged")?;
        self.reports = Reports::restored(state);
        self.recovery = match &state.recovery {
            Some(recovery) => {
                let recovery = moving::recovery::from_wire(recovery, state);
                Recovery::import(now, &settings.recovery, &recovery, &mut self.timers)
                    .ok_or(ImportError::Contradiction("the segments in flight"))?
            }
            None => self.new_recovery(now, settings, una, nxt),
        };
        Ok(())
    }

    /// For a state without recovery data: all bytes in flight count as sent now.
    fn new_recovery(&mut self, now: Time, settings: &Settings, una: Seq, nxt: Seq) -> Recovery {
        let mss = self.payload_max();
        let mut recovery = Recovery::new(now, &settings.recovery, mss, self.agreed.has_sack, una - 1);
        // As after a handshake: the SYN is sent and acknowledged.
        recovery.on_sent(now, una, &mut self.timers);
        let ack = recovery::Ack {
            una,
            sack: &[],
            dsack: None,
            is_duplicate: false,
            has_sack: self.agreed.has_sack,
            rtt: None,
            peer_window: self.peer_window.size,
        };
        recovery.on_ack(now, &ack, &mut self.timers);
        let mut at = una;
        while at < nxt {
            at = nxt.min(at + u64::from(mss));
            recovery.on_sent(now, at, &mut self.timers);
        }
        recovery
    }
}

/// Whether the peer's window is closed, or smaller than the bytes in flight.
fn is_beyond_window(sending: &Sending) -> bool {
    sending.window == 0 || sending.una + sending.window < sending.nxt
}

fn check_sending(sending: &Sending, stage: Stage) -> Checked<()> {
    ensure(sending.una >= 1 && sending.una <= sending.nxt && sending.nxt < SEQ_MAX, "the range in flight")?;
    ensure(sending.scale <= 14, "the peer's window scale")?;
    ensure(sending.window <= u64::from(u16::MAX) << 14, "the peer's window")?;
    ensure(
        sending.window <= sending.window_largest && sending.window_largest < SEQ_MAX,
        "the largest window of the peer",
    )?;
    let is_valid = |(seq, ack)| seq < SEQ_MAX && ack <= sending.nxt;
    ensure(sending.window_update.is_none_or(is_valid), "the segment of the peer's window")?;
    let is_consistent = match stage {
        Stage::Established | Stage::CloseWait => sending.finish == Finish::No,
        Stage::FinWait1 => sending.finish == Finish::Unacknowledged,
        Stage::FinWait2 => sending.finish == Finish::Acknowledged,
        Stage::Closing | Stage::LastAck => sending.finish != Finish::No,
    };
    ensure(is_consistent, "a stage that contradicts our FIN")?;
    if sending.finish == Finish::Acknowledged {
        let is_empty = sending.queue.is_empty() && sending.una == sending.nxt;
        ensure(is_empty && sending.una >= 2, "bytes after our FIN")?;
    }
    Ok(())
}

fn check_receiving(receiving: &state::Receiving, stage: Stage) -> Checked<()> {
    let numbers = [receiving.next, receiving.granted, receiving.edge, receiving.window_largest];
    ensure(numbers.into_iter().all(|seq| seq < SEQ_MAX), "a number beyond 2^61")?;
    ensure(receiving.next >= 1, "RCV.NXT")?;
    ensure(receiving.scale <= 14, "our window scale")?;
    let is_past_fin = receiving.fin.is_some_and(|fin| receiving.next > fin);
    if let Some(fin) = receiving.fin {
        ensure(fin >= 1 && fin + 1 >= receiving.next, "bytes after the peer's FIN")?;
    }
    let has_finished = matches!(stage, Stage::CloseWait | Stage::Closing | Stage::LastAck);
    ensure(has_finished == is_past_fin, "a stage that contradicts the peer's FIN")?;
    ensure(!receiving.reported_finished || is_past_fin, "a FIN reported that has not arrived")?;
    ensure(
        receiving.next - u64::from(is_past_fin) <= receiving.granted.max(1),
        "more bytes received than granted",
    )?;
    if let Some(gate) = receiving.gate {
        ensure(gate >= 1, "the gate")?;
    }
    Ok(())
}

fn import_receiving(settings: &Settings, state: &state::Receiving) -> Checked<Receiving> {
    let next = extended(state.next);
    let mut pieces = alloc::vec::Vec::with_capacity(state.late.len());
    let mut bytes = 0_usize;
    for (seq, piece) in &state.late {
        ensure(*seq < SEQ_MAX && *seq >= state.next && !piece.is_empty(), "a piece out of order")?;
        bytes = bytes.saturating_add(piece.len());
        pieces.push((extended(*seq), &piece[..]));
    }
    // A piece that is next in order waits for a grant: `next - 1` makes `Reassembly::import` accept it.
    let limit = settings.reassembly_bytes_max;
    if bytes > limit {
        return Err(ImportError::TooMuch("bytes out of order"));
    }
    let waiting = Reassembly::import(next.saturating_sub(1), pieces, limit)
        .ok_or(ImportError::Contradiction("pieces out of order"))?;
    let receiving = Receiving::restored(state, waiting);
    ensure(extended(state.acknowledged) <= receiving.received(), "the acknowledgement sent last")?;
    Ok(receiving)
}

fn import_agreed(now: Time, mss_max: u16, state: &state::Agreed) -> Checked<Agreed> {
    ensure(state.mss >= MSS_MIN, "a segment size")?;
    let timestamps = state.stamps.map(|state| TimestampState {
        offset: state.clock.wrapping_sub(TimestampState::clock(now)),
        recent: state.recent,
        recent_at: Time(now.0.saturating_sub(state.recent_age_ns)),
    });
    // This stack's MTU may be smaller than the exporter's. `has_scale` matters only in SYNs.
    Ok(Agreed { mss: state.mss.min(mss_max), has_sack: state.has_sack, has_scale: false, timestamps })
}
