//! Runs: one or more complete data frames in a row, which are forwarded as received, headers included.

use spillway_wire::{HEADER_BYTES, Header};

/// The first frame of a link's received bytes.
pub(crate) enum FirstFrame<'a> {
    /// An incomplete header or data frame.
    Incomplete,
    /// A complete data frame.
    Frame { header: Header, payload: &'a [u8] },
    /// A control frame, or an invalid one.
    Other,
}

pub(crate) fn first_frame(input: &[u8]) -> FirstFrame<'_> {
    let Some((head, rest)) = input.split_first_chunk::<HEADER_BYTES>() else { return FirstFrame::Incomplete };
    match Header::parse(head) {
        Ok(header) if header.kind.is_data() => match rest.get(..usize::from(header.length)) {
            Some(payload) => FirstFrame::Frame { header, payload },
            None => FirstFrame::Incomplete,
        },
        _ => FirstFrame::Other,
    }
}

/// The frames of a run. Ends at the first bytes that are not a complete data frame.
pub(crate) fn frames(mut run: &[u8]) -> impl Iterator<Item = (Header, &[u8])> + '_ {
    core::iter::from_fn(move || {
        let FirstFrame::Frame { header, payload } = first_frame(run) else { return None };
        run = &run[HEADER_BYTES + payload.len()..];
        Some((header, payload))
    })
}

/// The outcome of taking a run from a link's received bytes.
pub(crate) enum RunOutcome<'a> {
    /// A run. The link's counters of received frames already include it.
    Run(&'a [u8]),
    /// No input, or an incomplete frame.
    Incomplete,
    /// The input starts with a frame that cannot be part of a run, such as control or an invalid frame: the caller
    /// passes the input to the disassembler.
    Disassemble,
}
