//! Forwards packets of a connection that arrive at the wrong end of its move to the other end: packets that passed the
//! switch before the flow was held reach the source after the export, and a target that gives the flow back has
//! buffered packets. A packet is forwarded at most once.
//!
//! - [`frame`]: a frame at its new place; `assembly`: frames that are longer than a datagram; `rate`: the bound

mod assembly;
pub(crate) mod frame;
mod rate;

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use spillway_transport::Time;
use spillway_wire::handoff::{Body, FRAME_BYTES_MAX, Part, parts_of};
use spillway_wire::switch::{Flow, ServerId};

use crate::recent::Recent;
use assembly::Assembly;
use rate::Rate;

/// Maximum number of flows whose packets are forwarded at the same time.
const FLOWS_MAX: usize = 4096;
/// Maximum number of frames that wait to be sent.
const QUEUE_MAX: usize = 1024;

/// Where packets of a flow go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Direction {
    pub(crate) to: ServerId,
    /// The generation of the move.
    pub(crate) generation: u64,
    until: Time,
}

/// A frame that is sent in parts.
#[derive(Debug)]
struct Queued {
    flow: Flow,
    direction: Direction,
    number: u32,
    next_part: u16,
    frame: Vec<u8>,
}

/// All forwarding of a server.
#[derive(Debug)]
pub(crate) struct Forwards {
    directions: Recent<Direction>,
    rate: Rate,
    queue: VecDeque<Queued>,
    numbered: u32,
    assemblies: BTreeMap<ServerId, Assembly>,
    /// Frames that were forwarded.
    pub(crate) sent: u64,
    /// Frames that were not forwarded, because a limit was reached.
    pub(crate) dropped: u64,
}

impl Forwards {
    pub(crate) fn new(now: Time, frames_per_s: u32) -> Forwards {
        Forwards {
            directions: Recent::new(FLOWS_MAX),
            rate: Rate::new(now, frames_per_s),
            queue: VecDeque::new(),
            numbered: 0,
            assemblies: BTreeMap::new(),
            sent: 0,
            dropped: 0,
        }
    }

    /// Packets of this flow go to the server `to` until the time `until`.
    pub(crate) fn begin(&mut self, flow: Flow, to: ServerId, generation: u64, until: Time) {
        self.directions.insert(flow, Direction { to, generation, until });
    }

    /// This server has the connection or will import it: packets of the flow are no longer forwarded.
    pub(crate) fn end(&mut self, flow: &Flow) {
        self.directions.remove(flow);
    }

    /// The server to which a packet of this flow must be forwarded; `None`: this server handles the packet.
    pub(crate) fn direction(&self, now: Time, flow: &Flow) -> Option<Direction> {
        self.directions.get(flow).filter(|direction| now < direction.until).copied()
    }

    /// Forwards a frame, which the caller has checked. Returns false if a limit is reached.
    pub(crate) fn add(&mut self, now: Time, flow: Flow, direction: Direction, frame: Vec<u8>) -> bool {
        let is_possible = !frame.is_empty() && frame.len() <= FRAME_BYTES_MAX;
        if self.queue.len() >= QUEUE_MAX || !is_possible || !self.rate.take(now) {
            self.dropped += 1;
            return false;
        }
        self.sent += 1;
        self.numbered = self.numbered.wrapping_add(1);
        self.queue.push_back(Queued { flow, direction, number: self.numbered, next_part: 0, frame });
        true
    }

    /// Calls `emit` with the next message to send. Returns false if the queue is empty.
    pub(crate) fn poll(&mut self, emit: impl FnOnce(ServerId, Flow, u64, Body<'_>)) -> bool {
        let Some(queued) = self.queue.front_mut() else { return false };
        if let Some(part) = Part::of(&queued.frame, queued.next_part) {
            let body = Body::Forward { frame: queued.number, part };
            emit(queued.direction.to, queued.flow, queued.direction.generation, body);
        }
        queued.next_part += 1;
        if usize::from(queued.next_part) >= parts_of(queued.frame.len()) {
            self.queue.pop_front();
        }
        true
    }

    /// A part of a frame has arrived. Returns the frame when it is complete.
    pub(crate) fn handle_part(&mut self, from: ServerId, packet: u32, part: &Part<'_>) -> Option<Vec<u8>> {
        self.assemblies.entry(from).or_default().add(packet, part)
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::*;
    use crate::test_flow::flow;

    const PEER: ServerId = ServerId(2);

    fn ms(milliseconds: u64) -> Time {
        Time::ZERO + Duration::from_millis(milliseconds)
    }

    #[test]
    fn a_long_frame_travels_in_parts() {
        let mut forwards = Forwards::new(Time(0), 1_000);
        forwards.begin(flow(1), PEER, 8, ms(100));
        let direction = forwards.direction(ms(99), &flow(1)).unwrap();
        let frame: Vec<u8> = (0..9_000).map(|at| (at % 250) as u8).collect();
        forwards.add(ms(1), flow(1), direction, frame.clone());
        let (mut receiver, mut messages, mut arrived) = (Forwards::new(Time(0), 1), 0, None);
        while forwards.poll(|to, _, generation, body| {
            assert_eq!((to, generation), (PEER, 8));
            let Body::Forward { frame: packet, part } = body else { panic!("{body:?}") };
            arrived = receiver.handle_part(ServerId(1), packet, &part);
        }) {
            messages += 1;
        }
        assert_eq!((messages, arrived), (8, Some(frame)));
    }

    #[test]
    fn a_direction_ends_with_its_time_or_when_the_connection_comes_back() {
        let mut forwards = Forwards::new(Time(0), 1_000);
        forwards.begin(flow(1), PEER, 8, ms(100));
        assert!(
            forwards.direction(ms(99), &flow(1)).is_some() && forwards.direction(ms(100), &flow(1)).is_none()
        );
        forwards.end(&flow(1));
        assert!(forwards.direction(ms(50), &flow(1)).is_none());
    }

    #[test]
    fn frames_per_second_and_frames_that_wait_are_bounded() {
        let mut forwards = Forwards::new(Time(0), 100);
        forwards.begin(flow(1), PEER, 8, ms(5_000));
        let direction = forwards.direction(Time(0), &flow(1)).unwrap();
        for _ in 0..150 {
            forwards.add(Time(0), flow(1), direction, alloc::vec![0; 60]);
        }
        assert_eq!((forwards.sent, forwards.dropped), (100, 50));
        let mut many = Forwards::new(Time(0), 1_000_000);
        for _ in 0..=QUEUE_MAX {
            many.add(Time(0), flow(1), direction, alloc::vec![0; 60]);
        }
        assert_eq!((many.queue.len(), many.dropped), (QUEUE_MAX, 1));
    }
}
