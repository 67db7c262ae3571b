//! A connection's state on its way: in numbered parts, each acknowledged, over a path that loses, repeats and reorders.
//!
//! - `sending`: at the source: which part is sent when
//! - `receiving`: at the target: which parts have arrived

mod receiving;
mod sending;

pub(crate) use receiving::Receiving;
pub(crate) use sending::{Due, Sending};
