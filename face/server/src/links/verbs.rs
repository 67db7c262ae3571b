//! The paper's verbs (§4.2) and their companions.

use std::time::Instant;

use spillway_batch::{
    CloseReason, ConsumedTooMuch, Info, LinkCounters, RefuseReason, ServerEvent, Unacknowledged,
};
use spillway_transport::Time;

use super::Links;
use super::other_threads::MAIL;
use crate::event::{ClientId, Event, LinkId, LinkLoss, Name};

impl Links {
    /// Takes the next event from the front of a link's received bytes; `None` when none is left. A link that
    /// violates the protocol is lost: [`poll_event`](Self::poll_event) returns an event for each of its connections.
    pub fn decompose<'a>(&mut self, now: Instant, link: LinkId, input: &mut &'a [u8]) -> Option<Event<'a>> {
        let time = self.time(now);
        if link == MAIL {
            return self.decompose_mail(time, input);
        }
        loop {
            match self.with(link, |entry| entry.end.decompose(time, input))? {
                Ok(Some(event)) => {
                    // Many messages about sessions cause no event for the application.
                    if let Some(event) = self.translate(time, link, event) {
                        return Some(event);
                    }
                }
                Ok(None) => {
                    self.end_of_input(link);
                    return None;
                }
                Err(error) => {
                    // The link's end may have composed a message with the reason for the peer.
                    self.push(time, link);
                    self.lose(link, LinkLoss::ProtocolError(error));
                    return None;
                }
            }
        }
    }

    pub(super) fn translate<'a>(
        &mut self,
        now: Time,
        link: LinkId,
        event: ServerEvent<'a>,
    ) -> Option<Event<'a>> {
        let client = |id| ClientId(Name::Plain(link, id));
        Some(match event {
            ServerEvent::Connect { id, client: address, server: _ } => {
                Event::Connected { client: client(id), address }
            }
            ServerEvent::Data { id, bytes } => {
                if let Some(release) = &mut self.automatic_release
                    && let Some(role) = self.table.get(link).and_then(|entry| entry.end.role())
                {
                    release.count_request(now, role);
                }
                Event::Data { client: client(id), bytes }
            }
            ServerEvent::Session { id, kind, client, opening } => {
                return self.handle_session_opening(now, (link, id), (kind, client, opening));
            }
            ServerEvent::Carried { id, bytes } => return self.handle_session_data(now, (link, id), bytes),
            ServerEvent::CarriedControl { id, control } => {
                return self.handle_session_control(now, (link, id), control);
            }
            ServerEvent::Finished { id } => Event::Finished { client: client(id) },
            ServerEvent::Closed { id, reason } => Event::Closed { client: client(id), reason },
            ServerEvent::Drain { deadline_ms } => Event::Drain { link, deadline_ms },
            ServerEvent::Forbidden { client: address, why } => Event::Forbidden { link, address, why },
            ServerEvent::Established { role, key: _ } => {
                let entry = self.table.get_mut(link)?;
                entry.authenticated = true;
                let peer = entry.peer();
                self.unauthenticated.end(link);
                Event::LinkOpened { link, peer, role }
            }
        })
    }

    /// Accepts a connection: the client's *pm_connect* succeeds.
    pub fn accept(&mut self, client: ClientId) {
        match client.0 {
            Name::Plain(link, id) => {
                self.with(link, |entry| entry.end.accept(id));
            }
            Name::Session(session) => self.accept_session(session),
        }
    }

    /// Refuses a connection that has not been accepted, and removes it. Its requests count as undelivered.
    pub fn refuse(&mut self, client: ClientId, reason: RefuseReason) {
        match client.0 {
            Name::Plain(link, id) => {
                self.with(link, |entry| entry.end.refuse(id, reason));
            }
            Name::Session(session) => self.refuse_session(session, reason),
        }
    }

    /// Puts a prefix of a reply into the link's next batch, as far as the client's window and the batch allow, and
    /// returns its length in bytes. If that is less than the whole reply, [`Event::CanCompose`] reports room.
    pub fn compose(&mut self, client: ClientId, reply: &[u8]) -> usize {
        match client.0 {
            Name::Plain(link, id) => self.with(link, |entry| entry.end.compose(id, reply)).unwrap_or(0),
            Name::Session(session) => self.sessions.write(session, reply),
        }
    }

    /// The application has processed `bytes` more bytes of a client's requests: the client may send as many more.
    ///
    /// # Errors
    /// `bytes` is more than was received and not yet consumed, which is a mistake of the application. Nothing changes.
    pub fn consumed(&mut self, client: ClientId, bytes: usize) -> Result<(), ConsumedTooMuch> {
        match client.0 {
            Name::Plain(link, id) => self.with(link, |entry| entry.end.consumed(id, bytes)).unwrap_or(Ok(())),
            Name::Session(session) => self.sessions.consumed(session, bytes),
        }
    }

    /// Ends the stream of replies to a client, which may still send.
    pub fn finish(&mut self, client: ClientId) {
        match client.0 {
            Name::Plain(link, id) => {
                self.with(link, |entry| entry.end.finish(id));
            }
            Name::Session(session) => self.sessions.finish(session),
        }
    }

    /// Closes this end of a connection. Also required after [`Event::Closed`]. Replies composed before still reach the
    /// client, unless the reason is a reset.
    pub fn close(&mut self, client: ClientId, reason: CloseReason) {
        match client.0 {
            Name::Plain(link, id) => {
                self.with(link, |entry| entry.end.close(id, reason));
            }
            Name::Session(session) => self.sessions.close(self.latest, session, reason),
        }
    }

    /// A connection's client, role and byte counts: the paper's *get_info*. `None` when the connection has ended.
    pub fn info(&self, client: ClientId) -> Option<Info> {
        match client.0 {
            Name::Plain(link, id) => self.table.get(link)?.end.info(id),
            Name::Session(session) => {
                let info = self.sessions.info(session)?;
                Some(Info {
                    client: self.sessions.client(session)?,
                    role: self.sessions.role(session)?,
                    bytes_received: info.bytes_received,
                    bytes_sent: info.bytes_sent,
                })
            }
        }
    }

    /// Replies that a plain client's own TCP has not acknowledged, if its helper reports acknowledgements. `None` for
    /// sessions.
    pub fn unacknowledged(&self, client: ClientId) -> Option<Unacknowledged<'_>> {
        match client.0 {
            Name::Plain(link, id) => self.table.get(link)?.end.unacknowledged(id),
            Name::Session(_) => None,
        }
    }

    /// The link that carries a connection now. A session's link may change, and may be another thread's; `None` for a
    /// session without a carrier.
    pub fn link(&self, client: ClientId) -> Option<LinkId> {
        match client.0 {
            Name::Plain(link, _) => Some(link),
            Name::Session(session) => self.sessions.carrier(session).map(|(link, _)| link),
        }
    }

    /// Number of sessions, including those that wait for their clients, and closed ones that linger.
    pub fn sessions(&self) -> usize {
        self.sessions.len()
    }

    /// A link's counters since it was accepted.
    pub fn counters(&self, link: LinkId) -> Option<LinkCounters> {
        Some(self.table.get(link)?.end.counters())
    }

    /// All links of this port, including those that have not authenticated yet.
    pub fn links(&self) -> impl Iterator<Item = LinkId> + '_ {
        self.table.ids()
    }

    /// Asks helpers and library clients to move all connections away within `deadline_ms`, before the server ends.
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
