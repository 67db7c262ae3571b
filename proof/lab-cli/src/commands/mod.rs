//! One file for each subcommand: its options, and the call that runs it.

pub(crate) mod agent;
pub(crate) mod attack;
pub(crate) mod bench;
pub(crate) mod clean;
pub(crate) mod demo;
pub(crate) mod echo;
pub(crate) mod http;
pub(crate) mod kv;
pub(crate) mod load;
pub(crate) mod sim;
pub(crate) mod stack_work;
pub(crate) mod switch_answers;
