//! The bytes of both queues of a socket in repair mode.

use std::io;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use spillway_wire::{Bytes, Chunks};

/// Bytes that the send queue may hold before the first unacknowledged one: the kernel keeps a segment until all of it is
/// acknowledged, and no segment is longer than an IP packet.
const ACKNOWLEDGED_BYTES_MAX: usize = 1 << 16;

/// The last `length` bytes of the send queue, which is selected: the unacknowledged and the unsent ones. `None` if the queue
/// has fewer.
pub(crate) fn peek_sending(fd: &OwnedFd, length: usize) -> io::Result<Option<Bytes>> {
    if length == 0 {
        return Ok(Some(Bytes::new()));
    }
    let mut bytes = vec![0; length];
    let mut queued = peek(fd, &mut bytes)?;
    if queued > length {
        // The peer has acknowledged a part of the first segment, which is still whole. The kernel has filled the buffer with the
        // queue's first bytes, and returned the length of all.
        bytes.resize(length + ACKNOWLEDGED_BYTES_MAX, 0);
        queued = peek(fd, &mut bytes)?;
    }
    // The queue is longer than a buffer only if it has changed meanwhile.
    let is_whole = (length..=bytes.len()).contains(&queued);
    Ok(is_whole.then(|| Bytes::from(bytes).slice(queued - length..queued)))
}

/// The first `length` bytes of the receive queue, which is selected: those that the application has not read. `None` if there
/// are fewer.
pub(crate) fn peek_unread(fd: &OwnedFd, length: usize) -> io::Result<Option<Bytes>> {
    if length == 0 {
        return Ok(Some(Bytes::new()));
    }
    let mut bytes = vec![0; length];
    let copied = peek(fd, &mut bytes)?;
    Ok((copied == length).then(|| bytes.into()))
}

fn peek(fd: &OwnedFd, bytes: &mut [u8]) -> io::Result<usize> {
    match recv(fd, bytes, RecvFlags::PEEK | RecvFlags::DONTWAIT) {
        Ok((_, copied)) => Ok(copied),
        Err(Errno::AGAIN) => Ok(0),
        Err(errno) => Err(errno.into()),
    }
}

/// Puts bytes into the selected queue of a connected socket in repair mode. Bytes in the send queue count as sent.
pub(crate) fn refill(fd: &OwnedFd, bytes: &Chunks) -> io::Result<()> {
    send_all(fd, bytes).map_err(|(_, errno)| errno.into())
}

/// Writes bytes to a socket that is no longer in repair mode. Returns the bytes that the kernel has not accepted.
pub(crate) fn write(fd: &OwnedFd, bytes: &Chunks) -> Chunks {
    match send_all(fd, bytes) {
        Ok(()) => Chunks::new(),
        // The kernel is short of memory, or the connection has ended meanwhile, as the application will see.
        Err((written, _)) => bytes.slice(written..bytes.len()).unwrap_or_default(),
    }
}

/// Sends bytes without waiting. On an error: the number of bytes that the kernel has accepted before.
fn send_all(fd: &OwnedFd, bytes: &Chunks) -> Result<(), (usize, Errno)> {
    let mut written = 0;
    for chunk in bytes.chunks() {
        let mut rest = &chunk[..];
        while !rest.is_empty() {
            match send(fd, rest, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(accepted) => {
                    rest = &rest[accepted..];
                    written += accepted;
                }
                Err(Errno::INTR) => {}
                Err(errno) => return Err((written, errno)),
            }
        }
    }
    Ok(())
}
