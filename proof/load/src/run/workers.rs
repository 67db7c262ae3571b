//! The worker threads of a run.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;

use crate::config::{Config, ProtocolKind};
use crate::engine::Engine;
use crate::error::Error;
use crate::keys::Keys;
use crate::protocol::Protocol;
use crate::protocol::echo::Echo;
use crate::protocol::http::Http;
use crate::protocol::memcached::Memcached;
use crate::protocol::redis::Redis;
use crate::protocol::store::{Dialect, Store};
use crate::random::mix;
use crate::worker::{FromWorker, ToWorker, Worker, WorkerSetup, wake, wake_fd};

/// Bound of a worker's unread messages: more than a schedule of [`crate::config::COMMANDS_MAX`] commands and the start.
const MESSAGES_QUEUED_MAX: usize = 256;
/// Error of a run whose worker thread ended without a message.
pub(super) const WORKER_FAILED: &str =
    "a thread of the load generator panicked: please report this bug, with the panic's message";

pub(super) struct WorkerHandle {
    messages: SyncSender<ToWorker>,
    wake: Arc<OwnedFd>,
    thread: JoinHandle<()>,
}

impl WorkerHandle {
    /// Sends the worker a message. Returns false if the worker has `MESSAGES_QUEUED_MAX` unread messages: this one is
    /// dropped. A worker that has ended needs no messages.
    #[must_use]
    pub(super) fn send(&self, message: ToWorker) -> bool {
        match self.messages.try_send(message) {
            Ok(()) => wake(&self.wake),
            Err(TrySendError::Full(_)) => return false,
            Err(TrySendError::Disconnected(_)) => {}
        }
        true
    }

    pub(super) fn has_ended(&self) -> bool {
        self.thread.is_finished()
    }

    /// Closes the channel and waits until the worker ends. Fails if the thread panicked.
    pub(super) fn join(self) -> Result<(), Error> {
        drop(self.messages);
        self.thread.join().map_err(|_| Error::Usage(WORKER_FAILED.into()))
    }
}

/// Starts a thread for each of `seats`. In that thread, `open` makes the engine from the seat and from an eventfd that
/// is readable when a message has arrived.
pub(super) fn start_workers<S: Send + 'static, E: Engine>(
    config: &Config,
    steering_wake: &Arc<OwnedFd>,
    to_steering: &SyncSender<FromWorker>,
    seats: Vec<S>,
    open: fn(S, Arc<OwnedFd>) -> Result<E, Error>,
) -> Result<Vec<WorkerHandle>, Error> {
    let shared = Arc::new(config.clone());
    let keys = match config.zipf {
        Some(exponent) if config.protocol.has_keys() => Keys::zipf(config.keys, exponent),
        _ => Keys::uniform(config.keys),
    };
    (0..config.threads)
        .zip(seats)
        .map(|(index, seat)| {
            let (messages, receiver) = sync_channel(MESSAGES_QUEUED_MAX);
            let wake = Arc::new(wake_fd()?);
            let setup = WorkerSetup {
                config: shared.clone(),
                index,
                messages: receiver,
                wake: wake.clone(),
                to_steering: to_steering.clone(),
                steering_wake: steering_wake.clone(),
            };
            let engine_wake = wake.clone();
            let open = move || open(seat, engine_wake);
            let thread = match config.protocol {
                ProtocolKind::Memcached => {
                    let protocol: Memcached = store(config, &keys, index);
                    spawn(setup, protocol, open)
                }
                ProtocolKind::Redis => {
                    let protocol: Redis = store(config, &keys, index);
                    spawn(setup, protocol, open)
                }
                ProtocolKind::Echo => spawn(setup, Echo::new(seed(config, index), config.value_size), open),
                ProtocolKind::Http => {
                    let http = Http::new(seed(config, index), config.value_size, config.object_size);
                    spawn(setup, http, open)
                }
            };
            thread
                .map(|thread| WorkerHandle { messages, wake, thread })
                .map_err(|e| Error::system("cannot start a thread", e))
        })
        .collect()
}

/// Seed of a thread's payloads.
fn seed(config: &Config, index: u32) -> u64 {
    mix(config.seed) ^ mix(u64::from(config.share.0) << 32 | u64::from(index))
}

fn store<D: Dialect>(config: &Config, keys: &Keys, index: u32) -> Store<D> {
    let (share, shares) = config.share;
    let share = (share * config.threads + index, shares * config.threads);
    Store::new(config.space(), keys.clone(), config.get_ratio, share)
}

fn spawn<P: Protocol + Send + 'static, E: Engine>(
    setup: WorkerSetup,
    protocol: P,
    open: impl FnOnce() -> Result<E, Error> + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name(format!("load-{}", setup.index)).spawn(move || match open() {
        Ok(engine) => Worker::new(setup, protocol, engine).run(),
        Err(error) => setup.notify(FromWorker::Failed(error)),
    })
}
