//! Runs of unchanged data frames, headers included.

use spillway_wire::{HEADER_BYTES, Header};

/// What a link's received bytes begin with.
pub(crate) enum Front<'a> {
    /// An incomplete header or data frame.
    Incomplete,
    /// A complete data frame.
    Frame { header: Header, payload: &'a [u8] },
    /// A control frame, or an invalid one.
    Other,
}

pub(crate) fn front(input: &[u8]) -> Front<'_> {
    let Some((head, rest)) = input.split_first_chunk::<HEADER_BYTES>() else { return Front::Incomplete };
    match Header::parse(head) {
        Ok(header) if header.kind.is_data() => match rest.get(..usize::from(header.length)) {
            Some(payload) => Front::Frame { header, payload },
            None => Front::Incomplete,
        },
        _ => Front::Other,
    }
}

pub(crate) fn frames(mut run: &[u8]) -> impl Iterator<Item = (Header, &[u8])> + '_ {
    core::iter::from_fn(move || {
        let Front::Frame { header, payload } = front(run) else { return None };
        run = &run[HEADER_BYTES + payload.len()..];
        Some((header, payload))
    })
}

pub(crate) enum RunOutcome<'a> {
    /// Complete frames, counted as received.
    Run(&'a [u8]),
    /// No input, or an incomplete frame.
    Incomplete,
    /// A frame that is not forwarded: disassemble it.
    Disassemble,
}
