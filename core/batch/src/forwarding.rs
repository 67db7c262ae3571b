//! Forwarding without disassembly (PostMan §4.2, "Further optimization"): a server that only passes requests on, a leader
//! or a proxy, takes a batch's data frames as one run of bytes, headers included, and gives replies back the same way.
//!
//! Control stays apart, and so do sessions: their bytes belong to a stream that outlives the connection named in a header.

use alloc::vec::Vec;

use spillway_transport::Time;
use spillway_wire::{HEADER_BYTES, Header, Kind};

use crate::connection::Connection;
use crate::error::LinkError;
use crate::event::ServerEvent;
use crate::run::{Taken, frames};
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
            if !self.ends.get(id).is_some_and(Connection::may_send) {
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
