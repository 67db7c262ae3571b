//! A run: prepares the server and starts the threads.

mod control_lines;
mod run_io;
mod steering;
mod workers;

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};

use rustix::process::{Resource, getrlimit, setrlimit};

pub use self::run_io::RunIo;

use self::steering::Steering;
use self::workers::{WorkerHandle, start_workers};
use crate::config::{Config, EngineKind, Fill, ProtocolKind, XdpOptions};
use crate::engine::Sockets;
#[cfg(feature = "xdp")]
use crate::engine::xdp;
use crate::error::Error;
use crate::fill::fill;
use crate::protocol::memcached::Text;
use crate::protocol::redis::Resp;
use crate::report::Report;
use crate::signals::Signals;
use crate::worker::{FromWorker, WAKE_TOKEN, wake_fd};

/// Maximum of messages in the channel from workers; a worker blocks while the channel is full.
const WORKER_MESSAGES_MAX: usize = 1024;
/// File descriptors for purposes other than connections.
const SPARE_DESCRIPTORS: u64 = 64;

/// Executes a run and returns its report. Wrong and lost replies are counted in the report; they are not an error.
pub fn run(config: &Config, run_io: RunIo) -> Result<Report, Error> {
    config.check().map_err(Error::Usage)?;
    let signals = if run_io.signals { Some(Signals::catch()?) } else { None };
    raise_descriptor_limit(config)?;
    if config.fill != Fill::Skip {
        let set = config.fill == Fill::Set;
        match config.protocol {
            ProtocolKind::Memcached => fill::<Text>(config.server, &config.space(), config.keys, set)?,
            ProtocolKind::Redis => fill::<Resp>(config.server, &config.space(), config.keys, set)?,
            ProtocolKind::Echo | ProtocolKind::Http => {}
        }
    }
    let steering_wake = Arc::new(wake_fd()?);
    let (to_steering, from_workers) = sync_channel(WORKER_MESSAGES_MAX);
    // The interface is shared until the function ends; by then the workers have ended.
    let (_shared_interface, workers) = match &config.engine {
        EngineKind::Sockets => {
            let seats = vec![(); config.threads as usize];
            (None, start_workers(config, &steering_wake, &to_steering, seats, open_sockets)?)
        }
        EngineKind::Xdp(options) => start_stacks(options, config, &steering_wake, &to_steering)?,
    };
    let mut steering = Steering::new(config, run_io, signals, steering_wake, workers);
    let outcome = steering.drive(&from_workers);
    if outcome.is_ok() {
        steering.workers.drain(..).try_for_each(WorkerHandle::join)?;
    }
    outcome
}

fn open_sockets((): (), wake: Arc<OwnedFd>) -> Result<Sockets, Error> {
    Sockets::new(wake, WAKE_TOKEN).map_err(|error| Error::system("cannot make an epoll set", error))
}

/// Starts a worker on each of an interface's stacks.
#[cfg(feature = "xdp")]
fn start_stacks(
    options: &XdpOptions,
    config: &Config,
    steering_wake: &Arc<OwnedFd>,
    to_steering: &SyncSender<FromWorker>,
) -> Result<(Option<xdp::SharedInterface>, Vec<WorkerHandle>), Error> {
    let (shared, seats) = xdp::open(config, options)?;
    let workers = start_workers(config, steering_wake, to_steering, seats, xdp::Seat::open)?;
    Ok((Some(shared), workers))
}

#[cfg(not(feature = "xdp"))]
fn start_stacks(
    _options: &XdpOptions,
    _config: &Config,
    _steering_wake: &Arc<OwnedFd>,
    _to_steering: &SyncSender<FromWorker>,
) -> Result<(Option<std::convert::Infallible>, Vec<WorkerHandle>), Error> {
    Err(Error::Usage("this program has no user-level stack: run `spillway-lab load --engine xdp`".into()))
}

fn raise_descriptor_limit(config: &Config) -> Result<(), Error> {
    if config.engine != EngineKind::Sockets {
        return Ok(()); // the stack's connections have no descriptors
    }
    // A moved connection keeps its direct socket; a session has a descriptor besides that of its carrier.
    let has_carriers = !config.helpers.addresses.is_empty() || config.sessions.is_some();
    // A session with a policy also has sockets that query helpers' load, and its group has a descriptor.
    let has_policy = config.self_relief().is_some();
    let per_connection = if has_policy {
        4
    } else if has_carriers {
        2
    } else {
        1
    };
    let needed = u64::from(config.connections) * per_connection + SPARE_DESCRIPTORS;
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|current| current >= needed) {
        return Ok(());
    }
    if limit.maximum.is_some_and(|maximum| maximum < needed) {
        return Err(Error::Usage(format!(
            "{} connections need {needed} file descriptors, but the hard limit is {}: raise it (ulimit -Hn) or \
             give fewer --connections",
            config.connections,
            limit.maximum.unwrap_or(0)
        )));
    }
    limit.current = Some(needed);
    setrlimit(Resource::Nofile, limit)
        .map_err(|e| Error::system(format!("cannot raise the limit on open files to {needed}"), e))
}
