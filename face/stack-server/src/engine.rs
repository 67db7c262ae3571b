//! The loop of a server's thread.

use std::io;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use spillway_metrics::process::thread_cpu;
use spillway_moves::{Decision, Meter, Movable, Order, OrderResult, Server, Target};
use spillway_net::{Clock, Mailbox};
use spillway_transport::Time;
use spillway_wire::switch::Flow;
use spillway_xdp::{
    BATCH_FRAMES, Device, Driver, Endpoint, Endpoints, Notice as InterfaceNotice, Queues, Turn,
};
use tracing::{info, warn};

use crate::about::About;
use crate::datagrams::Datagrams;
use crate::error::EngineError;
use crate::interface::{self, Held, Opened};
use crate::notices::{Notice, Notices, Report};
use crate::remote::{Remote, Waiters};
use crate::settings::EngineSettings;
use crate::station::Station;
use crate::steps::monotonic_ns;
use crate::switch_watch::SwitchWatch;

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
    waiters: Waiters,
    about: Arc<About>,
    check_at: Time,
    /// `None`: no connection moves.
    switch_watch: Option<SwitchWatch>,
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
            interface::check_peers(&moves.peers)?;
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
        let switch_watch = settings.moves.as_ref().map(|moves| SwitchWatch::new(clock.now(), moves.switch));
        let about = About::new(settings, own, place, mode);
        let station = Station {
            server,
            application,
            kernel,
            datagrams,
            read_at: Time::ZERO,
            error: None,
            meter: Meter::new(clock.now(), thread_cpu()),
            notices: Notices::default(),
            frames: 0,
            export_pause: measuring.export_pause,
        };
        Ok(Engine {
            driver: Driver::new(Queues::new(sockets)),
            station,
            endpoints,
            clock,
            mailbox: Arc::new(Mailbox::new().map_err(EngineError::Host)?),
            waiters: Waiters::default(),
            about: Arc::new(about),
            check_at: Time::ZERO,
            switch_watch,
            _held: held,
        })
    }

    /// A handle by which other threads order moves and read the status.
    pub fn remote(&self) -> Remote<A> {
        Remote::new(self.mailbox.remote(), self.waiters.clone(), Arc::clone(&self.about))
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
                self.check_switch(now);
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

    fn check_switch(&mut self, now: Time) {
        let agent = self.station.server.agent();
        let Some((watch, agent)) = self.switch_watch.as_mut().zip(agent) else { return };
        if let Some(notice) = watch.check(now, agent.is_confirmed(now)) {
            if notice.is_silent { warn!("{notice}") } else { info!("{notice}") }
        }
    }

    fn turn(&mut self, now: Time) -> io::Result<Turn> {
        if self.mailbox.has_commands() {
            for command in self.mailbox.take() {
                command(now, &mut self.station.application, &mut self.station.server);
            }
        }
        let turn = self.driver.turn(now, &mut self.station)?;
        self.station.finish_turn(now, !self.driver.device().has_unsent());
        while let Some((flow, decision)) = self.station.server.poll_decision() {
            self.report_decision(&flow, &decision);
        }
        while let Some(incident) = self.station.server.poll_incident() {
            self.station.notices.add(incident);
        }
        while let Some(report) = self.station.notices.poll(now) {
            self.report_notice(&report);
        }
        while let Some((order, result)) = self.station.server.poll_result() {
            self.report(&order, result);
        }
        let error = self.station.error.take().or_else(|| self.station.kernel.take_error());
        error.map_or(Ok(turn), Err)
    }

    fn report_decision(&self, flow: &Flow, decision: &Decision) {
        let to = match decision.target {
            Target::LeastLoaded(_) => None,
            Target::Server(server) => Some(server),
        };
        let (client, to, reason) = (flow.client(), self.about.name_of(to), decision.reason);
        info!(%client, to, %reason, "policy moves connection");
    }

    fn report(&self, order: &Order, result: OrderResult) {
        let (client, to) = (order.flow.client(), self.about.name_of(order.to));
        match result {
            OrderResult::Ended(spillway_handoff::MoveResult::Moved) => info!(%client, to, "connection moved"),
            other => warn!(%client, to, "connection not moved: {other}"),
        }
        self.waiters.report(&order.flow, result);
    }

    fn report_notice(&self, report: &Report) {
        let Report { notice, count, client } = *report;
        let client = client.map(|client| client.to_string());
        match notice {
            Notice::NotAuthentic(peer) => warn!(
                count,
                "datagrams from {} fail authentication: is its peers_key_file the same?",
                self.about.name_of(Some(peer))
            ),
            Notice::UnknownVersion => warn!(
                count,
                "datagrams of an unknown version: upgrade all servers; if all have this version, somebody forges datagrams"
            ),
            Notice::Refused(source, reason) => {
                let from = self.about.name_of(Some(source));
                warn!(count, client, from, "moves to this server refused, the connections stay: {reason}");
            }
            Notice::GivenUp(cause) => warn!(count, client, "connections given up: {cause}"),
            Notice::NotImported => {
                warn!(count, client, "connections given up: the stack could not continue them after a move");
            }
        }
    }

    fn wait(&mut self) -> io::Result<()> {
        let due = self.station.poll_timeout().map(|at| at.since(self.clock.now()));
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
