//! A connection's state on its way: in numbered parts, each acknowledged, over a path that loses, repeats and reorders.
//!
//! - `parts`: the state's parts; `sending`: at the source: which part is sent when
//! - `window`: how many parts may be in flight to a server, of all moves together
//! - `receiving`: at the target: which parts have arrived

mod parts;
mod receiving;
mod sending;
mod window;

pub(crate) use parts::Parts;
pub(crate) use receiving::Receiving;
pub(crate) use sending::{Due, Sending};
pub(crate) use window::Window;
