//! *prepare* and *prepared*: the owner asks a target, and the target answers, both through the switch.

use spillway_wire::switch::{Flow, ServerId, Status};

use super::request::{Context, Relay, Request};
use super::rights::{check_receiver, check_relation, deadline, named_site};
use crate::config::Place;
use crate::flow::{Entry, Full, Move, Relation, Site, Stage};
use crate::load::Owners;
use crate::state::State;

/// The owner of a flow requests that a target imports the connection.
pub(super) fn prepare(
    context: &Context<'_>,
    state: &mut State,
    request: &Request,
    service: &Place,
) -> Result<Relay, Status> {
    let deadline = deadline(context, request)?;
    let term = state.owners.term(request.sender);
    let entry = state.flows.get(&request.flow).copied();
    if let Some(target) = entry.as_ref().and_then(|entry| repeated_target(entry, request, term)) {
        check_receiver(context, target.server)?;
        return Ok(ask(&target));
    }
    match &entry {
        None => check_original(context, request, service)?,
        Some(entry) => check_owner(entry, request, term)?,
    }
    let target = choose(context, state, request, service)?;
    check_receiver(context, target.server)?;
    // From here on only a full table, or the service's bound, can refuse the message. The refusal gives back neither the
    // turn nor the free place; the XDP program does the same.
    if request.site.is_none() {
        state.owners.take_turn();
    }
    state.owners.take_place(target.server);
    let generation = state.generations.next();
    let pending_move = Move { target, deadline };
    match entry {
        Some(mut entry) => {
            entry.ask(pending_move, generation);
            state.flows.replace(request.flow, entry);
        }
        None => {
            let mac = context.sender.mac;
            let original = Site { at: service.at, mac, server: request.sender, term };
            let entry = Entry::asked(service.number, original, pending_move, generation, context.now);
            let service_max = context.tables.flows_max(service.number);
            state.flows.insert(request.flow, entry, service_max).map_err(|Full| Status::Full)?;
        }
    }
    Ok(ask(&target))
}

/// The target that was asked is ready, or refuses.
pub(super) fn prepared(context: &Context<'_>, state: &mut State, request: &Request) -> Result<Relay, Status> {
    let mut entry = *state.flows.get(&request.flow).ok_or(Status::NoEntry)?;
    let term = state.owners.term(request.sender);
    check_relation(entry.relation_to_target(request.sender, term))?;
    if entry.generation() != request.generation {
        return Err(Status::Stale);
    }
    let receiver = entry.owner().server;
    if entry.is_held() {
        // A repetition: the relayed message may have been lost.
        check_receiver(context, receiver)?;
        return Ok(Relay { receiver, status: Status::Ok, site: entry.receiver().in_message() });
    }
    let target = match request.status {
        Some(Status::Full) => None,
        Some(Status::None | Status::Ok) => {
            let site = named_site(context, &state.owners, request);
            Some(site.filter(|site| site.server == request.sender).ok_or(Status::Forbidden)?)
        }
        _ => return Err(Status::Forbidden),
    };
    check_receiver(context, receiver)?;
    match target {
        Some(target) => entry.hold_asked(target),
        None => entry.own(*entry.owner(), state.generations.next()),
    }
    state.flows.replace(request.flow, entry);
    let status = if target.is_some() { Status::Ok } else { Status::Full };
    Ok(Relay { receiver, status, site: target.and_then(|target| target.in_message()) })
}

/// The target of a move that the same prepare has begun before.
fn repeated_target(entry: &Entry, request: &Request, term: u64) -> Option<Site> {
    let (Stage::Asked(pending_move) | Stage::Held(pending_move)) = entry.stage() else { return None };
    let is_owner = entry.relation_to_owner(request.sender, term) == Relation::Same;
    (is_owner && entry.repeat_generation() == request.generation).then_some(pending_move.target)
}

/// Checks that the sender may move a flow without an entry: the sender is the original owner, and the entries of the flow's
/// service are in this switch's table.
fn check_original(context: &Context<'_>, request: &Request, service: &Place) -> Result<(), Status> {
    if service.server != request.sender || !context.tables.is_arbitrated(service) {
        Err(Status::Forbidden)
    } else if request.generation != 0 {
        Err(Status::Stale)
    } else if request.flow.client.ip().is_unspecified()
        || Flow::new(request.flow.client, request.flow.service).is_err()
    {
        // No packet has such a client, so nothing would ever end the entry.
        Err(Status::Forbidden)
    } else {
        Ok(())
    }
}

/// Checks that the sender may move a flow with an entry.
fn check_owner(entry: &Entry, request: &Request, term: u64) -> Result<(), Status> {
    if entry.stage() != Stage::Owned {
        return Err(Status::Stale);
    }
    check_relation(entry.relation_to_owner(request.sender, term))?;
    if entry.generation() == request.generation { Ok(()) } else { Err(Status::Stale) }
}

/// The target that the message names, or the least loaded one. The latter states later where it imports; until then its
/// site has the service's address and port.
fn choose(context: &Context<'_>, state: &State, request: &Request, service: &Place) -> Result<Site, Status> {
    let owners = &state.owners;
    if request.site.is_some() {
        let site = named_site(context, owners, request).ok_or(Status::Forbidden)?;
        return if owners.is_live(site.server, context.now) { Ok(site) } else { Err(Status::NoOwner) };
    }
    let server = least_loaded(context, owners, request.sender, service).ok_or(Status::NoOwner)?;
    let mac = context.tables.sender(server).ok_or(Status::NoOwner)?.mac;
    Ok(Site { at: service.at, mac, server, term: owners.term(server) })
}

/// The least loaded server that may own the service, other than the sender.
fn least_loaded(
    context: &Context<'_>,
    owners: &Owners,
    sender: ServerId,
    service: &Place,
) -> Option<ServerId> {
    owners.least_loaded(service.number, context.now, |server| {
        server != sender && context.tables.server_may_own(server, service.number)
    })
}

fn ask(target: &Site) -> Relay {
    Relay { receiver: target.server, status: Status::Ok, site: target.in_message() }
}
