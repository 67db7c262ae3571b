//! The loop of one measurement, in a thread: the stack behind an interface, or a cable between two.

use std::io;
use std::net::SocketAddrV4;
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
use spillway_xdp::{
    Device, Driver, Endpoint, FRAME_BYTES_MAX, Faulted, Faults, FaultsOptions, Hosted, Stop, Tap, Turn,
};

use super::forward::{Forward, Watching};
use super::roles::{Role, Roles, Stream};
use super::{MTU, PATIENCE, Plan, Sender};
use crate::error::Error;

/// The stack's address on its cable; not its interface's, for it has none.
const MAC: Mac = Mac([2, 0, 0, 0, 0, 2]);
/// Ethernet, IPv4 and TCP headers with timestamps: the least that comes before payload.
const HEADERS_BYTES: usize = 14 + 20 + 32;
/// How often a loop that ends looks whether it is over.
const ENDING: Duration = Duration::from_millis(1);

/// What a loop saw and used.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Used {
    /// Of its thread's time, that on a CPU.
    pub loop_share: f64,
    pub faulted: Faulted,
    /// Bytes that the application on the stack has sent.
    pub sent: u64,
    /// What it has received.
    pub received: Stream,
    /// What the stack counted as a sender.
    pub sender: Sender,
    /// Connections that it gave up or that the peer reset, and frames that it could not read.
    pub trouble: u64,
}

/// A loop that runs, and gives its interfaces back.
pub(super) struct Running<T> {
    stop: Stop,
    has_faults: Arc<AtomicBool>,
    thread: JoinHandle<Result<io::Result<(T, Used)>, LabError>>,
}

/// What a loop is made of.
struct Loop {
    stop: Stop,
    has_faults: Arc<AtomicBool>,
    faults: FaultsOptions,
    start: Instant,
}

impl Running<Tap> {
    /// A new stack with its application.
    pub fn stack(
        host: &Host,
        mut tap: Tap,
        address: SocketAddrV4,
        algorithm: Algorithm,
        role: Role,
        plan: &Plan,
    ) -> Result<Running<Tap>, Error> {
        drain(&mut tap)?;
        let listener = Listener { address, is_gated: plan.gate.is_some() };
        let mut settings = Settings::new(MAC, *address.ip(), 24, Key([7; 16]));
        (settings.mtu, settings.listeners) = (MTU, vec![listener]);
        settings.recovery.algorithm = algorithm;
        let stack = Stack::new(Time::ZERO, settings).map_err(|error| Error::Usage(error.to_string()))?;
        let application = Roles::new(role, plan.gate);
        Running::start(host, plan, move |work| {
            let endpoint = Watched { hosted: Hosted { stack, application }, payload: 0, ending: None };
            let (tap, endpoint, used) = work.run(tap, endpoint)?;
            let Hosted { stack, application } = &endpoint.hosted;
            let again = endpoint.payload.saturating_sub(application.sent) as f64;
            let sender = Sender {
                timeouts: stack.counters().timeouts as f64,
                again_share: again / application.sent.max(1) as f64,
            };
            let (sent, received) = (application.sent, application.received);
            Ok((tap, Used { sent, received, sender, trouble: trouble(stack.counters()), ..used }))
        })
    }
}

impl Running<[Tap; 2]> {
    /// A cable between the peer's interface, where faults are, and the other kernel's.
    pub fn cable(
        host: &Host,
        [mut peer, mut other]: [Tap; 2],
        plan: &Plan,
    ) -> Result<Running<[Tap; 2]>, Error> {
        drain(&mut peer)?;
        drain(&mut other)?;
        Running::start(host, plan, move |work| {
            let device = Watching::new(peer, &other)?;
            let (device, forward, used) = work.run(device, Forward::new(other))?;
            Ok(([device.into_tap(), forward.into_tap()?], used))
        })
    }
}

impl<T: Send + 'static> Running<T> {
    fn start(
        host: &Host,
        plan: &Plan,
        work: impl FnOnce(Loop) -> io::Result<(T, Used)> + Send + 'static,
    ) -> Result<Running<T>, Error> {
        let stop =
            Stop::new().map_err(|cause| Error::System { what: "cannot start a loop".into(), cause })?;
        let has_faults = Arc::new(AtomicBool::new(false));
        let parts = Loop {
            stop: stop.clone(),
            has_faults: Arc::clone(&has_faults),
            faults: plan.faults,
            start: Instant::now(),
        };
        let thread = host.thread(move || work(parts))?;
        Ok(Running { stop, has_faults, thread })
    }

    /// Ends it, and gives back what it had.
    pub fn stop(self) -> Result<(T, Used), Error> {
        self.stop.set();
        let ended = self.thread.join().map_err(|_| Error::process("the loop", "it panicked"))?;
        ended?.map_err(|cause| Error::System { what: "the loop over interfaces".into(), cause })
    }
}

impl<T> Running<T> {
    /// From the next frame on, things happen to frames.
    pub fn begin_faults(&self) {
        self.has_faults.store(true, Ordering::Release);
    }
}

impl Loop {
    /// Takes turns until it is stopped, and for as long as the endpoint is not done.
    fn run<D: Device, E: Endings>(&self, device: D, mut endpoint: E) -> io::Result<(D, E, Used)> {
        let clean = FaultsOptions { seed: self.faults.seed, ..FaultsOptions::default() };
        let mut driver = Driver::new(Faults::new(device, clean));
        let mut is_clean = true;
        let cpu_start = cpu();
        let mut loop_share = None;
        // Never set: once the loop is told to stop, it waits for what its endpoint has left, in short pieces.
        let calm = Stop::new()?;
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
                match is_ending {
                    true => driver
                        .device_mut()
                        .wait(Some(timeout.map_or(ENDING, |time| time.min(ENDING))), &calm)?,
                    false => driver.device_mut().wait(timeout, &self.stop)?,
                }
            }
        }
        let loop_share = loop_share.unwrap_or_default();
        let faults = driver.into_device();
        let faulted = faults.faulted();
        Ok((faults.into_device(), endpoint, Used { loop_share, faulted, ..Used::default() }))
    }
}

/// An endpoint that may have something to do yet when it is told to stop.
trait Endings: Endpoint {
    /// Whether nothing is left to do, or it has taken too long.
    fn is_done(&mut self, now: Time) -> bool;
}

impl Endings for Forward {
    fn is_done(&mut self, _now: Time) -> bool {
        true
    }
}

/// The stack, and what it sends.
struct Watched {
    hosted: Hosted<Roles>,
    /// Bytes of payload in all frames sent: what is more than was given to the stack was sent again.
    payload: u64,
    /// When it was told to stop.
    ending: Option<Time>,
}

impl Endings for Watched {
    fn is_done(&mut self, now: Time) -> bool {
        let since = *self.ending.get_or_insert(now);
        self.hosted.application.is_over() || now.since(since) > PATIENCE
    }
}

impl Endpoint for Watched {
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

/// Forgets what is left of an earlier measurement, before anybody sends what belongs to the next one.
fn drain(tap: &mut Tap) -> Result<(), Error> {
    let mut buffer = vec![0; FRAME_BYTES_MAX];
    loop {
        match tap.recv(&mut buffer) {
            Ok(Some(_)) => {}
            Ok(None) => return Ok(()),
            Err(cause) => return Err(Error::System { what: "cannot read from an interface".into(), cause }),
        }
    }
}

fn trouble(counters: &Counters) -> u64 {
    counters.given_up + counters.resets_received + counters.frames_malformed
}

/// CPU time of this thread.
fn cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32) // below a second
}
