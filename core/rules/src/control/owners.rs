//! *hello*, *heartbeat* and *list*: the messages about owners. None of them looks up a flow.

use spillway_wire::switch::{Endpoint, ServerId, Site, Status};

use super::request::{Context, Fields, Reply, Request};
use super::rights::owned_service;
use crate::state::State;

/// A server begins a term as an owner, or learns the switch's epoch.
pub(super) fn hello(context: &Context<'_>, state: &mut State, request: &Request) -> Reply {
    let answer = |status, generation| Reply::Answer(status, Fields::Hello { generation });
    if request.epoch != context.epoch {
        return answer(Status::Ok, 0);
    }
    let highest = state.owners.highest_sequence(request.sender);
    if request.sequence <= highest {
        // A server whose sequence numbers began anew learns where they must continue.
        return answer(Status::Replayed, highest);
    }
    let term = state.generations.next();
    state.owners.hello(request.sender, context.now, request.sequence, term, context.source_port);
    answer(Status::Ok, term)
}

/// Stores an owner's load, and that the owner is alive.
pub(super) fn heartbeat(context: &Context<'_>, state: &mut State, request: &Request, is_new: bool) -> Reply {
    let answer = |status| Reply::Answer(status, Fields::Heartbeat);
    if !is_new {
        return answer(Status::Replayed);
    }
    let Some(service) = owned_service(context, request) else {
        return answer(Status::Forbidden);
    };
    let result = state.owners.heartbeat(request.sender, context.now, service.number, request.report);
    answer(result.map_or(Status::NoOwner, |()| Status::Ok))
}

/// Answers with the n-th owner of a service.
pub(super) fn list(context: &Context<'_>, state: &State, request: &Request, is_new: bool) -> Reply {
    let answer = |status| Reply::Answer(status, Fields::NotListed);
    if !is_new {
        return answer(Status::Replayed);
    }
    let service = match request.sender {
        ServerId::DAEMON => context.tables.service(request.flow.service),
        _ => owned_service(context, request),
    };
    let Some(service) = service else {
        return answer(Status::Forbidden);
    };
    let Some(owner) = state.owners.nth(service.number, request.generation, context.now) else {
        return answer(Status::NoOwner);
    };
    let server = context.tables.sender(owner.server);
    let site = server.and_then(|server| Site::new(Endpoint::new(server.address.0, 0), server.mac));
    Reply::Answer(Status::Ok, Fields::Listed { owner, site })
}
