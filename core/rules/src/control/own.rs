//! *hold*, *own* and *release*: each names the generation that it replaces, and none creates an entry.

use spillway_wire::switch::Status;

use super::request::{Context, Request};
use super::rights::{check_relation, deadline, named_site};
use crate::flow::{Move, Relation, Stage};
use crate::state::State;

/// The owner of a flow directs its packets to a target.
pub(super) fn hold(context: &Context<'_>, state: &mut State, request: &Request) -> Result<(), Status> {
    let deadline = deadline(context, request)?;
    let mut entry = *state.flows.get(&request.flow).ok_or(Status::NoEntry)?;
    let term = state.owners.term(request.sender);
    check_relation(entry.relation_to_owner(request.sender, term))?;
    if entry.stage() != Stage::Owned || entry.generation() != request.generation {
        return Err(Status::Stale);
    }
    let target = named_site(context, &state.owners, request).ok_or(Status::Forbidden)?;
    if !state.owners.is_live(target.server, context.now) {
        return Err(Status::NoOwner);
    }
    let pending_move = Move { target, deadline };
    entry.hold(pending_move, state.generations.next());
    state.flows.replace(request.flow, entry);
    Ok(())
}

/// Ends a move: the target takes the flow over, or the owner keeps it. The message that arrives first succeeds.
pub(super) fn own(state: &mut State, request: &Request) -> Result<(), Status> {
    let mut entry = *state.flows.get(&request.flow).ok_or(Status::NoEntry)?;
    let sender = request.sender;
    let term = state.owners.term(sender);
    let (as_owner, as_target) =
        (entry.relation_to_owner(sender, term), entry.relation_to_target(sender, term));
    if (as_owner, as_target) == (Relation::Other, Relation::Other) {
        return Err(Status::Forbidden);
    }
    let pending_move = match entry.stage() {
        // A repetition: the answer may have been lost.
        Stage::Owned if as_owner == Relation::Same && entry.repeat_generation() == request.generation => {
            return Ok(());
        }
        Stage::Owned => return Err(Status::Stale),
        Stage::Asked(pending_move) | Stage::Held(pending_move) => pending_move,
    };
    if entry.generation() != request.generation {
        return Err(Status::Stale);
    }
    if entry.is_held() && as_target == Relation::Same {
        entry.take_over(pending_move.target, state.generations.next());
    } else if as_owner == Relation::Same {
        entry.own(*entry.owner(), state.generations.next());
    } else {
        return Err(Status::Stale);
    }
    state.flows.replace(request.flow, entry);
    Ok(())
}

/// The owner ends a flow's entry.
pub(super) fn release(state: &mut State, request: &Request) -> Result<(), Status> {
    let entry = state.flows.get(&request.flow).ok_or(Status::NoEntry)?;
    let term = state.owners.term(request.sender);
    check_relation(entry.relation_to_owner(request.sender, term))?;
    if entry.stage() != Stage::Owned {
        return Err(Status::Stale);
    }
    clear(state, request)
}

/// The daemon ends a flow's entry in any state.
pub(super) fn clear(state: &mut State, request: &Request) -> Result<(), Status> {
    let entry = state.flows.get(&request.flow).ok_or(Status::NoEntry)?;
    if entry.generation() != request.generation {
        return Err(Status::Stale);
    }
    state.flows.remove(&request.flow);
    Ok(())
}
