//! Control messages that no agent sends, as a server of another make would: *hold* without *prepare*, and *list*. The
//! answer to *list* is compared with the switch's table.

use std::time::Duration;

use spillway_rules::{FlowState, Verdict};
use spillway_wire::switch::{Body, Flow, Kind, Message, Request, Site, Status, View};

use super::cabling::Cable;
use super::frames::{datagram, datagram_in};
use super::switch::Departure;
use super::world::World;

/// Lifetime of a move by *hold*, milliseconds: the client's packets are lost meanwhile, because no target waits for them.
const HOLD_MS_MAX: u64 = 500;
/// Owners that a *list* asks for: one more than a service has.
const OWNERS: u64 = 4;

impl World {
    /// A server sends *hold* for a flow that it owns, if there is one. Returns how long this may block a connection.
    pub(super) fn hold_directly(&mut self, cable: Cable) -> Duration {
        let (cabling, switch) = (&self.fabric.cabling, &self.fabric.switch);
        let id = cabling.server_id(cable);
        let flows = switch.flows();
        let mut own = flows.iter().filter(|view| view.state == FlowState::Owned && view.owner.server == id);
        let others = (0..self.plan.switch.servers_per_host).filter(|other| *other != cable.server);
        let target = self.rng.pick(&others.collect::<Vec<_>>());
        let target = Cable { server: target, ..cable };
        let Some((view, flow)) =
            own.find_map(|view| Some((view, Flow::new(view.client, view.service).ok()?)))
        else {
            return Duration::ZERO;
        };
        let service = cabling.services(cable.host).iter().position(|end| *end == flow.service().into());
        let place = cabling.places(target)[service.unwrap_or_default()];
        let Some(site) = Site::new(place.into(), cabling.address(target).1) else { return Duration::ZERO };
        let lifetime_ms = self.rng.range(1, HOLD_MS_MAX) as u32; // fits: below a second
        let replaces = view.generation;
        self.send_request(cable, Request::Hold { flow, replaces, target: site, lifetime_ms });
        self.holds += 1;
        Duration::from_millis(lifetime_ms.into())
    }

    /// A server, which may have restarted, asks for all owners of a service of its host.
    pub(super) fn list_owners(&mut self, cable: Cable) {
        let service = self.fabric.cabling.services(cable.host)[0].into();
        for index in 0..OWNERS {
            self.send_request(cable, Request::List { service, index });
        }
    }

    /// Sends a request with the server's key, and with a sequence from the server's clock, as its agent takes them.
    fn send_request(&mut self, cable: Cable, request: Request) {
        let (cabling, host) = (&self.fabric.cabling, &self.hosts[cable.host]);
        let server_now = host.rack.server_time(cable.server, host.clock.read(self.now));
        // Several requests may be sent at the same time.
        self.raw_requests += 1;
        let message = Message {
            sender: cabling.server_id(cable),
            sequence: server_now.as_nanos() + self.raw_requests % (2 * OWNERS),
            epoch: self.fabric.switch.epoch(),
            body: Body::Request(request),
        };
        let payload = cabling.key(cable).emit(&message);
        let frame = datagram(cabling.control_ends(cable), &payload[..]);
        self.send_up(self.fabric.cabling.port_of(cable), &frame);
    }

    /// Compares an answer to *list*, which leaves the switch now, with the switch's table.
    pub(super) fn check_list(&mut self, departure: &Departure) -> Result<(), String> {
        if departure.verdict != Verdict::Answered {
            return Ok(());
        }
        let Some((_, payload)) = datagram_in(&departure.frame) else { return Ok(()) };
        let Ok(view) = View::of(payload) else { return Ok(()) };
        let Some(cable) = self.fabric.cabling.at(departure.port) else { return Ok(()) };
        let is_listed = matches!(view.status(), Ok(Status::Ok | Status::NoOwner));
        if view.kind() != Ok(Kind::List) || !is_listed || view.epoch() != self.fabric.switch.epoch() {
            return Ok(());
        }
        self.lists += 1;
        let all = self.fabric.switch.owners(self.now);
        let mut of_host = all.iter().filter(|owner| {
            let at = self.fabric.cabling.cable_of(owner.server);
            owner.service.is_some() && at.is_some_and(|at| at.host == cable.host)
        });
        let expected = of_host.nth(view.generation() as usize); // fits: a few
        let expected = expected.and_then(|owner| {
            let (_, mac) = self.fabric.cabling.address(self.fabric.cabling.cable_of(owner.server)?);
            Some((mac, if owner.is_silent { FlowState::None } else { FlowState::Owned }))
        });
        let listed = view.owner().map(|site| (site.mac(), view.state().unwrap_or(FlowState::None)));
        if listed == expected {
            return Ok(());
        }
        Err(format!(
            "owner {} of host {} is listed as {listed:?}, but is {expected:?}",
            view.generation(),
            cable.host
        ))
    }
}
