//! Code shared by several experiments.

pub(super) mod curves;
pub(super) mod rates;
pub(super) mod rounds;
pub(super) mod saturation;
pub(super) mod script;
pub(super) mod switch_daemon;
