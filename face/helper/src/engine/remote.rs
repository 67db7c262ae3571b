//! Commands from other threads to a network thread.

use std::time::Duration;

use spillway_net::Unreachable;
use spillway_transport::Time;

use super::port::Port;
use crate::relay_app::RelayApp;

/// A handle of a [`Context`](super::Context) that runs on another thread.
#[derive(Clone)]
pub enum Remote {
    Sockets(spillway_net::Remote<RelayApp>),
    Xdp(spillway_net::Remote<RelayApp, spillway_xdp::Port>),
}

impl Remote {
    /// Runs a command on the context's thread without waiting for it.
    pub fn run(
        &self,
        command: impl FnOnce(Time, &mut RelayApp, &mut Port<'_>) + Send + 'static,
    ) -> Result<(), Unreachable> {
        match self {
            Remote::Sockets(remote) => {
                remote.run(move |now, app, sockets| command(now, app, &mut Port::Sockets(sockets)))
            }
            Remote::Xdp(remote) => remote.run(move |now, app, port| command(now, app, &mut Port::Xdp(port))),
        }
    }

    /// Runs a command and waits for its result, at most for `timeout`.
    pub fn run_and_wait_timeout<R: Send + 'static>(
        &self,
        timeout: Duration,
        command: impl FnOnce(Time, &mut RelayApp, &mut Port<'_>) -> R + Send + 'static,
    ) -> Result<R, Unreachable> {
        match self {
            Remote::Sockets(remote) => remote.run_and_wait_timeout(timeout, move |now, app, sockets| {
                command(now, app, &mut Port::Sockets(sockets))
            }),
            Remote::Xdp(remote) => remote
                .run_and_wait_timeout(timeout, move |now, app, port| command(now, app, &mut Port::Xdp(port))),
        }
    }

    /// Ends the context's `run` after its present turn.
    pub fn stop(&self) {
        match self {
            Remote::Sockets(remote) => remote.stop(),
            Remote::Xdp(remote) => remote.stop(),
        }
    }
}
