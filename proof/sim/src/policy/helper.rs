//! A helper: receives messages, gathers batches, forwards replies; with a queue, and a load that it reports, perhaps
//! wrongly.

use std::time::Duration;

use spillway_transport::Time;
use spillway_wire::load::Load;

use super::plan::Costs;

/// One message of a connection, on one of its carriers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Message {
    pub connection: u32,
    /// Epoch of the message's carrier; messages on earlier carriers are ignored.
    pub epoch: u32,
    pub content: Content,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content {
    /// The opening message on a carrier.
    Connect,
    /// A request, or its reply.
    Request(u64),
}

#[derive(Debug)]
pub(super) struct Helper {
    pub is_alive: bool,
    /// Always reports a load of 0.
    reports_idle: bool,
    cost: Duration,
    /// Additional delay of each message, without work.
    slow: Duration,
    clients_max: u32,
    pub clients: u32,
    busy_until: Time,
    busy: Duration,
    gathered: Vec<Message>,
    is_flushing: bool,
}

impl Helper {
    pub fn new(cost: Duration, reports_idle: bool, clients_max: u32, slow: Duration) -> Helper {
        Helper {
            is_alive: true,
            reports_idle,
            cost,
            slow,
            clients_max,
            clients: 0,
            busy_until: Time::ZERO,
            busy: Duration::ZERO,
            gathered: Vec::new(),
            is_flushing: false,
        }
    }

    /// The load that the helper reports; `None` after it has died.
    pub fn load(&self, now: Time) -> Option<Load> {
        let queued = self.busy_until.since(now).as_secs_f64();
        let busy = self.busy.as_secs_f64() / now.as_nanos().max(1) as f64 * 1e9;
        let load = f64::from(self.clients) * 100.0 + (busy + queued) * 1e5;
        let load = if self.reports_idle { 0 } else { load as u32 };
        self.is_alive.then(|| Load { load, full: self.is_full(), ..Load::default() })
    }

    fn is_full(&self) -> bool {
        self.clients >= self.clients_max
    }

    pub fn accepts_clients(&self) -> bool {
        self.is_alive && !self.is_full()
    }

    /// Forwards one message; returns when it has passed.
    pub fn pass(&mut self, now: Time) -> Time {
        self.busy_until = self.busy_until.max(now) + self.cost;
        self.busy += self.cost;
        self.busy_until + self.slow
    }

    /// Adds a message to the batch. Returns when the batch leaves, if this message is its first.
    pub fn gather(&mut self, now: Time, message: Message, costs: &Costs) -> Option<Time> {
        self.gathered.push(message);
        (!std::mem::replace(&mut self.is_flushing, true)).then(|| now + costs.delay)
    }

    pub fn flush(&mut self) -> Vec<Message> {
        self.is_flushing = false;
        std::mem::take(&mut self.gathered)
    }

    pub fn die(&mut self) {
        self.is_alive = false;
        self.gathered.clear();
        self.clients = 0;
    }
}
