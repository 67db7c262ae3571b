//! Suppresses the signals that a write may raise: a log line must not end the application.

use core::time::Duration;

use libc::c_int;

use crate::sys::{self, Errno, call};

/// A set of signals in the kernel's form: bit 0 is signal 1.
type Mask = u64;

/// Raised by a write to a pipe without a reader.
const BROKEN_PIPE: Mask = mask_of(libc::SIGPIPE);
/// Raised by a write beyond `RLIMIT_FSIZE`.
const FILE_TOO_LARGE: Mask = mask_of(libc::SIGXFSZ);

const fn mask_of(signal: c_int) -> Mask {
    1 << (signal - 1)
}

/// Calls `write`, and removes the signal that the kernel has raised for it. A signal that was pending before stays
/// pending, and the thread's signal mask does not change. May be called in signal handlers.
pub(crate) fn without_signal(write: impl FnOnce() -> Result<usize, Errno>) -> Result<usize, Errno> {
    let before = change_mask(libc::SIG_BLOCK, BROKEN_PIPE | FILE_TOO_LARGE)?;
    let was_pending = pending();
    let outcome = write();
    let raised = match outcome {
        Err(libc::EPIPE) => BROKEN_PIPE,
        Err(libc::EFBIG) => FILE_TOO_LARGE,
        _ => 0,
    };
    take_pending(raised & !was_pending);
    let _ = change_mask(libc::SIG_SETMASK, before);
    outcome
}

/// Changes the calling thread's mask. Returns the mask before.
fn change_mask(how: c_int, mask: Mask) -> Result<Mask, Errno> {
    let mut before: Mask = 0;
    call!(libc::SYS_rt_sigprocmask, how, &raw const mask, &raw mut before, size_of::<Mask>())?;
    Ok(before)
}

/// Blocked signals that are pending for the calling thread.
fn pending() -> Mask {
    let mut pending: Mask = 0;
    let _ = call!(libc::SYS_rt_sigpending, &raw mut pending, size_of::<Mask>());
    pending
}

/// Removes one pending signal of this set, if any; the kernel prefers a signal for this thread to one for the process.
fn take_pending(signals: Mask) {
    if signals != 0 {
        let no_wait = sys::timespec(Duration::ZERO);
        let no_details = core::ptr::null::<libc::siginfo_t>();
        let _ = call!(
            libc::SYS_rt_sigtimedwait,
            &raw const signals,
            no_details,
            &raw const no_wait,
            size_of::<Mask>()
        );
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    /// Exit code of a forked child whose checks have passed.
    const PASSED: c_int = 0;

    /// Runs `act` in a child in which both signals have their default action, which ends the process. Returns the
    /// child's exit code, or the signal that ended it. `act` may make system calls only.
    pub(crate) fn in_child(act: impl FnOnce() -> c_int) -> Result<c_int, c_int> {
        // Looks up libc's functions: the child must not, because another thread may have held the linker's lock.
        pending();
        // SAFETY: the child makes system calls only, and never returns.
        unsafe {
            let child = libc::fork();
            assert!(child >= 0);
            if child == 0 {
                let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
                libc::setrlimit(libc::RLIMIT_CORE, &raw const none);
                for signal in [libc::SIGPIPE, libc::SIGXFSZ] {
                    libc::signal(signal, libc::SIG_DFL);
                }
                libc::_exit(act());
            }
            let mut status = 0;
            assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
            if libc::WIFEXITED(status) { Ok(libc::WEXITSTATUS(status)) } else { Err(libc::WTERMSIG(status)) }
        }
    }

    #[test]
    fn write_to_a_pipe_without_a_reader_raises_no_signal_and_keeps_the_mask() {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let write = || sys::write(writer.as_raw_fd(), b"line\n");
        assert_eq!(
            in_child(|| write().err().unwrap_or(PASSED)),
            Err(libc::SIGPIPE),
            "a plain write should raise SIGPIPE"
        );
        let outcome = in_child(|| {
            if without_signal(write) != Err(libc::EPIPE) {
                return 1;
            }
            let mask = change_mask(libc::SIG_BLOCK, 0).unwrap_or(Mask::MAX);
            if mask & (BROKEN_PIPE | FILE_TOO_LARGE) != 0 {
                return 2;
            }
            // SAFETY: a plain call.
            unsafe { libc::raise(libc::SIGPIPE) };
            3
        });
        assert_eq!(outcome, Err(libc::SIGPIPE), "the application's own SIGPIPE should still be delivered");
    }

    #[test]
    fn pending_signal_stays_pending_and_no_further_one_is_added() {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let write = || without_signal(|| sys::write(writer.as_raw_fd(), b"line\n"));
        let outcome = in_child(|| {
            let _ = change_mask(libc::SIG_BLOCK, BROKEN_PIPE);
            if write() != Err(libc::EPIPE) || pending() & BROKEN_PIPE != 0 {
                return 1;
            }
            // SAFETY: a plain call.
            unsafe { libc::raise(libc::SIGPIPE) };
            if write() != Err(libc::EPIPE) || pending() & BROKEN_PIPE == 0 {
                return 2;
            }
            PASSED
        });
        assert_eq!(outcome, Ok(PASSED));
    }

    #[test]
    fn write_beyond_the_file_size_limit_raises_no_signal() {
        let path = std::env::temp_dir().join(format!("spillway-size-{}", std::process::id()));
        let file = std::fs::File::create(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let write = || sys::write(file.as_raw_fd(), b"line\n");
        let limited = |write: &dyn Fn() -> Result<usize, Errno>| {
            let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            // SAFETY: the limit outlives the call.
            if unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &raw const none) } != 0 {
                return 1;
            }
            if write() == Err(libc::EFBIG) && pending() & FILE_TOO_LARGE == 0 { PASSED } else { 2 }
        };
        assert_eq!(in_child(|| limited(&write)), Err(libc::SIGXFSZ), "a plain write should raise SIGXFSZ");
        assert_eq!(in_child(|| limited(&|| without_signal(write))), Ok(PASSED));
    }
}
