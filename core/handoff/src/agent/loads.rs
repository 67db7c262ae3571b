//! Requests the loads of the other servers, as the switch's table of owners states them.

use core::time::Duration;

use spillway_transport::Time;
use spillway_wire::switch::{Answer, FlowState, Request, Status};

use super::Agent;
use crate::loads::PeerLoad;

/// Maximum number of owners that the agent asks for after a heartbeat; the next ones follow after the next heartbeat.
const LISTS_MAX: u64 = 8;

impl Agent {
    /// From now on the agent asks the switch for the loads of the other servers after each heartbeat: *list* of
    /// `docs/wire.md`, for at most eight owners at a time.
    pub fn watch_loads(&mut self) {
        self.loads.is_watched = true;
    }

    /// The next load that the switch has stated. Call it until it returns `None`, after datagrams were handled.
    pub fn poll_load(&mut self) -> Option<PeerLoad> {
        self.loads.pop()
    }

    pub(super) fn request_loads(&mut self, now: Time) {
        if !self.loads.is_watched {
            return;
        }
        let owners = self.settings.peers.len() as u64;
        for _ in 0..owners.min(LISTS_MAX) {
            let index = self.loads.next_index % owners;
            self.loads.next_index = index + 1;
            let service = self.settings.services[0].endpoint;
            let sequence = self.request(now, Request::List { service, index });
            self.loads.record_sent(sequence);
        }
    }

    pub(super) fn handle_listed(&mut self, sequence: u64, answer: &Answer) {
        if !self.loads.take(sequence) || answer.status != Status::Ok || answer.state != FlowState::Owned {
            return;
        }
        let server = answer.owner.and_then(|owner| self.settings.server_with(owner.mac()));
        if let Some(server) = server.filter(|server| *server != self.settings.id) {
            let age = Duration::from_millis(u64::from(answer.lifetime_ms));
            let (load, free_places) = (answer.load, answer.free_places);
            self.loads.push(PeerLoad { server, load, free_places, age });
        }
    }
}
