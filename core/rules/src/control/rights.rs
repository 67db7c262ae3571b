//! What a message about a flow may do: checks that several kinds share.

use core::time::Duration;

use spillway_transport::Time;
use spillway_wire::switch::{LIFETIME_MS_MAX, ServerId, Status};

use super::request::{Context, Request};
use crate::config::Place;
use crate::flow::{Relation, Site};
use crate::load::Owners;

/// The deadline after which the flow of a move that is not confirmed returns to its owner.
pub(super) fn deadline(context: &Context<'_>, request: &Request) -> Result<Time, Status> {
    if !(1..=LIFETIME_MS_MAX).contains(&request.lifetime_ms) {
        return Err(Status::Forbidden);
    }
    Ok(context.now + Duration::from_millis(request.lifetime_ms.into()))
}

/// The service of a message, if the servers of the ingress port may own its flows. The daemon's port owns none.
pub(super) fn owned_service<'a>(context: &Context<'a>, request: &Request) -> Option<&'a Place> {
    let service = context.tables.service(request.flow.service)?;
    context.tables.may_own(context.port, service.number).then_some(service)
}

/// Requires that a site is the sender's in its present term; the error is the status of the answer.
pub(super) fn check_relation(relation: Relation) -> Result<(), Status> {
    match relation {
        Relation::Same => Ok(()),
        Relation::Earlier => Err(Status::Stale),
        Relation::Other => Err(Status::Forbidden),
    }
}

/// Whether a message can be relayed to a server: as a plain packet of the family of the server's address. VLAN tags, IPv4
/// options and IPv6 extension headers would be those of the sender's network, under the switch's source address.
pub(super) fn check_receiver(context: &Context<'_>, receiver: ServerId) -> Result<(), Status> {
    let server = context.tables.sender(receiver).ok_or(Status::NoOwner)?;
    let can_relay = context.is_plain && server.address.is_ipv4() == context.is_ipv4;
    if can_relay { Ok(()) } else { Err(Status::Forbidden) }
}

/// The site in a message, if it is one of a configured server.
pub(super) fn named_site(context: &Context<'_>, owners: &Owners, request: &Request) -> Option<Site> {
    let (at, mac) = (request.site_at(), request.site_mac());
    let server = context.tables.server_of_site(at, mac, request.flow.service)?;
    Some(Site { at, mac, server, term: owners.term(server) })
}
