//! Echo servers of all kinds, which call libc's functions and therefore the preload library's. Each returns the bytes
//! that it receives, and sends `bye` when its client has finished sending.

mod calls;
mod children;
mod loops;
mod threads;

use std::net::{SocketAddr, TcpListener};
use std::os::fd::{IntoRawFd, RawFd};

use libc::{EPOLLET, EPOLLIN, EPOLLONESHOT, EPOLLOUT, EPOLLRDHUP};
use loops::{epoll_loop, polling};

/// Runs the server of this kind on this address, until the process is killed.
pub fn serve(kind: &str, address: SocketAddr) -> ! {
    let listener = TcpListener::bind(address).unwrap();
    match kind {
        "poll" => polling(&listener, |descriptors| {
            // SAFETY: the descriptors are the slice.
            unsafe { libc::poll(descriptors.as_mut_ptr(), descriptors.len() as u64, -1) }
        }),
        "ppoll" => polling(&listener, |descriptors| {
            // SAFETY: as above; the null pointers mean no timeout and no mask.
            unsafe {
                libc::ppoll(
                    descriptors.as_mut_ptr(),
                    descriptors.len() as u64,
                    std::ptr::null(),
                    std::ptr::null(),
                )
            }
        }),
        "select" => polling(&listener, loops::select),
        "threads" => threads::threads(&listener),
        "prethreads" => threads::prethreads(listener),
        "level" => epoll_loop(&[&listener], EPOLLIN as u32, false),
        "edge" => epoll_loop(&[&listener], (EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET) as u32, false),
        "oneshot" => epoll_loop(&[&listener], (EPOLLIN | EPOLLONESHOT) as u32, true),
        "reuseport" => loops::reuseport(address, listener),
        "exclusive" => loops::exclusive(&listener),
        "two-sets" => loops::two_sets(&listener),
        "pool" => loops::pool(&listener),
        "closer" => threads::closer(&listener),
        "hand-over" => loops::hand_over(&listener),
        "mmsg" => threads::mmsg(&listener),
        "sendfile" => threads::send_file(&listener),
        "standard-error" => threads::standard_error(&listener),
        "forks" => threads::forks(&listener),
        "vforks" => children::vforks(&listener),
        "raw-fork" => children::raw_fork(&listener),
        "calls" => calls::calls(&listener),
        "rings" => loops::rings(&listener),
        other => panic!("unknown kind of server: {other}"),
    }
}

fn accept(listener: &TcpListener) -> Option<RawFd> {
    listener.accept().ok().map(|(stream, _)| stream.into_raw_fd())
}

fn read(fd: RawFd, buffer: &mut [u8]) -> isize {
    // SAFETY: the buffer is the slice.
    unsafe { libc::read(fd, buffer.as_mut_ptr().cast(), buffer.len()) }
}

fn write(fd: RawFd, bytes: &[u8]) -> isize {
    // SAFETY: the bytes are the slice.
    unsafe { libc::write(fd, bytes.as_ptr().cast(), bytes.len()) }
}

fn close(fd: RawFd) {
    // SAFETY: the caller owns the descriptor.
    assert_eq!(unsafe { libc::close(fd) }, 0);
}

fn nonblocking(fd: RawFd) {
    // SAFETY: no pointers are passed.
    unsafe {
        let flags = libc::fcntl(fd, libc::F_GETFL);
        assert_eq!(libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK), 0);
        assert_eq!(libc::fcntl(fd, libc::F_GETFL), flags | libc::O_NONBLOCK);
    }
}

fn would_block() -> bool {
    std::io::Error::last_os_error().kind() == std::io::ErrorKind::WouldBlock
}

/// The state of one client of an event loop.
#[derive(Default)]
struct Client {
    /// Bytes that were not sent to the client yet.
    unsent: Vec<u8>,
    /// The client has finished sending.
    ended: bool,
}

impl Client {
    /// Reads and writes until both would block. `false`: the caller must close the client.
    fn turn(&mut self, fd: RawFd) -> bool {
        let mut buffer = [0; 16 * 1024];
        // Bounded, because a client that sends and does not read must not fill the server's memory.
        while !self.ended && self.unsent.len() < 64 * 1024 {
            match read(fd, &mut buffer) {
                0 => {
                    self.ended = true;
                    self.unsent.extend_from_slice(b"bye");
                }
                -1 if would_block() => break,
                -1 => return false,
                length => self.unsent.extend_from_slice(&buffer[..length as usize]),
            }
        }
        while !self.unsent.is_empty() {
            match write(fd, &self.unsent) {
                -1 if would_block() => return true,
                -1 => return false,
                length => drop(self.unsent.drain(..length as usize)),
            }
        }
        !self.ended
    }
}
