//! CPU time of threads.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::error::Error;

/// The name of the thread with the stack.
const STACK_THREAD: &str = "stack";

/// CPU time so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ThreadCpu {
    /// Of the thread with the stack.
    pub stack: Duration,
    /// Of all threads that run.
    pub all: Duration,
}

/// CPU time of the calling thread so far. Other work on its core does not count.
pub(super) fn own() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// CPU time of a process's threads.
pub(super) fn of(pid: u32) -> Result<ThreadCpu, Error> {
    let directory = PathBuf::from(format!("/proc/{pid}/task"));
    let failed = |cause| Error::System { what: format!("cannot read {}", directory.display()), cause };
    let mut cpu = ThreadCpu::default();
    for thread in fs::read_dir(&directory).map_err(failed)? {
        let path = thread.map_err(failed)?.path();
        // A thread may end while it is read.
        let (Ok(name), Ok(statistics)) =
            (fs::read_to_string(path.join("comm")), fs::read_to_string(path.join("schedstat")))
        else {
            continue;
        };
        let ns = statistics.split_whitespace().next().and_then(|field| field.parse().ok()).unwrap_or(0);
        let used = Duration::from_nanos(ns);
        cpu.all += used;
        if name.trim_end() == STACK_THREAD {
            cpu.stack += used;
        }
    }
    Ok(cpu)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_thread_of_the_stack_is_found_by_its_name() {
        let (done, wait) = std::sync::mpsc::channel::<()>();
        let (ready, is_ready) = std::sync::mpsc::channel();
        let thread = std::thread::Builder::new()
            .name(STACK_THREAD.into())
            .spawn(move || {
                let until = std::time::Instant::now() + Duration::from_millis(20);
                while std::time::Instant::now() < until {}
                ready.send(()).unwrap();
                let _ = wait.recv();
            })
            .unwrap();
        is_ready.recv().unwrap();
        let before = own();
        let cpu = of(std::process::id()).unwrap();
        assert!(own() > before);
        assert!(cpu.stack > Duration::ZERO && cpu.all > cpu.stack, "{cpu:?}");
        drop(done);
        thread.join().unwrap();
    }
}
