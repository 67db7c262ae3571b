//! One connection: the state machine of RFC 9293, in parts. This file has the connection's parts and its beginning.
//!
//! - `state`: the states; `context`: what the stack lends to a connection
//! - `handshake`: opening; `close`: closing
//! - `expected`: the fast path for expected segments; `arrival`: the general path
//! - `accept_segment`: checks of segments: from the peer, in the window, not old
//! - `receiving`: the receiving direction, with bytes out of order; `gate`: the limit of acknowledgements
//! - `delivery`: received bytes on their way to the application
//! - `ack`: sending and receiving acknowledgements; `duplicates`: ranges to report by D-SACK
//! - `sending`: bytes from the application; `send_queue`: where they wait; `window`: the peer's window; `persist`: probes of
//!   a closed window
//! - `timeouts`: timers that expire, and those to set
//! - `reports`: events that the application gets; `share`: parts of the stack's totals; `next_hop`: the Ethernet address
//! - `export`, `import`: moving to another stack
//! - `segmenter`: the choice of the next segment, and its bytes; `final_segments`: segments after a connection's end

mod accept_segment;
mod ack;
mod arrival;
mod close;
mod context;
mod delivery;
mod duplicates;
mod expected;
mod export;
mod final_segments;
mod gate;
mod handshake;
mod import;
mod next_hop;
mod persist;
mod receiving;
mod reports;
mod segmenter;
mod send_queue;
mod sending;
mod share;
mod state;
mod timeouts;
mod window;

use spillway_transport::{Conn, LostReason, Time};
use spillway_wire::packet::ethernet::Mac;

use crate::flow::Flow;
use crate::recovery::Recovery;
use crate::seq::{Base, FIRST, Seq};
use crate::settings::Settings;
use crate::timer::Timers;
use ack::Acking;
use handshake::Agreed;
use next_hop::NextHop;
use persist::Persist;
use receiving::Receiving;
use reports::Reports;
use send_queue::SendQueue;
use share::Share;
use state::State;
use window::PeerWindow;

pub(crate) use close::Ended;
pub(crate) use context::Context;
pub(crate) use segmenter::{write_headers, write_network};
pub(crate) use send_queue::SpentChunks;

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

#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) conn: Conn,
    pub(crate) flow: Flow,
    pub(crate) listener: Option<u16>,
    pub(crate) next_hop: NextHop,
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
    /// The connection is established, or has been.
    is_opened: bool,
    /// This connection's share of the stack's total of waiting bytes.
    waiting_share: Share,
    /// This connection's share of the stack's total of send queue memory.
    held_share: Share,
    reports: Reports,
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
            next_hop: NextHop::new(opening.mac),
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
            is_opened: false,
            waiting_share: Share::default(),
            held_share: Share::default(),
            reports: Reports::default(),
            lost: None,
            ended: None,
        }
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
}
