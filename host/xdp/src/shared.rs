//! The user-level TCP stack with an application, on an interface and addresses that stack and kernel share.

use std::borrow::BorrowMut;
use std::io;
use std::os::fd::BorrowedFd;

use spillway_tcp::Stack;
use spillway_transport::{Application, Time};

use crate::driver::Endpoint;
use crate::hosted::Hosted;
use crate::interface::Interface;
use crate::kernel_side::KernelSide;

/// A stack with its application, and its [`KernelSide`]. The stack's settings must have
/// [`Resolver::Driver`](spillway_tcp::Resolver::Driver).
#[derive(Debug)]
pub struct Shared<A, S = Stack> {
    /// The stack and the application.
    pub hosted: Hosted<A, S>,
    kernel: KernelSide,
}

impl<A: Application, S: BorrowMut<Stack>> Shared<A, S> {
    /// Connects a stack with the kernel of the calling thread's network namespace.
    ///
    /// # Errors
    /// The process has no CAP_NET_RAW, or no file descriptors left.
    pub fn new(interface: &Interface, stack: S, application: A) -> io::Result<Shared<A, S>> {
        Ok(Shared { hosted: Hosted { stack, application }, kernel: KernelSide::open(interface)? })
    }

    /// Returns the first error of the sockets to the kernel, once.
    pub fn take_error(&mut self) -> Option<io::Error> {
        self.kernel.take_error()
    }

    pub(crate) fn keep_error(&mut self, error: io::Error) {
        self.kernel.keep_error(error);
    }
}

impl<A: Application, S: BorrowMut<Stack>> Endpoint for Shared<A, S> {
    fn begin_turn(&mut self, now: Time) {
        self.kernel.receive(now, self.hosted.stack.borrow_mut());
        self.hosted.begin_turn(now);
    }

    fn deliver(&mut self, now: Time, frame: &[u8]) {
        self.hosted.deliver(now, frame);
    }

    fn end_turn(&mut self, now: Time) {
        self.hosted.end_turn(now);
    }

    fn poll_transmit(&mut self, now: Time, slot: &mut [u8]) -> Option<usize> {
        let length = self.hosted.poll_transmit(now, slot);
        if length.is_none() {
            self.kernel.ask(self.hosted.stack.borrow_mut());
        }
        length
    }

    fn poll_timeout(&self) -> Option<Time> {
        self.hosted.poll_timeout()
    }

    fn handle_wake(&mut self) {
        self.kernel.handle_wake();
    }

    fn wakes(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.kernel.wakes()
    }
}
