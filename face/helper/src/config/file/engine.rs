//! Reads the settings of the engine, and checks whether it can use the configured addresses.

use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::time::Duration;

use spillway_config::{Any, Values};
use spillway_xdp::{AdapterError, Interface, check_reserved};

use super::super::schema::{HelperSection, XdpSection};
use super::super::{
    DEFER_INTERRUPTS_MAX, Engine, SeparateAddress, XdpConfig, parse_ports, parse_separate_address,
};
use crate::engine::{AddressProblem, unreachable_text};

/// Reads the engine's settings. Keeps those on which the checks of addresses depend: call [`engine`](Self::engine), then
/// [`interface`](Self::interface), then [`xdp`](Self::xdp), then the checks.
pub(super) struct EngineReader {
    /// Whether this host is the helper's.
    reads_host: bool,
    engine: Engine,
    /// The interface of the engine `xdp`, if it was looked up.
    found: Option<Found>,
    /// The helper's own address on the engine `xdp`.
    separate: Option<SeparateAddress>,
}

impl EngineReader {
    pub(super) fn new(reads_host: bool) -> EngineReader {
        EngineReader { reads_host, engine: Engine::default(), found: None, separate: None }
    }

    /// Reads the engine's name, and keeps it for the checks of addresses.
    pub(super) fn engine(&mut self, values: &mut Values<'_>, section: &HelperSection) -> Engine {
        let engines = Engine::ALL.map(|engine| (engine.name(), engine));
        let engine = values.choice(&section.engine, &engines).unwrap_or_default();
        self.engine = engine;
        if let Some(setting) = &section.engine
            && engine == Engine::Xdp
            && section.interface.is_none()
        {
            values.problem(setting.span(), "xdp needs interface = \"IF\"; `ip link` lists them");
        }
        engine
    }

    /// Reads the interface's name. If the engine is `xdp` on this host, also looks the interface up.
    pub(super) fn interface(&mut self, values: &mut Values<'_>, setting: &Any) -> Option<String> {
        let (text, span) = values.string(setting)?;
        // IFNAMSIZ of <net/if.h> is 16, with a zero byte.
        if !(1..16).contains(&text.len()) {
            values.problem(span, "the name of an interface has 1 to 15 bytes; `ip link` lists them");
            return None;
        }
        if self.is_xdp_of_this_host() {
            self.found = values.checked(&span, find(&text));
        }
        Some(text)
    }

    /// Whether the engine is `xdp`, and this host is the helper's.
    fn is_xdp_of_this_host(&self) -> bool {
        self.engine == Engine::Xdp && self.reads_host
    }

    pub(super) fn xdp(&mut self, values: &mut Values<'_>, section: &XdpSection) -> XdpConfig {
        let default = XdpConfig::default();
        self.separate = self.separate_address(values, section);
        let ports = values.string(&section.ports).and_then(|(text, span)| {
            let ports = values.checked(&span, parse_ports(&text))?;
            if self.is_xdp_of_this_host() && self.separate.is_none() {
                values.checked(&span, check_reserved(&ports));
            }
            Some(ports)
        });
        let frames = values.number::<u32>(&section.frames, 64..=65_536);
        if let (Some(setting), Some(frames)) = (&section.frames, frames)
            && !frames.is_power_of_two()
        {
            values.problem(setting.span(), "give a power of two, such as 4096");
        }
        let busy_poll = values
            .time(&section.busy_poll, Duration::ZERO..=Duration::from_secs(1))
            .unwrap_or(default.busy_poll);
        let defer_interrupts = values
            .time(&section.defer_interrupts, Duration::ZERO..=DEFER_INTERRUPTS_MAX)
            .unwrap_or(default.defer_interrupts);
        if let Some(setting) = &section.defer_interrupts
            && !defer_interrupts.is_zero()
            && !busy_poll.is_zero()
        {
            values.problem(setting.span(), "give only one of busy_poll and defer_interrupts");
        }
        XdpConfig {
            separate: self.separate,
            ports: ports.unwrap_or(default.ports),
            frames: frames.unwrap_or(default.frames),
            busy_poll,
            defer_interrupts,
            configure_interface: values
                .flag(&section.configure_interface)
                .unwrap_or(default.configure_interface),
        }
    }

    fn separate_address(&self, values: &mut Values<'_>, section: &XdpSection) -> Option<SeparateAddress> {
        let gateway = values.string(&section.gateway);
        let Some((text, span)) = values.string(&section.address) else {
            if let Some((_, span)) = gateway {
                values.problem(span, "gateway is only for address; a shared address has the kernel's routes");
            }
            return None;
        };
        if self.engine != Engine::Xdp {
            values.problem(span, "address needs engine = \"xdp\": kernel sockets cannot have it");
            return None;
        }
        let (ip, prefix) = values.checked(&span, parse_separate_address(&text))?;
        let mut separate = SeparateAddress { ip, prefix, gateway: None };
        let Some((text, span)) = gateway else { return Some(separate) };
        let problem = |what: &str| Err(format!("{text}: {what}"));
        let gateway = match text.parse() {
            Err(_) => problem("give the router's IPv4 address"),
            Ok(gateway) if gateway == ip => problem("give the router's address, not the helper's own"),
            Ok(gateway) if !separate.is_on_link(gateway) => {
                problem(&format!("the router must be in the network of address, {ip}/{prefix}"))
            }
            Ok(gateway) => Ok(gateway),
        };
        separate.gateway = values.checked(&span, gateway);
        Some(separate)
    }

    /// Checks whether the engine can listen at this address, which `span` gives.
    pub(super) fn check_listener(&self, values: &mut Values<'_>, address: SocketAddr, span: &Range<usize>) {
        if self.engine == Engine::Xdp
            && let Some(problem) = AddressProblem::of(address)
        {
            values.problem(span.clone(), problem.to_string());
        } else if let Some(separate) = self.separate {
            if address.ip() != IpAddr::from(separate.ip) {
                values.problem(span.clone(), AddressProblem::NotSeparate(separate.ip).to_string());
            }
        } else if let Some(Found { interface, addresses }) = &self.found
            && !addresses.contains(&address.ip())
        {
            let (interface, own) = (interface.clone(), addresses.clone());
            values.problem(span.clone(), AddressProblem::NotOfInterface { interface, own }.to_string());
        }
    }

    /// Checks whether the engine reaches a server at this address, which `setting` gives.
    pub(super) fn check_server(&self, values: &mut Values<'_>, address: SocketAddr, setting: &Any) {
        if self.engine == Engine::Xdp
            && let Some(setting) = setting
            && address.ip().to_canonical().is_loopback()
        {
            let message =
                "the engine xdp does not reach this host: use the engine sockets for a server on loopback";
            values.problem(setting.span(), message);
        } else if let (Some(separate), Some(setting)) = (self.separate, setting)
            && !separate.reaches(address.ip())
        {
            values.problem(setting.span(), unreachable_text(&separate, address.ip()));
        }
    }
}

/// The interface of the engine `xdp`, with its present addresses.
struct Found {
    interface: String,
    addresses: Vec<IpAddr>,
}

/// Looks an interface up. The error has the next step.
fn find(name: &str) -> Result<Found, String> {
    let interface = Interface::find(name).map_err(|error| error.to_string())?;
    if !interface.is_up {
        return Err(AdapterError::Down(name.to_owned()).to_string());
    }
    let addresses = interface.addresses().map_err(|error| format!("cannot list its addresses: {error}"))?;
    Ok(Found { interface: interface.name, addresses })
}
