//! One file for each subcommand: its options, and the call that runs it.

pub(crate) mod assess;
pub(crate) mod check;
pub(crate) mod connections;
pub(crate) mod doctor;
pub(crate) mod drain;
pub(crate) mod exporter;
pub(crate) mod flows;
pub(crate) mod generate;
pub(crate) mod groups;
pub(crate) mod helper;
pub(crate) mod key;
pub(crate) mod load;
pub(crate) mod logging;
pub(crate) mod moved;
mod output;
pub(crate) mod relief;
pub(crate) mod reload;
pub(crate) mod run;
pub(crate) mod server;
mod servers;
mod services;
pub(crate) mod sidecar;
mod sockets;
pub(crate) mod status;
pub(crate) mod switch;
mod times;
pub(crate) mod top;
