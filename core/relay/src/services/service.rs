//! One service as it runs: its settings, its links, how many clients it has, and what it has done.

use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};
use core::time::Duration;

use spillway_auth::Key;
use spillway_policy::{CurrentOverride, Override};
use spillway_transport::Time;

use crate::clients::Sort;
use crate::config::ServiceConfig;
use crate::counters::{Past, ServiceCounters};
use crate::marked::Turns;
use crate::reasons::Refusal;
use crate::services::drain::Drain;
use crate::status::{LinkStatus, ServiceStatus};

/// One service as it runs.
#[derive(Debug)]
pub(crate) struct Service {
    config: ServiceConfig,
    /// Indexes of its links, those that are being replaced included.
    links: Vec<usize>,
    is_listening: bool,
    raw_clients: u32,
    library_clients: u32,
    counters: ServiceCounters,
    /// What links that have gone have carried.
    past: Past,
    /// The operator's override.
    standing: CurrentOverride,
    /// Takes no more clients, and ends with those that it has.
    drain: Option<Drain>,
    /// No longer configured: with its last client it is gone.
    is_removed: bool,
}

/// What other settings change for connections that are open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Changes {
    /// When batches go.
    pub(crate) policy: bool,
    pub(crate) server: bool,
    /// Something that links are tied to.
    pub(crate) links: bool,
    /// Whether links to the server, or of library clients, must be encrypted.
    pub(crate) encryption: bool,
}

impl Service {
    pub(crate) fn new(config: ServiceConfig) -> Service {
        Service {
            config,
            links: Vec::new(),
            is_listening: false,
            raw_clients: 0,
            library_clients: 0,
            counters: ServiceCounters::default(),
            past: Past::default(),
            standing: CurrentOverride::default(),
            drain: None,
            is_removed: false,
        }
    }

    pub(crate) fn config(&self) -> &ServiceConfig {
        &self.config
    }

    pub(crate) fn counters(&self) -> &ServiceCounters {
        &self.counters
    }

    pub(crate) fn counters_mut(&mut self) -> &mut ServiceCounters {
        &mut self.counters
    }

    /// Indexes of its links, those that are being replaced included.
    pub(crate) fn links(&self) -> &[usize] {
        &self.links
    }

    pub(crate) fn add_link(&mut self, index: usize) {
        self.links.push(index);
    }

    /// A link is not opened again.
    pub(crate) fn forget_link(&mut self, index: usize, done: &Past) {
        self.past.merge(done);
        self.links.retain(|other| *other != index);
    }

    /// Other settings. A service that was removed or drained comes back.
    pub(crate) fn change(&mut self, config: ServiceConfig) -> Changes {
        self.is_removed = false;
        let comes_back = self.drain.take().is_some_and(|drain| drain.is_over());
        let before = core::mem::replace(&mut self.config, config);
        let after = &self.config;
        let server = before.server != after.server;
        let newest = |config: &ServiceConfig| config.keys.first().map(Key::id);
        let encryption = before.encryption != after.encryption;
        Changes {
            policy: before.policy != after.policy,
            server,
            links: server
                || comes_back
                || newest(&before) != newest(after)
                || before.links != after.links
                || encryption
                || before.limits != after.limits,
            encryption: encryption || before.client_encryption != after.client_encryption,
        }
    }

    /// It is no longer configured. False: that was known.
    #[must_use]
    pub(crate) fn remove(&mut self) -> bool {
        self.config.raw_listeners.clear();
        self.config.link_listeners.clear();
        !core::mem::replace(&mut self.is_removed, true)
    }

    pub(crate) fn is_removed(&self) -> bool {
        self.is_removed
    }

    /// Removed, and nothing is left of it.
    pub(crate) fn is_gone(&self) -> bool {
        self.is_removed && self.is_drained()
    }
}

/// Its clients: who may come in, and how many there are.
impl Service {
    /// Whether clients of this address are served.
    pub(crate) fn admits(&self, client: IpAddr) -> Result<(), Refusal> {
        let is_allowed = self.config.clients.iter().any(|range| range.contains(client));
        if is_allowed { Ok(()) } else { Err(Refusal::Address) }
    }

    /// Whether clients are taken at all.
    pub(crate) fn takes_clients(&self, now: Time) -> Result<(), Refusal> {
        if self.is_leaving() {
            return Err(Refusal::Draining);
        }
        if self.is_off(now) { Err(Refusal::Off) } else { Ok(()) }
    }

    /// No PROXY header makes a client of what cannot be one, nor of the server itself, which may trust itself.
    pub(crate) fn admits_announced(&self, client: IpAddr) -> Result<(), Refusal> {
        let server = self.config.server.ip().to_canonical();
        let nobody = client.is_unspecified() || client.is_multicast();
        let servers_own = client == server && !server.is_loopback();
        if nobody || servers_own { Err(Refusal::Address) } else { Ok(()) }
    }

    /// Whether this peer is trusted, and obliged, to say who its clients are.
    pub(crate) fn is_load_balancer(&self, peer: SocketAddr) -> bool {
        self.config.proxy_from.iter().any(|range| range.contains(peer.ip()))
    }

    /// Clients of both sorts, those that only take what is left for them included.
    pub(crate) fn clients(&self) -> u32 {
        self.raw_clients + self.library_clients
    }

    pub(crate) fn library_clients(&self) -> u32 {
        self.library_clients
    }

    pub(crate) fn client_came(&mut self, sort: Sort) {
        *self.present(sort) += 1;
    }

    /// A client has gone; `failed` when that was neither its own doing nor the server's.
    pub(crate) fn client_went(&mut self, sort: Sort, failed: bool) {
        *self.present(sort) -= 1;
        if let Some(drain) = &mut self.drain {
            drain.count(sort, failed);
        }
    }

    fn present(&mut self, sort: Sort) -> &mut u32 {
        match sort {
            Sort::Raw => &mut self.raw_clients,
            Sort::Library => &mut self.library_clients,
        }
    }

    /// Listeners are open while a link is there to carry their clients; otherwise the host refuses them. Returns whether they
    /// are open now.
    #[must_use]
    pub(crate) fn listen(&mut self, now: Time, a_link_takes_clients: bool) -> bool {
        self.is_listening = a_link_takes_clients && self.takes_clients(now).is_ok();
        self.is_listening
    }
}

/// Its drain, and the operator's override.
impl Service {
    /// Takes no more clients. False: it did not before, and may end earlier now.
    #[must_use]
    pub(crate) fn begin_drain(&mut self, now: Time, within: Duration) -> bool {
        match &mut self.drain {
            Some(drain) => {
                drain.hasten(now, within);
                false
            }
            None => {
                self.drain = Some(Drain::new(now, within));
                true
            }
        }
    }

    /// Takes no more clients for good.
    pub(crate) fn is_leaving(&self) -> bool {
        self.drain.is_some()
    }

    /// Drained, with no client and no link left.
    pub(crate) fn is_drained(&self) -> bool {
        self.drain.is_some_and(|drain| drain.is_over())
    }

    /// Whether the drain ends now: the last client has left, or its deadline has passed.
    pub(crate) fn drain_is_due(&self, now: Time) -> bool {
        self.drain.is_some_and(|drain| drain.is_due(now, self.clients()))
    }

    /// Its clients and links have gone.
    pub(crate) fn end_drain(&mut self) {
        if let Some(drain) = &mut self.drain {
            drain.end();
        }
    }

    /// The operator's override, for ever or for a time.
    pub(crate) fn say(&mut self, now: Time, word: Override, lasts: Option<Duration>) {
        self.standing.say(now, word, lasts);
    }

    /// Whether no client is helped with this service, because the operator wants it so.
    pub(crate) fn is_off(&self, now: Time) -> bool {
        self.standing.at(now) == Override::Off
    }

    /// Whether an override has ended just now.
    #[must_use]
    pub(crate) fn override_ends(&mut self, now: Time) -> bool {
        let ends = self.standing.until().is_some_and(|until| until <= now);
        if ends {
            self.standing = CurrentOverride::default();
        }
        ends
    }

    /// `links`: each link, with what it has done.
    pub(crate) fn status(&self, links: impl Iterator<Item = (LinkStatus, Past)>) -> ServiceStatus {
        let mut done = self.past;
        let links = links.map(|(status, past)| {
            done.merge(&past);
            status
        });
        let links = links.collect();
        let (traffic, batches, stalls) = done.parts();
        let mut counters = self.counters;
        counters.stalls.add(stalls);
        ServiceStatus {
            name: self.config.name.clone(),
            server: self.config.server,
            listening: self.is_listening,
            relief: self.standing,
            drained: self.drain.map(|drain| drain.counts()),
            removed: self.is_removed,
            links,
            raw_clients: self.raw_clients,
            library_clients: self.library_clients,
            counters,
            traffic,
            batches,
        }
    }
}

impl Turns for Service {
    fn deadline(&self) -> Option<Time> {
        let drain = self.drain.and_then(|drain| drain.poll_timeout());
        [drain, self.standing.until()].into_iter().flatten().min()
    }

    fn is_unfinished(&self) -> bool {
        false
    }

    fn is_at_rest(&self) -> bool {
        self.clients() > 0 || self.drain.is_none_or(|drain| drain.is_over())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> ServiceConfig {
        ServiceConfig::new("cache", "10.0.0.5:11411".parse().unwrap())
    }

    #[test]
    fn listens_while_clients_are_taken() {
        let mut service = Service::new(config());
        let minute = Duration::from_secs(60);
        assert!(service.listen(Time(0), true) && !service.listen(Time(0), false));
        service.say(Time(0), Override::Off, Some(minute));
        assert_eq!(service.takes_clients(Time(1)), Err(Refusal::Off));
        assert!(!service.listen(Time(1), true) && !service.override_ends(Time(1)));
        assert_eq!(service.deadline(), Some(Time(0) + minute));
        assert!(service.override_ends(Time(0) + minute));
        assert!(service.listen(Time(0) + minute, true));
        assert!(service.begin_drain(Time(2), minute) && !service.begin_drain(Time(3), minute));
        assert_eq!(service.takes_clients(Time(4)), Err(Refusal::Draining));
        assert!(!service.listen(Time(4), true));
    }

    #[test]
    fn a_removed_service_is_gone_with_its_last_client_and_may_come_back() {
        let mut service = Service::new(config());
        service.client_came(Sort::Raw);
        assert!(service.remove() && !service.remove());
        assert!(service.begin_drain(Time(0), Duration::from_secs(1)));
        assert!(!service.drain_is_due(Time(1)) && service.is_at_rest());
        service.client_went(Sort::Raw, false);
        assert!(service.drain_is_due(Time(1)) && !service.is_at_rest() && !service.is_gone());
        service.end_drain();
        assert!(service.is_gone() && service.is_at_rest());
        assert_eq!(
            service.change(config()),
            Changes { policy: false, server: false, links: true, encryption: false }
        );
        assert!(!service.is_gone() && service.takes_clients(Time(2)).is_ok());
    }

    #[test]
    fn says_what_other_settings_change() {
        let mut service = Service::new(config());
        let unchanged = Changes { policy: false, server: false, links: false, encryption: false };
        assert_eq!(service.change(config()), unchanged);
        let other = ServiceConfig { client_encryption: spillway_batch::Encryption::Required, ..config() };
        assert_eq!(service.change(other.clone()), Changes { encryption: true, ..unchanged });
        let server = "10.0.0.6:11411".parse().unwrap();
        let moved = ServiceConfig { server, ..other };
        assert_eq!(service.change(moved), Changes { server: true, links: true, ..unchanged });
    }

    #[test]
    fn a_load_balancer_cannot_make_a_client_of_the_server() {
        let service = Service::new(config());
        let admits = |address: &str| service.admits_announced(address.parse().unwrap());
        assert_eq!(admits("10.0.0.7"), Ok(()));
        for nobody in ["10.0.0.5", "0.0.0.0", "224.0.0.1"] {
            assert_eq!(admits(nobody), Err(Refusal::Address), "{nobody}");
        }
    }
}
