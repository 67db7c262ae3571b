//! The engine's loop: the turns of [`spillway_xdp::Driver::run`] with the helper's `busy_poll`, and a
//! measurement of its CPU use.

use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use spillway_lab::{Host, LabError};
use spillway_transport::Time;
use spillway_xdp::{Crossing, Device, Driver, Endpoint, Stop, Turn};

use super::clocked::{Clocked, TurnCounts, clock_cost, thread_cpu};

/// The state of a measurement, which the engine and the network share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(super) enum Phase {
    /// The network opens connections.
    Opening,
    /// Requests are sent, to warm up.
    Loaded,
    /// The engine's use of CPU is measured.
    Measuring,
    /// The network sends no more requests.
    Measured,
}

/// Signals between the engine and the network.
#[derive(Debug)]
pub(super) struct Signals {
    /// Ends the loops of both.
    pub stop: Stop,
    phase: AtomicU8,
}

impl Signals {
    pub fn new() -> io::Result<Signals> {
        Ok(Signals { stop: Stop::new()?, phase: AtomicU8::new(Phase::Opening as u8) })
    }

    pub fn set(&self, phase: Phase) {
        self.phase.store(phase as u8, Ordering::Release);
    }

    pub fn has_reached(&self, phase: Phase) -> bool {
        self.phase.load(Ordering::Acquire) >= phase as u8
    }
}

/// When to measure, and how to wait for frames.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Window {
    pub warm_up: Duration,
    pub length: Duration,
    /// Time after the last frame for which the thread polls before it sleeps.
    pub busy_poll: Duration,
}

/// The engine's use of CPU over the measured time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Used {
    pub wall: Duration,
    /// CPU time of the loop's thread, without that of the samples.
    pub thread: Duration,
    /// CPU time of the interface's receive thread.
    pub interface: Duration,
    pub counts: TurnCounts,
    pub sent: u64,
    /// Cost of a reading of the thread's CPU clock.
    pub clock_cost: Duration,
}

struct Marks {
    at: Instant,
    thread: Duration,
    interface: Duration,
    counts: TurnCounts,
    sent: u64,
}

/// Runs turns until `signals.stop` is set. Returns the device, and the use of CPU over `window`; `None` if the loop ended
/// before.
///
/// # Errors
/// The device or the laboratory has failed.
pub(super) fn run<D: Device, E: Endpoint>(
    device: D,
    endpoint: E,
    host: &Host,
    window: Window,
    signals: &Signals,
) -> io::Result<(D, Option<Used>)> {
    let clock_cost = clock_cost();
    let mut driver = Driver::new(device);
    let mut endpoint = Clocked::new(endpoint, clock_cost);
    let interface = || host.cpu().map(|cpu| cpu.interface).map_err(io::Error::other);
    let start = Instant::now();
    let clock = || Time::ZERO + start.elapsed();
    let (mut loaded_at, mut begin, mut used) = (None, None::<Marks>, None);
    let mut last_frame = (0, Time::ZERO);
    while !signals.stop.is_set() {
        let now = clock();
        let turn = driver.turn(now, &mut endpoint)?;
        if used.is_none() && signals.has_reached(Phase::Loaded) {
            let loaded_at = *loaded_at.get_or_insert(now);
            match &begin {
                None if now.since(loaded_at) >= window.warm_up => {
                    signals.set(Phase::Measuring);
                    let (interface, at) = (interface()?, Instant::now());
                    let (counts, sent) = (endpoint.counts(), driver.counters().sent);
                    begin = Some(Marks { at, thread: thread_cpu(), interface, counts, sent });
                }
                Some(begin) if begin.at.elapsed() >= window.length => {
                    let thread = thread_cpu().saturating_sub(begin.thread);
                    let counts = endpoint.counts().since(&begin.counts);
                    // Turns whose sample was dropped have one reading of the clock; they are rare.
                    let samples = u32::try_from(2 * counts.sampled_turns).unwrap_or(u32::MAX);
                    used = Some(Used {
                        wall: begin.at.elapsed(),
                        thread: thread.saturating_sub(clock_cost.saturating_mul(samples)),
                        interface: interface()?.saturating_sub(begin.interface),
                        counts,
                        sent: driver.counters().sent - begin.sent,
                        clock_cost,
                    });
                    signals.set(Phase::Measured);
                }
                _ => {}
            }
        }
        let received = driver.counters().received;
        if received != last_frame.0 {
            last_frame = (received, now);
        }
        if turn == Turn::Idle && now.since(last_frame.1) >= window.busy_poll {
            let timeout = endpoint.poll_timeout().map(|at| at.since(clock()));
            driver.device_mut().wait(timeout, &[signals.stop.as_fd()])?;
        }
    }
    Ok((driver.into_device(), used))
}

/// The other thread of the crossing: takes the frames that the engine passes to it.
#[derive(Debug)]
pub(super) struct Receiver {
    thread: JoinHandle<Result<io::Result<Crossed>, LabError>>,
    stop: Stop,
}

/// Results of the other thread.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Crossed {
    /// CPU time of the other thread.
    pub thread: Duration,
    pub frames: u64,
}

impl Receiver {
    /// Starts the thread on the engine's host and core.
    pub fn start(host: &Host, crossing: Crossing) -> io::Result<Receiver> {
        let stop = Stop::new()?;
        let stopped = stop.clone();
        let thread = host.thread(move || receive(&crossing, &stopped)).map_err(io::Error::other)?;
        Ok(Receiver { thread, stop })
    }

    /// Ends the thread.
    ///
    /// # Errors
    /// The thread has failed.
    pub fn stop(self) -> io::Result<Crossed> {
        self.stop.set();
        let outcome = self.thread.join().map_err(|_| io::Error::other("the other thread panicked"))?;
        outcome.map_err(io::Error::other)?
    }
}

fn receive(crossing: &Crossing, stop: &Stop) -> io::Result<Crossed> {
    let start = thread_cpu();
    let mut frames = 0;
    while !stop.is_set() {
        let mut wakes = [PollFd::new(crossing, PollFlags::IN), PollFd::new(stop, PollFlags::IN)];
        match poll(&mut wakes, None::<&Timespec>) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        crossing.clear_wake();
        while crossing.receive().is_some() {
            frames += 1;
        }
    }
    Ok(Crossed { thread: thread_cpu().saturating_sub(start), frames })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_follow_each_other() {
        let signals = Signals::new().unwrap();
        assert!(signals.has_reached(Phase::Opening) && !signals.has_reached(Phase::Loaded));
        signals.set(Phase::Measuring);
        assert!(signals.has_reached(Phase::Loaded) && !signals.has_reached(Phase::Measured));
    }
}
