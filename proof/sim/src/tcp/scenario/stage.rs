//! A world whose moves follow a script: begins the moves, recognizes their messages, and lets the faults strike.

use std::time::Duration;

use spillway_rules::Verdict;
use spillway_wire::switch::{Kind, View};

use super::case::{CUT_FOR, DEAD_FOR, End, Fault, PAUSED_FOR, Step};
use crate::tcp::cabling::Cable;
use crate::tcp::fabric::Leg;
use crate::tcp::frames::{datagram_in, ends_of};
use crate::tcp::loss::Loss;
use crate::tcp::switch::Departure;
use crate::tcp::world::{World, WorldEvent};

/// Offset of the form in a datagram between servers (docs/wire.md), and the form of sealed messages.
const FORM_AT: usize = 9;
const FORM_MOVE: u8 = 2;
/// *own* is late by this time where *received* must be sent: longer than a target waits with it.
const OWN_LATE: Duration = Duration::from_micros(400);

impl World {
    /// Delays of the copies of a control message that a server sends.
    pub(in crate::tcp) fn stage_request(&mut self, from: Cable, payload: &[u8]) -> Vec<Duration> {
        let step = self.control_step(payload, |kind, moving_source, moving_target| match kind {
            Kind::Prepare if from == moving_source => Some(Step::Prepare),
            Kind::Prepared if from == moving_target => Some(Step::Prepared),
            Kind::Own if from == moving_target => Some(Step::Own),
            _ => None,
        });
        let mut delays = self.strike(step);
        if step == Some(Step::Own) && self.script.as_ref().is_some_and(|script| script.is_for(Step::Received))
        {
            // Otherwise *accepted* makes the acknowledgement of a state in one part needless.
            delays.iter_mut().for_each(|delay| *delay += OWN_LATE);
        }
        delays
    }

    /// Delays of the copies of a frame that leaves the switch.
    pub(in crate::tcp) fn stage_departure(&mut self, departure: &Departure) -> Vec<Duration> {
        self.begin_move(departure);
        let to = self.fabric.cabling.at(departure.port);
        let Some((_, payload)) = datagram_in(&departure.frame) else { return vec![Duration::ZERO] };
        let step = self.control_step(payload, |kind, moving_source, moving_target| match kind {
            Kind::Prepare if departure.verdict == Verdict::Relayed && to == Some(moving_target) => {
                Some(Step::RelayedPrepare)
            }
            Kind::Prepared if departure.verdict == Verdict::Relayed && to == Some(moving_source) => {
                Some(Step::RelayedPrepared)
            }
            Kind::Own if departure.verdict == Verdict::Answered && to == Some(moving_target) => {
                Some(Step::OwnAnswer)
            }
            _ => None,
        });
        self.strike(step)
    }

    /// Delays of the copies of a datagram between two servers.
    pub(in crate::tcp) fn stage_transfer(&mut self, from: Cable, to: Cable, payload: &[u8]) -> Vec<Duration> {
        let is_move = payload.get(FORM_AT) == Some(&FORM_MOVE);
        let script = self.script.as_mut().filter(|_| is_move);
        let step = script.and_then(|script| script.step_between(from, to));
        self.strike(step)
    }

    /// The step of a control message of the flow that moves.
    fn control_step(
        &self,
        payload: &[u8],
        step_of: impl FnOnce(Kind, Cable, Cable) -> Option<Step>,
    ) -> Option<Step> {
        let moving = self.script.as_ref()?.moving()?;
        let view = View::of(payload).ok()?;
        let is_ours = view.client() == moving.flow.client() && view.service() == moving.flow.service();
        let kind = view.kind().ok().filter(|_| is_ours)?;
        step_of(kind, moving.source, moving.target)
    }

    fn strike(&mut self, step: Option<Step>) -> Vec<Duration> {
        let case = step.and_then(|step| self.script.as_mut()?.reach(step));
        let Some(case) = case else { return vec![Duration::ZERO] };
        if !case.fault.is_of_message() {
            self.faults += 1;
            self.agenda.add(self.now, WorldEvent::Staged(case.fault));
        }
        case.fault.delays()
    }

    /// A fault strikes after its message was sent.
    pub(in crate::tcp) fn handle_staged(&mut self, fault: Fault) {
        let ends = self.script.as_ref().and_then(|script| script.moving()).map(|m| (m.source, m.target));
        let Some((source, target)) = ends else { return };
        let ports = (self.fabric.cabling.port_of(source), self.fabric.cabling.port_of(target));
        match fault {
            Fault::SourceDies => self.stop_server(source),
            Fault::TargetDies => self.stop_server(target),
            Fault::SwitchDies => self.fabric.switch.restart_empty(self.now, PAUSED_FOR),
            Fault::SwitchRestarts => self.fabric.switch.restart_with_state(self.now, PAUSED_FOR),
            Fault::SwitchPauses => {
                self.fabric.switch.pause(self.now + PAUSED_FOR);
                self.agenda.add(self.now + PAUSED_FOR, WorldEvent::SwitchContinues);
            }
            Fault::Cut(from, to) => {
                let leg = match (from, to) {
                    (End::Source, End::Target) => Leg::Between(ports.0, ports.1),
                    (End::Target, End::Source) => Leg::Between(ports.1, ports.0),
                    (End::Source, _) => Leg::Up(ports.0),
                    (End::Target, _) => Leg::Up(ports.1),
                    (End::Switch, End::Source) => Leg::Down(ports.0),
                    (End::Switch, _) => Leg::Down(ports.1),
                };
                self.cut(leg, CUT_FOR);
            }
            _ => debug_assert!(fault.is_of_message(), "{fault:?} strikes the world"),
        }
    }

    fn stop_server(&mut self, cable: Cable) {
        self.hosts[cable.host].rack.set_paused(cable.server, true);
        self.agenda.add(self.now + DEAD_FOR, WorldEvent::ServerReturns(cable));
    }

    /// Begins the next move of the script with the connection whose frame leaves the switch now: it is in use.
    fn begin_move(&mut self, departure: &Departure) {
        let now = self.now;
        if !self.script.as_ref().is_some_and(|script| script.is_due(now)) {
            return;
        }
        let source = self.fabric.cabling.at(departure.port);
        let Some((source, (client, _))) = source.zip(ends_of(&departure.frame)) else { return };
        let others = (0..self.plan.switch.servers_per_host).filter(|other| *other != source.server);
        let target = self.rng.pick(&others.collect::<Vec<_>>());
        let target = Cable { server: target, ..source };
        let id = self.fabric.cabling.server_id(target);
        let flow = self.hosts[source.host].rack.order_scripted(source.server, client, id);
        if let (Some(flow), Some(script)) = (flow, &mut self.script) {
            script.begin(now, flow, (source, target));
            if let Some(trace) = &mut self.trace {
                let us = now.as_nanos() as f64 / 1e3;
                trace(format!("{us:14.1} {} moves from {source:?} to {target:?}", flow.client()));
            }
            self.turn_after(source.host, 0);
        }
    }

    /// Notes how the move of the script has ended.
    pub(in crate::tcp) fn observe_outcome(&mut self) {
        let Some(script) = &mut self.script else { return };
        let Some(moving) = script.moving() else { return };
        let rack = &mut self.hosts[moving.source.host].rack;
        let result = rack.ended.drain(..).rfind(|(flow, _)| *flow == moving.flow);
        if let Some((_, None)) = result {
            return script.cancel(self.now);
        }
        let is_lost = rack
            .directory
            .lost
            .iter()
            .any(|(flow, loss)| *flow == moving.flow && (*loss == Loss::Server || result.is_none()));
        script.observe(self.now, result.and_then(|(_, result)| result), is_lost);
    }
}
