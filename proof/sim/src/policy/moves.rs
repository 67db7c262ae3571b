//! Moves of connections: to a chosen helper, back to the server, and away from a dead helper.

use std::time::Duration;

use spillway_policy::{Carrier, Choice, Decision};

use super::event::WorldEvent;
use super::helper::Content;
use super::plan::Fault;
use super::planted_fault::PlantedFault;
use super::process::CarrierHost;
use super::world::World;

/// A session detects a dead helper after one to two times this timeout.
const SILENCE_TIMEOUT: Duration = Duration::from_millis(100);

impl World {
    pub(super) fn execute(&mut self, process: u32, connection: u32, carrier: Carrier) {
        self.checker.ordered(self.now, process, connection, carrier);
        if self.planted == Some(PlantedFault::Twice) && self.rng.chance(1, 20) {
            self.checker.ordered(self.now, process, connection, carrier);
        }
        self.add_to_hash(u64::from(connection) << 8 | u64::from(carrier == Carrier::Helped));
        match carrier {
            Carrier::Direct => self.move_to_server(connection),
            Carrier::Helped => {
                if !self.move_to_helper(connection) {
                    let epoch = self.connections[connection as usize].epoch;
                    self.agenda.add(self.now + SILENCE_TIMEOUT, WorldEvent::Refused(connection, epoch));
                }
            }
        }
    }

    /// Moves a connection to the less loaded of two random helpers. Returns false if no helper was chosen, or
    /// if the chosen one accepts no clients.
    pub(super) fn move_to_helper(&mut self, index: u32) -> bool {
        let rng = &mut self.rng;
        let mut random = || rng.unit();
        let mut choice = Choice::new(self.helpers.len(), 2, &mut random);
        let candidates: Vec<usize> = choice.helpers_asked().collect();
        for (number, helper) in candidates.into_iter().enumerate() {
            if let Some(load) = self.helpers[helper].load(self.now) {
                choice.answered(number, load);
            }
        }
        let (Decision::Lowest(number) | Decision::Unanswered(number)) = choice.decide(&mut random) else {
            return false;
        };
        let Some(helper) = choice.helper(number).filter(|helper| self.helpers[*helper].accepts_clients())
        else {
            return false;
        };
        self.helpers[helper].clients += 1;
        self.start_move(index, CarrierHost::Helper(helper as u16));
        true
    }

    pub(super) fn move_to_server(&mut self, index: u32) {
        self.start_move(index, CarrierHost::Server);
    }

    fn start_move(&mut self, index: u32, carrier_host: CarrierHost) {
        let connection = &mut self.connections[index as usize];
        if let CarrierHost::Helper(old) = connection.carrier_host {
            let old = &mut self.helpers[usize::from(old)];
            old.clients = old.clients.saturating_sub(1);
        }
        (connection.carrier_host, connection.is_moving) = (carrier_host, true);
        connection.epoch += 1;
        self.transmit(index, Content::Connect);
    }

    pub(super) fn inject_fault(&mut self, fault: Fault) {
        match fault {
            Fault::Dies(helper) => self.kill(helper),
            Fault::AllDie => (0..self.plan.helpers).for_each(|helper| self.kill(helper)),
            Fault::AllRestart => self.helpers.iter_mut().for_each(|helper| helper.is_alive = true),
        }
    }

    fn kill(&mut self, helper: u16) {
        self.helpers[usize::from(helper)].die();
        self.server.lose_link(helper);
        for (index, connection) in self.connections.iter().enumerate() {
            if connection.carrier_host == CarrierHost::Helper(helper) {
                let detected_after =
                    SILENCE_TIMEOUT + Duration::from_nanos(self.rng.below(SILENCE_TIMEOUT.as_nanos() as u64));
                self.agenda
                    .add(self.now + detected_after, WorldEvent::CarrierLost(index as u32, connection.epoch));
            }
        }
    }
}
