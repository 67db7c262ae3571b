//! Runs a case on an implementation.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use crate::case::{Action, Arrival, Case, FlowCheck, OwnerCheck, SiteCheck, Step};
use crate::error::Position;
use crate::message::view::MessageView;
use crate::message::{KINDS, STATES, STATUSES, name};
use crate::setup::Setup;
use crate::switch::{FlowRow, Outcome, Site, State, Switch, Verdict};

/// A step that went wrong.
#[derive(Debug)]
pub struct Failure {
    /// The step in its file.
    pub position: Position,
    /// What differs.
    pub message: String,
}

/// What the cases have used.
#[derive(Debug, Default)]
pub struct Coverage {
    /// Steps that are frames, or checks of the state.
    pub steps: usize,
    /// Number of steps with each expected verdict.
    pub verdicts: BTreeMap<Verdict, u32>,
    /// Kinds with the statuses of their answers.
    pub answers: BTreeSet<(u8, u8)>,
}

impl Coverage {
    fn count(&mut self, step: &Step) {
        self.steps += 1;
        let Action::Frame(arrival) = &step.action else { return };
        *self.verdicts.entry(arrival.verdict).or_insert(0) += 1;
        self.answers.extend(arrival.answer);
    }

    /// The answers as text, a line for each kind.
    pub fn show_answers(&self) -> String {
        let mut text = String::new();
        for (kind_name, kind) in KINDS {
            let statuses: Vec<String> = self
                .answers
                .iter()
                .filter(|(other, _)| *other == kind)
                .map(|(_, status)| name(&STATUSES, *status))
                .collect();
            let _ = writeln!(text, "{kind_name}: {}", statuses.join(", "));
        }
        text
    }
}

/// Runs all steps of a case on a switch that was just set up for it. `after_step` may compare states.
///
/// # Errors
/// The first step that differs from the case.
pub fn run<S: Switch>(
    case: &Case,
    switch: &mut S,
    coverage: &mut Coverage,
    mut after_step: impl FnMut(&Step, &S) -> Result<(), String>,
) -> Result<(), Failure> {
    for step in &case.steps {
        let result = match &step.action {
            Action::Frame(arrival) => {
                let outcome = switch.handle(arrival.ingress, step.now_ns, &arrival.frame);
                compare(&case.setup, arrival, &outcome)
            }
            Action::Reload(setup) => {
                switch.reload(setup);
                Ok(())
            }
            action => check_state(&case.setup, &switch.state(step.now_ns), action),
        };
        coverage.count(step);
        result
            .and_then(|()| after_step(step, switch))
            .map_err(|message| Failure { position: step.position, message })?;
    }
    Ok(())
}

fn compare(setup: &Setup, arrival: &Arrival, outcome: &Outcome) -> Result<(), String> {
    let ports = |ports: &[u8]| {
        let names: Vec<String> = ports.iter().map(|port| setup.port_name(*port)).collect();
        names.join(" ")
    };
    if outcome.verdict != arrival.verdict {
        return Err(format!(
            "expected {:?}, but the frame is {:?}{}\n{}",
            arrival.verdict,
            outcome.verdict,
            show_difference(&arrival.frame_out, &outcome.frame),
            show_message(&outcome.frame)
        ));
    }
    if outcome.ports != arrival.ports {
        return Err(format!(
            "expected at {}, but it leaves at {}",
            ports(&arrival.ports),
            ports(&outcome.ports)
        ));
    }
    if outcome.frame != arrival.frame_out {
        return Err(format!(
            "the frame differs{}\n{}",
            show_difference(&arrival.frame_out, &outcome.frame),
            show_message(&outcome.frame)
        ));
    }
    Ok(())
}

/// Where two frames differ.
pub fn show_difference(expected: &[u8], found: &[u8]) -> String {
    let mut text = String::new();
    if expected.len() != found.len() {
        let _ = write!(text, "\n  length: expected {}, found {}", expected.len(), found.len());
    }
    for (at, (expected, found)) in expected.iter().zip(found).enumerate() {
        if expected != found {
            let _ = write!(text, "\n  byte {at}: expected {expected:02x}, found {found:02x}");
        }
    }
    text
}

/// Kind, status, state and generation of a control message, for messages.
fn show_message(frame: &[u8]) -> String {
    let Some(message) = MessageView::find_in(frame) else { return String::new() };
    format!(
        "  found a control message: {} status {} state {} generation {}",
        name(&KINDS, message.kind()),
        name(&STATUSES, message.status()),
        name(&STATES, message.state()),
        message.generation()
    )
}

fn check_state(setup: &Setup, state: &State, action: &Action) -> Result<(), String> {
    let find =
        |client, service| state.flows.iter().find(|flow| (flow.client, flow.service) == (client, service));
    match action {
        Action::Frame(_) | Action::Reload(_) => Ok(()),
        Action::Flow(check) => match find(check.client, check.service) {
            Some(flow) => check.compare(flow),
            None => Err("there is no such flow".into()),
        },
        Action::NoFlow(client, service) => match find(*client, *service) {
            None => Ok(()),
            Some(flow) => Err(format!("there is a flow\n{flow:?}")),
        },
        Action::Flows(count) if state.flows.len() == *count => Ok(()),
        Action::Flows(count) => Err(format!("expected {count} flows, but there are {}", state.flows.len())),
        Action::Owner(check) => check.compare(setup, state),
    }
}

impl FlowCheck {
    fn compare(&self, flow: &FlowRow) -> Result<(), String> {
        let site = |site: Site| -> SiteCheck { (site.at, site.mac) };
        let mut wrong = Vec::new();
        let mut check = |field: &'static str, is_equal: bool| {
            if !is_equal {
                wrong.push(field);
            }
        };
        check("state", self.state == flow.state);
        check("generation", self.generation == flow.generation);
        check("owner", self.owner == site(flow.owner));
        check("target", self.target == flow.target.map(site));
        check("original", self.original.is_none_or(|original| original == site(flow.original)));
        check("deadline", self.deadline_ns.is_none_or(|deadline| deadline == flow.deadline_ns));
        check("last packet", self.last_packet_ns.is_none_or(|last| last == flow.last_packet_ns));
        check(
            "repeat-generation",
            self.repeat_generation
                .is_none_or(|repeat_generation| repeat_generation == flow.repeat_generation),
        );
        check("claim", self.claim == flow.claim);
        check("client fin", self.client_fin == flow.client_fin);
        check("owner fin", self.owner_fin == flow.owner_fin);
        check("owner claim", self.owner_claim == flow.owner_claim);
        check("reset", self.reset_ns == flow.reset_ns);
        if wrong.is_empty() {
            return Ok(());
        }
        Err(format!("the flow differs in: {}\nexpected {self:?}\nfound {flow:?}", wrong.join(", ")))
    }
}

impl OwnerCheck {
    fn compare(&self, setup: &Setup, state: &State) -> Result<(), String> {
        let name = setup.server_name(self.server);
        let Some(owner) = state.owners.iter().find(|owner| owner.server == self.server) else {
            return if self.term == 0 { Ok(()) } else { Err(format!("{name} has no term")) };
        };
        let is_equal = self.term == owner.term
            && self.load.is_none_or(|load| load == owner.load)
            && self.free.is_none_or(|free| free == owner.free)
            && self.weight.is_none_or(|weight| weight == owner.weight)
            && self.service.is_none_or(|service| service == owner.service)
            && self.last_heartbeat_ns.is_none_or(|beat| beat == owner.last_heartbeat_ns);
        if is_equal { Ok(()) } else { Err(format!("{name} differs\nexpected {self:?}\nfound {owner:?}")) }
    }
}
