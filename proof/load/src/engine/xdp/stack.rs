//! One thread's stack at one queue of the interface, as an engine.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use spillway_moving_client::Ready;
use spillway_tcp::{Settings, Stack};
use spillway_transport::Time;
use spillway_xdp::{Device, Driver, Endpoint, Interface, Shared, Socket, Turn};

use super::forwarding::{Forwarded, Forwarding};
use super::network::{StackNetwork, StackStream};
use super::streams::Streams;
use crate::Error;
use crate::engine::{Engine, Interest, Readiness};
use crate::worker::WAKE_TOKEN;

/// Messages are read at most once in this time, because each attempt takes a system call. A message that arrives while
/// the thread sleeps wakes it at once.
const MESSAGE_INTERVAL: Duration = Duration::from_millis(1);
const READABLE: Ready = Ready { readable: true, writable: false };
/// Time for connections to close after the run. The remaining ones are then reset.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum of turns for sending the resets; each turn sends one batch of frames.
const RESET_TURNS_MAX: usize = 2000;

/// What a thread needs to make its stack.
#[derive(Debug)]
pub(crate) struct Seat {
    pub(super) socket: Socket,
    pub(super) interface: Interface,
    pub(super) settings: Settings,
    /// `None` if there is only one thread.
    pub(super) forwarding: Option<Forwarding>,
}

impl Seat {
    /// Makes the stack, in the thread that uses it. `wake` is readable when a message has arrived.
    pub(crate) fn open(self, wake: Arc<OwnedFd>) -> Result<StackEngine, Error> {
        let stack = Stack::new(Time::ZERO, self.settings)
            .map_err(|error| Error::Usage(format!("the user-level stack cannot start: {error}")))?;
        let shared = Shared::new(&self.interface, stack, Streams::new()).map_err(|error| {
            Error::system("the user-level stack cannot reach the kernel's neighbours (run as root)", error)
        })?;
        Ok(StackEngine {
            driver: Driver::new(self.socket),
            network: StackNetwork::new(shared, Instant::now()),
            forwarding: self.forwarding,
            wake,
            message_at: Time::ZERO,
        })
    }
}

#[derive(Debug)]
pub(crate) struct StackEngine {
    driver: Driver<Socket>,
    network: StackNetwork,
    forwarding: Option<Forwarding>,
    wake: Arc<OwnedFd>,
    /// Time at which messages are read next.
    message_at: Time,
}

impl StackEngine {
    fn turn(&mut self) -> io::Result<Turn> {
        let now = self.network.now();
        self.network.with_host(|host| {
            let forwarding = self.forwarding.as_mut();
            let turn = self.driver.turn(now, &mut Forwarded { endpoint: host, forwarding })?;
            host.take_error().map_or(Ok(turn), Err)
        })
    }

    /// Waits for a frame, a message, a timer of the stack, or `timeout`.
    fn sleep(&mut self, timeout: Duration) -> io::Result<()> {
        let now = self.network.now();
        self.network.with_host(|host| {
            let due = host.poll_timeout().map_or(timeout, |at| at.since(now).min(timeout));
            let others = host.wakes().chain(self.forwarding.iter().map(Forwarding::as_fd));
            let wakes: Vec<_> = std::iter::once(self.wake.as_fd()).chain(others).collect();
            let is_woken = self.driver.device_mut().wait(Some(due), &wakes)?;
            if is_woken {
                host.handle_wake();
            }
            Ok::<(), io::Error>(())
        })?;
        if let Some(forwarding) = &self.forwarding {
            forwarding.waited();
        }
        Ok(())
    }

    fn collect(&mut self, ready: &mut Vec<Readiness>) {
        self.network.with(|stack, streams| streams.collect(stack, ready));
    }

    fn has_message(&self) -> bool {
        let no_time = Timespec { tv_sec: 0, tv_nsec: 0 };
        // An error counts as a message, so that it ends the wait.
        poll(&mut [PollFd::new(&self.wake, PollFlags::IN)], Some(&no_time)) != Ok(0)
    }
}

impl Engine for StackEngine {
    type Network = StackNetwork;

    fn network(&self) -> &StackNetwork {
        &self.network
    }

    fn watch(&mut self, stream: &StackStream, interest: Interest) -> io::Result<()> {
        self.network.with(|_, streams| streams.watch(stream.key(), interest));
        Ok(())
    }

    fn watch_descriptor(&mut self, _descriptor: BorrowedFd<'_>, _token: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into()) // `Config::check` refuses sessions
    }

    fn wait(&mut self, timeout: Duration, ready: &mut Vec<Readiness>) -> io::Result<()> {
        ready.clear();
        let turn = self.turn()?;
        self.collect(ready);
        if ready.is_empty() && turn == Turn::Idle && !timeout.is_zero() {
            self.sleep(timeout)?;
            self.turn()?;
            self.collect(ready);
        }
        let now = self.network.now();
        if now >= self.message_at {
            self.message_at = now + MESSAGE_INTERVAL;
            ready.push(Readiness { token: WAKE_TOKEN, ready: READABLE });
        }
        Ok(())
    }

    fn wait_for_message(&mut self, timeout: Duration) -> io::Result<()> {
        let start = Instant::now();
        while !self.has_message() && start.elapsed() < timeout {
            if self.turn()? == Turn::Idle {
                self.sleep(timeout.saturating_sub(start.elapsed()))?;
            }
        }
        Ok(())
    }

    fn explain_silence(&self) -> Option<String> {
        let partial = self.network.with(|stack, _| stack.counters().partial_checksums);
        (partial > 0).then(|| {
            format!(
                "{partial} packets had partial checksums; turn checksum offload off at the other end of the veth \
                 (`ethtool -K INTERFACE tx off tso off`)"
            )
        })
    }

    fn close(&mut self) {
        let start = Instant::now();
        let count = |engine: &StackEngine| engine.network.with(|_, streams| streams.len());
        while count(self) > 0 && start.elapsed() < CLOSE_TIMEOUT {
            let Ok(turn) = self.turn() else { return };
            if turn == Turn::Idle && count(self) > 0 && self.sleep(CLOSE_TIMEOUT / 10).is_err() {
                return;
            }
        }
        self.network.with(|stack, streams| streams.abort_all(stack));
        for _ in 0..RESET_TURNS_MAX {
            if !matches!(self.turn(), Ok(Turn::Busy)) {
                return;
            }
        }
    }
}
