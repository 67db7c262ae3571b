//! The steering thread: handles messages of workers, commands and signals, and writes the output.

use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::control_lines::{ControlLine, ControlLines, LINE_BYTES_MAX};
use super::run_io::RunIo;
use super::workers::{WORKER_FAILED, WorkerHandle};
use crate::clock::{Clock, cpu_ns, monotonic_ns};
use crate::config::{Config, RequestLoop};
use crate::control::{Command, ScheduledCommand};
use crate::error::Error;
use crate::output::Progress;
use crate::report::{Bins, DECISIONS_MAX, Event, Mark, Move, PROBLEMS_MAX, Report};
use crate::signals::Signals;
use crate::worker::{FromWorker, ToWorker};

/// Time from setting time zero to time zero itself, so that all workers know it in time.
const START_DELAY_NS: u64 = 5_000_000;

pub(super) struct Steering<'a> {
    config: &'a Config,
    control: Option<OwnedFd>,
    control_lines: ControlLines,
    events: Option<Box<dyn Write + Send>>,
    progress: Option<Progress>,
    signals: Option<Signals>,
    steering_wake: Arc<OwnedFd>,
    pub workers: Vec<WorkerHandle>,
    ready_workers: u32,
    run_started: bool,
    clock: Clock,
    cpu_before_ns: u64,
    next_move_id: u32,
    /// Moves that not all workers have reported yet, each with the number of workers that have reported it.
    unfinished_moves: Vec<(Move, u32)>,
    helped_by_worker: Vec<u32>,
    bins: Bins,
    done_workers: u32,
    report: Report,
}

impl<'a> Steering<'a> {
    pub fn new(
        config: &'a Config,
        run_io: RunIo,
        signals: Option<Signals>,
        steering_wake: Arc<OwnedFd>,
        workers: Vec<WorkerHandle>,
    ) -> Steering<'a> {
        let in_ms = |duration: std::time::Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        Steering {
            control: run_io.control,
            control_lines: ControlLines::default(),
            events: run_io.events,
            progress: run_io.progress.map(|out| Progress::new(out, config)),
            signals,
            steering_wake,
            ready_workers: 0,
            run_started: false,
            clock: Clock::new(monotonic_ns()),
            cpu_before_ns: cpu_ns(),
            next_move_id: 0,
            unfinished_moves: Vec::new(),
            helped_by_worker: vec![0; workers.len()],
            bins: Bins::default(),
            done_workers: 0,
            report: Report {
                server: config.server.to_string(),
                protocol: config.protocol.to_string(),
                connections: config.connections,
                sessions: config.sessions.is_some(),
                sla_us: u64::try_from(config.sla.as_micros()).unwrap_or(u64::MAX),
                bin_ms: in_ms(config.bin),
                warmup_ms: in_ms(config.warmup),
                ..Report::default()
            },
            workers,
            config,
        }
    }

    pub fn drive(&mut self, from_workers: &Receiver<FromWorker>) -> Result<Report, Error> {
        while (self.done_workers as usize) < self.workers.len() {
            self.wait()?;
            let ended = self.workers.iter().filter(|worker| worker.has_ended()).count();
            let mut new_bins = Bins::default();
            while let Ok(message) = from_workers.try_recv() {
                self.handle_message(message, &mut new_bins)?;
            }
            self.publish(new_bins);
            // `ended` was counted before the messages were read, so a worker that ended without `Done` has panicked.
            if ended > self.done_workers as usize {
                return Err(Error::Usage(WORKER_FAILED.into()));
            }
        }
        Ok(self.finish())
    }

    fn wait(&mut self) -> Result<(), Error> {
        let (mut from_control, mut from_signals) = (false, false);
        {
            let mut watched = vec![PollFd::new(&self.steering_wake, PollFlags::IN)];
            let signals_index = self.signals.as_ref().map(|signals| {
                watched.push(PollFd::from_borrowed_fd(signals.as_fd(), PollFlags::IN));
                watched.len() - 1
            });
            let control_index = self.control.as_ref().map(|control| {
                watched.push(PollFd::new(control, PollFlags::IN));
                watched.len() - 1
            });
            let second = Timespec { tv_sec: 1, tv_nsec: 0 };
            match poll(&mut watched, Some(&second)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(Error::system("cannot wait for workers and commands", e)),
            }
            let has_event =
                |index: Option<usize>| index.is_some_and(|index| !watched[index].revents().is_empty());
            from_control |= has_event(control_index);
            from_signals |= has_event(signals_index);
        }
        // Resets the eventfd; fails if another descriptor caused this wake-up.
        let _ = rustix::io::read(&self.steering_wake, &mut [0u8; 8]);
        if from_signals {
            let commands = self.signals.as_mut().map(Signals::take).unwrap_or_default();
            commands.into_iter().for_each(|command| self.handle_command(command));
        }
        if from_control {
            self.read_control();
        }
        Ok(())
    }

    fn read_control(&mut self) {
        let Some(control) = &self.control else { return };
        let mut buffer = [0u8; LINE_BYTES_MAX];
        let lines = match rustix::io::read(control, &mut buffer) {
            Ok(0) => {
                self.control = None;
                // No command can start the run any more.
                if self.config.hold && !self.run_started {
                    self.handle_command(Command::Stop);
                }
                return;
            }
            Ok(count) => self.control_lines.push(&buffer[..count]),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return,
            Err(_) => {
                self.control = None;
                return;
            }
        };
        for line in lines {
            let problem = match line {
                ControlLine::TooLong => {
                    format!("a command longer than {LINE_BYTES_MAX} bytes was ignored")
                }
                ControlLine::Complete(line) => match Command::parse(&line) {
                    Ok(command) => {
                        self.handle_command(command);
                        continue;
                    }
                    Err(why) => format!("invalid command: {why}"),
                },
            };
            self.report_trouble(self.clock.now_ns(), problem);
        }
    }

    fn handle_command(&mut self, command: Command) {
        let now_ns = self.clock.now_ns();
        if command.needs_helper() && self.config.helpers.addresses.is_empty() {
            return self.report_trouble(now_ns, format!("`{command}` ignored: the run has no --helper"));
        }
        if command.needs_open_loop() && self.config.request_loop == RequestLoop::Closed {
            return self.report_trouble(now_ns, format!("`{command}` ignored: a closed loop has no rate"));
        }
        match command {
            Command::Start(at_ns) if !self.run_started && self.is_ready() => self.begin(at_ns),
            Command::Start(_) => {
                self.report_trouble(now_ns, "`start` ignored: not ready, or started already".into())
            }
            command if self.run_started => self.send_command(ScheduledCommand { at_ns: now_ns, command }),
            // `stop` must also work before the start; other commands have no effect then.
            Command::Stop => {
                self.begin(None);
                self.send_command(ScheduledCommand { at_ns: 0, command: Command::Stop });
            }
            command => self.report_trouble(now_ns, format!("`{command}` ignored: the run has not started")),
        }
    }

    fn is_ready(&self) -> bool {
        self.ready_workers as usize == self.workers.len()
    }

    fn send_command(&mut self, scheduled: ScheduledCommand) {
        let move_id = self.next_move_id;
        self.next_move_id += u32::from(matches!(scheduled.command, Command::Move { .. }));
        let mut is_full = false;
        for worker in &self.workers {
            is_full |= !worker.send(ToWorker::Execute { scheduled: scheduled.clone(), move_id });
        }
        if is_full {
            let what =
                format!("`{}` was not sent to a thread that has too many unread commands", scheduled.command);
            self.report_trouble(self.clock.now_ns(), what);
        }
    }

    /// Sets time zero.
    fn begin(&mut self, at_ns: Option<u64>) {
        let now_ns = monotonic_ns();
        let zero_ns = at_ns.unwrap_or(now_ns + START_DELAY_NS);
        let unix_ns = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos());
        let unix_zero_ns = unix_ns + u128::from(zero_ns) - u128::from(now_ns.min(zero_ns));
        self.clock = Clock::new(zero_ns);
        self.run_started = true;
        if let Some(signals) = &self.signals {
            signals.run_started();
        }
        self.cpu_before_ns = cpu_ns();
        self.report.zero_monotonic_ns = zero_ns;
        self.report.zero_unix_ms = (unix_zero_ns / 1_000_000) as u64;
        self.emit(&Event::Start { zero_monotonic_ns: zero_ns, zero_unix_ms: self.report.zero_unix_ms });
        for scheduled in self.config.schedule.clone() {
            self.send_command(scheduled);
        }
        for worker in &self.workers {
            // Cannot be full: `Config::check` bounds the schedule, and other commands are sent after the start.
            let _ = worker.send(ToWorker::Start(self.clock));
        }
    }

    fn handle_message(&mut self, message: FromWorker, new_bins: &mut Bins) -> Result<(), Error> {
        match message {
            FromWorker::Ready => {
                self.ready_workers += 1;
                if self.is_ready() {
                    self.emit(&Event::Ready { connections: self.config.connections });
                    if !self.config.hold && !self.run_started {
                        self.begin(None);
                    }
                }
            }
            FromWorker::Samples { index, mut samples, helped_now } => {
                samples.add_to(self.report.bin_ms, new_bins);
                self.helped_by_worker[index as usize] = helped_now;
            }
            FromWorker::Executed(scheduled) => {
                let at_us = scheduled.at_ns / 1000;
                if let Command::Mark(name) = &scheduled.command {
                    self.report.marks.push(Mark { at_us, name: name.clone() });
                }
                let command = scheduled.command.to_string();
                self.write_event(scheduled.at_ns, &command);
                self.emit(&Event::Command { at_us, command });
            }
            FromWorker::Moved(thread_move) => self.add_move(thread_move),
            FromWorker::Decided { at_ns, what } => {
                if self.report.decisions.len() < DECISIONS_MAX {
                    self.write_event(at_ns, &what);
                    self.report.decisions.push(format!("{:.3} s: {what}", at_ns as f64 / 1e9));
                }
                self.emit(&Event::Decided { at_us: at_ns / 1000, what });
            }
            FromWorker::Trouble { at_ns, what } => self.report_trouble(at_ns, what),
            FromWorker::Done { arrivals_end_ns } => {
                self.done_workers += 1;
                self.report.duration_ms = self.report.duration_ms.max(arrivals_end_ns / 1_000_000);
            }
            FromWorker::Failed(error) => return Err(error),
        }
        Ok(())
    }

    fn add_move(&mut self, thread_move: Move) {
        let index = match self.unfinished_moves.iter().position(|(one_move, _)| one_move.id == thread_move.id)
        {
            Some(index) => {
                self.unfinished_moves[index].0.merge(&thread_move);
                self.unfinished_moves[index].1 += 1;
                index
            }
            None => {
                self.unfinished_moves.push((thread_move, 1));
                self.unfinished_moves.len() - 1
            }
        };
        if self.unfinished_moves[index].1 as usize == self.workers.len() {
            let (moved, _) = self.unfinished_moves.remove(index);
            let moved_ms = moved.moved_ms();
            let state = if moved.complete { "moved" } else { "moved so far" };
            let count = moved.first_replies_us.len();
            self.write_event(
                self.clock.now_ns(),
                &format!("{count} {state} in {moved_ms:.0} ms, {} failed", moved.failed),
            );
            self.report.moves.push(moved.clone());
            self.emit(&Event::Moved { moved, moved_ms });
        }
    }

    fn publish(&mut self, new_bins: Bins) {
        let bins = new_bins.into_vec();
        if bins.is_empty() {
            return;
        }
        bins.iter().for_each(|bin| self.bins.add(bin));
        let helped_now = self.helped_by_worker.iter().sum();
        let now_ns = self.clock.now_ns();
        if let Some(progress) = &mut self.progress {
            progress.update(now_ns, &bins, helped_now);
        }
        self.emit(&Event::Bins { at_us: now_ns / 1000, helped_now, bins });
    }

    fn finish(&mut self) -> Report {
        let mut report = std::mem::take(&mut self.report);
        report.cpu_ms = (cpu_ns() - self.cpu_before_ns) as f64 / 1e6;
        report.bins = std::mem::take(&mut self.bins).into_vec();
        report.moves.sort_by_key(|one_move| one_move.id);
        report.summarize();
        if let Some(progress) = &mut self.progress {
            progress.finish();
        }
        let bins = std::mem::take(&mut report.bins);
        self.emit(&Event::End { report: Box::new(report.clone()) });
        Report { bins, ..report }
    }

    fn report_trouble(&mut self, at_ns: u64, what: String) {
        if self.report.problems.len() < PROBLEMS_MAX {
            self.write_event(at_ns, &what);
            self.report.problems.push(what.clone());
        }
        self.emit(&Event::Trouble { at_us: at_ns / 1000, what });
    }

    fn write_event(&mut self, at_ns: u64, what: &str) {
        if let Some(progress) = &mut self.progress {
            progress.write_event(at_ns, what);
        }
    }

    fn emit(&mut self, event: &Event) {
        let Some(out) = &mut self.events else { return };
        let written = serde_json::to_writer(&mut *out, event).map_err(io::Error::from);
        if written.and_then(|()| out.write_all(b"\n")).and_then(|()| out.flush()).is_err() {
            // The reader has closed its end: the run continues without events.
            self.events = None;
        }
    }
}
