//! Forwarding without disassembly (PostMan §4.2, "Further optimization"): a server that only passes requests on, a leader
//! or a proxy, takes a batch's data frames as one run of bytes, headers included, and gives replies back the same way.
//!
//! Control stays apart, and so do sessions: their bytes belong to a stream that outlives the connection named in a header.

use alloc::vec::Vec;

use spillway_transport::Time;
use spillway_wire::{HEADER_BYTES, Header, Id, Kind};

use crate::ends::Ends;
use crate::error::LinkError;
use crate::event::ServerEvent;
use crate::server::ServerLink;

/// What a link brings to a server that passes requests on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received<'a> {
    /// Data frames of clients as they came, headers included: whole ones, at least one. Say
    /// [`ServerLink::forwarded`] when they have been passed on.
    Run(&'a [u8]),
    /// Anything else. Never [`ServerEvent::Data`].
    Event(ServerEvent<'a>),
}

/// What is at the front of a link's bytes.
enum Front<'a> {
    /// A data frame that is not there as a whole.
    Cut,
    /// A whole data frame.
    Frame { header: Header, payload: &'a [u8] },
    /// Control, or what is no frame.
    Other,
}

fn front(input: &[u8]) -> Front<'_> {
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
fn frames(mut run: &[u8]) -> impl Iterator<Item = (Header, &[u8])> + '_ {
    core::iter::from_fn(move || {
        let Front::Frame { header, payload } = front(run) else { return None };
        run = &run[HEADER_BYTES + payload.len()..];
        Some((header, payload))
    })
}

/// What [`Ends::incoming_run`] finds.
pub(crate) enum Taken<'a> {
    /// Whole frames, counted as received.
    Run(&'a [u8]),
    /// Nothing, or a data frame of which more is to come.
    Cut,
    /// Something that is not forwarded: take it apart.
    Apart,
}

impl Ends {
    /// Takes the data frames at the front of `input` that the application may have as they are. Between frames only.
    pub(crate) fn incoming_run<'a>(&mut self, input: &mut &'a [u8]) -> Taken<'a> {
        let mut length = 0;
        let found = loop {
            match front(&input[length..]) {
                Front::Frame { header, payload } => {
                    let is_idle = length == 0 && payload.is_empty() && header.id != Id::LINK;
                    if self.take_frame(&header) {
                        length += HEADER_BYTES + payload.len();
                    } else if is_idle {
                        // It carries nothing, to nobody.
                        *input = &input[HEADER_BYTES..];
                    } else {
                        break Taken::Apart;
                    }
                }
                Front::Other => break Taken::Apart,
                Front::Cut => break Taken::Cut,
            }
        };
        let (run, rest) = input.split_at(length);
        *input = rest;
        if run.is_empty() { found } else { Taken::Run(run) }
    }

    /// Counts this frame as received, if the application may have it as it is.
    fn take_frame(&mut self, header: &Header) -> bool {
        let bytes = usize::from(header.length);
        let Some(connection) = self.get_mut(header.id) else { return false };
        let may = header.kind == Kind::Request
            && connection.is_open()
            && !connection.is_carrier
            && !connection.incoming.finished
            && connection.incoming.receive(bytes);
        if may && bytes > 0 {
            self.counters.messages_received += u64::from(!header.more);
            self.counters.bytes_received += bytes as u64;
            self.owe(header.id);
        }
        may
    }
}

impl ServerLink {
    /// This number of bytes was taken off the front of the input, a run among them.
    pub(crate) fn account_run(&mut self, now: Time, taken: usize, found: &Taken<'_>) {
        let Some(allowance) = &mut self.allowance else { return };
        let run = if let Taken::Run(run) = found { *run } else { &[] };
        allowance.spend(now, taken - run.len());
        for (_, payload) in frames(run) {
            match payload.len() {
                0 => allowance.spend(now, HEADER_BYTES),
                bytes => allowance.carried(bytes),
            }
        }
    }

    /// As [`decompose`](Self::decompose), but requests come as they are: [`Received::Run`] instead of
    /// [`ServerEvent::Data`]. Sessions come by their own events as always.
    ///
    /// A frame that is not there as a whole stays in `input`: have it before what is received next. The two ways of
    /// taking a link apart may be mixed as long as that is kept.
    pub fn decompose_run<'a>(
        &mut self,
        now: Time,
        input: &mut &'a [u8],
    ) -> Result<Option<Received<'a>>, LinkError> {
        let mut run: &[u8] = &[];
        let event = self.next_event_or_fail(now, input, Some(&mut run))?;
        Ok(if run.is_empty() { event.map(Received::Event) } else { Some(Received::Run(run)) })
    }

    /// A run, or whole frames of it, has been passed on: its clients may send as much more. As
    /// [`consumed`](Self::consumed) for each of its messages.
    pub fn forwarded(&mut self, run: &[u8]) {
        for (header, payload) in frames(run) {
            self.ends.consumed_at_most(header.id, payload.len());
        }
    }

    /// Takes a run of reply frames. What a connection has no credit for, or the batch no room, is put into `rest` as
    /// frames, in order: try it again, before later replies, when [`poll_room`](Self::poll_room) has named a connection.
    /// Replies to connections that have ended are dropped.
    pub fn compose_run(&mut self, run: &[u8], rest: &mut Vec<u8>) {
        for (header, payload) in frames(run) {
            let id = header.id;
            if !self
                .ends
                .get(id)
                .is_some_and(|connection| connection.is_open() && !connection.outgoing.finished)
            {
                continue;
            }
            let taken = self.compose(id, payload);
            if taken < payload.len() {
                #[expect(clippy::cast_possible_truncation, reason = "the payload of one frame")]
                let length = (payload.len() - taken) as u16;
                let header = Header { kind: Kind::Reply, more: false, length, id };
                rest.extend_from_slice(&header.emit());
                rest.extend_from_slice(&payload[taken..]);
            }
        }
    }
}
