//! One host of a scene: its stack and application.

use std::collections::VecDeque;

use spillway_relay::Relay;
use spillway_tcp::{Settings, Stack, drive};
use spillway_transport::{Application, Time};

use crate::network::AddressBook;
use crate::relay::clients::Clients;
use crate::relay::server::Server;

pub(super) enum Actor {
    Server(Box<Server>),
    /// All plain clients, and the addresses of their connections.
    Clients(Box<Clients>, AddressBook),
    Helper(Box<Relay>),
}

/// Maximum length of a host's receive queue, frames.
const RECEIVE_QUEUE_MAX: usize = 1_000;

pub(super) struct Node {
    pub(super) stack: Stack,
    pub(super) actor: Actor,
    pub(super) receive_queue: VecDeque<Vec<u8>>,
}

impl Node {
    pub(super) fn new(now: Time, settings: Settings, actor: Actor) -> Node {
        let stack = Stack::new(now, settings).expect("the settings of a scene are valid");
        Node { stack, actor, receive_queue: VecDeque::new() }
    }

    pub(super) fn arrive(&mut self, frame: Vec<u8>) {
        if self.receive_queue.len() < RECEIVE_QUEUE_MAX {
            self.receive_queue.push_back(frame);
        }
    }

    /// Runs a turn, then passes each outgoing frame to `sends`. `frame` is a buffer that turns reuse.
    pub(super) fn turn(&mut self, now: Time, frame: &mut Vec<u8>, mut sends: impl FnMut(&[u8])) {
        let (stack, receive_queue) = (&mut self.stack, &mut self.receive_queue);
        match &mut self.actor {
            Actor::Server(server) => turn(stack, &mut **server, receive_queue, now),
            Actor::Helper(relay) => turn(stack, &mut **relay, receive_queue, now),
            Actor::Clients(clients, book) => {
                turn(stack, &mut **clients, receive_queue, now);
                let mut book = book.borrow_mut();
                for conn in clients.opening() {
                    if let Some(address) = stack.local_address(conn) {
                        book.insert(conn, address);
                    }
                }
            }
        }
        frame.resize(self.stack.frame_bytes_max(), 0);
        while let Some(length) = self.stack.poll_transmit(now, frame) {
            sends(&frame[..length]);
        }
    }

    pub(super) fn poll_timeout(&self) -> Option<Time> {
        match &self.actor {
            Actor::Server(server) => drive::poll_timeout(&self.stack, &**server),
            Actor::Helper(relay) => drive::poll_timeout(&self.stack, &**relay),
            Actor::Clients(clients, _) => drive::poll_timeout(&self.stack, &**clients),
        }
    }
}

fn turn<A: Application>(
    stack: &mut Stack,
    application: &mut A,
    receive_queue: &mut VecDeque<Vec<u8>>,
    now: Time,
) {
    drive::begin_turn(stack, application, now);
    for frame in receive_queue.drain(..) {
        drive::deliver(stack, application, now, &frame);
    }
    drive::end_turn(stack, application, now);
}
