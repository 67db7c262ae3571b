//! Runs a switch's daemon until SIGTERM.

use std::convert::Infallible;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::thread::CapabilitySet;
use spillway_bpf::switch::check_file_system;
use spillway_daemon::{ControlPorts, MainThread, ServedPorts, Service, keep_capabilities};
use spillway_rules::Mode;
use tracing::{error, info, warn};

use crate::config::SwitchConfig;
use crate::control::{Control, SettingsSource};
use crate::local::Local;
use crate::lock::{Lock, pin_directory};
use crate::messages::{Messages, fresh_key};
use crate::program::Program;
use crate::running::{Running, local_control};
use crate::start_error::StartError;

/// How long the end waits for a reload: less than `TimeoutStopSec` of the unit.
const RELOAD_PATIENCE: Duration = Duration::from_secs(8);

/// Runs a switch's daemon until SIGTERM; `source` reads the settings at each reload. The program stays attached when
/// the daemon ends: it forwards and answers control messages without the daemon.
///
/// SIGTERM or SIGINT: ends. SIGHUP: reload. SIGUSR1: the status on standard error. A thread that fails ends the
/// process. A service manager is notified of start, reload and end.
///
/// # Errors
/// Another daemon runs, the program cannot be loaded or attached, or a port cannot be bound.
pub fn run(config: SwitchConfig, source: SettingsSource) -> Result<ExitCode, StartError> {
    let main = MainThread::new().map_err(StartError::Host)?;
    let mut daemon = Daemon::start(config, source, &main)?;
    // Attaching to an interface, also at a reload, needs CAP_NET_ADMIN; the tables need CAP_BPF; reading key files may
    // need others. CAP_NET_RAW is never needed.
    keep_capabilities(!CapabilitySet::NET_RAW).map_err(StartError::Host)?;
    let control = Arc::clone(&daemon.control);
    control.manager().ready(&control.status().summary());
    Ok(main.run(&mut daemon, control.manager()))
}

/// Detaches the program of a switch whose daemon does not run, and removes its tables: flows are forgotten, and the
/// interfaces belong to the kernel again.
///
/// Returns a file that is not of the switch, if one stays in the directory of the tables.
///
/// # Errors
/// The switch does not exist, its daemon runs, or the tables cannot be removed.
pub fn detach(name: &str) -> Result<Option<PathBuf>, StartError> {
    let directory = pin_directory(name);
    let _lock = Lock::take_existing(&directory)?;
    Program::remove(&directory).map_err(StartError::Program)?;
    let rest = fs::read_dir(&directory).ok().and_then(|mut files| files.next()?.ok());
    Ok(rest.map(|file| file.path()))
}

struct Daemon {
    running: Arc<Running>,
    control: Arc<Control>,
    reload: SyncSender<()>,
    ports: Option<ServedPorts>,
    /// The threads that use the tables. Dropping the sender ends a thread.
    threads: Vec<(Sender<()>, JoinHandle<()>)>,
    is_draining: bool,
    _lock: Lock,
}

impl Daemon {
    fn start(
        mut config: SwitchConfig,
        source: SettingsSource,
        main: &MainThread,
    ) -> Result<Daemon, StartError> {
        let directory = pin_directory(&config.name);
        // Before the directory is created, which another file system would keep.
        check_file_system(&directory).map_err(|error| StartError::Program(error.to_string()))?;
        let lock = Lock::take(&directory)?;
        let ports = ControlPorts::bind(Some(&config.socket), config.admin_group.as_ref(), config.metrics)
            .map_err(StartError::Port)?;
        let local = Local::default();
        local.replace(local.open(local_control(&config)).map_err(StartError::Control)?);
        let key = fresh_key().map_err(StartError::Host)?;
        let program = Program::start(&directory, &mut config, &key).map_err(StartError::Program)?;
        let messages = Messages::new(key, program.epoch());
        info!(
            epoch = messages.epoch(),
            "switch {}: {} on {} ports",
            config.name,
            if program.is_adopted() { "its tables and flows are kept, forwarding" } else { "forwarding" },
            config.ports.len()
        );
        let running = Arc::new(Running::new(program, messages, local, config, main.watch().clone()));
        // The first turn precedes the first request, so that the first status has figures.
        if let Err(error) = running.turn() {
            // Not a reason to refuse the start: the program forwards, and the next turn may succeed.
            warn!("status has no figures yet: {error}");
        }
        let control = Arc::new(Control::new(Arc::clone(&running), source));
        let threads = start_threads(&running, main).map_err(StartError::Host)?;
        let reload = start_reloads(Arc::clone(&control)).map_err(StartError::Host)?;
        let ports = ports.serve(&control).map_err(StartError::Host)?;
        if let Some(address) = ports.metrics_address() {
            info!("metrics at http://{address}/metrics");
            if !address.ip().is_loopback() {
                warn!(
                    "metrics at {address} need no password: every host that reaches this address can read them"
                );
            }
        }
        Ok(Daemon { running, control, reload, ports: Some(ports), threads, is_draining: false, _lock: lock })
    }
}

/// Starts the threads that use the tables: the sweeper, and in host mode the one for this host's own server.
fn start_threads(running: &Arc<Running>, main: &MainThread) -> io::Result<Vec<(Sender<()>, JoinHandle<()>)>> {
    let start = |name, work: fn(&Running, &Receiver<()>)| {
        let (stop, stopped) = channel();
        let running = Arc::clone(running);
        let work = move || {
            // Such a thread only reads and changes tables. If dropping fails, the thread keeps capabilities that it does not
            // use.
            let _ = keep_capabilities(CapabilitySet::BPF | CapabilitySet::NET_ADMIN);
            work(&running, &stopped);
            Ok::<(), Infallible>(())
        };
        Ok::<_, io::Error>((stop, main.watch().spawn(name, work)?))
    };
    let mut threads = vec![start("sweep", Running::sweep)?];
    if running.config().mode == Mode::Host {
        threads.push(start("local", Running::serve_local)?);
    }
    Ok(threads)
}

/// Starts a thread that reloads, so that slow files and interfaces delay neither the watchdog nor a signal to end.
fn start_reloads(control: Arc<Control>) -> io::Result<SyncSender<()>> {
    let (request, requests) = sync_channel(1);
    let reload = move || {
        let _ = keep_capabilities(!CapabilitySet::NET_RAW);
        while requests.recv().is_ok() {
            // `reload` logs its outcome.
            let _ = control.reload();
        }
    };
    std::thread::Builder::new().name("reload".into()).spawn(reload)?;
    Ok(request)
}

impl Service for Daemon {
    fn clients_on_failure(&self) -> &'static str {
        "the program forwards without the daemon"
    }

    fn status_line(&self) -> String {
        self.control.status().to_string()
    }

    fn reload(&mut self) {
        // Fails if a request waits already: its reload will read the settings after this call, too.
        let _ = self.reload.try_send(());
    }

    fn drain(&mut self) {
        info!("ending: the program stays attached and forwards without the daemon");
        self.is_draining = true;
    }

    fn is_drained(&mut self) -> bool {
        self.is_draining
    }

    fn stop(&mut self) {
        self.ports = None;
        for (stop, thread) in self.threads.drain(..) {
            drop(stop);
            if thread.join().is_err() {
                error!("a thread that uses the tables has panicked");
            }
        }
        if !self.control.close(RELOAD_PATIENCE) {
            error!("ending during a reload: a part of it is in force until the next start");
        }
    }

    fn is_alive(&mut self, _within: Duration) -> bool {
        // The sweeper reads large tables less often than the watchdog checks.
        self.running.is_sweeping()
    }
}
