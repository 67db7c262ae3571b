//! One end of a simulated TCP connection.

use std::collections::VecDeque;
use std::net::SocketAddr;

use spillway_transport::{Conn, LostReason, Time};

/// Index of a host in its network.
pub type HostId = usize;

#[derive(Clone, Debug)]
pub enum Segment {
    /// Accepts the connection; carries the accepting end's handle.
    SynAck(Conn),
    /// The next bytes of the stream.
    Bytes(Vec<u8>),
    /// The sender sends no further byte.
    Fin,
    /// Bytes received, and the end of the receive window as a stream offset.
    Ack { received: u64, window_end: u64, fin: bool },
    /// A reset, or another failure of the connection.
    Lost(LostReason),
}

#[derive(Clone, Debug)]
pub enum SocketEvent {
    Opened { peer: SocketAddr, listener: Option<u16> },
    Data { end: u64, bytes: Vec<u8> },
    Acknowledged { through: u64 },
    Room,
    Finished,
    Lost(LostReason),
}

#[derive(Debug)]
pub struct Socket {
    pub remote: SocketAddr,
    pub listener: Option<u16>,
    /// The other end: host and handle; `None` until the handshake has reached this end.
    pub peer: Option<(HostId, Conn)>,
    /// Earliest arrival of the next segment: segments of one direction stay in order.
    pub arrival: Time,
    /// A fault has cut the connection: all its segments are lost except `Lost`.
    pub cut: bool,
    pub opened_due: bool,
    pub lost: Option<LostReason>,
    /// The connection is in its host's list of connections with events.
    pub ready: bool,

    pub send_queue: VecDeque<u8>,
    pub sent: u64,
    pub acknowledged: u64,
    pub window_end: u64,
    pub finishing: bool,
    pub fin_sent: bool,
    pub fin_acknowledged: bool,
    pub wants_room: bool,
    pub room_due: bool,
    pub watched: bool,
    pub acknowledged_reported: u64,

    pub receive_queue: VecDeque<u8>,
    pub received: u64,
    /// Offset of the first received byte that differs from the sent one.
    pub altered_at: Option<u64>,
    pub delivered: u64,
    pub granted: u64,
    pub window_end_advertised: u64,
    pub fin_received: bool,
    pub fin_delivered: bool,
}

impl Socket {
    pub fn new(remote: SocketAddr, listener: Option<u16>, window: u64) -> Socket {
        Socket {
            remote,
            listener,
            peer: None,
            arrival: Time::ZERO,
            cut: false,
            opened_due: false,
            lost: None,
            ready: false,
            send_queue: VecDeque::new(),
            sent: 0,
            acknowledged: 0,
            window_end: window,
            finishing: false,
            fin_sent: false,
            fin_acknowledged: false,
            wants_room: false,
            room_due: false,
            watched: false,
            acknowledged_reported: 0,
            receive_queue: VecDeque::new(),
            received: 0,
            altered_at: None,
            delivered: 0,
            granted: 0,
            window_end_advertised: window,
            fin_received: false,
            fin_delivered: false,
        }
    }

    pub fn can_send(&self) -> bool {
        !self.finishing && self.lost.is_none() && self.peer.is_some()
    }

    /// Whether `poll_event` would return an event.
    pub fn has_event(&self) -> bool {
        self.opened_due
            || self.lost.is_some()
            || self.deliverable() > 0
            || self.end_is_due()
            || (self.room_due && self.can_send())
            || (self.watched && self.acknowledged > self.acknowledged_reported)
            || self.is_over()
    }

    fn deliverable(&self) -> u64 {
        (self.receive_queue.len() as u64).min(self.granted.saturating_sub(self.delivered))
    }

    fn end_is_due(&self) -> bool {
        self.fin_received && !self.fin_delivered && self.receive_queue.is_empty()
    }

    fn is_over(&self) -> bool {
        self.fin_delivered && self.fin_acknowledged
    }

    /// The next event, with at most `bytes_max` bytes of data. The caller must free the socket after `Lost`.
    pub fn poll_event(&mut self, bytes_max: u64) -> Option<SocketEvent> {
        if let Some(reason) = self.lost {
            return Some(SocketEvent::Lost(reason));
        }
        if self.opened_due {
            self.opened_due = false;
            return Some(SocketEvent::Opened { peer: self.remote, listener: self.listener });
        }
        let length = self.deliverable().min(bytes_max) as usize;
        if length > 0 {
            let bytes = self.receive_queue.drain(..length).collect();
            self.delivered += length as u64;
            return Some(SocketEvent::Data { end: self.delivered, bytes });
        }
        if self.end_is_due() {
            self.fin_delivered = true;
            return Some(SocketEvent::Finished);
        }
        if self.watched && self.acknowledged > self.acknowledged_reported {
            self.acknowledged_reported = self.acknowledged;
            return Some(SocketEvent::Acknowledged { through: self.acknowledged });
        }
        if self.room_due && self.can_send() {
            self.room_due = false;
            return Some(SocketEvent::Room);
        }
        if self.is_over() {
            self.lost = Some(LostReason::Closed);
            return Some(SocketEvent::Lost(LostReason::Closed));
        }
        None
    }
}
