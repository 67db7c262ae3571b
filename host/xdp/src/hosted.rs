//! The user-level TCP stack with an application, as an endpoint of a device.

use std::borrow::BorrowMut;

use spillway_tcp::{Stack, drive};
use spillway_transport::{Application, Time};

use crate::driver::Endpoint;

/// A stack with the application that it serves.
#[derive(Debug)]
pub struct Hosted<A, S = Stack> {
    /// The stack, or a value that contains it.
    pub stack: S,
    /// The application.
    pub application: A,
}

impl<A: Application, S: BorrowMut<Stack>> Endpoint for Hosted<A, S> {
    fn begin_turn(&mut self, now: Time) {
        drive::begin_turn(self.stack.borrow_mut(), &mut self.application, now);
    }

    fn deliver(&mut self, now: Time, frame: &[u8]) {
        drive::deliver(self.stack.borrow_mut(), &mut self.application, now, frame);
    }

    fn end_turn(&mut self, now: Time) {
        drive::end_turn(self.stack.borrow_mut(), &mut self.application, now);
    }

    fn poll_transmit(&mut self, now: Time, slot: &mut [u8]) -> Option<usize> {
        self.stack.borrow_mut().poll_transmit(now, slot)
    }

    fn poll_timeout(&self) -> Option<Time> {
        drive::poll_timeout(self.stack.borrow(), &self.application)
    }
}
