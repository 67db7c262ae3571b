//! The link thread's end of a carrier: posts its input to the session's thread, and sends what that thread posts back.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use spillway_batch::{CloseReason, Control, Kind};
use spillway_wire::session::Opening;

use super::super::Links;
use super::{CONTROL_BYTES, CONTROL_BYTES_MAX, Held};
use crate::threads::{CarrierName, Ledger, Message, Post, PostedOpening};

impl Links {
    /// Posts a session's opening message if another thread owns the session. Returns whether it was posted.
    pub(in crate::links) fn post_opening(
        &mut self,
        carrier: CarrierName,
        kind: Kind,
        client: SocketAddr,
        opening: Opening,
    ) -> bool {
        let Some(role) = self.table.get(carrier.0).and_then(|entry| entry.end.role()) else { return false };
        let Some(member) = &mut self.member else { return false };
        let owner = match kind {
            Kind::Connect => member.threads.claim(opening.session, member.thread),
            _ => member.threads.owner(opening.session).unwrap_or(member.thread),
        };
        if owner == member.thread {
            return false;
        }
        member.last_serial += 1;
        let ledger = Arc::new(Ledger::new(member.last_serial));
        let held =
            Held { owner, ledger: ledger.clone(), posted: 0, waiting: VecDeque::new(), end: Vec::new() };
        let serial = ledger.serial;
        member.held.insert(carrier, held);
        let posted = PostedOpening { role, kind, client, opening, ledger };
        member.post(owner, Post { carrier, serial, message: Message::Opening(Box::new(posted)) });
        true
    }

    /// Posts data of a connection, if it carries another thread's session.
    pub(in crate::links) fn post_bytes(&mut self, carrier: CarrierName, bytes: &[u8]) {
        let Some(member) = &mut self.member else { return };
        // Successive small pieces of one client become one post.
        if let Some(held) = member.held.get_mut(&carrier)
            && let Some(Post { carrier: last, message: Message::Data(earlier), .. }) =
                member.outgoing.get_mut(&held.owner).and_then(|posts| posts.last_mut())
            && *last == carrier
        {
            earlier.extend_from_slice(bytes);
            held.posted += bytes.len() as u64;
            let posted = held.posted.saturating_sub(held.ledger.handled.load(Ordering::Relaxed));
            if posted > self.posted_bytes_max() {
                self.drop_held(carrier);
            }
            return;
        }
        self.post_input(carrier, Message::Data(bytes.to_vec()), bytes.len() as u64);
    }

    /// Posts a control message of a connection, if it carries another thread's session.
    pub(in crate::links) fn post_control(&mut self, carrier: CarrierName, control: Control) {
        self.post_input(carrier, Message::Control(control), CONTROL_BYTES);
        if matches!(control, Control::Close(_)) {
            self.forget_if_over(carrier);
        }
    }

    fn posted_bytes_max(&self) -> u64 {
        u64::from(self.window_bytes) + CONTROL_BYTES_MAX
    }

    fn post_input(&mut self, carrier: CarrierName, message: Message, bytes: u64) {
        let bytes_max = self.posted_bytes_max();
        if let Some(member) = &mut self.member
            && member.post_input(carrier, message, bytes, bytes_max) == Some(Err(()))
        {
            self.drop_held(carrier);
        }
    }

    /// Whether a connection carries another thread's session.
    pub(in crate::links) fn holds(&self, carrier: CarrierName) -> bool {
        self.member.as_ref().is_some_and(|member| member.held.contains_key(&carrier))
    }

    /// Closes a carrier with more posted input than is allowed. Its session waits for another carrier.
    fn drop_held(&mut self, carrier: CarrierName) {
        if self.lose_held(carrier) {
            let (link, id) = carrier;
            self.with(link, |entry| entry.end.close(id, CloseReason::OverCredit));
        }
    }

    /// Detaches another thread's session from a connection that is lost or will be closed. Returns whether there was one.
    pub(in crate::links) fn lose_held(&mut self, carrier: CarrierName) -> bool {
        let Some(member) = &mut self.member else { return false };
        let is_held = member.post_input(carrier, Message::Lost, 0, u64::MAX).is_some();
        member.held.remove(&carrier);
        is_held
    }

    /// Forgets a carrier that both ends have closed: its id is free.
    fn forget_if_over(&mut self, (link, id): CarrierName) {
        let is_over = self.table.get(link).is_none_or(|entry| entry.end.info(id).is_none());
        if is_over && let Some(member) = &mut self.member {
            member.held.remove(&(link, id));
        }
    }

    /// Carries out a post of a session's thread on one of this thread's connections.
    pub(super) fn serve_post(&mut self, post: Post) {
        let (carrier, (link, id)) = (post.carrier, post.carrier);
        let Some(held) = self.member.as_mut().and_then(|member| member.held.get_mut(&carrier)) else {
            return;
        };
        if held.ledger.serial != post.serial {
            return;
        }
        match post.message {
            Message::SendData(bytes) => {
                held.waiting.extend(bytes);
                self.compose_waiting(carrier);
            }
            // *finish* and *close* are sent after all data.
            Message::SendControl(control @ (Control::Finish(_) | Control::Close(_)))
                if !held.waiting.is_empty() =>
            {
                held.end.push(control);
            }
            Message::SendControl(control) => self.send_held(carrier, control),
            Message::Refuse(reason) => {
                self.with(link, |entry| entry.end.refuse(id, reason));
                self.forget_held(carrier);
            }
            Message::Close(reason) => {
                self.with(link, |entry| entry.end.close(id, reason));
                self.forget_held(carrier);
            }
            Message::Opening(_) | Message::Data(_) | Message::Control(_) | Message::Lost | Message::Room => {}
        }
    }

    fn forget_held(&mut self, carrier: CarrierName) {
        if let Some(member) = &mut self.member {
            member.held.remove(&carrier);
        }
    }

    fn send_held(&mut self, carrier: CarrierName, control: Control) {
        let (link, id) = carrier;
        self.with(link, |entry| match control {
            Control::Accepted => entry.end.accept(id),
            control => entry.end.send_control(id, control),
        });
        if matches!(control, Control::Close(_)) {
            self.forget_if_over(carrier);
        }
    }

    /// Composes data that waits for room on a connection. Returns whether the connection carries another thread's session.
    pub(in crate::links) fn compose_waiting(&mut self, carrier: CarrierName) -> bool {
        let (link, id) = carrier;
        let Some(member) = &mut self.member else { return false };
        let Some(held) = member.held.get_mut(&carrier) else { return false };
        let (owner, ledger) = (held.owner, held.ledger.clone());
        let mut waiting = std::mem::take(&mut held.waiting);
        let composed = self.with(link, |entry| {
            if !entry.end.is_open(id) {
                return waiting.len();
            }
            entry.end.compose(id, waiting.make_contiguous())
        });
        let composed = composed.unwrap_or(waiting.len());
        waiting.drain(..composed);
        let is_empty = waiting.is_empty();
        let Some(member) = &mut self.member else { return false };
        if composed > 0 && ledger.note_sent(composed) {
            member.post(owner, Post { carrier, serial: ledger.serial, message: Message::Room });
        }
        let mut end = Vec::new();
        if let Some(held) = member.held.get_mut(&carrier) {
            held.waiting = waiting;
            if is_empty {
                end = std::mem::take(&mut held.end);
            }
        }
        for control in end {
            self.send_held(carrier, control);
        }
        true
    }

    /// Puts this turn's posts into the mailboxes of their threads.
    pub(in crate::links) fn deliver_posts(&mut self) {
        let Some(member) = &mut self.member else { return };
        let mut absent = Vec::new();
        for (thread, mut posts) in std::mem::take(&mut member.outgoing) {
            if posts.is_empty() || member.deliver(thread, &mut posts).is_ok() {
                continue;
            }
            // The thread has left, and its sessions have ended. Their clients learn this when they try another carrier.
            absent.extend(member.held.iter().filter(|(_, held)| held.owner == thread).map(|(name, _)| *name));
            member.held.retain(|_, held| held.owner != thread);
        }
        for (link, id) in absent {
            self.with(link, |entry| entry.end.close(id, CloseReason::Lost));
        }
    }
}
