//! A run as one self-contained HTML file: without scripts, external fonts, or network requests.

mod html;
mod svg;

pub use html::Page;
pub use svg::{Chart, Phase, Series};
