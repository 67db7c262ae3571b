//! Headers of TCP segments (RFC 9293 §3.1); their options are in [`options`].

pub mod options;

use core::fmt;
use core::ops::{BitOr, BitOrAssign};

pub use options::{Options, SACK_BLOCKS_MAX, SackBlocks, Timestamps, WINDOW_SCALE_MAX};

use super::checksum::Sum;
use super::{Layer, PacketError};

/// Bytes of a header without options.
pub const HEADER_BYTES: usize = 20;
/// Bytes of the longest header, with 40 bytes of options.
pub const HEADER_BYTES_MAX: usize = 60;

/// Bytes of a header with timestamps as its only option.
const TIMESTAMPS_HEADER_BYTES: usize = HEADER_BYTES + options::ONLY_TIMESTAMPS_BYTES;
/// Offset of the checksum in a header.
const CHECKSUM_OFFSET: usize = 16;

/// The control bits.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Flags(pub u8);

impl Flags {
    /// No control bits.
    pub const NONE: Flags = Flags(0);
    /// The sender sends no more data.
    pub const FIN: Flags = Flags(0x01);
    /// The sequence number is the initial one.
    pub const SYN: Flags = Flags(0x02);
    /// Resets the connection.
    pub const RST: Flags = Flags(0x04);
    /// Asks the receiver to deliver buffered data.
    pub const PSH: Flags = Flags(0x08);
    /// The acknowledgement field is valid.
    pub const ACK: Flags = Flags(0x10);
    /// The urgent pointer is valid.
    pub const URG: Flags = Flags(0x20);
    /// A packet with a congestion mark has arrived (RFC 3168).
    pub const ECE: Flags = Flags(0x40);
    /// The sender has reduced its congestion window (RFC 3168).
    pub const CWR: Flags = Flags(0x80);

    /// Whether all of `others` are set.
    #[inline]
    pub fn contains(self, others: Flags) -> bool {
        self.0 & others.0 == others.0
    }

    /// Whether any of `others` is set.
    #[inline]
    pub fn intersects(self, others: Flags) -> bool {
        self.0 & others.0 != 0
    }
}

impl BitOr for Flags {
    type Output = Flags;

    fn bitor(self, others: Flags) -> Flags {
        Flags(self.0 | others.0)
    }
}

impl BitOrAssign for Flags {
    fn bitor_assign(&mut self, others: Flags) {
        self.0 |= others.0;
    }
}

impl fmt::Display for Flags {
    /// As in packet traces: `SA` for SYN and ACK, `.` without flags.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Flags::NONE {
            return f.write_str(".");
        }
        let letters = ['F', 'S', 'R', 'P', 'A', 'U', 'E', 'C'].into_iter().enumerate();
        for (_, letter) in letters.filter(|(bit, _)| self.0 >> bit & 1 == 1) {
            write!(f, "{letter}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Flags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Flags({self})")
    }
}

/// The header of a segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// The sender's port.
    pub source: u16,
    /// The receiver's port.
    pub target: u16,
    /// Sequence number of the first byte, or of the SYN.
    pub seq: u32,
    /// Sequence number of the next expected byte; valid only with ACK.
    pub ack: u32,
    /// Control bits.
    pub flags: Flags,
    /// Bytes from `ack` on that the receiver of this segment may send, before scaling.
    pub window: u16,
    /// Offset from `seq` to the end of urgent data; valid only with URG.
    pub urgent: u16,
    /// Options.
    pub options: Options,
}

/// Whether a segment's checksum covers only the pseudo-header: its sender, such as Linux with checksum offload, has
/// left the rest to hardware.
pub fn is_checksum_partial(segment: &[u8], pseudo: Sum) -> bool {
    segment.get(CHECKSUM_OFFSET..CHECKSUM_OFFSET + 2) == Some(&(!pseudo.finish()).to_be_bytes())
}

impl Header {
    /// Parses a segment. Returns the header, its length in bytes with options, and the payload. `pseudo` is the
    /// pseudo-header's sum for the whole segment. Reserved bits are ignored (RFC 9293 §3.1), and so are unknown and
    /// malformed options (MUST-6, MUST-7).
    #[inline]
    pub fn parse(segment: &[u8], pseudo: Sum) -> Result<(Header, usize, &[u8]), PacketError> {
        let (mut header, header_bytes) = Header::parse_fixed_part(segment)?;
        let (head, payload) =
            segment.split_at_checked(header_bytes).ok_or(PacketError::Truncated(Layer::Tcp))?;
        if pseudo.add_bytes(segment).finish() != 0 {
            return Err(PacketError::Checksum(Layer::Tcp));
        }
        header.options.parse_into(&head[HEADER_BYTES..]);
        Ok((header, header_bytes, payload))
    }

    /// Parses the fixed part. Returns the header and its length in bytes with options, at least [`HEADER_BYTES`].
    #[inline]
    fn parse_fixed_part(segment: &[u8]) -> Result<(Header, usize), PacketError> {
        let head = segment.first_chunk::<HEADER_BYTES>().ok_or(PacketError::Truncated(Layer::Tcp))?;
        let [p0, p1, p2, p3, s0, s1, s2, s3, a0, a1, a2, a3, offset, flags, w0, w1, _, _, u0, u1] = *head;
        let header_bytes = usize::from(offset >> 4) * 4;
        if header_bytes < HEADER_BYTES {
            return Err(PacketError::HeaderLength(Layer::Tcp));
        }
        let header = Header {
            source: u16::from_be_bytes([p0, p1]),
            target: u16::from_be_bytes([p2, p3]),
            seq: u32::from_be_bytes([s0, s1, s2, s3]),
            ack: u32::from_be_bytes([a0, a1, a2, a3]),
            flags: Flags(flags),
            window: u16::from_be_bytes([w0, w1]),
            urgent: u16::from_be_bytes([u0, u1]),
            options: Options::default(),
        };
        Ok((header, header_bytes))
    }

    /// Bytes of the header with its options, which is the offset of the payload.
    #[inline]
    pub fn header_bytes(&self) -> usize {
        HEADER_BYTES + self.options.bytes()
    }

    /// Emits the header, its options and the checksum before the payload, which `out` already holds from
    /// [`Header::header_bytes`] on. `pseudo` is the pseudo-header's sum for the whole segment. Returns the segment's
    /// length, header and payload.
    ///
    /// # Panics
    /// If `out` is shorter than header and payload.
    #[inline(always)]
    pub fn emit(&self, out: &mut [u8], payload_bytes: usize, pseudo: Sum) -> usize {
        let header_bytes = self.header_bytes();
        let (head, payload) = out[..header_bytes + payload_bytes].split_at_mut(header_bytes);
        let sum = pseudo.add_bytes(payload);
        if let (Some(timestamps), Some(head)) = (self.options.only_timestamps(), head.first_chunk_mut()) {
            self.emit_with_timestamps(timestamps, head, sum);
        } else if let Some((fixed, options)) = head.split_first_chunk_mut() {
            *fixed = self.fixed_part(header_bytes);
            self.options.emit(options);
            let check = sum.add_bytes(head).finish();
            head[CHECKSUM_OFFSET..CHECKSUM_OFFSET + 2].copy_from_slice(&check.to_be_bytes());
        }
        header_bytes + payload_bytes
    }

    /// Fast path for headers with only timestamps, which nearly every segment has: their length is a constant.
    #[inline]
    fn emit_with_timestamps(
        &self,
        timestamps: Timestamps,
        out: &mut [u8; TIMESTAMPS_HEADER_BYTES],
        sum: Sum,
    ) {
        let mut head = [0; TIMESTAMPS_HEADER_BYTES];
        head[..HEADER_BYTES].copy_from_slice(&self.fixed_part(TIMESTAMPS_HEADER_BYTES));
        head[HEADER_BYTES..].copy_from_slice(&timestamps.as_only_option());
        let check = sum.add_array(&head).finish();
        head[CHECKSUM_OFFSET..CHECKSUM_OFFSET + 2].copy_from_slice(&check.to_be_bytes());
        *out = head;
    }

    /// The fixed part of the header, with a checksum of zero.
    #[inline]
    fn fixed_part(&self, header_bytes: usize) -> [u8; HEADER_BYTES] {
        let ([p0, p1], [q0, q1]) = (self.source.to_be_bytes(), self.target.to_be_bytes());
        let ([s0, s1, s2, s3], [a0, a1, a2, a3]) = (self.seq.to_be_bytes(), self.ack.to_be_bytes());
        let ([w0, w1], [u0, u1]) = (self.window.to_be_bytes(), self.urgent.to_be_bytes());
        // The data offset counts words of four bytes and fills the upper four bits.
        #[expect(clippy::cast_possible_truncation, reason = "at most 60 bytes")]
        let offset = (header_bytes << 2) as u8;
        let flags = self.flags.0;
        [p0, p1, q0, q1, s0, s1, s2, s3, a0, a1, a2, a3, offset, flags, w0, w1, 0, 0, u0, u1]
    }
}

/// The first eight bytes of a segment that an ICMP message quotes, which identify its connection (RFC 792).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quoted {
    /// The sender's port.
    pub source: u16,
    /// The receiver's port.
    pub target: u16,
    /// The sequence number, which must be one of those in flight (RFC 5927 §4.1).
    pub seq: u32,
}

impl Quoted {
    /// Parses a quoted segment of at least eight bytes.
    pub fn parse(segment: &[u8]) -> Result<Quoted, PacketError> {
        let [s0, s1, t0, t1, q0, q1, q2, q3] =
            *segment.first_chunk::<8>().ok_or(PacketError::Truncated(Layer::Tcp))?;
        Ok(Quoted {
            source: u16::from_be_bytes([s0, s1]),
            target: u16::from_be_bytes([t0, t1]),
            seq: u32::from_be_bytes([q0, q1, q2, q3]),
        })
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;
    use alloc::vec::Vec;
    use core::net::Ipv4Addr;

    use proptest::prelude::*;

    use super::super::checksum::pseudo_v4;
    use super::*;

    const LOCAL: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
    const PEER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);

    fn pseudo(bytes: usize) -> Sum {
        pseudo_v4(LOCAL, PEER, 6, bytes as u32)
    }

    fn with_correct_checksum(mut segment: Vec<u8>) -> Vec<u8> {
        segment[CHECKSUM_OFFSET..CHECKSUM_OFFSET + 2].fill(0);
        let check = pseudo(segment.len()).add_bytes(&segment).finish();
        segment[CHECKSUM_OFFSET..CHECKSUM_OFFSET + 2].copy_from_slice(&check.to_be_bytes());
        segment
    }

    fn parse(segment: &[u8]) -> Result<(Header, usize, &[u8]), PacketError> {
        Header::parse(segment, pseudo(segment.len()))
    }

    /// A SYN as Linux sends it.
    const SYN: [u8; 40] = [
        0x9c, 0x40, 0x00, 0x50, 0x01, 0x02, 0x03, 0x04, 0x00, 0x00, 0x00, 0x00, 0xa0, 0x02, 0xfa, 0xf0, 0x00,
        0x00, 0x00, 0x00, // MSS 1460, SACK permitted, timestamps, window scale 7
        0x02, 0x04, 0x05, 0xb4, 0x04, 0x02, 0x08, 0x0a, 0xde, 0xad, 0xbe, 0xef, 0x00, 0x00, 0x00, 0x00, 0x01,
        0x03, 0x03, 0x07,
    ];

    fn syn() -> Header {
        Header {
            source: 40_000,
            target: 80,
            seq: 0x0102_0304,
            flags: Flags::SYN,
            window: 64_240,
            options: Options {
                mss: Some(1460),
                window_scale: Some(7),
                sack_permitted: true,
                timestamps: Some(Timestamps { value: 0xdead_beef, echo: 0 }),
                ..Options::default()
            },
            ..Header::default()
        }
    }

    #[test]
    fn a_syn_of_linux_parses_and_is_emitted_unchanged() {
        let segment = with_correct_checksum(SYN.to_vec());
        assert_eq!(parse(&segment), Ok((syn(), 40, &[][..])));
        let mut out = [0xee; 41];
        assert_eq!(syn().emit(&mut out, 0, pseudo(40)), 40);
        assert_eq!(out[..40], segment);
        assert_eq!(out[40], 0xee, "emit should not write past the segment");
    }

    #[test]
    fn a_segment_with_payload_survives_a_round_trip() {
        let header = Header {
            source: 1,
            target: 0xffff,
            seq: u32::MAX,
            ack: 7,
            flags: Flags::ACK | Flags::PSH,
            window: 1,
            urgent: 0,
            options: Options { timestamps: Some(Timestamps { value: 3, echo: 4 }), ..Options::default() },
        };
        let mut out = [0; 37];
        out[32..].copy_from_slice(b"hello");
        assert_eq!(header.header_bytes(), 32);
        assert_eq!(header.emit(&mut out, 5, pseudo(37)), 37);
        assert_eq!(out[20..32], [1, 1, 8, 10, 0, 0, 0, 3, 0, 0, 0, 4]);
        assert_eq!(parse(&out), Ok((header, 32, &b"hello"[..])));
    }

    #[test]
    fn every_flipped_bit_is_detected() {
        let segment = with_correct_checksum([&SYN[..], b"some bytes"].concat());
        for offset in 0..segment.len() {
            for bit in 0..8 {
                let mut damaged = segment.clone();
                damaged[offset] ^= 1 << bit;
                assert!(
                    parse(&damaged).is_err(),
                    "a segment with bit {bit} of byte {offset} flipped should be rejected"
                );
            }
        }
        let other = pseudo_v4(LOCAL, LOCAL, 6, segment.len() as u32);
        assert_eq!(
            Header::parse(&segment, other),
            Err(PacketError::Checksum(Layer::Tcp)),
            "other addresses should be rejected"
        );
    }

    #[test]
    fn truncated_headers_and_invalid_header_lengths_are_rejected() {
        let segment = with_correct_checksum(SYN.to_vec());
        for cut in 0..40 {
            assert_eq!(
                parse(&segment[..cut]),
                Err(PacketError::Truncated(Layer::Tcp)),
                "a segment cut to {cut} bytes should be rejected"
            );
        }
        for length_in_words in 0..5 {
            let mut segment = SYN.to_vec();
            segment[12] = length_in_words << 4;
            assert_eq!(parse(&with_correct_checksum(segment)), Err(PacketError::HeaderLength(Layer::Tcp)));
        }
        let mut segment = SYN.to_vec();
        segment[12] = 0xb0;
        assert_eq!(parse(&with_correct_checksum(segment)), Err(PacketError::Truncated(Layer::Tcp)));
    }

    #[test]
    fn reserved_bits_are_ignored() {
        let mut segment = SYN.to_vec();
        segment[12] |= 0xf;
        assert_eq!(parse(&with_correct_checksum(segment)), Ok((syn(), 40, &[][..])));
    }

    #[test]
    fn a_quoted_segment_needs_its_first_eight_bytes() {
        let quoted = Quoted { source: 40_000, target: 80, seq: 0x0102_0304 };
        assert_eq!(Quoted::parse(&SYN[..8]), Ok(quoted));
        assert_eq!(Quoted::parse(&SYN[..7]), Err(PacketError::Truncated(Layer::Tcp)));
    }

    #[test]
    fn flags_are_printed_as_in_traces_and_combine() {
        assert_eq!((Flags::SYN | Flags::ACK).to_string(), "SA");
        assert_eq!(Flags::NONE.to_string(), ".");
        assert_eq!(Flags(0xff).to_string(), "FSRPAUEC");
        let mut flags = Flags::FIN;
        flags |= Flags::ACK;
        assert!(
            flags.contains(Flags::FIN | Flags::ACK) && !flags.contains(Flags::FIN | Flags::SYN),
            "only flags that are all set should be contained"
        );
        assert!(
            flags.intersects(Flags::FIN | Flags::SYN) && !flags.intersects(Flags::SYN | Flags::RST),
            "flags that are set in part should intersect"
        );
    }

    proptest! {
        #[test]
        fn every_header_survives_a_round_trip(
            source: u16, target: u16, seq: u32, ack: u32, flags: u8, window: u16, urgent: u16,
            options in options::tests::options(),
            payload in proptest::collection::vec(any::<u8>(), 0..100),
        ) {
            let header = Header { source, target, seq, ack, flags: Flags(flags), window, urgent, options };
            let header_bytes = header.header_bytes();
            prop_assert!(
                header_bytes <= HEADER_BYTES_MAX && header_bytes.is_multiple_of(4),
                "the header's length should be a multiple of 4 within its maximum"
            );
            let mut out = alloc::vec![0xee; header_bytes];
            out.extend(&payload);
            prop_assert_eq!(header.emit(&mut out, payload.len(), pseudo(header_bytes + payload.len())), out.len());
            let expected = Header { options: options.fitting(), ..header };
            prop_assert_eq!(parse(&out), Ok((expected, header_bytes, payload.as_slice())));
        }

        #[test]
        fn arbitrary_bytes_do_not_panic(
            bytes in proptest::collection::vec(any::<u8>(), 0..100),
            length_in_words in 5..16_u8,
        ) {
            let _ = parse(&bytes);
            if bytes.len() >= HEADER_BYTES {
                let mut valid = bytes;
                valid[12] = length_in_words << 4;
                let valid = with_correct_checksum(valid);
                if usize::from(length_in_words) * 4 > valid.len() {
                    prop_assert_eq!(parse(&valid), Err(PacketError::Truncated(Layer::Tcp)));
                } else {
                    let (header, header_bytes, payload) = parse(&valid).unwrap();
                    prop_assert_eq!(header_bytes + payload.len(), valid.len());
                    prop_assert!(
                        header.header_bytes() <= HEADER_BYTES_MAX,
                        "the header should be within its maximum"
                    );
                }
            }
        }
    }
}
