//! A socket in repair mode that ends without a segment when it is dropped.

use std::os::fd::OwnedFd;

use rustix::net::connect_unspec;

/// A socket in repair mode. Its drop ends the connection without a segment, also if another descriptor keeps the socket open:
/// a duplicate, or the copy of a child between `fork` and `exec`.
#[derive(Debug)]
pub(crate) struct Held(Option<OwnedFd>);

impl Held {
    pub(crate) fn new(fd: OwnedFd) -> Held {
        Held(Some(fd))
    }

    pub(crate) fn fd(&self) -> &OwnedFd {
        self.0.as_ref().expect("only `release` and `end` take the descriptor, and they consume the value")
    }

    /// The socket, whose connection does not end with this value any more.
    pub(crate) fn release(mut self) -> OwnedFd {
        self.0.take().expect("only `release` and `end` take the descriptor, and they consume the value")
    }

    /// Ends the connection.
    ///
    /// # Errors
    /// With the socket: the kernel refuses, for example because a thread waits for it.
    pub(crate) fn end(mut self) -> Result<(), (Held, rustix::io::Errno)> {
        // In repair mode the kernel sends no reset.
        match connect_unspec(self.fd()) {
            Ok(()) => {
                self.0.take();
                Ok(())
            }
            Err(errno) => Err((self, errno)),
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(fd) = &self.0 {
            // If the kernel refuses, the connection ends with the socket's last descriptor, also without a segment.
            let _ = connect_unspec(fd);
        }
    }
}
