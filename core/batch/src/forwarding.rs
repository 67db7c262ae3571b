//! Forwarding without disassembly (PostMan §4.2, "Further optimization"): a server that only forwards
//! requests, such as a leader or a proxy, takes data frames as one run of bytes, headers included, and
//! returns replies the same way. Control messages and the bytes of sessions come as events: a session
//! outlives the connection that its frames name, so these frames cannot be forwarded unchanged.

use alloc::vec::Vec;

use spillway_transport::Time;
use spillway_wire::{Header, Kind};

use crate::connection::Connection;
use crate::error::LinkError;
use crate::event::ServerEvent;
use crate::run::frames;
use crate::server::ServerLink;

/// Input of a server that forwards requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received<'a> {
    /// Complete, unchanged data frames, headers included; not empty. Call [`ServerLink::forwarded`] after forwarding.
    Run(&'a [u8]),
    /// Any event except [`ServerEvent::Data`].
    Event(ServerEvent<'a>),
}

impl ServerLink {
    /// As [`decompose`](Self::decompose), but with [`Received::Run`] instead of [`ServerEvent::Data`]. An
    /// incomplete frame stays in `input`: put it in front of the next received bytes. Both methods may be
    /// mixed on a link.
    pub fn decompose_run<'a>(
        &mut self,
        now: Time,
        input: &mut &'a [u8],
    ) -> Result<Option<Received<'a>>, LinkError> {
        let mut run: &[u8] = &[];
        let event = self.next_event_or_fail(now, input, Some(&mut run))?;
        Ok(if run.is_empty() { event.map(Received::Event) } else { Some(Received::Run(run)) })
    }

    /// Call when a run, or some complete frames of it, was forwarded: counts the data of each frame as
    /// [`consumed`](Self::consumed).
    pub fn forwarded(&mut self, run: &[u8]) {
        for (header, payload) in frames(run) {
            self.link_end.consumed_at_most(header.id, payload.len());
        }
    }

    /// Takes a run of reply frames. Bytes beyond a connection's credit or the bound on pending bytes are appended to
    /// `rest` as frames, in order: pass them again, before later replies, when [`poll_room`](Self::poll_room) returns a
    /// connection. Replies to connections that have ended are dropped.
    pub fn compose_run(&mut self, run: &[u8], rest: &mut Vec<u8>) {
        for (header, payload) in frames(run) {
            let id = header.id;
            if !self.link_end.get(id).is_some_and(Connection::may_send) {
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
