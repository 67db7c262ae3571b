//! One file for each subcommand: what it takes, and the call that does it.

pub(crate) mod assess;
pub(crate) mod attack;
pub(crate) mod bench;
pub(crate) mod check;
pub(crate) mod connections;
pub(crate) mod demo;
pub(crate) mod doctor;
pub(crate) mod drain;
pub(crate) mod echo;
pub(crate) mod helper;
pub(crate) mod key;
pub(crate) mod lab;
pub(crate) mod load;
pub(crate) mod logging;
mod output;
pub(crate) mod relief;
pub(crate) mod reload;
pub(crate) mod run;
pub(crate) mod server;
mod servers;
mod services;
pub(crate) mod sidecar;
pub(crate) mod sim;
mod sockets;
pub(crate) mod stack_work;
pub(crate) mod status;
pub(crate) mod top;
