//! All links, their clients, and the links that have to do something at the end of a turn.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::net::SocketAddr;
use core::time::Duration;

use spillway_batch::{CloseReason, ForbiddenAddress, Id, LinkError, Scratch, ServerLink, Unauthenticated};
use spillway_transport::{Conn, Time, Transport};

use crate::clients::{Client, Clients};
use crate::link::Link;
use crate::notice::LinkNotice;
use crate::settings::LinkSettings;

/// Time for the peer of a failed link to close its connection, which is then reset.
const CLOSING_TIME: Duration = Duration::from_secs(5);
/// Ended links that may wait for their peers to close before links of strangers are aborted at once.
const CLOSING_MAX: usize = 128;
/// Interval of reports about rejected peers, about refused clients, and about clients that were reset.
const REPORT_INTERVAL: Duration = Duration::from_secs(10);

/// Counts what is reported at most once in [`REPORT_INTERVAL`].
#[derive(Debug, Default)]
struct Limited {
    count: u64,
    next_at: Time,
}

impl Limited {
    /// Counts an event. Returns the number of events since the last report, if a report is due.
    fn count(&mut self, now: Time) -> Option<u64> {
        self.count += 1;
        if now < self.next_at {
            return None;
        }
        self.next_at = now + REPORT_INTERVAL;
        Some(core::mem::take(&mut self.count))
    }
}

/// All links.
#[derive(Debug)]
pub(crate) struct Links {
    pub(crate) settings: LinkSettings,
    links: BTreeMap<Conn, Link>,
    pub(crate) clients: Clients,
    unauthenticated: Unauthenticated<Conn>,
    /// Failed links whose connections are not closed yet, and when they are reset.
    closing: BTreeMap<Conn, Time>,
    /// Links with something to send, or whose peers may send on.
    touched: BTreeSet<Conn>,
    /// Clients that have waiting bytes and a grant, or whose both directions have ended.
    pub(crate) ready: Vec<Conn>,
    /// When each link that waits for something is due, in order.
    deadlines: BTreeSet<(Time, Conn)>,
    pub(crate) scratch: Scratch,
    rejected: Limited,
    forbidden: Limited,
    overfull: Limited,
}

impl Links {
    pub(crate) fn new(settings: LinkSettings) -> Links {
        Links {
            settings,
            links: BTreeMap::new(),
            clients: Clients::default(),
            unauthenticated: Unauthenticated::default(),
            closing: BTreeMap::new(),
            touched: BTreeSet::new(),
            ready: Vec::new(),
            deadlines: BTreeSet::new(),
            scratch: Scratch::new(),
            rejected: Limited::default(),
            forbidden: Limited::default(),
            overfull: Limited::default(),
        }
    }

    /// Whether a connection of the transport is, or was, a link.
    pub(crate) fn is_link(&self, conn: Conn) -> bool {
        self.links.contains_key(&conn) || self.closing.contains_key(&conn)
    }

    /// A peer has connected to the link port. Returns links that must make room for it, perhaps the new one.
    pub(crate) fn open<T: Transport>(
        &mut self,
        now: Time,
        conn: Conn,
        peer: SocketAddr,
        out: &mut T,
    ) -> Vec<Conn> {
        let mut victims = Vec::new();
        if self.links.len() >= self.settings.links_max {
            match self.unauthenticated.evict(now) {
                Some(victim) => victims.push(victim),
                None => return Vec::from([conn]),
            }
        }
        let Some(fresh) = (self.settings.randomness)() else { return Vec::from([conn]) };
        let (config, local) = (self.settings.config.clone(), self.settings.address);
        let end = ServerLink::new(config, now, peer, local, fresh);
        self.links.insert(conn, Link::new(conn, peer, end, out));
        self.file_deadline(conn);
        victims.extend(self.unauthenticated.begin(now, peer.ip(), conn));
        victims
    }

    pub(crate) fn get_mut(&mut self, conn: Conn) -> Option<&mut Link> {
        self.links.get_mut(&conn)
    }

    pub(crate) fn touch(&mut self, conn: Conn) {
        self.touched.insert(conn);
    }

    /// The link's peer has authenticated.
    pub(crate) fn authenticated(&mut self, conn: Conn) -> Option<SocketAddr> {
        self.unauthenticated.end(conn);
        let link = self.links.get_mut(&conn)?;
        link.is_authenticated = true;
        Some(link.peer)
    }

    /// Call it after each input of a link.
    pub(crate) fn end_of_input(&mut self, conn: Conn) {
        if self.links.get(&conn).is_some_and(|link| !link.is_authenticated && link.end.has_named_key()) {
            self.unauthenticated.named_key(conn);
        }
        self.touch(conn);
    }

    /// The protocol's end for a helped client, and the client's number there.
    pub(crate) fn end_of(&self, conn: Conn) -> Option<(&ServerLink, Id)> {
        let client = self.clients.get(conn)?;
        Some((&self.links.get(&client.link)?.end, client.id))
    }

    /// As [`end_of`](Self::end_of); the link then sends at the end of the turn.
    pub(crate) fn end_of_mut(&mut self, conn: Conn) -> Option<(&mut ServerLink, Id)> {
        let client = self.clients.get(conn)?;
        self.touched.insert(client.link);
        Some((&mut self.links.get_mut(&client.link)?.end, client.id))
    }

    pub(crate) fn want_room(&mut self, conn: Conn) {
        if let Some((end, id)) = self.end_of_mut(conn) {
            end.want_room(id);
        }
    }

    /// Keeps bytes of a helped client until the application grants them. If there is no room the client is reset, and `false`
    /// returned: the application must learn it.
    #[must_use]
    pub(crate) fn keep(&mut self, now: Time, conn: Conn, bytes: &[u8]) -> bool {
        if self.clients.keep(conn, bytes, self.settings.waiting_bytes_max) {
            return true;
        }
        self.close(conn, CloseReason::Reset);
        if let Some(count) = self.overfull.count(now) {
            (self.settings.notices)(LinkNotice::NoRoom { count });
        }
        false
    }

    /// Ends a helped client's connection, of which no further event follows.
    pub(crate) fn close(&mut self, conn: Conn, reason: CloseReason) {
        let Some((end, id)) = self.end_of_mut(conn) else { return };
        end.close(id, reason);
        self.forget(conn);
    }

    fn forget(&mut self, conn: Conn) -> Option<Client> {
        let client = self.clients.remove(conn)?;
        if let Some(link) = self.links.get_mut(&client.link) {
            link.forget(client.id);
        }
        Some(client)
    }

    /// Ends a link whose connection exists: the peer gets what waits, which may state the reason, and has a few seconds to
    /// close. Returns the link's clients, which are forgotten.
    pub(crate) fn end<T: Transport>(
        &mut self,
        now: Time,
        conn: Conn,
        error: Option<LinkError>,
        out: &mut T,
    ) -> Vec<Conn> {
        let Some(link) = self.links.get_mut(&conn) else { return Vec::new() };
        if link.is_authenticated || self.closing.len() < CLOSING_MAX {
            link.transmit(now, out);
            out.finish(conn);
            self.closing.insert(conn, now + CLOSING_TIME);
        } else {
            // Strangers cannot fill the stack with connections that they do not close.
            out.abort(conn);
        }
        self.lose(now, conn, error)
    }

    /// The connection of a link has ended. Returns the link's clients, which are forgotten.
    pub(crate) fn handle_lost(&mut self, now: Time, conn: Conn) -> Vec<Conn> {
        self.closing.remove(&conn);
        self.lose(now, conn, None)
    }

    fn lose(&mut self, now: Time, conn: Conn, error: Option<LinkError>) -> Vec<Conn> {
        let Some(link) = self.links.remove(&conn) else { return Vec::new() };
        self.unauthenticated.end(conn);
        self.touched.remove(&conn);
        if let Some(due_at) = link.due_at {
            self.deadlines.remove(&(due_at, conn));
        }
        let clients = link.clients();
        for client in &clients {
            self.forget(*client);
        }
        let peer = link.peer;
        if link.is_authenticated {
            (self.settings.notices)(LinkNotice::Down { peer, clients: clients.len(), error });
        } else if let Some(error) = error
            && let Some(count) = self.rejected.count(now)
        {
            (self.settings.notices)(LinkNotice::Rejected { peer, error, count });
        }
        clients
    }

    pub(crate) fn report_forbidden(&mut self, now: Time, client: SocketAddr, why: ForbiddenAddress) {
        if let Some(count) = self.forbidden.count(now) {
            (self.settings.notices)(LinkNotice::Forbidden { client, why, count });
        }
    }

    /// Sends what the touched links have composed, and lets their peers send on. Returns the clients for which there is
    /// room again.
    pub(crate) fn flush<T: Transport>(&mut self, now: Time, out: &mut T) -> Vec<Conn> {
        let mut with_room = Vec::new();
        for conn in core::mem::take(&mut self.touched) {
            let Some(link) = self.links.get_mut(&conn) else { continue };
            link.transmit(now, out);
            link.grant(out);
            while let Some(id) = link.end.poll_room() {
                with_room.extend(link.name(id));
            }
            self.file_deadline(conn);
        }
        with_room
    }

    /// Files the time at which a link is due, after anything that may have changed it.
    fn file_deadline(&mut self, conn: Conn) {
        let Some(link) = self.links.get_mut(&conn) else { return };
        let due_at = link.poll_timeout();
        let earlier = core::mem::replace(&mut link.due_at, due_at);
        if earlier != due_at {
            if let Some(at) = earlier {
                self.deadlines.remove(&(at, conn));
            }
            self.deadlines.extend(due_at.map(|at| (at, conn)));
        }
    }

    /// Sends what the touched links have composed.
    pub(crate) fn transmit<T: Transport>(&mut self, now: Time, out: &mut T) {
        for conn in &self.touched {
            if let Some(link) = self.links.get_mut(conn) {
                link.transmit(now, out);
            }
        }
    }

    /// Links whose handshake or record is due by time, with the errors of those that have failed.
    pub(crate) fn handle_timeout<T: Transport>(&mut self, now: Time, out: &mut T) -> Vec<(Conn, LinkError)> {
        let mut failed = Vec::new();
        let due: Vec<Conn> =
            self.deadlines.iter().take_while(|(at, _)| *at <= now).map(|(_, conn)| *conn).collect();
        for conn in due {
            let Some(link) = self.links.get_mut(&conn) else { continue };
            if let Err(error) = link.end.handle_timeout(now) {
                failed.push((conn, error));
            }
            self.touched.insert(conn);
            self.file_deadline(conn);
        }
        self.closing.retain(|conn, until| {
            let is_due = *until <= now;
            if is_due {
                out.abort(*conn);
            }
            !is_due
        });
        failed
    }

    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        let first = self.deadlines.first().map(|(at, _)| *at);
        self.closing.values().copied().chain(first).min()
    }
}
