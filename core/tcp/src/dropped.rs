//! Why a frame or a segment was dropped: one table with each reason's text and the counters that it raises.
//!
//! A driver may [watch](crate::Stack::watch_drops) drops. The stack then keeps the last few [`Dropping`]s until they
//! are [polled](crate::Stack::poll_dropped). Otherwise drops are only counted.

use alloc::collections::VecDeque;
use core::fmt;

use spillway_transport::Time;
use spillway_wire::packet::{Layer, PacketError, tcp};

use crate::counters::Counters;
use crate::flow::Flow;

macro_rules! reasons {
    ($($name:ident: $text:literal, [$($counter:ident),*];)*) => {
        /// Why a frame, a segment or a part of one had no effect. Some drops are still answered; their text says how.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Dropped {
            $(#[doc = $text] $name,)*
        }

        impl Dropped {
            /// All reasons.
            pub const ALL: &[Dropped] = &[$(Dropped::$name),*];

            /// The reason as text.
            pub fn text(self) -> &'static str {
                match self {
                    $(Dropped::$name => $text,)*
                }
            }

            /// Raises the counters of this reason; no other code raises them.
            fn count(self, counters: &mut Counters) {
                match self {
                    $(Dropped::$name => { $(counters.$counter += 1;)* })*
                }
            }
        }
    };
}

reasons! {
    // Frames that hold no segment, or are not for this stack.
    Malformed: "malformed: a header is cut short or contradicts itself", [frames_malformed];
    BadChecksum: "wrong checksum", [frames_malformed];
    PartialChecksum: "a checksum that the sender left to its hardware; at the peer's end of a veth: ethtool -K INTERFACE tx off tso off", [frames_malformed, partial_checksums];
    Fragment: "a fragment of an IP packet: fragments are not reassembled", [frames_malformed];
    Extension: "an IPv6 extension header or option that is malformed, or that the stack does not support", [frames_malformed];
    NotForUs: "for another address", [frames_ignored];
    UnknownProtocol: "an unsupported protocol or kind of message", [frames_ignored];
    InvalidPeer: "from an address that cannot be a peer's", [frames_ignored];
    EchoTooLarge: "an echo request whose answer exceeds the MTU", [frames_ignored];
    UnrelatedError: "an ICMP error that quotes no segment in flight", [frames_ignored];
    MtuTooSmall: "an ICMP error whose MTU is below the minimum of IPv6, 1,280 bytes", [frames_ignored];
    SoftError: "an ICMP error that may be temporary, or that ends only opening connections", [frames_ignored];

    // Segments of no connection.
    NoListener: "no connection and no open listener; answered by a reset", [segments_unknown];
    NoConnection: "an acknowledgement of no connection, at a listener; answered by a reset", [segments_unknown];
    StrayReset: "a reset of no connection, or one that does not acknowledge our SYN", [];
    NotASyn: "without SYN, where a handshake must begin with one", [];
    SynWithFin: "a SYN with a FIN: only scanners and forgers send both", [];
    TimeWait: "of a connection that has closed; a FIN or bytes are acknowledged again", [];
    Moved: "of a connection that has moved to another stack", [];
    Aborted: "of a connection that was imported and aborted; answered by a reset", [];
    TableFull: "a new connection, but the table of connections has no room for peers", [connections_refused];
    SynQueueFull: "a SYN, but half-open connections have no room, and the peer's share of used cookies is full", [connections_refused];
    CookieInvalid: "an invalid or expired cookie", [];
    CookieUsed: "a cookie that was used before; answered by a reset", [cookies_used, segments_unknown];
    CookiesFull: "a valid cookie, but the peer's share of used cookies is full", [connections_refused];

    // Segments of a connection.
    BadHandshakeAck: "a wrong acknowledgement of our SYN; answered by a reset", [];
    WithoutTimestamp: "without a timestamp, though timestamps were negotiated", [without_timestamp];
    OldTimestamp: "an old timestamp (PAWS); answered by an acknowledgement", [old_timestamps, unacceptable];
    ResetOutOfWindow: "a reset outside the window", [];
    ResetNotExact: "a reset in the window, but not at its beginning; challenged", [];
    SynInConnection: "a SYN in a connection; challenged", [];
    Duplicate: "a duplicate; answered by an acknowledgement", [unacceptable];
    OutOfWindow: "outside the window; answered by an acknowledgement", [unacceptable];
    WithoutAck: "without the ACK flag", [];
    BadAck: "acknowledges bytes never sent, or bytes older than any window; challenged", [unacceptable_acks];
    ChallengeLimited: "not challenged: too soon after the last challenge", [];
    AfterEnd: "bytes or a FIN after the peer's FIN", [];
    NoRoom: "out of order, and there is no room to keep the bytes: they must be retransmitted", [];
}

impl fmt::Display for Dropped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

impl From<PacketError> for Dropped {
    fn from(error: PacketError) -> Dropped {
        match error {
            PacketError::Checksum(_) => Dropped::BadChecksum,
            PacketError::Fragment(_) => Dropped::Fragment,
            PacketError::Extension(_) | PacketError::Option(Layer::Ipv6, _) => Dropped::Extension,
            _ => Dropped::Malformed,
        }
    }
}

/// One frame or segment that was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dropping {
    /// Time of the drop.
    pub at: Time,
    /// Reason of the drop.
    pub reason: Dropped,
    /// The segment; `None` if the frame holds none, or none that can be parsed.
    pub segment: Option<DroppedSegment>,
}

/// The fields that identify a dropped segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DroppedSegment {
    /// Local and peer address and port.
    pub flow: Flow,
    /// Sequence number on the wire.
    pub seq: u32,
    /// Acknowledgement number on the wire.
    pub ack: u32,
    /// Header flags.
    pub flags: tcp::Flags,
    /// Payload bytes.
    pub payload_bytes: usize,
}

impl fmt::Display for Dropping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(segment) = &self.segment {
            let DroppedSegment { flow, seq, ack, flags, payload_bytes } = segment;
            write!(f, "{} > {} {flags} {seq}+{payload_bytes} ack {ack}: ", flow.peer(), flow.local())?;
        }
        self.reason.fmt(f)
    }
}

/// Counts every drop, and keeps the last ones while the driver watches.
#[derive(Debug, Default)]
pub(crate) struct Drops {
    /// Maximum number of kept drops; 0 keeps none.
    kept_max: usize,
    /// The last drops, oldest first.
    kept: VecDeque<Dropping>,
    /// The segment being handled now; set only while the driver watches.
    segment: Option<DroppedSegment>,
}

impl Drops {
    /// Keeps the last `kept_max` drops; 0 keeps none. Discards those kept before.
    pub(crate) fn watch(&mut self, kept_max: usize) {
        *self = Drops { kept_max, ..Drops::default() };
    }

    #[inline]
    pub(crate) fn is_watched(&self) -> bool {
        self.kept_max > 0
    }

    /// Sets the segment to which the next drops refer; `None` if the frame holds no valid segment. Needed only while
    /// the driver [watches](Self::is_watched).
    #[cold]
    pub(crate) fn set_segment(&mut self, segment: Option<DroppedSegment>) {
        self.segment = segment;
    }

    /// Counts a drop of the current frame or segment, and keeps it if the driver watches.
    #[cold]
    pub(crate) fn add(&mut self, now: Time, reason: Dropped, counters: &mut Counters) {
        reason.count(counters);
        if self.kept_max == 0 {
            return;
        }
        if self.kept.len() >= self.kept_max {
            self.kept.pop_front();
        }
        self.kept.push_back(Dropping { at: now, reason, segment: self.segment });
    }

    pub(crate) fn poll(&mut self) -> Option<Dropping> {
        self.kept.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeSet;
    use alloc::vec::Vec;

    use super::*;

    #[test]
    fn each_reason_has_a_text_of_its_own() {
        let texts: BTreeSet<_> = Dropped::ALL.iter().map(|reason| reason.text()).collect();
        assert_eq!(texts.len(), Dropped::ALL.len());
    }

    #[test]
    fn only_the_last_drops_are_kept_and_only_while_watched() {
        let (mut drops, mut counters) = (Drops::default(), Counters::default());
        drops.add(Time(1), Dropped::BadAck, &mut counters);
        assert_eq!(drops.poll(), None);
        drops.watch(2);
        for reason in [Dropped::BadAck, Dropped::Duplicate, Dropped::OldTimestamp] {
            drops.add(Time(2), reason, &mut counters);
        }
        let kept: Vec<_> = core::iter::from_fn(|| drops.poll()).map(|dropping| dropping.reason).collect();
        assert_eq!(kept, [Dropped::Duplicate, Dropped::OldTimestamp]);
        drops.watch(0);
        drops.add(Time(3), Dropped::BadAck, &mut counters);
        assert_eq!(drops.poll(), None);
        assert_eq!(
            (counters.unacceptable_acks, counters.unacceptable),
            (3, 2),
            "unwatched drops should be counted, too"
        );
    }
}
