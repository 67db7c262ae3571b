//! Writes to standard error that never wait, for every kind of file and while others write to it, too.
//!
//! Descriptor 2 is usually blocking, and is shared with the application and with other processes: making it
//! non-blocking would change it for all of them. Polling before a blocking write is not enough: others may fill a
//! pipe meanwhile, and a terminal reports room when it has less than a line's. Each kind of file therefore has a call
//! of its own that returns when there is no room:
//!
//! - a socket: `MSG_DONTWAIT`
//! - a pipe: `vmsplice` with `SPLICE_F_NONBLOCK`. Opening a pipe anew, as a terminal is, fails in a server that has
//!   changed its user, as most servers do that root starts
//! - a terminal or another device: a descriptor of its own, opened anew for each line. Lines are dropped where this
//!   process may not open it
//! - a file on a disk: `write`, which needs no reader
//!
//! A write to a pipe without a reader, or beyond the limit of a file's size, raises a signal: see `signals`.

use core::ffi::CStr;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use std::sync::OnceLock;

use libc::c_int;

use crate::sys::{self, Errno, call};
use crate::{signals, table};

const STANDARD_ERROR: c_int = 2;

/// Descriptor 2 of the calling thread: the threads of a process need not share their descriptors.
const OPENED_ANEW: &CStr = c"/proc/thread-self/fd/2";

/// The most bytes of one write: the least size of a memory page.
pub(crate) const BYTES_MAX: usize = 4096;

/// Opening this device makes a new terminal, which has no reader.
const TERMINAL_MASTER: libc::dev_t = libc::makedev(5, 2);

/// The file that standard error was when this library was loaded, if it was open.
static FILE: OnceLock<Option<Identity>> = OnceLock::new();

/// Whether the last line was written in part.
static IS_TORN: AtomicBool = AtomicBool::new(false);

/// Records which file standard error is. Called once, before the application runs.
pub(crate) fn start() {
    let _ = FILE.set(identity(STANDARD_ERROR).ok());
}

/// Whether the last line was written in part, so that the next has to begin with a line end.
pub(crate) fn is_torn() -> bool {
    IS_TORN.load(Ordering::Relaxed)
}

/// Writes at most [`BYTES_MAX`] bytes without waiting. False if not all were written: there was no room, or standard
/// error is another file than when the library was loaded. Only one thread may call this at a time.
pub(crate) fn write(bytes: &[u8]) -> bool {
    let was = FILE.get().copied().flatten();
    let file = identity(STANDARD_ERROR).ok().filter(|file| Some(*file) == was);
    let Some(file) = file.filter(|_| table::is_real(STANDARD_ERROR)) else { return false };
    let mut asked = [libc::pollfd { fd: STANDARD_ERROR, events: libc::POLLOUT, revents: 0 }];
    let has_room = sys::poll(&mut asked, Some(Duration::ZERO), core::ptr::null()) == Ok(1)
        && asked[0].revents == libc::POLLOUT;
    if !has_room {
        return false;
    }
    let written = file.write(STANDARD_ERROR, OPENED_ANEW, bytes).unwrap_or(0);
    if written > 0 {
        IS_TORN.store(written < bytes.len(), Ordering::Relaxed);
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
    /// A file that is not written.
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
    // SAFETY: the call has succeeded, and has filled it.
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
    /// Writes to `fd`, which is this file and can also be opened as `path`. Returns the length written.
    fn write(self, fd: c_int, path: &CStr, bytes: &[u8]) -> Result<usize, Errno> {
        match self.kind {
            Kind::Disk => signals::none_raised_by(|| sys::write(fd, bytes)),
            Kind::Pipe => signals::none_raised_by(|| put_into_pipe(fd, bytes)),
            Kind::Socket => sys::send(fd, bytes),
            Kind::Device => self.write_anew(path, bytes),
            Kind::Other => Err(libc::EINVAL),
        }
    }

    /// Opens the file for this one write, so that it can be non-blocking.
    fn write_anew(self, path: &CStr, bytes: &[u8]) -> Result<usize, Errno> {
        let flags = libc::O_WRONLY | libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_CLOEXEC;
        let fd = call!(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags, 0)? as c_int;
        // Another thread may have replaced the descriptor meanwhile.
        let written = match identity(fd) {
            Ok(file) if file == self => sys::write(fd, bytes),
            _ => Err(libc::EBADF),
        };
        sys::close(fd);
        written
    }
}

/// Writes all bytes or none. The pipe keeps the page that holds the bytes, so that page must not be changed afterwards.
fn put_into_pipe(fd: c_int, bytes: &[u8]) -> Result<usize, Errno> {
    debug_assert!(bytes.len() <= BYTES_MAX, "a line is written at once");
    const NO_FILE: c_int = -1;
    let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    let page = call!(libc::SYS_mmap, 0, BYTES_MAX, access, kind, NO_FILE, 0)?;
    let length = bytes.len().min(BYTES_MAX);
    let part = libc::iovec { iov_base: page as *mut libc::c_void, iov_len: length };
    // SAFETY: the page was made for this, is writable, and holds as many bytes.
    unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), part.iov_base.cast::<u8>(), length) };
    let taken = call!(libc::SYS_vmsplice, fd, &raw const part, 1, libc::SPLICE_F_NONBLOCK);
    let _ = call!(libc::SYS_munmap, page, BYTES_MAX);
    taken
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

    /// A blocking descriptor, like standard error; another of the same file, non-blocking unless a socket; and the reader.
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

        /// Writes a line like the log, but without polling for room.
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

    /// Checks the first line as it is read, then fills the file and checks that no write waits.
    fn goes_on(mut target: Target, expected: &[u8]) {
        assert_eq!(target.write(), Ok(LINE.len()));
        let mut read = vec![0; expected.len()];
        target.reader.read_exact(&mut read).unwrap();
        assert_eq!(read, expected);
        target.fill(b"others\n");
        let (done, outcome) = channel();
        std::thread::spawn(move || {
            // Until nothing more fits: a short write by others leaves room, and so does a terminal that processes its
            // input.
            let outcome = (0..1_000_000).map(|_| target.write()).find(|outcome| outcome.is_err());
            done.send(outcome).unwrap();
            drop(target);
        });
        let outcome = outcome.recv_timeout(Duration::from_secs(30)).expect("no write waits");
        assert_eq!(outcome, Some(Err(libc::EAGAIN)));
    }

    #[test]
    fn no_write_waits_for_a_reader() {
        goes_on(pipe(), LINE);
        goes_on(terminal(), b"spillway: a line of the log\r\n");
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
        assert_eq!(outcome.recv_timeout(Duration::from_secs(30)).expect("no write waits"), LINE);
    }

    #[test]
    fn a_line_in_a_pipe_stays_as_it_was_written() {
        let mut target = pipe();
        for _ in 0..10 {
            assert_eq!(target.write(), Ok(LINE.len()));
        }
        // Memory that is allocated anew must not be the pages in the pipe.
        let reused = vec![b'x'; 1 << 20];
        let mut read = vec![0; 10 * LINE.len()];
        target.reader.read_exact(&mut read).unwrap();
        assert_eq!(read, LINE.repeat(10));
        drop(reused);
    }

    /// The reader may close after the poll for room and before the write.
    #[test]
    fn a_pipe_whose_reader_has_gone_ends_no_process() {
        let target = pipe();
        drop(target.reader);
        let fd = target.blocking.as_raw_fd();
        let file = identity(fd).unwrap();
        let outcome = in_child(|| (file.write(fd, c"", LINE) != Err(libc::EPIPE)).into());
        assert_eq!(outcome, Ok(0), "the signal that ended it, or another result");
    }

    #[test]
    fn another_file_under_the_same_number_is_not_written() {
        let (terminal, other) = (terminal(), terminal());
        let file = identity(terminal.blocking.as_raw_fd()).unwrap();
        let path = CString::new(format!("/proc/self/fd/{}", other.blocking.as_raw_fd())).unwrap();
        assert_eq!(file.write(terminal.blocking.as_raw_fd(), &path, LINE), Err(libc::EBADF));
        let master = terminal.reader.as_raw_fd();
        assert_eq!(identity(master).unwrap().kind, Kind::Other, "a new terminal is of no use");
    }
}
