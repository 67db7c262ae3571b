//! A run as one HTML file that needs nothing else: no script, no font, no network.

mod html;
mod svg;

pub use html::Page;
pub use svg::{Chart, Phase, Series};
