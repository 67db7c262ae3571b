//! What the witness learns of each turn and each frame: which servers have connections, and which of them transmit.

use spillway_rules::{FlowState, Verdict};
use spillway_wire::packet::tcp::Flags;
use spillway_wire::switch::{Flow, ServerId};

use super::cabling::Cable;
use super::frames::ends_of;
use super::sniffer::sniff;
use super::switch::Departure;
use super::world::World;

impl World {
    /// Records the connections that servers of a host have dropped, imported and accepted in a turn.
    pub(super) fn record_owners(&mut self, host: usize) {
        let directory = &mut self.hosts[host].rack.directory;
        directory.find_closed(|flow| self.witness.has_ended(flow));
        let foreign = std::mem::take(&mut directory.foreign);
        let imports = std::mem::take(&mut directory.imports);
        let accepted = std::mem::take(&mut directory.accepted);
        let id = |world: &World, server| world.fabric.cabling.server_id(Cable { host, server });
        for (flow, server) in foreign {
            if let Err(why) = self.witness.check_foreign(&flow, id(self, server)) {
                self.oracle.borrow_mut().violation(why);
            }
        }
        for (flow, server) in imports {
            let server = id(self, server);
            self.witness.record_import(flow, server, self.fabric.switch.flow(&flow).as_ref());
        }
        // With a SYN cookie no SYN-ACK shows shortly before that a server opens a connection.
        for (flow, server) in accepted {
            let server = id(self, server);
            if !self.is_of_another(&flow, server) {
                self.witness.record_opening(flow, server);
            }
        }
    }

    /// Checks that no other server transmits for the flow of a frame, as the client receives it.
    pub(super) fn check_sender(&mut self, source: Cable, frame: &[u8]) -> Result<(), String> {
        let cabling = &self.fabric.cabling;
        let Some((service, client)) =
            ends_of(frame).filter(|(from, _)| cabling.services(source.host).contains(from))
        else {
            return Ok(());
        };
        let (Ok(Some(seen)), Ok(flow)) = (sniff(frame), Flow::new(client.into(), service.into())) else {
            return Ok(());
        };
        let original = cabling.server_id(Cable { server: 0, ..source });
        let server = cabling.server_id(source);
        if self.plan.switch.servers_per_host == 1 || seen.header.flags.contains(Flags::RST) {
            return Ok(());
        }
        let is_new = seen.header.flags.contains(Flags::SYN);
        let entry = if server == original { None } else { self.fabric.switch.flow(&flow) };
        if is_new {
            // The switch drops the answer to a late copy of a SYN whose connection has moved.
            if self.is_of_another(&flow, server) {
                return Ok(());
            }
            self.witness.record_opening(flow, server);
        }
        self.witness.check_sent(&flow, server, original, entry.as_ref())
    }

    /// Checks that the switch lets only frames of a flow's owner pass, and frames of one server in each generation.
    pub(super) fn check_passed(&mut self, departure: &Departure) -> Result<(), String> {
        let cabling = &self.fabric.cabling;
        let lets_pass = matches!(departure.verdict, Verdict::FromOwner | Verdict::Switched | Verdict::Routed);
        let (Some((source, client)), Some(cable), true) = (
            ends_of(&departure.frame),
            cabling.at(departure.ingress),
            lets_pass && self.plan.switch.servers_per_host > 1,
        ) else {
            return Ok(());
        };
        let service = cabling.service_of(cable, source).unwrap_or(source);
        let Some(flow) = Flow::new(client.into(), service.into())
            .ok()
            .filter(|_| cabling.services(cable.host).contains(&service))
        else {
            return Ok(());
        };
        let original = cabling.server_id(Cable { server: 0, ..cable });
        let entry = self.fabric.switch.flow(&flow);
        self.witness.check_passed(flow, cabling.server_id(cable), original, entry.as_ref())
    }

    /// Whether the switch says that another server owns a flow.
    fn is_of_another(&self, flow: &Flow, server: ServerId) -> bool {
        let entry = self.fabric.switch.flow(flow);
        entry.is_some_and(|entry| entry.state == FlowState::Owned && entry.owner.server != server)
    }
}
