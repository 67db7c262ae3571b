//! A group of connections in virtual time, in steps of one millisecond, and a record of its decisions.
#![allow(dead_code, reason = "each test program uses only some of these items")]

use std::time::Duration;

use spillway_policy::activation::{Counters, Notice};
use spillway_policy::{Activation, ActivationSettings, Carrier, Member, Order, Override};
use spillway_transport::Time;

pub const MS: Duration = Duration::from_millis(1);
pub const US: Duration = Duration::from_micros(1);

pub fn at(ms: u64) -> Time {
    Time(ms * 1_000_000)
}

/// One connection, which sends a request every `interval_ms`, but only after the reply to the last one.
struct Client {
    member: Member,
    carrier: Carrier,
    next_request_ms: u64,
    sent_ms: Option<u64>,
    latency: Option<Duration>,
    arrival: Option<(u64, Carrier)>,
    moves: u32,
}

impl Client {
    fn new(member: Member, carrier: Carrier, next_request_ms: u64) -> Client {
        Client { member, carrier, next_request_ms, sent_ms: None, latency: None, arrival: None, moves: 0 }
    }
}

pub struct Group {
    pub activation: Activation,
    pub now_ms: u64,
    clients: Vec<Client>,
    interval_ms: u64,
    /// Helpers refuse all connections.
    pub helpers_are_full: bool,
    /// Time from an order to its completion, ms.
    pub move_ms: u64,
    pub orders_in_step: u32,
    /// The group's decisions, with their times in ms.
    pub notices: Vec<(u64, Notice)>,
    pub orders_ms: Vec<u64>,
}

impl Group {
    pub fn new(members: usize, interval_ms: u64, settings: ActivationSettings, seed: u64) -> Group {
        let mut activation = Activation::new(at(0), settings, seed).unwrap();
        let clients = (0..members).map(|index| {
            let (member, carrier) = activation.join(at(0)).unwrap();
            assert_eq!(carrier, Carrier::Direct);
            Client::new(member, carrier, (index as u64 * interval_ms) / members as u64 + seed % interval_ms)
        });
        let clients = clients.collect();
        Group {
            activation,
            now_ms: 0,
            clients,
            interval_ms,
            helpers_are_full: false,
            move_ms: 3,
            orders_in_step: 0,
            notices: Vec::new(),
            orders_ms: Vec::new(),
        }
    }

    /// Advances the time by 1 ms. `latency` returns the latency of a request that is sent now; `None`: no reply.
    pub fn step(&mut self, mut latency: impl FnMut(Carrier) -> Option<Duration>) {
        let (now_ms, now) = (self.now_ms, at(self.now_ms));
        for client in &mut self.clients {
            if let Some((arrival_ms, carrier)) = client.arrival
                && arrival_ms <= now_ms
            {
                client.arrival = None;
                client.moves += u32::from(client.carrier != carrier);
                client.carrier = carrier;
                self.activation.carried(now, client.member, carrier);
            }
            if let (Some(sent_ms), Some(latency)) = (client.sent_ms, client.latency)
                && at(sent_ms) + latency <= now
            {
                client.sent_ms = None;
                self.activation.record_latency(now, client.member, latency);
                self.activation.set_oldest_request(client.member, None);
            }
            if client.sent_ms.is_none() && client.next_request_ms <= now_ms {
                client.next_request_ms = now_ms + self.interval_ms;
                (client.sent_ms, client.latency) = (Some(now_ms), latency(client.carrier));
                self.activation.set_oldest_request(client.member, Some(now));
            }
        }
        self.take_orders(now);
        self.now_ms += 1;
    }

    /// Takes all orders, which complete after `move_ms`.
    pub fn take_orders(&mut self, now: Time) {
        self.orders_in_step = 0;
        while let Some(order) = self.activation.poll(now) {
            let (member, carrier) = match order {
                Order::ToHelper(member) => (member, Carrier::Helped),
                Order::Direct(member) => (member, Carrier::Direct),
            };
            let client = self.clients.iter_mut().find(|client| client.member == member).unwrap();
            assert!(client.arrival.is_none(), "a member should have one order at a time");
            self.orders_ms.push(self.now_ms);
            self.orders_in_step += 1;
            if self.helpers_are_full && carrier == Carrier::Helped {
                self.activation.not_moved(now, member);
            } else {
                client.arrival = Some((self.now_ms + self.move_ms, carrier));
            }
        }
        while let Some(notice) = self.activation.poll_notice() {
            self.notices.push((self.now_ms, notice));
        }
    }

    /// Advances the time by one millisecond, without new requests.
    pub fn step_without_requests(&mut self) {
        for client in &mut self.clients {
            client.next_request_ms = u64::MAX;
        }
        self.step(|_| None);
    }

    pub fn run(&mut self, until_ms: u64, mut latency: impl FnMut(u64, Carrier) -> Option<Duration>) {
        while self.now_ms < until_ms {
            let now_ms = self.now_ms;
            self.step(|carrier| latency(now_ms, carrier));
        }
    }

    /// As [`run`](Self::run), with a server's queue. `load` is in units of the server's direct capacity; a helped
    /// request costs a fifth and takes 300 µs more. Returns when the queue was last longer than the SLA.
    pub fn run_queue(&mut self, until_ms: u64, load: impl Fn(u64) -> f64) -> Option<u64> {
        let (mut queue_ms, mut last_late_ms) = (0.0_f64, None);
        while self.now_ms < until_ms {
            let helped_share = self.helped() as f64 / self.clients.len() as f64;
            let used = load(self.now_ms) * (1.0 - helped_share * 0.8);
            queue_ms = (queue_ms + used - 1.0).max(0.0);
            let queue = Duration::from_secs_f64(queue_ms / 1000.0);
            if queue > MS {
                last_late_ms = Some(self.now_ms);
            }
            self.step(|carrier| {
                let idle_us = if carrier == Carrier::Helped { 500 } else { 200 };
                Some(US * idle_us + queue)
            });
        }
        last_late_ms
    }

    pub fn set_override(&mut self, relief: Override, lasts: Option<Duration>) {
        self.activation.set_override(at(self.now_ms), relief, lasts);
    }

    /// All helped connections lose their helper.
    pub fn lose_helpers(&mut self) {
        for client in &mut self.clients {
            client.arrival = None;
            if client.carrier == Carrier::Helped {
                client.carrier = Carrier::Direct;
                self.activation.carried(at(self.now_ms), client.member, Carrier::Direct);
            }
        }
    }

    /// The server sends *drain* to `count` connections on this carrier.
    pub fn send_server_drain(&mut self, carrier: Carrier, count: usize) {
        let now = at(self.now_ms);
        for client in self.clients.iter().filter(|client| client.carrier == carrier).take(count) {
            self.activation.release_requested(now, client.member);
        }
    }

    /// Another connection joins, on the carrier that the group returns.
    pub fn join(&mut self) -> Carrier {
        let (member, carrier) = self.activation.join(at(self.now_ms)).unwrap();
        self.clients.push(Client::new(member, carrier, self.now_ms));
        carrier
    }

    /// `count` connections on this carrier leave, without outstanding requests.
    pub fn leave(&mut self, carrier: Carrier, mut count: usize) {
        let now = at(self.now_ms);
        self.clients.retain(|client| {
            let leaves = count > 0 && client.carrier == carrier;
            if leaves {
                count -= 1;
                self.activation.set_oldest_request(client.member, None);
                self.activation.leave(now, client.member);
            }
            !leaves
        });
    }

    pub fn helped(&self) -> usize {
        self.clients.iter().filter(|client| client.carrier == Carrier::Helped).count()
    }

    /// The highest number of moves of any connection.
    pub fn moves_max(&self) -> u32 {
        self.clients.iter().map(|client| client.moves).max().unwrap_or(0)
    }

    pub fn moves(&self) -> u32 {
        self.clients.iter().map(|client| client.moves).sum()
    }

    pub fn labels(&self) -> Vec<&'static str> {
        self.notices.iter().map(|(_, notice)| notice.label()).collect()
    }

    /// The times of decisions with this label, ms.
    pub fn times_of(&self, label: &str) -> Vec<u64> {
        self.notices.iter().filter(|(_, notice)| notice.label() == label).map(|(ms, _)| *ms).collect()
    }

    pub fn counters(&self) -> Counters {
        *self.activation.counters()
    }

    pub fn print(&self) {
        for (ms, notice) in &self.notices {
            println!("{ms:7} ms  {notice}");
        }
    }
}
