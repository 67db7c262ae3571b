//! What has happened to a stack since it was made. Counters of what was dropped rise by [reason](crate::Dropped).

/// Each only rises.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Frames that came.
    pub frames_received: u64,
    /// Of those, for others, or of protocols that the stack does not speak.
    pub frames_ignored: u64,
    /// Of those, with wrong checksums or layouts.
    pub frames_malformed: u64,
    /// Frames that were sent.
    pub frames_sent: u64,
    /// Segments of peers for which there is neither a connection nor a listener.
    pub segments_unknown: u64,
    /// Resets sent.
    pub resets_sent: u64,
    /// Connections that a peer's reset has ended.
    pub resets_received: u64,
    /// Segments outside the window, or with bytes that were there already.
    pub unacceptable: u64,
    /// Of peers who acknowledge what was never sent (RFC 5961 §5).
    pub unacceptable_acks: u64,
    /// Answers to those, and to resets and SYNs that may be forged.
    pub challenges: u64,
    /// Older than what came before (RFC 7323 §5).
    pub old_timestamps: u64,
    /// Without the timestamp that was agreed on.
    pub without_timestamp: u64,
    /// Retransmission timeouts.
    pub timeouts: u64,
    /// Connections whose peers have not answered for too long.
    pub given_up: u64,
    /// Cookies sent instead of remembering a half-open connection (RFC 4987 §3.6).
    pub cookies_sent: u64,
    /// Connections that came of one.
    pub cookies_accepted: u64,
    /// Segments whose cookie had been used before.
    pub cookies_used: u64,
    /// Connections refused because a table was full.
    pub connections_refused: u64,
    /// Connections that went on elsewhere.
    pub exported: u64,
    /// Connections that came from elsewhere.
    pub imported: u64,
    /// Answers not given, because too many waited.
    pub replies_dropped: u64,
    /// Closed connections forgotten before their time, because too many were remembered.
    pub time_waits_forgotten: u64,
}
