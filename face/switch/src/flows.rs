//! Flows as operators see them, and how operators select them.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use spillway_bpf::switch::{FlowEntry, Site};
use spillway_daemon::unknown_service;
use spillway_transport::Time;

use crate::config::SwitchConfig;

/// A client, or one of its connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Client {
    ip: IpAddr,
    port: Option<u16>,
}

impl Client {
    fn matches(&self, client: SocketAddr) -> bool {
        self.ip == client.ip() && self.port.is_none_or(|port| port == client.port())
    }
}

impl FromStr for Client {
    type Err = String;

    fn from_str(text: &str) -> Result<Client, String> {
        if let Ok(ip) = text.parse::<IpAddr>() {
            return Ok(Client { ip: ip.to_canonical(), port: None });
        }
        let address: SocketAddr =
            text.parse().map_err(|_| format!("{text}: give the client's ADDRESS or ADDRESS:PORT"))?;
        Ok(Client { ip: address.ip().to_canonical(), port: Some(address.port()) })
    }
}

impl fmt::Display for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port {
            None => self.ip.fmt(f),
            Some(port) => SocketAddr::new(self.ip, port).fmt(f),
        }
    }
}

/// The flows that a request lists or clears.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Selection {
    /// The name of a service; all services if not given.
    #[serde(default)]
    pub service: Option<String>,
    /// A client's `ADDRESS` or `ADDRESS:PORT`; all clients if not given.
    #[serde(default)]
    pub client: Option<String>,
}

/// One flow with an entry: it was moved, or a move was requested.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowStatus {
    /// Address and port of the client.
    pub client: SocketAddr,
    /// Name of the service; empty if a reload has removed it.
    pub service: String,
    /// The service's endpoint, to which the client has connected.
    pub endpoint: SocketAddr,
    /// `asked`, `held` or `owned`.
    pub state: String,
    /// The generation: the number of the entry's last change.
    pub generation: u64,
    /// The server that owns the connection; during a move the source.
    pub owner: SiteStatus,
    /// The target of a move that is under way.
    pub target: Option<SiteStatus>,
    /// The server to which the client has connected.
    pub original: SiteStatus,
    /// Time since the last packet.
    pub idle_ms: u64,
    /// Time until the move's deadline, after which the flow returns to its owner.
    pub deadline_ms: Option<u64>,
    /// Whether the client has sent its FIN.
    pub client_fin: bool,
    /// Whether the owner has sent its FIN.
    pub owner_fin: bool,
    /// Whether the owner has reset the connection.
    pub owner_reset: bool,
}

/// Where a server has a connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SiteStatus {
    /// Name of the server; empty if a reload has removed it.
    pub server: String,
    /// The server's id.
    pub id: u8,
    /// Address and port in packets to the server.
    pub address: SocketAddr,
    /// The server's Ethernet address.
    pub mac: String,
    /// Whether packets to the server go through a tunnel.
    #[serde(default)]
    pub encapsulated: bool,
}

/// A selection that was checked against the configuration.
pub(crate) struct Filter<'a> {
    /// The selected service; `None` selects all.
    service: Option<&'a crate::config::Service>,
    client: Option<Client>,
}

impl Selection {
    /// Checks the selection.
    ///
    /// # Errors
    /// The service is not configured, or the client is not an address.
    pub(crate) fn filter<'a>(&self, config: &'a SwitchConfig) -> Result<Filter<'a>, String> {
        let client = self.client.as_deref().map(str::parse).transpose()?;
        let Some(name) = &self.service else { return Ok(Filter { service: None, client }) };
        let service = config.services.iter().find(|service| service.name == *name).ok_or_else(|| {
            let names: Vec<&str> = config.services.iter().map(|service| service.name.as_str()).collect();
            unknown_service(name, &format!("there are: {}", names.join(", ")))
        })?;
        Ok(Filter { service: Some(service), client })
    }
}

impl Filter<'_> {
    pub(crate) fn matches(&self, entry: &FlowEntry) -> bool {
        let (client, endpoint) = (SocketAddr::from(entry.client), SocketAddr::from(entry.service));
        self.client.is_none_or(|one| one.matches(client))
            && self.service.is_none_or(|service| service.endpoints.iter().any(|one| one.address == endpoint))
    }
}

impl FlowStatus {
    /// `now`: the present time of the program's clock.
    pub(crate) fn new(entry: &FlowEntry, config: &SwitchConfig, now: Time) -> FlowStatus {
        let site = |site: &Site| {
            let server = config.server(site.server.0);
            SiteStatus {
                server: server.map_or_else(String::new, |server| server.name.clone()),
                id: site.server.0,
                address: site.at.into(),
                mac: site.mac.to_string(),
                encapsulated: server.is_some_and(|server| server.encapsulation.is_some()),
            }
        };
        let millis = |from: Time, to: Time| u64::try_from((to - from).as_millis()).unwrap_or(u64::MAX);
        let endpoint = SocketAddr::from(entry.service);
        FlowStatus {
            client: entry.client.into(),
            service: config.service_of(endpoint).map_or_else(String::new, |service| service.name.clone()),
            endpoint,
            state: entry.state.to_string(),
            generation: entry.generation,
            owner: site(&entry.owner),
            target: entry.target.as_ref().map(site),
            original: site(&entry.original),
            idle_ms: millis(entry.last_packet, now),
            deadline_ms: entry.deadline.map(|deadline| millis(now, deadline)),
            client_fin: entry.has_client_fin,
            owner_fin: entry.has_owner_fin,
            owner_reset: entry.owner_rst.is_some(),
        }
    }
}

/// One line, as `spillway flows` prints it.
impl fmt::Display for FlowStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |name: &str| if name.is_empty() { "-".to_owned() } else { name.to_owned() };
        let site = |site: &SiteStatus| format!("{}@{}", name(&site.server), site.address);
        let target = self.target.as_ref().map_or_else(|| "-".to_owned(), site);
        write!(
            f,
            "service={} client={} endpoint={} state={} owner={} target={target} original={} generation={} idle={}",
            name(&self.service),
            self.client,
            self.endpoint,
            self.state,
            site(&self.owner),
            name(&self.original.server),
            self.generation,
            self.idle_ms / 1000
        )?;
        // The packets go to the target of a held flow, otherwise to the owner.
        let receiver = self.target.as_ref().filter(|_| self.state == "held").unwrap_or(&self.owner);
        if receiver.encapsulated { f.write_str(" encapsulated") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_are_addresses_with_or_without_a_port() {
        for text in ["10.0.0.7", "10.0.0.7:80", "2001:db8::1", "[2001:db8::1]:80"] {
            assert_eq!(text.parse::<Client>().unwrap().to_string(), text);
        }
        for wrong in ["", "host", "10.0.0.7:", "10.0.0.0/8", "2001:db8::1:80:x"] {
            assert!(wrong.parse::<Client>().is_err(), "{wrong}");
        }
    }
}
