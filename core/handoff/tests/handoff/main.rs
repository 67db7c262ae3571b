//! Agents of servers behind the switch of core/rules.

mod membership;
mod moves;
mod rack;
mod requests;
#[path = "../support/service.rs"]
mod service;
