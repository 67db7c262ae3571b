//! Settings in force, in the format of a configuration file.

use std::fmt::{self, Display, Write};

use spillway_rules::Mode;
use spillway_values::duration_text;
use spillway_wire::packet::ethernet::Mac;

use super::{Port, Route, Server, Service, Station, SwitchConfig};

/// TOML with every setting. Keys are secret: comments show their ids.
impl Display for SwitchConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.general())?;
        self.ports.iter().try_for_each(|port| write!(f, "\n[[port]]\n{}", self.port_text(port)))?;
        self.stations.iter().try_for_each(|one| write!(f, "\n[[station]]\n{}", self.station_text(one)))?;
        self.routes.iter().try_for_each(|route| write!(f, "\n[[prefix]]\n{}", self.route_text(route)))?;
        self.services.iter().try_for_each(|one| write!(f, "\n[[service]]\n{}", self.service_text(one)))?;
        self.servers.iter().try_for_each(|server| write!(f, "\n[[server]]\n{}", self.server_text(server)))
    }
}

impl SwitchConfig {
    /// The section `[switch]`, a line for each key.
    pub(crate) fn general(&self) -> String {
        let further = self.addresses.iter().filter(|own| self.control.iter().all(|one| one.ip() != **own));
        let mut text = format!(
            "[switch]\nname = \"{}\"\nmode = \"{}\"\ncontrol = {}\naddresses = {}\nowner_timeout = \"{}\"\nflows_max = {}\nsocket = {:?}\n",
            self.name,
            mode_text(self.mode),
            list(&self.control),
            list(further),
            duration_text(self.owner_timeout),
            self.flows_max,
            self.socket.display().to_string()
        );
        text += &match &self.admin_group {
            Some(group) => format!("admin_group = \"{group}\"\n"),
            None => "# no admin_group\n".to_owned(),
        };
        text += &match &self.metrics {
            Some(address) => format!("metrics = \"{address}\"\n"),
            None => "# no metrics\n".to_owned(),
        };
        text
    }

    pub(crate) fn port_text(&self, port: &Port) -> String {
        let mut text = format!("interface = {:?}\n", port.interface);
        if !port.may_own.is_empty() {
            text += &format!(
                "may_own = {}\n",
                list(port.may_own.iter().map(|number| self.service_name(*number)))
            );
        }
        if port.mac != Mac::ZERO {
            text += &format!("# mac {}\n# mtu {}\n", port.mac, port.mtu);
        }
        text
    }

    pub(crate) fn station_text(&self, station: &Station) -> String {
        format!("mac = \"{}\"\nport = {:?}\n", station.mac, self.interface(station.port))
    }

    pub(crate) fn route_text(&self, route: &Route) -> String {
        let Route { network, next_hop, port } = route;
        let port = self.interface(*port);
        format!("prefix = \"{network}\"\nnext_hop = \"{next_hop}\"\nport = {port:?}\n")
    }

    pub(crate) fn service_text(&self, service: &Service) -> String {
        let endpoints = service.endpoints.iter().map(|endpoint| {
            let server = self.server(endpoint.server).map_or("", |server| &server.name);
            format!("{{ address = \"{}\", server = \"{server}\" }}", endpoint.address)
        });
        let mut text = format!("name = \"{}\"\nendpoints = [{}]\n", service.name, joined(endpoints));
        if let Some(flows_max) = service.flows_max {
            text += &format!("flows_max = {flows_max}\n");
        }
        text
    }

    pub(crate) fn server_text(&self, server: &Server) -> String {
        let places = server.places.iter().map(|place| {
            let service = self.service_name(place.service);
            format!(
                "{{ address = \"{}\", service = \"{service}\", endpoint = \"{}\" }}",
                place.address, place.endpoint
            )
        });
        let mut text = format!(
            "name = \"{}\"\nid = {}\naddress = \"{}\"\nmac = \"{}\"\nport = {:?}\nkey_file = {:?}\n",
            server.name,
            server.id,
            server.address,
            server.mac,
            self.interface(server.port),
            server.key_file
        );
        if let Some(encapsulation) = server.encapsulation {
            text += &format!("encapsulate = true\nnext_hop = \"{}\"\n", encapsulation.next_hop);
        }
        if let Some(key) = &server.key {
            // Cannot fail: writes to a string.
            let _ = writeln!(text, "# key {}", key.id());
        }
        text + &format!("places = [{}]\n", joined(places))
    }

    /// The name of the service with this number; empty for an unknown number.
    pub(crate) fn service_name(&self, number: u8) -> &str {
        self.services.iter().find(|service| service.number == number).map_or("", |service| &service.name)
    }
}

/// The mode as the file and the status have it.
pub(crate) fn mode_text(mode: Mode) -> &'static str {
    match mode {
        Mode::Gateway => "gateway",
        Mode::Host => "host",
    }
}

/// A TOML list of texts.
fn list(items: impl IntoIterator<Item: Display>) -> String {
    format!("[{}]", joined(items.into_iter().map(|item| format!("\"{item}\""))))
}

fn joined(items: impl Iterator<Item = String>) -> String {
    items.collect::<Vec<_>>().join(", ")
}
