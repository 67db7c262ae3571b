//! A server as a process: its thread, its admin socket, and its end by a signal.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use spillway_daemon::{ControlPorts, MainThread, Manager, Service};
use spillway_moves::{Movable, Tcp};
use tracing::{info, warn};

use crate::control::Control;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::kernel_engine::KernelEngine;
use crate::remote::Remote;
use crate::settings::EngineSettings;

/// Admin socket and HTTP port of a process.
#[derive(Clone, Debug, Default)]
pub struct ProcessSettings {
    /// Path of the admin socket; `None`: no orders from outside.
    pub socket: Option<PathBuf>,
    /// Address of `/metrics`, `/status` and `/health`.
    pub metrics: Option<SocketAddr>,
}

/// Runs a server on the user-level stack until SIGTERM or SIGINT, which reset its connections. `ready` is called when clients
/// can connect.
///
/// # Errors
/// The server cannot start.
pub fn run<A: Movable + Send + 'static>(
    settings: &EngineSettings,
    process: &ProcessSettings,
    application: A,
    ready: impl FnOnce(),
) -> Result<ExitCode, EngineError> {
    serve(settings, process, ready, || {
        let mut engine = Engine::start(settings, application)?;
        Ok((engine.remote(), move || engine.run()))
    })
}

/// As [`run`], on sockets of the kernel.
///
/// # Errors
/// The server cannot start.
pub fn run_on_kernel<A: Movable + Send + 'static>(
    settings: &EngineSettings,
    process: &ProcessSettings,
    application: A,
    ready: impl FnOnce(),
) -> Result<ExitCode, EngineError> {
    serve(settings, process, ready, || {
        let mut engine = KernelEngine::start(settings, application)?;
        Ok((engine.remote(), move || engine.run()))
    })
}

/// `start`: returns a handle of the server, and the loop of its thread.
fn serve<A, S, L>(
    settings: &EngineSettings,
    process: &ProcessSettings,
    ready: impl FnOnce(),
    start: impl FnOnce() -> Result<(Remote<A, S>, L), EngineError>,
) -> Result<ExitCode, EngineError>
where
    A: Movable + Send + 'static,
    S: Tcp + 'static,
    L: FnOnce() -> io::Result<()> + Send + 'static,
{
    let main = MainThread::new().map_err(EngineError::Host)?;
    let socket = process.socket.as_deref();
    let ports = ControlPorts::bind(socket, None, process.metrics).map_err(EngineError::Ports)?;
    let (remote, run) = start()?;
    let thread = main.watch().spawn("stack", run).map_err(EngineError::Host)?;
    let control = Arc::new(Control::new(remote.clone()));
    let _ports = ports.serve(&control).map_err(EngineError::Host)?;
    let manager = Manager::from_environment();
    manager.ready(&format!("serving {}", settings.service));
    info!(service = %settings.service, interface = settings.interface, "serving");
    ready();
    Ok(main.run(&mut Running { remote, thread: Some(thread) }, &manager))
}

struct Running<A, S: Tcp> {
    remote: Remote<A, S>,
    thread: Option<JoinHandle<()>>,
}

impl<A: Movable + Send + 'static, S: Tcp + 'static> Service for Running<A, S> {
    fn clients_on_failure(&self) -> &'static str {
        "clients connect again"
    }

    fn status_line(&self) -> String {
        self.remote.status().map_or_else(|error| error.to_string(), |status| status.to_string())
    }

    fn reload(&mut self) {
        warn!("SIGHUP: this server has no settings that change while it runs");
    }

    fn drain(&mut self) {}

    /// Connections do not drain: move them before the end.
    fn is_drained(&mut self) -> bool {
        true
    }

    fn stop(&mut self) {
        self.remote.stop();
        if let Some(thread) = self.thread.take() {
            // A panic is reported by the watch.
            let _ = thread.join();
        }
    }

    fn is_alive(&mut self, within: Duration) -> bool {
        self.remote.responds(within)
    }
}
