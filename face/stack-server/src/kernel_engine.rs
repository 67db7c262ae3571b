//! The loop of a server's thread on sockets of the kernel.

use std::io;
use std::num::NonZeroU64;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::epoll::EventFlags;
use spillway_kernel_tcp::{KernelTcp, Settings};
use spillway_metrics::process::thread_cpu;
use spillway_moves::{Meter, Movable, OwnLoad, Server};
use spillway_net::{Clock, Epoll, EpollEvent, Mailbox};
use spillway_rules::config::Mode;
use spillway_transport::{Time, Transport};
use spillway_xdp::Interface;
use tracing::warn;

use crate::about::About;
use crate::agent::{agent_of, check_peers, own_peer, set_policy};
use crate::datagrams::Datagrams;
use crate::error::EngineError;
use crate::log::Log;
use crate::remote::Remote;
use crate::settings::EngineSettings;
use crate::steps::monotonic_ns;

/// The kernel may delay a timeout by this time.
const TIMER_SLACK_NS: NonZeroU64 = NonZeroU64::new(1_000).unwrap();
/// Interval at which the switch is checked, and at which faults are reported.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of datagrams in a turn, so that a flood leaves time for connections.
const DATAGRAMS_PER_TURN: usize = 256;
/// Maximum number of faults in the log in each interval.
const FAULTS_PER_INTERVAL: usize = 10;

/// Tokens of the descriptors that the thread waits for: the sockets, the datagrams, and those that cost nothing to look at.
const SOCKETS: u64 = 0;
const DATAGRAMS: u64 = 1;
const OTHERS: u64 = 2;
/// Number of these descriptors.
const DESCRIPTORS: usize = 5;

/// Which descriptors were readable when the thread has waited last.
#[derive(Clone, Copy, Debug)]
struct Ready {
    sockets: bool,
    datagrams: bool,
}

/// A server on sockets of the kernel, for one thread. Its connections move by the kernel's repair mode (Prism §4.3).
pub struct KernelEngine<A> {
    server: Server<KernelTcp>,
    application: A,
    /// `None`: no connection moves.
    datagrams: Option<Datagrams>,
    epoll: Epoll,
    events: Vec<EpollEvent>,
    ready: Ready,
    clock: Clock,
    mailbox: Arc<Mailbox<A, Server<KernelTcp>>>,
    log: Log,
    meter: Meter,
    check_at: Time,
    /// Faults in the log since the last check.
    faults: usize,
    export_pause: Duration,
}

impl<A: Movable + 'static> KernelEngine<A> {
    /// Binds the service's address in the calling thread's network namespace, and listens if this server is the service's
    /// original owner.
    ///
    /// # Errors
    /// The interface or the settings cannot be used, or privileges are missing.
    pub fn start(settings: &EngineSettings, application: A) -> Result<KernelEngine<A>, EngineError> {
        if let Some(moves) = &settings.moves {
            check_peers(&moves.peers)?;
        }
        if settings.link.is_some() {
            return Err(EngineError::Settings("a server on the kernel's TCP has no link port here".into()));
        }
        let clock = Clock::start();
        let interface = Interface::find(&settings.interface)
            .map_err(|error| EngineError::Adapter(spillway_xdp::AdapterError::Interface(error)))?;
        let own = settings.moves.as_ref().map(|moves| own_peer(moves, &interface, settings.service));
        let own = own.transpose()?;
        let place = own.as_ref().map_or(settings.service, |own| own.place);
        let is_host_mode = settings.moves.as_ref().is_some_and(|moves| moves.mode == Mode::Host);
        if is_host_mode && place != settings.service {
            return Err(EngineError::Settings(
                "with a switch in host mode only the original owner can stand on the kernel's TCP: replies of other servers \
                 would have their own address"
                    .into(),
            ));
        }
        let connections_max = usize::try_from(settings.connections_max).unwrap_or(usize::MAX);
        let tcp = Settings { interface: settings.interface.clone(), place, connections_max };
        let mut tcp = KernelTcp::open(&tcp, clock).map_err(EngineError::Kernel)?;
        // Clients connect to the original owner only: at other servers the listener stays closed.
        tcp.set_listening(0, place == settings.service);
        let mode = tcp.mode();
        let moves = settings.moves.as_ref().zip(own.as_ref());
        let agent = moves.map(|(moves, own)| agent_of(settings, moves, own, clock.now())).transpose()?;
        let datagrams = moves.map(|(moves, own)| Datagrams::open(moves, own)).transpose()?;
        let mut server = Server::new(tcp, agent, [settings.service.into()]);
        set_policy(&mut server, settings)?;
        let measuring = settings.moves.as_ref().map(|moves| moves.measuring).unwrap_or_default();
        if measuring.moves > 0 {
            server.trace_moves(monotonic_ns, measuring.moves);
        }
        let mailbox = Arc::new(Mailbox::new().map_err(EngineError::Host)?);
        let epoll = Epoll::new().map_err(EngineError::Host)?;
        let tcp = server.connections().stack();
        let [sockets, holds, removed] = tcp.descriptors();
        let others = [(OTHERS, holds), (OTHERS, removed), (OTHERS, mailbox.as_fd())];
        let datagrams_fd = datagrams.as_ref().map(|datagrams| (DATAGRAMS, datagrams.as_fd()));
        for (token, fd) in others.into_iter().chain([(SOCKETS, sockets)]).chain(datagrams_fd) {
            epoll.add(fd, token, EventFlags::IN).map_err(EngineError::Host)?;
        }
        let about = About::new(settings, own, place, mode);
        Ok(KernelEngine {
            application,
            datagrams,
            epoll,
            events: Vec::with_capacity(DESCRIPTORS),
            ready: Ready { sockets: true, datagrams: true },
            log: Log::new(clock.now(), settings, about),
            meter: Meter::new(clock.now(), thread_cpu()),
            server,
            clock,
            mailbox,
            check_at: Time::ZERO,
            faults: 0,
            export_pause: measuring.export_pause,
        })
    }

    /// A handle by which other threads order moves and read the status.
    pub fn remote(&self) -> Remote<A, KernelTcp> {
        self.log.remote(self.mailbox.remote())
    }

    /// Runs until a [`Remote`] stops it; then resets the connections.
    ///
    /// # Errors
    /// The system has failed.
    pub fn run(&mut self) -> io::Result<()> {
        // Fails only on kernels without timer slack; timeouts are less exact then.
        let _ = rustix::thread::set_current_timer_slack(Some(TIMER_SLACK_NS));
        while !self.mailbox.is_stopped() {
            self.turn()?;
            self.wait()?;
        }
        self.server.connections_mut().stack_mut().reset_all();
        Ok(())
    }

    fn turn(&mut self) -> io::Result<()> {
        let now = self.clock.now();
        if now >= self.check_at {
            self.check_at = now + CHECK_INTERVAL;
            self.faults = 0;
            self.log.check_switch(now, &self.server);
        }
        if self.mailbox.has_commands() {
            for command in self.mailbox.take() {
                command(now, &mut self.application, &mut self.server);
            }
        }
        self.server.begin_turn(&mut self.application, now);
        if self.ready.datagrams {
            self.receive_datagrams(now)?;
        }
        self.server.connections_mut().stack_mut().turn(self.ready.sockets)?;
        self.meter.record_turn(now, 1, true);
        self.look(now);
        self.server.end_turn(&mut self.application, now);
        self.server.connections_mut().stack_mut().flush();
        if self.server.has_exports() {
            let exports = self.server.exports();
            self.server.frames_sent(&mut self.application, now);
            self.pause_after_exports(exports);
            // Those that have come back may have something to send.
            self.server.connections_mut().stack_mut().flush();
        }
        self.send_datagrams(now);
        self.log.report(now, &mut self.server);
        self.report_faults();
        Ok(())
    }

    fn receive_datagrams(&mut self, now: Time) -> io::Result<()> {
        let Some(datagrams) = &mut self.datagrams else { return Ok(()) };
        for _ in 0..DATAGRAMS_PER_TURN {
            let Some(payload) = datagrams.receive()? else { return Ok(()) };
            self.server.handle_datagram(&mut self.application, now, payload);
        }
        Ok(())
    }

    fn send_datagrams(&mut self, now: Time) {
        let Some(datagrams) = &mut self.datagrams else { return };
        while let Some(transmit) = self.server.poll_datagram(now) {
            datagrams.send(&transmit);
            self.server.recycle_datagram(transmit);
        }
    }

    /// Measures the load if a look at it is due.
    fn look(&mut self, now: Time) {
        if self.datagrams.is_some() && now >= self.server.next_look() {
            let (busy, queueing) = self.meter.look(now, thread_cpu());
            let load = OwnLoad { busy, queueing }.max(self.application.own_load(now));
            self.server.look(now, load.busy, load.queueing);
        }
    }

    /// Stops the thread, as if `exports` exports had taken longer.
    fn pause_after_exports(&self, exports: usize) {
        if !self.export_pause.is_zero() {
            std::thread::sleep(self.export_pause * u32::try_from(exports).unwrap_or(u32::MAX));
        }
    }

    fn report_faults(&mut self) {
        while let Some(fault) = self.server.connections_mut().stack_mut().poll_fault() {
            self.faults += 1;
            if self.faults <= FAULTS_PER_INTERVAL {
                warn!("{fault}");
            }
        }
    }

    fn wait(&mut self) -> io::Result<()> {
        let next_look = self.datagrams.is_some().then(|| self.server.next_look());
        let sockets = self.server.connections_mut().stack_mut().next_turn();
        let others = [next_look, sockets, self.log.poll_timeout(), Some(self.check_at)];
        let server = self.server.poll_timeout(&self.application);
        let due = others.into_iter().flatten().chain(server).min();
        let timeout = due.map(|at| at.since(self.clock.now()));
        self.epoll.wait(&mut self.events, timeout)?;
        let is_ready = |token| self.events.iter().any(|event| event.u64 == token);
        self.ready = Ready { sockets: is_ready(SOCKETS), datagrams: is_ready(DATAGRAMS) };
        self.mailbox.clear_wake();
        self.meter.record_waited(self.clock.now());
        Ok(())
    }
}

impl<A> Drop for KernelEngine<A> {
    fn drop(&mut self) {
        self.mailbox.close();
    }
}
