//! Requests by readers of the status page. Only the server's own user may write to the page.

use crate::status::{self, Request, own};
use crate::{fork, helping, links, relief};

/// Handles requests. Called when epoll reports the page's watch.
pub(crate) fn handle_ready() {
    own::drain_watch();
    carry_out();
}

/// Carries out a reader's request, if there is one. Call with no lock held.
pub(crate) fn carry_out() {
    let Some(pending) = own::pending_request().filter(|_| fork::is_owner()) else { return };
    match pending.request() {
        Some(Request::Refresh) => links::each_connection(status::write_connection_traffic),
        Some(Request::Off { within_ms }) => helping::turn_off(within_ms),
        Some(Request::On) => helping::turn_on(),
        Some(Request::SetOverride { manual_override, lasts_s }) => {
            relief::set_override(manual_override, lasts_s)
        }
        None => {}
    }
    pending.mark_done();
}
