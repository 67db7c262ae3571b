//! The switch between all hosts: the rules of `core/rules`, on a machine that restarts and stalls.

use std::collections::VecDeque;
use std::time::Duration;

use spillway_rules::{Action, Config, FlowView, OwnerView, PortId, Switch, Verdict};
use spillway_transport::Time;
use spillway_wire::packet::tcp::Flags;
use spillway_wire::switch::{Flow, ServerId};

use super::cabling::port_id;
use super::frames::{ends_of, flags_of};

/// Start of the world in nanoseconds since 1970, as the switch's epochs count.
const WORLD_STARTED_NS: u64 = 1_700_000_000_000_000_000;
/// Frames that wait while the switch is paused; further ones are lost.
const QUEUE_MAX: usize = 1024;

/// A frame that leaves the switch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Departure {
    /// The port through which it leaves.
    pub(crate) port: usize,
    /// The port on which it arrived.
    pub(crate) ingress: usize,
    pub(crate) verdict: Verdict,
    pub(crate) frame: Vec<u8>,
}

/// A switch with its faults.
#[derive(Debug)]
pub(crate) struct SimulatedSwitch {
    rules: Switch,
    config: Config,
    /// All frames are lost until this time.
    down_until: Time,
    /// Frames wait until this time.
    paused_until: Time,
    queue: VecDeque<(usize, Vec<u8>)>,
    /// Restarts that lost all entries.
    pub(crate) empty_restarts: u64,
    /// Planted fault [`PlantedFault::PassStranger`](super::planted_fault::PlantedFault::PassStranger): frames of servers that do
    /// not own the flow pass.
    pub(crate) passes_strangers: bool,
    /// Why the switch dropped the last frame that it dropped.
    last_drop: Option<Verdict>,
    /// Frames of each verdict before the last restart that lost all entries.
    counted: [u64; Verdict::ALL.len()],
    /// Flows whose entry a fresh SYN has ended, with the owner, since the last [`take_ended`](Self::take_ended).
    ended: Vec<(Flow, ServerId)>,
}

impl SimulatedSwitch {
    pub(crate) fn new(now: Time, config: Config) -> SimulatedSwitch {
        let rules = start(now, &config);
        SimulatedSwitch {
            rules,
            config,
            down_until: Time::ZERO,
            paused_until: Time::ZERO,
            queue: VecDeque::new(),
            empty_restarts: 0,
            ended: Vec::new(),
            passes_strangers: false,
            last_drop: None,
            counted: [0; Verdict::ALL.len()],
        }
    }

    /// Restarts without entries after an outage.
    pub(crate) fn restart_empty(&mut self, now: Time, outage: Duration) {
        for (counted, (_, count)) in self.counted.iter_mut().zip(self.rules.counters().iter()) {
            *counted += count;
        }
        self.rules = start(now, &self.config);
        self.empty_restarts += 1;
        self.restart_with_state(now, outage);
    }

    /// Restarts with its entries after an outage, as a program whose maps are pinned.
    pub(crate) fn restart_with_state(&mut self, now: Time, outage: Duration) {
        self.down_until = self.down_until.max(now + outage);
        self.queue.clear();
    }

    /// Forwards nothing until `until`; frames wait.
    pub(crate) fn pause(&mut self, until: Time) {
        self.paused_until = self.paused_until.max(until);
    }

    /// Ends outages and pauses.
    pub(crate) fn end_faults(&mut self, now: Time) {
        self.down_until = self.down_until.min(now);
        self.paused_until = self.paused_until.min(now);
    }

    /// A frame arrives at a port. Returns what leaves.
    pub(crate) fn arrive(&mut self, now: Time, ingress: usize, frame: Vec<u8>) -> Vec<Departure> {
        if now < self.down_until {
            return Vec::new();
        }
        if now < self.paused_until {
            if self.queue.len() < QUEUE_MAX {
                self.queue.push_back((ingress, frame));
            }
            return Vec::new();
        }
        self.forward(now, ingress, frame)
    }

    /// The next frame that has waited for the end of a pause.
    pub(crate) fn take_waiting(&mut self, now: Time) -> Option<Vec<Departure>> {
        if now < self.paused_until {
            return None;
        }
        let (ingress, frame) = self.queue.pop_front()?;
        Some(self.arrive(now, ingress, frame))
    }

    /// Removes and returns the flows whose entry a fresh SYN has ended: both ends had acknowledged the other one's FIN. Until the
    /// owner has closed its connection, the switch drops what it sends.
    pub(crate) fn take_ended(&mut self) -> Vec<(Flow, ServerId)> {
        std::mem::take(&mut self.ended)
    }

    fn forward(&mut self, now: Time, ingress: usize, mut frame: Vec<u8>) -> Vec<Departure> {
        let opened = opening_flow(&frame).and_then(|flow| Some((flow, self.flow(&flow)?.owner.server)));
        let decision = self.rules.handle_frame(now, port_id(ingress), &mut frame);
        self.ended.extend(opened.filter(|(flow, _)| self.flow(flow).is_none()));
        let verdict = decision.verdict;
        let departure =
            |port: PortId, frame| Departure { port: usize::from(port.number()), ingress, verdict, frame };
        match decision.action {
            Action::Drop if self.passes_strangers && verdict == Verdict::DropNotOwner => {
                let station = self.config.stations.iter().find(|station| frame.starts_with(&station.mac.0));
                let passed = |port: PortId| Departure {
                    verdict: Verdict::FromOwner,
                    ..departure(port, frame.clone())
                };
                station.map(|station| passed(station.port)).into_iter().collect()
            }
            Action::Pass | Action::Drop => {
                self.last_drop = Some(verdict);
                Vec::new()
            }
            Action::To(port) => vec![departure(port, frame)],
            Action::Answer => vec![departure(port_id(ingress), frame)],
            Action::Flood => {
                let ports =
                    self.config.ports.iter().map(|port| port.id).filter(|port| *port != port_id(ingress));
                ports.map(|port| departure(port, frame.clone())).collect()
            }
        }
    }

    /// A flow's entry.
    pub(crate) fn flow(&self, flow: &Flow) -> Option<FlowView> {
        self.rules.flow(flow.client(), flow.service())
    }

    /// All entries.
    pub(crate) fn flows(&self) -> Vec<FlowView> {
        self.rules.flows()
    }

    /// All owners, in the order of their ids.
    pub(crate) fn owners(&self, now: Time) -> Vec<OwnerView> {
        self.rules.owners(now)
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.rules.epoch()
    }

    /// Why the switch has dropped a frame since the last call.
    pub(crate) fn take_drop(&mut self) -> Option<Verdict> {
        self.last_drop.take()
    }

    /// Frames with this verdict.
    pub(crate) fn count(&self, verdict: Verdict) -> u64 {
        self.counted[verdict as usize] + self.rules.counters().of(verdict)
    }
}

/// # Panics
/// If the configuration is invalid; a test of `cabling` checks all.
fn start(now: Time, config: &Config) -> Switch {
    Switch::new(config.clone(), WORLD_STARTED_NS + now.as_nanos()).expect("the plan's configuration is valid")
}

/// The flow of a client's SYN.
fn opening_flow(frame: &[u8]) -> Option<Flow> {
    let flags = flags_of(frame)?;
    let is_opening = flags.contains(Flags::SYN) && !flags.contains(Flags::ACK);
    let (client, service) = ends_of(frame).filter(|_| is_opening)?;
    Flow::new(client.into(), service.into()).ok()
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use spillway_wire::packet::tcp;

    use super::*;
    use crate::tcp::cabling::Cabling;
    use crate::tcp::frames::{Ends, Family, segment};

    fn switch() -> SimulatedSwitch {
        let cabling = Cabling::new(2, 2, false, false, Family::V4);
        SimulatedSwitch::new(Time(1), cabling.config(4, Duration::from_secs(1)))
    }

    /// From the first server of host 0, at port 0, to that of host 1, at port 2.
    fn frame() -> Vec<u8> {
        let end = |text: &str| text.parse::<SocketAddr>().unwrap();
        segment(Ends::between(end("10.0.0.1:40000"), end("10.0.0.2:80")), tcp::Header::default(), &[])
    }

    #[test]
    fn frames_are_forwarded_to_the_port_of_their_station() {
        let mut switch = switch();
        let departures = switch.arrive(Time(2), 0, frame());
        let expected = Departure { port: 2, ingress: 0, verdict: Verdict::Switched, frame: frame() };
        assert_eq!(departures, [expected]);
        let mut broadcast = frame();
        broadcast[..6].fill(0xff);
        let ports: Vec<_> =
            switch.arrive(Time(2), 0, broadcast).iter().map(|departure| departure.port).collect();
        assert_eq!(ports, [1, 2, 3]);
    }

    #[test]
    fn frames_wait_during_a_pause_and_are_lost_during_an_outage() {
        let mut switch = switch();
        switch.pause(Time(100));
        assert!((0..QUEUE_MAX + 5).all(|_| switch.arrive(Time(50), 0, frame()).is_empty()));
        assert!(switch.take_waiting(Time(99)).is_none());
        let passed =
            std::iter::from_fn(|| switch.take_waiting(Time(100))).filter(|all| all.len() == 1).count();
        assert_eq!(passed, QUEUE_MAX);
        switch.restart_with_state(Time(100), Duration::from_nanos(50));
        assert!(switch.arrive(Time(149), 0, frame()).is_empty());
        assert_eq!(switch.arrive(Time(150), 0, frame()).len(), 1);
    }

    #[test]
    fn a_restart_that_loses_all_entries_begins_a_later_epoch_and_keeps_the_counters() {
        let mut switch = switch();
        let epoch = switch.rules.epoch();
        switch.arrive(Time(2), 0, frame());
        switch.restart_empty(Time(3), Duration::ZERO);
        switch.arrive(Time(4), 0, frame());
        assert!(switch.rules.epoch() > epoch);
        assert_eq!((switch.empty_restarts, switch.count(Verdict::Switched)), (1, 2));
    }
}
