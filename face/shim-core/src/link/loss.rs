//! The end of a link: its connections end, and its sessions wait for another link.

use super::Inner;
use super::cause::Lost;
use crate::connections::{self, Connection};
use crate::log;
use crate::notify::notify;
use crate::status;
use crate::sys;
use crate::wakes::Wakes;
use crate::{link_slots, listeners};

impl Inner {
    /// Ends the link, and with it all its connections.
    pub(crate) fn lose(&mut self, lost: Lost, wakes: &mut Wakes) {
        let Some(mut endpoint) = self.endpoint.take() else { return };
        self.set_read_timeout(false);
        if let (Lost::Broken(_), true) = (&lost, self.unsent.is_empty())
            && let Some(last) = endpoint.flush(sys::now())
        {
            let _ = sys::send(self.socket.descriptor(), last.as_slice()); // the reason, if the socket has room
        }
        let established = self.authentication.is_established();
        if !established {
            self.authentication.abandon();
            status::count(lost.refusal());
        }
        status::link_ended(self.index, &endpoint.counters(), self.batches_received, established);
        let sessions = self.detach_sessions();
        let lost_connections: Vec<&'static Connection> =
            self.referents.iter().filter_map(|(id, _)| self.connection(id)).collect();
        if let Some(peer) = self.peer {
            if !established && matches!(lost, Lost::ClosedByPeer) {
                // Counted, but not logged: health checks open the port and close at once.
            } else if !established {
                log::unauthenticated(format_args!("link of {peer} refused: {lost}"));
            } else if !matches!(lost, Lost::ClosedByPeer) || !lost_connections.is_empty() || sessions > 0 {
                let count = lost_connections.len();
                let sessions = match (sessions, &lost) {
                    (0, _) => String::new(),
                    (sessions, Lost::EventLoopClosed) => format!(" ({sessions} sessions closed)"),
                    (sessions, _) => format!(" ({sessions} sessions wait for another link)"),
                };
                log::line(format_args!("link of {peer} lost, with {count} connections{sessions}: {lost}"));
            }
        }
        self.socket.close();
        *self = Inner::vacant(self.index);
        for connection in lost_connections {
            status::connection_ended(connection);
            if listeners::withdraw(connection) {
                connections::give_back(connection);
            } else {
                connection.note_client_closed(true);
                notify(connection, wakes);
            }
        }
        link_slots::give_back(self.index);
    }
}
