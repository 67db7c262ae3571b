//! Log lines on their way to standard error: a bounded queue and one thread that writes, so that no other thread ever
//! waits for the reader of the log, or for the disk that the log is on.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

/// Lines that wait to be written; further ones are dropped and counted.
const LINES_MAX: usize = 4096;
/// Bytes of these lines; the same.
const BYTES_MAX: usize = 1 << 20;

/// The log of this process, once there is one.
static STANDARD_ERROR: OnceLock<Log> = OnceLock::new();

/// The log of a process. Copies share the queue.
#[derive(Clone, Debug)]
pub struct Log {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    queue: Mutex<Queue>,
    /// There is a line to write.
    filled: Condvar,
    /// All lines have been written, or dropped.
    emptied: Condvar,
    /// Since the start.
    dropped: AtomicU64,
}

#[derive(Debug, Default)]
struct Queue {
    lines: VecDeque<Vec<u8>>,
    bytes: usize,
    /// The thread has taken a line, and is writing it.
    is_writing: bool,
}

impl Log {
    /// The process's log on standard error. `describe` makes the line that says how many lines were dropped, its end
    /// included; it is written in front of the next line that can be written.
    ///
    /// # Errors
    /// The host has no threads left.
    pub fn to_standard_error(describe: impl Fn(u64) -> Vec<u8> + Send + 'static) -> io::Result<&'static Log> {
        if let Some(log) = STANDARD_ERROR.get() {
            return Ok(log);
        }
        let log = Log::start(StandardError::default(), describe)?;
        Ok(STANDARD_ERROR.get_or_init(|| log))
    }

    /// A log that is written to `target`, each line by one `write_all`.
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
            let mut reported = 0;
            loop {
                let line = shared.take();
                shared.write(&mut target, &line, &mut reported, &describe);
            }
        };
        std::thread::Builder::new().name("log".into()).spawn(write)?;
        Ok(log)
    }

    /// Never blocks. A line for which there is no room is dropped and counted.
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
        self.shared.filled.notify_one();
    }

    /// Waits until all lines have been written or dropped, but not longer than this. For the end of a process.
    pub fn flush(&self, patience: Duration) {
        let deadline = Instant::now() + patience;
        let mut queue = self.shared.queue();
        while queue.is_writing || !queue.lines.is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            let waited = self.shared.emptied.wait_timeout(queue, left);
            queue = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Lines that were dropped since the start: the log could not be written, or not as fast as lines came.
    pub fn dropped(&self) -> u64 {
        self.shared.dropped.load(Ordering::Relaxed)
    }
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count_dropped(&self) {
        self.dropped.fetch_add(1, Ordering::Relaxed);
    }

    /// The next line. The one before has been written.
    fn take(&self) -> Vec<u8> {
        let mut queue = self.queue();
        queue.is_writing = false;
        loop {
            if let Some(line) = queue.lines.pop_front() {
                queue.bytes -= line.len();
                queue.is_writing = true;
                return line;
            }
            self.emptied.notify_all();
            queue = self.filled.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// `reported` is how many of the dropped lines the log tells of.
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

/// Writes a text and a line end to this process's standard error, through its log if it has one. Never blocks then, and
/// never fails.
pub fn say(text: &str) {
    let line = format!("{text}\n").into_bytes();
    match STANDARD_ERROR.get() {
        Some(log) => log.put(line),
        None => drop(io::stderr().write_all(&line)),
    }
}

/// Lines that this process could not log since its start; 0 where it has no log of this kind.
pub fn log_lines_dropped() -> u64 {
    STANDARD_ERROR.get().map_or(0, Log::dropped)
}

/// Waits until the process's log is written, but not longer than this.
pub fn flush_log(patience: Duration) {
    STANDARD_ERROR.get().into_iter().for_each(|log| log.flush(patience));
}

/// Descriptor 2 without the standard library's lock, which a thread that waits for a full pipe would hold.
#[derive(Debug, Default)]
struct StandardError {
    /// The last line was written in part.
    is_torn: bool,
}

impl Write for StandardError {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let target = rustix::stdio::stderr();
        loop {
            match rustix::io::write(target, bytes) {
                Ok(count) => return Ok(count),
                Err(Errno::INTR) => {}
                // Another process that shares this pipe or terminal has made it non-blocking.
                Err(Errno::AGAIN) => drop(poll(&mut [PollFd::new(&target, PollFlags::OUT)], None)),
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn write_all(&mut self, line: &[u8]) -> io::Result<()> {
        // What was written of a line before a disk was full does not become the beginning of this one.
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

    const PATIENCE: Duration = Duration::from_secs(30);

    /// A log that takes each line when the test says what comes of it.
    struct Slow {
        written: Sender<String>,
        verdicts: Receiver<io::Result<()>>,
    }

    impl Write for Slow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.verdicts.recv().expect("the test lives")?;
            self.written.send(String::from_utf8(bytes.to_vec()).expect("text")).expect("the test lives");
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn slow() -> (Log, Sender<io::Result<()>>, Receiver<String>) {
        let ((written, lines), (verdict, verdicts)) = (channel(), channel());
        let describe = |count| format!("{count} dropped").into_bytes();
        (Log::start(Slow { written, verdicts }, describe).unwrap(), verdict, lines)
    }

    fn no_room() -> io::Result<()> {
        Err(io::ErrorKind::StorageFull.into())
    }

    #[test]
    fn lines_that_cannot_be_written_are_counted_and_told_of_in_front_of_the_next() {
        let (log, verdict, lines) = slow();
        log.put(b"one".to_vec());
        verdict.send(no_room()).unwrap();
        log.flush(PATIENCE);
        // The line that tells of it cannot be written either.
        log.put(b"two".to_vec());
        verdict.send(no_room()).unwrap();
        log.flush(PATIENCE);
        assert_eq!(log.dropped(), 2);
        log.put(b"three".to_vec());
        log.put(b"four".to_vec());
        (0..3).for_each(|_| verdict.send(Ok(())).unwrap());
        log.flush(PATIENCE);
        assert_eq!(lines.try_iter().collect::<Vec<_>>(), ["2 dropped", "three", "four"]);
        assert_eq!(log.dropped(), 2);
    }

    #[test]
    fn a_log_that_nobody_reads_keeps_a_bounded_number_of_lines() {
        let (log, verdict, lines) = slow();
        log.put(b"first".to_vec());
        // The thread has it and waits; these wait behind it.
        while !log.shared.queue().is_writing {
            std::thread::yield_now();
        }
        for _ in 0..LINES_MAX + 5 {
            log.put(b"more".to_vec());
        }
        assert_eq!(log.dropped(), 5);
        log.flush(Duration::ZERO);
        (0..LINES_MAX + 2).for_each(|_| verdict.send(Ok(())).unwrap());
        log.flush(PATIENCE);
        let written: Vec<String> = lines.try_iter().collect();
        assert_eq!((&*written[0], &*written[1], written.len()), ("first", "5 dropped", LINES_MAX + 2));
    }

    #[test]
    fn a_log_that_nobody_reads_keeps_a_bounded_number_of_bytes() {
        let (log, _verdict, _lines) = slow();
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
