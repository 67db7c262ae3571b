//! One line per decision on standard error, by a raw write, never more than a few each second.

use core::fmt::{self, Write};
use core::sync::atomic::{AtomicU64, Ordering};

use libc::c_int;

use crate::{sys, table};

/// Lines within one second; more are dropped.
const LINES_PER_SECOND: u64 = 20;

/// Lines within one second about peers that have not authenticated: whoever knocks on the link port must not be
/// able to hide what else happens.
const KNOCKS_PER_SECOND: u64 = 5;

const STANDARD_ERROR: c_int = 2;

/// A longer line is cut.
const LINE_BYTES_MAX: usize = 512;

/// The second, times 2^20, plus the lines written in it.
static BUDGET: AtomicU64 = AtomicU64::new(0);
static KNOCK_BUDGET: AtomicU64 = AtomicU64::new(0);

struct Line {
    bytes: [u8; LINE_BYTES_MAX],
    length: usize,
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = LINE_BYTES_MAX - 1 - self.length; // the last byte is for the line's end
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
    }
}

/// As [`line`], about a peer that has not authenticated.
pub(crate) fn knock(arguments: fmt::Arguments<'_>) {
    if may_write(&KNOCK_BUDGET, KNOCKS_PER_SECOND) {
        always(arguments);
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

/// Writes the line whatever was written before: for the last words of a process.
pub(crate) fn always(arguments: fmt::Arguments<'_>) {
    let mut line = Line { bytes: [0; LINE_BYTES_MAX], length: 0 };
    let _ = line.write_str("spillway: ");
    let _ = line.write_fmt(arguments);
    line.bytes[line.length] = b'\n';
    if is_log(STANDARD_ERROR) {
        let _ = sys::write(STANDARD_ERROR, &line.bytes[..=line.length]);
    }
}

/// Servers that close standard error have clients with its number, or we have a descriptor of our own.
fn is_log(fd: c_int) -> bool {
    let family = sys::option(fd, libc::SOL_SOCKET, libc::SO_DOMAIN);
    table::is_real(fd) && !matches!(family, Ok(libc::AF_INET | libc::AF_INET6))
}

/// An error number as people know it.
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
}
