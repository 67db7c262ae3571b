//! One line per decision on standard error, at most a few each second, each by one write that does not wait.
//!
//! The server's threads log while they hold locks that direct clients need, too, so a reader of the log that has
//! stopped must not stop them: a line for which there is no room at once is dropped and counted. Nothing is written
//! if descriptor 2 is another file than when the library was loaded: a server that closes its standard error opens
//! its next file or connection under that number.

use core::fmt::{self, Write};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::status::layout::Counter;
use crate::status::own;
use crate::{standard_error, sys};

/// Lines within one second; more are dropped.
const LINES_PER_SECOND: u64 = 20;

/// Lines within one second about peers that have not authenticated: strangers at the link port must not be able to
/// crowd out other lines.
const KNOCKS_PER_SECOND: u64 = 5;

/// The longest line in bytes; longer ones are cut.
const LINE_BYTES_MAX: usize = 512;

/// Bytes of one write: a line that reports dropped lines, and another line.
const WRITE_BYTES_MAX: usize = LINE_BYTES_MAX + 64;

/// Attempts to write while another thread writes, which takes microseconds.
const TURNS_MAX: u32 = 1000;

/// The second, times 2^20, plus the lines written in it.
static BUDGET: AtomicU64 = AtomicU64::new(0);
static KNOCK_BUDGET: AtomicU64 = AtomicU64::new(0);

/// Whether a thread is writing.
static WRITING: AtomicBool = AtomicBool::new(false);

/// Lines that were not written, and how many of them the log has reported.
static DROPPED: AtomicU64 = AtomicU64::new(0);
static TOLD: AtomicU64 = AtomicU64::new(0);

/// The text of one write.
struct Text {
    bytes: [u8; WRITE_BYTES_MAX],
    length: usize,
    /// The end of the current line's room in `bytes`; the last byte is for the line end.
    end: usize,
}

impl Text {
    /// An empty text, or one that begins with a line end to terminate the previous line.
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
        let taken = text.len().min(room);
        self.bytes[self.length..self.length + taken].copy_from_slice(&text.as_bytes()[..taken]);
        self.length += taken;
        Ok(())
    }
}

/// Writes `spillway: ` and the line, unless too many were written this second.
pub(crate) fn line(arguments: fmt::Arguments<'_>) {
    if may_write(&BUDGET, LINES_PER_SECOND) {
        always(arguments);
    } else {
        count_dropped();
    }
}

/// Like [`line`], about a peer that has not authenticated.
pub(crate) fn knock(arguments: fmt::Arguments<'_>) {
    if may_write(&KNOCK_BUDGET, KNOCKS_PER_SECOND) {
        always(arguments);
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

/// Writes the line even if too many were written this second: for the last lines of a process.
pub(crate) fn always(arguments: fmt::Arguments<'_>) {
    let Some(_turn) = Turn::take() else { return count_dropped() };
    let mut text = Text::new(standard_error::is_torn());
    let dropped = DROPPED.load(Ordering::Relaxed);
    let untold = dropped - TOLD.load(Ordering::Relaxed);
    if untold > 0 {
        text.line(WRITE_BYTES_MAX - LINE_BYTES_MAX, format_args!("{untold} log lines dropped"));
    }
    text.line(LINE_BYTES_MAX, arguments);
    if standard_error::write(text.as_bytes()) {
        TOLD.store(dropped, Ordering::Relaxed);
    } else {
        count_dropped();
    }
}

fn count_dropped() {
    DROPPED.fetch_add(1, Ordering::Relaxed);
    own::count(Counter::LogLinesDropped);
}

/// The number of lines that were not written.
pub(crate) fn dropped() -> u64 {
    DROPPED.load(Ordering::Relaxed)
}

/// Exists while one thread writes, so that no other does.
struct Turn;

impl Turn {
    /// `None` if another thread does not finish: in a child that was forked while a thread was writing, that thread
    /// does not exist.
    fn take() -> Option<Turn> {
        for _ in 0..TURNS_MAX {
            if !WRITING.swap(true, Ordering::Acquire) {
                return Some(Turn);
            }
            std::thread::yield_now();
        }
        None
    }
}

impl Drop for Turn {
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
    fn lines_are_counted_by_the_second() {
        let budget = AtomicU64::new(0);
        let written = (0..10_000).filter(|_| may_write(&budget, 5)).count();
        // The second may have changed meanwhile.
        assert!((5..=10).contains(&written), "{written}");
    }

    #[test]
    fn long_lines_are_cut_and_fit_one_write() {
        let mut text = Text::new(false);
        text.line(WRITE_BYTES_MAX - LINE_BYTES_MAX, format_args!("{} log lines dropped", u64::MAX));
        assert_eq!(text.as_bytes(), b"spillway: 18446744073709551615 log lines dropped\n");
        let before = text.length;
        text.line(LINE_BYTES_MAX, format_args!("{}", "x".repeat(1000)));
        assert_eq!((text.length - before, text.bytes[text.length - 1]), (LINE_BYTES_MAX, b'\n'));
        let mut torn = Text::new(true);
        torn.line(WRITE_BYTES_MAX - LINE_BYTES_MAX, format_args!("{} log lines dropped", u64::MAX));
        torn.line(LINE_BYTES_MAX, format_args!("{}", "x".repeat(1000)));
        assert!(torn.as_bytes().starts_with(b"\nspillway: 1844"), "behind a part of a line");
        assert_eq!(torn.as_bytes().last(), Some(&b'\n'));
        const { assert!(WRITE_BYTES_MAX <= standard_error::BYTES_MAX) };
    }
}
