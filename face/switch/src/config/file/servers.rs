//! Servers with their keys and places.

use std::net::{IpAddr, SocketAddr};
use std::ops::Range;

use spillway_auth::Key;
use spillway_config::Any;
use spillway_rules::Mode;
use spillway_rules::config::{PLACES_MAX, SENDERS_MAX};
use spillway_wire::packet::ethernet::Mac;
use toml::Spanned;

use super::address::{endpoint, host_address};
use super::services::Draft;
use super::{Placed, Reader};
use crate::config::numbers::assign_ids;
use crate::config::schema::{PlaceSection, ServerSection};
use crate::config::{Place, Port, Server, SwitchConfig};

/// Maximum number of servers: id 0 is the daemon's.
const SERVERS_MAX: usize = SENDERS_MAX - 1;

impl Reader<'_> {
    /// Reads the servers. Servers whose sections have errors are left out.
    pub(super) fn servers(
        &mut self,
        sections: &[Spanned<ServerSection>],
        services: &[Draft],
        config: &SwitchConfig,
    ) -> Vec<Server> {
        if let Some(first) = sections.get(SERVERS_MAX) {
            self.values.problem(first.span(), format!("a switch has at most {SERVERS_MAX} servers"));
        }
        let mut servers: Vec<Server> = Vec::new();
        for section in sections {
            let server = self.server(section, services, config, &servers);
            servers.extend(server);
            if self.used.len() > PLACES_MAX {
                let message = format!("a switch has at most {PLACES_MAX} endpoints and places");
                self.values.problem(section.span(), message);
                break;
            }
        }
        assign_ids(&mut servers);
        servers
    }

    fn server(
        &mut self,
        section: &Spanned<ServerSection>,
        services: &[Draft],
        config: &SwitchConfig,
        others: &[Server],
    ) -> Option<Server> {
        let (head, section) = (section.span(), section.get_ref());
        let name = self.name(&section.name, &head, "server").and_then(|(name, span)| {
            let is_new = others.iter().all(|other| other.name != name);
            if !is_new {
                self.values.problem(span, format!("{name} is already a server: give each its own name"));
            }
            is_new.then_some(name)
        });
        let id = self.id(&section.id, others);
        let address = self.server_address(&section.address, &head, config, others);
        let missing = "mac is missing: give the server's Ethernet address";
        let mac = self.mac(&section.mac, &head, missing);
        let port = self.server_port(&section.port, &head, config);
        let key = self.key(&section.key_file, &head, others);
        let (mac, port) = (self.server_mac(mac?, port, config, others)?, port?);
        let (name, address, (key_file, key)) = (name?, address?, key?);
        let places = self.places(section, &name, port, services);
        let (id, has_fixed_id) = (id.unwrap_or(0), id.is_some());
        let port = port.number;
        Some(Server { name, id, has_fixed_id, address, mac, port, key_file, key, places })
    }

    fn id(&mut self, setting: &Any, others: &[Server]) -> Option<u8> {
        let id = self.values.number(setting, 1..=u8::MAX)?;
        let other = others.iter().find(|other| other.has_fixed_id && other.id == id);
        if let (Some(setting), Some(other)) = (setting, other) {
            let message = format!("{id} is already the id of server {}: give each its own", other.name);
            self.values.problem(setting.span(), message);
        }
        Some(id)
    }

    fn server_address(
        &mut self,
        setting: &Any,
        head: &Range<usize>,
        config: &SwitchConfig,
        others: &[Server],
    ) -> Option<IpAddr> {
        let missing =
            "address is missing: give the server's own IP address, to which control messages are sent";
        let (text, span) = self.required(setting, head, missing)?;
        let address = self.values.checked(&span, host_address(&text))?;
        // In host mode the switch's host is a server.
        let problem = if self.mode == Mode::Gateway && self.own_addresses.contains(&address) {
            format!("{address} is an address of the switch itself: give the server's")
        } else if let Some(other) = others.iter().find(|other| other.address == address) {
            format!("{address} is already the address of server {}: give each server's own", other.name)
        } else if !config.control.is_empty()
            && !config.control.iter().any(|control| control.is_ipv4() == address.is_ipv4())
        {
            let family = if address.is_ipv4() { "IPv4" } else { "IPv6" };
            format!(
                "control has no {family} address, from which control messages could be sent here: add one"
            )
        } else {
            return Some(address);
        };
        self.values.problem(span, problem);
        None
    }

    /// The port that a setting names by its interface, which must be one for servers (with `may_own`).
    fn server_port<'p>(
        &mut self,
        setting: &Any,
        head: &Range<usize>,
        config: &'p SwitchConfig,
    ) -> Option<&'p Port> {
        let (number, span) = self.port(setting, head, &config.ports, "the server")?;
        let port = config.ports.iter().find(|port| port.number == number)?;
        if port.may_own.is_empty() && !self.unclear_ports.contains(&number) {
            let message = format!(
                "port {} is not for servers: add may_own = [\"SERVICE\"] to it, or name another port",
                port.interface
            );
            self.values.problem(span, message);
            return None;
        }
        Some(port)
    }

    fn server_mac(
        &mut self,
        (mac, span): Placed<Mac>,
        port: Option<&Port>,
        config: &SwitchConfig,
        others: &[Server],
    ) -> Option<Mac> {
        let station = config.stations.iter().find(|station| station.mac == mac);
        let problem = if let Some(other) = others.iter().find(|other| other.mac == mac) {
            format!("{mac} is already the address of server {}: give each server's own", other.name)
        } else if let (Some(station), Some(port)) = (station, port)
            && station.port != port.number
        {
            let there = config.interface(station.port);
            format!(
                "{mac} is a station on port {there}, but this server is on {}: correct one",
                port.interface
            )
        } else {
            return Some(mac);
        };
        self.values.problem(span, problem);
        None
    }

    /// The name of the key file, and the key if key files are read.
    fn key(
        &mut self,
        setting: &Any,
        head: &Range<usize>,
        others: &[Server],
    ) -> Option<(String, Option<Key>)> {
        let missing = "key_file is missing: make a key with `spillway key new FILE`, and name the file";
        let (file, span) = self.required(setting, head, missing)?;
        if !self.reading.reads_host {
            return Some((file, None));
        }
        let path = self.reading.key_file(&file);
        let key = self.values.checked(&span, spillway_keys::read_key_file(path))?;
        let has_key = |other: &&Server| other.key.as_ref().is_some_and(|one| one.id() == key.id());
        if let Some(other) = others.iter().find(has_key) {
            let message = format!(
                "server {} has the same key, so that each could act as the other: make one for each with `spillway \
                 key new FILE`",
                other.name
            );
            self.values.problem(span, message);
            return None;
        }
        Some((file, Some(key)))
    }

    fn places(&mut self, section: &ServerSection, name: &str, port: &Port, services: &[Draft]) -> Vec<Place> {
        let list = section.places.iter().flat_map(|list| list.get_ref());
        list.filter_map(|place| self.place(place, name, port, services)).collect()
    }

    fn place(
        &mut self,
        place: &Spanned<PlaceSection>,
        server: &str,
        port: &Port,
        services: &[Draft],
    ) -> Option<Place> {
        let (head, section) = (place.span(), place.get_ref());
        let address = self.service_address(&section.address, &head, "place");
        let missing = "service is missing: name the [[service]] whose connections the server imports here";
        let (service, service_span) = self.required(&section.service, &head, missing)?;
        let Some(draft) = services.iter().find(|draft| draft.name == service) else {
            let message = format!("no [[service]] has name = \"{service}\": add it, or correct the name");
            self.values.problem(service_span, message);
            return None;
        };
        if !self.may_own_service(port, draft.number) {
            let message = format!(
                "the servers of port {} may not own {service}: add \"{service}\" to its may_own",
                port.interface
            );
            self.values.problem(service_span.clone(), message);
        }
        let endpoint = self.endpoint_of_place(section, draft, &service_span)?;
        let (address, span) = address?;
        if address.is_ipv4() != endpoint.is_ipv4() {
            let message = format!("{address} has another address family than {endpoint}: give both the same");
            self.values.problem(span, message);
            return None;
        }
        self.use_address(address, &span, &format!("a place of server {server}"));
        Some(Place { address, service: draft.number, endpoint })
    }

    fn endpoint_of_place(
        &mut self,
        section: &PlaceSection,
        draft: &Draft,
        service_span: &Range<usize>,
    ) -> Option<SocketAddr> {
        let Some((text, span)) = self.values.string(&section.endpoint) else {
            return match &draft.endpoints[..] {
                [only] => Some(only.address),
                [] => None,
                _ => {
                    let name = &draft.name;
                    let message =
                        format!("{name} has several endpoints: add endpoint = \"ADDRESS:PORT\" to say which");
                    self.values.problem(service_span.clone(), message);
                    None
                }
            };
        };
        let wanted = self.values.checked(&span, endpoint(&text))?;
        if draft.endpoints.iter().any(|one| one.address == wanted) {
            return Some(wanted);
        }
        let message = format!("{wanted} is not an endpoint of {}: give one of its endpoints", draft.name);
        self.values.problem(span, message);
        None
    }

    /// Records an endpoint or place; one that is recorded already is an error. `what`: how error messages call it.
    pub(super) fn use_address(&mut self, address: SocketAddr, span: &Range<usize>, what: &str) {
        if let Some(other) = self.used.get(&address) {
            let message = format!("{address} is already {other}: give each its own address or port");
            self.values.problem(span.clone(), message);
            return;
        }
        self.used.insert(address, what.to_owned());
    }
}
