//! The datagrams that an agent sends.

use alloc::boxed::Box;
use alloc::vec::Vec;

use spillway_transport::Time;
use spillway_wire::handoff::{Body, Message};
use spillway_wire::switch::{Body as SwitchBody, Flow, Message as SwitchMessage, Request, ServerId};

use super::{Agent, WAITING_MAX};
use crate::event::Transmit;

impl Agent {
    /// The next datagram to send. Call it after each other verb until it returns `None`.
    pub fn poll_transmit(&mut self, now: Time) -> Option<Transmit> {
        loop {
            if let Some(output) = self.outputs.pop_front() {
                return Some(output);
            }
            if let Some((to, payload)) = self.peers.poll_greeting() {
                return Some(Transmit::Server { to, payload });
            }
            if !self.poll_moves(now) && !self.poll_forwards() {
                return None;
            }
        }
    }

    /// The driver does not need the payload of a datagram that [`poll_transmit`](Self::poll_transmit) has returned any more: its
    /// memory serves a later one. A driver may drop payloads instead.
    pub fn recycle(&mut self, payload: Vec<u8>) {
        self.peers.recycle(payload);
    }

    /// Queues the next message of a move. Returns false if no move has a message to send.
    fn poll_moves(&mut self, now: Time) -> bool {
        while let Some(flow) = self.ready.first().copied() {
            if let Some((source, target)) = self.targets.get_mut(&flow)
                && let Some(received) = target.poll_received(now)
            {
                let message =
                    Message { flow, generation: target.generation(), body: Body::Received(received) };
                let to = *source;
                self.emit(to, &message);
                return true;
            }
            self.ready.remove(&flow);
            if self.poll_parts(now, flow) {
                return true;
            }
        }
        false
    }

    /// Queues the parts of a state that are due: at most as many as the window to the target allows. Returns false if no part
    /// is due.
    fn poll_parts(&mut self, now: Time, flow: Flow) -> bool {
        let Some(source) = self.sources.get_mut(&flow) else { return false };
        let target = source.destination().and_then(|to| self.settings.server_with(to.target.mac()));
        let mut is_due = false;
        while let Some((to, body)) = source.poll_part(now) {
            is_due = true;
            let message = Message { flow, generation: to.generation, body };
            if let Some(to) = target
                && let Some(payload) = self.peers.seal(to, &message)
            {
                self.outputs.push_back(Transmit::Server { to, payload });
            }
        }
        is_due
    }

    /// Queues the next part of a forwarded frame. Returns false if no frame waits.
    fn poll_forwards(&mut self) -> bool {
        let (peers, outputs) = (&mut self.peers, &mut self.outputs);
        self.forwards.poll(|to, flow, generation, body| {
            let payload = peers.seal(to, &Message { flow, generation, body });
            outputs.extend(payload.map(|payload| Transmit::Server { to, payload }));
        })
    }

    fn emit(&mut self, to: ServerId, message: &Message<'_>) {
        let payload = self.peers.seal(to, message);
        self.outputs.extend(payload.map(|payload| Transmit::Server { to, payload }));
    }

    /// Sends a message to another server.
    pub(super) fn send(&mut self, to: ServerId, flow: Flow, generation: u64, body: Body<'_>) {
        self.emit(to, &Message { flow, generation, body });
    }

    /// Sends a request to the switch. Returns its sequence.
    pub(super) fn request(&mut self, now: Time, request: Request) -> u64 {
        let (kind, flow) = (request.kind(), flow_of(&request));
        let sequence = self.sequences.next(now);
        let (sender, epoch) = (self.settings.id, self.membership.epoch());
        let message = SwitchMessage { sender, sequence, epoch, body: SwitchBody::Request(request) };
        self.outputs.push_back(Transmit::Switch(Box::new(self.settings.key.emit(&message))));
        if let Some(flow) = flow {
            if self.waiting.len() >= WAITING_MAX {
                self.waiting.pop_first();
            }
            self.waiting.insert(sequence, (kind, flow));
        }
        sequence
    }
}

fn flow_of(request: &Request) -> Option<Flow> {
    match *request {
        Request::Prepare { flow, .. }
        | Request::Prepared { flow, .. }
        | Request::Hold { flow, .. }
        | Request::Own { flow, .. }
        | Request::Release { flow, .. }
        | Request::Get { flow } => Some(flow),
        Request::Heartbeat { .. } | Request::Hello | Request::List { .. } => None,
    }
}
