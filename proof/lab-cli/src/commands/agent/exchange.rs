//! The messages of each request: the epoch is learned first, then the generation if the request needs one.

use spillway_lab::{Agent, LabError, Relayed};
use spillway_wire::switch::{Answer, Endpoint, Flow, FlowState, Import, Kind, Request, Status};

use super::outcome::Outcome;
use super::{ChangeArgs, RequestArgs};

/// Owners of one service: as many as a switch has ids for servers.
const OWNERS_MAX: u64 = 255;

pub(super) fn exchange(agent: &mut Agent, args: &RequestArgs) -> Result<Outcome, String> {
    if let RequestArgs::Hello = args {
        let answer = agent.begin_term().map_err(text)?;
        return Ok(Outcome::Answered { answer, epoch: agent.epoch() });
    }
    let learned = agent.learn_epoch().map_err(text)?;
    if learned.status != Status::Ok {
        return Ok(Outcome::Answered { answer: learned, epoch: agent.epoch() });
    }
    match args {
        RequestArgs::Hello => unreachable!("handled above"),
        RequestArgs::Heartbeat { service, load, free_places, weight } => {
            let (service, load, free_places, weight) = (service.service, *load, *free_places, *weight);
            ask(agent, Request::Heartbeat { service, load, free_places, weight })
        }
        RequestArgs::List { service } => list(agent, service.service),
        RequestArgs::Get { flow } => ask(agent, Request::Get { flow: flow.flow()? }),
        RequestArgs::Prepare { change, target, lifetime } => {
            let (flow, replaces) = entry(agent, change)?;
            let (target, lifetime_ms) = (target.site(), lifetime.lifetime);
            let request = Request::Prepare { flow, replaces, target, lifetime_ms };
            relay(agent, request, flow, &[FlowState::Asked, FlowState::Held])
        }
        RequestArgs::Prepared { change, target, .. } => {
            let (flow, asked) = entry(agent, change)?;
            let import = target.site().map_or(Import::Refused, Import::Ready);
            let state = if import == Import::Refused { FlowState::Owned } else { FlowState::Held };
            relay(agent, Request::Prepared { flow, asked, import }, flow, &[state])
        }
        RequestArgs::Hold { change, target, lifetime } => {
            let (flow, replaces) = entry(agent, change)?;
            let (target, lifetime_ms) = (target.site()?, lifetime.lifetime);
            ask(agent, Request::Hold { flow, replaces, target, lifetime_ms })
        }
        RequestArgs::Own { change } => {
            let (flow, replaces) = entry(agent, change)?;
            ask(agent, Request::Own { flow, replaces })
        }
        RequestArgs::Release { change } => {
            let (flow, generation) = entry(agent, change)?;
            ask(agent, Request::Release { flow, generation })
        }
    }
}

fn ask(agent: &mut Agent, request: Request) -> Result<Outcome, String> {
    let answer = agent.ask(request).map_err(text)?;
    Ok(Outcome::Answered { answer, epoch: agent.epoch() })
}

/// Sends a request that the switch relays. `states`: the entry has one of these if the switch has relayed it.
fn relay(agent: &mut Agent, request: Request, flow: Flow, states: &[FlowState]) -> Result<Outcome, String> {
    match agent.send_relayed(request, flow).map_err(text)? {
        Relayed::Refused(answer) => Ok(Outcome::Answered { answer, epoch: agent.epoch() }),
        Relayed::Sent(entry) if states.contains(&entry.state) => {
            Ok(Outcome::Relayed { kind: request.kind(), entry, epoch: agent.epoch() })
        }
        Relayed::Sent(entry) => Err(format!(
            "the network has lost the message {}, because the entry's state is {}: send it again",
            request.kind(),
            entry.state
        )),
    }
}

/// The flow of a request, and the generation that the request names.
fn entry(agent: &mut Agent, change: &ChangeArgs) -> Result<(Flow, u64), String> {
    let flow = change.flow.flow()?;
    let generation = match change.generation {
        Some(generation) => generation,
        None => agent.ask(Request::Get { flow }).map_err(text)?.generation,
    };
    Ok((flow, generation))
}

fn list(agent: &mut Agent, service: Endpoint) -> Result<Outcome, String> {
    let mut owners: Vec<Answer> = Vec::new();
    for index in 0..OWNERS_MAX {
        let answer = agent.ask(Request::List { service, index }).map_err(text)?;
        match answer.status {
            Status::Ok => owners.push(answer),
            Status::NoOwner => break,
            _ => return Ok(Outcome::Answered { answer, epoch: agent.epoch() }),
        }
    }
    debug_assert!(
        owners.iter().all(|owner| owner.kind == Kind::List),
        "answers have the kind of their request"
    );
    Ok(Outcome::Listed { owners, epoch: agent.epoch() })
}

fn text(error: LabError) -> String {
    error.to_string()
}
