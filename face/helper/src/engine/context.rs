//! The event loop of one network thread.

use std::io;

use spillway_transport::Time;

use super::port::Port;
use super::privileges::drop_unneeded;
use super::remote::Remote;
use crate::relay_app::RelayApp;

/// A relay and its connections, run by one thread.
pub enum Context {
    Sockets(Box<spillway_net::Context<RelayApp>>),
    Xdp(Box<spillway_xdp::Context<RelayApp>>),
}

impl Context {
    /// A handle for commands from other threads.
    pub fn remote(&self) -> Remote {
        match self {
            Context::Sockets(context) => Remote::Sockets(context.remote()),
            Context::Xdp(context) => Remote::Xdp(context.remote()),
        }
    }

    /// Runs one command on the calling thread, before [`run`](Self::run).
    pub fn command<R>(&mut self, command: impl FnOnce(Time, &mut RelayApp, &mut Port<'_>) -> R) -> R {
        match self {
            Context::Sockets(context) => {
                context.command(|now, app, sockets| command(now, app, &mut Port::Sockets(sockets)))
            }
            Context::Xdp(context) => {
                context.command(|now, app, port| command(now, app, &mut Port::Xdp(port)))
            }
        }
    }

    /// Runs until a [`Remote`] stops it. On the engine xdp, the calling thread drops privileges.
    ///
    /// # Errors
    /// The system has failed, or the engine's interface has changed.
    pub fn run(&mut self) -> io::Result<()> {
        match self {
            Context::Sockets(context) => context.run(),
            Context::Xdp(context) => {
                drop_unneeded()?;
                context.run()
            }
        }
    }
}
