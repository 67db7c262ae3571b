//! Servers that create child processes without the handlers of `fork`.

use std::ffi::c_void;
use std::net::TcpListener;
use std::os::fd::RawFd;

use libc::{c_int, c_long};

use super::{accept, close, read, write};

/// Shared memory of parent and child: the child duplicates `client`, and stores its new descriptors.
struct Shared {
    client: RawFd,
    new: [RawFd; 5],
}

/// For each connection, creates a child as `vfork` does, which opens descriptors. Then checks that these numbers are
/// free in the parent and work for pipes, and sends the result to the client.
pub(super) fn vforks(listener: &TcpListener) -> ! {
    loop {
        let fd = accept(listener).unwrap();
        let mut byte = [0];
        if read(fd, &mut byte) != 1 {
            close(fd);
            continue;
        }
        let mut shared = Shared { client: fd, new: [-1; 5] };
        let mut stack = vec![0u8; 256 * 1024];
        let top = stack.as_mut_ptr_range().end.cast::<c_void>();
        // SAFETY: the child runs on a stack of its own, and this thread waits until it has ended.
        unsafe {
            let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
            assert!(libc::clone(make_descriptors, top, flags, (&raw mut shared).cast()) > 0);
            libc::wait(std::ptr::null_mut());
        }
        let mut wrong = String::new();
        let pipes: Vec<[RawFd; 2]> = (0..shared.new.len()).map(|_| pipe()).collect();
        for number in shared.new {
            let Some([reader, writer]) = pipes.iter().find(|ends| ends.contains(&number)) else {
                wrong += &format!("{number} is not free; ");
                continue;
            };
            let mut bytes = [0; 8];
            if write(*writer, b"of pipe") != 7 || read(*reader, &mut bytes) != 7 || &bytes[..7] != b"of pipe"
            {
                wrong += &format!("{number} does not work as a pipe; ");
            }
        }
        pipes.as_flattened().iter().for_each(|fd| close(*fd));
        write(fd, format!("wrong: {wrong}\n").as_bytes());
        close(fd);
    }
}

extern "C" fn make_descriptors(shared: *mut c_void) -> c_int {
    // SAFETY: the parent keeps `shared` and waits; all calls have valid arguments.
    unsafe {
        let shared = &mut *shared.cast::<Shared>();
        let listening = libc::socket(libc::AF_INET, libc::SOCK_STREAM, 0);
        assert_eq!(libc::listen(listening, 1), 0);
        shared.new = [
            libc::dup(shared.client),
            libc::fcntl(shared.client, libc::F_DUPFD_CLOEXEC, 0),
            libc::epoll_create1(0),
            listening,
            libc::dup2(shared.client, libc::dup(0)),
        ];
    }
    0
}

fn pipe() -> [RawFd; 2] {
    let mut ends = [-1; 2];
    // SAFETY: there is room for two descriptors.
    assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0);
    ends
}

/// For each client, creates a child by a plain system call and then echoes one byte. The child keeps all descriptors,
/// and outlives its parent for a minute, unless the test ends it.
pub(super) fn raw_fork(listener: &TcpListener) -> ! {
    let parent = std::process::id();
    loop {
        let fd = accept(listener).unwrap();
        let mut byte = [0];
        if read(fd, &mut byte) != 1 {
            close(fd);
            continue;
        }
        // SAFETY: the child only makes system calls.
        unsafe {
            let child: c_long = libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0);
            if child == 0 {
                while libc::getppid() as u32 == parent {
                    libc::usleep(20_000);
                }
                libc::sleep(60);
                libc::_exit(0);
            }
            assert!(child > 0);
        }
        write(fd, &byte);
    }
}
