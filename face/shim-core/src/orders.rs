//! What readers of the status page ask for. Only the server's own user may write to it.

use crate::status::{self, Request, own};
use crate::{fork, links, relief, switch};

/// Epoll says that somebody asks for something.
pub(crate) fn ready() {
    own::take_watch();
    look();
}

/// Carries out what a reader asks for, if one does. Call with no lock held.
pub(crate) fn look() {
    let Some(asked) = own::asked().filter(|_| fork::is_owner()) else { return };
    match asked.request() {
        // What each connection has received and sent.
        Some(Request::Refresh) => links::each_connection(status::connection_traffic),
        Some(Request::Off { within_ms }) => switch::off(within_ms),
        Some(Request::On) => switch::on(),
        Some(Request::Say { word, lasts_s }) => relief::say(word, lasts_s),
        None => {}
    }
    asked.answered();
}
