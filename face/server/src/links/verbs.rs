//! The paper's verbs (§4.2), and what goes with them.

use std::time::Instant;

use spillway_batch::{CloseReason, Info, LinkCounters, RefuseReason, ServerEvent};

use super::Links;
use crate::event::{Client, Event, LinkEnd, LinkId};

impl Links {
    /// Takes the next event off the front of what a link received. `None` when all of it is used up. A link that
    /// breaks the rules is lost: [`poll_event`](Self::poll_event) tells its connections.
    pub fn decompose<'a>(&mut self, now: Instant, link: LinkId, input: &mut &'a [u8]) -> Option<Event<'a>> {
        let time = self.time(now);
        match self.with(link, |entry| entry.end.decompose(time, input))? {
            Ok(Some(event)) => self.translate(link, event),
            Ok(None) => {
                self.collect_room(link);
                None
            }
            Err(error) => {
                // Its last words may tell the other side why.
                self.push(time, link);
                self.lose(link, LinkEnd::Broken(error));
                None
            }
        }
    }

    fn translate<'a>(&mut self, link: LinkId, event: ServerEvent<'a>) -> Option<Event<'a>> {
        let client = |id| Client { link, id };
        Some(match event {
            ServerEvent::Connect { id, client: address, server: _ } => {
                Event::Connected { client: client(id), address }
            }
            ServerEvent::Data { id, bytes } => Event::Data { client: client(id), bytes },
            ServerEvent::Finished { id } => Event::Finished { client: client(id) },
            ServerEvent::Closed { id, reason } => Event::Closed { client: client(id), reason },
            ServerEvent::Drain { deadline_ms } => Event::Drain { link, deadline_ms },
            ServerEvent::Forbidden { client: address, why } => Event::Forbidden { link, address, why },
            ServerEvent::Established { role, key: _ } => {
                let entry = self.table.get_mut(link)?;
                entry.authenticated = true;
                Event::LinkOpened { link, peer: entry.peer(), role }
            }
        })
    }

    /// Accepts a connection: the client's *pm_connect* succeeds.
    pub fn accept(&mut self, client: Client) {
        self.with(client.link, |link| link.end.accept(client.id));
    }

    /// Refuses a connection that was not accepted. It is forgotten with this, and its requests count as
    /// undelivered.
    pub fn refuse(&mut self, client: Client, reason: RefuseReason) {
        self.with(client.link, |link| link.end.refuse(client.id, reason));
    }

    /// Puts a prefix of a reply into the link's next batch, as far as the client's window and the batch allow, and
    /// returns its length. After it took less than all, [`Event::Room`] tells when it is worth trying again.
    pub fn compose(&mut self, client: Client, reply: &[u8]) -> usize {
        self.with(client.link, |link| link.end.compose(client.id, reply)).unwrap_or(0)
    }

    /// So many bytes of a client's requests are dealt with: it may send as many more. Together never more than
    /// were received.
    pub fn consumed(&mut self, client: Client, bytes: usize) {
        self.with(client.link, |link| link.end.consumed(client.id, bytes));
    }

    /// Sends no more to a client, which may still send.
    pub fn finish(&mut self, client: Client) {
        self.with(client.link, |link| link.end.finish(client.id));
    }

    /// Closes a connection, or answers [`Event::Closed`]. What was composed before still reaches the client,
    /// unless the reason is a reset.
    pub fn close(&mut self, client: Client, reason: CloseReason) {
        self.with(client.link, |link| link.end.close(client.id, reason));
    }

    /// What is known about a connection: the paper's *get_info*. `None` when it has ended.
    pub fn info(&self, client: Client) -> Option<Info> {
        self.table.get(client.link)?.end.info(client.id)
    }

    /// What a link has done so far.
    pub fn counters(&self, link: LinkId) -> Option<LinkCounters> {
        Some(self.table.get(link)?.end.counters())
    }

    /// All links.
    pub fn links(&self) -> impl Iterator<Item = LinkId> + '_ {
        self.table.ids()
    }

    /// Asks helpers and clients to move all connections away within this time, before the server goes.
    pub fn drain(&mut self, deadline_ms: u32) {
        let links: Vec<LinkId> = self.table.ids().collect();
        for link in links {
            self.with(link, |entry| {
                if entry.authenticated {
                    entry.end.drain(deadline_ms);
                }
            });
        }
    }
}
