//! The hot server: one queue, served in order. A link has at most one place in the queue, for all its batches: a
//! server reads everything that has arrived.

use std::collections::VecDeque;
use std::time::Duration;

use spillway_policy::histogram::Histogram;
use spillway_policy::release::{Release, ReleaseSettings, Sample};
use spillway_transport::Time;

use super::helper::{Content, Message};
use super::plan::{Costs, Course};

#[derive(Debug)]
enum Work {
    Direct(Message, Time),
    Link(u16),
}

#[derive(Debug)]
pub(super) enum Done {
    Direct(Message),
    Batch(u16, Vec<Message>),
}

#[derive(Debug)]
pub(super) struct Server {
    costs: Costs,
    queue: VecDeque<Work>,
    links: Vec<Vec<(Message, Time)>>,
    present: Option<Done>,
    course: Course,
    service: Histogram,
    requests: u64,
    helped: u64,
    busy: Duration,
    last_sample: Time,
    pub release: Release,
    measures_cpu: bool,
}

impl Server {
    pub fn new(costs: Costs, course: Course, links: u16, measures_cpu: bool, seed: u64) -> Server {
        // The clients' SLA is 4 ms; a tenth of a core serves no request in less than 250 µs.
        let settings =
            ReleaseSettings { service_max: Duration::from_millis(2), ..ReleaseSettings::default() };
        Server {
            costs,
            queue: VecDeque::new(),
            links: (0..links).map(|_| Vec::new()).collect(),
            present: None,
            course,
            service: Histogram::default(),
            requests: 0,
            helped: 0,
            busy: Duration::ZERO,
            last_sample: Time::ZERO,
            release: Release::new(Time::ZERO, settings, seed),
            measures_cpu,
        }
    }

    pub fn arrive(&mut self, now: Time, message: Message) -> Option<Time> {
        self.queue.push_back(Work::Direct(message, now));
        self.start(now)
    }

    pub fn arrive_batch(&mut self, now: Time, link: u16, batch: Vec<Message>) -> Option<Time> {
        let waiting = &mut self.links[usize::from(link)];
        if waiting.is_empty() {
            self.queue.push_back(Work::Link(link));
        }
        waiting.extend(batch.into_iter().map(|message| (message, now)));
        self.start(now)
    }

    /// Ends the present work. Returns the finished work, and when the next work ends.
    pub fn served(&mut self, now: Time) -> (Option<Done>, Option<Time>) {
        let done = self.present.take();
        (done, self.start(now))
    }

    fn start(&mut self, now: Time) -> Option<Time> {
        if self.present.is_some() {
            return None;
        }
        let begins = self.course.stalled_until(now);
        let application = self.course.application(now, &self.costs);
        let (done, cost) = match self.queue.pop_front()? {
            Work::Direct(message, arrived_at) => {
                let cost = match message.content {
                    Content::Connect => self.costs.connect,
                    Content::Request(_) => self.costs.direct + application,
                };
                self.count(arrived_at, begins + cost, message.content, false);
                (Done::Direct(message), cost)
            }
            Work::Link(link) => {
                let batch = std::mem::take(&mut self.links[usize::from(link)]);
                let of = |(message, _): &(Message, Time)| match message.content {
                    Content::Connect => self.costs.message * 4,
                    Content::Request(_) => self.costs.message + application,
                };
                let cost = self.costs.batch + batch.iter().map(of).sum::<Duration>();
                for (message, arrived_at) in &batch {
                    self.count(*arrived_at, begins + cost, message.content, true);
                }
                (Done::Batch(link, batch.into_iter().map(|(message, _)| message).collect()), cost)
            }
        };
        self.busy += cost;
        self.present = Some(done);
        Some(begins + cost)
    }

    fn count(&mut self, arrived_at: Time, done: Time, content: Content, helped: bool) {
        if matches!(content, Content::Request(_)) {
            self.requests += 1;
            self.helped += u64::from(helped);
            self.service.record(done.since(arrived_at) + self.backend(done));
        }
    }

    /// How long a reply waits for the backend.
    pub fn backend(&self, now: Time) -> Duration {
        self.course.backend(now)
    }

    /// Gives the release policy a sample. Returns whether the p99 service time was below 2 ms.
    pub fn sample_release(&mut self, now: Time, helped_sessions: u32) -> bool {
        let passed = now.since(self.last_sample).as_secs_f64().max(1e-9);
        let busy_percent = (self.busy.as_secs_f64() / passed * 100.0) as u32;
        let sample = Sample {
            requests: self.requests,
            helped: self.helped,
            service: self.service.quantile(990),
            busy_percent: self.measures_cpu.then_some(busy_percent),
            helped_sessions,
        };
        self.release.look(now, sample);
        (self.service, self.requests, self.helped) = (Histogram::default(), 0, 0);
        (self.busy, self.last_sample) = (Duration::ZERO, now);
        sample.service.is_none_or(|service| service < Duration::from_millis(2))
    }

    pub fn lose_link(&mut self, link: u16) {
        self.links[usize::from(link)].clear();
        self.queue.retain(|work| !matches!(work, Work::Link(other) if *other == link));
    }
}
