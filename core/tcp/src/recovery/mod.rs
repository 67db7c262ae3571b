//! What was sent and is not acknowledged: loss, round-trip times, congestion.
