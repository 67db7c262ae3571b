//! The kernel's TCP with what moves of its connections need.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use spillway_bpf::{Mode, PeerTimestamps};
use spillway_capture::{Capturer, CopyLimits, Injector};
use spillway_moves::{ConnectionEnds, Tcp};
use spillway_net::{Clock, Config, Context, Listeners};
use spillway_tcp::{Delivery, StackEvent};
use spillway_transport::{Conn, Time};
use spillway_wire::handoff::Reason;
use spillway_wire::state::ConnectionState;

use crate::away::Exported;
use crate::collector::Collector;
use crate::coming::Coming;
use crate::error::OpenError;
use crate::faults::{Fault, Faults};
use crate::frames::packet_of;
use crate::holds::Holds;
use crate::lifetimes::Lifetimes;
use crate::programs::{Filter, Stamps};

/// Room for the packets that reach captured sockets.
const COPIES_RING_BYTES: u32 = 16 << 20;

/// Settings of the kernel's TCP of a server.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The interface on which clients' packets arrive.
    pub interface: String,
    /// The address and port at which this server has connections of the service: listener 0.
    pub place: SocketAddr,
    /// Maximum number of connections.
    pub connections_max: usize,
}

/// The kernel's TCP of a server whose connections move. The driver calls [`turn`](Self::turn) when one of its descriptors is
/// readable, or [`next_turn`](Self::next_turn) is due.
pub struct KernelTcp {
    pub(crate) context: Context<Collector>,
    pub(crate) capturer: Capturer,
    pub(crate) injector: Injector,
    pub(crate) exported: Exported,
    pub(crate) faults: Faults,
    pub(crate) connections_max: usize,
    pub(crate) lifetimes: Lifetimes,
    pub(crate) place: SocketAddr,
    pub(crate) holds: Holds,
    clock: Clock,
    /// Places that stay free for connections that are to come, or may come back.
    places_kept: usize,
    queue_bytes_max: usize,
}

impl KernelTcp {
    /// Binds the listener, which is closed, loads the programs, and attaches the one that holds packets to the interface, in the
    /// network namespace of the calling thread.
    ///
    /// # Errors
    /// The address cannot be bound, or privileges are missing: CAP_NET_ADMIN, CAP_NET_RAW, CAP_BPF and CAP_PERFMON.
    pub fn open(settings: &Settings, clock: Clock) -> Result<KernelTcp, OpenError> {
        let config = Config { connections_max: settings.connections_max, ..Config::default() };
        let queue_bytes_max = config.queued_bytes_max;
        let listeners = Listeners::bind(&[settings.place], 1, &config).map_err(OpenError::Listener)?;
        let listeners = listeners.into_contexts().pop().unwrap_or_default();
        let context =
            Context::new(config, listeners, clock, Collector::default(), |_| ()).map_err(OpenError::Host)?;
        let filter = Box::new(Filter::load(COPIES_RING_BYTES)?);
        let stamps = PeerTimestamps::load().map_err(OpenError::Program)?;
        let capturer = Capturer::open().map_err(OpenError::Capture)?;
        Ok(KernelTcp {
            context,
            capturer: capturer
                .copying(filter, CopyLimits::default())
                .reading_stamps(Box::new(Stamps(stamps))),
            injector: Injector::open().map_err(OpenError::Capture)?,
            exported: Exported::default(),
            faults: Faults::default(),
            connections_max: settings.connections_max,
            lifetimes: Lifetimes::open(settings.connections_max)?,
            place: settings.place,
            holds: Holds::open(&settings.interface)?,
            clock,
            places_kept: 0,
            queue_bytes_max,
        })
    }

    /// How the program that holds packets is attached.
    pub fn mode(&self) -> Mode {
        self.holds.mode()
    }

    /// Handles what has arrived. Does not wait. `are_sockets_ready`: the first of the [descriptors](Self::descriptors) is
    /// readable; otherwise the sockets are not looked at unless they have something to do by time.
    ///
    /// # Errors
    /// The system has failed.
    pub fn turn(&mut self, are_sockets_ready: bool) -> io::Result<()> {
        self.holds.collect(&mut self.faults);
        if self.holds.is_draining() {
            self.holds.drain(&self.injector, &mut self.faults);
        }
        if self.holds.due().is_some() {
            self.holds.work(Instant::now(), &mut self.faults);
        }
        if self.exported.len() > 0 {
            // Otherwise the ring of copies may have no room; an error returns at the next use.
            let _ = self.capturer.drain();
        }
        self.lifetimes.collect(&mut self.faults);
        if are_sockets_ready || self.context.is_due() {
            self.context.turn(Some(Duration::ZERO))?;
        }
        Ok(())
    }

    /// Writes what the application has sent. Connections whose frames must leave before their states are exported after this.
    pub fn flush(&mut self) {
        self.context.flush();
    }

    /// Resets all connections that are here, as a kernel does when a process ends with unread bytes. Those that are to come, or
    /// have left, end without a segment.
    pub fn reset_all(&mut self) {
        self.context.sockets_mut().reset_all();
    }

    /// When the next turn is due if nothing arrives.
    pub fn next_turn(&mut self) -> Option<Time> {
        let has_work = self.holds.is_draining() || self.holds.has_strays() || self.exported.has_strays();
        let work = has_work.then(|| self.clock.now());
        [self.context.poll_timeout(), work, self.work_due()].into_iter().flatten().min()
    }

    /// The descriptors that are readable when something has arrived: at the sockets, for connections that are to come, and about
    /// sockets that were removed.
    pub fn descriptors(&self) -> [BorrowedFd<'_>; 3] {
        [self.context.as_fd(), self.holds.as_fd(), self.lifetimes.as_fd()]
    }

    /// The next fault, for the log.
    pub fn poll_fault(&mut self) -> Option<Fault> {
        self.faults.poll()
    }

    /// Whether an event of a connection waits for the server.
    pub(crate) fn has_event(&mut self, conn: Conn) -> bool {
        self.context.app_mut().0.iter().any(|(other, _)| *other == conn)
    }

    /// Clients that connect cannot take the places that are kept.
    pub(crate) fn keep_free(&mut self) {
        let free = self.connections_max.saturating_sub(self.places_kept);
        self.context.sockets_mut().set_connections_max(free);
    }

    fn work_due(&self) -> Option<Time> {
        let due = self.exported.due().into_iter().chain(self.holds.due()).min()?;
        let left = due.saturating_duration_since(Instant::now());
        // A look that is overdue is due in this turn, whose time is that of its beginning. The present would never be.
        Some(if left.is_zero() { Time::ZERO } else { self.clock.now() + left })
    }
}

impl Tcp for KernelTcp {
    type Checked = Coming;

    const HOLDS_PACKETS: bool = true;

    fn connections_max(&self) -> usize {
        self.connections_max
    }

    fn established(&self) -> usize {
        self.context.sockets().connections()
    }

    fn queue_bytes_max(&self) -> usize {
        self.queue_bytes_max
    }

    fn keep_places(&mut self, places: usize) {
        if places != self.places_kept {
            self.places_kept = places;
            self.keep_free();
        }
    }

    /// A frame that another server has forwarded.
    fn handle_frame(&mut self, _now: Time, frame: &[u8]) -> Option<Delivery> {
        let packet = spillway_capture::PeerPacket::read(packet_of(frame)?).ok()?;
        let (local, peer) = (packet.local(), packet.peer());
        if let Err(error) = self.injector.for_connection(local, peer).inject_forwarded(&packet) {
            self.faults.add(Fault::NotInjected(peer, error));
        }
        None
    }

    fn poll_event(&mut self) -> Option<(Conn, StackEvent)> {
        let (conn, event) = self.context.app_mut().0.pop_front()?;
        if let StackEvent::Opened { peer, .. } = event
            && let Ok(Some(socket)) = self.context.sockets().socket_of(conn)
        {
            self.lifetimes.begin(conn, ConnectionEnds { local: self.place, peer }, socket);
        }
        Some((conn, event))
    }

    fn lingers(&mut self, conn: Conn) -> bool {
        self.lifetimes.end(conn)
    }

    fn poll_gone(&mut self) -> Option<ConnectionEnds> {
        self.lifetimes.poll_gone()
    }

    fn poll_timeout(&self) -> Option<Time> {
        self.work_due()
    }

    fn handle_timeout(&mut self, _now: Time) {
        let now = Instant::now();
        self.exported.work(now, &mut self.faults);
        self.holds.work(now, &mut self.faults);
    }

    fn export(&mut self, _now: Time, conn: Conn) -> Option<ConnectionState> {
        self.export_connection(conn)
    }

    fn discard(&mut self, _now: Time, conn: Conn) -> bool {
        self.discard_connection(conn)
    }

    fn check(&mut self, _now: Time, state: &ConnectionState) -> Result<Coming, Reason> {
        self.restore(state)
    }

    fn import(&mut self, _now: Time, coming: Coming) -> Option<Conn> {
        self.go_live(coming)
    }

    fn take_back(&mut self, _now: Time, state: &ConnectionState) -> Option<Conn> {
        let ends = ConnectionEnds { local: state.local, peer: state.peer };
        match self.exported.take_back(&ends) {
            Some(away) => self.resume_connection(away),
            None => {
                let coming = self.restore(state).ok()?;
                self.go_live(coming)
            }
        }
    }

    fn give_up(&mut self, _now: Time, ends: ConnectionEnds) {
        self.exported.give_up(&ends, &mut self.faults);
    }

    /// The kernel answers segments of connections that it does not have by resets.
    fn end_exported(&mut self, _now: Time, _ends: ConnectionEnds) {}

    fn hold_packets(&mut self, _now: Time, ends: ConnectionEnds) -> Result<(), Reason> {
        self.holds.hold(ends, &mut self.faults)
    }

    fn release_packets(&mut self, _now: Time, ends: ConnectionEnds) {
        self.holds.release(ends, &self.injector, &mut self.faults);
    }

    fn forget_packets(&mut self, _now: Time, ends: ConnectionEnds) -> Vec<Vec<u8>> {
        self.exported.refuse(&ends);
        self.holds.refuse(ends, &mut self.faults)
    }

    fn poll_stray(&mut self, _now: Time) -> Option<Vec<u8>> {
        self.exported.poll_stray().or_else(|| self.holds.poll_stray())
    }
}
