//! Definitions: the lines of `setup.txt`, and of cases after `with`.
//!
//! ```text
//! mode host
//! port rack-a 2 mac 02:00:00:00:01:02 server may-own 7 8
//! host alice 02:00:00:00:00:0a on clients 10.0.0.10 2001:db8::10
//! prefix 192.0.2.0/24 via gateway on uplink
//! own 10.0.0.254 2001:db8::254
//! control 10.0.0.254 2001:db8::254 port 7100
//! server A 1 key 000102030405060708090a0b0c0d0e0f at 10.0.0.1
//! server X 9 key 0102030405060708090a0b0c0d0e0f10 at 10.9.0.2 encapsulated via gateway
//! service web 10.0.0.1:80 number 7 owner A
//! place web-b 10.0.0.2:8080 for web at B
//! flows 16
//! bound 7 4
//! timeout 1s
//! epoch 1700000000000000000
//! ```
//!
//! `mode host`: the switch runs on a server's own interface, the port with number 0. That server's host is at a port with
//! number 62. `port eth0 0 mac 02:00:00:00:00:01 mtu 900 server` has another MTU than 1500. `bound 7 4`: the service with number 7 has at most 4 flows. A definition replaces an earlier one of the same
//! name. The daemon's port has the name `daemon` and needs no definition.

use std::net::{IpAddr, SocketAddr};

use super::{DAEMON, DAEMON_PORT, Host, Place, Port, Prefix, Server, Setup};
use crate::error::TextError;
use crate::mac::Mac;
use crate::text::{Line, lines};

impl Setup {
    /// Parses a text of definitions.
    ///
    /// # Errors
    /// The text is wrong.
    pub fn parse(text: &str) -> Result<Setup, TextError> {
        let mut setup = Setup::default();
        for mut line in lines(text)? {
            setup.define(&mut line)?;
        }
        Ok(setup)
    }

    /// Parses one definition.
    pub(crate) fn define(&mut self, line: &mut Line<'_>) -> Result<(), TextError> {
        let keyword = line.word("a definition")?;
        match keyword.text {
            "mode" => {
                line.expect("host")?;
                self.is_host = true;
            }
            "port" => self.define_port(line)?,
            "host" => self.define_host(line)?,
            "prefix" => self.define_prefix(line)?,
            "own" => self.own_addresses = addresses(line)?,
            "control" => {
                self.control_addresses = addresses(line)?;
                line.expect("port")?;
                self.control_port = line.number("a UDP port")?;
            }
            "server" => self.define_server(line)?,
            "service" => self.define_service(line)?,
            "place" => self.define_place(line)?,
            "flows" => self.flows_max = line.number("a number of flows")?,
            "bound" => {
                let service = line.number("a service number from 0 to 255")?;
                self.service_flows_max.insert(service, line.number("a number of flows")?);
            }
            "timeout" => self.owner_timeout_ns = line.time("a time")?,
            "epoch" => self.epoch = line.number("a number")?,
            other => {
                return Err(keyword.error(format!(
                    "unknown definition `{other}`: expected mode, port, host, prefix, own, control, server, service, \
                     place, flows, bound, timeout or epoch"
                )));
            }
        }
        line.end()
    }

    fn define_port(&mut self, line: &mut Line<'_>) -> Result<(), TextError> {
        let name = line.word("the port's name")?;
        if matches!(name.text, "daemon" | "egress") || self.hosts.contains_key(name.text) {
            return Err(name.error(format!("`{}` is taken", name.text)));
        }
        let at = line.position();
        let number = line.number::<u8>("a port number from 0 to 62")?;
        if number >= DAEMON_PORT {
            return Err(TextError::new(at, format!("a port number is at most {}", DAEMON_PORT - 1)));
        }
        line.expect("mac")?;
        let mac = line.parse("a MAC")?;
        let mtu = if line.accept("mtu") { line.number("an MTU")? } else { 1500 };
        let is_server = line.accept("server");
        let mut port = Port { number, mac, is_server, may_own: [].into(), mtu };
        if line.accept("may-own") {
            while let Some(service) = line.accept_parsed() {
                port.may_own.insert(service);
            }
        }
        self.ports.insert(name.text.into(), port);
        Ok(())
    }

    fn define_host(&mut self, line: &mut Line<'_>) -> Result<(), TextError> {
        let name = line.word("the host's name")?;
        if self.ports.contains_key(name.text) {
            return Err(name.error(format!("`{}` is the name of a port", name.text)));
        }
        let mac = line.parse("a MAC")?;
        let port = if line.accept("on") { Some(self.read_port(line)?) } else { None };
        let addresses = addresses(line)?;
        self.hosts.insert(name.text.into(), Host { mac, port, addresses });
        Ok(())
    }

    fn define_prefix(&mut self, line: &mut Line<'_>) -> Result<(), TextError> {
        let word = line.word("a prefix")?;
        let prefix = word.text.split_once('/').and_then(|(address, bits)| {
            let (address, bits) = (address.parse::<IpAddr>().ok()?, bits.parse::<u8>().ok()?);
            (bits <= if address.is_ipv4() { 32 } else { 128 }).then_some((address, bits))
        });
        let (address, bits) = prefix.ok_or_else(|| word.error(format!("`{}` is not a prefix", word.text)))?;
        line.expect("via")?;
        let mac = self.read_mac(line)?;
        line.expect("on")?;
        let port = self.read_port(line)?;
        self.prefixes.retain(|prefix| (prefix.address, prefix.bits) != (address, bits));
        self.prefixes.push(Prefix { address, bits, mac, port });
        Ok(())
    }

    fn define_server(&mut self, line: &mut Line<'_>) -> Result<(), TextError> {
        let name = line.word("the name of a host")?;
        let id = line.number("a server id from 0 to 255")?;
        line.expect("key")?;
        let word = line.word("a key")?;
        let key = key(word.text).ok_or_else(|| word.error("a key has 32 hexadecimal digits"))?;
        line.expect("at")?;
        let address = line.address()?;
        let (mac, port) = match self.hosts.get(name.text) {
            _ if id == DAEMON => (Mac::default(), DAEMON_PORT),
            Some(Host { mac, port: Some(port), .. }) => (*mac, *port),
            _ => return Err(name.error(format!("`{}` is not a host at a port", name.text))),
        };
        let mut next_hop = None;
        if line.accept("encapsulated") {
            line.expect("via")?;
            next_hop = Some(self.read_mac(line)?);
        }
        self.servers.insert(name.text.into(), Server { id, key, address, mac, port, next_hop });
        Ok(())
    }

    fn define_service(&mut self, line: &mut Line<'_>) -> Result<(), TextError> {
        let name = line.word("the service's name")?;
        let at: SocketAddr = line.parse("an address and port")?;
        line.expect("number")?;
        let number = line.number("a service number from 0 to 255")?;
        line.expect("owner")?;
        let server = self.read_server(line)?;
        self.places.insert(name.text.into(), Place { at, service: at, number, server });
        Ok(())
    }

    fn define_place(&mut self, line: &mut Line<'_>) -> Result<(), TextError> {
        let name = line.word("the place's name")?;
        let at = line.parse("an address and port")?;
        line.expect("for")?;
        let service = line.word("a service")?;
        let (endpoint, number) = match self.places.get(service.text) {
            Some(place) if place.is_endpoint() => (place.service, place.number),
            _ => return Err(service.error(format!("`{}` is not a service", service.text))),
        };
        line.expect("at")?;
        let server = self.read_server(line)?;
        self.places.insert(name.text.into(), Place { at, service: endpoint, number, server });
        Ok(())
    }

    /// Reads the name of a port.
    pub(crate) fn read_port(&self, line: &mut Line<'_>) -> Result<u8, TextError> {
        let word = line.word("a port")?;
        self.port_number(word.text).ok_or_else(|| word.error(format!("`{}` is not a port", word.text)))
    }

    /// Reads the name of a server; returns its id.
    pub(crate) fn read_server(&self, line: &mut Line<'_>) -> Result<u8, TextError> {
        let word = line.word("a server")?;
        let server = self.servers.get(word.text);
        server.map(|server| server.id).ok_or_else(|| word.error(format!("`{}` is not a server", word.text)))
    }

    /// Reads a MAC, or the name of a host or port.
    pub(crate) fn read_mac(&self, line: &mut Line<'_>) -> Result<Mac, TextError> {
        let word = line.word("a MAC, a host or a port")?;
        let mac = if word.text == "all" { Some(Mac::BROADCAST) } else { word.text.parse().ok() };
        mac.or_else(|| self.mac(word.text))
            .ok_or_else(|| word.error(format!("`{}` is not a MAC, a host or a port", word.text)))
    }

    /// Reads addresses and ports: of a place, of a host (`alice:40000`), or as numbers. The result has the family
    /// that `is_wanted` prefers.
    pub(crate) fn read_endpoint(
        &self,
        line: &mut Line<'_>,
        prefers_v6: bool,
    ) -> Result<SocketAddr, TextError> {
        let word = line.word("an address and port")?;
        self.endpoint(word.text, prefers_v6).ok_or_else(|| {
            word.error(format!(
                "`{}` is not a place, a host's port as in `alice:40000`, or 10.0.0.1:80",
                word.text
            ))
        })
    }

    /// The address and port of this name.
    pub(crate) fn endpoint(&self, text: &str, prefers_v6: bool) -> Option<SocketAddr> {
        if let Some(place) = self.places.get(text) {
            return Some(place.at);
        }
        if let Ok(at) = text.parse() {
            return Some(at);
        }
        let (host, port) = text.rsplit_once(':')?;
        Some(SocketAddr::new(self.host_address(host, prefers_v6)?, port.parse().ok()?))
    }

    /// An address of this host, if possible of the preferred family.
    pub(crate) fn host_address(&self, name: &str, prefers_v6: bool) -> Option<IpAddr> {
        let addresses = &self.hosts.get(name)?.addresses;
        addresses.iter().find(|address| address.is_ipv6() == prefers_v6).or(addresses.first()).copied()
    }
}

fn addresses(line: &mut Line<'_>) -> Result<Vec<IpAddr>, TextError> {
    let mut addresses: Vec<IpAddr> = Vec::new();
    let at = line.position();
    while let Some(address) = line.accept_parsed() {
        addresses.push(address);
    }
    if line.peek().is_some_and(|text| text != "port") {
        return Err(TextError::new(line.position(), "expected an IP address"));
    }
    if addresses.iter().filter(|address| address.is_ipv4()).count() > 1 && line.peek().is_some() {
        return Err(TextError::new(at, "at most one address of each family"));
    }
    Ok(addresses)
}

fn key(digits: &str) -> Option<[u8; 16]> {
    if digits.len() != 32 || !digits.is_ascii() {
        return None;
    }
    let mut key = [0; 16];
    for (index, byte) in key.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&digits[2 * index..2 * index + 2], 16).ok()?;
    }
    Some(key)
}
