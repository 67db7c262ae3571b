//! Requests by readers of the status page. Only the server's own user may write to the page.

use crate::status::{self, Request, own};
use crate::{fork, links, relief, switch};

/// Handles requests. Called when epoll reports the page's watch.
pub(crate) fn ready() {
    own::take_watch();
    look();
}

/// Carries out a reader's request, if there is one. Call with no lock held.
pub(crate) fn look() {
    let Some(asked) = own::asked().filter(|_| fork::is_owner()) else { return };
    match asked.request() {
        // Writes the bytes received and sent of each connection to the page.
        Some(Request::Refresh) => links::each_connection(status::connection_traffic),
        Some(Request::Off { within_ms }) => switch::off(within_ms),
        Some(Request::On) => switch::on(),
        Some(Request::Say { word, lasts_s }) => relief::say(word, lasts_s),
        None => {}
    }
    asked.answered();
}
