//! The socket of a link, and the epoll set that watches the socket.

use core::sync::atomic::Ordering;

use libc::c_int;

use crate::epoll_set::{self, Set};
use crate::sys;
use crate::table::{self, Entry};
use crate::tag::Tag;

/// What a link's socket is watched for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Interest {
    /// Whether to report that bytes have arrived: see [`ServerLink::may_read`](spillway_batch::ServerLink::may_read).
    pub(crate) input: bool,
    /// Whether to report room for sending, because the socket is full.
    pub(crate) room: bool,
}

impl Interest {
    pub(crate) const INPUT: Interest = Interest { input: true, room: false };

    /// The events in epoll's form.
    pub(crate) fn events(self) -> u32 {
        let bit_if = |wanted: bool, event: libc::c_int| if wanted { event as u32 } else { 0 };
        bit_if(self.input, libc::EPOLLIN) | bit_if(self.room, libc::EPOLLOUT)
    }
}

/// A link's socket, in the epoll set whose threads receive from the link.
pub(crate) struct WatchedSocket {
    /// Index of the link.
    link: u32,
    /// -1 while the link's slot is vacant.
    fd: c_int,
    /// Index of the set.
    set: u32,
    /// Whether `set` holds one of the link's connections. At first `set` is the link port's, which need not hold any.
    adopted: bool,
    interest: Interest,
}

impl WatchedSocket {
    /// The socket `fd`, which the epoll set with index `set` watches for [`Interest::INPUT`].
    pub(super) fn new(link: u32, fd: c_int, set: u32) -> WatchedSocket {
        WatchedSocket { link, fd, set, adopted: false, interest: Interest::INPUT }
    }

    /// The value of a vacant slot.
    pub(super) fn none(link: u32) -> WatchedSocket {
        WatchedSocket::new(link, -1, 0)
    }

    /// The socket's descriptor; -1 while the link's slot is vacant.
    pub(crate) fn descriptor(&self) -> c_int {
        self.fd
    }

    /// Index of the epoll set that watches the socket.
    pub(crate) fn set(&self) -> u32 {
        self.set
    }

    pub(crate) fn interest(&self) -> Interest {
        self.interest
    }

    /// Sets the events that the socket is watched for.
    pub(super) fn watch_for(&mut self, wanted: Interest) {
        if wanted != self.interest {
            self.interest = wanted;
            self.control(libc::EPOLL_CTL_MOD);
        }
    }

    /// `set` has got a connection of this link: moves the link there, unless another set has adopted the link.
    pub(crate) fn adopt(&mut self, set: &Set) {
        if !self.adopted {
            self.adopted = self.move_to(set);
        }
    }

    /// The application closes the socket's set: moves the link to the set of the link port, from which another set may
    /// adopt it. Returns whether the link is there now.
    pub(crate) fn return_to(&mut self, port_set: Option<&Set>) -> bool {
        self.adopted = false;
        port_set.is_some_and(|port_set| self.move_to(port_set))
    }

    /// Moves the link to this set. Returns whether the link is there now; otherwise it stays in its present set.
    fn move_to(&mut self, set: &Set) -> bool {
        if self.set == set.index {
            return true;
        }
        if set.activate().is_err() {
            return false;
        }
        // Added to the new set first: if that fails, the old set still watches the socket.
        let before = core::mem::replace(&mut self.set, set.index);
        if !self.control(libc::EPOLL_CTL_ADD) {
            self.set = before;
            return false;
        }
        let after = core::mem::replace(&mut self.set, before);
        self.control(libc::EPOLL_CTL_DEL);
        self.set = after;
        true
    }

    /// Stops watching the socket, and closes it.
    pub(super) fn close(&self) {
        // Needed because a forked child may hold the same socket: closing the descriptor here would not
        // remove the socket from the epoll set.
        self.control(libc::EPOLL_CTL_DEL);
        table::record(self.fd, Entry::Real);
        sys::end_socket(self.fd);
    }

    /// Applies an epoll operation to the link's socket, in the link's set.
    fn control(&self, operation: c_int) -> bool {
        let Some(set) = epoll_set::get(self.set) else { return false };
        let (fd, tag) = (set.fd.load(Ordering::Relaxed), Tag::Link(self.link).value());
        sys::epoll_ctl(fd, operation, self.fd, self.interest.events(), tag).is_ok()
    }
}
