//! A server: a queue with one core, and its measurements.

use std::collections::VecDeque;
use std::time::Duration;

use spillway_policy::migration::{LoadSample, Migration};
use spillway_transport::Time;

/// Work of a server's core.
#[derive(Clone, Copy, Debug)]
pub(super) enum Job {
    /// A request of a connection: due time and CPU time.
    Request(u32, Time, Duration),
    /// Export or import of a connection.
    Move(Duration),
}

impl Job {
    fn cost(self) -> Duration {
        match self {
            Job::Request(_, _, cost) | Job::Move(cost) => cost,
        }
    }
}

#[derive(Debug)]
pub(super) struct Server {
    /// `None` without a policy.
    pub migration: Option<Migration>,
    /// Number of connections here or on their way here.
    pub connections: u32,
    queue: VecDeque<(Time, Job)>,
    in_service: Option<Job>,
    /// CPU time of the jobs that began since the last look.
    busy: Duration,
    /// Sum of the queueing times of the requests that began since the last look.
    queueing: Duration,
    /// Requests whose service began since the last look.
    begun: u32,
    /// Requests whose service ended since the last look.
    served: u32,
    /// Time of the last look.
    looked_at: Time,
}

impl Server {
    pub fn new(migration: Option<Migration>) -> Server {
        Server {
            migration,
            connections: 0,
            queue: VecDeque::new(),
            in_service: None,
            busy: Duration::ZERO,
            queueing: Duration::ZERO,
            begun: 0,
            served: 0,
            looked_at: Time::ZERO,
        }
    }

    /// Queues a job. Returns when the core ends it, if the core was idle.
    pub fn push(&mut self, now: Time, job: Job) -> Option<Time> {
        self.queue.push_back((now, job));
        self.begin_next(now)
    }

    /// Queues work for moves before all requests.
    pub fn push_first(&mut self, now: Time, job: Job) -> Option<Time> {
        self.queue.push_front((now, job));
        self.begin_next(now)
    }

    /// Ends the present job. Returns it, and when the next one ends.
    pub fn end_job(&mut self, now: Time) -> (Option<Job>, Option<Time>) {
        let ended = self.in_service.take();
        self.served += u32::from(matches!(ended, Some(Job::Request(..))));
        (ended, self.begin_next(now))
    }

    fn begin_next(&mut self, now: Time) -> Option<Time> {
        if self.in_service.is_some() {
            return None;
        }
        let (since, job) = self.queue.pop_front()?;
        if matches!(job, Job::Request(..)) {
            self.queueing += now.since(since);
            self.begun += 1;
        }
        self.busy += job.cost();
        self.in_service = Some(job);
        Some(now + job.cost())
    }

    /// Whether a request of this connection is in service.
    pub fn serves(&self, connection: u32) -> bool {
        matches!(self.in_service, Some(Job::Request(served, ..)) if served == connection)
    }

    /// Takes the requests of a connection out of the queue.
    pub fn take_requests(&mut self, connection: u32) -> VecDeque<Job> {
        let is_of = |job: &Job| matches!(job, Job::Request(queued, ..) if *queued == connection);
        let taken = self.queue.iter().map(|(_, job)| *job).filter(|job| is_of(job)).collect();
        self.queue.retain(|(_, job)| !is_of(job));
        taken
    }

    /// Requests that are queued or in service.
    pub fn unanswered(&self) -> impl Iterator<Item = Job> + '_ {
        self.queue.iter().map(|(_, job)| *job).chain(self.in_service)
    }

    /// Ends a look. The CPU time of a job counts from its beginning.
    pub fn sample(&mut self, now: Time) -> LoadSample {
        let passed = now.since(self.looked_at).as_secs_f64();
        let cpu = (self.busy.as_secs_f64() / passed.max(1e-9)).min(1.0);
        let sample = LoadSample {
            cpu: (cpu * 1e6) as u32, // fits: at most a million
            queueing: self.queueing / self.begun.max(1),
            served: self.served,
        };
        (self.busy, self.queueing, self.begun, self.served) = (Duration::ZERO, Duration::ZERO, 0, 0);
        self.looked_at = now;
        sample
    }
}
