//! A running helper.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use spillway_daemon::{ControlPorts, ServedPorts, ThreadWatch};
use spillway_net::{Clock, Context, Remote};
use tracing::{info, warn};

use crate::config::{Engine, HelperConfig, StartError};
use crate::contexts::{Threads, context, net_config, relay_config, spawn};
use crate::control::{Control, Source};
use crate::history::Sampler;
use crate::listeners::{Places, Sort};
use crate::log::{Log, Names};
use crate::relaying::Relaying;
use crate::running::{Running, Settings, warn_of_useless_settings};
use crate::status::HelperStatus;

/// How long taking registrations away may hold up the end. Those that are left go when their time is over.
const REGISTRATIONS_END: Duration = Duration::from_millis(1500);

/// A running helper. Ends when dropped, without regard for its clients; see [`Helper::drain`].
pub struct Helper {
    control: Arc<Control>,
    watch: ThreadWatch,
    threads: Vec<JoinHandle<()>>,
    ports: Option<ServedPorts>,
    sampler: Option<Sampler>,
}

impl Helper {
    /// Binds the listening ports, starts the threads and has them open their links. Clients are taken as soon as
    /// a link is up.
    ///
    /// # Errors
    /// Whatever an operator has to put right; nothing is left running then.
    pub fn start(config: HelperConfig) -> Result<Helper, StartError> {
        Helper::start_as(config, None, ThreadWatch::new(|| ()))
    }

    /// As [`start`](Self::start); `source` is where settings are read again, and `watch` is told of each thread's end.
    pub(crate) fn start_as(
        config: HelperConfig,
        source: Option<Source>,
        watch: ThreadWatch,
    ) -> Result<Helper, StartError> {
        config.check()?;
        let threads = Threads::new(config.threads);
        let net = net_config(&config, &threads);
        let plan = Places::default().plan(&config, threads.count, &net)?;
        let relay = relay_config(&config, &plan.places, &threads);
        relay.check().map_err(StartError::Relay)?;
        let ports = ControlPorts::bind(config.socket.as_deref(), config.admin_group.as_ref(), config.metrics)
            .map_err(StartError::Port)?;

        warn_of_useless_settings(&config);
        if config.engine == Engine::Auto {
            info!("engine auto: sockets, because this version has no other");
        }
        let names = Names::default();
        names.add(config.services.iter().map(|service| service.name.as_str()));
        let log = start_log(&watch, names.clone())?;
        let clock = Clock::start();
        let mut contexts = Vec::with_capacity(threads.count);
        for thread in 0..threads.count {
            contexts.push(context(thread, &relay, &net, clock, &log)?);
        }
        for (place, each) in plan.new {
            for (context, listener) in contexts.iter_mut().zip(each) {
                context.command(|_, _, out| out.put_listener(place, listener));
            }
        }
        for service in &config.services {
            let (name, server) = (&service.name, &service.server);
            info!("{name}: opening links to {server}{}", Ports(&plan.places, name));
        }
        let remotes = contexts.iter().map(Context::remote).collect();
        let settings = Settings { config, places: plan.places };
        let running = Arc::new(Running::new(remotes, threads, names, settings, watch.clone()));
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
        ports.metrics_address().iter().for_each(tell_metrics);
        helper.ports = Some(ports);
        helper.running().registrars.put_in_force(&helper.running().settings().config);
        Ok(helper)
    }

    fn running(&self) -> &Arc<Running> {
        self.control.running()
    }

    pub(crate) fn control(&self) -> &Arc<Control> {
        &self.control
    }

    /// What it is doing. Waits for each thread's answer.
    pub fn status(&self) -> HelperStatus {
        self.running().status()
    }

    /// Puts other settings in force, see [`Relay::reconfigure`](spillway_relay::Relay::reconfigure) for what
    /// happens to clients. Returns what has changed.
    ///
    /// # Errors
    /// Whatever an operator has to put right; everything is as it was, then.
    pub fn change(&self, config: HelperConfig) -> Result<crate::control::Changed, StartError> {
        self.running().change(config)
    }

    /// Where metrics are served.
    pub fn metrics_address(&self) -> Option<SocketAddr> {
        self.ports.as_ref().and_then(ServedPorts::metrics_address)
    }

    /// Stops taking clients and lets those that are there finish what is in flight, until the deadline. See
    /// [`is_drained`](Self::is_drained).
    pub fn drain(&self, deadline: Duration) {
        self.running().registrars.withdraw_all();
        for remote in &self.running().remotes {
            // A thread that has ended has no clients.
            let _ = remote.run(move |now, app, out| app.relay.drain(now, deadline, out));
        }
    }

    /// Drains one service; it comes back when settings are put in force again. False where there is none of this
    /// name.
    pub fn drain_service(&self, name: &str, deadline: Duration) -> bool {
        self.running().drain_service(name, deadline)
    }

    /// Whether no client is left, after [`drain`](Self::drain).
    pub fn is_drained(&self) -> bool {
        let drained = |remote: &Remote<Relaying>| remote.ask(|_, app, _| app.relay.is_drained());
        self.running().remotes.iter().all(|remote| drained(remote).unwrap_or(true))
    }

    /// Whether no connection is left: after a drain, servers have seen the end of their links, too.
    pub fn is_disconnected(&self) -> bool {
        let gone = |remote: &Remote<Relaying>| remote.ask(|_, _, out| out.connections() == 0);
        self.running().remotes.iter().all(|remote| gone(remote).unwrap_or(true))
    }

    /// Whether every network thread runs; see [`failure`](Self::failure).
    pub fn is_whole(&self) -> bool {
        !self.threads.iter().any(JoinHandle::is_finished)
    }

    /// The first thread that has failed, and why.
    pub fn failure(&self) -> Option<&str> {
        self.watch.failure()
    }

    /// Ends at once: links are closed, and so are clients that are left.
    pub fn stop(mut self) {
        self.end();
    }

    /// As [`stop`](Self::stop); to do it again changes nothing.
    pub(crate) fn end(&mut self) {
        self.running().registrars.withdraw_all();
        self.ports = None;
        self.sampler = None;
        self.running().remotes.iter().for_each(Remote::stop);
        for thread in self.threads.drain(..) {
            // What became of it is known to the watch.
            let _ = thread.join();
        }
        self.running().registrars.wait(REGISTRATIONS_END);
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        self.end();
    }
}

fn tell_metrics(address: &SocketAddr) {
    info!("metrics and status page at http://{address}/");
    if !address.ip().is_loopback() {
        warn!("whoever reaches {address} can read addresses and figures there: it asks for no password");
    }
}

/// The thread ends with the network threads, whose decisions it logs.
fn start_log(watch: &ThreadWatch, names: Names) -> Result<Log, StartError> {
    let (log, lines) = Log::new();
    let writing = move || {
        crate::log::write(&lines, &names);
        Ok::<(), Infallible>(())
    };
    watch.spawn("notices", writing).map_err(StartError::Host)?;
    Ok(log)
}

/// Where a service's clients come in, for the log.
pub(crate) struct Ports<'a>(pub(crate) &'a Places, pub(crate) &'a str);

impl std::fmt::Display for Ports<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for address in self.0.addresses(self.1, Sort::Plain) {
            write!(f, "; plain clients at {address}")?;
        }
        for address in self.0.addresses(self.1, Sort::Library) {
            write!(f, "; library clients at {address}")?;
        }
        Ok(())
    }
}
