//! The source of a move.

use rustix::net::sockopt;
use spillway_capture::Captured;
use spillway_moves::ConnectionEnds;
use spillway_transport::{Conn, Transport};
use spillway_wire::state::ConnectionState;

use crate::away::Away;
use crate::faults::Fault;
use crate::state::completed;
use crate::tcp::KernelTcp;

impl KernelTcp {
    /// Captures a connection, and takes it from the sockets. `None`: it does not move, and continues.
    pub(crate) fn export_connection(&mut self, conn: Conn) -> Option<ConnectionState> {
        // The application has not seen these events, and the state does not have their bytes. Packets that were held for the
        // connection must not be older than those that the next server holds.
        if self.has_event(conn) || self.lifetimes.ends(conn).is_some_and(|ends| self.holds.drains(&ends)) {
            return None;
        }
        let captured = self.capture(conn)?;
        let detached = self.context.sockets().detached(conn);
        let state = detached.as_ref().and_then(|detached| completed(captured.state(), detached));
        let Some((detached, state)) = detached.zip(state) else {
            self.release_captured(captured);
            return None;
        };
        self.context.sockets_mut().detach(conn);
        self.lifetimes.forget(conn);
        let ends = ConnectionEnds { local: state.local, peer: state.peer };
        self.exported.add(ends, Away { captured, detached });
        Some(state)
    }

    /// Ends a connection without a segment. Returns false if it has ended already.
    pub(crate) fn discard_connection(&mut self, conn: Conn) -> bool {
        match self.context.sockets().socket_of(conn) {
            Ok(Some(_)) => {}
            // A reset: the process has no descriptors left.
            Err(_) => self.abort(conn),
            Ok(None) => return false,
        }
        // Dropped, it ends without a segment. A connection that cannot be captured is reset; the switch drops the reset of a
        // server that is not the owner.
        match self.capture(conn) {
            Some(captured) => {
                self.context.sockets_mut().detach(conn);
                self.lifetimes.forget(conn);
                drop(captured);
            }
            None => self.abort(conn),
        }
        true
    }

    fn capture(&mut self, conn: Conn) -> Option<Captured> {
        let socket = self.context.sockets().socket_of(conn).ok()??;
        // Accepted sockets inherit it from the listener. The connection needs no such group.
        let _ = sockopt::set_socket_reuseport(&socket, false);
        // With this option an urgent byte is part of the stream, where a capture does not recognize it: without it the capture
        // refuses unread urgent data. All sockets of the application have the option, so the next one sets it again.
        let _ = sockopt::set_socket_oobinline(&socket, false);
        match self.capturer.export(socket) {
            Ok(captured) => Some(captured),
            Err(failed) => {
                let _ = sockopt::set_socket_oobinline(&failed.kept, true);
                let peer = rustix::net::getpeername(&failed.kept).ok().flatten();
                if let Some(peer) = peer.and_then(|peer| peer.try_into().ok()) {
                    self.faults.add(Fault::NotExported(peer, failed.error));
                }
                None
            }
        }
    }

    /// The connection continues with its socket, of which the sockets have another descriptor.
    fn release_captured(&mut self, captured: Captured) {
        let peer = captured.state().peer;
        match captured.resume(&self.injector) {
            Ok(resumed) => {
                let _ = sockopt::set_socket_oobinline(&resumed.socket, true);
                if let Some(fault) = resumed.fault {
                    self.faults.add(Fault::Incomplete(peer, fault));
                }
            }
            Err(failed) => self.faults.add(Fault::NotResumed(peer, failed.error)),
        }
    }

    /// Continues a connection that was exported, and has not moved. `None`: it is lost.
    pub(crate) fn resume_connection(&mut self, away: Away) -> Option<Conn> {
        let Away { captured, detached } = away;
        let peer = captured.state().peer;
        match captured.resume(&self.injector) {
            Ok(resumed) => {
                if let Some(fault) = resumed.fault {
                    self.faults.add(Fault::Incomplete(peer, fault));
                }
                self.attach(resumed.socket, detached, peer)
            }
            Err(failed) => {
                self.faults.add(Fault::NotResumed(peer, failed.error));
                None
            }
        }
    }
}
