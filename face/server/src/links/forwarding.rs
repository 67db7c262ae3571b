//! Forwarding without disassembly (§4.2, "Further optimization"): for a server that passes requests on, as a leader or a
//! proxy does.

use std::time::Instant;

use spillway_batch::Received;

use super::Links;
use super::far::MAIL;
use crate::event::{Client, Event, LinkEnd, LinkId, Name};

impl Links {
    /// As [`decompose`](Self::decompose), but what plain connections send comes as it came, in [`Event::Run`], and never
    /// in [`Event::Data`]. Sessions come by [`Event::Data`] as always: a header names a connection, and a session
    /// outlives its connections. [`sender`](Self::sender) tells by which name a client is in runs.
    ///
    /// A frame that has not come as a whole waits, copied, for the next [`receive`](Self::receive): give that a buffer
    /// of [`RUN_BUFFER_BYTES`].
    pub fn decompose_run<'a>(
        &mut self,
        now: Instant,
        link: LinkId,
        input: &mut &'a [u8],
    ) -> Option<Event<'a>> {
        let time = self.time(now);
        if link == MAIL {
            return self.decompose_mail(time, input);
        }
        loop {
            match self.with(link, |entry| entry.end.decompose_run(time, input))? {
                Ok(Some(Received::Run(bytes))) => return Some(Event::Run { link, bytes }),
                Ok(Some(Received::Event(event))) => {
                    if let Some(event) = self.translate(time, link, event) {
                        return Some(event);
                    }
                }
                Ok(None) => {
                    if let Some(entry) = self.table.get_mut(link) {
                        entry.keep(input);
                    }
                    *input = &[];
                    self.end_of_input(link);
                    return None;
                }
                Err(error) => {
                    self.push(time, link);
                    self.lose(link, LinkEnd::Broken(error));
                    return None;
                }
            }
        }
    }

    /// A run of this link, or whole frames of one, has been passed on: its clients may send as much more. Together with
    /// [`consumed`](Self::consumed), never more than was received.
    pub fn forwarded(&mut self, link: LinkId, run: &[u8]) {
        self.with(link, |entry| entry.end.forwarded(run));
    }

    /// Puts a run of reply frames into the link's next batch. What a client has no window for, or the batch no room, is
    /// appended to `rest` as frames, in order: try that again before later replies, when [`Event::Room`] tells of one of
    /// the clients. Replies to clients that have gone are dropped.
    pub fn compose_run(&mut self, link: LinkId, run: &[u8], rest: &mut Vec<u8>) {
        self.with(link, |entry| entry.end.compose_run(run, rest));
    }

    /// The link and the sender that name a plain connection in runs: for as long as it has not been closed on both sides.
    /// `None` for a session.
    pub fn sender(&self, client: Client) -> Option<(LinkId, u32)> {
        match client.0 {
            Name::Plain(link, id) => Some((link, id.0)),
            Name::Session(_) => None,
        }
    }
}

/// A good size for the buffer that [`Links::receive`] is given where runs are taken: more than the longest frame, which is
/// 65,542 bytes.
pub const RUN_BUFFER_BYTES: usize = 128 * 1024;
