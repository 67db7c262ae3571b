//! The loop of a server's thread.

use std::io;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use spillway_metrics::process::thread_cpu;
use spillway_moves::{Meter, Movable, Server};
use spillway_net::{Clock, Mailbox};
use spillway_transport::Time;
use spillway_xdp::{
    BATCH_FRAMES, Device, Driver, Endpoint, Endpoints, Notice as InterfaceNotice, Queues, Turn,
};
use tracing::{info, warn};

use crate::about::About;
use crate::agent::check_peers;
use crate::datagrams::Datagrams;
use crate::error::EngineError;
use crate::interface::{self, Held, Opened};
use crate::log::Log;
use crate::remote::Remote;
use crate::settings::EngineSettings;
use crate::station::Station;
use crate::steps::monotonic_ns;

/// The kernel may delay a timeout by this time; by default it may delay it by 50 µs.
const TIMER_SLACK_NS: NonZeroU64 = NonZeroU64::new(1_000).unwrap();
/// Interval at which the interface and the switch are checked.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Interval of turns while a connection waits for the device to take the frames behind which it leaves.
const SENT_WAIT: Duration = Duration::from_micros(20);
/// Maximum time to send the resets of all connections when the engine ends.
const ABORT_TIME_MAX: Duration = Duration::from_secs(1);

/// A server on one interface, for one thread.
pub struct Engine<A> {
    driver: Driver<Queues>,
    station: Station<A>,
    endpoints: Endpoints,
    clock: Clock,
    mailbox: Arc<Mailbox<A, Server>>,
    log: Log,
    check_at: Time,
    _held: Held,
}

impl<A: Movable + 'static> Engine<A> {
    /// Opens the interface in the calling thread's network namespace, and listens if this server is the service's
    /// original owner.
    ///
    /// # Errors
    /// The interface or the settings cannot be used, or privileges are missing.
    pub fn start(settings: &EngineSettings, application: A) -> Result<Engine<A>, EngineError> {
        if let Some(moves) = &settings.moves {
            check_peers(&moves.peers)?;
        }
        let clock = Clock::start();
        let Opened { sockets, endpoints, kernel, mut server, held, place, mode, own } =
            interface::open(settings, &clock)?;
        let datagrams = settings.moves.as_ref().zip(own.as_ref());
        let datagrams = datagrams.map(|(moves, own)| Datagrams::open(moves, own)).transpose()?;
        let measuring = settings.moves.as_ref().map(|moves| moves.measuring).unwrap_or_default();
        if measuring.moves > 0 {
            server.trace_moves(monotonic_ns, measuring.moves);
        }
        let about = About::new(settings, own, place, mode);
        let log = Log::new(clock.now(), settings, about);
        let station = Station {
            server,
            application,
            kernel,
            datagrams,
            read_at: Time::ZERO,
            error: None,
            meter: Meter::new(clock.now(), thread_cpu()),
            frames: 0,
            export_pause: measuring.export_pause,
        };
        Ok(Engine {
            driver: Driver::new(Queues::new(sockets)),
            station,
            endpoints,
            clock,
            mailbox: Arc::new(Mailbox::new().map_err(EngineError::Host)?),
            log,
            check_at: Time::ZERO,
            _held: held,
        })
    }

    /// A handle by which other threads order moves and read the status.
    pub fn remote(&self) -> Remote<A> {
        self.log.remote(self.mailbox.remote())
    }

    /// Runs until a [`Remote`] stops it; then resets the connections.
    ///
    /// # Errors
    /// The interface has changed, or the system has failed.
    pub fn run(&mut self) -> io::Result<()> {
        // Fails only on kernels without timer slack; timeouts are less exact then.
        let _ = rustix::thread::set_current_timer_slack(Some(TIMER_SLACK_NS));
        while !self.mailbox.is_stopped() {
            let now = self.clock.now();
            if now >= self.check_at {
                self.check_at = now + CHECK_INTERVAL;
                self.check_interface()?;
                self.log.check_switch(now, &self.station.server);
            }
            if self.turn(now)? == Turn::Idle {
                self.wait()?;
            }
        }
        self.abort_connections()
    }

    fn check_interface(&self) -> io::Result<()> {
        let adapter = self.endpoints.adapter();
        if let Some(state) = adapter.check()? {
            let notice = InterfaceNotice::of_state(adapter.interface(), state);
            if notice.is_problem() { warn!("{notice}") } else { info!("{notice}") }
        }
        Ok(())
    }

    fn turn(&mut self, now: Time) -> io::Result<Turn> {
        if self.mailbox.has_commands() {
            for command in self.mailbox.take() {
                command(now, &mut self.station.application, &mut self.station.server);
            }
        }
        let turn = self.driver.turn(now, &mut self.station)?;
        self.station.finish_turn(now, !self.driver.device().has_unsent());
        self.log.report(now, &mut self.station.server);
        let error = self.station.error.take().or_else(|| self.station.kernel.take_error());
        error.map_or(Ok(turn), Err)
    }

    fn wait(&mut self) -> io::Result<()> {
        let due = self.station.poll_timeout().into_iter().chain(self.log.poll_timeout()).min();
        let due = due.map(|at| at.since(self.clock.now()));
        let exports = self.station.server.has_exports().then_some(SENT_WAIT);
        let timeout = [due, exports].into_iter().flatten().min();
        let wakes: Vec<BorrowedFd<'_>> =
            std::iter::once(self.mailbox.as_fd()).chain(self.station.wakes()).collect();
        let is_woken = self.driver.device_mut().wait(timeout, &wakes)?;
        if is_woken {
            self.mailbox.clear_wake();
            self.station.handle_wake();
        }
        self.station.meter.record_waited(self.clock.now());
        Ok(())
    }

    /// Resets the remaining connections, as a kernel does when a process ends.
    fn abort_connections(&mut self) -> io::Result<()> {
        let until = self.clock.now() + ABORT_TIME_MAX;
        loop {
            let now = self.clock.now();
            let stack = self.station.server.connections_mut().stack_mut();
            let aborted = stack.abort_unfinished(BATCH_FRAMES);
            while self.driver.send(now, &mut self.station)? == Turn::Busy {}
            if aborted == 0 || now >= until {
                return Ok(());
            }
        }
    }
}

impl<A> Drop for Engine<A> {
    fn drop(&mut self) {
        self.mailbox.close();
    }
}
