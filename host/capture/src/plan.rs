//! A state as numbers of the kernel. Every field is checked, because a state may be forged, and the kernel checks few.

use std::net::SocketAddr;

use spillway_wire::state::{ConnectionState, Finish, Receiving, Sending, Stage};
use spillway_wire::{Bytes, Chunks};

use crate::error::CaptureError;
use crate::options::Needed;
use crate::repair::Negotiated;
use crate::system::RepairWindow;

/// Bound of a state's sequence numbers: sums of two such numbers do not overflow.
const SEQ_MAX: u64 = 1 << 61;
/// The largest window: 16 bits, scaled by 14 (RFC 7323 §2.3).
const WINDOW_MAX: u64 = (u16::MAX as u64) << SCALE_MAX;
const SCALE_MAX: u8 = 14;
/// Time by which a restored clock is ahead of the exported one, in milliseconds: longer than a captured socket usually waits
/// for the end of a move. Peers only compare and return timestamps; for this end a round trip may once seem that much longer.
const CLOCK_MARGIN_MS: u32 = 1_000;
/// The kernel's smallest segment size (TCP_MIN_MSS).
const MSS_MIN: u16 = 88;

/// How the end of this end's stream is rebuilt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OwnFin {
    None,
    /// Follows the unsent bytes.
    Unsent,
    Sent,
    Acknowledged,
}

/// What a socket needs to continue a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    pub local: SocketAddr,
    pub peer: SocketAddr,
    /// Number of the first byte in the send queue, or of an acknowledged FIN.
    pub send_start: u32,
    pub sent: Chunks,
    pub unsent: Chunks,
    pub own_fin: OwnFin,
    /// Number of the first unread byte.
    pub receive_start: u32,
    pub unread: Chunks,
    /// The peer's FIN follows the unread bytes.
    pub has_peer_fin: bool,
    pub negotiated: Negotiated,
    pub clock: Option<u32>,
    pub window: RepairWindow,
    /// An acknowledgement is owed to the peer.
    pub owes: bool,
    /// Bytes that arrived out of order, which the kernel cannot take: the peer sends them again.
    pub out_of_order_bytes: u64,
}

impl Plan {
    pub(crate) fn new(state: &ConnectionState) -> Result<Plan, CaptureError> {
        check_addresses(state)?;
        let sending = plan_sending(&state.sending, state.stage)?;
        let received = plan_receiving(&state.receiving, state.stage)?;
        ensure(state.agreed.mss >= MSS_MIN, "a segment size")?;
        let negotiated = Negotiated {
            mss: state.agreed.mss,
            peer_scale: state.sending.scale,
            own_scale: state.receiving.scale,
            has_sack: state.agreed.has_sack,
            has_timestamps: state.agreed.stamps.is_some(),
        };
        let receive_end = number(state.receiving.initial, received.end);
        let window = plan_window(state, received.end, receive_end)?;
        let is_in_microseconds =
            state.socket_options.as_ref().is_some_and(|options| options.has_microsecond_stamps);
        let clock = state.agreed.stamps.map(|stamps| clock(stamps.clock, is_in_microseconds));
        Ok(Plan {
            local: state.local,
            peer: state.peer,
            send_start: number(state.sending.initial, sending.start),
            sent: sending.sent,
            unsent: sending.unsent,
            own_fin: sending.own_fin,
            receive_start: number(state.receiving.initial, received.start),
            unread: received.unread,
            has_peer_fin: received.has_fin,
            negotiated,
            clock,
            window,
            owes: state.receiving.owes,
            out_of_order_bytes: received.out_of_order_bytes,
        })
    }

    pub(crate) fn needed(&self) -> Needed {
        Needed {
            sending: self.sent.len() + self.unsent.len(),
            receiving: self.unread.len() + self.window.rcv_wnd as usize,
        }
    }

    /// RCV.NXT before the peer's FIN.
    pub(crate) fn receive_end(&self) -> u32 {
        self.receive_start.wrapping_add(length(&self.unread))
    }

    /// SND.NXT after the sent bytes and a sent FIN.
    pub(crate) fn send_end(&self) -> u32 {
        let fin = u32::from(matches!(self.own_fin, OwnFin::Sent | OwnFin::Acknowledged));
        self.send_start.wrapping_add(length(&self.sent)).wrapping_add(fin)
    }

    /// SND.UNA.
    pub(crate) fn acknowledged(&self) -> u32 {
        if self.own_fin == OwnFin::Acknowledged { self.send_end() } else { self.send_start }
    }
}

fn ensure(is_right: bool, what: &'static str) -> Result<(), CaptureError> {
    if is_right { Ok(()) } else { Err(CaptureError::Contradiction(what)) }
}

/// The number in a segment: those of a state count from the SYN and do not wrap.
fn number(initial: u32, seq: u64) -> u32 {
    initial.wrapping_add((seq & u64::from(u32::MAX)) as u32)
}

fn length(bytes: &Chunks) -> u32 {
    // Queues of a state are far below 4 GiB.
    u32::try_from(bytes.len()).unwrap_or(u32::MAX)
}

/// The clock to set. It begins later than at the export, because the captured socket may have sent a segment since, and a clock
/// that goes back makes the peer drop segments (RFC 7323 §5.3). Since Linux 6.7 the lowest bit says whether the unit is
/// microseconds.
fn clock(clock: u32, is_in_microseconds: bool) -> u32 {
    if is_in_microseconds {
        clock.wrapping_add(CLOCK_MARGIN_MS * 1_000) | 1
    } else {
        let later = clock.wrapping_add(CLOCK_MARGIN_MS);
        later.wrapping_add(later & 1)
    }
}

fn check_addresses(state: &ConnectionState) -> Result<(), CaptureError> {
    ensure(state.local.is_ipv4() == state.peer.is_ipv4(), "addresses of two families")?;
    ensure(state.local.port() != 0 && state.peer.port() != 0, "a port of 0")?;
    for address in [state.local.ip(), state.peer.ip()] {
        ensure(!address.is_unspecified() && !address.is_multicast(), "an address that is no host's")?;
    }
    Ok(())
}

struct PlannedSending {
    start: u64,
    sent: Chunks,
    unsent: Chunks,
    own_fin: OwnFin,
}

fn plan_sending(sending: &Sending, stage: Stage) -> Result<PlannedSending, CaptureError> {
    match stage {
        Stage::Established | Stage::CloseWait => {
            ensure(sending.finish == Finish::No, "a stage that contradicts our FIN")?;
        }
        Stage::FinWait1 => {
            ensure(sending.finish == Finish::Unacknowledged, "a stage that contradicts our FIN")?
        }
        Stage::FinWait2 => {
            ensure(sending.finish == Finish::Acknowledged, "a stage that contradicts our FIN")?
        }
        Stage::Closing | Stage::LastAck => {
            return Err(CaptureError::NotOfKernels("FINs of both ends"));
        }
    }
    let (una, nxt) = (sending.una, sending.nxt);
    ensure(una >= 1 && una <= nxt && nxt < SEQ_MAX, "the range in flight")?;
    ensure(sending.scale <= SCALE_MAX, "the peer's window scale")?;
    ensure(sending.window <= WINDOW_MAX, "the peer's window")?;
    ensure(
        (sending.window..=WINDOW_MAX).contains(&sending.window_largest),
        "the largest window of the peer",
    )?;
    let queued = sending.queue.len() as u64;
    if sending.finish == Finish::Acknowledged {
        ensure(queued == 0 && una == nxt && una >= 2, "bytes after our FIN")?;
        let (sent, unsent) = (Chunks::new(), Chunks::new());
        return Ok(PlannedSending { start: una - 1, sent, unsent, own_fin: OwnFin::Acknowledged });
    }
    let has_fin = sending.finish == Finish::Unacknowledged;
    let end = una + queued;
    ensure(nxt <= end + u64::from(has_fin), "more bytes sent than queued")?;
    let own_fin = match has_fin {
        false => OwnFin::None,
        true if nxt > end => OwnFin::Sent,
        true => OwnFin::Unsent,
    };
    let in_flight = usize::try_from(nxt.min(end) - una).unwrap_or(usize::MAX);
    let part = |range| sending.queue.slice(range).ok_or(CaptureError::Contradiction("the range in flight"));
    let (sent, unsent) = (part(0..in_flight)?, part(in_flight..sending.queue.len())?);
    Ok(PlannedSending { start: una, sent, unsent, own_fin })
}

struct PlannedReceiving {
    start: u64,
    /// Number behind the unread bytes.
    end: u64,
    unread: Chunks,
    has_fin: bool,
    out_of_order_bytes: u64,
}

fn plan_receiving(receiving: &Receiving, stage: Stage) -> Result<PlannedReceiving, CaptureError> {
    let numbers = [receiving.next, receiving.edge, receiving.acknowledged, receiving.granted];
    ensure(numbers.into_iter().all(|seq| seq < SEQ_MAX), "a number beyond 2^61")?;
    ensure(receiving.next >= 1, "RCV.NXT")?;
    ensure(receiving.scale <= SCALE_MAX, "our window scale")?;
    if receiving.gate.is_some() {
        return Err(CaptureError::NotOfKernels("a gate on its acknowledgements"));
    }
    let is_past_fin = receiving.fin.is_some_and(|fin| receiving.next > fin);
    if let Some(fin) = receiving.fin {
        ensure(fin < SEQ_MAX, "a number beyond 2^61")?;
        ensure(fin >= 1 && fin + 1 >= receiving.next, "bytes after the peer's FIN")?;
    }
    ensure((stage == Stage::CloseWait) == is_past_fin, "a stage that contradicts the peer's FIN")?;
    let start = receiving.next - u64::from(is_past_fin);
    let (unread, out_of_order_bytes) = in_order(receiving, start)?;
    let end = start + unread.len() as u64;
    let has_fin = receiving.fin == Some(end);
    if has_fin && matches!(stage, Stage::FinWait1 | Stage::FinWait2) {
        return Err(CaptureError::NotOfKernels("FINs of both ends"));
    }
    ensure(receiving.acknowledged <= end + u64::from(has_fin), "the acknowledgement sent last")?;
    Ok(PlannedReceiving { start, end, unread, has_fin, out_of_order_bytes })
}

/// The bytes that follow `start` without a gap, and the number of those behind a gap.
fn in_order(receiving: &Receiving, start: u64) -> Result<(Chunks, u64), CaptureError> {
    let mut pieces: Vec<(u64, &Bytes)> = receiving.late.iter().map(|(seq, bytes)| (*seq, bytes)).collect();
    pieces.sort_by_key(|(seq, _)| *seq);
    let (mut unread, mut end, mut out_of_order_bytes) = (Chunks::new(), start, 0);
    for (seq, bytes) in pieces {
        let is_valid = seq >= start && seq < SEQ_MAX && !bytes.is_empty();
        ensure(is_valid, "a piece out of order")?;
        if seq == end && receiving.fin.is_none_or(|fin| seq + bytes.len() as u64 <= fin) {
            end += bytes.len() as u64;
            unread.push(bytes.clone());
        } else {
            ensure(seq > end, "pieces that overlap")?;
            out_of_order_bytes += bytes.len() as u64;
        }
    }
    Ok((unread, out_of_order_bytes))
}

fn plan_window(
    state: &ConnectionState,
    receive_end: u64,
    receive_end_number: u32,
) -> Result<RepairWindow, CaptureError> {
    let (sending, receiving) = (&state.sending, &state.receiving);
    // The FIN is injected, so its acknowledgement is not part of the numbers yet.
    let acknowledged = receiving.acknowledged.min(receive_end);
    let window = receiving.edge.saturating_sub(acknowledged);
    ensure(window <= WINDOW_MAX, "our window")?;
    let in_field = |window: u64| u32::try_from(window).unwrap_or(u32::MAX); // at most WINDOW_MAX
    let snd_wl1 = match sending.window_update {
        Some((seq, _)) if seq > receive_end + window => {
            return Err(CaptureError::Contradiction("the segment of the peer's window"));
        }
        // The kernel compares numbers modulo 2^32.
        Some((seq, _)) if receive_end.saturating_sub(seq) <= WINDOW_MAX => number(receiving.initial, seq),
        // The next acceptable segment sets the window.
        _ => receive_end_number.wrapping_sub(1),
    };
    Ok(RepairWindow {
        snd_wl1,
        snd_wnd: in_field(sending.window),
        max_window: in_field(sending.window_largest),
        rcv_wnd: in_field(window),
        rcv_wup: number(receiving.initial, acknowledged),
    })
}

#[cfg(test)]
mod tests {
    use spillway_wire::state::{Agreed, Stamps};

    use super::*;

    /// An established connection near the end of both number spaces: 10 bytes in flight, 5 unsent, 4 unread.
    fn state() -> ConnectionState {
        ConnectionState {
            local: "10.0.0.1:80".parse().unwrap(),
            peer: "10.0.0.2:4000".parse().unwrap(),
            stage: Stage::Established,
            listener: None,
            sending: Sending {
                initial: u32::MAX - 3,
                una: 1,
                nxt: 11,
                window: 100,
                window_largest: 200,
                window_update: Some((2, 1)),
                scale: 7,
                finish: Finish::No,
                wants_room: false,
                is_watched: false,
                reported_acknowledged: 0,
                queue: Chunks::from(vec![7; 15]),
            },
            receiving: Receiving {
                initial: u32::MAX - 1,
                next: 3,
                granted: 3,
                edge: 1_000,
                window_largest: 997,
                scale: 2,
                fin: None,
                reported_finished: false,
                gate: None,
                acknowledged: 7,
                owes: false,
                late: vec![(3, Bytes::from_static(b"late"))],
            },
            agreed: Agreed {
                mss: 1_460,
                has_sack: true,
                stamps: Some(Stamps { clock: u32::MAX, recent: None, recent_age_ns: 0 }),
            },
            received_age_ns: 0,
            recovery: None,
            attachment: None,
            request: None,
            socket_options: None,
        }
    }

    fn plan(state: &ConnectionState) -> Plan {
        Plan::new(state).unwrap()
    }

    #[test]
    fn numbers_wrap_as_in_segments() {
        let plan = plan(&state());
        assert_eq!((plan.send_start, plan.acknowledged(), plan.send_end()), (u32::MAX - 2, u32::MAX - 2, 7));
        assert_eq!((plan.sent.len(), plan.unsent.len()), (10, 5));
        assert_eq!((plan.receive_start, plan.receive_end()), (1, 5));
        let window = plan.window;
        assert_eq!((window.snd_wl1, window.snd_wnd, window.max_window), (0, 100, 200));
        assert_eq!((window.rcv_wup, window.rcv_wnd), (5, 993));
    }

    #[test]
    fn clocks_go_forward_and_their_lowest_bit_is_the_unit() {
        assert_eq!(plan(&state()).clock, Some(1_000));
        for milliseconds in 0..4 {
            assert_eq!(clock(milliseconds, false) % 2, 0);
            assert!(clock(milliseconds, false) >= milliseconds + CLOCK_MARGIN_MS);
            assert_eq!(clock(milliseconds, true) % 2, 1);
        }
    }

    #[test]
    fn an_unknown_segment_of_the_window_is_any_acceptable_one() {
        let mut state = state();
        state.sending.window_update = None;
        assert_eq!(plan(&state).window.snd_wl1, 4);
        // A number that has wrapped since would be one after all others.
        state.receiving.next = 1 << 40;
        state.receiving.late = vec![];
        state.receiving.acknowledged = 1 << 40;
        state.receiving.edge = 1 << 40;
        state.sending.window_update = Some((2, 1));
        let plan = plan(&state);
        assert_eq!(plan.window.snd_wl1, plan.receive_end().wrapping_sub(1));
    }

    #[test]
    fn bytes_behind_a_gap_are_counted_and_left_out() {
        let mut state = state();
        state.receiving.late.push((20, Bytes::from_static(b"behind")));
        state.receiving.late.insert(0, (7, Bytes::from_static(b"next")));
        let plan = plan(&state);
        assert_eq!(plan.unread.to_vec(), b"latenext");
        assert_eq!(plan.out_of_order_bytes, 6);
    }

    #[test]
    fn ends_of_the_own_direction_are_rebuilt() {
        let mut state = state();
        state.stage = Stage::FinWait1;
        state.sending.finish = Finish::Unacknowledged;
        assert_eq!(plan(&state).own_fin, OwnFin::Unsent);
        state.sending.nxt = 17;
        let sent = plan(&state);
        assert_eq!((sent.own_fin, sent.sent.len(), sent.unsent.len()), (OwnFin::Sent, 15, 0));
        assert_eq!(sent.send_end(), sent.send_start.wrapping_add(16));
        state.stage = Stage::FinWait2;
        state.sending.finish = Finish::Acknowledged;
        (state.sending.una, state.sending.queue) = (17, Chunks::new());
        let acknowledged = plan(&state);
        assert_eq!(
            (acknowledged.own_fin, acknowledged.send_end()),
            (OwnFin::Acknowledged, acknowledged.acknowledged())
        );
        assert_eq!(acknowledged.acknowledged(), sent.send_end());
    }

    #[test]
    fn the_peers_end_follows_its_bytes() {
        let mut state = state();
        state.receiving.fin = Some(7);
        state.receiving.acknowledged = 8;
        let unread = plan(&state);
        assert!(unread.has_peer_fin);
        assert_eq!((unread.receive_end(), unread.window.rcv_wup), (5, 5));
        // Bytes are missing before the FIN.
        state.receiving.late.clear();
        state.receiving.acknowledged = 3;
        assert!(!plan(&state).has_peer_fin);
        (state.stage, state.receiving.next, state.receiving.acknowledged) = (Stage::CloseWait, 8, 8);
        let read = plan(&state);
        assert!(read.has_peer_fin);
        assert_eq!((read.receive_start, read.receive_end()), (5, 5));
        // A forged number of a FIN.
        for fin in [u64::MAX, SEQ_MAX] {
            let forged = ConnectionState {
                receiving: Receiving { fin: Some(fin), ..state.receiving.clone() },
                ..state.clone()
            };
            let error = Plan::new(&forged).unwrap_err();
            assert!(matches!(error, CaptureError::Contradiction("a number beyond 2^61")), "{error}");
        }
        // Both ends have finished.
        (state.stage, state.sending.finish, state.sending.nxt) = (Stage::LastAck, Finish::Unacknowledged, 17);
        let error = Plan::new(&state).unwrap_err();
        assert!(matches!(error, CaptureError::NotOfKernels(_)), "{error}");
    }
}
