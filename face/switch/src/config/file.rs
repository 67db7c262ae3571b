//! Reads the text of a configuration, and reports all errors at once with their lines and columns.

mod address;
mod encapsulation;
mod ports;
mod servers;
mod services;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;

use spillway_config::{Any, Problem, Reading, Texts, Values, parse};
use spillway_rules::Mode;
use spillway_rules::config::{
    FLOWS_DEFAULT, FLOWS_MAX, OWN_ADDRESSES_MAX, OWNER_TIMEOUT_DEFAULT, OWNER_TIMEOUT_MAX, OWNER_TIMEOUT_MIN,
};
use spillway_values::{is_name, listen_address, parse_mac};
use spillway_wire::packet::ethernet::Mac;

use self::address::{endpoint, host_address};
use super::schema::{File, SwitchSection};
use super::{Port, SwitchConfig, mode_text};

/// Reads the text of a configuration.
///
/// # Errors
/// All errors of the text, at least one, ordered by line.
pub fn read_text(text: &str, reading: &Reading) -> Result<SwitchConfig, Vec<Problem>> {
    let file: File = parse(text).map_err(|problem| vec![problem])?;
    let mut reader = Reader {
        reading,
        values: Values::new(text),
        mode: Mode::Gateway,
        own_macs: BTreeMap::new(),
        own_addresses: BTreeSet::new(),
        used: BTreeMap::new(),
        has_broken_port: false,
        unclear_ports: BTreeSet::new(),
    };
    let config = reader.config(&file);
    let config = reader.values.finish(config)?;
    // If the host is not read, Ethernet addresses of interfaces and keys are missing, and the check would refuse them.
    if reading.reads_host {
        config.check().map_err(|error| vec![Problem::of_file(error.to_string())])?;
    }
    Ok(config)
}

/// A value with its position in the text.
type Placed<T> = (T, Range<usize>);

/// Converts the parsed file. A section with an error is left out of the result, which is then not used.
struct Reader<'a> {
    reading: &'a Reading,
    values: Values<'a>,
    mode: Mode,
    /// Names of the ports' interfaces by their Ethernet addresses.
    own_macs: BTreeMap<Mac, String>,
    own_addresses: BTreeSet<IpAddr>,
    /// Endpoints and places so far, each with what error messages call it, such as "a place of server b".
    used: BTreeMap<SocketAddr, String>,
    /// Whether a `[[port]]` section with an error was left out. A port's name that is not found is then not
    /// reported, because the port may be that one.
    has_broken_port: bool,
    /// Numbers of the ports whose `may_own` has an error. Checks against their `may_own` report nothing: they would
    /// only repeat that error.
    unclear_ports: BTreeSet<u8>,
}

impl Reader<'_> {
    fn config(&mut self, file: &File) -> SwitchConfig {
        self.mode = self.mode(&file.switch.mode).unwrap_or_default();
        let mut config = self.switch(&file.switch);
        let drafts = self.services(&file.service);
        config.ports = self.ports(&file.port, &drafts);
        config.stations = self.stations(&file.station, &config.ports);
        config.routes = self.routes(&file.prefix, &config.ports);
        config.servers = self.servers(&file.server, &drafts, &config);
        self.check_local_server(file, &config);
        self.check_tunnels(file, &config);
        config.services = self.with_servers(drafts, &file.server, &config);
        config
    }

    fn switch(&mut self, section: &SwitchSection) -> SwitchConfig {
        let control = self.control(&section.control);
        SwitchConfig {
            name: self.switch_name(&section.name).unwrap_or_else(|| "switch".to_owned()),
            mode: self.mode,
            addresses: self.addresses(&section.addresses, &control),
            control,
            owner_timeout: self
                .values
                .time(&section.owner_timeout, OWNER_TIMEOUT_MIN..=OWNER_TIMEOUT_MAX)
                .unwrap_or(OWNER_TIMEOUT_DEFAULT),
            flows_max: self.values.number(&section.flows_max, 1..=FLOWS_MAX).unwrap_or(FLOWS_DEFAULT),
            socket: self.values.path(&section.socket).unwrap_or_else(crate::default_socket),
            admin_group: self.values.parsed(&section.admin_group),
            metrics: self.metrics(&section.metrics),
            ports: Vec::new(),
            stations: Vec::new(),
            routes: Vec::new(),
            services: Vec::new(),
            servers: Vec::new(),
        }
    }

    /// The name is a directory below `/sys/fs/bpf`, where the kernel allows no dots.
    fn switch_name(&mut self, setting: &Any) -> Option<String> {
        let (name, span) = self.values.string(setting)?;
        if is_name(&name) && !name.contains('.') {
            return Some(name);
        }
        self.values.problem(span, "a switch's name has 1 to 64 letters, digits, '-' and '_'");
        None
    }

    fn mode(&mut self, setting: &Any) -> Option<Mode> {
        let (text, span) = self.values.string(setting)?;
        let mode = [Mode::Gateway, Mode::Host].into_iter().find(|mode| mode_text(*mode) == text);
        if mode.is_none() {
            let message =
                "give \"gateway\", between several interfaces, or \"host\", on a server's own interface";
            self.values.problem(span, message);
        }
        mode
    }

    fn metrics(&mut self, setting: &Any) -> Option<SocketAddr> {
        let (text, span) = self.values.string(setting)?;
        self.values.checked(&span, listen_address(&text))
    }

    fn control(&mut self, texts: &Texts) -> Vec<SocketAddr> {
        const NEXT: &str = "give the address of this host and the UDP port to which servers send control messages: \
                            control = [\"ADDRESS:PORT\"] in [switch]";
        let mut control: Vec<SocketAddr> = Vec::new();
        let Some(list) = texts else {
            self.values.problem(0..0, format!("control is missing: {NEXT}"));
            return control;
        };
        if list.get_ref().is_empty() {
            self.values.problem(list.span(), NEXT);
        }
        for text in list.get_ref() {
            let Some(address) = self.values.checked(&text.span(), endpoint(text.get_ref())) else { continue };
            if let Some(other) = control.iter().find(|other| other.is_ipv4() == address.is_ipv4()) {
                let message =
                    format!("{other} has the same address family: give one address of each at most");
                self.values.problem(text.span(), message);
            } else if let Some(other) = control.iter().find(|other| other.port() != address.port()) {
                let message = format!("give both addresses the same port, as in {other}");
                self.values.problem(text.span(), message);
            }
            control.push(address);
        }
        control
    }

    fn addresses(&mut self, texts: &Texts, control: &[SocketAddr]) -> Vec<IpAddr> {
        let mut addresses: Vec<IpAddr> = control.iter().map(SocketAddr::ip).collect();
        for text in texts.iter().flat_map(|list| list.get_ref()) {
            let found = self.values.checked(&text.span(), host_address(text.get_ref()));
            addresses.extend(found.filter(|address| !addresses.contains(address)));
        }
        if let Some(list) = texts
            && addresses.len() > OWN_ADDRESSES_MAX
        {
            let message = format!("{} addresses; a switch has at most {OWN_ADDRESSES_MAX}", addresses.len());
            self.values.problem(list.span(), message);
        }
        self.own_addresses = addresses.iter().copied().collect();
        addresses
    }

    /// Whether the servers of a port may own a service; true also if the port's `may_own` has an error.
    fn may_own_service(&self, port: &Port, service: u8) -> bool {
        port.may_own.contains(&service) || self.unclear_ports.contains(&port.number)
    }

    /// A text that must be given. `head`: where the section begins in the file; `missing`: the error if the text is not
    /// given, with the next step.
    fn required(&mut self, setting: &Any, head: &Range<usize>, missing: &str) -> Option<Placed<String>> {
        if setting.is_none() {
            self.values.problem(head.clone(), missing);
        }
        self.values.string(setting)
    }

    /// An address and TCP port that must be given, and must not be the switch's own in gateway mode. `what`: how error
    /// messages call it, `endpoint` or `place`.
    fn service_address(
        &mut self,
        setting: &Any,
        head: &Range<usize>,
        what: &str,
    ) -> Option<Placed<SocketAddr>> {
        let missing = format!("address is missing: give the address and TCP port of the {what}");
        let (text, span) = self.required(setting, head, &missing)?;
        let address = self.values.checked(&span, endpoint(&text))?;
        // In host mode the switch's host is a server.
        if self.mode == Mode::Gateway && self.own_addresses.contains(&address.ip()) {
            let message =
                format!("{} is an address of the switch itself: give one of a server", address.ip());
            self.values.problem(span, message);
            return None;
        }
        Some((address, span))
    }

    fn mac(&mut self, setting: &Any, head: &Range<usize>, missing: &str) -> Option<Placed<Mac>> {
        let (text, span) = self.required(setting, head, missing)?;
        let mac = self.values.checked(&span, parse_mac(&text))?;
        if self.mode == Mode::Gateway
            && let Some(interface) = self.own_macs.get(&mac)
        {
            let message =
                format!("{mac} is the address of this host's interface {interface}, not of another host");
            self.values.problem(span, message);
            return None;
        }
        Some((mac, span))
    }
}

#[cfg(test)]
mod tests;
