use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};
use core::time::Duration;

use spillway_auth::Key;
use spillway_batch::Encryption;
use spillway_policy::{CurrentOverride, Override};
use spillway_transport::Time;

use crate::clients::ClientType;
use crate::config::ServiceConfig;
use crate::counters::{LinkTotals, ServiceCounters};
use crate::marked::Turns;
use crate::reasons::Refusal;
use crate::services::drain::Drain;
use crate::status::{LinkStatus, ServiceStatus};

/// State of a service: its configuration, links, number of clients, counters, drain and override.
#[derive(Debug)]
pub(crate) struct Service {
    config: ServiceConfig,
    /// Indexes of the service's links, replaced ones included.
    links: Vec<usize>,
    is_listening: bool,
    plain_clients: u32,
    library_clients: u32,
    counters: ServiceCounters,
    /// Totals of links that were closed for good.
    closed_links: LinkTotals,
    relief: CurrentOverride,
    drain: Option<Drain>,
    /// When library clients without encryption are reset, after a reconfiguration that requires encryption.
    unencrypted_deadline: Option<Time>,
    /// The service is no longer configured, and ends with its last client.
    is_removed: bool,
}

/// The changes of a new configuration that affect open connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Changes {
    /// The batch policy.
    pub(crate) policy: bool,
    pub(crate) server: bool,
    /// Settings that require new links.
    pub(crate) links: bool,
    /// Encryption of links to the server, or of library clients.
    pub(crate) encryption: bool,
}

impl Service {
    pub(crate) fn new(config: ServiceConfig) -> Service {
        Service {
            config,
            links: Vec::new(),
            is_listening: false,
            plain_clients: 0,
            library_clients: 0,
            counters: ServiceCounters::default(),
            closed_links: LinkTotals::default(),
            relief: CurrentOverride::default(),
            drain: None,
            unencrypted_deadline: None,
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

    pub(crate) fn links(&self) -> &[usize] {
        &self.links
    }

    pub(crate) fn add_link(&mut self, index: usize) {
        self.links.push(index);
    }

    /// Removes a link that is not opened again, and keeps its totals.
    pub(crate) fn forget_link(&mut self, index: usize, totals: &LinkTotals) {
        self.closed_links.merge(totals);
        self.links.retain(|other| *other != index);
    }

    /// Applies a new configuration. A service that was removed or drained starts again.
    pub(crate) fn change(&mut self, config: ServiceConfig) -> Changes {
        self.is_removed = false;
        let restarts = self.drain.take().is_some_and(|drain| drain.is_over());
        let before = core::mem::replace(&mut self.config, config);
        let after = &self.config;
        if after.client_encryption != Encryption::Required {
            self.unencrypted_deadline = None;
        }
        let server = before.server != after.server;
        let newest = |config: &ServiceConfig| config.keys.first().map(Key::id);
        let encryption = before.encryption != after.encryption;
        Changes {
            policy: before.policy != after.policy,
            server,
            links: server
                || restarts
                || newest(&before) != newest(after)
                || before.links != after.links
                || encryption
                || before.limits != after.limits,
            encryption: encryption || before.client_encryption != after.client_encryption,
        }
    }

    /// The service is no longer configured. False: it was removed before.
    #[must_use]
    pub(crate) fn remove(&mut self) -> bool {
        self.config.plain_listeners.clear();
        self.config.link_listeners.clear();
        !core::mem::replace(&mut self.is_removed, true)
    }

    pub(crate) fn is_removed(&self) -> bool {
        self.is_removed
    }

    /// Whether the service was removed, and its clients and links have ended.
    pub(crate) fn has_ended_after_removal(&self) -> bool {
        self.is_removed && self.is_drained()
    }
}

/// Admission and number of clients.
impl Service {
    pub(crate) fn admits(&self, client: IpAddr) -> Result<(), Refusal> {
        let is_allowed = self.config.clients.iter().any(|range| range.contains(client));
        if is_allowed { Ok(()) } else { Err(Refusal::Address) }
    }

    /// Whether the service accepts clients: it does not drain and its override is not `off`.
    pub(crate) fn accepts_clients(&self, now: Time) -> Result<(), Refusal> {
        if self.is_draining() {
            return Err(Refusal::Draining);
        }
        if self.is_off(now) { Err(Refusal::Off) } else { Ok(()) }
    }

    /// Whether a PROXY header may announce this address. Rejects addresses that cannot be a client's, and the server's
    /// own address, because the server may give itself more rights than clients.
    pub(crate) fn admits_announced_address(&self, client: IpAddr) -> Result<(), Refusal> {
        let server = self.config.server.ip().to_canonical();
        let is_impossible = client.is_unspecified() || client.is_multicast();
        let is_server = client == server && !server.is_loopback();
        if is_impossible || is_server { Err(Refusal::Address) } else { Ok(()) }
    }

    /// Whether this peer is a load balancer that must announce its clients with PROXY headers.
    pub(crate) fn is_load_balancer(&self, peer: SocketAddr) -> bool {
        self.config.proxy_from.iter().any(|range| range.contains(peer.ip()))
    }

    /// Number of plain and library clients, lingering ones included.
    pub(crate) fn clients(&self) -> u32 {
        self.plain_clients + self.library_clients
    }

    pub(crate) fn client_added(&mut self, client_type: ClientType) {
        *self.count_mut(client_type) += 1;
    }

    /// `failed`: neither the client nor the server has closed the connection normally.
    pub(crate) fn client_removed(&mut self, client_type: ClientType, failed: bool) {
        *self.count_mut(client_type) -= 1;
        if let Some(drain) = &mut self.drain {
            drain.count(client_type, failed);
        }
    }

    fn count_mut(&mut self, client_type: ClientType) -> &mut u32 {
        match client_type {
            ClientType::Plain => &mut self.plain_clients,
            ClientType::Library => &mut self.library_clients,
        }
    }

    /// Decides whether the service's listeners are open: only while a link accepts clients; otherwise the host's TCP
    /// rejects clients.
    #[must_use]
    pub(crate) fn update_listening(&mut self, now: Time, has_link: bool) -> bool {
        self.is_listening = has_link && self.accepts_clients(now).is_ok();
        self.is_listening
    }
}

/// Drain and override.
impl Service {
    /// Begins a drain. False: the service drains already, and only its deadline may have been brought forward.
    #[must_use]
    pub(crate) fn begin_drain(&mut self, now: Time, within: Duration) -> bool {
        match &mut self.drain {
            Some(drain) => {
                drain.bring_forward(now, within);
                false
            }
            None => {
                self.drain = Some(Drain::new(now, within));
                true
            }
        }
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.drain.is_some()
    }

    /// Whether the drain has ended: all clients and links are closed.
    pub(crate) fn is_drained(&self) -> bool {
        self.drain.is_some_and(|drain| drain.is_over())
    }

    /// Whether the last client of a drain has left, or its deadline has passed.
    pub(crate) fn drain_is_due(&self, now: Time) -> bool {
        self.drain.is_some_and(|drain| drain.is_due(now, self.clients()))
    }

    /// Call this when all clients and links are closed.
    pub(crate) fn end_drain(&mut self) {
        if let Some(drain) = &mut self.drain {
            drain.end();
        }
    }

    /// Sets the operator's override. `duration`: `None` for no time limit.
    pub(crate) fn set_override(&mut self, now: Time, relief: Override, duration: Option<Duration>) {
        self.relief.set(now, relief, duration);
    }

    pub(crate) fn is_off(&self, now: Time) -> bool {
        self.relief.at(now) == Override::Off
    }

    /// Removes the override if its time has passed. Returns whether it was removed.
    #[must_use]
    pub(crate) fn end_override(&mut self, now: Time) -> bool {
        let has_expired = self.relief.until().is_some_and(|until| until <= now);
        if has_expired {
            self.relief = CurrentOverride::default();
        }
        has_expired
    }

    /// Sets the deadline of library clients without encryption. A later deadline than the present one has no effect.
    pub(crate) fn bring_forward_unencrypted_deadline(&mut self, deadline: Time) {
        let earlier = self.unencrypted_deadline;
        self.unencrypted_deadline = Some(earlier.map_or(deadline, |earlier| earlier.min(deadline)));
    }

    pub(crate) fn unencrypted_deadline(&self) -> Option<Time> {
        self.unencrypted_deadline
    }

    /// Removes the deadline if it has passed. Returns whether it was removed.
    #[must_use]
    pub(crate) fn end_unencrypted_deadline(&mut self, now: Time) -> bool {
        self.unencrypted_deadline.take_if(|at| *at <= now).is_some()
    }

    /// `links`: the state and totals of each link.
    pub(crate) fn status(&self, links: impl Iterator<Item = (LinkStatus, LinkTotals)>) -> ServiceStatus {
        let mut all = self.closed_links;
        let links = links.map(|(status, totals)| {
            all.merge(&totals);
            status
        });
        let links = links.collect();
        let (traffic, batches, stalls) = all.parts();
        let mut counters = self.counters;
        counters.stalls.add(stalls);
        ServiceStatus {
            name: self.config.name.clone(),
            server: self.config.server,
            listening: self.is_listening,
            relief: self.relief,
            drained: self.drain.map(|drain| drain.counts()),
            removed: self.is_removed,
            links,
            plain_clients: self.plain_clients,
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
        [drain, self.relief.until(), self.unencrypted_deadline].into_iter().flatten().min()
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
    fn service_listens_while_clients_are_accepted() {
        let mut service = Service::new(config());
        let minute = Duration::from_secs(60);
        assert!(
            service.update_listening(Time(0), true) && !service.update_listening(Time(0), false),
            "the service should begin to listen, and not change after that"
        );
        service.set_override(Time(0), Override::Off, Some(minute));
        assert_eq!(service.accepts_clients(Time(1)), Err(Refusal::Off));
        assert!(
            !service.update_listening(Time(1), true) && !service.end_override(Time(1)),
            "nothing should change before the override ends"
        );
        assert_eq!(service.deadline(), Some(Time(0) + minute));
        assert!(service.end_override(Time(0) + minute), "the override should end after a minute");
        assert!(service.update_listening(Time(0) + minute, true), "the service should listen again");
        assert!(
            service.begin_drain(Time(2), minute) && !service.begin_drain(Time(3), minute),
            "a drain should begin once"
        );
        assert_eq!(service.accepts_clients(Time(4)), Err(Refusal::Draining));
        assert!(!service.update_listening(Time(4), true), "a draining service should not listen again");
    }

    #[test]
    fn removed_service_ends_with_its_last_client_and_can_start_again() {
        let mut service = Service::new(config());
        service.client_added(ClientType::Plain);
        assert!(service.remove() && !service.remove(), "a service should be removed once");
        assert!(service.begin_drain(Time(0), Duration::from_secs(1)), "the drain should begin");
        assert!(
            !service.drain_is_due(Time(1)) && service.is_at_rest(),
            "the drain should not be due before the last client leaves"
        );
        service.client_removed(ClientType::Plain, false);
        assert!(
            service.drain_is_due(Time(1)) && !service.is_at_rest() && !service.has_ended_after_removal(),
            "the drain should be due, and the removal not over"
        );
        service.end_drain();
        assert!(service.has_ended_after_removal() && service.is_at_rest(), "the removal should be over");
        assert_eq!(
            service.change(config()),
            Changes { policy: false, server: false, links: true, encryption: false }
        );
        assert!(
            !service.has_ended_after_removal() && service.accepts_clients(Time(2)).is_ok(),
            "the service should accept clients again"
        );
    }

    #[test]
    fn changes_of_a_new_configuration_are_reported() {
        let mut service = Service::new(config());
        let unchanged = Changes { policy: false, server: false, links: false, encryption: false };
        assert_eq!(service.change(config()), unchanged);
        let other = ServiceConfig { client_encryption: Encryption::Required, ..config() };
        assert_eq!(service.change(other.clone()), Changes { encryption: true, ..unchanged });
        let server = "10.0.0.6:11411".parse().unwrap();
        let moved = ServiceConfig { server, ..other };
        assert_eq!(service.change(moved), Changes { server: true, links: true, ..unchanged });
    }

    #[test]
    fn impossible_announced_addresses_are_rejected() {
        let service = Service::new(config());
        let admits = |address: &str| service.admits_announced_address(address.parse().unwrap());
        assert_eq!(admits("10.0.0.7"), Ok(()));
        for address in ["10.0.0.5", "0.0.0.0", "224.0.0.1"] {
            assert_eq!(admits(address), Err(Refusal::Address), "{address} should be rejected");
        }
    }
}
