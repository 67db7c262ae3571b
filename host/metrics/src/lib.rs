//! Metrics and status over HTTP, for Prometheus, for `curl` and for a browser.
//!
//! - [`HttpServer`]: GET and HEAD, bounded in connections, bytes and time, on threads of its own
//! - [`Exposition`]: Prometheus' text format; [`Declared`]: a metric and its samples in one place
//! - [`process`]: what Prometheus' conventions want of every process
//!
//! Nothing here knows what is measured.
#![forbid(unsafe_code)]

mod declared;
mod exposition;
mod http;
mod request;

pub mod process;

pub use declared::Declared;
pub use exposition::{CONTENT_TYPE, Exposition, Family, Kind, Metric};
pub use http::{HttpServer, Response};
pub use request::{REQUEST_BYTES_MAX, Request, RequestError};
