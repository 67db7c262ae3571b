//! A group of connections in virtual time, one step a millisecond: a trace reads as what it was told and what it decided.
#![allow(dead_code, reason = "each test uses its part")]

use std::time::Duration;

use spillway_policy::activation::{Counters, Notice};
use spillway_policy::{Activation, ActivationSettings, Carrier, Member, Order, Word};
use spillway_transport::Time;

pub const MS: Duration = Duration::from_millis(1);
pub const US: Duration = Duration::from_micros(1);

pub fn at(ms: u64) -> Time {
    Time(ms * 1_000_000)
}

/// One connection: asks every `gap_ms`, one request at a time.
struct Client {
    member: Member,
    carrier: Carrier,
    next_ask_ms: u64,
    asked_ms: Option<u64>,
    latency: Option<Duration>,
    arrives: Option<(u64, Carrier)>,
    switches: u32,
}

impl Client {
    fn new(member: Member, carrier: Carrier, next_ask_ms: u64) -> Client {
        Client { member, carrier, next_ask_ms, asked_ms: None, latency: None, arrives: None, switches: 0 }
    }
}

/// A group and its server.
pub struct Group {
    pub activation: Activation,
    pub now_ms: u64,
    clients: Vec<Client>,
    gap_ms: u64,
    /// Helpers take nobody.
    pub are_full: bool,
    /// From an order to the new carrier.
    pub move_ms: u64,
    /// Moves in the last step.
    pub moved: u32,
    /// What was decided, and when.
    pub notices: Vec<(u64, Notice)>,
    /// When orders were given.
    pub orders_ms: Vec<u64>,
}

impl Group {
    pub fn new(members: usize, gap_ms: u64, settings: ActivationSettings, seed: u64) -> Group {
        let mut activation = Activation::new(at(0), settings, seed).unwrap();
        let clients = (0..members).map(|n| {
            let (member, carrier) = activation.join(at(0)).unwrap();
            assert_eq!(carrier, Carrier::Direct);
            Client::new(member, carrier, (n as u64 * gap_ms) / members as u64 + seed % gap_ms)
        });
        let clients = clients.collect();
        Group {
            activation,
            now_ms: 0,
            clients,
            gap_ms,
            are_full: false,
            move_ms: 3,
            moved: 0,
            notices: Vec::new(),
            orders_ms: Vec::new(),
        }
    }

    /// A millisecond passes. `latency`: of a request that is asked now; nothing if it is never answered.
    pub fn step(&mut self, mut latency: impl FnMut(Carrier) -> Option<Duration>) {
        let (now_ms, now) = (self.now_ms, at(self.now_ms));
        for client in &mut self.clients {
            if let Some((arrives_ms, carrier)) = client.arrives
                && arrives_ms <= now_ms
            {
                client.arrives = None;
                client.switches += u32::from(client.carrier != carrier);
                client.carrier = carrier;
                self.activation.carried(now, client.member, carrier);
            }
            if let (Some(asked_ms), Some(latency)) = (client.asked_ms, client.latency)
                && at(asked_ms) + latency <= now
            {
                client.asked_ms = None;
                self.activation.measured(now, client.member, latency);
                self.activation.waits_since(client.member, None);
            }
            if client.asked_ms.is_none() && client.next_ask_ms <= now_ms {
                client.next_ask_ms = now_ms + self.gap_ms;
                (client.asked_ms, client.latency) = (Some(now_ms), latency(client.carrier));
                self.activation.waits_since(client.member, Some(now));
            }
        }
        self.obey(now);
        self.now_ms += 1;
    }

    /// Orders are carried out after `move_ms`.
    pub fn obey(&mut self, now: Time) {
        self.moved = 0;
        while let Some(order) = self.activation.poll(now) {
            let (member, carrier) = match order {
                Order::Help(member) => (member, Carrier::Helped),
                Order::Direct(member) => (member, Carrier::Direct),
            };
            let client = self.clients.iter_mut().find(|client| client.member == member).unwrap();
            assert!(client.arrives.is_none(), "a second order for a member");
            self.orders_ms.push(self.now_ms);
            self.moved += 1;
            if self.are_full && carrier == Carrier::Helped {
                self.activation.not_moved(now, member);
            } else {
                client.arrives = Some((self.now_ms + self.move_ms, carrier));
            }
        }
        while let Some(notice) = self.activation.poll_notice() {
            self.notices.push((self.now_ms, notice));
        }
    }

    /// A millisecond in which nobody asks anything.
    pub fn obey_only(&mut self) {
        for client in &mut self.clients {
            client.next_ask_ms = u64::MAX;
        }
        self.step(|_| None);
    }

    pub fn run(&mut self, until_ms: u64, mut latency: impl FnMut(u64, Carrier) -> Option<Duration>) {
        while self.now_ms < until_ms {
            let now_ms = self.now_ms;
            self.step(|carrier| latency(now_ms, carrier));
        }
    }

    /// The same with the queue of a server: `load` is what its clients ask, in units of its direct capacity; helped, a
    /// request costs a fifth, and takes 300 µs more. When the queue was last longer than the SLA.
    pub fn run_queue(&mut self, until_ms: u64, load: impl Fn(u64) -> f64) -> Option<u64> {
        let (mut queue_ms, mut last_late_ms) = (0.0_f64, None);
        while self.now_ms < until_ms {
            let helped = self.helped() as f64 / self.clients.len() as f64;
            let used = load(self.now_ms) * (1.0 - helped * 0.8);
            queue_ms = (queue_ms + used - 1.0).max(0.0);
            let queue = Duration::from_secs_f64(queue_ms / 1000.0);
            if queue > MS {
                last_late_ms = Some(self.now_ms);
            }
            self.step(|carrier| {
                let way = if carrier == Carrier::Helped { 500 } else { 200 };
                Some(US * way + queue)
            });
        }
        last_late_ms
    }

    pub fn say(&mut self, word: Word, lasts: Option<Duration>) {
        self.activation.say(at(self.now_ms), word, lasts);
    }

    /// All that are helped lose their helper.
    pub fn lose_helpers(&mut self) {
        for client in &mut self.clients {
            client.arrives = None;
            if client.carrier == Carrier::Helped {
                client.carrier = Carrier::Direct;
                self.activation.carried(at(self.now_ms), client.member, Carrier::Direct);
            }
        }
    }

    /// The server's drain, for so many that stand there.
    pub fn server_drains(&mut self, carrier: Carrier, count: usize) {
        let now = at(self.now_ms);
        for client in self.clients.iter().filter(|client| client.carrier == carrier).take(count) {
            self.activation.asked_elsewhere(now, client.member);
        }
    }

    /// One more joins, and is opened where the group says.
    pub fn join(&mut self) -> Carrier {
        let (member, carrier) = self.activation.join(at(self.now_ms)).unwrap();
        self.clients.push(Client::new(member, carrier, self.now_ms));
        carrier
    }

    /// So many that stand there leave, with nothing under way.
    pub fn leave(&mut self, carrier: Carrier, mut count: usize) {
        let now = at(self.now_ms);
        self.clients.retain(|client| {
            let goes = count > 0 && client.carrier == carrier;
            if goes {
                count -= 1;
                self.activation.waits_since(client.member, None);
                self.activation.leave(now, client.member);
            }
            !goes
        });
    }

    pub fn helped(&self) -> usize {
        self.clients.iter().filter(|client| client.carrier == Carrier::Helped).count()
    }

    /// Of the client that switched most often.
    pub fn switches_max(&self) -> u32 {
        self.clients.iter().map(|client| client.switches).max().unwrap_or(0)
    }

    pub fn switches(&self) -> u32 {
        self.clients.iter().map(|client| client.switches).sum()
    }

    /// The labels of what was decided.
    pub fn course(&self) -> Vec<&'static str> {
        self.notices.iter().map(|(_, notice)| notice.label()).collect()
    }

    /// When something was decided.
    pub fn when(&self, label: &str) -> Vec<u64> {
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
