//! The switch with its cables, and the paths beside it on which servers of one host send each other states.

use std::collections::BTreeMap;

use spillway_transport::Time;

use super::cabling::{Cable, Cabling};
use super::path::{Arrival, Path};
use super::plan::Plan;
use super::switch::SimulatedSwitch;
use crate::rng::Rng;

/// One direction of a cable, by its port, or between two servers, by their ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leg {
    Up(usize),
    Down(usize),
    Between(usize, usize),
}

pub(crate) struct Fabric {
    pub(crate) cabling: Cabling,
    pub(crate) switch: SimulatedSwitch,
    /// To the switch and from the switch, by port.
    up: Vec<Path>,
    down: Vec<Path>,
    /// From one server to another one of its host, by their ports. If datagrams pass the switch, only cuts matter.
    between: BTreeMap<(usize, usize), Path>,
}

impl Fabric {
    pub(crate) fn draw(now: Time, plan: &Plan, rng: &mut Rng) -> Fabric {
        let per_host = plan.switch.servers_per_host;
        let cabling = Cabling::new(
            plan.hosts,
            per_host,
            plan.rogue.is_some(),
            plan.switch.imports_at_places,
            plan.family,
        );
        let switch =
            SimulatedSwitch::new(now, cabling.config(plan.switch.flows_max, plan.switch.owner_timeout));
        let (mut up, mut down, mut between) = (Vec::new(), Vec::new(), BTreeMap::new());
        for _ in 0..cabling.ports() {
            let [to_switch, from_switch] = plan.draw_paths(rng);
            up.push(Path::new(to_switch, rng.fork()));
            down.push(Path::new(from_switch, rng.fork()));
        }
        for source in 0..plan.hosts * per_host {
            let host = source / per_host;
            for target in (host * per_host..(host + 1) * per_host).filter(|target| *target != source) {
                between.insert((source, target), Path::new(plan.draw_transfers(rng), rng.fork()));
            }
        }
        Fabric { cabling, switch, up, down, between }
    }

    /// A path; `None` between servers of two hosts.
    pub(crate) fn path(&mut self, leg: Leg) -> Option<&mut Path> {
        match leg {
            Leg::Up(port) => self.up.get_mut(port),
            Leg::Down(port) => self.down.get_mut(port),
            Leg::Between(source, target) => self.between.get_mut(&(source, target)),
        }
    }

    /// Whether nothing passes from one server to another one of its host.
    pub(crate) fn is_cut_between(&self, from: Cable, to: Cable) -> bool {
        let ports = (self.cabling.port_of(from), self.cabling.port_of(to));
        self.between.get(&ports).is_some_and(|path| path.is_cut)
    }

    /// Sends bytes over a path. Returns the copies that will arrive.
    pub(crate) fn send(&mut self, now: Time, leg: Leg, bytes: &[u8]) -> Vec<Arrival> {
        let mut arrivals = Vec::new();
        if let Some(path) = self.path(leg) {
            path.send(now, bytes, |arrival| arrivals.push(arrival));
        }
        arrivals
    }

    pub(crate) fn paths(&self) -> impl Iterator<Item = &Path> {
        self.up.iter().chain(&self.down).chain(self.between.values())
    }

    pub(crate) fn paths_mut(&mut self) -> impl Iterator<Item = &mut Path> {
        self.up.iter_mut().chain(&mut self.down).chain(self.between.values_mut())
    }
}
