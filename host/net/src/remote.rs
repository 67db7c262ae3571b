//! Commands from the owning program to a context's thread, on any transport.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use spillway_transport::Time;

use crate::sockets::Sockets;

/// A command for an application `A` on a transport `T`. It runs on the context's thread.
pub type Command<A, T> = Box<dyn FnOnce(Time, &mut A, &mut T) + Send>;

/// Maximum number of waiting commands. Further callers get [`Unreachable`].
const COMMANDS_MAX: usize = 256;

/// The commands for a context. The context takes the lock only if [`has_commands`](Self::has_commands) is true or the
/// mailbox's descriptor has an event, so there is no lock on the data path.
pub struct Mailbox<A, T = Sockets> {
    commands: Mutex<VecDeque<Command<A, T>>>,
    has_commands: AtomicBool,
    is_stopped: AtomicBool,
    is_closed: AtomicBool,
    /// An eventfd, which each command increases.
    wake: OwnedFd,
}

impl<A, T> Mailbox<A, T> {
    /// An empty mailbox.
    ///
    /// # Errors
    /// The process has no file descriptors left.
    pub fn new() -> io::Result<Mailbox<A, T>> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Mailbox {
            commands: Mutex::new(VecDeque::new()),
            has_commands: AtomicBool::new(false),
            is_stopped: AtomicBool::new(false),
            is_closed: AtomicBool::new(false),
            wake,
        })
    }

    /// A handle for other threads.
    pub fn remote(self: &Arc<Self>) -> Remote<A, T> {
        Remote(Arc::clone(self))
    }

    /// Whether a [`Remote`] has stopped the context.
    pub fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::Acquire)
    }

    /// Whether commands wait. For a context that does not always wait for its descriptors.
    pub fn has_commands(&self) -> bool {
        self.has_commands.load(Ordering::Acquire)
    }

    /// Makes the descriptor unreadable until the next command. Call this whenever the descriptor was readable, even
    /// without commands; not needed by a context that waits for edges.
    pub fn clear_wake(&self) {
        // Fails only if the counter is zero.
        let _ = rustix::io::read(&self.wake, &mut [0_u8; 8]);
    }

    /// Takes all waiting commands, oldest first.
    pub fn take(&self) -> VecDeque<Command<A, T>> {
        // Cleared before the commands are taken: a command that is added later sets the flag again.
        self.has_commands.store(false, Ordering::Release);
        std::mem::take(&mut *self.commands.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Rejects all waiting and future commands, because the context ends.
    pub fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
        // Dropping a command wakes the thread that waits for its result.
        drop(self.take());
    }
}

/// Readable after a command was added or the context was stopped.
impl<A, T> AsFd for Mailbox<A, T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
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
pub struct Remote<A, T = Sockets>(Arc<Mailbox<A, T>>);

impl<A, T> Clone for Remote<A, T> {
    fn clone(&self) -> Remote<A, T> {
        Remote(Arc::clone(&self.0))
    }
}

impl<A: 'static, T: 'static> Remote<A, T> {
    /// Runs a command on the context's thread without waiting for it. Data that the command sends is written at the end
    /// of the turn that runs the command.
    pub fn run(
        &self,
        command: impl FnOnce(Time, &mut A, &mut T) + Send + 'static,
    ) -> Result<(), Unreachable> {
        {
            let mut commands = self.0.commands.lock().unwrap_or_else(PoisonError::into_inner);
            // Checked under the lock, so that no command remains in the queue of a context that has ended.
            if self.0.is_closed.load(Ordering::Acquire) || commands.len() >= COMMANDS_MAX {
                return Err(Unreachable);
            }
            commands.push_back(Box::new(command));
            self.0.has_commands.store(true, Ordering::Release);
        }
        self.wake();
        Ok(())
    }

    /// Runs a command and waits for its result.
    pub fn run_and_wait<R: Send + 'static>(
        &self,
        command: impl FnOnce(Time, &mut A, &mut T) -> R + Send + 'static,
    ) -> Result<R, Unreachable> {
        self.run_with_result(command)?.recv().map_err(|_| Unreachable)
    }

    /// Like [`run_and_wait`](Self::run_and_wait), but waits at most for `timeout`. After that the result is
    /// [`Unreachable`], although the command may still run.
    pub fn run_and_wait_timeout<R: Send + 'static>(
        &self,
        timeout: Duration,
        command: impl FnOnce(Time, &mut A, &mut T) -> R + Send + 'static,
    ) -> Result<R, Unreachable> {
        self.run_with_result(command)?.recv_timeout(timeout).map_err(|_| Unreachable)
    }

    /// Runs a command whose result the returned channel delivers.
    fn run_with_result<R: Send + 'static>(
        &self,
        command: impl FnOnce(Time, &mut A, &mut T) -> R + Send + 'static,
    ) -> Result<Receiver<R>, Unreachable> {
        let (sender, result) = sync_channel(1);
        self.run(move |now, app, transport| {
            // Sending fails if the caller no longer waits.
            let _ = sender.send(command(now, app, transport));
        })?;
        Ok(result)
    }

    /// Ends the context's `run` after its present turn. Dropping the context closes its connections.
    pub fn stop(&self) {
        self.0.is_stopped.store(true, Ordering::Release);
        self.wake();
    }

    fn wake(&self) {
        // Fails only if the counter is at its maximum; then the context has an event anyway.
        let _ = rustix::io::write(&self.0.wake, &1_u64.to_ne_bytes());
    }
}
