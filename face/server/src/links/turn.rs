//! The link port's part of a turn of the application's loop.

use std::io;
use std::os::fd::AsFd;
use std::time::Instant;

use rustix::event::epoll::{self, EventData, EventFlags};
use spillway_batch::{CloseReason, Id, LinkError, ServerLink};
use spillway_transport::Time;
use spillway_wire::preamble::{Verdict, Welcome};

use super::other_threads::{MAIL, Member};
use super::{ACCEPTED_PER_TURN, Links};
use crate::event::{ClientId, Event, LinkId, LinkLoss, Name};
use crate::link::Link;
use crate::listener::Accepted;
use crate::watch::{Interest, LISTENER, MAILBOX, join, split};

/// Buffer for a new link's first packet: more than a peer sends before it has read the link port's answer.
const FIRST_BYTES: usize = 512;

impl Links {
    /// Updates an epoll set. Its events carry `mark` in the upper 32 bits of their data, so that [`owns`](Self::owns)
    /// distinguishes them from the application's own events. Call it after `bind`, and then after each turn.
    ///
    /// # Errors
    /// A descriptor cannot be added to the set or changed there.
    pub fn watch_in(&mut self, epoll: impl AsFd, mark: u32) -> io::Result<()> {
        let epoll = epoll.as_fd();
        let interest = self.listener.interest();
        watch(epoll, self.listener.descriptor(), join(mark, LISTENER), self.listener.watched, interest)?;
        self.listener.watched = Some(interest);
        if let Some(member) = self.member.as_mut().filter(|member| !member.is_watched) {
            let interest = Interest { readable: true, writable: false };
            watch(epoll, member.descriptor(), join(mark, MAILBOX), None, interest)?;
            member.is_watched = true;
        }
        let mut outcome = Ok(());
        self.touched.retain(|&link| {
            let Some(entry) = self.table.get_mut(link) else { return false };
            let interest = entry.interest();
            let data = join(mark, link.slot + 1);
            let watched = watch(epoll, entry.socket.as_fd(), data, entry.watched, interest);
            if watched.is_ok() {
                entry.watched = Some(interest);
            }
            // The link stays in the list if the change failed, so that the next call tries again, or if bytes
            // were composed after this turn's flush, so that the next flush sends them.
            entry.touched =
                watched.is_err() || entry.lost.is_none() && entry.end.pending() > 0 && !interest.writable;
            if let (Err(error), true) = (watched, outcome.is_ok()) {
                outcome = Err(error);
            }
            entry.touched
        });
        outcome
    }

    /// Whether an event of the epoll set belongs to the link port: the upper 32 bits of its data are `mark`.
    pub fn owns(mark: u32, data: u64) -> bool {
        split(data).0 == mark
    }

    /// Handles an event of the epoll set: accepts links, or sends pending batches. Returns the link to
    /// [`receive`](Self::receive) from, if a link can be read; with [threads](crate::Settings::threads) also an id that
    /// stands for the posts of other threads. Spurious calls are harmless.
    pub fn handle_ready(&mut self, now: Instant, data: u64, flags: EventFlags) -> Option<LinkId> {
        let (_, index) = split(data);
        if index == LISTENER {
            self.accept_links(now);
            return None;
        }
        if index == MAILBOX {
            return Some(MAIL);
        }
        let link = self.table.at(index - 1)?;
        let time = self.time(now);
        let is_broken = flags.intersects(EventFlags::ERR | EventFlags::HUP);
        if is_broken || flags.contains(EventFlags::OUT) {
            self.push(time, link);
        }
        let has_plaintext = self.table.get_mut(link).is_some_and(|entry| entry.has_plaintext());
        (is_broken || has_plaintext || flags.contains(EventFlags::IN)).then_some(link)
    }

    fn accept_links(&mut self, now: Instant) {
        for _ in 0..ACCEPTED_PER_TURN {
            let Some(accepted) = self.listener.accept(now) else { return };
            self.add(now, accepted);
        }
    }

    fn add(&mut self, now: Instant, accepted: Accepted) {
        // The handshake needs random bytes. Without them the connection is closed, and the peer tries again.
        let Ok(fresh) = spillway_keys::fresh_link_randomness() else { return };
        let (time, limits) = (self.time(now), self.config.limits);
        let peer = accepted.peer;
        let end = ServerLink::new(self.config.clone(), time, peer, accepted.local, fresh);
        let mut link = Link::new(accepted, end);
        link.touched = true;
        if self.table.len() - self.lost.len() >= self.links_max {
            // Drop a link that has not authenticated yet, if there is one, for the new link.
            let Some(victim) = self.unauthenticated.evict(time) else { return refuse(&link) };
            self.lose(victim, LinkLoss::Evicted);
        }
        let Some(link) = self.table.insert(link) else { return };
        self.forget_settled_handshakes();
        self.handshakes.push_back((now + limits.handshake_timeout, link));
        self.touched.push(link);
        if let Some(victim) = self.unauthenticated.begin(time, peer.ip(), link) {
            self.lose(victim, LinkLoss::Evicted);
        }
        self.read_first_packet(time, link);
    }

    /// Reads a new link's first packet, if it has arrived. In it a peer names its key, and links whose peers have named
    /// an accepted key are evicted last.
    fn read_first_packet(&mut self, time: Time, link: LinkId) {
        let mut buffer = [0; FIRST_BYTES];
        let received = self.receive(link, &mut buffer);
        let Some(entry) = self.table.get_mut(link).filter(|entry| entry.lost.is_none()) else { return };
        let mut input = &buffer[..received];
        match entry.end.decompose(time, &mut input) {
            Ok(event) => debug_assert!(
                event.is_none(),
                "a link should not be established before the peer has read the answer"
            ),
            Err(error) => {
                self.push(time, link);
                self.lose(link, LinkLoss::ProtocolError(error));
            }
        }
        self.update_named_key(link);
    }

    /// Reports to `unauthenticated` that the link's peer has named an accepted key. Call it after each input.
    pub(super) fn update_named_key(&mut self, link: LinkId) {
        if self.table.get(link).is_some_and(|entry| !entry.authenticated && entry.end.has_named_key()) {
            self.unauthenticated.named_key(link);
        }
    }

    /// Bounds `handshakes`: removes the deadlines of links that have authenticated or ended, once they are the majority.
    fn forget_settled_handshakes(&mut self) {
        if self.handshakes.len() > 2 * self.unauthenticated.len() + 64 {
            let table = &self.table;
            let waits = |link: &Link| !link.authenticated && link.lost.is_none();
            self.handshakes.retain(|(_, link)| table.get(*link).is_some_and(waits));
        }
    }

    /// Receives from a link into a buffer of the application's: 64 KiB is a good size. Returns the number of bytes to
    /// [`decompose`](Self::decompose); 0 if no bytes are available. Makes one system call.
    pub fn receive(&mut self, link: LinkId, buffer: &mut [u8]) -> usize {
        if link == MAIL {
            return self.receive_mail(buffer);
        }
        let (latest, scratch) = (self.latest, &mut self.scratch);
        let entry = self.table.get_mut(link);
        let outcome = entry.map(|entry| entry.receive(latest, buffer, scratch));
        self.update_reading(link);
        match outcome {
            Some(Ok(received)) => received,
            Some(Err(why)) => {
                self.lose(link, why);
                0
            }
            None => 0,
        }
    }

    /// Records a link's read timeout and a changed `Interest`. Call it after each input and timeout of the link.
    fn update_reading(&mut self, link: LinkId) {
        let Some(entry) = self.table.get_mut(link) else { return };
        if !entry.has_read_timeout && entry.end.has_read_timeout() {
            entry.has_read_timeout = true;
            self.read_timeouts.push(link);
        }
        if !entry.touched && entry.watched.is_some_and(|watched| watched != entry.interest()) {
            entry.touched = true;
            self.touched.push(link);
        }
    }

    /// Call it when all bytes of an input of a link have been decomposed.
    pub(super) fn end_of_input(&mut self, link: LinkId) {
        self.update_named_key(link);
        self.collect_room(link);
        self.update_reading(link);
    }

    /// Sends everything that was composed, in one batch and one system call for each link. Call it at the end of a turn:
    /// `now` ends the turn's service time, see [`Settings::release`](crate::Settings::release).
    pub fn flush(&mut self, now: Instant) {
        let time = self.time(now);
        if let Some(release) = &mut self.automatic_release {
            release.count_turn(time);
        }
        self.transmit_sessions(time);
        self.deliver_posts();
        for index in 0..self.touched.len() {
            self.push(time, self.touched[index]);
        }
    }

    pub(super) fn push(&mut self, time: Time, link: LinkId) {
        let Some(entry) = self.table.get_mut(link).filter(|entry| entry.lost.is_none()) else { return };
        let outcome = entry.push(time);
        if !entry.touched && entry.watched != Some(entry.interest()) {
            entry.touched = true;
            self.touched.push(link);
        }
        match outcome {
            Ok(()) => self.collect_room(link),
            Err(error) => self.lose(link, LinkLoss::Socket(error)),
        }
    }

    pub(super) fn collect_room(&mut self, link: LinkId) {
        while let Some(id) = self.table.get_mut(link).and_then(|entry| entry.end.poll_room()) {
            if !self.handle_carrier_room((link, id)) && !self.compose_waiting((link, id)) {
                self.room.push_back(ClientId(Name::Plain(link, id)));
            }
        }
    }

    pub(super) fn lose(&mut self, link: LinkId, why: LinkLoss) {
        if let Some(entry) = self.table.get_mut(link).filter(|entry| entry.lost.is_none()) {
            self.unauthenticated.end(link);
            let ids: Vec<Id> = entry.end.ids().collect();
            entry.lose(why);
            let mut orphans = std::mem::take(&mut entry.orphans);
            orphans
                .retain(|id| !self.handle_carrier_loss(self.latest, (link, *id)) && !self.holds((link, *id)));
            if let Some(entry) = self.table.get_mut(link) {
                entry.orphans = orphans;
            }
            for id in ids {
                self.lose_held((link, id));
            }
            self.lost.push_back(link);
        }
    }

    /// The next event that happened outside `decompose`. Call it until `None`, after all of a turn's epoll events.
    #[must_use]
    pub fn poll_event(&mut self) -> Option<Event<'static>> {
        if let Some(client) = self.room.pop_front() {
            return Some(Event::CanCompose { client });
        }
        if let Some(session) = self.ended.pop_front() {
            let client = ClientId(Name::Session(session));
            return Some(Event::Closed { client, reason: CloseReason::Reset });
        }
        let link = *self.lost.front()?;
        if let Some(id) = self.table.get_mut(link).and_then(|entry| entry.orphans.pop()) {
            let client = ClientId(Name::Plain(link, id));
            return Some(Event::Closed { client, reason: CloseReason::Reset });
        }
        self.lost.pop_front();
        let entry = self.table.remove(link)?;
        let peer = entry.peer();
        entry.lost.map(|why| Event::LinkLost { link, peer, why })
    }

    /// When the next turn must begin at the latest. Call it after [`watch_in`](Self::watch_in). The time is in the past if
    /// [`poll_event`](Self::poll_event) has an event or [`flush`](Self::flush) something to send.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let is_busy = self.sessions.is_dirty() || self.member.as_ref().is_some_and(Member::is_busy);
        let is_idle =
            self.room.is_empty() && self.lost.is_empty() && self.touched.is_empty() && self.ended.is_empty();
        if is_busy || !is_idle {
            return Some(self.epoch);
        }
        let handshake = self.handshakes.front().map(|(deadline, _)| *deadline);
        let read_timeouts =
            self.read_timeouts.iter().filter_map(|link| self.table.get(*link)?.end.poll_read_timeout());
        let reading = read_timeouts.min().map(|at| self.instant(at));
        let sessions = self.sessions.poll_timeout().map(|at| self.instant(at));
        let release = self.release_at().map(|at| self.instant(at));
        [handshake, reading, sessions, release, self.listener.poll_timeout()].into_iter().flatten().min()
    }

    /// Handles timeouts: drops links that have not authenticated in time or have not completed a record in time, and
    /// sessions whose clients have not returned; resumes reading of links that were not read for a time; releases
    /// helped sessions that are due, see [`Settings::release`](crate::Settings::release).
    pub fn handle_timeout(&mut self, now: Instant) {
        self.listener.handle_timeout(now);
        let time = self.time(now);
        self.handle_session_timeouts(time);
        self.handle_release_timeout(time);
        self.handle_read_timeouts(time);
        while let Some(&(_, link)) = self.handshakes.front().filter(|(deadline, _)| *deadline <= now) {
            self.handshakes.pop_front();
            if self.table.get(link).is_some_and(|entry| !entry.authenticated) {
                self.lose(link, LinkLoss::ProtocolError(LinkError::HandshakeTimeout));
            }
        }
    }
}

impl Links {
    fn handle_read_timeouts(&mut self, time: Time) {
        let mut kept = 0;
        for index in 0..self.read_timeouts.len() {
            let link = self.read_timeouts[index];
            let Some(entry) = self.table.get_mut(link).filter(|entry| entry.lost.is_none()) else { continue };
            let outcome = entry.end.handle_timeout(time);
            entry.has_read_timeout = entry.end.has_read_timeout();
            if entry.has_read_timeout {
                self.read_timeouts[kept] = link;
                kept += 1;
            }
            match outcome {
                Ok(()) => self.update_reading(link),
                Err(error) => self.lose(link, LinkLoss::ProtocolError(error)),
            }
        }
        self.read_timeouts.truncate(kept);
    }
}

/// Sends the reason of the refusal to the peer of a link beyond `links_max`.
fn refuse(link: &Link) {
    let _ = rustix::net::send(
        &link.socket,
        &Welcome::refusal(Verdict::Full).emit(),
        rustix::net::SendFlags::NOSIGNAL,
    );
}

fn watch(
    epoll: std::os::fd::BorrowedFd<'_>,
    socket: std::os::fd::BorrowedFd<'_>,
    data: u64,
    before: Option<Interest>,
    interest: Interest,
) -> io::Result<()> {
    let mut flags = EventFlags::empty();
    flags.set(EventFlags::IN, interest.readable);
    flags.set(EventFlags::OUT, interest.writable);
    let data = EventData::new_u64(data);
    match before {
        None => Ok(epoll::add(epoll, socket, data, flags)?),
        Some(before) if before != interest => Ok(epoll::modify(epoll, socket, data, flags)?),
        Some(_) => Ok(()),
    }
}
