//! Writes to standard error that never wait, for every kind of file, and also while other processes write to it.
//!
//! Descriptor 2 is usually blocking, and is shared with the application and with other processes, for which it must
//! stay blocking. Polling before a blocking write is not enough: between the two calls another process may fill a pipe,
//! and a terminal reports room when it has room for less than a line. So for each kind of file there is a way to write
//! that fails when there is no room:
//!
//! - a socket: `MSG_DONTWAIT`
//! - a pipe: `vmsplice` with `SPLICE_F_NONBLOCK`. Opening a pipe again, as for a terminal, fails in a server that root
//!   has started and that has changed its user since
//! - a terminal or another device: the device is opened again for each line, non-blocking. Lines are dropped if this
//!   process may not open it
//! - a file on a disk: `write`, which needs no reader
//!
//! A write to a pipe without a reader, or beyond the file size limit, raises a signal: see `signals`.

use core::ffi::CStr;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use std::sync::OnceLock;

use libc::c_int;

use crate::sys::{self, Errno, call};
use crate::{signals, table};

const STANDARD_ERROR: c_int = 2;

/// Descriptor 2 of the calling thread, because the threads of a process need not share their descriptors.
const PATH: &CStr = c"/proc/thread-self/fd/2";

/// Maximum length of one write, in bytes: the smallest size of a memory page.
pub(crate) const BYTES_MAX: usize = 4096;

/// This device is not opened again: that would create a new terminal, which has no reader.
const TERMINAL_MASTER: libc::dev_t = libc::makedev(5, 2);

/// The file of standard error when this library was loaded, if it was open.
static FILE: OnceLock<Option<Identity>> = OnceLock::new();

/// Whether only a part of the last line was written.
static IS_INCOMPLETE: AtomicBool = AtomicBool::new(false);

/// Records which file standard error is. Called once, before the application runs.
pub(crate) fn start() {
    let _ = FILE.set(identity(STANDARD_ERROR).ok());
}

/// Whether only a part of the last line was written, so that the next write must begin with a line end.
pub(crate) fn is_incomplete() -> bool {
    IS_INCOMPLETE.load(Ordering::Relaxed)
}

/// Writes at most [`BYTES_MAX`] bytes without waiting. False if not all bytes were written, because there was no room
/// or descriptor 2 refers to another file than when the library was loaded. Only one thread at a time may call this.
pub(crate) fn write(bytes: &[u8]) -> bool {
    let original = FILE.get().copied().flatten();
    let file = identity(STANDARD_ERROR).ok().filter(|file| Some(*file) == original);
    let Some(file) = file.filter(|_| table::is_real(STANDARD_ERROR)) else { return false };
    let mut polled = [libc::pollfd { fd: STANDARD_ERROR, events: libc::POLLOUT, revents: 0 }];
    let has_room = sys::poll(&mut polled, Some(Duration::ZERO), core::ptr::null()) == Ok(1)
        && polled[0].revents == libc::POLLOUT;
    if !has_room {
        return false;
    }
    let written = file.write(STANDARD_ERROR, PATH, bytes).unwrap_or(0);
    if written > 0 {
        IS_INCOMPLETE.store(written < bytes.len(), Ordering::Relaxed);
    }
    written == bytes.len()
}

/// How a file is written without waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Disk,
    Pipe,
    Socket,
    Device,
    /// A kind of file to which nothing is written.
    Other,
}

/// Identifies the file that a descriptor refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Identity {
    device: u64,
    inode: u64,
    kind: Kind,
}

/// The file that a descriptor refers to at present.
fn identity(fd: c_int) -> Result<Identity, Errno> {
    let mut status = MaybeUninit::<libc::stat>::uninit();
    call!(libc::SYS_fstat, fd, status.as_mut_ptr())?;
    // SAFETY: the call has succeeded, so the kernel has filled `status`.
    let status = unsafe { status.assume_init() };
    let kind = match status.st_mode & libc::S_IFMT {
        libc::S_IFREG => Kind::Disk,
        libc::S_IFIFO => Kind::Pipe,
        libc::S_IFSOCK => Kind::Socket,
        libc::S_IFCHR if status.st_rdev != TERMINAL_MASTER => Kind::Device,
        _ => Kind::Other,
    };
    Ok(Identity { device: status.st_dev, inode: status.st_ino, kind })
}

impl Identity {
    /// Writes to `fd`, which refers to this file. `path` opens the same file. Returns the number of bytes written.
    fn write(self, fd: c_int, path: &CStr, bytes: &[u8]) -> Result<usize, Errno> {
        match self.kind {
            Kind::Disk => signals::without_signal(|| sys::write(fd, bytes)),
            Kind::Pipe => signals::without_signal(|| put_into_pipe(fd, bytes)),
            Kind::Socket => sys::send(fd, bytes),
            Kind::Device => self.open_and_write(path, bytes),
            Kind::Other => Err(libc::EINVAL),
        }
    }

    /// Opens the file again for this write, because the new descriptor can be non-blocking.
    fn open_and_write(self, path: &CStr, bytes: &[u8]) -> Result<usize, Errno> {
        let flags = libc::O_WRONLY | libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_CLOEXEC;
        let fd = call!(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags, 0)? as c_int;
        // Another thread may have replaced the descriptor before the open.
        let written = match identity(fd) {
            Ok(file) if file == self => sys::write(fd, bytes),
            _ => Err(libc::EBADF),
        };
        sys::close(fd);
        written
    }
}

/// Writes all bytes or none. The pipe keeps the memory page of the bytes, so the page must not change afterwards.
fn put_into_pipe(fd: c_int, bytes: &[u8]) -> Result<usize, Errno> {
    debug_assert!(bytes.len() <= BYTES_MAX, "a write should have at most BYTES_MAX bytes");
    const NO_FILE: c_int = -1;
    let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    let page = call!(libc::SYS_mmap, 0, BYTES_MAX, access, kind, NO_FILE, 0)?;
    let length = bytes.len().min(BYTES_MAX);
    let part = libc::iovec { iov_base: page as *mut libc::c_void, iov_len: length };
    // SAFETY: the page was just mapped, is writable, and holds `BYTES_MAX` bytes.
    unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), part.iov_base.cast::<u8>(), length) };
    let written = call!(libc::SYS_vmsplice, fd, &raw const part, 1, libc::SPLICE_F_NONBLOCK);
    let _ = call!(libc::SYS_munmap, page, BYTES_MAX);
    written
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;
    use std::fs::File;
    use std::io::{ErrorKind, Read, Write};
    use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
    use std::os::unix::net::UnixStream;
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use super::*;
    use crate::signals::tests::in_child;

    const LINE: &[u8] = b"spillway: a line of the log\n";

    /// A blocking writer, like standard error; another writer of the same file, non-blocking unless a socket; the
    /// reader.
    struct Target {
        blocking: File,
        other: File,
        reader: File,
    }

    impl Target {
        fn new(writer: impl Into<OwnedFd>, reader: impl Into<OwnedFd>) -> Target {
            let blocking = File::from(writer.into());
            let path = format!("/proc/self/fd/{}", blocking.as_raw_fd());
            // A socket cannot be opened by a path.
            let other = match identity(blocking.as_raw_fd()).unwrap().kind {
                Kind::Socket => blocking.try_clone(),
                _ => {
                    use std::os::unix::fs::OpenOptionsExt;
                    let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
                    File::options().write(true).custom_flags(flags).open(path)
                }
            };
            Target { blocking, other: other.unwrap(), reader: File::from(reader.into()) }
        }

        /// Writes a line like the log, but without polling for room first.
        fn write(&self) -> Result<usize, Errno> {
            let fd = self.blocking.as_raw_fd();
            let path = CString::new(format!("/proc/self/fd/{fd}")).unwrap();
            identity(fd).unwrap().write(fd, &path, LINE)
        }

        fn fill(&mut self, bytes: &[u8]) {
            loop {
                match self.other.write(bytes) {
                    Ok(_) => {}
                    Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                    Err(error) => panic!("{error}"),
                }
            }
        }
    }

    fn pipe() -> Target {
        let (reader, writer) = std::io::pipe().unwrap();
        Target::new(writer, reader)
    }

    fn terminal() -> Target {
        // SAFETY: plain calls; the descriptors are this test's.
        let (master, slave) = unsafe {
            let master = libc::posix_openpt(libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC);
            assert!(master >= 0);
            assert_eq!((libc::grantpt(master), libc::unlockpt(master)), (0, 0));
            let mut name = [0; 64];
            assert_eq!(libc::ptsname_r(master, name.as_mut_ptr(), name.len()), 0);
            let slave = libc::open(name.as_ptr(), libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC);
            assert!(slave >= 0);
            (OwnedFd::from_raw_fd(master), OwnedFd::from_raw_fd(slave))
        };
        Target::new(slave, master)
    }

    /// Checks the first line as the reader receives it, then fills the file and checks that no write waits.
    fn check_no_write_waits(mut target: Target, expected: &[u8]) {
        assert_eq!(target.write(), Ok(LINE.len()));
        let mut read = vec![0; expected.len()];
        target.reader.read_exact(&mut read).unwrap();
        assert_eq!(read, expected);
        target.fill(b"others\n");
        let (done, outcome) = channel();
        std::thread::spawn(move || {
            // Some writes may still succeed, after a short write by `fill` or when a terminal processes its input.
            let outcome = (0..1_000_000).map(|_| target.write()).find(|outcome| outcome.is_err());
            done.send(outcome).unwrap();
            drop(target);
        });
        let outcome = outcome
            .recv_timeout(Duration::from_secs(30))
            .expect("a write to a full file should return within 30 s");
        assert_eq!(outcome, Some(Err(libc::EAGAIN)));
    }

    #[test]
    fn no_write_waits_for_a_reader() {
        check_no_write_waits(pipe(), LINE);
        check_no_write_waits(terminal(), b"spillway: a line of the log\r\n");
        let (writer, reader) = UnixStream::pair().unwrap();
        writer.set_nonblocking(false).unwrap();
        let mut target = Target::new(writer, reader);
        assert_eq!(target.write(), Ok(LINE.len()));
        let (done, outcome) = channel();
        std::thread::spawn(move || {
            while target.write().is_ok() {}
            let mut read = vec![0; LINE.len()];
            target.reader.read_exact(&mut read).unwrap();
            done.send(read).unwrap();
        });
        assert_eq!(
            outcome
                .recv_timeout(Duration::from_secs(30))
                .expect("a write to a full file should return within 30 s"),
            LINE
        );
    }

    #[test]
    fn lines_in_a_pipe_do_not_change_when_memory_is_reused() {
        let mut target = pipe();
        for _ in 0..10 {
            assert_eq!(target.write(), Ok(LINE.len()));
        }
        // New allocations must not reuse the memory pages in the pipe.
        let reused = vec![b'x'; 1 << 20];
        let mut read = vec![0; 10 * LINE.len()];
        target.reader.read_exact(&mut read).unwrap();
        assert_eq!(read, LINE.repeat(10));
        drop(reused);
    }

    /// The reader may close after the poll for room and before the write.
    #[test]
    fn write_to_a_pipe_without_a_reader_ends_no_process() {
        let target = pipe();
        drop(target.reader);
        let fd = target.blocking.as_raw_fd();
        let file = identity(fd).unwrap();
        let outcome = in_child(|| (file.write(fd, c"", LINE) != Err(libc::EPIPE)).into());
        assert_eq!(outcome, Ok(0), "the child should survive, and the write should fail with EPIPE");
    }

    #[test]
    fn path_to_another_file_is_refused() {
        let (terminal, other) = (terminal(), terminal());
        let file = identity(terminal.blocking.as_raw_fd()).unwrap();
        let path = CString::new(format!("/proc/self/fd/{}", other.blocking.as_raw_fd())).unwrap();
        assert_eq!(file.write(terminal.blocking.as_raw_fd(), &path, LINE), Err(libc::EBADF));
        let master = terminal.reader.as_raw_fd();
        assert_eq!(
            identity(master).unwrap().kind,
            Kind::Other,
            "nothing should be written to a terminal master"
        );
    }
}
