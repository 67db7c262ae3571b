//! A link port with its own epoll set, so that the application's loop has one descriptor to watch.

use std::collections::VecDeque;
use std::io;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::Instant;

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventFlags};
use rustix::io::Errno;
use spillway_server::{BindError, ClientId, CloseReason, Event, LinkId, Links, RefuseReason, Settings};

use super::clients::Clients;
use super::event::{Text, spw_event};

/// Maximum of bytes received from a link at a time.
const BUFFER_BYTES: usize = 64 * 1024;
/// Maximum of epoll events handled in one turn: the others stay ready for the next one.
const READY_MAX: usize = 256;
/// The mark with which `Links` tags its descriptors in the epoll set. The value does not matter, because this set
/// contains no other descriptors.
const MARK: u32 = 0;

/// A link port, and the state of its turn.
pub(crate) struct Port {
    pub(super) links: Links,
    pub(super) clients: Clients,
    epoll: OwnedFd,
    /// Time at which the current turn began; a flush reads the clock again.
    now: Instant,
    /// Epoll events of this turn that were not handled yet.
    ready: VecDeque<(u64, EventFlags)>,
    /// The link whose received bytes are being split into events; the rest of them is `buffer[begin..end]`.
    current: Option<LinkId>,
    begin: usize,
    end: usize,
    buffer: Box<[u8]>,
    text: Text,
    /// The C program has used a client, or a turn has begun, since the last flush.
    pub(super) is_flush_due: bool,
}

impl Port {
    pub(super) fn listen(address: SocketAddr, settings: Settings) -> Result<Port, BindError> {
        let now = Instant::now();
        let epoll = epoll::create(CreateFlags::CLOEXEC).map_err(|error| BindError::Host(error.into()))?;
        let mut links = Links::bind(now, address, settings)?;
        links.watch_in(&epoll, MARK).map_err(BindError::Host)?;
        Ok(Port {
            links,
            clients: Clients::default(),
            epoll,
            now,
            ready: VecDeque::new(),
            current: None,
            begin: 0,
            end: 0,
            buffer: vec![0; BUFFER_BYTES].into_boxed_slice(),
            text: Text::default(),
            is_flush_due: false,
        })
    }

    pub(super) fn epoll(&self) -> &OwnedFd {
        &self.epoll
    }

    /// Begins a turn: fetches epoll events without waiting.
    pub(super) fn handle(&mut self) -> io::Result<()> {
        if self.is_flush_due {
            self.flush()?;
        }
        self.now = Instant::now();
        if self.ready.is_empty() && self.current.is_none() {
            let mut space = [MaybeUninit::<epoll::Event>::uninit(); READY_MAX];
            match epoll::wait(&self.epoll, &mut space, Some(&Timespec::default())) {
                Ok((events, _)) => {
                    self.ready.extend(events.iter().map(|event| (event.data.u64(), event.flags)));
                }
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.links.handle_timeout(self.now);
        self.is_flush_due = true;
        Ok(())
    }

    /// The next event of this turn. Receives from ready links until there is one; `None` when no event is left.
    pub(super) fn decompose(&mut self) -> Option<spw_event> {
        loop {
            // First events from received bytes, then those of `poll_event`.
            if let Some(link) = self.current {
                let mut input = &self.buffer[self.begin..self.end];
                let event = self.links.decompose(self.now, link, &mut input);
                self.begin = self.end - input.len();
                match event {
                    Some(event) => match convert(&mut self.links, &mut self.clients, &mut self.text, event) {
                        Some(event) => return Some(event),
                        None => continue,
                    },
                    None => self.current = None,
                }
            }
            if let Some((data, flags)) = self.ready.pop_front() {
                if let Some(link) = self.links.handle_ready(self.now, data, flags) {
                    self.begin = 0;
                    self.end = self.links.receive(link, &mut self.buffer);
                    // Also after receiving no bytes: `Links::decompose` must be called until it returns `None`.
                    self.current = Some(link);
                }
                continue;
            }
            let event = self.links.poll_event()?;
            if let Some(event) = convert(&mut self.links, &mut self.clients, &mut self.text, event) {
                return Some(event);
            }
        }
    }

    /// Sends everything that was composed, and updates the epoll set.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.is_flush_due = false;
        self.links.flush(Instant::now());
        self.links.watch_in(&self.epoll, MARK)
    }

    /// When the next turn must begin at the latest; in the past if this turn has events left, or a flush is due.
    #[must_use]
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        if self.is_flush_due || self.current.is_some() || !self.ready.is_empty() {
            return Some(self.now);
        }
        self.links.poll_timeout()
    }

    /// The client with this number. A flush is due afterwards.
    pub(super) fn touch_client(&mut self, number: u64) -> Option<ClientId> {
        let client = self.clients.client(number)?;
        self.is_flush_due = true;
        Some(client)
    }
}

/// Converts an event for the C program; `None` if the program has closed its client already, or the client was refused
/// here.
fn convert(links: &mut Links, clients: &mut Clients, text: &mut Text, event: Event<'_>) -> Option<spw_event> {
    use super::event::spw_event_kind as K;
    let number_of = |clients: &Clients, client| clients.number(client);
    Some(match event {
        Event::Connected { client, address } => match clients.add(client) {
            Some(number) => {
                spw_event { text: text.lend(&address), ..spw_event::of(K::SPW_CONNECTED, number) }
            }
            None => {
                links.refuse(client, RefuseReason::Full);
                return None;
            }
        },
        Event::Data { client, bytes } => {
            let (number, context) = number_of(clients, client)?;
            let (data, length) = (bytes.as_ptr(), bytes.len());
            clients.record_received(number, length);
            spw_event { context, data, length, ..spw_event::of(K::SPW_DATA, number) }
        }
        Event::Finished { client } => {
            let (number, context) = number_of(clients, client)?;
            spw_event { context, ..spw_event::of(K::SPW_FINISHED, number) }
        }
        Event::CanCompose { client } => {
            let (number, context) = number_of(clients, client)?;
            spw_event { context, ..spw_event::of(K::SPW_CAN_COMPOSE, number) }
        }
        Event::Closed { client, reason } => {
            // `Closed` must be answered by `close`. The C program cannot do that, because the number becomes invalid
            // here.
            links.close(client, reason);
            let (number, context) = number_of(clients, client)?;
            clients.remove(number);
            let reason = if reason == CloseReason::Normal { 0 } else { reason as i32 };
            spw_event { context, reason, ..spw_event::of(K::SPW_DISCONNECTED, number) }
        }
        Event::LinkOpened { peer, role, .. } => spw_event {
            text: text.lend(&format_args!("{role} {peer}")),
            ..spw_event::of(K::SPW_LINK_OPENED, 0)
        },
        Event::LinkLost { peer, why, .. } => spw_event {
            text: text.lend(&format_args!("{peer}: {why}")),
            ..spw_event::of(K::SPW_LINK_LOST, 0)
        },
        Event::Forbidden { address, why, .. } => spw_event {
            text: text.lend(&format_args!("{address}: {why}")),
            ..spw_event::of(K::SPW_FORBIDDEN, 0)
        },
        Event::Drain { deadline_ms, .. } => {
            let text = text.lend(&format_args!("within {deadline_ms} ms"));
            spw_event { text, ..spw_event::of(K::SPW_LINK_DRAINS, 0) }
        }
        // `Run` comes only from `decompose_run`.
        Event::Run { .. } => return None,
    })
}
