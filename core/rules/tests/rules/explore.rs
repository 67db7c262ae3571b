//! Explores all interleavings of moves of one flow between three hosts: messages are lost, delayed and reordered, answers
//! are lost, hosts fall silent, deadlines pass. In none of them do two hosts transmit, or one that the switch does not
//! take for the owner, or one whose copy of the connection is older than what another host has sent.

use core::time::Duration;
use std::collections::HashSet;

use spillway_rules::{ServerId, Verdict};
use spillway_wire::switch::{Kind, Status};

use crate::frames::ACK;
use crate::world::{LIFETIME, Message, World};

/// A host's copy of the connection. Only a live one transmits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Connection {
    None,
    Live,
    /// The state was sent to a target; the generation with which the flow was held.
    Exported(u64),
    /// The state has arrived; the host must own the flow first.
    Importing(u64),
}

#[derive(Clone, Debug)]
enum Packet {
    ToSwitch {
        message: Message,
        hello: u32,
    },
    /// The answer to an *own* with this generation.
    Owned {
        host: u8,
        generation: u64,
        status: Status,
        hello: u32,
    },
    /// A relayed *prepare*.
    Asked {
        host: u8,
        generation: u64,
    },
    /// A relayed *prepared*, by this target.
    Ready {
        host: u8,
        target: u8,
        generation: u64,
    },
    /// The connection's state, from host to host.
    Exported {
        host: u8,
        generation: u64,
    },
}

/// How often each fault and each choice may still happen.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
struct Budget {
    moves: u8,
    repetitions: u8,
    silences: u8,
    deadlines: u8,
}

#[derive(Clone, Debug)]
struct Run {
    world: World,
    /// The connections of hosts 1 to 3.
    connections: [Connection; 3],
    /// The age of each host's copy: how many hosts have transmitted before.
    versions: [u32; 3],
    /// The highest version that was ever live.
    version_max: u32,
    /// Number of hellos of each host.
    hellos: [u32; 3],
    packets: Vec<Packet>,
    budget: Budget,
}

impl Run {
    fn new(budget: Budget) -> Run {
        let mut world = World::new();
        world.alive = vec![1, 2, 3, 4];
        let connections = [Connection::Live, Connection::None, Connection::None];
        Run {
            world,
            connections,
            versions: [0; 3],
            version_max: 0,
            hellos: [0; 3],
            packets: Vec::new(),
            budget,
        }
    }

    fn connection(&mut self, host: u8) -> &mut Connection {
        &mut self.connections[usize::from(host - 1)]
    }

    fn send(&mut self, message: Message) {
        let hello = self.hellos[usize::from(message.sender - 1)];
        let message = self.world.delayed(message);
        self.packets.push(Packet::ToSwitch { message, hello });
    }

    fn own(&mut self, host: u8, generation: u64) {
        self.send(Message::new(host, Kind::Own).generation(generation));
    }

    /// All runs that one event leads to.
    fn next(&self) -> Vec<Run> {
        let mut runs = Vec::new();
        for index in 0..self.packets.len() {
            let mut run = self.clone();
            let packet = run.packets.remove(index);
            run.deliver(packet);
            runs.push(run);
        }
        for host in 1..=3 {
            runs.extend(self.choices(host));
        }
        if self.budget.deadlines > 0 && self.world.entry().is_some_and(|entry| entry.target.is_some()) {
            let mut run = self.clone();
            run.budget.deadlines -= 1;
            run.world.pass(LIFETIME);
            runs.push(run);
        }
        let mut touched = self.clone();
        touched.world.client_sends(ACK);
        if touched.world.generation() != self.world.generation() {
            runs.push(touched);
        }
        runs
    }

    /// The runs that follow from each step that a host may take without a message.
    fn choices(&self, host: u8) -> Vec<Run> {
        let mut runs = Vec::new();
        let connection = self.connections[usize::from(host - 1)];
        if connection == Connection::Live && self.budget.moves > 0 {
            for target in (1..=3).filter(|target| *target != host) {
                let mut run = self.clone();
                run.budget.moves -= 1;
                let generation = self.world.generation();
                run.send(Message::new(host, Kind::Prepare).generation(generation).place(target));
                runs.push(run);
            }
        }
        if let Connection::Exported(generation) | Connection::Importing(generation) = connection
            && self.budget.repetitions > 0
        {
            let mut run = self.clone();
            run.budget.repetitions -= 1;
            run.own(host, generation);
            runs.push(run);
        }
        if self.budget.silences > 0 {
            let mut run = self.clone();
            run.budget.silences -= 1;
            run.fall_silent(host);
            runs.push(run);
        }
        runs
    }

    /// A host pauses for longer than the timeout. After the pause the answer to its heartbeat is *no owner*, unless a
    /// packet of the client comes first.
    fn fall_silent(&mut self, host: u8) {
        self.world.alive.retain(|alive| *alive != host);
        self.world.pass(Duration::from_millis(1010));
        self.world.client_sends(ACK);
        let status = self.world.send(Message::new(host, Kind::Heartbeat).load(1, 10, 1)).status();
        assert_eq!(status, Status::NoOwner);
        // The original owner keeps what it serves: its flows never return to another host.
        if host != 1 {
            *self.connection(host) = Connection::None;
        }
        self.hellos[usize::from(host - 1)] += 1;
        assert_eq!(self.world.send(Message::new(host, Kind::Hello)).status(), Status::Ok);
        self.world.alive.push(host);
        self.world.alive.sort_unstable();
        self.world.beat();
    }

    fn deliver(&mut self, packet: Packet) {
        match packet {
            Packet::ToSwitch { message, hello } => self.at_switch(&message, hello),
            Packet::Asked { host, generation } => {
                if *self.connection(host) == Connection::None {
                    self.send(Message::new(host, Kind::Prepared).generation(generation).place(host));
                }
            }
            Packet::Ready { host, target, generation } => {
                if *self.connection(host) == Connection::Live {
                    *self.connection(host) = Connection::Exported(generation);
                    self.packets.push(Packet::Exported { host: target, generation });
                }
            }
            Packet::Exported { host, generation } => {
                if *self.connection(host) == Connection::None {
                    *self.connection(host) = Connection::Importing(generation);
                    self.own(host, generation);
                }
            }
            Packet::Owned { host, generation, status, hello } => {
                if hello != self.hellos[usize::from(host - 1)] || status == Status::Replayed {
                    return;
                }
                let connection = self.connection(host);
                if [Connection::Exported(generation), Connection::Importing(generation)].contains(connection)
                {
                    let is_new = *connection == Connection::Importing(generation);
                    let has_won = status == Status::Ok;
                    *connection = if has_won { Connection::Live } else { Connection::None };
                    self.version_max += u32::from(has_won && is_new);
                    if has_won && is_new {
                        self.versions[usize::from(host - 1)] = self.version_max;
                    }
                }
            }
        }
    }

    fn at_switch(&mut self, message: &Message, hello: u32) {
        let reply = self.world.deliver(message);
        let generation = reply.view.generation();
        let kind = reply.view.kind().unwrap();
        match reply.decision.verdict {
            Verdict::Relayed => {
                let host = reply.relayed().0.number();
                if kind == Kind::Prepare {
                    self.packets.push(Packet::Asked { host, generation });
                } else if reply.view.status() == Ok(Status::Ok) {
                    self.packets.push(Packet::Ready { host, target: message.sender, generation });
                }
            }
            Verdict::Answered if kind == Kind::Own => self.packets.push(Packet::Owned {
                host: message.sender,
                generation: message.view.generation(),
                status: reply.status(),
                hello,
            }),
            _ => {}
        }
    }

    fn check(&self) {
        let live: Vec<u8> =
            (1..=3).filter(|host| self.connections[usize::from(host - 1)] == Connection::Live).collect();
        assert!(live.len() <= 1, "hosts {live:?} transmit: {self:#?}");
        let Some(host) = live.first() else { return };
        // A *get* settles the entry of the copy, as the next packet would.
        let mut settled = self.world.clone();
        settled.send(Message::new(4, Kind::Get));
        let owner = settled.entry().map_or(ServerId(1), |entry| entry.owner.server);
        let version = self.versions[usize::from(host - 1)];
        assert_eq!(version, self.version_max, "host {host} continues an old copy: {self:#?}");
        assert_eq!(owner, ServerId(*host), "host {host} transmits, the switch hears another one: {self:#?}");
    }

    /// What distinguishes runs, without absolute numbers of messages.
    fn key(&self) -> String {
        let flows = self.world.switch.flows();
        let terms: Vec<_> = self.world.switch.owners(self.world.now).iter().map(|owner| owner.term).collect();
        let mut packets: Vec<String> = self
            .packets
            .iter()
            .map(|packet| match packet {
                Packet::ToSwitch { message, hello } => {
                    let view = &message.view;
                    // Heartbeats have sequence numbers, too: after a while the message counts as replayed.
                    let is_old = self.world.sequence(message.sender) - view.sequence() >= 64;
                    format!("{} {:?} {} {hello} {is_old}", message.sender, view.kind(), view.generation())
                }
                other => format!("{other:?}"),
            })
            .collect();
        packets.sort_unstable();
        format!(
            "{flows:?} {terms:?} {:?} {:?} {:?} {packets:?} {:?}",
            self.connections, self.versions, self.hellos, self.budget
        )
    }
}

/// Explores all runs of at most this number of events. Returns how many different ones there are.
fn explore(budget: Budget, events_max: usize) -> usize {
    let mut seen = HashSet::new();
    let mut runs = vec![Run::new(budget)];
    let mut has_moved = false;
    for _ in 0..events_max {
        let mut next = Vec::new();
        for run in runs {
            for run in run.next() {
                if run.packets.len() <= 4 && seen.insert(run.key()) {
                    run.check();
                    has_moved |= run.connections[1] == Connection::Live;
                    next.push(run);
                }
            }
        }
        runs = next;
    }
    assert!(has_moved, "some runs should complete a move");
    seen.len()
}

#[test]
fn never_two_owners_with_lost_messages_and_deadlines() {
    let runs = explore(Budget { moves: 2, repetitions: 3, silences: 0, deadlines: 1 }, 15);
    assert!(runs > 1000, "{runs}");
}

#[test]
fn never_two_owners_with_silent_hosts() {
    let runs = explore(Budget { moves: 2, repetitions: 2, silences: 1, deadlines: 1 }, 13);
    assert!(runs > 1000, "{runs}");
}
