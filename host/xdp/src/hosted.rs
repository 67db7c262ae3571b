//! The user-level TCP stack with an application, as an endpoint of a device.

use spillway_tcp::{Stack, drive};
use spillway_transport::{Application, Time};

use crate::driver::Endpoint;

/// A stack with the application that it serves.
#[derive(Debug)]
pub struct Hosted<A> {
    /// The stack.
    pub stack: Stack,
    /// The application.
    pub application: A,
}

impl<A: Application> Endpoint for Hosted<A> {
    fn begin_turn(&mut self, now: Time) {
        drive::begin_turn(&mut self.stack, &mut self.application, now);
    }

    fn deliver(&mut self, now: Time, frame: &[u8]) {
        drive::deliver(&mut self.stack, &mut self.application, now, frame);
    }

    fn end_turn(&mut self, now: Time) {
        drive::end_turn(&mut self.stack, &mut self.application, now);
    }

    fn poll_transmit(&mut self, now: Time, slot: &mut [u8]) -> Option<usize> {
        self.stack.poll_transmit(now, slot)
    }

    fn poll_timeout(&self) -> Option<Time> {
        drive::poll_timeout(&self.stack, &self.application)
    }
}
