//! Sends requests and checks replies. Exactly one outcome is recorded for each request.

use std::io;

use spillway_moving_client::{Ready, Slot};

use super::Worker;
use super::connection::{Pending, State};
use crate::engine::{Engine, Interest};
use crate::protocol::{Protocol, Request, Verdict};
use crate::report::Target;
use crate::samples::SampleKind;

impl<P: Protocol, E: Engine> Worker<P, E> {
    /// Sends an arrival's request if the connection is idle, and queues the request otherwise.
    pub(super) fn dispatch(&mut self, index: usize, intended_ns: u64, request: Request) {
        if self.connections[index].is_idle() && !self.connections[index].is_held(self.clock) {
            let carrier = self.connections[index].carrier;
            let sent_ns = self.send(index, intended_ns, request);
            self.sample(intended_ns, carrier, SampleKind::Lag, sent_ns.saturating_sub(intended_ns));
        } else if self.pool.push(&mut self.connections[index].waiting, intended_ns, request) {
            self.waiting_requests += 1;
        } else {
            let carrier = self.connections[index].carrier;
            self.sample(intended_ns, carrier, SampleKind::Dropped, 0);
        }
    }

    /// Continues an idle connection with its move, then with a waiting request or, in a closed loop, a new one.
    pub(super) fn advance(&mut self, index: usize) {
        if self.connections[index].target != self.connections[index].carrier {
            self.change_carrier(index);
        }
        let connection = &mut self.connections[index];
        if !connection.is_open() || connection.pending.is_some() || connection.is_held(self.clock) {
            return;
        }
        let next = self.pool.pop(&mut connection.waiting);
        if let Some((intended_ns, request)) = next {
            self.waiting_requests -= 1;
            self.send(index, intended_ns, request);
        } else if self.arrivals.is_none() {
            let now_ns = self.clock.now_ns();
            if now_ns < self.end_ns {
                self.samples.offered.add(now_ns / self.bin_ns);
                let request = self.protocol.draw();
                self.send(index, now_ns, request);
            }
        }
    }

    /// Sends a request on an idle connection. Returns the send time.
    fn send(&mut self, index: usize, intended_ns: u64, request: Request) -> u64 {
        self.encode_buffer.clear();
        let sent = self.protocol.encode(request, &mut self.encode_buffer);
        let sent_ns = self.clock.now_ns();
        self.connections[index].pending = Some(Pending { sent, intended_ns, rest: None });
        self.report_pending_since(index, Some(intended_ns));
        self.pending_requests += 1;
        match self.connections[index].state.send(&self.encode_buffer) {
            Ok(count) if count == self.encode_buffer.len() => {}
            Ok(count) => {
                self.connections[index].unsent.extend_from_slice(&self.encode_buffer[count..]);
                self.watch_room(index, true);
            }
            Err(e) => self.handle_loss(index, &format!("while sending: {e}")),
        }
        self.schedule_poll(index);
        sent_ns
    }

    pub(super) fn handle_ready(&mut self, index: usize, slot: Slot, ready: Ready) {
        match self.connections.get(index).map(|connection| &connection.state) {
            Some(State::Opening { .. }) => self.handle_connected(index),
            Some(State::Plain(_)) => {
                if ready.writable {
                    self.send_rest(index);
                }
                // Sending the rest may have failed, and closed the connection.
                if ready.readable && self.connections[index].is_open() {
                    self.receive(index);
                }
            }
            Some(State::MovingClient { .. }) => self.handle_moving_client_ready(index, slot, ready),
            Some(State::Session(_)) => self.handle_session_ready(index),
            // An earlier event of the same turn closed the connection.
            Some(State::Closed) | None => {}
        }
    }

    pub(super) fn send_rest(&mut self, index: usize) {
        let connection = &mut self.connections[index];
        if connection.unsent.is_empty() {
            return;
        }
        match connection.state.send(&connection.unsent) {
            Ok(count) => {
                connection.unsent.drain(..count);
                if connection.unsent.is_empty() {
                    self.watch_room(index, false);
                }
            }
            Err(e) => self.handle_loss(index, &format!("while sending: {e}")),
        }
    }

    /// Starts or stops waiting for room to send on a plain stream.
    fn watch_room(&mut self, index: usize, writable: bool) {
        if let State::Plain(stream) = &self.connections[index].state {
            let interest = Interest { token: super::token(index), is_new: false, readable: true, writable };
            if let Err(e) = self.engine.watch(stream, interest) {
                self.handle_loss(index, &format!("while changing the events to wait for: {e}"));
            }
        }
    }

    /// Receives and checks bytes. Returns whether more may be available.
    pub(super) fn receive(&mut self, index: usize) -> bool {
        let connection = &mut self.connections[index];
        match connection.state.receive(&mut self.receive_buffer) {
            Ok(0) => {
                self.handle_loss(index, "the other side closed it");
                return false;
            }
            Ok(count) if connection.partial.is_empty() => {
                // Takes the buffer, so that the reply is checked without a copy.
                let received = std::mem::take(&mut self.receive_buffer);
                self.check_reply(index, &received[..count]);
                self.receive_buffer = received;
            }
            Ok(count) => {
                let mut partial = std::mem::take(&mut connection.partial);
                partial.extend_from_slice(&self.receive_buffer[..count]);
                self.check_reply(index, &partial);
                partial.clear();
                // Reuses the memory, unless `check_reply` has stored the rest of an incomplete reply.
                if self.connections[index].partial.is_empty() {
                    self.connections[index].partial = partial;
                }
            }
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                return false;
            }
            Err(e) => {
                self.handle_loss(index, &e.to_string());
                return false;
            }
        }
        true
    }

    /// Checks `reply`, which has all bytes received since the request was sent, without those that were checked before.
    fn check_reply(&mut self, index: usize, reply: &[u8]) {
        let now_ns = self.clock.now_ns();
        let Some(pending) = self.connections[index].pending else {
            let carrier = self.connections[index].carrier;
            self.sample(now_ns, carrier, SampleKind::Wrong, 0);
            self.samples.unasked.add(now_ns / self.bin_ns);
            self.report_trouble(|| {
                format!("connection {index}: {} bytes without a pending request", reply.len())
            });
            self.handle_loss(index, "closed by the generator after bytes without a pending request");
            return;
        };
        let verdict = match pending.rest {
            Some(rest) => self.protocol.check_rest(rest, reply),
            None => self.protocol.check(&pending.sent, reply),
        };
        let (is_right, length) = match verdict {
            Verdict::Incomplete => {
                self.connections[index].partial.extend_from_slice(reply);
                return;
            }
            Verdict::Continues(rest) => {
                self.connections[index].pending = Some(Pending { rest: Some(rest), ..pending });
                return;
            }
            Verdict::Right(length) => (length == reply.len(), length),
            Verdict::Wrong(length) => (false, length),
            Verdict::Garbled => (false, 0),
        };
        if is_right {
            self.samples.replied.add(now_ns / self.bin_ns);
        } else if matches!(verdict, Verdict::Right(_)) {
            self.samples.unasked.add(now_ns / self.bin_ns);
        }
        let latency_ns = now_ns.saturating_sub(pending.intended_ns);
        let kind = match (is_right, latency_ns <= self.sla_ns) {
            (true, true) => SampleKind::OnTime,
            (true, false) => SampleKind::Late,
            (false, _) => SampleKind::Wrong,
        };
        let carrier = self.connections[index].carrier;
        self.sample(pending.intended_ns, carrier, kind, latency_ns);
        self.connections[index].pending = None;
        self.pending_requests -= 1;
        self.report_latency(index, latency_ns);
        self.count_first_reply(index, now_ns);
        if !is_right {
            let why = self.protocol.explain(&pending.sent, reply);
            self.report_trouble(|| format!("connection {index}: wrong reply: {why}"));
        }
        if length == reply.len() {
            self.advance(index);
        } else {
            self.handle_loss(index, "closed by the generator after a reply of unknown or wrong length");
        }
    }

    /// Handles the loss of a connection and of its pending reply. A helped connection falls back to its direct
    /// connection if there is one; other connections are reopened.
    pub(super) fn handle_loss(&mut self, index: usize, why: &str) {
        let carrier = self.connections[index].carrier;
        let now_ns = self.clock.now_ns();
        self.sample(now_ns, carrier, SampleKind::Reset, 0);
        self.report_trouble(|| format!("connection {index} is lost: {why}"));
        self.give_up_pending(index);
        self.connections[index].unsent.clear();
        self.connections[index].partial.clear();
        if !self.fall_back(index) {
            self.close(index);
        }
    }

    pub(super) fn close(&mut self, index: usize) {
        self.leave_group(index);
        let connection = &mut self.connections[index];
        connection.state = State::Closed;
        if connection.carrier == Target::Helper {
            (connection.carrier, connection.target) = (Target::Direct, Target::Direct);
            self.helped_now -= 1;
        }
        self.schedule_reopening(index);
    }

    /// Counts the pending request as lost.
    pub(super) fn give_up_pending(&mut self, index: usize) {
        let connection = &mut self.connections[index];
        let carrier = connection.carrier;
        if let Some(pending) = connection.pending.take() {
            self.pending_requests -= 1;
            self.sample(pending.intended_ns, carrier, SampleKind::Lost, 0);
        }
    }

    /// Counts the connection's waiting requests as unsent.
    pub(super) fn give_up_waiting(&mut self, index: usize) {
        let carrier = self.connections[index].carrier;
        while let Some((intended_ns, _)) = self.pool.pop(&mut self.connections[index].waiting) {
            self.waiting_requests -= 1;
            self.sample(intended_ns, carrier, SampleKind::Unsent, 0);
        }
    }
}
