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
    /// With the addresses of their connections.
    Clients(Box<Clients>, AddressBook),
    Helper(Box<Relay>),
}

/// Bound of a host's receive queue, frames.
const INBOX_MAX: usize = 1_000;

pub(super) struct Node {
    pub(super) stack: Stack,
    pub(super) actor: Actor,
    pub(super) inbox: VecDeque<Vec<u8>>,
}

impl Node {
    pub(super) fn new(now: Time, settings: Settings, actor: Actor) -> Node {
        let settings_error = "the scene keeps to the limits of settings";
        let stack = Stack::new(now, settings).expect(settings_error);
        Node { stack, actor, inbox: VecDeque::new() }
    }

    pub(super) fn arrive(&mut self, frame: Vec<u8>) {
        if self.inbox.len() < INBOX_MAX {
            self.inbox.push_back(frame);
        }
    }

    pub(super) fn turn(&mut self, now: Time, slot: &mut Vec<u8>, mut sends: impl FnMut(&[u8])) {
        let (stack, inbox) = (&mut self.stack, &mut self.inbox);
        match &mut self.actor {
            Actor::Server(server) => turn(stack, &mut **server, inbox, now),
            Actor::Helper(relay) => turn(stack, &mut **relay, inbox, now),
            Actor::Clients(clients, book) => {
                turn(stack, &mut **clients, inbox, now);
                let mut book = book.borrow_mut();
                for conn in clients.opening() {
                    if let Some(address) = stack.local_address(conn) {
                        book.insert(conn, address);
                    }
                }
            }
        }
        slot.resize(self.stack.frame_bytes_max(), 0);
        while let Some(length) = self.stack.poll_transmit(now, slot) {
            sends(&slot[..length]);
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

fn turn<A: Application>(stack: &mut Stack, application: &mut A, inbox: &mut VecDeque<Vec<u8>>, now: Time) {
    drive::begin_turn(stack, application, now);
    for frame in inbox.drain(..) {
        drive::deliver(stack, application, now, &frame);
    }
    drive::end_turn(stack, application, now);
}
