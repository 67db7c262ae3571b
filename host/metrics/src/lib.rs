//! Metrics and status over HTTP, for Prometheus, `curl` and browsers.
//!
//! - [`HttpServer`]: answers GET and HEAD on its own threads, with bounds on connections, bytes and time
//! - [`Exposition`]: Prometheus' text format; [`Declared`]: a metric and its samples in one place
//! - [`process`]: the metrics that Prometheus' conventions define for every process
#![forbid(unsafe_code)]

mod declared;
mod exposition;
mod http;
mod request;

mod places;
pub mod process;

pub use declared::Declared;
pub use exposition::{CONTENT_TYPE, Exposition, Family, Kind, Metric};
pub use http::{HttpServer, Response};
pub use request::{REQUEST_BYTES_MAX, Request, RequestError};
