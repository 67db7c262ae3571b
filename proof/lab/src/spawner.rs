//! The thread that starts all processes of the lab.
//!
//! The kernel sends a parent death signal when the parent *thread* ends. Therefore one thread, which ends with this
//! process, starts all peers: SIGKILL of this process also kills them.

use std::io;
use std::process::{Child, Command};
use std::sync::OnceLock;
use std::sync::mpsc::{SyncSender, sync_channel};

/// Requests in the queue; further callers block.
const QUEUE_MAX: usize = 16;

type Job = (Command, SyncSender<io::Result<Child>>);

pub(crate) fn spawn(command: Command) -> io::Result<Child> {
    static SPAWNER: OnceLock<Option<SyncSender<Job>>> = OnceLock::new();
    let ended = || io::Error::other("the thread that starts processes is not running");
    let jobs = SPAWNER.get_or_init(start).as_ref().ok_or_else(ended)?;
    let (reply_sender, reply) = sync_channel(1);
    jobs.send((command, reply_sender)).map_err(|_| ended())?;
    reply.recv().map_err(|_| ended())?
}

fn start() -> Option<SyncSender<Job>> {
    let (jobs, queue) = sync_channel::<Job>(QUEUE_MAX);
    let work = move || {
        for (mut command, reply_sender) in queue {
            // The caller waits for the reply, unless its thread has ended.
            let _ = reply_sender.send(command.spawn());
        }
    };
    std::thread::Builder::new().name("lab-spawner".into()).spawn(work).ok()?;
    Some(jobs)
}
