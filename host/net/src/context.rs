//! The event loop of one thread.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::epoll::EventFlags;
use spillway_transport::{Application, Conn, Event, HostLimit, LostReason, Time};

use crate::connection::Read;
use crate::listen::ContextListeners;
use crate::remote::{Mailbox, Remote};
use crate::sockets::{Sockets, URGENT_TOKEN, WAKE_TOKEN};
use crate::{Clock, Config, Notice};

/// The kernel may delay a timeout by the timer slack; its default of 50 us is too long for batch delays.
const TIMER_SLACK_NS: u64 = 1_000;

/// An application and its sockets, run by one thread.
pub struct Context<A> {
    pub(crate) sockets: Sockets,
    pub(crate) app: A,
    /// Result of the application's `poll_timeout` after the latest turn.
    app_deadline: Option<Time>,
    clock: Clock,
    mailbox: Arc<Mailbox<A>>,
    /// Receives data; the application borrows it during one event.
    buffer: Vec<u8>,
    events: Vec<libc::epoll_event>,
    urgent_events: Vec<libc::epoll_event>,
    /// Time at which events of all connections were last fetched.
    fetched_at: Time,
}

impl<A: Application> Context<A> {
    /// Creates a context, to be run by one thread. `hook` receives notices for the operator; it must not block.
    ///
    /// # Errors
    /// The host is out of file descriptors or memory.
    pub fn new(
        config: Config,
        listeners: ContextListeners,
        clock: Clock,
        app: A,
        hook: impl FnMut(Notice) + Send + 'static,
    ) -> io::Result<Context<A>> {
        let mailbox = Arc::new(Mailbox::new()?);
        let buffer = vec![0; config.read_bytes.max(1)];
        let events = Vec::with_capacity(config.events_per_turn.max(1));
        let sockets = Sockets::new(config, listeners, Box::new(hook))?;
        // Edge triggered: every write causes an event, so the counter need not be read.
        sockets.epoll.add(&mailbox, WAKE_TOKEN, EventFlags::IN | EventFlags::ET)?;
        let urgent_events = Vec::with_capacity(events.capacity());
        Ok(Context {
            sockets,
            app,
            app_deadline: None,
            clock,
            mailbox,
            buffer,
            events,
            urgent_events,
            fetched_at: Time::ZERO,
        })
    }

    /// The application.
    pub fn app_mut(&mut self) -> &mut A {
        &mut self.app
    }

    /// The sockets.
    pub fn sockets(&self) -> &Sockets {
        &self.sockets
    }

    /// The sockets, for commands. What they queue is written at the end of the next turn, or by [`flush`](Self::flush).
    pub fn sockets_mut(&mut self) -> &mut Sockets {
        &mut self.sockets
    }

    /// Writes what was queued since the last turn.
    pub fn flush(&mut self) {
        self.sockets.flush();
    }

    /// When the next turn is due if nothing arrives.
    pub fn poll_timeout(&mut self) -> Option<Time> {
        let due = self.timeout(None);
        due.map(|due| self.clock.now() + due)
    }

    /// Whether a turn is due although nothing has arrived.
    pub fn is_due(&mut self) -> bool {
        self.timeout(None) == Some(Duration::ZERO)
    }

    /// A handle for commands from other threads.
    pub fn remote(&self) -> Remote<A> {
        self.mailbox.remote()
    }

    /// Runs until a [`Remote`] stops it.
    ///
    /// # Errors
    /// Waiting for events failed. No peer can cause this.
    pub fn run(&mut self) -> io::Result<()> {
        // Fails only on kernels without timer slack, where timeouts are less exact.
        let _ = rustix::thread::set_current_timer_slack(core::num::NonZeroU64::new(TIMER_SLACK_NS));
        self.command(|_, _, _| ());
        while !self.mailbox.is_stopped() {
            self.turn(None)?;
        }
        Ok(())
    }

    /// Runs one command on the calling thread as a turn of its own: data that the command sends is written before this
    /// returns.
    pub fn command<R>(&mut self, command: impl FnOnce(Time, &mut A, &mut Sockets) -> R) -> R {
        let now = self.clock.now();
        self.sockets.now = now;
        let result = command(now, &mut self.app, &mut self.sockets);
        self.end_turn();
        result
    }

    /// Runs one turn: waits for events, at most for `timeout_max`, and handles them.
    ///
    /// # Errors
    /// Waiting for events failed. No peer can cause this.
    pub fn turn(&mut self, timeout_max: Option<Duration>) -> io::Result<()> {
        self.wait(timeout_max)?;
        self.sockets.now = self.clock.now();
        self.report_notes();
        self.handle_urgent_events();
        let mut events = std::mem::take(&mut self.events);
        for event in events.drain(..) {
            if event.u64 == URGENT_TOKEN {
                self.fetch_urgent_events()?;
                self.handle_urgent_events();
            } else {
                self.handle_event(event.u64, EventFlags::from_bits_retain(event.events));
            }
        }
        self.events = events;
        self.read_ready();
        self.sockets.now = self.clock.now();
        self.handle_deadlines();
        let now = self.sockets.now;
        if self.app_deadline.is_some_and(|deadline| deadline <= now) {
            self.app.handle_timeout(now, &mut self.sockets);
        }
        self.end_turn();
        Ok(())
    }

    /// Waits for events and fetches them. If the application's deadline is at most `input_patience` after the last
    /// fetch of all events, only urgent events end the wait; all others are fetched once the deadline has passed. This
    /// saves wake-ups, each of which costs as much as a message; the other data would wait for the deadline anyway.
    fn wait(&mut self, timeout_max: Option<Duration>) -> io::Result<()> {
        let timeout = self.timeout(timeout_max);
        let Some(urgent) = self.sockets.urgent.as_mut().filter(|_| timeout != Some(Duration::ZERO)) else {
            return self.fetch_all_events(timeout);
        };
        let bound = self.fetched_at + self.sockets.config.input_patience;
        let Some(deadline) = self.app_deadline.filter(|deadline| *deadline <= bound) else {
            return self.fetch_all_events(timeout);
        };
        urgent.wait(&mut self.urgent_events, timeout)?;
        if self.clock.now() < deadline {
            return Ok(());
        }
        self.fetch_all_events(Some(Duration::ZERO))
    }

    fn fetch_all_events(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        self.sockets.epoll.wait(&mut self.events, timeout)?;
        self.fetched_at = self.clock.now();
        Ok(())
    }

    fn fetch_urgent_events(&mut self) -> io::Result<()> {
        match &mut self.sockets.urgent {
            Some(urgent) => urgent.wait(&mut self.urgent_events, Some(Duration::ZERO)),
            None => Ok(()),
        }
    }

    fn handle_urgent_events(&mut self) {
        let mut events = std::mem::take(&mut self.urgent_events);
        for event in events.drain(..) {
            self.handle_event(event.u64, EventFlags::from_bits_retain(event.events));
        }
        self.urgent_events = events;
    }

    fn timeout(&mut self, timeout_max: Option<Duration>) -> Option<Duration> {
        if !self.sockets.ready.is_empty() || !self.sockets.notes.is_empty() {
            return Some(Duration::ZERO);
        }
        let deadline = [self.app_deadline, self.sockets.next_deadline()].into_iter().flatten().min();
        let until = deadline.map(|deadline| deadline.since(self.clock.now()));
        [until, timeout_max].into_iter().flatten().min()
    }

    fn end_turn(&mut self) {
        self.app.end_of_turn(self.sockets.now, &mut self.sockets);
        self.app_deadline = self.app.poll_timeout();
        self.sockets.flush();
    }

    pub(crate) fn report(&mut self, conn: Conn, event: Event<'_>) {
        self.app.handle(self.sockets.now, conn, event, &mut self.sockets);
    }

    pub(crate) fn report_refused(&mut self, listener: u16, limit: HostLimit, peers: u64) {
        self.app.handle_refused(listener, limit, peers);
    }

    /// Frees the connection and reports the reason.
    pub(crate) fn report_lost(&mut self, conn: Conn, reason: LostReason) {
        if let Some(connection) = self.sockets.table.remove(conn) {
            drop(connection.into_socket(&mut self.sockets.pool));
            self.report(conn, Event::Lost(reason));
        }
    }

    /// Reads once and passes the data to the application. Returns the result of the read and whether it filled the
    /// buffer; `None` if there is nothing to read.
    pub(crate) fn read_once(&mut self, conn: Conn) -> Option<(Read, bool)> {
        let connection = self.sockets.table.get_mut(conn).filter(|connection| connection.may_read())?;
        let read = connection.read(&mut self.buffer);
        let mut filled = false;
        if let Read::Data { length, end } = read {
            filled = length == self.buffer.len();
            let event = Event::Data { end, bytes: &self.buffer[..length] };
            self.app.handle(self.sockets.now, conn, event, &mut self.sockets);
        }
        Some((read, filled))
    }

    /// Runs the commands of other threads.
    pub(crate) fn run_commands(&mut self) {
        for command in self.mailbox.take() {
            command(self.sockets.now, &mut self.app, &mut self.sockets);
        }
    }
}

/// Readable when an event waits for [`Context::turn`].
impl<A> AsFd for Context<A> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.sockets.epoll.as_fd()
    }
}

impl<A> Drop for Context<A> {
    fn drop(&mut self) {
        self.mailbox.close();
    }
}
