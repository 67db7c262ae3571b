//! Lists and clears flows.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use spillway_bpf::switch::{FlowEntry, Site};
use spillway_daemon::unknown_service;
use spillway_transport::Time;
use spillway_wire::switch::{Flow, Request, Status};

use crate::config::SwitchConfig;
use crate::messages::Messages;
use crate::tables::Tables;

/// Maximum number of flows that one request lists.
pub const FLOWS_LISTED_MAX: usize = 100_000;

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

/// The flows of a selection.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flows {
    /// Number of flows of the selection.
    pub total: u64,
    /// The listed flows, as many as the limit allows.
    pub flows: Vec<FlowStatus>,
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
    /// The server that owns the connection; of a move the source.
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
    /// Ethernet address in packets to the server.
    pub mac: String,
}

/// The result of clearing flows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cleared {
    /// Flows whose entries have ended.
    pub cleared: u64,
    /// Flows that changed meanwhile, and stay.
    pub changed: u64,
}

/// A selection that was checked against the configuration.
struct Filter<'a> {
    /// The selected service; `None` selects all.
    service: Option<&'a crate::config::Service>,
    client: Option<Client>,
}

impl Selection {
    fn filter<'a>(&self, config: &'a SwitchConfig) -> Result<Filter<'a>, String> {
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
    fn matches(&self, entry: &FlowEntry) -> bool {
        let (client, endpoint) = (SocketAddr::from(entry.client), SocketAddr::from(entry.service));
        self.client.is_none_or(|one| one.matches(client))
            && self.service.is_none_or(|service| service.endpoints.iter().any(|one| one.address == endpoint))
    }
}

/// Lists the flows of a selection, at most `limit` of them.
///
/// # Errors
/// There is no such service, the client is no address, or the table cannot be read.
pub(crate) fn list(
    tables: &impl Tables,
    config: &SwitchConfig,
    selection: &Selection,
    limit: usize,
) -> Result<Flows, String> {
    let filter = selection.filter(config)?;
    let now = tables.now();
    let mut found = Flows::default();
    tables.visit_flows(&mut |entry| {
        if !filter.matches(entry) {
            return;
        }
        found.total += 1;
        if found.flows.len() < limit.min(FLOWS_LISTED_MAX) {
            found.flows.push(FlowStatus::new(entry, config, now));
        }
    })?;
    found.flows.sort_by_key(|flow| (flow.endpoint, flow.client));
    Ok(found)
}

/// Ends the entries of a selection's flows. Their packets then go to the original servers.
///
/// # Errors
/// As [`list`], or the program does not answer; entries before the failure have ended.
pub(crate) fn clear(
    tables: &impl Tables,
    messages: &Messages,
    config: &SwitchConfig,
    selection: &Selection,
) -> Result<Cleared, String> {
    let filter = selection.filter(config)?;
    let control = *config.control.first().ok_or("the switch has no control address")?;
    let mut selected = Vec::new();
    tables.visit_flows(&mut |entry| {
        if filter.matches(entry) {
            selected.push(*entry);
        }
    })?;
    let mut cleared = Cleared::default();
    for entry in &selected {
        match release(tables, messages, control, entry)? {
            true => cleared.cleared += 1,
            false => cleared.changed += 1,
        }
    }
    Ok(cleared)
}

/// Ends an entry unless it has changed since it was read. Returns whether the entry has ended: true also if it had
/// ended before.
///
/// # Errors
/// The program does not answer as it should.
pub(crate) fn release(
    tables: &impl Tables,
    messages: &Messages,
    control: SocketAddr,
    entry: &FlowEntry,
) -> Result<bool, String> {
    // The program creates no entry of such a flow. If there is one, it must not keep others from being ended.
    let Ok(flow) = Flow::new(entry.client, entry.service) else { return Ok(false) };
    let request = Request::Release { flow, generation: entry.generation };
    let answer = messages.exchange(control, request, |frame| tables.handle(frame))?;
    match answer.status {
        // No entry: it has ended meanwhile.
        Status::Ok | Status::NoEntry => Ok(true),
        Status::Stale => Ok(false),
        status => Err(format!("the program refuses `release`: {status}; restart the daemon")),
    }
}

impl FlowStatus {
    fn new(entry: &FlowEntry, config: &SwitchConfig, now: Time) -> FlowStatus {
        let site = |site: &Site| SiteStatus {
            server: config.server(site.server.0).map_or_else(String::new, |server| server.name.clone()),
            id: site.server.0,
            address: site.at.into(),
            mac: site.mac.to_string(),
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
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tests::config;
    use crate::messages::fresh_key;
    use crate::tables::memory::{Memory, NOW};

    fn selection(service: Option<&str>, client: Option<&str>) -> Selection {
        Selection { service: service.map(str::to_owned), client: client.map(str::to_owned) }
    }

    fn tables(messages: &Messages) -> Memory {
        let tables = Memory::new(messages.key());
        for port in 0..3000 {
            tables.add(&format!("10.0.0.7:{}", 10_000 + port), 2, |_| ());
        }
        tables.add("10.0.0.8:5", 2, |entry| {
            entry.target = Some(entry.original);
            entry.state = spillway_wire::switch::FlowState::Held;
            entry.deadline = Some(NOW + std::time::Duration::from_millis(500));
        });
        tables
    }

    #[test]
    fn flows_are_selected_by_service_and_client() {
        let messages = Messages::new(fresh_key().unwrap(), 1);
        let (tables, config) = (tables(&messages), config());
        let total = |service, client| {
            list(&tables, &config, &selection(service, client), 10).map(|found| {
                assert!(found.flows.len() <= 10);
                found.total
            })
        };
        assert_eq!(total(None, None), Ok(3001));
        assert_eq!(total(Some("cache"), None), Ok(3001));
        assert_eq!(total(Some("cache"), Some("10.0.0.8")), Ok(1));
        assert_eq!(total(None, Some("::ffff:10.0.0.8")), Ok(1));
        assert_eq!(total(None, Some("10.0.0.7:10005")), Ok(1));
        assert_eq!(total(None, Some("10.0.0.9")), Ok(0));
        assert!(total(Some("web"), None).unwrap_err().contains("no service web here; there are: cache"));
        assert!(total(None, Some("host")).unwrap_err().contains("ADDRESS or ADDRESS:PORT"));
    }

    #[test]
    fn a_flow_is_one_line() {
        let messages = Messages::new(fresh_key().unwrap(), 1);
        let found = list(&tables(&messages), &config(), &selection(None, Some("10.0.0.8")), 10).unwrap();
        let flow = &found.flows[0];
        assert_eq!((flow.idle_ms, flow.deadline_ms, flow.owner.id), (1000, Some(500), 2));
        assert_eq!(
            flow.to_string(),
            "service=cache client=10.0.0.8:5 endpoint=10.0.0.5:11211 state=held owner=b@10.0.0.6:11211 \
             target=a@10.0.0.5:11211 original=a generation=7 idle=1"
        );
        let json = serde_json::to_value(flow).unwrap();
        assert_eq!(serde_json::from_value::<FlowStatus>(json).unwrap(), *flow);
    }

    #[test]
    fn only_selected_flows_are_cleared() {
        let messages = Messages::new(fresh_key().unwrap(), 1);
        let (tables, config) = (tables(&messages), config());
        let cleared =
            clear(&tables, &messages, &config, &selection(Some("cache"), Some("10.0.0.7"))).unwrap();
        assert_eq!(cleared, Cleared { cleared: 3000, changed: 0 });
        assert_eq!(tables.clients(), ["10.0.0.8:5"]);
    }

    #[test]
    fn a_flow_that_has_changed_stays() {
        let messages = Messages::new(fresh_key().unwrap(), 1);
        let (tables, config) = (Memory::new(messages.key()), config());
        tables.add("10.0.0.7:1", 2, |_| ());
        let entry = tables.only();
        tables.add("10.0.0.7:1", 2, |entry| entry.generation = 8);
        assert_eq!(release(&tables, &messages, config.control[0], &entry), Ok(false));
        assert_eq!(tables.clients().len(), 1);
        tables.flows.lock().unwrap().clear();
        assert_eq!(release(&tables, &messages, config.control[0], &entry), Ok(true));
    }

    #[test]
    fn messages_under_another_key_end_nothing() {
        let [messages, other] = [(); 2].map(|()| Messages::new(fresh_key().unwrap(), 1));
        let tables = Memory::new(other.key());
        tables.add("10.0.0.7:1", 2, |_| ());
        let error = clear(&tables, &messages, &config(), &Selection::default()).unwrap_err();
        assert!(error.contains("drops the daemon's messages"), "{error}");
        assert_eq!(tables.clients().len(), 1);
    }

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
