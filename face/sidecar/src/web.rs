//! What the metrics port answers.

use spillway_metrics::{CONTENT_TYPE, Request, Response};

use crate::metrics::render;
use crate::shared::Shared;

pub(crate) fn answer(request: &Request, shared: &Shared, started: f64) -> Response {
    match request.path.as_str() {
        "/metrics" => Response::ok(CONTENT_TYPE, render(shared, started)),
        "/status" => Response::ok("application/json", shared.status().to_json()),
        "/health" => match shared.health() {
            Ok(()) => Response::text(200, "healthy\n"),
            Err(why) => Response::text(503, format!("{why}\n")),
        },
        _ => Response::text(404, "there are /metrics, /status and /health\n"),
    }
}
