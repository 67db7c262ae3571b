//! The switch: the order of the rules.

use alloc::vec::Vec;

use spillway_transport::Time;
use spillway_wire::packet::ethernet::HEADER_BYTES;
use spillway_wire::switch::{Endpoint, ServerId};

use crate::arrival::Arrival;
use crate::config::{Config, ConfigError, PortId};
use crate::control;
use crate::flow::{FlowKey, FlowView, Flows, Generations};
use crate::forward;
use crate::host;
use crate::icmp;
use crate::load::{OwnerView, Owners};
use crate::neighbour;
use crate::parse::{Packet, Parsed, Short, Transport, Upper, parse, target_mac};
use crate::quote::quote;
use crate::state::State;
use crate::tables::{Keyed, Tables};
use crate::tcp;
use crate::unwrap;
use crate::verdict::{Decision, Verdict, VerdictCounters};

/// A switch whose servers change its rules for single flows (Prism §4.2; Capybara §3.2).
///
/// A switch that lost its tables is a new one with a later epoch.
#[derive(Clone, Debug)]
pub struct Switch {
    tables: Tables,
    state: State,
    counters: VerdictCounters,
    epoch: u64,
    hash: Keyed,
}

impl Switch {
    /// A switch without flows and owners. `epoch` is its start time in nanoseconds since 1970, later than that of
    /// any switch before in its place.
    ///
    /// # Errors
    /// The first fault of the configuration.
    pub fn new(config: Config, epoch: u64) -> Result<Switch, ConfigError> {
        if epoch == 0 {
            return Err(ConfigError::Epoch);
        }
        config.check()?;
        let hash = Keyed::with_seed(epoch);
        let state = State {
            flows: Flows::new(config.flows_max, hash.clone()),
            owners: Owners::new(config.owner_timeout),
            generations: Generations::since(epoch),
        };
        let tables = Tables::new(config, &hash);
        Ok(Switch { tables, state, counters: VerdictCounters::default(), epoch, hash })
    }

    /// Decides on a frame that arrived on a port, and rewrites the frame in place. Its length changes only in host mode: by the
    /// outer header of a tunnel, at most 40 bytes, or to that of an ICMP error. Times must not decrease.
    pub fn handle_frame(&mut self, now: Time, port: PortId, frame: &mut Vec<u8>) -> Decision {
        let decision = self.decide(now, port, frame);
        self.counters.count(decision.verdict);
        decision
    }

    /// In host mode, decides on a frame that leaves through the interface, and rewrites the frame in place: it passes, or
    /// is dropped. Its length never changes. Times must not decrease. In gateway mode all frames pass.
    pub fn handle_egress(&mut self, now: Time, frame: &mut Vec<u8>) -> Decision {
        let Switch { tables, state, .. } = self;
        let decision = host::egress(tables, state, &mut Arrival { now, port: PortId::LOCAL, frame });
        self.counters.count(decision.verdict);
        decision
    }

    /// Changes the configuration, except [`flows_max`](Config::flows_max). Flows and owners stay, but the
    /// term of a server that is not configured any more, or has another key, ends, so that its flows return to their original owners.
    /// Its sequence numbers are forgotten: with another key they may begin anew.
    ///
    /// # Errors
    /// The first fault of the new configuration; the old one stays.
    pub fn reload(&mut self, config: Config) -> Result<(), ConfigError> {
        config.check()?;
        if config.mode != self.tables.mode() {
            return Err(ConfigError::ModeChange);
        }
        self.state.owners.set_timeout(config.owner_timeout);
        let tables = Tables::new(config, &self.hash);
        let key = |tables: &Tables, server| tables.sender(server).map(|sender| sender.key.clone());
        for server in (1..=u8::MAX).map(ServerId) {
            let key_after = key(&tables, server);
            if key_after.is_none() || key_after != key(&self.tables, server) {
                self.state.owners.forget(server);
            }
        }
        self.tables = tables;
        Ok(())
    }

    /// The switch's epoch.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Number of packets by verdict.
    pub fn counters(&self) -> &VerdictCounters {
        &self.counters
    }

    /// Number of flows that have an entry.
    pub fn flow_count(&self) -> usize {
        self.state.flows.len()
    }

    /// The entry of a client's flow to a service endpoint.
    pub fn flow(&self, client: Endpoint, service: Endpoint) -> Option<FlowView> {
        self.state.flows.view(&FlowKey { client, service })
    }

    /// All flows that have an entry, in the order of client and service.
    pub fn flows(&self) -> Vec<FlowView> {
        self.state.flows.views()
    }

    /// All servers that have said hello, in the order of their ids.
    pub fn owners(&self, now: Time) -> Vec<OwnerView> {
        self.state.owners.views(now).collect()
    }

    fn decide(&mut self, now: Time, port: PortId, frame: &mut Vec<u8>) -> Decision {
        if let Some(decision) = self.decide_by_port(port, frame) {
            return decision;
        }
        let parsed = parse(frame);
        if let Some((packet, udp)) = parsed.as_ref().ok().and_then(|parsed| self.control_message(parsed)) {
            let Switch { tables, state, epoch, .. } = self;
            return control::handle(tables, state, *epoch, now, port, frame, (packet, udp));
        }
        if self.tables.is_internal(port) {
            return Decision::drop(Verdict::DropUnknownPort);
        }
        match parsed {
            Ok(parsed) => self.decide_parsed(&mut Arrival { now, port, frame }, &parsed),
            Err(Short) => forward::malformed(&self.tables),
        }
    }

    /// The decision that needs only the port and the Ethernet destination of a frame.
    fn decide_by_port(&self, port: PortId, frame: &[u8]) -> Option<Decision> {
        let is_host = self.tables.is_host();
        if self.tables.is_internal(port) || is_host && host::concerns(&self.tables, port, frame) {
            return None;
        }
        if is_host {
            return Some(Decision::pass());
        }
        if self.tables.port(port).is_none() {
            return Some(Decision::drop(Verdict::DropUnknownPort));
        }
        let has_header = frame.len() >= HEADER_BYTES;
        let is_link_local = has_header && target_mac(frame).is_ok_and(forward::is_link_local);
        is_link_local.then(|| Decision::drop(Verdict::DropLinkLocal))
    }

    /// Decides on a frame that is no control message.
    fn decide_parsed(&mut self, arrival: &mut Arrival<'_>, parsed: &Parsed) -> Decision {
        if let Parsed::Ip(packet) = parsed
            && self.tables.is_host()
            && let Some(decision) = unwrap::from_arbiter(&self.tables, arrival, packet)
        {
            return decision;
        }
        let checks_source = self.checks_sources(arrival.port);
        match parsed {
            Parsed::Ip(packet @ Packet { upper: Upper::Tcp(segment), .. }) => {
                self.handle_tcp(arrival, packet, segment)
            }
            // These may carry TCP behind headers that are not parsed: the check of the owner (rule 4a) is not possible.
            Parsed::ManyTags | Parsed::Ip(Packet { upper: Upper::LongChain, .. }) if checks_source => {
                Decision::drop(Verdict::DropNotOwner)
            }
            _ if checks_source
                && neighbour::announces_foreign(&self.tables, arrival.port, arrival.frame, parsed) =>
            {
                Decision::drop(Verdict::DropAnnouncement)
            }
            Parsed::Ip(packet) => match quote(arrival.frame, packet) {
                Some(quote) => {
                    let Switch { tables, state, .. } = self;
                    icmp::handle(tables, state, arrival, packet, &quote)
                }
                None => forward::plain(&self.tables, arrival, packet),
            },
            Parsed::Arp(_) | Parsed::Other | Parsed::ManyTags => {
                forward::frame_of(&self.tables, arrival, parsed)
            }
        }
    }

    /// Whether the sources of a port's frames are checked (rule 4a). In host mode they are not checked at arrival: the local
    /// server's frames are checked when they leave, and those of other servers to their clients do not arrive here.
    fn checks_sources(&self, port: PortId) -> bool {
        !self.tables.is_host() && self.tables.is_server_port(port)
    }

    /// The headers of a datagram to a control endpoint.
    fn control_message<'a>(&self, parsed: &'a Parsed) -> Option<(&'a Packet, &'a Transport)> {
        let Parsed::Ip(packet) = parsed else { return None };
        let Upper::Udp(udp) = &packet.upper else { return None };
        (!udp.is_fragment && self.tables.is_control(udp.target)).then_some((packet, udp))
    }

    fn handle_tcp(&mut self, arrival: &mut Arrival<'_>, packet: &Packet, segment: &Transport) -> Decision {
        let checks_source = self.checks_sources(arrival.port);
        let Switch { tables, state, .. } = self;
        // The source decides first. A segment of a server that is a client of another service has no place as its
        // source.
        let place = if checks_source { tables.place(segment.source) } else { None };
        match place {
            Some(&place) => tcp::from_place(tables, state, arrival, (packet, segment), place),
            None => tcp::from_client(tables, state, arrival, packet, segment),
        }
    }
}
