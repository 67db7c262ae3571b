//! The session thread's end of a carrier on another thread's link.

use spillway_batch::{Control, Kind, RefuseReason};
use spillway_transport::Time;
use spillway_wire::session::SessionId;

use super::super::Links;
use super::{CONTROL_BYTES, Far, Item};
use crate::event::Event;
use crate::threads::{CarrierName, Post, What, Words};

impl Links {
    /// Whether this thread may handle an opening message. For a *connect*, the directory then names this thread as the
    /// session's owner.
    pub(in crate::links) fn claims(&mut self, kind: Kind, session: SessionId) -> bool {
        let Some(member) = &mut self.member else { return true };
        if kind != Kind::Connect || self.sessions.knows(session) {
            return true;
        }
        // For each new session check two old claims: forgotten sessions leave the directory.
        for _ in 0..2 {
            if let Some(claimed) = member.claims.pop_front() {
                if self.sessions.knows(claimed) {
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
            && !self.sessions.knows(session)
        {
            member.threads.release(session, member.thread);
            if member.claims.back() == Some(&session) {
                member.claims.pop_back();
            }
        }
    }

    /// Carries out `what` on a carrier, or posts it to the thread of the carrier's link.
    pub(in crate::links) fn on_carrier(&mut self, carrier: CarrierName, serial: u64, what: What) {
        let (link, id) = carrier;
        if link.thread != self.table.thread() {
            if let Some(member) = &mut self.member {
                member.post(link.thread, Post { carrier, serial, what });
            }
            return;
        }
        self.with(link, |entry| match what {
            What::Say(Control::Accepted) => entry.end.accept(id),
            What::Say(control) => entry.end.say(id, control),
            What::Refuse(reason) => entry.end.refuse(id, reason),
            What::Leave(reason) => entry.end.close(id, reason),
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
            match &post.what {
                What::Bytes(bytes) => {
                    let rest = &bytes[member.taken_bytes..];
                    let count = rest.len().min(room);
                    buffer[used..used + count].copy_from_slice(&rest[..count]);
                    used += count;
                    if count > 0 {
                        member.run.push_back(Item::Bytes(post.carrier, count));
                    }
                    member.taken_bytes += count;
                    if member.taken_bytes < bytes.len() {
                        member.taken.push_front(post);
                        break;
                    }
                    member.taken_bytes = 0;
                }
                What::Words(_) | What::Heard(_) | What::Lost if room == 0 => {
                    member.taken.push_front(post);
                    break;
                }
                What::Words(_) | What::Heard(_) | What::Lost => {
                    buffer[used] = 0;
                    used += 1;
                    member.run.push_back(Item::Other(post));
                }
                What::Room => {
                    self.carrier_has_room(post.carrier);
                }
                What::Send(_) | What::Say(_) | What::Refuse(_) | What::Leave(_) => self.serve_post(post),
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
            let item = self.member.as_mut()?.run.pop_front()?;
            let count = if let Item::Bytes(_, count) = &item { *count } else { 1 };
            let (bytes, rest) = input.split_at(count.min(input.len()));
            *input = rest;
            let event = match item {
                Item::Bytes(carrier, _) => {
                    self.carriers.note_handled(carrier, bytes.len() as u64);
                    self.session_data(now, carrier, bytes)
                }
                Item::Other(Post { carrier, what: What::Heard(control), .. }) => {
                    self.carriers.note_handled(carrier, CONTROL_BYTES);
                    self.session_control(now, carrier, control)
                }
                Item::Other(Post { carrier, what: What::Words(words), .. }) => {
                    self.posted_words(now, carrier, *words)
                }
                Item::Other(Post { carrier, .. }) => {
                    self.carrier_lost(now, carrier);
                    None
                }
            };
            if event.is_some() {
                return event;
            }
        }
    }

    fn posted_words(&mut self, now: Time, carrier: CarrierName, words: Words) -> Option<Event<'static>> {
        let Words { role, kind, client, opening, ledger } = words;
        // This thread has forgotten the session, and another one has claimed it since. The client tries again.
        if !self.claims(kind, opening.session) {
            self.on_carrier(carrier, ledger.serial, What::Refuse(RefuseReason::Unavailable));
            return None;
        }
        let event = self.open_session(now, carrier, role, (kind, client, opening), Some(Far::new(ledger)));
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
    fn words_that_begin_nothing_leave_nothing_in_the_directory() {
        let threads = Threads::default();
        let settings = Settings { threads: Some(threads.clone()), ..Settings::default() };
        let mut links = Links::bind(Instant::now(), "127.0.0.1:0".parse().unwrap(), settings).unwrap();
        for number in 0..100 {
            let session = SessionId([number; 16]);
            assert!(links.claims(Kind::Connect, session));
            assert_eq!(threads.owner(session), Some(0));
            // As if the table had refused the opening message: it was forged, or the table is full.
            links.settle_claim(session);
            assert_eq!(threads.owner(session), None);
            assert!(links.claims(Kind::Reconnect, session), "to be told that it is gone");
            assert_eq!(threads.owner(session), None);
        }
        let taken = SessionId([200; 16]);
        assert_eq!(threads.claim(taken, 7), 7);
        assert!(!links.claims(Kind::Connect, taken), "another thread was faster");
        drop(links);
        assert_eq!(threads.owner(taken), Some(7));
    }
}
