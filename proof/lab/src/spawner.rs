//! The thread that starts all processes of the lab.
//!
//! The kernel sends a parent death signal when the parent *thread* ends. So one thread, which runs until the
//! laboratory's process ends, starts all processes. SIGKILL of the laboratory's process then kills them, too.

use std::io;
use std::process::{Child, Command};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Mutex, PoisonError};

/// Maximum requests in the queue. Further callers block.
const QUEUE_MAX: usize = 16;

type Job = (Command, SyncSender<io::Result<Child>>);

pub(crate) fn spawn(command: Command) -> io::Result<Child> {
    let ended = || io::Error::other("the thread that starts processes has ended");
    let jobs = running_spawner()?;
    let (reply_sender, reply) = sync_channel(1);
    jobs.send((command, reply_sender)).map_err(|_| ended())?;
    reply.recv().map_err(|_| ended())?
}

/// The queue of the spawner's thread, which the first call starts. After an error, the next call tries again.
fn running_spawner() -> io::Result<SyncSender<Job>> {
    static SPAWNER: Mutex<Option<SyncSender<Job>>> = Mutex::new(None);
    let mut spawner = SPAWNER.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(jobs) = &*spawner {
        return Ok(jobs.clone());
    }
    let jobs = start().map_err(|error| {
        io::Error::new(error.kind(), format!("cannot create the thread that starts processes: {error}"))
    })?;
    Ok(spawner.insert(jobs).clone())
}

fn start() -> io::Result<SyncSender<Job>> {
    let (jobs, queue) = sync_channel::<Job>(QUEUE_MAX);
    let work = move || {
        for (mut command, reply_sender) in queue {
            // Cannot fail: the caller keeps the receiver until it has the reply.
            let _ = reply_sender.send(command.spawn());
        }
    };
    std::thread::Builder::new().name("lab-spawner".into()).spawn(work)?;
    Ok(jobs)
}
