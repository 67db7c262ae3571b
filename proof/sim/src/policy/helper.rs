//! A helper: receives messages, gathers batches, forwards replies, and reports its load, perhaps wrongly.

use std::time::Duration;

use spillway_transport::Time;
use spillway_wire::load::LoadReport;

use super::plan::Costs;

/// A message of a connection on one of its carriers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Message {
    pub connection: u32,
    /// Epoch of the message's carrier; clients ignore replies on earlier carriers.
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
    message_cost: Duration,
    /// Additional delay of each message, which takes no CPU time.
    extra_delay: Duration,
    clients_max: u32,
    pub clients: u32,
    busy_until: Time,
    busy_time: Duration,
    gathered: Vec<Message>,
    is_flushing: bool,
}

impl Helper {
    pub fn new(
        message_cost: Duration,
        reports_idle: bool,
        clients_max: u32,
        extra_delay: Duration,
    ) -> Helper {
        Helper {
            is_alive: true,
            reports_idle,
            message_cost,
            extra_delay,
            clients_max,
            clients: 0,
            busy_until: Time::ZERO,
            busy_time: Duration::ZERO,
            gathered: Vec::new(),
            is_flushing: false,
        }
    }

    /// The load that the helper reports; `None` while it is down.
    pub fn load(&self, now: Time) -> Option<LoadReport> {
        let queued = self.busy_until.since(now).as_secs_f64();
        let busy = self.busy_time.as_secs_f64() / now.as_nanos().max(1) as f64 * 1e9;
        let load = f64::from(self.clients) * 100.0 + (busy + queued) * 1e5;
        let load = if self.reports_idle { 0 } else { load as u32 };
        self.is_alive.then(|| LoadReport { load, full: self.is_full(), ..LoadReport::default() })
    }

    fn is_full(&self) -> bool {
        self.clients >= self.clients_max
    }

    pub fn accepts_clients(&self) -> bool {
        self.is_alive && !self.is_full()
    }

    /// Spends the CPU time of a message in either direction. Returns when the message is processed.
    pub fn process_message(&mut self, now: Time) -> Time {
        self.busy_until = self.busy_until.max(now) + self.message_cost;
        self.busy_time += self.message_cost;
        self.busy_until + self.extra_delay
    }

    /// Adds a message to the batch. If it is the first, returns when the batch leaves.
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
