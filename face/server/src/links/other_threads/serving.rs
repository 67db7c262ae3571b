//! The session thread's end of a carrier on another thread's link.

use spillway_batch::{Control, Kind, RefuseReason};
use spillway_transport::Time;
use spillway_wire::session::SessionId;

use super::super::Links;
use super::{CONTROL_BYTES, Item, RemoteCarrier};
use crate::event::Event;
use crate::threads::{CarrierName, Message, Post, PostedOpening};

impl Links {
    /// Whether this thread may handle an opening message. For a *connect*, the directory then names this thread as the
    /// session's owner.
    pub(in crate::links) fn claim_session(&mut self, kind: Kind, session: SessionId) -> bool {
        let Some(member) = &mut self.member else { return true };
        if kind != Kind::Connect || self.sessions.has_id(session) {
            return true;
        }
        // Check two old claims for each new session, so that forgotten sessions leave the directory.
        for _ in 0..2 {
            if let Some(claimed) = member.claims.pop_front() {
                if self.sessions.has_id(claimed) {
                    member.claims.push_back(claimed);
                } else {
                    member.threads.release(claimed, member.thread);
                }
            }
        }
        if member.threads.claim(session, member.thread) != member.thread {
            return false;
        }
        member.claims.push_back(session);
        true
    }

    /// Removes the session of a handled opening message from the directory, if the message has opened no session.
    pub(in crate::links) fn settle_claim(&mut self, session: SessionId) {
        if let Some(member) = &mut self.member
            && !self.sessions.has_id(session)
        {
            member.threads.release(session, member.thread);
            if member.claims.back() == Some(&session) {
                member.claims.pop_back();
            }
        }
    }

    /// Carries out `message` on a carrier, or posts it to the thread of the carrier's link.
    pub(in crate::links) fn deliver_to_carrier(
        &mut self,
        carrier: CarrierName,
        serial: u64,
        message: Message,
    ) {
        let (link, id) = carrier;
        if link.thread != self.table.thread() {
            if let Some(member) = &mut self.member {
                member.post(link.thread, Post { carrier, serial, message });
            }
            return;
        }
        self.with(link, |entry| match message {
            Message::SendControl(Control::Accepted) => entry.end.accept(id),
            Message::SendControl(control) => entry.end.send_control(id, control),
            Message::Refuse(reason) => entry.end.refuse(id, reason),
            Message::Close(reason) => entry.end.close(id, reason),
            // Data is sent by `transmit_sessions`.
            _ => {}
        });
    }

    /// Takes the posts of other threads: carries out those for this thread's links, and puts the input of this thread's
    /// sessions into the buffer, to be [decomposed](Links::decompose). Returns the number of bytes in the buffer.
    pub(in crate::links) fn receive_mail(&mut self, buffer: &mut [u8]) -> usize {
        let Some(member) = &mut self.member else { return 0 };
        if member.taken.is_empty() {
            member.taken.extend(member.mailbox.take());
        }
        let mut used = 0;
        while let Some(member) = &mut self.member {
            let Some(post) = member.taken.pop_front() else { break };
            let room = buffer.len() - used;
            match &post.message {
                Message::Data(bytes) => {
                    let rest = &bytes[member.taken_bytes..];
                    let count = rest.len().min(room);
                    buffer[used..used + count].copy_from_slice(&rest[..count]);
                    used += count;
                    if count > 0 {
                        member.buffer_items.push_back(Item::Bytes(post.carrier, count));
                    }
                    member.taken_bytes += count;
                    if member.taken_bytes < bytes.len() {
                        member.taken.push_front(post);
                        break;
                    }
                    member.taken_bytes = 0;
                }
                Message::Opening(_) | Message::Control(_) | Message::Lost if room == 0 => {
                    member.taken.push_front(post);
                    break;
                }
                Message::Opening(_) | Message::Control(_) | Message::Lost => {
                    buffer[used] = 0;
                    used += 1;
                    member.buffer_items.push_back(Item::Other(post));
                }
                Message::Room => {
                    self.handle_carrier_room(post.carrier);
                }
                Message::SendData(_) | Message::SendControl(_) | Message::Refuse(_) | Message::Close(_) => {
                    self.serve_post(post)
                }
            }
        }
        if let Some(member) = &self.member
            && !member.taken.is_empty()
        {
            member.mailbox.wake();
        }
        used
    }

    /// As [`decompose`](Links::decompose), for a buffer that [`receive_mail`](Self::receive_mail) has filled.
    pub(in crate::links) fn decompose_mail<'a>(
        &mut self,
        now: Time,
        input: &mut &'a [u8],
    ) -> Option<Event<'a>> {
        loop {
            let item = self.member.as_mut()?.buffer_items.pop_front()?;
            let count = if let Item::Bytes(_, count) = &item { *count } else { 1 };
            let (bytes, rest) = input.split_at(count.min(input.len()));
            *input = rest;
            let event = match item {
                Item::Bytes(carrier, _) => {
                    self.carriers.report_handled(carrier, bytes.len() as u64);
                    self.handle_session_data(now, carrier, bytes)
                }
                Item::Other(Post { carrier, message: Message::Control(control), .. }) => {
                    self.carriers.report_handled(carrier, CONTROL_BYTES);
                    self.handle_session_control(now, carrier, control)
                }
                Item::Other(Post { carrier, message: Message::Opening(posted), .. }) => {
                    self.handle_posted_opening(now, carrier, *posted)
                }
                Item::Other(Post { carrier, .. }) => {
                    self.handle_carrier_loss(now, carrier);
                    None
                }
            };
            if event.is_some() {
                return event;
            }
        }
    }

    fn handle_posted_opening(
        &mut self,
        now: Time,
        carrier: CarrierName,
        posted: PostedOpening,
    ) -> Option<Event<'static>> {
        let PostedOpening { role, kind, client, opening, ledger } = posted;
        // If this thread has forgotten the session and another one has claimed it since, the client must try
        // again.
        if !self.claim_session(kind, opening.session) {
            self.deliver_to_carrier(carrier, ledger.serial, Message::Refuse(RefuseReason::Unavailable));
            return None;
        }
        let event =
            self.open_session(now, carrier, role, (kind, client, opening), Some(RemoteCarrier::new(ledger)));
        self.settle_claim(opening.session);
        event
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use crate::{Links, Settings, Threads};

    use super::*;

    #[test]
    fn refused_opening_message_leaves_no_directory_entry() {
        let threads = Threads::default();
        let settings = Settings { threads: Some(threads.clone()), ..Settings::default() };
        let mut links = Links::bind(Instant::now(), "127.0.0.1:0".parse().unwrap(), settings).unwrap();
        for number in 0..100 {
            let session = SessionId([number; 16]);
            assert!(links.claim_session(Kind::Connect, session));
            assert_eq!(threads.owner(session), Some(0));
            // As if the table had refused the opening message: it was forged, or the table is full.
            links.settle_claim(session);
            assert_eq!(threads.owner(session), None);
            assert!(
                links.claim_session(Kind::Reconnect, session),
                "this thread should answer that the session has ended"
            );
            assert_eq!(threads.owner(session), None);
        }
        let taken = SessionId([200; 16]);
        assert_eq!(threads.claim(taken, 7), 7);
        assert!(
            !links.claim_session(Kind::Connect, taken),
            "the session should stay with the thread that claimed it first"
        );
        drop(links);
        assert_eq!(threads.owner(taken), Some(7));
    }
}
