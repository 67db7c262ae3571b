//! Messages between the steering thread and a worker.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender};

use rustix::event::{EventfdFlags, eventfd};

use crate::clock::Clock;
use crate::config::Config;
use crate::control::ScheduledCommand;
use crate::error::Error;
use crate::report::Move;
use crate::samples::Samples;

#[derive(Debug)]
pub enum ToWorker {
    Start(Clock),
    /// Execute the command at its time, or at once if the time has passed.
    Execute {
        scheduled: ScheduledCommand,
        move_id: u32,
    },
}

#[derive(Debug)]
pub enum FromWorker {
    /// All connections of the worker are open.
    Ready,
    /// Measurements since the last such message.
    Samples {
        index: u32,
        samples: Samples,
        /// Connections of this worker that use a helper.
        helped_now: u32,
    },
    /// A command took effect. Only worker 0 sends this message.
    Executed(ScheduledCommand),
    Moved(Move),
    Decided {
        at_ns: u64,
        what: String,
    },
    Trouble {
        at_ns: u64,
        what: String,
    },
    /// The last message of a worker that has finished.
    Done {
        arrivals_end_ns: u64,
    },
    /// The last message of a worker that has failed.
    Failed(Error),
}

/// Parameters of [`Worker::new`], without the protocol.
#[derive(Debug)]
pub struct WorkerSetup {
    /// Options of the run. The threads share connections, rate, pace and queue equally.
    pub config: Arc<Config>,
    pub index: u32,
    pub messages: Receiver<ToWorker>,
    /// Eventfd that the steering thread writes after each message.
    pub wake: Arc<OwnedFd>,
    pub to_steering: SyncSender<FromWorker>,
    /// Eventfd that the worker writes after each message.
    pub steering_wake: Arc<OwnedFd>,
}

/// Creates a non-blocking eventfd, which wakes a thread from epoll or poll.
pub fn wake_fd() -> Result<OwnedFd, Error> {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
        .map_err(|e| Error::system("cannot make an eventfd", e))
}

pub fn wake(fd: &OwnedFd) {
    // Fails only if the counter is full, which means that a wake-up is pending.
    let _ = rustix::io::write(fd, &1u64.to_ne_bytes());
}

impl WorkerSetup {
    pub fn notify(&self, message: FromWorker) {
        // Fails only if the steering thread has ended, and with it the run.
        if self.to_steering.send(message).is_ok() {
            wake(&self.steering_wake);
        }
    }
}
