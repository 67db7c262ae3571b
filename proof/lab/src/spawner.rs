//! The thread that starts all processes.
//!
//! A process asks the kernel to be killed when its parent dies, and the kernel means the parent *thread*. So one thread,
//! which lives as long as this process, is everybody's parent; a process killed with SIGKILL takes its peers with it.

use std::io;
use std::process::{Child, Command};
use std::sync::OnceLock;
use std::sync::mpsc::{SyncSender, sync_channel};

/// Starts waiting in the queue at most; more callers wait.
const QUEUE_MAX: usize = 16;

type Job = (Command, SyncSender<io::Result<Child>>);

/// Starts a process from the long-lived thread.
pub(crate) fn spawn(command: Command) -> io::Result<Child> {
    static SPAWNER: OnceLock<Option<SyncSender<Job>>> = OnceLock::new();
    let ended = || io::Error::other("the thread that starts processes is not running");
    let jobs = SPAWNER.get_or_init(start).as_ref().ok_or_else(ended)?;
    let (reply, answer) = sync_channel(1);
    jobs.send((command, reply)).map_err(|_| ended())?;
    answer.recv().map_err(|_| ended())?
}

fn start() -> Option<SyncSender<Job>> {
    let (jobs, queue) = sync_channel::<Job>(QUEUE_MAX);
    let work = move || {
        for (mut command, reply) in queue {
            // The caller waits for the answer; should it have died, the child dies with its handle's owner.
            let _ = reply.send(command.spawn());
        }
    };
    std::thread::Builder::new().name("lab-spawner".into()).spawn(work).ok()?;
    Some(jobs)
}
