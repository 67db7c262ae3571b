//! The event loop of one measurement, in a thread of its own: the stack behind an interface, or a cable between two.

use std::io;
use std::net::SocketAddrV4;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use spillway_lab::{Host, LabError};
use spillway_tcp::isn::Key;
use spillway_tcp::recovery::Algorithm;
use spillway_tcp::{Counters, Listener, Settings, Stack};
use spillway_transport::Time;
use spillway_wire::packet::ethernet::Mac;
use spillway_xdp::{Device, Driver, Endpoint, Faulted, Faults, FaultsOptions, Hosted, Stop, Tap, Turn};

use super::forward::{Forward, PairedTap};
use super::roles::{Role, Roles, Stream};
use super::{MTU, Plan, Sender, TIMEOUT};
use crate::error::Error;

/// The stack's MAC address. The kernel's end of the TAP interface has another one.
const MAC: Mac = Mac([2, 0, 0, 0, 0, 2]);
/// Ethernet, IPv4 and TCP headers with timestamps: the smallest headers of a segment with payload.
const HEADERS_BYTES: usize = 14 + 20 + 32;
/// Interval of a stopping loop's checks whether its endpoint is done.
const STOP_POLL: Duration = Duration::from_millis(1);

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LoopResult {
    /// CPU time of the thread as a share of its running time.
    pub loop_share: f64,
    pub faulted: Faulted,
    pub sent: u64,
    pub received: Stream,
    pub sender: Sender,
    /// Connections that were given up or reset, and malformed frames.
    pub trouble: u64,
}

/// A running loop; [`Running::stop`] returns its interfaces.
pub(super) struct Running<T> {
    stop: Stop,
    has_faults: Arc<AtomicBool>,
    thread: JoinHandle<Result<io::Result<(T, LoopResult)>, LabError>>,
}

struct Loop {
    stop: Stop,
    has_faults: Arc<AtomicBool>,
    faults: FaultsOptions,
    start: Instant,
}

impl Running<Tap> {
    pub fn stack(
        host: &Host,
        mut tap: Tap,
        address: SocketAddrV4,
        algorithm: Algorithm,
        role: Role,
        plan: &Plan,
    ) -> Result<Running<Tap>, Error> {
        drain(&mut tap)?;
        let listener = Listener { address: address.into(), is_gated: plan.gate.is_some() };
        let mut settings = Settings::new(MAC, *address.ip(), 24, Key([7; 16]));
        (settings.mtu, settings.listeners) = (MTU, vec![listener]);
        settings.recovery.algorithm = algorithm;
        let stack = Stack::new(Time::ZERO, settings).map_err(|error| Error::Usage(error.to_string()))?;
        let application = Roles::new(role, plan.gate);
        Running::start(host, plan, move |work| {
            let endpoint = Counted { hosted: Hosted { stack, application }, payload: 0, stopped_at: None };
            let (tap, endpoint, used) = work.run(tap, endpoint)?;
            let Hosted { stack, application } = &endpoint.hosted;
            let retransmitted = endpoint.payload.saturating_sub(application.sent) as f64;
            let sender = Sender {
                timeouts: stack.counters().timeouts as f64,
                retransmitted_share: retransmitted / application.sent.max(1) as f64,
            };
            let (sent, received) = (application.sent, application.received);
            Ok((tap, LoopResult { sent, received, sender, trouble: trouble(stack.counters()), ..used }))
        })
    }
}

impl Running<[Tap; 2]> {
    /// Starts a cable between the peer's interface, where faults are injected, and the other kernel's.
    pub fn cable(
        host: &Host,
        [mut peer, mut other]: [Tap; 2],
        plan: &Plan,
    ) -> Result<Running<[Tap; 2]>, Error> {
        drain(&mut peer)?;
        drain(&mut other)?;
        Running::start(host, plan, move |work| {
            let device = PairedTap::new(peer, &other)?;
            let (device, forward, used) = work.run(device, Forward::new(other))?;
            Ok(([device.into_tap(), forward.into_tap()?], used))
        })
    }
}

impl<T: Send + 'static> Running<T> {
    fn start(
        host: &Host,
        plan: &Plan,
        work: impl FnOnce(Loop) -> io::Result<(T, LoopResult)> + Send + 'static,
    ) -> Result<Running<T>, Error> {
        let stop =
            Stop::new().map_err(|cause| Error::System { what: "cannot start a loop".into(), cause })?;
        let has_faults = Arc::new(AtomicBool::new(false));
        let event_loop = Loop {
            stop: stop.clone(),
            has_faults: Arc::clone(&has_faults),
            faults: plan.faults,
            start: Instant::now(),
        };
        let thread = host.thread(move || work(event_loop))?;
        Ok(Running { stop, has_faults, thread })
    }

    /// Stops the loop and waits until its endpoint is done. Returns the interfaces.
    pub fn stop(self) -> Result<(T, LoopResult), Error> {
        self.stop.set();
        let outcome = self.thread.join().map_err(|_| Error::process("the loop", "it panicked"))?;
        outcome?.map_err(|cause| Error::System { what: "the loop over interfaces".into(), cause })
    }
}

impl<T> Running<T> {
    /// Starts fault injection in the next turn.
    pub fn begin_faults(&self) {
        self.has_faults.store(true, Ordering::Release);
    }
}

impl Loop {
    /// Runs until `stop` is set and the endpoint is done.
    fn run<D: Device, E: Finish>(&self, device: D, mut endpoint: E) -> io::Result<(D, E, LoopResult)> {
        let clean = FaultsOptions { seed: self.faults.seed, ..FaultsOptions::default() };
        let mut driver = Driver::new(Faults::new(device, clean));
        let mut is_clean = true;
        let cpu_start = cpu();
        let mut loop_share = None;
        // A stopping loop waits without `self.stop`: a wait with it would return at once.
        loop {
            if is_clean && self.has_faults.load(Ordering::Acquire) {
                is_clean = false;
                driver.device_mut().set_options(self.faults);
            }
            let now = Time::ZERO + self.start.elapsed();
            let turn = driver.turn(now, &mut endpoint)?;
            let is_ending = self.stop.is_set();
            if is_ending {
                loop_share.get_or_insert_with(|| {
                    (cpu() - cpu_start).as_secs_f64() / self.start.elapsed().as_secs_f64()
                });
                if endpoint.is_done(now) {
                    break;
                }
            }
            if turn == Turn::Idle {
                let now = Time::ZERO + self.start.elapsed();
                let timeout = endpoint.poll_timeout().map(|at| at.since(now));
                let _ = match is_ending {
                    true => driver
                        .device_mut()
                        .wait(Some(timeout.map_or(STOP_POLL, |time| time.min(STOP_POLL))), &[])?,
                    false => driver.device_mut().wait(timeout, &[self.stop.as_fd()])?,
                };
            }
        }
        let loop_share = loop_share.unwrap_or_default();
        let faults = driver.into_device();
        let faulted = faults.faulted();
        Ok((faults.into_device(), endpoint, LoopResult { loop_share, faulted, ..LoopResult::default() }))
    }
}

/// An endpoint that may have unfinished work when the loop is stopped.
trait Finish: Endpoint {
    /// Whether the work is finished or its time limit has passed. Called in each turn of a stopping loop.
    fn is_done(&mut self, now: Time) -> bool;
}

impl Finish for Forward {
    fn is_done(&mut self, _now: Time) -> bool {
        true
    }
}

/// The stack with its application, and a count of sent payload.
struct Counted {
    hosted: Hosted<Roles>,
    /// Payload bytes of all sent frames. The excess over [`Roles::sent`] was retransmitted.
    payload: u64,
    stopped_at: Option<Time>,
}

impl Finish for Counted {
    fn is_done(&mut self, now: Time) -> bool {
        let stopped_at = *self.stopped_at.get_or_insert(now);
        self.hosted.application.is_over() || now.since(stopped_at) > TIMEOUT
    }
}

impl Endpoint for Counted {
    fn begin_turn(&mut self, now: Time) {
        self.hosted.begin_turn(now);
    }

    fn deliver(&mut self, now: Time, frame: &[u8]) {
        self.hosted.deliver(now, frame);
    }

    fn end_turn(&mut self, now: Time) {
        self.hosted.end_turn(now);
    }

    fn poll_transmit(&mut self, now: Time, slot: &mut [u8]) -> Option<usize> {
        let length = self.hosted.poll_transmit(now, slot)?;
        self.payload += length.saturating_sub(HEADERS_BYTES) as u64;
        Some(length)
    }

    fn poll_timeout(&self) -> Option<Time> {
        self.hosted.poll_timeout()
    }
}

/// Discards frames of an earlier measurement.
fn drain(tap: &mut Tap) -> Result<(), Error> {
    loop {
        match tap.receive() {
            Ok(Some(_)) => {}
            Ok(None) => return Ok(()),
            Err(cause) => return Err(Error::System { what: "cannot read from an interface".into(), cause }),
        }
    }
}

fn trouble(counters: &Counters) -> u64 {
    counters.given_up + counters.resets_received + counters.frames_malformed
}

fn cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32) // below 10^9
}
