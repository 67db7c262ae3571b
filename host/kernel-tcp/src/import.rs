//! The target of a move.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use spillway_capture::{CaptureError, Live};
use spillway_moves::ConnectionEnds;
use spillway_net::Detached;
use spillway_transport::Conn;
use spillway_wire::handoff::Reason;
use spillway_wire::state::ConnectionState;

use crate::coming::Coming;
use crate::faults::Fault;
use crate::state;
use crate::tcp::KernelTcp;

impl KernelTcp {
    /// Restores a connection in a new socket, which sends nothing before [`go_live`](Self::go_live).
    pub(crate) fn restore(&mut self, state: &ConnectionState) -> Result<Coming, Reason> {
        let ends = ConnectionEnds { local: state.local, peer: state.peer };
        self.exported.end_leaving(&ends, &mut self.faults);
        match spillway_capture::import(state) {
            Ok(restored) => Ok(Coming { restored, detached: state::detached(state), ends }),
            Err(error) => {
                let reason = reason_of(&error);
                self.faults.add(Fault::NotImported(ends.peer, error));
                Err(reason)
            }
        }
    }

    /// Continues a restored connection. `None`: it is lost.
    pub(crate) fn go_live(&mut self, coming: Coming) -> Option<Conn> {
        let Coming { restored, mut detached, ends } = coming;
        let Live { socket, unwritten, must_finish, fault } = match restored.go_live(&self.injector) {
            Ok(live) => live,
            Err(failed) => {
                self.faults.add(Fault::NotImported(ends.peer, failed.error));
                return None;
            }
        };
        if let Some(fault) = fault {
            self.faults.add(Fault::Incomplete(ends.peer, fault));
        }
        detached.queue = unwritten.to_vec();
        detached.has_ended |= must_finish;
        let conn = self.attach(socket, detached, ends.peer)?;
        let injector = self.injector.for_connection(ends.local, ends.peer);
        for packet in self.exported.take_returning(&ends) {
            if let Err(error) = injector.inject_forwarded(&packet) {
                self.faults.add(Fault::NotInjected(ends.peer, error));
            }
        }
        Some(conn)
    }

    /// Gives a socket to the application. Room for it was reserved.
    pub(crate) fn attach(&mut self, socket: OwnedFd, detached: Detached, peer: SocketAddr) -> Option<Conn> {
        let conn = self.try_attach(socket, detached).ok();
        self.keep_free();
        let conn = conn?;
        if let Ok(Some(socket)) = self.context.sockets().socket_of(conn) {
            self.lifetimes.begin(conn, ConnectionEnds { local: self.place, peer }, socket);
        }
        Some(conn)
    }

    fn try_attach(&mut self, socket: OwnedFd, detached: Detached) -> io::Result<Conn> {
        fcntl_setfl(&socket, fcntl_getfl(&socket)? | OFlags::NONBLOCK)?;
        let sockets = self.context.sockets_mut();
        sockets.set_connections_max(self.connections_max);
        sockets.attach(socket, detached)
    }
}

fn reason_of(error: &CaptureError) -> Reason {
    match error {
        CaptureError::Contradiction(_) | CaptureError::Present(..) => Reason::Invalid,
        CaptureError::NotOfKernels(_) | CaptureError::Refused(_) => Reason::Feature,
        CaptureError::NoAddress(_) => Reason::NoService,
        _ => Reason::NoRoom,
    }
}
