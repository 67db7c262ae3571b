//! Counters of a stack. The [reason](crate::Dropped) of a drop determines which of them the drop raises.

/// Totals since the stack was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Frames received.
    pub frames_received: u64,
    /// Frames received that were addressed to others, came from an address that cannot be a peer's, use an unsupported
    /// protocol, or hold an ICMP message that has no effect.
    pub frames_ignored: u64,
    /// Frames received with a wrong checksum or an invalid layout.
    pub frames_malformed: u64,
    /// Those of `frames_malformed` that are segments whose checksum the sender left to its hardware. A veth has no such
    /// hardware: run `ethtool -K INTERFACE tx off tso off` at the peer's end.
    pub partial_checksums: u64,
    /// Frames sent.
    pub frames_sent: u64,
    /// Segments without a connection that no listener accepts.
    pub segments_unknown: u64,
    /// Resets sent.
    pub resets_sent: u64,
    /// Connections ended by a peer's reset.
    pub resets_received: u64,
    /// Segments outside the window, segments whose bytes had all arrived before, and segments with an old timestamp.
    pub unacceptable: u64,
    /// Segments that acknowledge bytes never sent, or whose acknowledgement is older than the peer's largest window
    /// (RFC 5961 §5).
    pub unacceptable_acks: u64,
    /// Challenge acknowledgements: answers to unacceptable segments, and to resets and SYNs that may be forged.
    pub challenges: u64,
    /// Segments whose timestamp is older than the last one (PAWS, RFC 7323 §5).
    pub old_timestamps: u64,
    /// Segments without a timestamp on connections that negotiated timestamps.
    pub without_timestamp: u64,
    /// Segments sent again: by a timeout, fast recovery or a tail loss probe.
    pub retransmitted: u64,
    /// Retransmission timeouts.
    pub timeouts: u64,
    /// Connections given up because the peer did not answer for too long.
    pub given_up: u64,
    /// SYN cookies sent instead of storing a half-open connection (RFC 4987 §3.6).
    pub cookies_sent: u64,
    /// Connections accepted by a SYN cookie.
    pub cookies_accepted: u64,
    /// Segments rejected because their SYN cookie had been used.
    pub cookies_used: u64,
    /// Connections refused because a table was full.
    pub connections_refused: u64,
    /// Changes of the local port of an opening connection: [`Stack::reopen_misdirected`](crate::Stack::reopen_misdirected).
    pub ports_changed: u64,
    /// Connections exported to another stack.
    pub exported: u64,
    /// Connections imported from another stack.
    pub imported: u64,
    /// Replies that belong to no connection and were discarded because their queue was full, or because their next hop was
    /// not resolved within 3 s.
    pub replies_dropped: u64,
    /// Closed connections whose TIME-WAIT ended early because the table was full.
    pub time_waits_forgotten: u64,
}
