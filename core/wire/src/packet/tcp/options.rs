//! TCP options: maximum segment size (RFC 9293 §3.7.1), window scale and timestamps (RFC 7323), selective
//! acknowledgements (RFC 2018).

/// The largest shift count of a window (RFC 7323 §2.3).
pub const WINDOW_SCALE_MAX: u8 = 14;
/// Maximum number of SACK blocks in a header.
pub const SACK_BLOCKS_MAX: usize = 4;

/// Maximum bytes of options in a header.
const BYTES_MAX: usize = 40;

const END: u8 = 0;
const NOP: u8 = 1;
const MSS: u8 = 2;
const WINDOW_SCALE: u8 = 3;
const SACK_PERMITTED: u8 = 4;
const SACK: u8 = 5;
const TIMESTAMPS: u8 = 8;

/// The beginning of the options of nearly every segment: two NOPs, then timestamps with their length of ten bytes.
const ONLY_TIMESTAMPS: [u8; 4] = [NOP, NOP, TIMESTAMPS, 10];
/// Bytes of these options: [`ONLY_TIMESTAMPS`] and the two clocks.
pub(super) const ONLY_TIMESTAMPS_BYTES: usize = 12;

/// The timestamps option.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timestamps {
    /// The sender's clock (TSval).
    pub value: u32,
    /// The receiver's clock as the sender last received it (TSecr). Valid only with ACK.
    pub echo: u32,
}

impl Timestamps {
    /// The options of a segment that has only timestamps.
    #[inline]
    pub(super) fn as_only_option(self) -> [u8; ONLY_TIMESTAMPS_BYTES] {
        let [n0, n1, kind, length] = ONLY_TIMESTAMPS;
        let ([v0, v1, v2, v3], [e0, e1, e2, e3]) = (self.value.to_be_bytes(), self.echo.to_be_bytes());
        [n0, n1, kind, length, v0, v1, v2, v3, e0, e1, e2, e3]
    }
}

/// SACK blocks: received ranges, each from its first sequence number to the one after its last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SackBlocks {
    blocks: [(u32, u32); SACK_BLOCKS_MAX],
    count: u8,
}

impl SackBlocks {
    /// Appends a block. More than [`SACK_BLOCKS_MAX`] blocks do not fit into a header and are dropped.
    pub fn push(&mut self, left: u32, right: u32) {
        if let Some(block) = self.blocks.get_mut(usize::from(self.count)) {
            *block = (left, right);
            self.count += 1;
        }
    }

    /// The blocks, in the order of the header.
    #[inline]
    pub fn as_slice(&self) -> &[(u32, u32)] {
        &self.blocks[..usize::from(self.count)]
    }

    /// Whether the list is empty.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }
}

/// The supported options. A malformed option counts as absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// The largest segment that the sender accepts, in bytes after the fixed headers. 0 counts as absent. Only with
    /// SYN.
    pub mss: Option<u16>,
    /// Shift count of the sender's windows, at most [`WINDOW_SCALE_MAX`]. Only with SYN.
    pub window_scale: Option<u8>,
    /// The sender supports SACK. Only with SYN.
    pub sack_permitted: bool,
    /// Timestamps.
    pub timestamps: Option<Timestamps>,
    /// SACK blocks.
    pub sack: SackBlocks,
}

impl Options {
    /// Parses the bytes between the fixed part of a header and the payload. Unknown options are skipped by their
    /// length; an invalid length ends the options, and those before it remain valid (RFC 9293 MUST-6, MUST-7). If an
    /// option occurs twice, the last one counts.
    pub fn parse(bytes: &[u8]) -> Options {
        let mut options = Options::default();
        options.parse_into(bytes);
        options
    }

    /// Parses the bytes into `self`, whose options must all be absent.
    #[inline]
    pub(super) fn parse_into(&mut self, bytes: &[u8]) {
        if let [n0, n1, kind, length, v0, v1, v2, v3, e0, e1, e2, e3] = *bytes
            && [n0, n1, kind, length] == ONLY_TIMESTAMPS
        {
            self.timestamps = Some(Timestamps {
                value: u32::from_be_bytes([v0, v1, v2, v3]),
                echo: u32::from_be_bytes([e0, e1, e2, e3]),
            });
        } else if !bytes.is_empty() {
            self.parse_one_by_one(bytes);
        }
    }

    fn parse_one_by_one(&mut self, mut rest: &[u8]) {
        loop {
            rest = match *rest {
                [NOP, ref after @ ..] => after,
                [] | [END, ..] | [_] => return,
                [kind, length, ..] => match rest.split_at_checked(usize::from(length)) {
                    Some(([_, _, value @ ..], after)) => {
                        self.parse_value(kind, value);
                        after
                    }
                    // The length is below 2, or exceeds the header.
                    _ => return,
                },
            };
        }
    }

    /// Parses the value of one option. An option of a wrong length counts as unknown.
    fn parse_value(&mut self, kind: u8, value: &[u8]) {
        match (kind, value) {
            (MSS, &[high, low]) => {
                self.mss = Some(u16::from_be_bytes([high, low])).filter(|mss| *mss != 0);
            }
            (WINDOW_SCALE, &[shift]) => self.window_scale = Some(shift.min(WINDOW_SCALE_MAX)),
            (SACK_PERMITTED, []) => self.sack_permitted = true,
            (TIMESTAMPS, &[v0, v1, v2, v3, e0, e1, e2, e3]) => {
                self.timestamps = Some(Timestamps {
                    value: u32::from_be_bytes([v0, v1, v2, v3]),
                    echo: u32::from_be_bytes([e0, e1, e2, e3]),
                });
            }
            (SACK, blocks) => {
                let (blocks, []) = blocks.as_chunks::<8>() else { return };
                self.sack = SackBlocks::default();
                for &[l0, l1, l2, l3, r0, r1, r2, r3] in blocks {
                    self.sack
                        .push(u32::from_be_bytes([l0, l1, l2, l3]), u32::from_be_bytes([r0, r1, r2, r3]));
                }
            }
            _ => {}
        }
    }

    /// Bytes of the options with their NOPs: a multiple of four, at most 40.
    #[inline]
    pub fn bytes(&self) -> usize {
        if self.only_timestamps().is_some() {
            return ONLY_TIMESTAMPS_BYTES;
        }
        let others = self.bytes_without_sack();
        match self.sack_fitting().len() {
            0 => others,
            blocks => others + 4 + 8 * blocks,
        }
    }

    /// The SACK blocks that fit into a header: three with timestamps, four without other options.
    #[inline]
    pub fn sack_fitting(&self) -> &[(u32, u32)] {
        let blocks = self.sack.as_slice();
        let blocks_max = BYTES_MAX.saturating_sub(self.bytes_without_sack() + 4) / 8;
        &blocks[..blocks.len().min(blocks_max)]
    }

    #[inline]
    fn bytes_without_sack(&self) -> usize {
        let mss = if self.mss.is_some() { 4 } else { 0 };
        let scale = if self.window_scale.is_some() { 4 } else { 0 };
        match (self.timestamps, self.sack_permitted) {
            (Some(_), _) => mss + scale + 12,
            (None, true) => mss + scale + 4,
            (None, false) => mss + scale,
        }
    }

    /// The timestamps if they are the only option, which is the case in nearly every segment.
    #[inline]
    pub(super) fn only_timestamps(&self) -> Option<Timestamps> {
        let others = self.mss.is_some() | self.window_scale.is_some() | self.sack_permitted;
        if others | !self.sack.is_empty() { None } else { self.timestamps }
    }

    /// Writes the options in the order that Linux uses, because middleboxes are known to forward it.
    #[inline]
    pub(super) fn emit(&self, out: &mut [u8]) {
        let mut out = Writer(out);
        if let Some(mss) = self.mss {
            let [high, low] = mss.to_be_bytes();
            out.put([MSS, 4, high, low]);
        }
        // The two bytes of SACK-permitted replace the two NOPs before timestamps.
        match (self.timestamps, self.sack_permitted) {
            (Some(timestamps), permitted) => {
                out.put(if permitted { [SACK_PERMITTED, 2, TIMESTAMPS, 10] } else { ONLY_TIMESTAMPS });
                out.put(timestamps.value.to_be_bytes());
                out.put(timestamps.echo.to_be_bytes());
            }
            (None, true) => out.put([NOP, NOP, SACK_PERMITTED, 2]),
            (None, false) => {}
        }
        if let Some(shift) = self.window_scale {
            out.put([NOP, WINDOW_SCALE, 3, shift.min(WINDOW_SCALE_MAX)]);
        }
        let blocks = self.sack_fitting();
        if !blocks.is_empty() {
            #[expect(clippy::cast_possible_truncation, reason = "at most four blocks")]
            let bytes = 2 + 8 * blocks.len() as u8;
            out.put([NOP, NOP, SACK, bytes]);
            for (left, right) in blocks {
                out.put(left.to_be_bytes());
                out.put(right.to_be_bytes());
            }
        }
    }
}

/// Writes words of four bytes in sequence.
struct Writer<'a>(&'a mut [u8]);

impl Writer<'_> {
    /// Drops a word that does not fit, which cannot happen: [`Options::bytes`] counts the same words.
    #[inline]
    fn put(&mut self, word: [u8; 4]) {
        if let Some((target, rest)) = core::mem::take(&mut self.0).split_first_chunk_mut::<4>() {
            *target = word;
            self.0 = rest;
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use alloc::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    impl Options {
        /// The options that fit into a header.
        pub(in super::super) fn fitting(&self) -> Options {
            let mut fitting = Options { sack: SackBlocks::default(), ..*self };
            self.sack_fitting().iter().for_each(|(left, right)| fitting.sack.push(*left, *right));
            fitting
        }
    }

    pub(in super::super) fn options() -> impl Strategy<Value = Options> {
        let timestamps = any::<Option<(u32, u32)>>();
        let blocks = proptest::collection::vec(any::<(u32, u32)>(), 0..6);
        (any::<Option<u16>>(), proptest::option::of(0..=14_u8), any::<bool>(), timestamps, blocks).prop_map(
            |(mss, window_scale, sack_permitted, timestamps, blocks)| {
                let timestamps = timestamps.map(|(value, echo)| Timestamps { value, echo });
                let mut sack = SackBlocks::default();
                blocks.into_iter().for_each(|(left, right)| sack.push(left, right));
                Options { mss: mss.filter(|mss| *mss != 0), window_scale, sack_permitted, timestamps, sack }
            },
        )
    }

    fn emitted(options: &Options) -> Vec<u8> {
        let mut out = alloc::vec![0xee; options.bytes()];
        options.emit(&mut out);
        out
    }

    fn blocks(count: u32) -> SackBlocks {
        let mut blocks = SackBlocks::default();
        (0..count).for_each(|number| blocks.push(10 * number, 10 * number + 5));
        blocks
    }

    const TIMESTAMPS_1_2: Option<Timestamps> = Some(Timestamps { value: 1, echo: 2 });

    #[test]
    fn options_are_emitted_in_the_order_of_linux() {
        let options = Options { timestamps: TIMESTAMPS_1_2, sack: blocks(1), ..Options::default() };
        #[rustfmt::skip]
        assert_eq!(
            emitted(&options),
            [1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2, 1, 1, 5, 10, 0, 0, 0, 0, 0, 0, 0, 5]
        );
        let options =
            Options { mss: Some(536), sack_permitted: true, window_scale: Some(2), ..Options::default() };
        assert_eq!(emitted(&options), [2, 4, 2, 24, 1, 1, 4, 2, 1, 3, 3, 2]);
        assert_eq!(emitted(&Options::default()), []);
    }

    #[test]
    fn sack_blocks_that_do_not_fit_are_dropped() {
        assert_eq!(blocks(5).as_slice().len(), 4, "the fifth block should be dropped");
        let only_sack = Options { sack: blocks(4), ..Options::default() };
        assert_eq!(
            (only_sack.sack_fitting().len(), only_sack.bytes()),
            (4, 36),
            "four blocks should fit 36 bytes"
        );
        let with_timestamps = Options { timestamps: TIMESTAMPS_1_2, ..only_sack };
        assert_eq!(
            (with_timestamps.sack_fitting().len(), with_timestamps.bytes()),
            (3, 40),
            "three blocks should fit beside timestamps"
        );
        let with_all =
            Options { mss: Some(1460), window_scale: Some(7), sack_permitted: true, ..with_timestamps };
        assert_eq!(
            (with_all.sack_fitting().len(), with_all.bytes()),
            (2, 40),
            "two blocks should fit beside all options"
        );
        for options in [only_sack, with_timestamps, with_all] {
            assert_eq!(Options::parse(&emitted(&options)), options.fitting());
        }
    }

    #[test]
    fn unknown_options_are_skipped() {
        // RFC 9293 MUST-6: Fast Open (34), MD5 (19), an experiment (254), each by its length.
        let bytes = [34, 2, 19, 6, 1, 2, 3, 4, 254, 4, 0xca, 0xfe, 2, 4, 5, 180];
        assert_eq!(Options::parse(&bytes), Options { mss: Some(1460), ..Options::default() });
    }

    #[test]
    fn an_invalid_length_ends_the_options() {
        // RFC 9293 MUST-7: no crash, no endless loop. Options before the invalid one remain valid.
        let mss = Options { mss: Some(1460), ..Options::default() };
        for bytes in [
            &[2, 4, 5, 180, 77, 0, 3, 3, 7][..],
            &[2, 4, 5, 180, 77, 1, 3, 3, 7],
            &[2, 4, 5, 180, 77, 6, 3, 3, 7],
            &[2, 4, 5, 180, 3],
            &[2, 4, 5, 180, 3, 3],
            &[2, 4, 5, 180, 0, 3, 3, 7],
        ] {
            assert_eq!(
                Options::parse(bytes),
                mss,
                "the options before the invalid length should be parsed: {bytes:?}"
            );
        }
    }

    #[test]
    fn known_options_of_a_wrong_length_are_ignored() {
        for bytes in [
            &[2, 3, 5][..],
            &[2, 5, 5, 180, 0],
            &[3, 2],
            &[3, 4, 7, 7],
            &[4, 3, 0],
            &[8, 9, 0, 0, 0, 0, 0, 0, 0],
            &[5, 9, 0, 0, 0, 0, 0, 0, 0],
            &[5, 2],
        ] {
            let bytes = [bytes, &[3, 3, 1]].concat();
            assert_eq!(
                Options::parse(&bytes),
                Options { window_scale: Some(1), ..Options::default() },
                "only the known option should be parsed: {bytes:?}"
            );
        }
    }

    #[test]
    fn a_window_scale_is_capped_and_an_mss_of_zero_is_ignored() {
        for shift in [15, 255] {
            assert_eq!(Options::parse(&[3, 3, shift]).window_scale, Some(14), "{shift} should be capped");
        }
        assert_eq!(Options::parse(&[2, 4, 0, 0]).mss, None, "an MSS of 0 should count as absent");
        assert_eq!(
            Options::parse(&[2, 4, 5, 180, 2, 4, 1, 0]).mss,
            Some(256),
            "the last of two MSS options should count"
        );
    }

    proptest! {
        #[test]
        fn the_fast_path_agrees_with_parsing_one_by_one(bytes in proptest::collection::vec(any::<u8>(), 0..=40)) {
            let options = Options::parse(&bytes);
            let mut one_by_one = Options::default();
            one_by_one.parse_one_by_one(&bytes);
            prop_assert_eq!(one_by_one, options, "the fast path should give the same options");
            prop_assert_eq!(Options::parse(&emitted(&options)), options.fitting());
        }

        #[test]
        fn arbitrary_values_of_known_options_do_not_panic(
            kinds in proptest::collection::vec((0..10_u8, 0..12_u8, any::<[u8; 10]>()), 0..8),
        ) {
            let mut bytes = Vec::new();
            for (kind, length, value) in kinds {
                bytes.extend([kind, length]);
                bytes.extend(&value[..usize::from(length).saturating_sub(2)]);
            }
            bytes.truncate(BYTES_MAX);
            let options = Options::parse(&bytes);
            prop_assert!(options.bytes() <= BYTES_MAX, "the options should fit a header");
            prop_assert_eq!(Options::parse(&emitted(&options)), options.fitting());
        }
    }
}
