//! The relay: its parts, and the procedures that involve several parts.
//!
//! A part changes only its own state. It gets values of other parts as parameters, and returns what the other
//! parts must do. Each file of this folder is a group of procedures, such as accepting a client or losing a
//! link. [`events`] dispatches the transport's events.

mod change;
mod drain;
mod encryption;
mod ending;
mod events;
mod library;
mod lingering;
mod link_events;
mod links;
mod load;
mod memory;
mod plain;
mod relayed;
mod replacing;

use alloc::vec::Vec;
use core::time::Duration;

use spillway_batch::{LinkRandomness, Scratch};
use spillway_transport::{Conn, Time, Transport};

use crate::admission::Admission;
use crate::clients::{Clients, ConnRole};
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

/// The protocol logic of one thread of a helper, without I/O.
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
    is_draining: bool,
    random: Random,
    /// Buffer for the unsealed content of records.
    scratch: Scratch,
}

/// Settings that only the procedures use; each part has its own settings.
#[derive(Debug)]
struct Settings {
    first_window_bytes: u32,
    connection_buffer_bytes: usize,
    timeouts: Timeouts,
}

/// A turn of the transport's loop.
#[derive(Debug, Default)]
struct Turn {
    /// Time of the current turn, or of the last one.
    now: Time,
    /// Whether an event was handled since the end of the last turn.
    is_begun: bool,
}

impl core::fmt::Debug for Relay {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let clients = self.clients.count();
        f.debug_struct("Relay").field("services", &self.services).field("clients", &clients).finish()
    }
}

impl Relay {
    /// A relay that opens its links at its first timeout, which is due at once.
    ///
    /// # Errors
    /// The configuration is invalid.
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
            is_draining: false,
            random,
            scratch: Scratch::new(),
        };
        config.services.into_iter().for_each(|service| relay.add_service(service));
        relay.listeners.assign(relay.services.configs());
        Ok(relay)
    }

    /// The next notice for the log. Call this after each turn until `None`.
    #[must_use]
    pub fn poll_notice(&mut self) -> Option<Notice> {
        self.notices.pop()
    }

    /// Connected clients, including those whose server has closed and which have not received all replies.
    pub fn clients(&self) -> u32 {
        self.clients.count()
    }

    /// Accesses to links and services since the start, counted only where assertions are on: for the test that the cost
    /// of a turn does not grow with the number of services.
    #[doc(hidden)]
    pub fn accesses(&self) -> u64 {
        self.links.accesses() + self.services.accesses()
    }

    /// Memory in bytes for waiting requests and replies in this relay, without links and transport.
    pub fn buffered_bytes(&self) -> usize {
        self.memory.clients()
    }

    /// A snapshot of the relay's state and counters.
    pub fn status(&self) -> Status {
        let link = |index: &usize| (self.links[*index].status(), self.links[*index].totals());
        let services = self.services.iter().filter(|service| !service.has_ended_after_removal());
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

    /// Up to `limit` clients of a service, or of all services, in the order of the transport's slots; and their total
    /// number.
    pub fn client_statuses(&self, service: Option<&str>, limit: usize) -> (Vec<ClientStatus>, u32) {
        let service_index = service.map(|name| self.services.index_of(name));
        let is_selected = |role: &&ConnRole| {
            let owner = role.client_of().map(|(service, _)| usize::from(service));
            service_index.is_none_or(|service_index| service_index == owner)
        };
        let clients = self.clients.iter().map(|(_, role)| role).filter(is_selected);
        let total = u32::try_from(clients.clone().count()).unwrap_or(u32::MAX);
        (clients.filter_map(ConnRole::status).take(limit).collect(), total)
    }
}

/// Functions that several procedures use.
impl Relay {
    /// Call this before every operation of a turn; the first call begins the turn.
    fn begin_turn<T: Transport>(&mut self, now: Time, out: &T) {
        self.turn.now = now;
        if !core::mem::replace(&mut self.turn.is_begun, true) {
            self.memory.begin_turn(out);
        }
    }

    fn service(&self, index: u16) -> &Service {
        &self.services[usize::from(index)]
    }

    /// Marks the service for a turn.
    fn service_mut(&mut self, index: u16) -> &mut Service {
        &mut self.services[usize::from(index)]
    }

    fn link_randomness(&mut self) -> LinkRandomness {
        LinkRandomness::generate(|bytes| (self.random)(bytes))
    }

    /// Whether a service can admit one more client. Does not check the client's address or the service's link.
    fn check_room(&self, service: u16) -> Result<(), Refusal> {
        let now = self.turn.now;
        self.service(service).accepts_clients(now)?;
        self.admission.check(now, self.clients.count(), &self.memory)
    }

    fn choose_link(&self, service: u16) -> Option<usize> {
        self.links.choose(self.service(service).links())
    }

    fn report_refusal(&mut self, service: u16, client: core::net::SocketAddr, why: Refusal) {
        self.service_mut(service).counters_mut().refused.count(why);
        self.notices.push(Notice::ClientRefused { service, client, why });
    }

    fn mark_dirty(&mut self, conn: Conn) {
        self.clients.mark_dirty(conn, &mut self.memory);
    }

    /// The caller must have checked `SERVICES_MAX`.
    fn add_service(&mut self, config: ServiceConfig) {
        let service_index = self.services.len();
        self.services.push(Service::new(config));
        self.open_links(service_index);
    }

    fn open_links(&mut self, service_index: usize) {
        for number in 0..self.services[service_index].config().links {
            let index = self.links.open(service_number(service_index), number);
            self.services[service_index].add_link(index);
        }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "a relay has at most SERVICES_MAX (1,024) services")]
fn service_number(service_index: usize) -> u16 {
    service_index as u16
}

/// The deadline of a *drain* message. Saturates.
fn milliseconds(time: Duration) -> u32 {
    u32::try_from(time.as_millis()).unwrap_or(u32::MAX)
}
