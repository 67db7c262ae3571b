//! The flow table: who owns each flow, and moves that are under way.

mod entry;
mod generations;
mod table;
mod view;

pub(crate) use entry::{Entry, FlowKey, Move, REPEAT_NONE, Relation, Site, Stage};
pub(crate) use generations::Generations;
pub(crate) use table::{Flows, Full};
pub use view::{FlowView, SiteView};
