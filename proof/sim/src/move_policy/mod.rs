//! Policies for moves of connections between servers: a few servers, 150 connections, an open-loop load that is skewed
//! or changes in steps. The shipped code decides ([`Migration`](spillway_policy::migration::Migration) in each server);
//! queues, moves and heartbeats are a model.
//!
//! - [`plan`]: the parameters that a seed draws: servers, rates of connections over time, limits
//! - `server`: a queue with one core; `connection`: arrivals, and where a connection is
//! - `switch`: the loads of the last heartbeats
//! - [`checker`]: checks each decision against the limits, outside the code under test
//! - [`planted_fault`]: planted faults that a run must detect
//! - [`run()`]: simulates one policy; runs of equal seeds have the same requests, whatever the policy is

pub mod checker;
pub mod plan;
pub mod planted_fault;

mod connection;
mod run;
mod server;
mod switch;
mod world;

pub use run::{PolicyName, Report, RunSettings, run, run_with_trace};
