//! A connection: sending, receiving and events. The module `moving` implements moves.

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
use crate::network::{Network, Stream, would_block};
use crate::settings::{Route, Settings};
use crate::socket::Kernel;
use crate::stage::Moving;
use crate::watch::{Interest, Ready, Slot, Watch, join_token};

/// One stream of bytes in each direction, on a carrier that can change. The crate's documentation shows the order of
/// calls.
#[derive(Debug)]
pub struct Connection<N: Network = Kernel> {
    pub(crate) network: N,
    /// Time zero of the link protocol's clock.
    time_zero: Instant,
    pub(crate) server: Option<SocketAddr>,
    pub(crate) settings: Settings,
    pub(crate) direct: Option<Direct<N::Stream>>,
    pub(crate) links: [Option<Box<Link<N::Stream>>>; 2],
    /// The carrier in use; `None` before the first one is established.
    pub(crate) active: Option<Slot>,
    pub(crate) moving: Option<Moving>,
    pub(crate) events: Events,
}

impl Connection {
    /// Starts to connect to a server directly. [`Event::Moved`] or [`Event::MoveFailed`] follows.
    pub fn connect(now: Instant, server: SocketAddr, settings: Settings) -> Result<Connection, MoveError> {
        Connection::connect_on(Kernel, now, server, settings)
    }

    /// Starts to connect through a link (PostMan's *pm_connect*) without a direct connection. A later move to the
    /// server connects to `server`. [`Event::Moved`] follows when the server's application has accepted; otherwise
    /// [`Event::MoveFailed`].
    pub fn connect_through_link(
        now: Instant,
        target: &LinkTarget,
        server: Option<SocketAddr>,
        settings: Settings,
    ) -> Result<Connection, MoveError> {
        let mut connection = Connection::new(Kernel, now, server, settings);
        connection.begin_move(now, Route::Link(target))?;
        Ok(connection)
    }

    /// Updates an epoll set. The events' data hold `token`, of 62 bits, and the socket's slot: see
    /// [`split_token`](crate::split_token). Makes no system call if no registration changes.
    pub fn watch_in(&mut self, epoll: impl AsFd, token: u64) -> io::Result<()> {
        let epoll = epoll.as_fd();
        while let Some(watch) = self.poll_watch() {
            let data = EventData::new_u64(join_token(token, watch.slot));
            let mut flags = EventFlags::empty();
            flags.set(EventFlags::IN, watch.readable);
            flags.set(EventFlags::OUT, watch.writable);
            if watch.add {
                epoll::add(epoll, watch.stream, data, flags)?;
            } else {
                epoll::modify(epoll, watch.stream, data, flags)?;
            }
        }
        Ok(())
    }
}

impl<N: Network> Connection<N> {
    /// As [`connect`](Connection::connect), on a network other than the kernel's.
    pub fn connect_on(
        network: N,
        now: Instant,
        server: SocketAddr,
        settings: Settings,
    ) -> Result<Connection<N>, MoveError> {
        let mut connection = Connection::new(network, now, Some(server), settings);
        connection.begin_move(now, Route::Direct)?;
        Ok(connection)
    }

    fn new(network: N, now: Instant, server: Option<SocketAddr>, settings: Settings) -> Connection<N> {
        Connection {
            network,
            time_zero: now,
            server,
            settings,
            direct: None,
            links: [None, None],
            active: None,
            moving: None,
            events: Events::default(),
        }
    }

    /// The carrier in use; `None` before the first one is established.
    pub fn carrier(&self) -> Option<Carrier> {
        self.carrier_in(self.active?)
    }

    pub(crate) fn carrier_in(&self, slot: Slot) -> Option<Carrier> {
        match slot.link() {
            None => self.direct.as_ref().map(|direct| Carrier::Direct(direct.server)),
            Some(index) => self.links[index].as_ref().map(|link| Carrier::Link(link.target)),
        }
    }

    /// This end's address on the carrier in use: the address that the server sees, unless the network translates it.
    pub fn local_address(&self) -> io::Result<SocketAddr> {
        let not_connected = || io::Error::from(io::ErrorKind::NotConnected);
        let stream = match self.active.ok_or_else(not_connected)?.link() {
            None => self.direct.as_ref().map(|direct| &direct.stream),
            Some(index) => self.links[index].as_ref().map(|link| &link.stream),
        };
        stream.ok_or_else(not_connected)?.local_address()
    }

    /// Sends a prefix of `bytes` and returns its length, usually with one system call. Fails with `WouldBlock` without
    /// room and, after [`begin_move`](Self::begin_move), until the move ends. After a partial send, call it again at
    /// [`Event::Room`], or after a move at [`Event::Moved`].
    ///
    /// On a link, credit arrives on the same stream as replies: keep receiving while you wait for room.
    pub fn send(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.moving.as_ref().is_some_and(Moving::switches_when_ready) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        match self.active {
            None => Err(io::ErrorKind::NotConnected.into()),
            Some(slot) => match self.carrier_mut(slot) {
                CarrierMut::Direct(direct) => direct.send(bytes),
                CarrierMut::Link(link) => {
                    let outcome = link.send(bytes);
                    self.collect_events(slot);
                    outcome
                }
                CarrierMut::None => Err(io::ErrorKind::NotConnected.into()),
            },
        }
    }

    /// Receives into `buffer`, which should hold a whole reply and a few dozen bytes more. 0 is the end of the stream;
    /// `WouldBlock` means that no bytes are available. One system call, or more if only control frames had arrived.
    pub fn receive(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self.active {
            None if self.moving.is_some() => Err(io::ErrorKind::WouldBlock.into()),
            None => Err(io::ErrorKind::NotConnected.into()),
            Some(slot) => match self.carrier_mut(slot) {
                CarrierMut::Direct(direct) => direct.receive(buffer),
                CarrierMut::Link(link) => {
                    let outcome = link.receive(buffer);
                    // An end or an error needs no event, because the result reports it.
                    let is_open = match &outcome {
                        Ok(received) => *received > 0,
                        Err(error) => would_block(error),
                    };
                    if is_open {
                        self.collect_events(slot);
                    } else if link.poll_room() {
                        // After the end of the server's stream, requests can still be sent.
                        self.events.set_room();
                    }
                    outcome
                }
                CarrierMut::None => Err(io::ErrorKind::NotConnected.into()),
            },
        }
    }

    /// Ends the outgoing stream. Replies can still be received, but the connection cannot move.
    pub fn finish(&mut self) -> io::Result<()> {
        match self.active.map(|slot| self.carrier_mut(slot)) {
            Some(CarrierMut::Direct(direct)) => direct.finish(),
            Some(CarrierMut::Link(link)) => link.finish(),
            Some(CarrierMut::None) | None => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// Handles readiness of one of the sockets. Returns whether to call [`receive`](Self::receive). Spurious calls are
    /// harmless.
    pub fn handle_ready(&mut self, now: Instant, slot: Slot, ready: Ready) -> bool {
        if self.active == Some(slot) {
            if ready.writable {
                self.handle_active_writable(slot);
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

    fn handle_active_writable(&mut self, slot: Slot) {
        match self.carrier_mut(slot) {
            CarrierMut::Direct(direct) => {
                if direct.handle_writable() {
                    self.events.set_room();
                }
            }
            CarrierMut::Link(link) => {
                link.handle_writable();
                self.collect_events(slot);
            }
            CarrierMut::None => {}
        }
    }

    /// Turns a link's state changes into events.
    pub(crate) fn collect_events(&mut self, slot: Slot) {
        let Some(link) = slot.link().and_then(|index| self.links[index].as_mut()) else { return };
        if link.has_more() {
            self.events.set_readable();
        }
        if link.poll_room() {
            self.events.set_room();
        }
        if let Some(deadline_ms) = link.poll_drain() {
            self.events.set_drain(deadline_ms);
        }
    }

    /// Receives and holds available bytes, up to the window. An application that sends without receiving thus gets
    /// [`Event::Room`].
    pub(crate) fn absorb(&mut self) {
        if let Some(slot) = self.active
            && let CarrierMut::Link(link) = self.carrier_mut(slot)
        {
            link.absorb();
            self.collect_events(slot);
        }
    }

    fn check_idle_direct(&mut self) {
        if let Some(Err(error)) = self.direct.as_ref().map(Direct::check_idle) {
            self.direct = None;
            self.events.set_direct_lost(error);
        }
    }

    /// The next event. Call it again until `None`.
    #[must_use]
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.poll()
    }

    /// Time of the next call of [`handle_timeout`](Self::handle_timeout); `None` unless a carrier is being established.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.moving.as_ref()?.deadline()
    }

    /// Fails a move whose deadline has passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.move_timeout(now);
    }

    /// All sockets with the readiness to watch for, in the form that `poll(2)` needs on every call.
    pub fn sockets(&self) -> impl Iterator<Item = Watch<'_, N::Stream>> {
        let direct = self
            .direct
            .iter()
            .map(|direct| (Slot::Direct, &direct.stream, direct.watched, direct.interest()));
        let links = [Slot::LinkA, Slot::LinkB].into_iter().zip(&self.links);
        let links = links.filter_map(|(slot, link)| {
            link.as_ref().map(|link| (slot, &link.stream, link.watched, link.interest()))
        });
        direct.chain(links).map(|(slot, stream, watched, Interest { readable, writable })| Watch {
            slot,
            stream,
            add: watched.is_none(),
            readable,
            writable,
        })
    }

    /// The next change for the caller's epoll set. Call it until `None` after every other call, or use
    /// [`watch_in`](Self::watch_in).
    #[must_use]
    pub fn poll_watch(&mut self) -> Option<Watch<'_, N::Stream>> {
        let slot = Slot::ALL.into_iter().find(|slot| self.watch_is_due(*slot))?;
        let (stream, watched, interest) = match slot.link() {
            None => self.direct.as_mut().map(|direct| {
                let interest = direct.interest();
                (&direct.stream, &mut direct.watched, interest)
            })?,
            Some(index) => self.links[index].as_mut().map(|link| {
                let interest = link.interest();
                (&link.stream, &mut link.watched, interest)
            })?,
        };
        let add = watched.replace(interest).is_none();
        let Interest { readable, writable } = interest;
        Some(Watch { slot, stream, add, readable, writable })
    }

    fn watch_is_due(&self, slot: Slot) -> bool {
        match slot.link() {
            None => self.direct.as_ref().is_some_and(|direct| direct.watched != Some(direct.interest())),
            Some(index) => {
                self.links[index].as_ref().is_some_and(|link| link.watched != Some(link.interest()))
            }
        }
    }

    pub(crate) fn time(&self, now: Instant) -> Time {
        Time::ZERO + now.saturating_duration_since(self.time_zero)
    }

    pub(crate) fn carrier_mut(&mut self, slot: Slot) -> CarrierMut<'_, N::Stream> {
        match slot.link() {
            None => self.direct.as_mut().map_or(CarrierMut::None, CarrierMut::Direct),
            Some(index) => self.links[index].as_deref_mut().map_or(CarrierMut::None, CarrierMut::Link),
        }
    }
}

pub(crate) enum CarrierMut<'a, S: Stream> {
    Direct(&'a mut Direct<S>),
    Link(&'a mut Link<S>),
    None,
}
