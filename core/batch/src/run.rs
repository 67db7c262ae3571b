//! Data frames as they came, headers included: what is at the front of a link's bytes, and the frames of a run.

use spillway_wire::{HEADER_BYTES, Header};

/// What is at the front of a link's bytes.
pub(crate) enum Front<'a> {
    /// A data frame that is not there as a whole.
    Cut,
    /// A whole data frame.
    Frame { header: Header, payload: &'a [u8] },
    /// Control, or what is no frame.
    Other,
}

pub(crate) fn front(input: &[u8]) -> Front<'_> {
    let Some((head, rest)) = input.split_first_chunk::<HEADER_BYTES>() else { return Front::Cut };
    match Header::parse(head) {
        Ok(header) if header.kind.is_data() => match rest.get(..usize::from(header.length)) {
            Some(payload) => Front::Frame { header, payload },
            None => Front::Cut,
        },
        _ => Front::Other,
    }
}

/// The data frames of a run.
pub(crate) fn frames(mut run: &[u8]) -> impl Iterator<Item = (Header, &[u8])> + '_ {
    core::iter::from_fn(move || {
        let Front::Frame { header, payload } = front(run) else { return None };
        run = &run[HEADER_BYTES + payload.len()..];
        Some((header, payload))
    })
}

/// What [`Ends::incoming_run`](crate::ends::Ends::incoming_run) finds.
pub(crate) enum Taken<'a> {
    /// Whole frames, counted as received.
    Run(&'a [u8]),
    /// Nothing, or a data frame of which more is to come.
    Cut,
    /// Something that is not forwarded: take it apart.
    Apart,
}
