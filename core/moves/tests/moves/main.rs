//! Two servers, which echo, behind the switch of core/rules, and a client on a stack of its own, in virtual time.

mod away;
mod client;
mod divided;
mod echo;
mod measures;
mod orders;
mod policy;
mod rack;
mod requests;
#[path = "../../../handoff/tests/support/service.rs"]
mod service;
mod streams;
