//! The log on standard error: a bounded queue and one writing thread, so that other threads never wait for its reader.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use crate::privileges::drop_capabilities;

/// Bounds on the lines that wait to be written; further lines are dropped and counted.
const LINES_MAX: usize = 4096;
const BYTES_MAX: usize = 1 << 20;

static STANDARD_ERROR: OnceLock<Log> = OnceLock::new();

/// The log of a process. Copies share the queue.
#[derive(Clone, Debug)]
pub struct Log {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    queue: Mutex<Queue>,
    line_queued: Condvar,
    /// Signalled when all lines have been written or dropped.
    all_written: Condvar,
    dropped: AtomicU64,
}

#[derive(Debug, Default)]
struct Queue {
    lines: VecDeque<Vec<u8>>,
    bytes: usize,
    /// The writing thread has taken a line from the queue and is writing it.
    is_writing: bool,
}

impl Log {
    /// The process's log on standard error. The first call starts it with [`start`](Self::start).
    pub fn to_standard_error(describe: impl Fn(u64) -> Vec<u8> + Send + 'static) -> io::Result<&'static Log> {
        if let Some(log) = STANDARD_ERROR.get() {
            return Ok(log);
        }
        let log = Log::start(StandardError::default(), describe)?;
        Ok(STANDARD_ERROR.get_or_init(|| log))
    }

    /// A log that writes to `target`, each line by one `write_all`. `describe` forms the line, with its end, that
    /// reports a number of dropped lines; it precedes the next line that can be written.
    ///
    /// # Errors
    /// The host has no threads left.
    pub fn start(
        mut target: impl Write + Send + 'static,
        describe: impl Fn(u64) -> Vec<u8> + Send + 'static,
    ) -> io::Result<Log> {
        let log = Log { shared: Arc::default() };
        let shared = Arc::clone(&log.shared);
        let write = move || {
            drop_capabilities();
            let mut reported = 0;
            loop {
                let line = shared.take();
                shared.write(&mut target, &line, &mut reported, &describe);
            }
        };
        std::thread::Builder::new().name("log".into()).spawn(write)?;
        Ok(log)
    }

    /// Queues a line, with its end, and never blocks. Beyond the queue's bounds a line is dropped and counted.
    pub fn put(&self, line: Vec<u8>) {
        let mut queue = self.shared.queue();
        if queue.lines.len() >= LINES_MAX || queue.bytes + line.len() > BYTES_MAX {
            drop(queue);
            self.shared.count_dropped();
            return;
        }
        queue.bytes += line.len();
        queue.lines.push_back(line);
        drop(queue);
        self.shared.line_queued.notify_one();
    }

    /// Waits until all lines have been written or dropped, at most `timeout`. Call it before the process ends.
    pub fn flush(&self, timeout: Duration) {
        let deadline = Instant::now() + timeout;
        let mut queue = self.shared.queue();
        while queue.is_writing || !queue.lines.is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            let waited = self.shared.all_written.wait_timeout(queue, left);
            queue = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Number of lines dropped since the start, because writing failed or was too slow.
    pub fn dropped(&self) -> u64 {
        self.shared.dropped.load(Ordering::Relaxed)
    }
}

/// Each write [puts](Log::put) one line into the log: pass whole lines, with their ends, as the library `tracing` does.
impl Write for &Log {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.put(line.to_vec());
        Ok(line.len())
    }

    /// Does not wait; see [`Log::flush`].
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count_dropped(&self) {
        self.dropped.fetch_add(1, Ordering::Relaxed);
    }

    /// Waits for the next line. Marks the previous line, if any, as written.
    fn take(&self) -> Vec<u8> {
        let mut queue = self.queue();
        queue.is_writing = false;
        loop {
            if let Some(line) = queue.lines.pop_front() {
                queue.bytes -= line.len();
                queue.is_writing = true;
                return line;
            }
            self.all_written.notify_all();
            queue = self.line_queued.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Reports lines dropped since the last report, then writes `line`. `reported`: dropped lines in all reports.
    fn write(
        &self,
        target: &mut impl Write,
        line: &[u8],
        reported: &mut u64,
        describe: &impl Fn(u64) -> Vec<u8>,
    ) {
        let dropped = self.dropped.load(Ordering::Relaxed);
        if dropped > *reported {
            if target.write_all(&describe(dropped - *reported)).is_err() {
                return self.count_dropped();
            }
            *reported = dropped;
        }
        if target.write_all(line).is_err() {
            self.count_dropped();
        }
    }
}

/// Writes a text and a line end to standard error; ignores errors. Does not block if a [`Log`] was started there.
pub fn log_line(text: &str) {
    let line = format!("{text}\n").into_bytes();
    match STANDARD_ERROR.get() {
        Some(log) => log.put(line),
        None => drop(io::stderr().write_all(&line)),
    }
}

/// As [`Log::dropped`], for this process's log; 0 if there is no log.
pub fn log_lines_dropped() -> u64 {
    STANDARD_ERROR.get().map_or(0, Log::dropped)
}

/// As [`Log::flush`], for this process's log.
pub fn flush_log(timeout: Duration) {
    STANDARD_ERROR.get().into_iter().for_each(|log| log.flush(timeout));
}

/// Descriptor 2 without the standard library's lock: a thread that waits for a full pipe would hold that lock.
#[derive(Debug, Default)]
struct StandardError {
    /// Only the beginning of the last line was written.
    is_torn: bool,
}

impl Write for StandardError {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let target = rustix::stdio::stderr();
        loop {
            match rustix::io::write(target, bytes) {
                Ok(count) => return Ok(count),
                Err(Errno::INTR) => {}
                // Another process that shares the pipe or terminal may have made it non-blocking.
                Err(Errno::AGAIN) => drop(poll(&mut [PollFd::new(&target, PollFlags::OUT)], None)),
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn write_all(&mut self, line: &[u8]) -> io::Result<()> {
        // End a torn line (the disk was full, for example) before this one begins.
        let mut bytes: &[u8] = if self.is_torn { &[b"\n", line].concat() } else { line };
        while !bytes.is_empty() {
            match self.write(bytes)? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                count => bytes = &bytes[count..],
            }
            self.is_torn = !bytes.is_empty();
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(30);

    /// A target in which each write waits for its result, which the test sends.
    struct GatedTarget {
        written: Sender<String>,
        results: Receiver<io::Result<()>>,
    }

    impl Write for GatedTarget {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.results.recv().expect("the test should send a result for each write")?;
            self.written
                .send(String::from_utf8(bytes.to_vec()).unwrap())
                .expect("the test should still receive");
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn gated_log() -> (Log, Sender<io::Result<()>>, Receiver<String>) {
        let ((written, lines), (result, results)) = (channel(), channel());
        let describe = |count| format!("{count} dropped").into_bytes();
        (Log::start(GatedTarget { written, results }, describe).unwrap(), result, lines)
    }

    fn disk_full() -> io::Result<()> {
        Err(io::ErrorKind::StorageFull.into())
    }

    #[test]
    fn lines_that_cannot_be_written_are_counted_and_reported_before_the_next() {
        let (log, result, lines) = gated_log();
        log.put(b"one".to_vec());
        result.send(disk_full()).unwrap();
        log.flush(TIMEOUT);
        // Writing the report fails, too.
        log.put(b"two".to_vec());
        result.send(disk_full()).unwrap();
        log.flush(TIMEOUT);
        assert_eq!(log.dropped(), 2);
        log.put(b"three".to_vec());
        log.put(b"four".to_vec());
        (0..3).for_each(|_| result.send(Ok(())).unwrap());
        log.flush(TIMEOUT);
        assert_eq!(lines.try_iter().collect::<Vec<_>>(), ["2 dropped", "three", "four"]);
        assert_eq!(log.dropped(), 2);
    }

    #[test]
    fn a_log_without_a_reader_keeps_a_bounded_number_of_lines() {
        let (log, result, lines) = gated_log();
        log.put(b"first".to_vec());
        // The writing thread has taken the line and waits in `write`; further lines stay in the queue.
        while !log.shared.queue().is_writing {
            std::thread::yield_now();
        }
        for _ in 0..LINES_MAX + 5 {
            log.put(b"more".to_vec());
        }
        assert_eq!(log.dropped(), 5);
        log.flush(Duration::ZERO);
        (0..LINES_MAX + 2).for_each(|_| result.send(Ok(())).unwrap());
        log.flush(TIMEOUT);
        let written: Vec<String> = lines.try_iter().collect();
        assert_eq!((&*written[0], &*written[1], written.len()), ("first", "5 dropped", LINES_MAX + 2));
    }

    #[test]
    fn a_log_without_a_reader_keeps_a_bounded_number_of_bytes() {
        let (log, _result, _lines) = gated_log();
        log.put(vec![0; BYTES_MAX]);
        while !log.shared.queue().is_writing {
            std::thread::yield_now();
        }
        log.put(vec![0; BYTES_MAX - 1]);
        log.put(vec![0; 2]);
        log.put(vec![0; 1]);
        assert_eq!((log.dropped(), log.shared.queue().bytes), (1, BYTES_MAX));
    }
}
