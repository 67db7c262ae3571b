//! Commands from the owning program to a context's thread.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use spillway_transport::Time;

use crate::sockets::Sockets;

/// A command: runs on the context's thread, between two turns.
pub type Command<A> = Box<dyn FnOnce(Time, &mut A, &mut Sockets) + Send>;

/// Commands that wait; beyond it the caller is told that the context is unreachable.
const COMMANDS_MAX: usize = 256;

/// The mailbox of a context. Looked at only when its descriptor says so: no lock on the data path.
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

    /// Everything that was sent, oldest first.
    pub fn take(&self) -> VecDeque<Command<A>> {
        std::mem::take(&mut *self.commands.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The context is gone: nothing will be taken any more.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Release);
        // Dropping the commands tells whoever waits for their answers.
        drop(self.take());
    }
}

/// A context does not take commands: it has ended, or is far behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unreachable;

impl std::fmt::Display for Unreachable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the network thread has ended or does not keep up with commands")
    }
}

impl std::error::Error for Unreachable {}

/// A handle to a context that runs on another thread.
pub struct Remote<A>(pub(crate) Arc<Mailbox<A>>);

impl<A> Clone for Remote<A> {
    fn clone(&self) -> Remote<A> {
        Remote(Arc::clone(&self.0))
    }
}

impl<A> Remote<A> {
    /// Runs a command on the context's thread, soon. What it sends leaves at the end of that turn.
    pub fn run(
        &self,
        command: impl FnOnce(Time, &mut A, &mut Sockets) + Send + 'static,
    ) -> Result<(), Unreachable> {
        {
            let mut commands = self.0.commands.lock().unwrap_or_else(PoisonError::into_inner);
            // Asked under the lock, so that no command is left behind by a context that ends.
            if self.0.closed.load(Ordering::Acquire) || commands.len() >= COMMANDS_MAX {
                return Err(Unreachable);
            }
            commands.push_back(Box::new(command));
        }
        self.wake();
        Ok(())
    }

    /// Runs a command and waits for its result.
    pub fn ask<R: Send + 'static>(
        &self,
        question: impl FnOnce(Time, &mut A, &mut Sockets) -> R + Send + 'static,
    ) -> Result<R, Unreachable> {
        self.put(question)?.recv().map_err(|_| Unreachable)
    }

    /// As [`ask`](Self::ask), but waits no longer than `within`: a context that stands still is unreachable, too.
    pub fn ask_within<R: Send + 'static>(
        &self,
        within: Duration,
        question: impl FnOnce(Time, &mut A, &mut Sockets) -> R + Send + 'static,
    ) -> Result<R, Unreachable> {
        self.put(question)?.recv_timeout(within).map_err(|_| Unreachable)
    }

    /// Has a question answered; the answer comes where this says.
    fn put<R: Send + 'static>(
        &self,
        question: impl FnOnce(Time, &mut A, &mut Sockets) -> R + Send + 'static,
    ) -> Result<Receiver<R>, Unreachable> {
        let (answer, answered) = sync_channel(1);
        self.run(move |now, app, sockets| {
            // Nobody may be waiting any more.
            let _ = answer.send(question(now, app, sockets));
        })?;
        Ok(answered)
    }

    /// Ends the context's `run` after its present turn. Open connections are closed when it is dropped.
    pub fn stop(&self) {
        self.0.stop.store(true, Ordering::Release);
        self.wake();
    }

    fn wake(&self) {
        // Fails only when the counter is full, and then the context is awake.
        let _ = rustix::io::write(&self.0.wake, &1_u64.to_ne_bytes());
    }
}
