//! The event loop of one thread on AF_XDP.

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::num::NonZeroU64;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use spillway_net::{Clock, Mailbox, Remote};
use spillway_tcp::{Resolver, Stack};
use spillway_transport::{Application, Time};

use crate::address_watch::AddressWatch;
use crate::crossing::Crossing;
use crate::driver::{BATCH_FRAMES, Driver, Endpoint, Turn};
use crate::endpoints::Endpoints;
use crate::hosted::Hosted;
use crate::interrupts::{Interrupts, ThreadInterrupts};
use crate::notice::Notice;
use crate::port::Port;
use crate::queues::Queues;
use crate::separate::{Recipients, SeparateAddress};
use crate::shared::Shared;
use crate::socket::{CHECK_INTERVAL, Socket};
use crate::{Counters, Device};

/// Maximum delay that the kernel adds to timeouts. The default of 50 µs is too long for batch delays.
const TIMER_SLACK_NS: NonZeroU64 = NonZeroU64::new(1_000).unwrap();

/// Maximum time to send the resets of all connections when a thread ends.
const ABORT_TIME_MAX: Duration = Duration::from_secs(1);
/// Pause while the interface has no room for the resets.
const FULL_PAUSE: Duration = Duration::from_micros(100);

/// Maximum number of frames of other threads that one turn takes, so that a flood at their queues leaves time for
/// this thread's own.
const CROSSED_PER_TURN: usize = 256;

/// The event loop of an application on its own TCP stack, for one thread: the counterpart of
/// [`spillway_net::Context`].
pub struct Context<A> {
    driver: Driver<Queues>,
    station: Station<A>,
    clock: Clock,
    mailbox: Arc<Mailbox<A, Port>>,
    busy_poll: Duration,
    /// Frames received so far, and the time of the last turn that received one.
    busy: (u64, Time),
    turned_at: Time,
    check_at: Time,
    address_watch: Option<AddressWatch>,
    interrupts: Option<ThreadInterrupts>,
    notices: NoticeHook,
    has_reported_checksums: bool,
}

/// Called with each notice.
pub type NoticeHook = Box<dyn FnMut(Notice) + Send>;

/// What a [`Context`] is made of.
pub struct Parts<A> {
    /// The sockets of the thread's queues, at least one.
    pub sockets: Vec<Socket>,
    /// The stack. With [`Resolver::Driver`] it shares its addresses with the kernel; with [`Resolver::Arp`] the kernel does not
    /// have its address.
    pub stack: Stack,
    /// The interface with its steering program.
    pub endpoints: Endpoints,
    /// Watches the addresses of all threads' stacks; `None` if the kernel does not have these addresses.
    pub address_watch: Option<AddressWatch>,
    /// Passes frames to and from other threads; `None` for a single thread.
    pub crossing: Option<Crossing>,
    /// The application.
    pub application: A,
    /// The clock that all threads share.
    pub clock: Clock,
    /// How long the thread polls for frames after the last one before it sleeps. Zero: it sleeps at once.
    pub busy_poll: Duration,
    /// Defers the interface's interrupts under load; `None`: no deferral.
    pub interrupts: Option<Interrupts>,
    /// Called with each notice for the operator. Must not block.
    pub notices: NoticeHook,
}

impl<A: Application> Context<A> {
    /// Creates a context in the calling thread's network namespace.
    ///
    /// # Errors
    /// The process has no CAP_NET_RAW, or no file descriptors left.
    pub fn new(parts: Parts<A>) -> io::Result<Context<A>> {
        let Parts { sockets, stack, endpoints, address_watch, crossing, application, .. } = parts;
        let Parts { clock, busy_poll, interrupts, notices, .. } = parts;
        let interface = endpoints.adapter().interface().clone();
        let separate =
            separate_address(&stack).map(|(ip, prefix)| SeparateAddress::new(ip, prefix, interface.mac));
        let port = Port::new(stack, endpoints)?;
        let shared = Shared::new(&interface, port, application)?;
        Ok(Context {
            driver: Driver::new(Queues::new(sockets)),
            station: Station { shared, crossing, separate, reads_at: Time::ZERO },
            clock,
            mailbox: Arc::new(Mailbox::new()?),
            busy_poll,
            busy: (0, Time::ZERO),
            turned_at: Time::ZERO,
            check_at: Time::ZERO,
            address_watch,
            interrupts: interrupts.as_ref().map(Interrupts::of_thread),
            notices,
            has_reported_checksums: false,
        })
    }

    /// A handle for commands from other threads.
    pub fn remote(&self) -> Remote<A, Port> {
        self.mailbox.remote()
    }

    /// Totals of the loop since its start.
    pub fn counters(&self) -> Counters {
        self.driver.counters()
    }

    /// Runs one command on the calling thread. Its output leaves in the next turn.
    pub fn command<R>(&mut self, command: impl FnOnce(Time, &mut A, &mut Port) -> R) -> R {
        self.update_figures();
        let hosted = &mut self.station.shared.hosted;
        command(self.clock.now(), &mut hosted.application, &mut hosted.stack)
    }

    /// Runs until a [`Remote`] stops it.
    ///
    /// # Errors
    /// The interface is not as it was (see [`Adapter::check`](crate::Adapter::check)), or the system has failed.
    pub fn run(&mut self) -> io::Result<()> {
        // Fails only on kernels without timer slack; timeouts are less exact then.
        let _ = rustix::thread::set_current_timer_slack(Some(TIMER_SLACK_NS));
        while !self.mailbox.is_stopped() {
            self.turn(None)?;
        }
        self.abort_connections()
    }

    /// Resets the remaining connections, as a kernel does when a process ends: idle peers would keep theirs.
    fn abort_connections(&mut self) -> io::Result<()> {
        let until = self.clock.now() + ABORT_TIME_MAX;
        // First the frames that wait already: resets that find no room in the stack's queue would be lost.
        self.send_waiting(until)?;
        loop {
            let aborted = self.station.shared.hosted.stack.stack.abort_unfinished(BATCH_FRAMES);
            self.send_waiting(until)?;
            if aborted == 0 || self.clock.now() >= until {
                return Ok(());
            }
        }
    }

    /// Sends all waiting frames, until this time at the latest.
    fn send_waiting(&mut self, until: Time) -> io::Result<()> {
        loop {
            let now = self.clock.now();
            if now >= until {
                return Ok(());
            }
            let full = self.driver.counters().full;
            if self.driver.send(now, &mut self.station)? == Turn::Busy {
                continue;
            }
            if self.driver.counters().full == full && !self.driver.device().has_unsent() {
                return Ok(());
            }
            std::thread::sleep(FULL_PAUSE);
        }
    }

    /// Runs one turn, then waits for the next, at most for `timeout_max`.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn turn(&mut self, timeout_max: Option<Duration>) -> io::Result<()> {
        if self.mailbox.has_commands() {
            self.run_commands();
        }
        let now = self.clock.now();
        if now >= self.check_at {
            self.check(now)?;
        }
        self.turned_at = now;
        let turn = self.driver.turn(now, &mut self.station)?;
        if let Some(error) = self.station.shared.take_error() {
            return Err(error);
        }
        self.update_interrupts(now);
        if turn == Turn::Idle && !self.is_busy(now) {
            self.wait(timeout_max)?;
        }
        Ok(())
    }

    /// Returns an error if the interface has changed, and reports notices.
    fn check(&mut self, now: Time) -> io::Result<()> {
        self.check_at = now + CHECK_INTERVAL;
        let port = &self.station.shared.hosted.stack;
        let adapter = port.endpoints().adapter();
        if let Some(state) = adapter.check()? {
            (self.notices)(Notice::of_state(adapter.interface(), state));
        }
        let packets = port.stack.counters().partial_checksums;
        if packets > 0 && !self.has_reported_checksums {
            self.has_reported_checksums = true;
            (self.notices)(Notice::PartialChecksums { packets });
        }
        if let Some(watch) = &self.address_watch {
            watch.check(now).into_iter().for_each(&mut self.notices);
        }
        if let Some(separate) = &mut self.station.separate {
            separate.announce();
            if let Some(mac) = separate.take_conflict(now) {
                (self.notices)(Notice::AddressConflict { address: separate.ip().into(), mac });
            }
        }
        Ok(())
    }

    fn update_interrupts(&mut self, now: Time) {
        if let Some(interrupts) = &mut self.interrupts
            && let Err(error) = interrupts.update(now, self.driver.counters().received)
        {
            (self.notices)(Notice::InterruptsNotDeferred { error: error.to_string() });
        }
    }

    /// Whether a frame has arrived within the last `busy_poll`: the next turn then follows at once.
    fn is_busy(&mut self, now: Time) -> bool {
        if self.busy_poll.is_zero() {
            return false;
        }
        let received = self.driver.counters().received;
        if received != self.busy.0 {
            self.busy = (received, now);
        }
        now.since(self.busy.1) < self.busy_poll
    }

    /// Waits for the next turn. If the application's deadline is at most the input patience after this turn,
    /// frames of accepted connections do not end the wait: their requests would wait for the deadline anyway,
    /// and a wake-up costs more than a message. Replies arrive on connections that the stack has opened, and
    /// do end the wait: they must not be late, and may let the server's next batch leave.
    fn wait(&mut self, timeout_max: Option<Duration>) -> io::Result<()> {
        let now = self.clock.now();
        let hosted = &self.station.shared.hosted;
        let may_sleep = {
            let bound = self.turned_at + hosted.stack.input_patience;
            hosted.application.poll_timeout().is_some_and(|deadline| deadline <= bound)
        };
        let until = self.station.poll_timeout().map(|at| at.since(now));
        let timeout = [until, timeout_max].into_iter().flatten().min();
        let wakes: Vec<BorrowedFd<'_>> =
            std::iter::once(self.mailbox.as_fd()).chain(self.station.wakes()).collect();
        let is_woken = match may_sleep {
            true => self.driver.device().wait_for_opened(timeout, &wakes)?,
            false => self.driver.device_mut().wait(timeout, &wakes)?,
        };
        if is_woken {
            self.mailbox.clear_wake();
            self.station.handle_wake();
        }
        Ok(())
    }

    /// Copies the loop's counters to the port, where commands read them.
    fn update_figures(&mut self) {
        let crossing = self.station.crossing.as_ref().map(Crossing::counters).unwrap_or_default();
        let device = self.driver.device();
        let port = &mut self.station.shared.hosted.stack;
        port.device = (self.driver.counters(), crossing, device.statistics());
        port.is_deferring = self.interrupts.as_ref().is_some_and(ThreadInterrupts::is_deferring);
    }

    fn run_commands(&mut self) {
        self.update_figures();
        let hosted = &mut self.station.shared.hosted;
        for command in self.mailbox.take() {
            command(self.clock.now(), &mut hosted.application, &mut hosted.stack);
        }
    }
}

/// The stack's separate address; `None` if the stack shares its addresses with the kernel.
fn separate_address(stack: &Stack) -> Option<(Ipv4Addr, u8)> {
    let settings = stack.settings();
    let own = settings.addresses.first()?;
    match own.ip {
        IpAddr::V4(ip) if settings.resolver == Resolver::Arp => Some((ip, own.prefix)),
        _ => None,
    }
}

impl<A> Drop for Context<A> {
    fn drop(&mut self) {
        self.mailbox.close();
    }
}

/// The driver's endpoint: the stack with its application, load queries, and frames from other threads.
struct Station<A> {
    shared: Shared<A, Port>,
    crossing: Option<Crossing>,
    separate: Option<SeparateAddress>,
    /// When to look for load queries and frames of other threads again without a readable descriptor.
    reads_at: Time,
}

/// Interval at which a thread that never waits looks for load queries and frames of other threads.
const READ_INTERVAL: Duration = Duration::from_millis(1);

impl<A: Application> Station<A> {
    fn answer_load_queries(&mut self, now: Time) -> io::Result<()> {
        let hosted = &mut self.shared.hosted;
        let application = &mut hosted.application;
        hosted.stack.load_queries.answer(
            now,
            |listener, from, query, answer| application.handle_datagram(now, listener, from, query, answer),
            |_| {},
        )
    }

    /// Handles a frame for the separate address. Returns `true` for a load query, which is finished.
    fn receive_at_separate_address(&mut self, now: Time, frame: &[u8]) -> bool {
        let Some(separate) = &mut self.separate else { return false };
        let Hosted { stack: port, application } = &mut self.shared.hosted;
        let recipients = separate.receive(now, frame, |local, from, query, answer| {
            let listener = port.load_query_listener(local)?;
            Some(application.handle_datagram(now, listener, from, query, answer))
        });
        if let (Recipients::AllThreads, Some(crossing)) = (recipients, &self.crossing) {
            crossing.pass_to_all(frame);
        }
        recipients == Recipients::None
    }

    fn deliver_crossed(&mut self, now: Time) {
        let Some(crossing) = &self.crossing else { return };
        crossing.clear_wake();
        for _ in 0..CROSSED_PER_TURN {
            let Some(frame) = crossing.receive() else { return };
            // After an answer to a SYN, the connection tries a port that may lead to this thread's queues.
            if !self.shared.hosted.stack.stack.reopen_misdirected(now, &frame) {
                self.shared.deliver(now, &frame);
            }
        }
        // More frames may be left for the next turn.
        crossing.wake();
    }
}

impl<A: Application> Endpoint for Station<A> {
    fn begin_turn(&mut self, now: Time) {
        self.shared.begin_turn(now);
        let is_due = self.shared.hosted.stack.poll_timeout().is_some_and(|at| at <= now);
        if now >= self.reads_at || is_due {
            self.reads_at = now + READ_INTERVAL;
            self.deliver_crossed(now);
            if let Err(error) = self.answer_load_queries(now) {
                self.shared.keep_error(error);
            }
            self.shared.hosted.stack.check_left(now);
        }
    }

    fn deliver(&mut self, now: Time, frame: &[u8]) {
        if self.separate.is_some() && self.receive_at_separate_address(now, frame) {
            return;
        }
        if !self.crossing.as_ref().is_some_and(|crossing| crossing.pass(frame)) {
            self.shared.deliver(now, frame);
        }
    }

    fn end_turn(&mut self, now: Time) {
        self.shared.end_turn(now);
    }

    fn poll_transmit(&mut self, now: Time, slot: &mut [u8]) -> Option<usize> {
        if let Some(length) = self.separate.as_mut().and_then(|separate| separate.poll_transmit(slot)) {
            return Some(length);
        }
        self.shared.poll_transmit(now, slot)
    }

    fn poll_timeout(&self) -> Option<Time> {
        let port = self.shared.hosted.stack.poll_timeout();
        [self.shared.poll_timeout(), port].into_iter().flatten().min()
    }

    fn handle_wake(&mut self) {
        self.reads_at = Time::ZERO;
        self.shared.handle_wake();
    }

    fn wakes(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let load_queries = self.shared.hosted.stack.load_queries.as_fd();
        let crossing = self.crossing.as_ref().map(AsFd::as_fd);
        self.shared.wakes().chain([load_queries]).chain(crossing)
    }
}
