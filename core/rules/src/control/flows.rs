//! The messages about a flow: the checks that all of them share, and *get*.

use spillway_wire::switch::{Kind, ServerId, Status};

use super::own;
use super::prepare;
use super::request::{Context, Fields, Relay, Reply, Request};
use super::rights::owned_service;
use crate::state::State;

/// Handles a message about a flow.
pub(super) fn handle(
    context: &Context<'_>,
    state: &mut State,
    kind: Kind,
    request: &Request,
    is_new: bool,
) -> Reply {
    // The answer states the entry even if a check fails, so it is settled first.
    let has_entry = state.settled(request.flow, context.now).is_some();
    let is_daemon = request.sender == ServerId::DAEMON;
    let result = match kind {
        _ if !is_new => Err(Status::Replayed),
        Kind::Get if !is_daemon && owned_service(context, request).is_none() => Err(Status::Forbidden),
        Kind::Get if has_entry => Ok(Change::Done),
        Kind::Get => Err(Status::NoEntry),
        Kind::Release if is_daemon => own::clear(state, request).map(|()| Change::Done),
        _ if is_daemon => Err(Status::Forbidden),
        _ => change(context, state, kind, request),
    };
    // The answer must not show a server the flows of services that it may not own.
    let fields =
        if is_daemon || owned_service(context, request).is_some() { Fields::Entry } else { Fields::Blank };
    match result {
        Ok(Change::Done) => Reply::Answer(Status::Ok, fields),
        Ok(Change::Relay(relay)) => Reply::Relay(relay),
        Err(status) => Reply::Answer(status, fields),
    }
}

/// How a message that was accepted is completed.
enum Change {
    /// The sender gets the answer.
    Done,
    /// The message is relayed to another server, which completes the exchange.
    Relay(Relay),
}

fn change(context: &Context<'_>, state: &mut State, kind: Kind, request: &Request) -> Result<Change, Status> {
    if !state.owners.is_live(request.sender, context.now) {
        return Err(Status::NoOwner);
    }
    let service = owned_service(context, request).ok_or(Status::Forbidden)?;
    match kind {
        Kind::Prepare => prepare::prepare(context, state, request, service).map(Change::Relay),
        Kind::Prepared => prepare::prepared(context, state, request).map(Change::Relay),
        Kind::Hold => own::hold(context, state, request).map(|()| Change::Done),
        Kind::Own => own::own(state, request).map(|()| Change::Done),
        Kind::Release => own::release(state, request).map(|()| Change::Done),
        Kind::Get | Kind::Heartbeat | Kind::Hello | Kind::List => {
            debug_assert!(false, "{kind} is handled before");
            Err(Status::Forbidden)
        }
    }
}
