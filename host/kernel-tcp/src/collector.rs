//! Collects the sockets' events, until the server polls for them.

use std::collections::VecDeque;

use spillway_tcp::StackEvent;
use spillway_transport::{Application, Conn, Event, Time, Transport};

/// Events of sockets that wait for the server. The sockets deliver only granted bytes, which bounds the queue.
#[derive(Debug, Default)]
pub(crate) struct Collector(pub(crate) VecDeque<(Conn, StackEvent)>);

impl Application for Collector {
    fn handle<T: Transport>(&mut self, _now: Time, conn: Conn, event: Event<'_>, _out: &mut T) {
        let event = match event {
            Event::Opened { peer, listener } => StackEvent::Opened { peer, listener },
            Event::Data { end, bytes } => StackEvent::Data { end, bytes: bytes.to_vec() },
            Event::Acknowledged { through } => StackEvent::Acknowledged { through },
            Event::Room => StackEvent::Room,
            Event::Finished => StackEvent::Finished,
            Event::Lost(reason) => StackEvent::Lost(reason),
        };
        self.0.push_back((conn, event));
    }

    fn handle_timeout<T: Transport>(&mut self, _now: Time, _out: &mut T) {}

    fn end_of_turn<T: Transport>(&mut self, _now: Time, _out: &mut T) {}

    fn poll_timeout(&self) -> Option<Time> {
        None
    }
}
