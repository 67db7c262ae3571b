//! Servers whose threads each block in calls on one connection.

use std::net::TcpListener;
use std::os::fd::{IntoRawFd, RawFd};
use std::sync::mpsc;
use std::thread;

use super::{accept, close, read, write};

/// Echoes one client on a blocking descriptor, until the client finishes.
pub(super) fn echo(fd: RawFd) {
    let mut buffer = vec![0; 100_000];
    loop {
        match read(fd, &mut buffer) {
            0 => {
                write(fd, b"bye");
                break;
            }
            length if length > 0 => assert_eq!(write(fd, &buffer[..length as usize]), length),
            _ => break,
        }
    }
    close(fd);
}

/// A thread for each connection; the main thread blocks in `accept`.
pub(super) fn threads(listener: &TcpListener) -> ! {
    loop {
        let fd = accept(listener).unwrap();
        thread::spawn(move || echo(fd));
    }
}

/// Eight threads, each of which accepts a client, serves it to its end, and accepts the next one.
pub(super) fn prethreads(listener: TcpListener) -> ! {
    let listener: &'static TcpListener = Box::leak(Box::new(listener));
    for _ in 0..8 {
        thread::spawn(move || {
            loop {
                echo(accept(listener).unwrap());
            }
        });
    }
    loop {
        thread::park();
    }
}

/// A thread blocks in `read` for each connection. Another ends connections on request: `close`, `shut` or `replace`.
pub(super) fn closer(listener: &TcpListener) -> ! {
    let (sender, receiver) = mpsc::channel::<(RawFd, u8)>();
    let null: RawFd = std::fs::File::open("/dev/null").unwrap().into_raw_fd();
    thread::spawn(move || {
        for (fd, how) in receiver {
            match how {
                b'c' => close(fd),
                // SAFETY: no pointers are passed.
                b's' => assert_eq!(unsafe { libc::shutdown(fd, libc::SHUT_RDWR) }, 0),
                // SAFETY: as above.
                _ => assert_eq!(unsafe { libc::dup2(null, fd) }, fd),
            }
        }
    });
    loop {
        let fd = accept(listener).unwrap();
        let sender = sender.clone();
        thread::spawn(move || {
            let mut buffer = [0; 1000];
            loop {
                let length = read(fd, &mut buffer);
                let bytes = &buffer[..length.max(0) as usize];
                match bytes.first() {
                    // After the other thread has closed the descriptor, another client may get its number.
                    Some(b'c') => return sender.send((fd, b'c')).unwrap(),
                    Some(how @ (b's' | b'r')) => sender.send((fd, *how)).unwrap(),
                    // The write fails if the connection was shut down before.
                    Some(_) if write(fd, bytes) == length => {}
                    _ => return close(fd),
                }
            }
        });
    }
}

/// A thread for each connection, on `recvmmsg` and `sendmmsg`.
pub(super) fn mmsg(listener: &TcpListener) -> ! {
    loop {
        let fd = accept(listener).unwrap();
        thread::spawn(move || {
            let mut buffers = [[0u8; 1000]; 4];
            loop {
                // SAFETY: all zeros are valid messages; buffers and vectors outlive the calls.
                unsafe {
                    let mut parts = buffers
                        .each_mut()
                        .map(|buffer| libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: 1000 });
                    let mut messages: [libc::mmsghdr; 4] = std::mem::zeroed();
                    for (message, part) in messages.iter_mut().zip(&mut parts) {
                        (message.msg_hdr.msg_iov, message.msg_hdr.msg_iovlen) = (part, 1);
                    }
                    let count = libc::recvmmsg(
                        fd,
                        messages.as_mut_ptr(),
                        4,
                        libc::MSG_WAITFORONE,
                        std::ptr::null_mut(),
                    );
                    // The end of the stream is an empty last message, which is not echoed.
                    let ended = count <= 0 || messages[count as usize - 1].msg_len == 0;
                    let echoed = if ended { count - 1 } else { count };
                    for (message, part) in messages.iter().zip(&mut parts) {
                        part.iov_len = message.msg_len as usize;
                    }
                    if echoed > 0 {
                        assert_eq!(libc::sendmmsg(fd, messages.as_mut_ptr(), echoed as u32, 0), echoed);
                    }
                    if ended {
                        write(fd, b"bye");
                        close(fd);
                        return;
                    }
                }
            }
        });
    }
}

/// Echoes through a file: writes the received bytes to the file, and sends them from there. `splice` must fail.
pub(super) fn send_file(listener: &TcpListener) -> ! {
    loop {
        let fd = accept(listener).unwrap();
        thread::spawn(move || {
            let mut buffer = vec![0; 300_000];
            // SAFETY: plain calls with valid arguments.
            unsafe {
                let file = libc::memfd_create(c"echo".as_ptr(), libc::MFD_CLOEXEC);
                let mut offset: libc::off_t = 0;
                loop {
                    let length = read(fd, &mut buffer);
                    if length <= 0 {
                        break;
                    }
                    assert_eq!(write(file, &buffer[..length as usize]), length);
                    assert_eq!(libc::sendfile(fd, file, &raw mut offset, length as usize), length);
                    let null = std::ptr::null_mut();
                    // The library supports `sendfile`, but not `splice`.
                    assert_eq!(libc::splice(fd, null, file, null, 1, 0), -1);
                    assert_eq!(*libc::__errno_location(), libc::EINVAL);
                }
                write(fd, b"bye");
                close(file);
                close(fd);
            }
        });
    }
}

/// A thread for each connection; a client whose first byte is `2` is moved to the descriptor of standard error.
pub(super) fn standard_error(listener: &TcpListener) -> ! {
    loop {
        let fd = accept(listener).unwrap();
        thread::spawn(move || {
            let mut first = [0];
            if read(fd, &mut first) == 1 && first == *b"2" {
                // SAFETY: no pointers are passed.
                assert_eq!(unsafe { libc::dup2(fd, 2) }, 2);
                close(fd);
                echo(2);
            } else {
                close(fd);
            }
        });
    }
}

/// A process for each connection, which the library does not support and logs.
pub(super) fn forks(listener: &TcpListener) -> ! {
    loop {
        let fd = accept(listener).unwrap();
        // SAFETY: the child only makes system calls.
        unsafe {
            if libc::fork() == 0 {
                let mut byte = [0; 1];
                let length = libc::read(fd, byte.as_mut_ptr().cast(), 1);
                // Reading fails in the child. `epoll_create1` and `dup` must get the two lowest free numbers: the library
                // opens no descriptor of its own. The test waits for the line below.
                let lowest = [libc::dup(0), libc::dup(0)];
                lowest.iter().for_each(|fd| close(*fd));
                let new = [libc::epoll_create1(0), libc::dup(0)];
                if length < 0 && new == lowest {
                    write(2, b"the library opens no descriptor in the child\n");
                }
                libc::_exit(0);
            }
        }
        close(fd);
    }
}
