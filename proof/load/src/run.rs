//! A run: what is done before it, and its threads.

mod steering;

use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;

use rustix::process::{Resource, getrlimit, setrlimit};

use self::steering::Steering;
use crate::config::{Config, Fill, Speech};
use crate::error::Error;
use crate::fill::fill;
use crate::keys::Keys;
use crate::protocol::echo::Echo;
use crate::protocol::memcached::{Memcached, Text};
use crate::protocol::redis::{Redis, Resp};
use crate::protocol::store::{Dialect, Store};
use crate::random::mix;
use crate::report::Report;
use crate::signals::Signals;
use crate::worker::{FromWorker, Setting, ToWorker, Worker, wake, wake_fd};

/// Words from workers that may be under way before workers wait.
const NEWS_MAX: usize = 1024;
/// Orders that may be under way to one worker.
const ORDERS_MAX: usize = 256;
const WORKER_FAILED: &str = "a thread of the generator failed; this is a fault of the generator itself";
/// Descriptors for everything but connections.
const SPARE_DESCRIPTORS: u64 = 64;

/// Where commands come from and output goes to. Everything may be left out.
#[derive(Default)]
pub struct Surroundings {
    /// Lines of commands, as [`crate::control::Command::parse`] reads them; its end is no command.
    pub control: Option<OwnedFd>,
    /// Gets [`crate::report::Event`]s, one JSON line each.
    pub events: Option<Box<dyn Write + Send>>,
    /// Gets a line a second for people.
    pub progress: Option<Box<dyn Write + Send>>,
    /// Obey SIGINT and SIGTERM (stop), SIGUSR1 (move to the helper) and SIGUSR2 (move back) of this process.
    pub signals: bool,
}

/// Runs `config` to its end and reports. Wrong and lost replies are part of the report, not an error.
pub fn run(config: &Config, surroundings: Surroundings) -> Result<Report, Error> {
    config.check().map_err(Error::Usage)?;
    let signals = if surroundings.signals { Some(Signals::catch()?) } else { None };
    raise_descriptor_limit(config)?;
    if config.fill != Fill::Skip {
        let set = config.fill == Fill::Set;
        match config.speech {
            Speech::Memcached => fill::<Text>(config.server, &config.space(), config.keys, set)?,
            Speech::Redis => fill::<Resp>(config.server, &config.space(), config.keys, set)?,
            Speech::Echo => {}
        }
    }
    let told = Arc::new(wake_fd()?);
    let (tell, news) = sync_channel(NEWS_MAX);
    let workers = start_workers(config, &told, &tell)?;
    let mut steering = Steering::new(config, surroundings, signals, told, workers);
    let outcome = steering.drive(&news);
    // Workers that still run end when they are told to; the others have ended.
    for worker in steering.workers.drain(..) {
        drop(worker.orders);
        if outcome.is_ok() && worker.thread.join().is_err() {
            return Err(Error::Usage(WORKER_FAILED.into()));
        }
    }
    outcome
}

fn raise_descriptor_limit(config: &Config) -> Result<(), Error> {
    // A moved connection keeps its direct one; a session has a descriptor of its own beside its carrier's.
    let twice = !config.helpers.addresses.is_empty() || config.sessions.is_some();
    // One that decides for itself asks helpers at times, and a process has its own descriptor.
    let decides = config.self_relief().is_some();
    let per_connection = if decides {
        4
    } else if twice {
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

struct WorkerHandle {
    orders: SyncSender<ToWorker>,
    wake: Arc<OwnedFd>,
    thread: JoinHandle<()>,
}

impl WorkerHandle {
    fn order(&self, word: ToWorker) {
        // Fails when the worker has ended, or has 256 orders before it: a flood, not an operator.
        if self.orders.try_send(word).is_ok() {
            wake(&self.wake);
        }
    }
}

fn start_workers(
    config: &Config,
    told: &Arc<OwnedFd>,
    tell: &SyncSender<FromWorker>,
) -> Result<Vec<WorkerHandle>, Error> {
    let shared = Arc::new(config.clone());
    let keys = match config.zipf {
        Some(exponent) if config.speech.has_keys() => Keys::zipf(config.keys, exponent),
        _ => Keys::uniform(config.keys),
    };
    (0..config.threads)
        .map(|index| {
            let (orders, receiver) = sync_channel(ORDERS_MAX);
            let wake = Arc::new(wake_fd()?);
            let setting = Setting {
                config: shared.clone(),
                index,
                orders: receiver,
                wake: wake.clone(),
                tell: tell.clone(),
                told: told.clone(),
            };
            let thread = match config.speech {
                Speech::Memcached => {
                    let protocol: Memcached = store(config, &keys, index);
                    spawn(index, Worker::new(setting, protocol)?)
                }
                Speech::Redis => {
                    let protocol: Redis = store(config, &keys, index);
                    spawn(index, Worker::new(setting, protocol)?)
                }
                Speech::Echo => {
                    let seed = mix(config.seed) ^ mix(u64::from(config.share.0) << 32 | u64::from(index));
                    spawn(index, Worker::new(setting, Echo::new(seed, config.value_size))?)
                }
            };
            thread
                .map(|thread| WorkerHandle { orders, wake, thread })
                .map_err(|e| Error::system("cannot start a thread", e))
        })
        .collect()
}

fn store<D: Dialect>(config: &Config, keys: &Keys, index: u32) -> Store<D> {
    let (share, of) = config.share;
    let share = (share * config.threads + index, of * config.threads);
    Store::new(config.space(), keys.clone(), config.get_ratio, share)
}

fn spawn<P: crate::protocol::Protocol + Send + 'static>(
    index: u32,
    worker: Worker<P>,
) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name(format!("load-{index}")).spawn(move || worker.run())
}
