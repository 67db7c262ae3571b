//! Initial sequence numbers and timestamp offsets by a keyed hash (RFC 6528, RFC 7323 §5.4).
