//! A connection and its use; how it moves is in `moving`.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::Instant;

use rustix::event::epoll::{self, EventData, EventFlags};
use spillway_transport::Time;

use crate::LinkTarget;
use crate::direct::Direct;
use crate::error::MoveError;
use crate::event::{Carrier, Event, Events};
use crate::link::Link;
use crate::settings::{Route, Settings};
use crate::socket;
use crate::stage::Moving;
use crate::watch::{Interest, Ready, Slot, Watch, join_token};

/// One stream of bytes in each direction, and what carries it now. See the crate's documentation for the order
/// of calls.
#[derive(Debug)]
pub struct Connection {
    /// What the core's time counts from.
    epoch: Instant,
    pub(crate) server: Option<SocketAddr>,
    pub(crate) settings: Settings,
    pub(crate) direct: Option<Direct>,
    pub(crate) links: [Option<Box<Link>>; 2],
    /// What carries the bytes; `None` before the first carrier is there.
    pub(crate) active: Option<Slot>,
    pub(crate) moving: Option<Moving>,
    pub(crate) events: Events,
}

impl Connection {
    /// Starts to connect to a server directly. [`Event::Moved`] or [`Event::MoveFailed`] follows.
    pub fn connect(now: Instant, server: SocketAddr, settings: Settings) -> Result<Connection, MoveError> {
        let mut connection = Connection::new(now, Some(server), settings);
        connection.begin_move(now, Route::Direct)?;
        Ok(connection)
    }

    /// Starts to connect through a link (the paper's *pm_connect*) without having connected directly before.
    /// `server` is where a later move to direct goes. [`Event::Moved`] follows when the server's application has
    /// accepted, else [`Event::MoveFailed`].
    pub fn pm_connect(
        now: Instant,
        target: &LinkTarget,
        server: Option<SocketAddr>,
        settings: Settings,
    ) -> Result<Connection, MoveError> {
        let mut connection = Connection::new(now, server, settings);
        connection.begin_move(now, Route::Link(target))?;
        Ok(connection)
    }

    fn new(now: Instant, server: Option<SocketAddr>, settings: Settings) -> Connection {
        Connection {
            epoch: now,
            server,
            settings,
            direct: None,
            links: [None, None],
            active: None,
            moving: None,
            events: Events::default(),
        }
    }

    /// What carries the bytes now; `None` while the first carrier is set up.
    pub fn carrier(&self) -> Option<Carrier> {
        self.carrier_in(self.active?)
    }

    pub(crate) fn carrier_in(&self, slot: Slot) -> Option<Carrier> {
        match slot.link() {
            None => self.direct.as_ref().map(|direct| Carrier::Direct(direct.server)),
            Some(index) => self.links[index].as_ref().map(|link| Carrier::Link(link.target)),
        }
    }

    /// This end's address on what carries the bytes now: what the server sees, unless the network translates it.
    pub fn local_address(&self) -> io::Result<SocketAddr> {
        let not_connected = || io::Error::from(io::ErrorKind::NotConnected);
        let socket = match self.active.ok_or_else(not_connected)?.link() {
            None => self.direct.as_ref().map(|direct| &direct.socket),
            Some(index) => self.links[index].as_ref().map(|link| &link.socket),
        };
        socket::local_address(socket.ok_or_else(not_connected)?)
    }

    /// Sends a prefix of `bytes` and returns its length. `WouldBlock` when there is no room, or while a move is
    /// under way. After it took less than all, [`Event::Room`] tells when it is worth trying again (after a
    /// move: [`Event::Moved`]). One system call.
    ///
    /// On a link, what gives room comes on the same stream as replies: keep receiving while you wait for it.
    pub fn send(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.moving.as_ref().is_some_and(Moving::is_automatic) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        match self.active {
            None => Err(io::ErrorKind::NotConnected.into()),
            Some(slot) => match self.carrier_mut(slot) {
                CarrierMut::Direct(direct) => direct.send(bytes),
                CarrierMut::Link(link) => {
                    let outcome = link.send(bytes);
                    self.collect(slot);
                    outcome
                }
                CarrierMut::None => Err(io::ErrorKind::NotConnected.into()),
            },
        }
    }

    /// Receives into `buffer`, which should have room for whole replies and a few dozen bytes more. 0 is the end
    /// of the stream. `WouldBlock` when there is nothing. One system call, unless only control had arrived.
    pub fn receive(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self.active {
            None if self.moving.is_some() => Err(io::ErrorKind::WouldBlock.into()),
            None => Err(io::ErrorKind::NotConnected.into()),
            Some(slot) => match self.carrier_mut(slot) {
                CarrierMut::Direct(direct) => direct.receive(buffer),
                CarrierMut::Link(link) => {
                    let outcome = link.receive(buffer);
                    // What came beside bytes, and without any, is told; an end or an error that is told with this
                    // is not announced again.
                    let goes_on = match &outcome {
                        Ok(received) => *received > 0,
                        Err(error) => socket::is_later(error),
                    };
                    if goes_on {
                        self.collect(slot);
                    }
                    outcome
                }
                CarrierMut::None => Err(io::ErrorKind::NotConnected.into()),
            },
        }
    }

    /// Sends no more; replies still come.
    pub fn finish(&mut self) -> io::Result<()> {
        match self.active.map(|slot| self.carrier_mut(slot)) {
            Some(CarrierMut::Direct(direct)) => socket::finish(&direct.socket),
            Some(CarrierMut::Link(link)) => link.finish(),
            Some(CarrierMut::None) | None => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// The caller's epoll says that one of the sockets is ready. Returns whether to call
    /// [`receive`](Self::receive). A word too many does no harm.
    pub fn handle_ready(&mut self, now: Instant, slot: Slot, ready: Ready) -> bool {
        if self.active == Some(slot) {
            if ready.writable {
                self.active_writable(slot);
            }
            return ready.readable;
        }
        if self.moving.as_ref().is_some_and(|moving| moving.to == slot) {
            self.advance_move(now);
        } else if slot == Slot::Direct {
            self.check_idle_direct();
        }
        false
    }

    fn active_writable(&mut self, slot: Slot) {
        match self.carrier_mut(slot) {
            CarrierMut::Direct(direct) => {
                if direct.writable() {
                    self.events.room();
                }
            }
            CarrierMut::Link(link) => {
                link.writable();
                self.collect(slot);
            }
            CarrierMut::None => {}
        }
    }

    /// Gathers what a link has to tell beside bytes.
    pub(crate) fn collect(&mut self, slot: Slot) {
        let Some(link) = slot.link().and_then(|index| self.links[index].as_mut()) else { return };
        if link.has_more() {
            self.events.readable();
        }
        if link.poll_room() {
            self.events.room();
        }
        if let Some(deadline_ms) = link.poll_drain() {
            self.events.drain(deadline_ms);
        }
    }

    /// Takes in what has arrived and keeps it, as far as the window goes, so that room is noticed by an application
    /// that sends without receiving.
    pub(crate) fn absorb(&mut self) {
        if let Some(slot) = self.active
            && let CarrierMut::Link(link) = self.carrier_mut(slot)
        {
            link.absorb();
            self.collect(slot);
        }
    }

    fn check_idle_direct(&mut self) {
        if let Some(Err(error)) = self.direct.as_ref().map(Direct::check_idle) {
            self.direct = None;
            self.events.direct_lost(error);
        }
    }

    /// What happened. Ask until `None`.
    #[must_use]
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.poll()
    }

    /// When to call [`handle_timeout`](Self::handle_timeout): only while something is being set up.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.moving.as_ref()?.deadline()
    }

    /// Gives up what has taken too long.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.move_timeout(now);
    }

    /// All sockets and what each is to be watched for: for `poll(2)`, which is told anew each time.
    pub fn sockets(&self) -> impl Iterator<Item = Watch<'_>> {
        let direct = self.direct.iter().map(|d| (Slot::Direct, &d.socket, d.watched, d.interest()));
        let links = [Slot::LinkA, Slot::LinkB].into_iter().zip(&self.links);
        let links = links.filter_map(|(slot, link)| {
            link.as_ref().map(|link| (slot, &link.socket, link.watched, link.interest()))
        });
        direct.chain(links).map(|(slot, socket, watched, Interest { readable, writable })| Watch {
            slot,
            descriptor: socket.as_fd(),
            add: watched.is_none(),
            readable,
            writable,
        })
    }

    /// A change that the caller's set of descriptors needs. Ask until `None` after every other call; or use
    /// [`watch_in`](Self::watch_in).
    #[must_use]
    pub fn poll_watch(&mut self) -> Option<Watch<'_>> {
        let slot = Slot::ALL.into_iter().find(|slot| self.watch_is_due(*slot))?;
        let (socket, watched, interest) = match slot.link() {
            None => self.direct.as_mut().map(|direct| {
                let interest = direct.interest();
                (&direct.socket, &mut direct.watched, interest)
            })?,
            Some(index) => self.links[index].as_mut().map(|link| {
                let interest = link.interest();
                (&link.socket, &mut link.watched, interest)
            })?,
        };
        let add = watched.replace(interest).is_none();
        let Interest { readable, writable } = interest;
        Some(Watch { slot, descriptor: socket.as_fd(), add, readable, writable })
    }

    fn watch_is_due(&self, slot: Slot) -> bool {
        match slot.link() {
            None => self.direct.as_ref().is_some_and(|d| d.watched != Some(d.interest())),
            Some(index) => self.links[index].as_ref().is_some_and(|l| l.watched != Some(l.interest())),
        }
    }

    /// Brings an epoll set up to date. Each socket's events carry `token` and which socket it is; take them apart
    /// with [`split_token`](crate::split_token). `token` has 62 bits. No system call when nothing changed.
    pub fn watch_in(&mut self, epoll: impl AsFd, token: u64) -> io::Result<()> {
        let epoll = epoll.as_fd();
        while let Some(watch) = self.poll_watch() {
            let data = EventData::new_u64(join_token(token, watch.slot));
            let mut flags = EventFlags::empty();
            flags.set(EventFlags::IN, watch.readable);
            flags.set(EventFlags::OUT, watch.writable);
            if watch.add {
                epoll::add(epoll, watch.descriptor, data, flags)?;
            } else {
                epoll::modify(epoll, watch.descriptor, data, flags)?;
            }
        }
        Ok(())
    }

    pub(crate) fn time(&self, now: Instant) -> Time {
        Time::ZERO + now.saturating_duration_since(self.epoch)
    }

    pub(crate) fn carrier_mut(&mut self, slot: Slot) -> CarrierMut<'_> {
        match slot.link() {
            None => self.direct.as_mut().map_or(CarrierMut::None, CarrierMut::Direct),
            Some(index) => self.links[index].as_deref_mut().map_or(CarrierMut::None, CarrierMut::Link),
        }
    }
}

/// A carrier in use.
pub(crate) enum CarrierMut<'a> {
    Direct(&'a mut Direct),
    Link(&'a mut Link),
    None,
}
