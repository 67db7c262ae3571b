//! Starts, drains and stops a helper.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use spillway_daemon::{ControlPorts, ServedPorts, ThreadWatch, drop_capabilities};
use spillway_transport::Time;
use tracing::{info, warn};

use crate::config::{HelperConfig, StartError};
use crate::control::{Control, SettingsSource};
use crate::engine::{Chosen, Context, Port, Remote, choose};
use crate::history::Sampler;
use crate::listeners::{ListenerKind, ListenerTable};
use crate::log::{Log, Names};
use crate::relay_app::RelayApp;
use crate::running::{Running, STATUS_TIMEOUT, Settings, warn_of_ineffective_settings};
use crate::status::HelperStatus;
use crate::threads::{Threads, contexts, net_config, relay_config, spawn};

/// Time limit for withdrawing registrations at the end. Those that remain expire with their leases in etcd.
const WITHDRAW_TIMEOUT: Duration = Duration::from_millis(1500);

/// A running helper. Dropping it closes links and clients at once; [`Helper::drain`] lets clients finish.
pub struct Helper {
    control: Arc<Control>,
    watch: ThreadWatch,
    threads: Vec<JoinHandle<()>>,
    ports: Option<ServedPorts>,
    sampler: Option<Sampler>,
}

impl Helper {
    /// Binds the listening ports and starts the threads, which open links and accept clients once a link is up.
    ///
    /// # Errors
    /// The helper cannot start; all its threads have ended.
    pub fn start(config: HelperConfig) -> Result<Helper, StartError> {
        Helper::start_as(config, None, ThreadWatch::new(|| ()))
    }

    /// As [`start`](Self::start). `source` reads the settings for a reload; `watch` watches the threads.
    pub(crate) fn start_as(
        config: HelperConfig,
        source: Option<SettingsSource>,
        watch: ThreadWatch,
    ) -> Result<Helper, StartError> {
        config.check()?;
        let engine = choose(&config, Threads::new(config.threads).count)?;
        let threads = match engine.threads_max() {
            Some(count_max) => Threads::at_most(config.threads, count_max),
            None => Threads::new(config.threads),
        };
        let net = net_config(&config, &threads);
        let plan = ListenerTable::default().plan(&config, threads.count, &net)?;
        let relay = relay_config(&config, &plan.table, &threads);
        relay.check().map_err(StartError::Relay)?;
        let ports = ControlPorts::bind(config.socket.as_deref(), config.admin_group.as_ref(), config.metrics)
            .map_err(StartError::Port)?;

        warn_of_ineffective_settings(&config, matches!(engine, Chosen::Sockets));
        let names = Names::default();
        names.add(config.services.iter().map(|service| service.name.as_str()));
        let log = start_log(&watch, names.clone())?;
        let (mut contexts, engine) = contexts(engine, threads.count, &relay, &net, &log)?;
        for (index, listeners) in plan.new {
            let kind = plan.table.kind(index);
            for (context, listener) in contexts.iter_mut().zip(listeners) {
                context.command(|now, app, out| out.put_listener(now, (index, listener), kind, &app.log));
            }
        }
        for context in &mut contexts {
            context.command(|_, _, out| out.set_keep_alive(&plan.table));
        }
        for service in &config.services {
            let (name, server) = (&service.name, &service.server);
            info!("{name}: opening links to {server}{}", Ports(&plan.table, name));
        }
        let remotes = contexts.iter().map(Context::remote).collect();
        let settings = Settings { config, listeners: plan.table };
        let running = Arc::new(Running::new(remotes, engine, threads, names, settings, watch.clone()));
        let control = Arc::new(Control::new(running, source));
        let mut helper = Helper { control, watch, threads: Vec::new(), ports: None, sampler: None };
        for (thread, context) in contexts.into_iter().enumerate() {
            let core = helper.running().threads.cores.get(thread).copied();
            helper.threads.push(spawn(thread, core, context, &helper.watch)?);
        }
        if helper.running().settings().config.metrics.is_some() {
            let (running, history) = (Arc::clone(helper.running()), Arc::clone(helper.control.history()));
            helper.sampler = Some(Sampler::start(running, history).map_err(StartError::Host)?);
        }
        let ports = ports.serve(&helper.control).map_err(StartError::Host)?;
        ports.metrics_address().iter().for_each(log_metrics_address);
        helper.ports = Some(ports);
        helper.running().registrars.apply(&helper.running().settings().config);
        Ok(helper)
    }

    fn running(&self) -> &Arc<Running> {
        self.control.running()
    }

    pub(crate) fn control(&self) -> &Arc<Control> {
        &self.control
    }

    /// The status of all threads. Waits up to 1 s for each thread.
    pub fn status(&self) -> HelperStatus {
        self.running().status()
    }

    /// Applies new settings. On an error the old ones stay in force, except with [`StartError::SilentAfterChange`]. For
    /// the effects on clients see [`Relay::reconfigure`](spillway_relay::Relay::reconfigure).
    pub fn change(&self, config: HelperConfig) -> Result<crate::control::ReloadOutcome, StartError> {
        self.running().change(config)
    }

    /// Address of the HTTP port, if the helper has one.
    pub fn metrics_address(&self) -> Option<SocketAddr> {
        self.ports.as_ref().and_then(ServedPorts::metrics_address)
    }

    /// Accepts no new clients, and resets remaining ones after `deadline`. Then poll [`Self::is_drained`].
    pub fn drain(&self, deadline: Duration) {
        self.running().registrars.withdraw_all();
        for remote in &self.running().remotes {
            // Fails for a thread that has ended, which has no clients.
            let _ = remote.run(move |now, app, out| app.relay.drain(now, deadline, out));
        }
    }

    /// Drains one service until the next [`change`](Self::change). Returns false for an unknown service.
    pub fn drain_service(&self, name: &str, deadline: Duration) -> bool {
        self.running().drain_service(name, deadline)
    }

    /// Whether all clients have left after [`drain`](Self::drain).
    pub fn is_drained(&self) -> bool {
        self.all_threads(|_, app, _| app.relay.is_drained())
    }

    /// Whether all connections are closed: those of clients, and after a drain also the links to servers.
    pub fn is_disconnected(&self) -> bool {
        self.all_threads(|_, _, out| out.connections() == 0)
    }

    /// Whether `condition` holds on all threads. It counts as true for a thread that has ended, and as false
    /// for one that does not answer within [`STATUS_TIMEOUT`], so that a drain can end at its deadline.
    fn all_threads(&self, condition: fn(Time, &mut RelayApp, &mut Port<'_>) -> bool) -> bool {
        self.running().remotes.iter().all(|remote| {
            remote
                .run_and_wait_timeout(STATUS_TIMEOUT, condition)
                .unwrap_or_else(|_| remote.run(|_, _, _| ()).is_err())
        })
    }

    /// Whether every network thread runs. If not, see [`failure`](Self::failure).
    pub fn all_threads_run(&self) -> bool {
        !self.threads.iter().any(JoinHandle::is_finished)
    }

    /// Name of the first thread that failed, and the reason.
    pub fn failure(&self) -> Option<&str> {
        self.watch.failure()
    }

    /// Ends at once, and closes links and remaining clients.
    pub fn stop(mut self) {
        self.end();
    }

    /// As [`stop`](Self::stop). Repeated calls have no effect.
    pub(crate) fn end(&mut self) {
        self.running().registrars.withdraw_all();
        self.ports = None;
        self.sampler = None;
        self.running().remotes.iter().for_each(Remote::stop);
        for thread in self.threads.drain(..) {
            // Fails if the thread panicked, which `watch` has recorded.
            let _ = thread.join();
        }
        self.running().registrars.wait(WITHDRAW_TIMEOUT);
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        self.end();
    }
}

fn log_metrics_address(address: &SocketAddr) {
    info!("metrics and status page at http://{address}/");
    if !address.ip().is_loopback() {
        warn!(
            "metrics at {address} need no password: every host that reaches this address can read the addresses of \
             clients and all figures"
        );
    }
}

/// Starts the thread that writes the network threads' log entries until those threads have ended.
fn start_log(watch: &ThreadWatch, names: Names) -> Result<Log, StartError> {
    let (log, entries) = Log::new();
    let writing = move || {
        drop_capabilities();
        crate::log::write(&entries, &names);
        Ok::<(), Infallible>(())
    };
    watch.spawn("notices", writing).map_err(StartError::Host)?;
    Ok(log)
}

/// The listening addresses of a service, for the log.
pub(crate) struct Ports<'a>(pub(crate) &'a ListenerTable, pub(crate) &'a str);

impl std::fmt::Display for Ports<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for address in self.0.addresses(self.1, ListenerKind::Plain) {
            write!(f, "; plain clients at {address}")?;
        }
        for address in self.0.addresses(self.1, ListenerKind::Library) {
            write!(f, "; library clients at {address}")?;
        }
        Ok(())
    }
}
