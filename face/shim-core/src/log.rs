//! Log lines on standard error: a bounded number in each second, each with one write that does not wait.
//!
//! The server's threads log while they hold locks that direct clients need, too, so a log reader that has stopped must
//! not block them: without room for a line, the line is dropped and counted. Nothing is written if descriptor 2 refers
//! to another file than when the library was loaded: after a server closes its standard error, its next file or
//! connection gets that number.

use core::fmt::{self, Write};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::status::layout::Counter;
use crate::status::own;
use crate::{standard_error, sys};

/// Maximum number of lines within one second; further lines are dropped.
const LINES_PER_SECOND: u64 = 20;

/// Like [`LINES_PER_SECOND`], for lines about peers without authentication: they must not crowd out other lines.
const UNAUTHENTICATED_LINES_PER_SECOND: u64 = 5;

/// Maximum length of a line, in bytes; longer lines are truncated.
const LINE_BYTES_MAX: usize = 512;

/// Maximum length of one write, in bytes: a line that reports dropped lines, and another line.
const WRITE_BYTES_MAX: usize = LINE_BYTES_MAX + 64;

/// Attempts to become the writer while another thread writes, which takes microseconds.
const ATTEMPTS_MAX: u32 = 1000;

/// The current second times 2^20, plus the number of lines written in it.
static BUDGET: AtomicU64 = AtomicU64::new(0);
static UNAUTHENTICATED_BUDGET: AtomicU64 = AtomicU64::new(0);

/// Whether a thread is writing.
static WRITING: AtomicBool = AtomicBool::new(false);

/// Number of lines dropped, and the number of these that the log has reported.
static DROPPED: AtomicU64 = AtomicU64::new(0);
static REPORTED: AtomicU64 = AtomicU64::new(0);

/// The text of one write.
struct Text {
    bytes: [u8; WRITE_BYTES_MAX],
    length: usize,
    /// Where the current line must end in `bytes`, line end included.
    end: usize,
}

impl Text {
    /// An empty text, or with `ends_line` one that begins with a line end, to terminate an incomplete previous line.
    fn new(ends_line: bool) -> Text {
        let mut bytes = [0; WRITE_BYTES_MAX];
        bytes[0] = b'\n';
        Text { bytes, length: usize::from(ends_line), end: 0 }
    }

    fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    fn line(&mut self, bytes_max: usize, arguments: fmt::Arguments<'_>) {
        self.end = (self.length + bytes_max).min(WRITE_BYTES_MAX);
        let _ = self.write_str("spillway: ");
        let _ = self.write_fmt(arguments);
        self.bytes[self.length] = b'\n';
        self.length += 1;
    }
}

impl Write for Text {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = self.end - 1 - self.length;
        let copied = text.len().min(room);
        self.bytes[self.length..self.length + copied].copy_from_slice(&text.as_bytes()[..copied]);
        self.length += copied;
        Ok(())
    }
}

/// Writes `spillway: ` and the line, unless this second's limit is reached.
pub(crate) fn line(arguments: fmt::Arguments<'_>) {
    if may_write(&BUDGET, LINES_PER_SECOND) {
        unlimited(arguments);
    } else {
        count_dropped();
    }
}

/// Like [`line`], about a peer that has not authenticated.
pub(crate) fn unauthenticated(arguments: fmt::Arguments<'_>) {
    if may_write(&UNAUTHENTICATED_BUDGET, UNAUTHENTICATED_LINES_PER_SECOND) {
        unlimited(arguments);
    } else {
        count_dropped();
    }
}

fn may_write(budget: &AtomicU64, max: u64) -> bool {
    let second = (sys::now().as_nanos() / 1_000_000_000) << 20;
    let spend = |budget: u64| match budget >> 20 == second >> 20 {
        true => (budget & 0xf_ffff < max).then_some(budget + 1),
        false => Some(second + 1),
    };
    budget.fetch_update(Ordering::Relaxed, Ordering::Relaxed, spend).is_ok()
}

/// Like [`line`], without a limit: for lines at the start and the end of a process.
pub(crate) fn unlimited(arguments: fmt::Arguments<'_>) {
    let Some(_writer) = Writer::take() else { return count_dropped() };
    let mut text = Text::new(standard_error::is_incomplete());
    let dropped = DROPPED.load(Ordering::Relaxed);
    let unreported = dropped - REPORTED.load(Ordering::Relaxed);
    if unreported > 0 {
        text.line(WRITE_BYTES_MAX - LINE_BYTES_MAX, format_args!("{unreported} log lines dropped"));
    }
    text.line(LINE_BYTES_MAX, arguments);
    if standard_error::write(text.as_bytes()) {
        REPORTED.store(dropped, Ordering::Relaxed);
    } else {
        count_dropped();
    }
}

fn count_dropped() {
    DROPPED.fetch_add(1, Ordering::Relaxed);
    own::count(Counter::LogLinesDropped);
}

/// The number of lines dropped.
pub(crate) fn dropped() -> u64 {
    DROPPED.load(Ordering::Relaxed)
}

/// The right to write, which one thread has at a time.
struct Writer;

impl Writer {
    /// `None` if another thread keeps the right, as in a child that was forked while a thread was writing.
    fn take() -> Option<Writer> {
        for _ in 0..ATTEMPTS_MAX {
            if !WRITING.swap(true, Ordering::Acquire) {
                return Some(Writer);
            }
            std::thread::yield_now();
        }
        None
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        WRITING.store(false, Ordering::Release);
    }
}

/// An error number as readable text.
pub(crate) struct Reason(pub(crate) sys::Errno);

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            libc::EACCES => "permission denied",
            libc::EPERM => "not permitted",
            libc::ENOENT => "no such file",
            libc::EADDRINUSE => "the address is in use",
            libc::EADDRNOTAVAIL => "no interface has this address",
            libc::EMFILE => "too many open files: raise the limit (ulimit -n)",
            libc::ENFILE => "too many open files on this machine",
            libc::ENOMEM => "out of memory",
            libc::ECONNRESET => "reset by the peer",
            libc::EPIPE => "closed by the peer",
            libc::ETIMEDOUT => "timed out",
            other => return write!(f, "error {other}"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_one_second_are_limited() {
        let budget = AtomicU64::new(0);
        let written = (0..10_000).filter(|_| may_write(&budget, 5)).count();
        // Up to two seconds' lines, because the second may change during the test.
        assert!((5..=10).contains(&written), "{written}");
    }

    #[test]
    fn long_line_is_truncated_and_fits_one_write() {
        let mut text = Text::new(false);
        text.line(WRITE_BYTES_MAX - LINE_BYTES_MAX, format_args!("{} log lines dropped", u64::MAX));
        assert_eq!(text.as_bytes(), b"spillway: 18446744073709551615 log lines dropped\n");
        let before = text.length;
        text.line(LINE_BYTES_MAX, format_args!("{}", "x".repeat(1000)));
        assert_eq!((text.length - before, text.bytes[text.length - 1]), (LINE_BYTES_MAX, b'\n'));
        let mut after_incomplete = Text::new(true);
        after_incomplete
            .line(WRITE_BYTES_MAX - LINE_BYTES_MAX, format_args!("{} log lines dropped", u64::MAX));
        after_incomplete.line(LINE_BYTES_MAX, format_args!("{}", "x".repeat(1000)));
        assert!(
            after_incomplete.as_bytes().starts_with(b"\nspillway: 1844"),
            "a line end should terminate the incomplete line"
        );
        assert_eq!(after_incomplete.as_bytes().last(), Some(&b'\n'));
        const { assert!(WRITE_BYTES_MAX <= standard_error::BYTES_MAX) };
    }
}
