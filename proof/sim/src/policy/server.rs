//! The hot server: one queue, served in order. A link has at most one entry in the queue, because a server
//! reads all batches that have arrived on a link at once.

use std::collections::VecDeque;
use std::time::Duration;

use spillway_policy::histogram::Histogram;
use spillway_policy::release::{Release, ReleaseSettings, Sample};
use spillway_transport::Time;

use super::helper::{Content, Message};
use super::plan::{Costs, Course};

/// The cost of an opening message in a batch, in ordinary messages.
const CONNECT_IN_BATCH_MESSAGES: u32 = 4;
/// The release policy regards the load as low below this service time: half of the clients' SLA of 4 ms. With
/// a tenth of a core, a direct request takes at least 250 µs.
const LOW_SERVICE_TIME: Duration = Duration::from_millis(2);

#[derive(Debug)]
enum QueuedWork {
    /// A message on the ordinary port, with the time of its arrival.
    Direct(Message, Time),
    /// All batches that wait on this link.
    Link(u16),
}

#[derive(Debug)]
pub(super) enum FinishedWork {
    Direct(Message),
    Batch(u16, Vec<Message>),
}

#[derive(Debug)]
pub(super) struct Server {
    costs: Costs,
    queue: VecDeque<QueuedWork>,
    waiting_by_link: Vec<Vec<(Message, Time)>>,
    in_progress: Option<FinishedWork>,
    course: Course,
    service_times: Histogram,
    requests: u64,
    helped_requests: u64,
    busy_time: Duration,
    last_sample: Time,
    pub release: Release,
    measures_cpu: bool,
}

impl Server {
    pub fn new(costs: Costs, course: Course, links: u16, measures_cpu: bool, seed: u64) -> Server {
        let settings = ReleaseSettings { service_max: LOW_SERVICE_TIME, ..ReleaseSettings::default() };
        Server {
            costs,
            queue: VecDeque::new(),
            waiting_by_link: (0..links).map(|_| Vec::new()).collect(),
            in_progress: None,
            course,
            service_times: Histogram::default(),
            requests: 0,
            helped_requests: 0,
            busy_time: Duration::ZERO,
            last_sample: Time::ZERO,
            release: Release::new(Time::ZERO, settings, seed).expect("settings within their bounds"),
            measures_cpu,
        }
    }

    /// A message arrives on the ordinary port. Returns when its service ends, if it begins now.
    pub fn arrive(&mut self, now: Time, message: Message) -> Option<Time> {
        self.queue.push_back(QueuedWork::Direct(message, now));
        self.start(now)
    }

    /// A batch arrives on a link. Returns when its service ends, if it begins now.
    pub fn arrive_batch(&mut self, now: Time, link: u16, batch: Vec<Message>) -> Option<Time> {
        let waiting = &mut self.waiting_by_link[usize::from(link)];
        if waiting.is_empty() {
            self.queue.push_back(QueuedWork::Link(link));
        }
        waiting.extend(batch.into_iter().map(|message| (message, now)));
        self.start(now)
    }

    /// Ends the work in progress. Returns the finished work, and when the next work ends.
    pub fn end_service(&mut self, now: Time) -> (Option<FinishedWork>, Option<Time>) {
        let done = self.in_progress.take();
        (done, self.start(now))
    }

    /// Begins the next work in the queue if the server is idle. Returns when that work ends.
    fn start(&mut self, now: Time) -> Option<Time> {
        if self.in_progress.is_some() {
            return None;
        }
        let begins = self.course.stalled_until(now);
        let application = self.course.application_time(now, &self.costs);
        let (done, cost) = match self.queue.pop_front()? {
            QueuedWork::Direct(message, arrived_at) => {
                let cost = match message.content {
                    Content::Connect => self.costs.connect,
                    Content::Request(_) => self.costs.direct + application,
                };
                self.count(arrived_at, begins + cost, message.content, false);
                (FinishedWork::Direct(message), cost)
            }
            QueuedWork::Link(link) => {
                let batch = std::mem::take(&mut self.waiting_by_link[usize::from(link)]);
                let cost_of = |(message, _): &(Message, Time)| match message.content {
                    Content::Connect => self.costs.message * CONNECT_IN_BATCH_MESSAGES,
                    Content::Request(_) => self.costs.message + application,
                };
                let cost = self.costs.batch + batch.iter().map(cost_of).sum::<Duration>();
                for (message, arrived_at) in &batch {
                    self.count(*arrived_at, begins + cost, message.content, true);
                }
                (FinishedWork::Batch(link, batch.into_iter().map(|(message, _)| message).collect()), cost)
            }
        };
        self.busy_time += cost;
        self.in_progress = Some(done);
        Some(begins + cost)
    }

    fn count(&mut self, arrived_at: Time, done: Time, content: Content, helped: bool) {
        if matches!(content, Content::Request(_)) {
            self.requests += 1;
            self.helped_requests += u64::from(helped);
            self.service_times.record(done.since(arrived_at) + self.backend_delay(done));
        }
    }

    /// Time for which a reply waits for the backend.
    pub fn backend_delay(&self, now: Time) -> Duration {
        self.course.backend_delay(now)
    }

    /// Takes a sample for the release policy. Returns whether p99 was below [`LOW_SERVICE_TIME`].
    pub fn sample_release(&mut self, now: Time, helped_sessions: u32) -> bool {
        let passed = now.since(self.last_sample).as_secs_f64().max(1e-9);
        let busy_percent = (self.busy_time.as_secs_f64() / passed * 100.0) as u32;
        let sample = Sample {
            requests: self.requests,
            helped: self.helped_requests,
            service: self.service_times.quantile(990),
            busy_percent: self.measures_cpu.then_some(busy_percent),
            helped_sessions,
        };
        self.release.sample(now, sample);
        (self.service_times, self.requests, self.helped_requests) = (Histogram::default(), 0, 0);
        (self.busy_time, self.last_sample) = (Duration::ZERO, now);
        sample.service.is_none_or(|service| service < LOW_SERVICE_TIME)
    }

    /// Discards the work that waits on a link, because its helper has died.
    pub fn lose_link(&mut self, link: u16) {
        self.waiting_by_link[usize::from(link)].clear();
        self.queue.retain(|work| !matches!(work, QueuedWork::Link(other) if *other == link));
    }
}
