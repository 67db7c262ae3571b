//! Runs one host's application for one turn, as the contract of [`Transport`] requires.

use spillway_transport::{Application, Conn, Event, Time, Transport};

use crate::agenda::NetworkEvent;
use crate::network::Network;
use crate::port::Port;
use crate::socket::{HostId, SocketEvent};

/// Maximum number of events of one connection in a turn.
const EVENTS_PER_TURN_MAX: u64 = 8;

impl SocketEvent {
    fn as_event(&self) -> Event<'_> {
        match self {
            SocketEvent::Opened { peer, listener } => Event::Opened { peer: *peer, listener: *listener },
            SocketEvent::Data { end, bytes } => Event::Data { end: *end, bytes },
            SocketEvent::Acknowledged { through } => Event::Acknowledged { through: *through },
            SocketEvent::Room => Event::Room,
            SocketEvent::Finished => Event::Finished,
            SocketEvent::Lost(reason) => Event::Lost(*reason),
        }
    }
}

/// Runs a turn: the host's due timers, then the events of its ready connections, in random order.
pub fn turn<A: Application>(network: &mut Network, host: HostId, application: &mut A) {
    let now = network.time_at(host);
    if application.poll_timeout().is_some_and(|at| at <= now) {
        application.handle_timeout(now, &mut Port { network, host });
    }
    for conn in network.begin_turn(host) {
        for _ in 0..network.rng.range(1, EVENTS_PER_TURN_MAX) {
            let Some(event) = network.next_event(host, conn) else { break };
            application.handle(now, conn, event.as_event(), &mut Port { network, host });
        }
        network.mark_ready(host, conn);
    }
    end_turn(network, host, application);
}

/// Applies an event to the network. Calls `turn` if the event makes a host's turn due.
pub fn handle(network: &mut Network, event: NetworkEvent, turn: impl FnOnce(&mut Network, HostId)) {
    match event {
        NetworkEvent::Syn { from, source, target } => network.arrive_syn(from, source, target),
        NetworkEvent::Segment { at, conn, from, segment } => network.arrive(at, conn, from, segment),
        NetworkEvent::Turn(host) => {
            if network.wants_turn(host) {
                turn(network, host);
            }
        }
        NetworkEvent::Wake(host, at) => {
            if network.is_due(host, at) {
                turn(network, host);
            }
        }
        NetworkEvent::World(_) => {}
    }
}

/// Runs `command` on the application and ends the turn, as the main loop of a program does between two turns.
pub fn command<A: Application, R>(
    network: &mut Network,
    host: HostId,
    application: &mut A,
    command: impl FnOnce(Time, &mut A, &mut Port<'_>) -> R,
) -> R {
    let result = command(network.time_at(host), application, &mut Port { network, host });
    end_turn(network, host, application);
    result
}

fn end_turn<A: Application>(network: &mut Network, host: HostId, application: &mut A) {
    application.end_of_turn(network.time_at(host), &mut Port { network, host });
    for conn in std::mem::take(&mut network.hosts[host].dirty) {
        network.flush(host, conn);
    }
    network.wake_at(host, application.poll_timeout());
}

/// The application of a host that is down: aborts every connection.
#[derive(Debug)]
pub struct Down;

impl Application for Down {
    fn handle<T: Transport>(&mut self, _: Time, conn: Conn, _: Event<'_>, out: &mut T) {
        out.abort(conn);
    }

    fn handle_timeout<T: Transport>(&mut self, _: Time, _: &mut T) {}

    fn end_of_turn<T: Transport>(&mut self, _: Time, _: &mut T) {}

    fn poll_timeout(&self) -> Option<Time> {
        None
    }
}
