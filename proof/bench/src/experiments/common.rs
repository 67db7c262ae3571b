//! What several experiments share.

pub(super) mod curves;
pub(super) mod rates;
pub(super) mod rounds;
pub(super) mod saturation;
pub(super) mod script;
