//! The threads of a run.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;

use crate::config::{Config, Speech};
use crate::error::Error;
use crate::keys::Keys;
use crate::protocol::Protocol;
use crate::protocol::echo::Echo;
use crate::protocol::memcached::Memcached;
use crate::protocol::redis::Redis;
use crate::protocol::store::{Dialect, Store};
use crate::random::mix;
use crate::worker::{FromWorker, Setting, ToWorker, Worker, wake, wake_fd};

/// Orders that may be under way to one worker.
const ORDERS_MAX: usize = 256;
/// Why a run without an outcome has none.
pub(super) const WORKER_FAILED: &str =
    "a thread of the generator failed; this is a fault of the generator itself";

/// A thread of the generator, and how it is told something.
pub(super) struct WorkerHandle {
    orders: SyncSender<ToWorker>,
    wake: Arc<OwnedFd>,
    thread: JoinHandle<()>,
}

impl WorkerHandle {
    pub(super) fn order(&self, word: ToWorker) {
        // Fails when the worker has ended, or has 256 orders before it: a flood, not an operator.
        if self.orders.try_send(word).is_ok() {
            wake(&self.wake);
        }
    }

    /// Whether it has ended.
    pub(super) fn is_over(&self) -> bool {
        self.thread.is_finished()
    }

    /// Has no more orders for it, and waits until it ends.
    ///
    /// # Errors
    /// The thread has panicked.
    pub(super) fn join(self) -> Result<(), Error> {
        drop(self.orders);
        self.thread.join().map_err(|_| Error::Usage(WORKER_FAILED.into()))
    }
}

/// Starts all threads of a run.
pub(super) fn start_workers(
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

fn spawn<P: Protocol + Send + 'static>(index: u32, worker: Worker<P>) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name(format!("load-{index}")).spawn(move || worker.run())
}
