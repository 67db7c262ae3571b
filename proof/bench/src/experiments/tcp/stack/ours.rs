//! An echo server on our stack.

use std::ops::Range;

use spillway_tcp::isn::Key;
use spillway_tcp::{Listener, Settings, Stack, drive};
use spillway_transport::{Application, Conn, Event, Time, Transport};

use super::server::Echo;
use crate::experiments::common::script::{Frames, MTU, STACK_IP, STACK_MAC, listener};

/// A stack with a listener on the address that scripted clients use.
pub fn stack(is_gated: bool) -> Result<Stack, String> {
    let settings = Settings {
        mtu: MTU,
        listeners: vec![Listener { address: listener().into(), is_gated }],
        ..Settings::new(STACK_MAC, STACK_IP, 24, Key([7; 16]))
    };
    Stack::new(Time::ZERO, settings).map_err(|error| error.to_string())
}

#[derive(Debug)]
pub struct EchoApplication;

impl Application for EchoApplication {
    fn handle<T: Transport>(&mut self, _now: Time, conn: Conn, event: Event<'_>, out: &mut T) {
        match event {
            Event::Opened { .. } => out.grant(conn, 1 << 16),
            Event::Data { bytes, .. } => {
                out.send(conn, bytes);
                out.grant(conn, bytes.len() as u32); // at most a frame
            }
            _ => {}
        }
    }

    fn handle_timeout<T: Transport>(&mut self, _now: Time, _out: &mut T) {}

    fn end_of_turn<T: Transport>(&mut self, _now: Time, _out: &mut T) {}

    fn poll_timeout(&self) -> Option<Time> {
        None
    }
}

#[derive(Debug)]
pub struct Ours(Stack);

impl Ours {
    pub fn new() -> Result<Ours, String> {
        let mut stack = stack(false)?;
        stack.set_listening(0, true);
        Ok(Ours(stack))
    }
}

impl Echo for Ours {
    fn turn(&mut self, now: Time, frames: &Frames, range: Range<usize>, _owners: &[usize], out: &mut Frames) {
        turn(&mut self.0, &mut EchoApplication, now, range.map(|index| frames.get(index)), out);
    }
}

/// Runs one turn of a stack and its application by [`drive`], as all drivers do, and adds sent frames to `out`.
pub fn turn<'a, A: Application>(
    stack: &mut Stack,
    application: &mut A,
    now: Time,
    frames: impl Iterator<Item = &'a [u8]>,
    out: &mut Frames,
) {
    drive::begin_turn(stack, application, now);
    for frame in frames {
        drive::deliver(stack, application, now, frame);
    }
    drive::end_turn(stack, application, now);
    while out.push(|slot| stack.poll_transmit(now, slot)) {}
}
