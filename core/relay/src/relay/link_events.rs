//! Input from servers over links.

use alloc::vec::Vec;

use spillway_batch::OpenerEvent;
use spillway_transport::{Conn, Time, Transport};

use super::Relay;
use crate::notice::Notice;
use crate::reasons::LinkDown;

impl Relay {
    pub(super) fn link_data<T: Transport>(&mut self, now: Time, index: usize, bytes: &[u8], out: &mut T) {
        let mut scratch = core::mem::take(&mut self.scratch);
        if let Some(linked) = self.links.linked_mut(index) {
            let unsealed = linked.unseal(now, bytes, &mut scratch);
            self.link_unsealed_data(now, index, (bytes.len(), unsealed), out);
        } else {
            debug_assert!(false, "a link should receive bytes only after its connection was opened");
        }
        self.scratch = scratch;
    }

    /// `input`: the unsealed content of `received` bytes.
    fn link_unsealed_data<T: Transport>(
        &mut self,
        now: Time,
        index: usize,
        (received, mut input): (usize, &[u8]),
        out: &mut T,
    ) {
        loop {
            let Some(linked) = self.links.linked_mut(index) else {
                debug_assert!(false, "the loop returns after an event that ends the link");
                return;
            };
            match linked.decompose(now, &mut input) {
                Ok(Some(OpenerEvent::Data { id, bytes })) => self.reply(index, id, bytes, out),
                Ok(Some(event)) => self.link_event(now, index, event, out),
                Ok(None) => {
                    #[expect(
                        clippy::cast_possible_truncation,
                        reason = "at most LINK_GRANT_BYTES were granted"
                    )]
                    out.grant(linked.conn(), received as u32);
                    return;
                }
                Err(error) => {
                    out.abort(linked.conn());
                    self.link_down(now, index, LinkDown::Link(error), out);
                    return;
                }
            }
        }
    }

    fn link_event<T: Transport>(&mut self, now: Time, index: usize, event: OpenerEvent<'_>, out: &mut T) {
        match event {
            OpenerEvent::Established { connections_max } => self.link_up(now, index, connections_max, out),
            OpenerEvent::Accepted { .. } | OpenerEvent::Data { .. } => {}
            OpenerEvent::Refused { id, reason } => self.plain_refused(index, id, reason, out),
            OpenerEvent::Acknowledged { id, through, is_finished } => {
                self.requests_taken(index, id, (through, is_finished), out);
            }
            OpenerEvent::Finished { id } => self.plain_finished(index, id, out),
            OpenerEvent::Closed { id, reason } => self.plain_closed(now, index, (id, reason), out),
            OpenerEvent::Drain { deadline_ms } => self.server_drains(index, deadline_ms, out),
            OpenerEvent::RelayedData { id, bytes, .. } => self.relay_reply(index, id, bytes, out),
            OpenerEvent::RelayedControl { id, control } => self.relay_server_control(index, id, control, out),
        }
    }

    fn link_up<T: Transport>(&mut self, now: Time, index: usize, connections_max: u32, out: &mut T) {
        let link = &mut self.links[index];
        link.mark_up();
        let (service, number) = (link.service(), link.number());
        self.service_mut(service).counters_mut().links_up += 1;
        self.notices.push(Notice::LinkUp { service, link: number, connections_max });
        self.retire_predecessors(now, usize::from(service));
        self.update_listening(usize::from(service), out);
    }

    fn server_drains<T: Transport>(&mut self, index: usize, deadline_ms: u32, out: &mut T) {
        let (service, link) = (self.links[index].service(), self.links[index].number());
        let Some(linked) = self.links.linked_mut(index) else {
            debug_assert!(false, "the caller has just taken an event of this link");
            return;
        };
        linked.mark_draining();
        let clients: Vec<Conn> = linked.clients().collect();
        self.notices.push(Notice::ServerDrains { service, link, deadline_ms });
        clients.into_iter().for_each(|conn| self.send_drain(conn, deadline_ms));
        self.update_listening(usize::from(service), out);
    }
}
