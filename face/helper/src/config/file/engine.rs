//! Reads the engine, and checks addresses that an engine cannot have.

use std::net::SocketAddr;
use std::ops::Range;
use std::time::Duration;

use super::super::schema::{Any, HelperSection, XdpSection};
use super::super::{Engine, XdpConfig, parse_ports};
use super::Reader;
use crate::engine::AddressProblem;

impl Reader<'_> {
    /// Reads the engine, and remembers it for the checks of addresses.
    pub(super) fn engine(&mut self, section: &HelperSection) -> Engine {
        let engines = Engine::ALL.map(|engine| (engine.name(), engine));
        let engine = self.choice(&section.engine, &engines).unwrap_or_default();
        self.engine = engine;
        if let Some(setting) = &section.engine
            && engine == Engine::Xdp
            && section.interface.is_none()
        {
            self.problem(setting.span(), "xdp needs interface = \"IF\"; `ip link` lists them");
        }
        engine
    }

    pub(super) fn interface(&mut self, setting: &Any) -> Option<String> {
        let (text, span) = self.string(setting)?;
        // IFNAMSIZ of <net/if.h> is 16, with a zero byte.
        if (1..16).contains(&text.len()) {
            return Some(text);
        }
        self.problem(span, "the name of an interface has 1 to 15 bytes; `ip link` lists them");
        None
    }

    pub(super) fn xdp(&mut self, section: &XdpSection) -> XdpConfig {
        let default = XdpConfig::default();
        let ports =
            self.string(&section.ports).and_then(|(text, span)| self.checked(&span, parse_ports(&text)));
        let frames = self.number(&section.frames, 64..=65_536).and_then(|frames| u32::try_from(frames).ok());
        if let (Some(setting), Some(frames)) = (&section.frames, frames)
            && !frames.is_power_of_two()
        {
            self.problem(setting.span(), "give a power of two, such as 4096");
        }
        XdpConfig {
            ports: ports.unwrap_or(default.ports),
            frames: frames.unwrap_or(default.frames),
            busy_poll: self
                .time(&section.busy_poll, Duration::ZERO..=Duration::from_secs(1))
                .unwrap_or(default.busy_poll),
        }
    }

    /// Checks a listening address for the engine.
    pub(super) fn check_listener(&mut self, address: SocketAddr, span: &Range<usize>) {
        if self.engine == Engine::Xdp
            && let Some(problem) = AddressProblem::of(address)
        {
            self.problem(span.clone(), problem.to_string());
        }
    }

    /// Checks a server's address for the engine.
    pub(super) fn check_server(&mut self, address: SocketAddr, setting: &Any) {
        if self.engine == Engine::Xdp
            && let Some(setting) = setting
            && address.ip().to_canonical().is_loopback()
        {
            let message =
                "the engine xdp does not reach this host: use the engine sockets for a server on loopback";
            self.problem(setting.span(), message);
        }
    }
}
