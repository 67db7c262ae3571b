//! Ports, stations and routes.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::Range;

use spillway_config::{Any, Texts};
use spillway_rules::Mode;
use spillway_rules::config::{PORTS_MAX, PREFIXES_MAX, STATIONS_MAX};
use spillway_wire::packet::ethernet::Mac;
use spillway_xdp::Interface;
use toml::Spanned;

use super::services::Draft;
use super::{Placed, Reader};
use crate::config::schema::{File, PortSection, PrefixSection, StationSection};
use crate::config::{Network, Port, Route, Station, SwitchConfig};

/// Maximum number of interfaces: one of the ports is the daemon's, which has none.
const INTERFACES_MAX: usize = PORTS_MAX - 1;

impl Reader<'_> {
    pub(super) fn ports(&mut self, sections: &[Spanned<PortSection>], services: &[Draft]) -> Vec<Port> {
        if self.mode == Mode::Host {
            self.check_only_port(sections);
        } else if sections.len() < 2 {
            let message = "a switch has at least two ports: add a section [[port]] with interface = \"IF\" for each; \
                           `ip link` lists the interfaces";
            self.values.problem(sections.first().map_or(0..0, Spanned::span), message);
        }
        if let Some(first) = sections.get(INTERFACES_MAX) {
            self.values.problem(first.span(), format!("a switch has at most {INTERFACES_MAX} ports"));
        }
        let mut ports: Vec<Port> = Vec::new();
        for section in sections {
            let (head, section) = (section.span(), section.get_ref());
            let may_own = self.may_own(&section.may_own, services);
            let Some((interface, span)) = self.new_interface(&section.interface, &head, &ports) else {
                self.has_broken_port = true;
                continue;
            };
            let mac = self.mac_of_interface(&interface, &span);
            let number = u8::try_from(ports.len()).unwrap_or(u8::MAX);
            if may_own.is_none() {
                self.unclear_ports.insert(number);
            }
            ports.push(Port { number, interface, mac, may_own: may_own.unwrap_or_default() });
        }
        self.check_owners(services, &ports);
        ports
    }

    /// In host mode, checks that there is exactly one port, and that it is for servers.
    fn check_only_port(&mut self, sections: &[Spanned<PortSection>]) {
        match sections {
            [only] if only.get_ref().may_own.is_some() => {}
            [only] => {
                let message = "name the services that servers may own: add may_own = [\"SERVICE\"]";
                self.values.problem(only.span(), message);
            }
            [] => {
                let message = "mode = \"host\" needs this server's own interface: add a section [[port]] with interface = \
                               \"IF\"; `ip link` lists the interfaces";
                self.values.problem(0..0, message);
            }
            [_, second, ..] => {
                let message =
                    "mode = \"host\" has one port, this server's own interface: remove this section";
                self.values.problem(second.span(), message);
            }
        }
    }

    /// In host mode, checks that a server has the interface's Ethernet address, if the interface exists.
    pub(super) fn check_local_server(&mut self, file: &File, config: &SwitchConfig) {
        let ([section], [port]) = (&file.port[..], &config.ports[..]) else { return };
        // A `[[server]]` with errors is not in `config`; it may be this host's own server.
        let is_complete = file.server.len() == config.servers.len();
        if self.mode == Mode::Host && port.mac != Mac::ZERO && is_complete && config.local_server().is_none()
        {
            let message = format!(
                "no [[server]] has mac = \"{}\", the Ethernet address of {}: add this host's own server, or correct its mac",
                port.mac, port.interface
            );
            self.values.problem(section.span(), message);
        }
    }

    /// Whether the configuration may have these sections, which concern other hosts: only in gateway mode. Reports the
    /// first section in host mode.
    fn may_forward<T>(&mut self, sections: &[Spanned<T>]) -> bool {
        if let (Mode::Host, Some(first)) = (self.mode, sections.first()) {
            let message =
                "mode = \"host\" forwards only the packets of moved connections: remove this section";
            self.values.problem(first.span(), message);
        }
        self.mode == Mode::Gateway
    }

    /// The name of an interface that is not a port yet.
    fn new_interface(
        &mut self,
        setting: &Any,
        head: &Range<usize>,
        ports: &[Port],
    ) -> Option<Placed<String>> {
        let missing = "interface is missing: name the interface; `ip link` lists them";
        let (interface, span) = self.required(setting, head, missing)?;
        // IFNAMSIZ of <net/if.h> is 16, with a zero byte.
        let problem = if !(1..16).contains(&interface.len()) {
            "the name of an interface has 1 to 15 bytes; `ip link` lists them".to_owned()
        } else if interface.chars().any(|c| c.is_control() || c.is_whitespace() || c == '/' || c == ':') {
            // Of these names the kernel accepts only those with control characters. Such characters must not reach terminals.
            "the name of an interface has no space, control character, / or :; `ip link` lists them"
                .to_owned()
        } else if ports.iter().any(|port| port.interface == interface) {
            format!("{interface} is already a port: give each port its own interface")
        } else {
            return Some((interface, span));
        };
        self.values.problem(span, problem);
        None
    }

    fn mac_of_interface(&mut self, interface: &str, span: &Range<usize>) -> Mac {
        if !self.reading.reads_host {
            return Mac::ZERO;
        }
        let found = Interface::find(interface);
        // The interface of a guest or of a card can appear later; the daemon then attaches the port.
        if found.is_err() && is_missing(interface) {
            return Mac::ZERO;
        }
        let Some(found) = self.values.checked(span, found) else { return Mac::ZERO };
        self.own_macs.insert(found.mac, interface.to_owned());
        found.mac
    }

    /// Numbers of the services that the servers of a port may own, in order. `None`: the list has an error.
    fn may_own(&mut self, texts: &Texts, services: &[Draft]) -> Option<Vec<u8>> {
        let Some(list) = texts else { return Some(Vec::new()) };
        if list.get_ref().is_empty() {
            let message = "name the services that the port's servers may own, or leave may_own out if there are no \
                           servers";
            self.values.problem(list.span(), message);
            return None;
        }
        let mut numbers = Some(Vec::new());
        for text in list.get_ref() {
            // Not checked while a service has no valid endpoint: its address might lie in this range.
            let is_unclear =
                text.get_ref().contains('/') && services.iter().any(|one| one.endpoints.is_empty());
            let found = match is_unclear {
                true => None,
                false => self.values.checked(&text.span(), services_of(text.get_ref(), services)),
            };
            numbers = numbers.zip(found).map(|(numbers, found)| [numbers, found].concat());
        }
        let mut numbers = numbers?;
        numbers.sort_unstable();
        numbers.dedup();
        Some(numbers)
    }

    fn check_owners(&mut self, services: &[Draft], ports: &[Port]) {
        for service in services {
            let is_owned = ports.iter().any(|port| self.may_own_service(port, service.number));
            if !is_owned && !self.has_broken_port {
                let name = &service.name;
                let message = format!(
                    "no server may own {name}: add may_own = [\"{name}\"] to the [[port]] sections of its servers"
                );
                self.values.problem(service.span.clone(), message);
            }
        }
    }

    pub(super) fn stations(&mut self, sections: &[Spanned<StationSection>], ports: &[Port]) -> Vec<Station> {
        if !self.may_forward(sections) {
            return Vec::new();
        }
        if let Some(first) = sections.get(STATIONS_MAX) {
            self.values.problem(first.span(), format!("a switch has at most {STATIONS_MAX} stations"));
        }
        let mut stations: BTreeMap<Mac, Station> = BTreeMap::new();
        for section in sections {
            let (head, section) = (section.span(), section.get_ref());
            let mac = self.mac(&section.mac, &head, "mac is missing: give the host's Ethernet address");
            let port = self.port(&section.port, &head, ports, "the host");
            let (Some((mac, span)), Some((port, _))) = (mac, port) else { continue };
            if stations.insert(mac, Station { mac, port }).is_some() {
                let message = format!(
                    "{mac} is already a station: two hosts of one network cannot have the same Ethernet address; \
                     remove one of the sections"
                );
                self.values.problem(span, message);
            }
        }
        stations.into_values().collect()
    }

    pub(super) fn routes(&mut self, sections: &[Spanned<PrefixSection>], ports: &[Port]) -> Vec<Route> {
        if !self.may_forward(sections) {
            return Vec::new();
        }
        if let Some(first) = sections.get(PREFIXES_MAX) {
            self.values.problem(first.span(), format!("a switch has at most {PREFIXES_MAX} prefixes"));
        }
        let mut routes: Vec<Route> = Vec::new();
        for section in sections {
            let (head, section) = (section.span(), section.get_ref());
            let network = self.network(&section.prefix, &head);
            let missing = "next_hop is missing: give the Ethernet address of the router or host";
            let next_hop = self.mac(&section.next_hop, &head, missing);
            let port = self.port(&section.port, &head, ports, "the next hop");
            let Some((network, span)) = network else { continue };
            if let Some(other) = routes.iter().find(|other| conflict(&other.network, &network)) {
                let message = overlap_message(&network, &other.network);
                self.values.problem(span, message);
                continue;
            }
            let (next_hop, port) =
                (next_hop.map_or(Mac::ZERO, |(mac, _)| mac), port.map_or(0, |(port, _)| port));
            routes.push(Route { network, next_hop, port });
        }
        routes
    }

    fn network(&mut self, setting: &Any, head: &Range<usize>) -> Option<Placed<Network>> {
        let missing = "prefix is missing: give an address range such as 10.1.0.0/16";
        let (text, span) = self.required(setting, head, missing)?;
        let network = self.values.checked(&span, text.parse())?;
        Some((network, span))
    }

    /// The number of the port that a setting names by its interface. `what`: how error messages call the
    /// host to which the port leads.
    pub(super) fn port(
        &mut self,
        setting: &Any,
        head: &Range<usize>,
        ports: &[Port],
        what: &str,
    ) -> Option<Placed<u8>> {
        let missing = format!("port is missing: name the interface that leads to {what}");
        let (interface, span) = self.required(setting, head, &missing)?;
        let found = ports.iter().find(|port| port.interface == interface).map(|port| port.number);
        if found.is_none() && !self.has_broken_port {
            let names: Vec<&str> = ports.iter().map(|port| port.interface.as_str()).collect();
            let message = format!(
                "no [[port]] has interface = \"{interface}\": add it, or name one of {}",
                names.join(", ")
            );
            self.values.problem(span.clone(), message);
        }
        Some((found?, span))
    }
}

fn is_missing(interface: &str) -> bool {
    let no_device = rustix::io::Errno::NODEV.raw_os_error();
    spillway_bpf::attached_program(interface).is_err_and(|error| error.raw_os_error() == Some(no_device))
}

/// Numbers of the services that an entry of `may_own` stands for.
fn services_of(text: &str, services: &[Draft]) -> Result<Vec<u8>, String> {
    if let Some(service) = services.iter().find(|service| service.name == text) {
        return Ok(vec![service.number]);
    }
    if !text.contains('/') && text.parse::<IpAddr>().is_err() {
        let names: Vec<&str> = services.iter().map(|service| service.name.as_str()).collect();
        return Err(format!(
            "no [[service]] has name = \"{text}\": add it, or name one of {}",
            names.join(", ")
        ));
    }
    let network: Network = text.parse()?;
    let mut numbers = Vec::new();
    for service in services {
        let inside =
            service.endpoints.iter().filter(|endpoint| network.contains(endpoint.address.ip())).count();
        if inside > 0 && inside < service.endpoints.len() {
            return Err(format!(
                "{network} contains some endpoints of {} and not others: name the service, or widen the range",
                service.name
            ));
        }
        if inside > 0 {
            numbers.push(service.number);
        }
    }
    if numbers.is_empty() {
        return Err(format!(
            "no service has an endpoint in {network}: name the services, or correct the range"
        ));
    }
    Ok(numbers)
}

/// Whether two prefixes exclude each other: they are equal, or they overlap and neither is a default route.
fn conflict(one: &Network, other: &Network) -> bool {
    one == other || one.overlaps(other) && one.length() > 0 && other.length() > 0
}

fn overlap_message(network: &Network, other: &Network) -> String {
    if network == other {
        return format!("{network} is already a prefix: remove one of the sections");
    }
    format!("{network} overlaps {other}: divide them; only 0.0.0.0/0 and ::/0 may contain other prefixes")
}
