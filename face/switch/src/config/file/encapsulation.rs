//! Servers of other racks, whose packets of moved flows go through a tunnel.

use std::ops::Range;

use spillway_config::Any;
use spillway_rules::Mode;
use spillway_values::parse_mac;
use spillway_wire::packet::ethernet::Mac;
use toml::Spanned;

use super::Reader;
use crate::config::schema::{File, ServerSection};
use crate::config::{Encapsulation, SwitchConfig};

impl Reader<'_> {
    /// `mac`: the server's own Ethernet address, which is the next hop if none is given. `None` also after an error.
    pub(super) fn encapsulation(&mut self, section: &ServerSection, mac: Mac) -> Option<Encapsulation> {
        let is_encapsulated = self.values.flag(&section.encapsulate);
        if is_encapsulated != Some(true) {
            let is_clear = is_encapsulated.is_some() || section.encapsulate.is_none();
            if section.next_hop.is_some() && is_clear {
                let message = "next_hop needs encapsulate = true: without a tunnel a router sends the packets of moved \
                               connections back here, because it does not know where the service's address is now";
                self.values.problem(span_of(&section.next_hop), message);
            }
            return None;
        }
        if self.mode == Mode::Gateway {
            let message = "encapsulate needs mode = \"host\": a gateway has a port for each segment with servers, and no tunnels";
            self.values.problem(span_of(&section.encapsulate), message);
            return None;
        }
        Some(Encapsulation { next_hop: self.next_hop(&section.next_hop, mac)? })
    }

    fn next_hop(&mut self, setting: &Any, mac: Mac) -> Option<Mac> {
        if setting.is_none() {
            return Some(mac);
        }
        let (text, span) = self.values.string(setting)?;
        let next_hop = self.values.checked(&span, parse_mac(&text))?;
        let Some(interface) = self.own_macs.get(&next_hop) else { return Some(next_hop) };
        let message = format!(
            "{next_hop} is the address of this host's interface {interface}: give that of the router on the way to the \
             server (`ip neigh` lists it)"
        );
        self.values.problem(span, message);
        None
    }

    /// In host mode, checks tunnels against this host's own server, at whose address they begin, if the interface exists.
    pub(super) fn check_tunnels(&mut self, file: &File, config: &SwitchConfig) {
        let Some(local) = config.local_server() else { return };
        // A server whose section has errors was left out.
        if file.server.len() != config.servers.len() {
            return;
        }
        let tunnels =
            file.server.iter().zip(&config.servers).filter(|(_, server)| server.encapsulation.is_some());
        for (section, server) in tunnels {
            let problem = if server.name == local.name {
                format!("{} is this host's own server: remove encapsulate and next_hop", server.name)
            } else if server.address.is_ipv4() != local.address.is_ipv4() {
                format!(
                    "a tunnel has addresses of one family: {} has {}, but this host's own server {} has {}; give both \
                     addresses of one family",
                    server.name, server.address, local.name, local.address
                )
            } else {
                continue;
            };
            self.values.problem(span_of(&section.get_ref().encapsulate), problem);
        }
    }
}

fn span_of(setting: &Any) -> Range<usize> {
    setting.as_ref().map_or(0..0, Spanned::span)
}
