//! Forwarding without disassembly (PostMan §4.2, "Further optimization"), for a server that forwards requests, such as a
//! leader or a proxy.

use std::time::Instant;

use spillway_batch::Received;

use super::Links;
use super::other_threads::MAIL;
use crate::event::{ClientId, Event, LinkId, LinkLoss, Name};

impl Links {
    /// As [`decompose`](Self::decompose), but data of virtual connections without sessions is returned undecoded, in
    /// [`Event::Run`] instead of [`Event::Data`]. Data of sessions is returned in [`Event::Data`], because a frame's header
    /// names a virtual connection, and a session outlives those. [`sender`](Self::sender) returns a client's name in runs.
    ///
    /// An incomplete frame is copied and put before the bytes of the next [`receive`](Self::receive), whose buffer must
    /// have [`RUN_BUFFER_BYTES`].
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
                        entry.keep_partial_frame(input);
                    }
                    *input = &[];
                    self.end_of_input(link);
                    return None;
                }
                Err(error) => {
                    self.push(time, link);
                    self.lose(link, LinkLoss::ProtocolError(error));
                    return None;
                }
            }
        }
    }

    /// A run of this link, or whole frames of it, has been forwarded: its clients may send as many more bytes. Do not call
    /// [`consumed`](Self::consumed) for the same bytes.
    pub fn forwarded(&mut self, link: LinkId, run: &[u8]) {
        self.with(link, |entry| entry.end.forwarded(run));
    }

    /// Puts a run of reply frames into the link's next batch. Data beyond a client's window or the batch's room is
    /// appended to `rest` as frames, in order: compose `rest` again before later replies, after [`Event::CanCompose`] for
    /// one of its clients. Replies to clients whose connections have ended are dropped.
    pub fn compose_run(&mut self, link: LinkId, run: &[u8], rest: &mut Vec<u8>) {
        self.with(link, |entry| entry.end.compose_run(run, rest));
    }

    /// The link and the sender that name a virtual connection in runs, valid until both ends have closed the connection.
    /// `None` for a session.
    pub fn sender(&self, client: ClientId) -> Option<(LinkId, u32)> {
        match client.0 {
            Name::Plain(link, id) => Some((link, id.0)),
            Name::Session(_) => None,
        }
    }
}

/// Size for the buffer of [`Links::receive`] with [`Links::decompose_run`]: more than the longest frame, 65,542 bytes.
pub const RUN_BUFFER_BYTES: usize = 128 * 1024;
