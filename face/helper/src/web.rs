//! What the metrics port answers.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use spillway_metrics::{CONTENT_TYPE, Request, Response};

use crate::health::health;
use crate::metrics::render;
use crate::page;
use crate::rates::Rates;
use crate::status::{HelperStatus, Part};

/// Looks nearer to each other than this are one look: two browsers do not spoil each other's rates.
const LOOK_MIN_MS: u64 = 500;

/// Asks the network threads.
pub(crate) type Ask = dyn Fn() -> (HelperStatus, Vec<(usize, Part)>) + Send + Sync;

/// The routes.
pub(crate) struct Web {
    ask: Box<Ask>,
    started: f64,
    /// For rates on the page: the look before the last, and the last.
    looks: Mutex<[Option<Arc<HelperStatus>>; 2]>,
}

impl Web {
    pub(crate) fn new(ask: impl Fn() -> (HelperStatus, Vec<(usize, Part)>) + Send + Sync + 'static) -> Web {
        let started = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        Web { ask: Box::new(ask), started, looks: Mutex::default() }
    }

    pub(crate) fn answer(&self, request: &Request) -> Response {
        match request.path.as_str() {
            "/metrics" => {
                let (status, parts) = (self.ask)();
                Response::ok(CONTENT_TYPE, render(&status, &parts, self.started))
            }
            "/status" => Response::ok("application/json", (self.ask)().0.to_json()),
            "/health" => match health(&(self.ask)().0) {
                Ok(()) => Response::text(200, "healthy\n"),
                Err(why) => Response::text(503, why),
            },
            "/" => {
                let status = Arc::new((self.ask)().0);
                let rates = self.look(&status).and_then(|before| Rates::between(&before, &status));
                Response::ok("text/html; charset=utf-8", page::html(&status, rates.as_ref()))
            }
            _ => Response::text(404, "there are /, /metrics, /status and /health\n"),
        }
    }

    /// Remembers a look. Returns one that is long enough ago.
    fn look(&self, status: &Arc<HelperStatus>) -> Option<Arc<HelperStatus>> {
        let mut looks = self.looks.lock().unwrap_or_else(PoisonError::into_inner);
        let ago = |look: &Option<Arc<HelperStatus>>| {
            look.as_ref().map(|look| status.uptime_ms.saturating_sub(look.uptime_ms))
        };
        if ago(&looks[1]).is_none_or(|ago| ago >= LOOK_MIN_MS) {
            let last = looks[1].replace(Arc::clone(status));
            looks[0] = last;
        }
        looks[0].clone()
    }
}
