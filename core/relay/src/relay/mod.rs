//! The relay as a whole: it holds the parts, and leads events to them.
//!
//! A part changes nothing but itself; what it needs of another part is a parameter, and what follows for another part is a
//! returned value. The files of this folder are the relay's procedures, each of which takes several parts: how a client is
//! taken, what follows when a link is lost. [`events`] has the transport's events, and the end of a turn.

mod change;
mod drain;
mod encryption;
mod ending;
mod events;
mod leaving;
mod library;
mod link_events;
mod links;
mod load;
mod memory;
mod passages;
mod plain;
mod replacing;

use alloc::vec::Vec;
use core::time::Duration;

use spillway_batch::{Fresh, Scratch};
use spillway_transport::{Conn, Time, Transport};

use crate::admission::Admission;
use crate::clients::{Clients, Holder};
use crate::config::{Config, ConfigError, Random, ServiceConfig, Timeouts};
use crate::links::Links;
use crate::listeners::Listeners;
use crate::load::LoadControl;
use crate::memory::Memory;
use crate::notice::{Notice, Notices};
use crate::pressure::Pressure;
use crate::reasons::Refusal;
use crate::services::{Service, Services};
use crate::status::{ClientStatus, Status};

/// A helper without I/O.
pub struct Relay {
    services: Services,
    links: Links,
    clients: Clients,
    listeners: Listeners,
    admission: Admission,
    memory: Memory,
    pressure: Pressure,
    load: LoadControl,
    notices: Notices,
    settings: Settings,
    turn: Turn,
    /// The relay goes away, and all its services with it.
    is_going: bool,
    /// When library clients are cut whose links lack the encryption that a change of settings has required.
    encrypted_by: Option<Time>,
    random: Random,
    /// Where records of encrypted links are opened.
    scratch: Scratch,
}

/// Settings that procedures look at. Others are with their parts.
#[derive(Debug)]
struct Settings {
    first_window_bytes: u32,
    connection_buffer_bytes: usize,
    timeouts: Timeouts,
}

/// The turn of the transport's loop.
#[derive(Debug, Default)]
struct Turn {
    /// Time of the current turn, or of the last one.
    now: Time,
    /// Something has happened since the last end of a turn.
    is_begun: bool,
}

impl core::fmt::Debug for Relay {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let clients = self.clients.count();
        f.debug_struct("Relay").field("services", &self.services).field("clients", &clients).finish()
    }
}

impl Relay {
    /// A relay that opens its links when its first timeout is handled, which is due at once.
    pub fn new(config: Config, mut random: Random) -> Result<Relay, ConfigError> {
        config.check()?;
        let mut seed = [0; 8];
        random(&mut seed);
        let mut relay = Relay {
            services: Services::default(),
            links: Links::default(),
            clients: Clients::new(&config.timeouts),
            listeners: Listeners::default(),
            admission: Admission::new(config.clients_max, config.unauthenticated),
            memory: Memory::new(config.memory_bytes_max),
            pressure: Pressure::default(),
            load: LoadControl::new(&config, u64::from_le_bytes(seed)),
            notices: Notices::default(),
            settings: Settings {
                first_window_bytes: config.first_window_bytes,
                connection_buffer_bytes: config.connection_buffer_bytes,
                timeouts: config.timeouts,
            },
            turn: Turn::default(),
            is_going: false,
            encrypted_by: None,
            random,
            scratch: Scratch::new(),
        };
        config.services.into_iter().for_each(|service| relay.add_service(service));
        relay.listeners.assign(relay.services.configs());
        Ok(relay)
    }

    /// The next decision for the log. Ask until `None`, after each turn.
    #[must_use]
    pub fn poll_notice(&mut self) -> Option<Notice> {
        self.notices.pop()
    }

    /// Clients connected now, those that are only taking what is left for them included.
    pub fn clients(&self) -> u32 {
        self.clients.count()
    }

    /// How often a link or a service was looked at since the start. Counted where assertions are on: tests show by it that
    /// a turn does not cost more the more services there are.
    #[doc(hidden)]
    pub fn looks(&self) -> u64 {
        self.links.looks() + self.services.looks()
    }

    /// Bytes of memory in this relay that hold what waits for and from clients, beyond the links' batches.
    pub fn buffered_bytes(&self) -> usize {
        self.memory.clients()
    }

    /// A snapshot of everything.
    pub fn status(&self) -> Status {
        let link = |index: &usize| (self.links[*index].status(), self.links[*index].done());
        let services = self.services.iter().filter(|service| !service.is_gone());
        Status {
            services: services.map(|service| service.status(service.links().iter().map(link))).collect(),
            clients: self.clients.count(),
            buffered_bytes: self.memory.total(),
            memory_is_scarce: self.memory.is_scarce(),
            paused: self.memory.pauses(),
            draining: self.is_draining(),
            load: self.load(),
            notices_dropped: self.notices.dropped(),
        }
    }

    /// Up to `limit` clients of a service, or of all, in the order of the transport's slots; and how many there are.
    pub fn client_statuses(&self, service: Option<&str>, limit: usize) -> (Vec<ClientStatus>, u32) {
        let place = service.map(|name| self.services.place_of(name));
        let is_asked_for = |holder: &&Holder| {
            let of = holder.client_of().map(|(service, _)| usize::from(service));
            place.is_none_or(|place| place == of)
        };
        let clients = self.clients.iter().map(|(_, holder)| holder).filter(is_asked_for);
        let total = u32::try_from(clients.clone().count()).unwrap_or(u32::MAX);
        (clients.filter_map(Holder::status).take(limit).collect(), total)
    }
}

/// What all procedures use.
impl Relay {
    /// The first thing in a turn.
    fn begin_turn<T: Transport>(&mut self, now: Time, out: &T) {
        self.turn.now = now;
        if !core::mem::replace(&mut self.turn.is_begun, true) {
            self.memory.look(out);
        }
    }

    fn service(&self, index: u16) -> &Service {
        &self.services[usize::from(index)]
    }

    /// The service has a turn then.
    fn service_mut(&mut self, index: u16) -> &mut Service {
        &mut self.services[usize::from(index)]
    }

    fn fresh(&mut self) -> Fresh {
        Fresh::filled(|bytes| (self.random)(bytes))
    }

    /// Whether there is room for one more client of a service, whatever its address is and whether its link is up.
    fn room(&self, service: u16) -> Result<(), Refusal> {
        let now = self.turn.now;
        self.service(service).takes_clients(now)?;
        self.admission.check(now, self.clients.count(), &self.memory)
    }

    /// The link of a service that a new client is put on.
    fn choose_link(&self, service: u16) -> Option<usize> {
        self.links.choose(self.service(service).links())
    }

    fn refused(&mut self, service: u16, client: core::net::SocketAddr, why: Refusal) {
        self.service_mut(service).counters_mut().refused.count(why);
        self.notices.push(Notice::ClientRefused { service, client, why });
    }

    fn mark_dirty(&mut self, conn: Conn) {
        self.clients.mark_dirty(conn, &mut self.memory);
    }

    /// The caller has checked that there is room.
    fn add_service(&mut self, config: ServiceConfig) {
        let place = self.services.len();
        self.services.push(Service::new(config));
        self.open_links(place);
    }

    fn open_links(&mut self, place: usize) {
        for number in 0..self.services[place].config().links {
            let index = self.links.open(number_of(place), number);
            self.services[place].add_link(index);
        }
    }
}

/// A service's place as its clients and links have it.
#[expect(clippy::cast_possible_truncation, reason = "there are at most SERVICES_MAX, 1,024 places")]
fn number_of(place: usize) -> u16 {
    place as u16
}

/// As *drain* says it.
fn milliseconds(time: Duration) -> u32 {
    u32::try_from(time.as_millis()).unwrap_or(u32::MAX)
}
