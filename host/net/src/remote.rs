//! Commands from the owning program to a context's thread.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use spillway_transport::Time;

use crate::sockets::Sockets;

/// A command, which runs on the context's thread.
pub type Command<A> = Box<dyn FnOnce(Time, &mut A, &mut Sockets) + Send>;

/// Maximum number of waiting commands. Further callers get [`Unreachable`].
const COMMANDS_MAX: usize = 256;

/// The commands for a context. The context locks them only after an event of `wake`: no lock on the data path.
pub struct Mailbox<A> {
    commands: Mutex<VecDeque<Command<A>>>,
    pub stop: AtomicBool,
    closed: AtomicBool,
    pub wake: OwnedFd,
}

impl<A> Mailbox<A> {
    pub fn new(wake: OwnedFd) -> Mailbox<A> {
        let (stop, closed) = (AtomicBool::new(false), AtomicBool::new(false));
        Mailbox { commands: Mutex::new(VecDeque::new()), stop, closed, wake }
    }

    /// Takes all waiting commands, oldest first.
    pub fn take(&self) -> VecDeque<Command<A>> {
        std::mem::take(&mut *self.commands.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Rejects all waiting and future commands, because the context ends.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Release);
        // Dropping a command wakes the thread that waits for its result.
        drop(self.take());
    }
}

/// The context accepts no commands: it has ended or does not keep up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unreachable;

impl std::fmt::Display for Unreachable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the network thread has ended or does not keep up with commands")
    }
}

impl std::error::Error for Unreachable {}

/// A handle of a context that runs on another thread.
pub struct Remote<A>(pub(crate) Arc<Mailbox<A>>);

impl<A> Clone for Remote<A> {
    fn clone(&self) -> Remote<A> {
        Remote(Arc::clone(&self.0))
    }
}

impl<A> Remote<A> {
    /// Runs a command on the context's thread without waiting for it. Its data is written at the end of that turn.
    pub fn run(
        &self,
        command: impl FnOnce(Time, &mut A, &mut Sockets) + Send + 'static,
    ) -> Result<(), Unreachable> {
        {
            let mut commands = self.0.commands.lock().unwrap_or_else(PoisonError::into_inner);
            // Checked under the lock, so that no command remains in the queue of a context that has ended.
            if self.0.closed.load(Ordering::Acquire) || commands.len() >= COMMANDS_MAX {
                return Err(Unreachable);
            }
            commands.push_back(Box::new(command));
        }
        self.wake();
        Ok(())
    }

    /// Runs a command and waits for its result.
    pub fn run_and_wait<R: Send + 'static>(
        &self,
        command: impl FnOnce(Time, &mut A, &mut Sockets) -> R + Send + 'static,
    ) -> Result<R, Unreachable> {
        self.run_with_result(command)?.recv().map_err(|_| Unreachable)
    }

    /// Like [`run_and_wait`](Self::run_and_wait), but waits at most for `timeout`: a context that answers later is
    /// unreachable, too.
    pub fn run_and_wait_timeout<R: Send + 'static>(
        &self,
        timeout: Duration,
        command: impl FnOnce(Time, &mut A, &mut Sockets) -> R + Send + 'static,
    ) -> Result<R, Unreachable> {
        self.run_with_result(command)?.recv_timeout(timeout).map_err(|_| Unreachable)
    }

    /// Runs a command whose result the returned channel delivers.
    fn run_with_result<R: Send + 'static>(
        &self,
        command: impl FnOnce(Time, &mut A, &mut Sockets) -> R + Send + 'static,
    ) -> Result<Receiver<R>, Unreachable> {
        let (sender, result) = sync_channel(1);
        self.run(move |now, app, sockets| {
            // Sending fails if the caller no longer waits.
            let _ = sender.send(command(now, app, sockets));
        })?;
        Ok(result)
    }

    /// Ends the context's `run` after its present turn. Dropping the context closes its connections.
    pub fn stop(&self) {
        self.0.stop.store(true, Ordering::Release);
        self.wake();
    }

    fn wake(&self) {
        // Fails only if the counter is at its maximum; then the context has an event anyway.
        let _ = rustix::io::write(&self.0.wake, &1_u64.to_ne_bytes());
    }
}
