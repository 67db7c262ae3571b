//! A leader that forwards requests to a replica without decoding them: PostMan §4.2, "Further optimization".
//!
//! ```text
//! leader --link 127.0.0.1:7400 --replica 127.0.0.1:7500 [--key FILE]... [--client-key FILE]...
//! ```
//!
//! Helpers' requests are runs of frames. The leader forwards each run unchanged, in a parcel that names its link; the
//! replica answers with runs of reply frames, which the leader sends back unchanged. A frame's header names its client, so
//! the leader decodes no frame. It handles only the ends of connections, and sessions.

use std::collections::{HashMap, HashSet, VecDeque};
use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::process::ExitCode;
use std::time::Instant;

use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};
use spillway_server::{
    ClientId, CloseReason, Event, LinkId, Links, RUN_BUFFER_BYTES, Role, Settings, read_key_file,
};
use spillway_wire::{Control, Disassembler, HEADER_BYTES, Header, Id, Kind, Piece};

const MARK_LINKS: u32 = 0;
const MARK_REPLICA: u32 = 1;

/// This bit of a parcel's length is set if its frames are control messages.
const CONTROL: u32 = 1 << 31;
const PARCEL_HEAD_BYTES: usize = 8;
/// Maximum of a link's reply bytes that wait for room. Beyond it, the client with most of these bytes is closed.
const WAITING_BYTES_MAX: usize = 4 * 1024 * 1024;
/// The link number of all sessions. The leader gives each session a sender of this link.
const SESSIONS: u32 = 0;

/// Identifies a client in parcels: the number of its link, and its sender there.
type Name = (u32, u32);

fn main() -> ExitCode {
    match Arguments::parse().and_then(|arguments| Leader::start(arguments)?.run().map_err(|e| e.to_string()))
    {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("leader: {error}");
            ExitCode::FAILURE
        }
    }
}

struct Leader {
    epoll: OwnedFd,
    links: Links,
    replica: Replica,
    number_by_link: HashMap<LinkId, u32>,
    link_by_number: HashMap<u32, LinkId>,
    /// Numbers of links and sessions are not reused.
    next_link: u32,
    next_session: u32,
    clients: HashMap<Name, ClientId>,
    names: HashMap<ClientId, Name>,
    /// Clients that are closed. A client's name is free when the replica has echoed the *close*.
    closing: HashMap<ClientId, CloseReason>,
    /// Clients to which the replica sends no more replies.
    finishing: HashSet<ClientId>,
    /// Replies that wait for room: the frames of each link.
    waiting: HashMap<u32, Vec<u8>>,
    /// Replies that wait for room: the bytes of each session.
    session_waiting: HashMap<ClientId, Vec<u8>>,
    buffer: Box<[u8]>,
}

/// The connection to the replica. It is not a link: parcels are large, so that batches would gain nothing.
struct Replica {
    stream: TcpStream,
    /// Parcels that the socket has not taken. Their bytes are not consumed, so the clients' windows bound them.
    unsent: VecDeque<Parcel>,
    /// Bytes of the first unsent parcel that were sent.
    sent: usize,
    received: Vec<u8>,
    watches_room: bool,
}

struct Parcel {
    bytes: Vec<u8>,
    /// The link whose run the parcel is; `None` for control messages and data of sessions.
    link: Option<LinkId>,
}

fn parcel_head(link: u32, length: usize, control: bool) -> [u8; PARCEL_HEAD_BYTES] {
    let mut parcel_head = [0; PARCEL_HEAD_BYTES];
    parcel_head[..4].copy_from_slice(&link.to_be_bytes());
    // Cannot overflow: a run is at most `RUN_BUFFER_BYTES`.
    let length = length as u32 | if control { CONTROL } else { 0 };
    parcel_head[4..].copy_from_slice(&length.to_be_bytes());
    parcel_head
}

impl Replica {
    /// Sends a parcel. Returns whether the socket has taken all of it; otherwise a copy waits.
    fn send(
        &mut self,
        parcel_head: [u8; PARCEL_HEAD_BYTES],
        frames: &[u8],
        link: Option<LinkId>,
    ) -> io::Result<bool> {
        let mut sent = 0;
        if self.unsent.is_empty() {
            // Send from the receive buffer, without a copy.
            sent = match self.stream.write_vectored(&[IoSlice::new(&parcel_head), IoSlice::new(frames)]) {
                Ok(sent) => sent,
                Err(error) if would_block(&error) => 0,
                Err(error) => return Err(error),
            };
            if sent == parcel_head.len() + frames.len() {
                return Ok(true);
            }
            self.sent = sent;
        }
        debug_assert!(sent == 0 || self.unsent.is_empty(), "only the first parcel should be sent in part");
        self.unsent.push_back(Parcel { bytes: [&parcel_head[..], frames].concat(), link });
        Ok(false)
    }

    /// Sends waiting parcels, and returns those that the socket has taken.
    fn push(&mut self) -> io::Result<Vec<Parcel>> {
        let mut sent_parcels = Vec::new();
        while let Some(first) = self.unsent.front() {
            match self.stream.write(&first.bytes[self.sent..]) {
                Ok(sent) => self.sent += sent,
                Err(error) if would_block(&error) => break,
                Err(error) => return Err(error),
            }
            if self.sent == first.bytes.len() {
                self.sent = 0;
                sent_parcels.extend(self.unsent.pop_front());
            }
        }
        Ok(sent_parcels)
    }
}

impl Leader {
    fn start(arguments: Arguments) -> Result<Leader, String> {
        let links =
            Links::bind(Instant::now(), arguments.link, arguments.settings).map_err(|e| e.to_string())?;
        let stream = TcpStream::connect(arguments.replica)
            .and_then(|stream| {
                stream.set_nodelay(true).and_then(|()| stream.set_nonblocking(true)).map(|()| stream)
            })
            .map_err(|e| format!("cannot connect to the replica at {}: {e}", arguments.replica))?;
        let watched = epoll::create(epoll::CreateFlags::CLOEXEC).and_then(|epoll| {
            epoll::add(&epoll, &stream, data(MARK_REPLICA), EventFlags::IN)?;
            Ok(epoll)
        });
        let epoll = watched.map_err(|e| format!("cannot make an epoll set: {e}"))?;
        println!("links on {}", links.address());
        let replica =
            Replica { stream, unsent: VecDeque::new(), sent: 0, received: Vec::new(), watches_room: false };
        Ok(Leader {
            epoll,
            links,
            replica,
            number_by_link: HashMap::new(),
            link_by_number: HashMap::new(),
            next_link: SESSIONS + 1,
            next_session: 1,
            clients: HashMap::new(),
            names: HashMap::new(),
            closing: HashMap::new(),
            finishing: HashSet::new(),
            waiting: HashMap::new(),
            session_waiting: HashMap::new(),
            buffer: vec![0; RUN_BUFFER_BYTES].into_boxed_slice(),
        })
    }

    fn run(mut self) -> io::Result<()> {
        loop {
            self.links.watch_in(&self.epoll, MARK_LINKS)?;
            self.watch_replica()?;
            let timeout = self.links.poll_timeout().map(|at| {
                let left = at.saturating_duration_since(Instant::now());
                Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: left.subsec_nanos().into() }
            });
            let mut space = [MaybeUninit::<epoll::Event>::uninit(); 256];
            let events = match epoll::wait(&self.epoll, &mut space, timeout.as_ref()) {
                Ok((events, _)) => events,
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            };
            let now = Instant::now();
            for event in events {
                let data = event.data.u64();
                if (data >> 32) as u32 == MARK_REPLICA {
                    self.send_waiting()?;
                    self.receive_replies()?;
                } else if let Some(link) = self.links.handle_ready(now, data, event.flags) {
                    self.serve_link(now, link)?;
                }
            }
            self.links.handle_timeout(now);
            while let Some(event) = self.links.poll_event() {
                self.handle(event)?;
            }
            // Pass the time of the turn's end: the service time is the difference to `now`, the turn's beginning.
            self.links.flush(Instant::now());
        }
    }

    // Requests.

    fn serve_link(&mut self, now: Instant, link: LinkId) -> io::Result<()> {
        let mut buffer = std::mem::take(&mut self.buffer);
        let received = self.links.receive(link, &mut buffer);
        let mut input = &buffer[..received];
        while let Some(event) = self.links.decompose_run(now, link, &mut input) {
            self.handle(event)?;
        }
        self.buffer = buffer;
        Ok(())
    }

    fn handle(&mut self, event: Event<'_>) -> io::Result<()> {
        match event {
            Event::Run { link, bytes } => {
                let Some(number) = self.number_by_link.get(&link) else { return Ok(()) };
                if self.replica.send(parcel_head(*number, bytes.len(), false), bytes, Some(link))? {
                    self.links.forwarded(link, bytes);
                }
            }
            Event::Data { client, bytes } => {
                // Data of a session: it is consumed when the replies are composed.
                let Some(&(number, sender)) = self.names.get(&client) else { return Ok(()) };
                for bytes in bytes.chunks(usize::from(u16::MAX)) {
                    let header = Header {
                        kind: Kind::Request,
                        more: false,
                        length: bytes.len() as u16,
                        id: Id(sender),
                    };
                    let frame = [&header.emit()[..], bytes].concat();
                    self.replica.send(parcel_head(number, frame.len(), false), &frame, None)?;
                }
            }
            Event::Connected { client, .. } => {
                let name = match self.links.sender(client) {
                    Some((link, sender)) => self.number_by_link.get(&link).map(|number| (*number, sender)),
                    None => {
                        self.next_session = self.next_session.wrapping_add(1);
                        Some((SESSIONS, self.next_session))
                    }
                };
                let Some(name) = name else { return Ok(()) };
                self.clients.insert(name, client);
                self.names.insert(client, name);
                self.links.accept(client);
            }
            Event::Finished { client } => self.send_control(client, Control::Finish(0))?,
            Event::Closed { client, reason } => {
                if self.closing.insert(client, reason).is_none() {
                    self.send_control(client, Control::Close(reason))?;
                }
            }
            Event::CanCompose { client } => self.compose_waiting(client)?,
            Event::LinkOpened { link, peer, role } => {
                eprintln!("leader: {role} at {peer} opened a link");
                self.number_by_link.insert(link, self.next_link);
                self.link_by_number.insert(self.next_link, link);
                self.next_link = self.next_link.wrapping_add(1);
            }
            Event::LinkLost { link, peer, why } => {
                eprintln!("leader: lost the link of {peer}: {why}");
                if let Some(number) = self.number_by_link.remove(&link) {
                    self.link_by_number.remove(&number);
                    self.waiting.remove(&number);
                    let lost: Vec<ClientId> = self
                        .clients
                        .iter()
                        .filter(|(name, _)| name.0 == number)
                        .map(|(_, client)| *client)
                        .collect();
                    lost.into_iter().for_each(|client| self.forget(client));
                }
            }
            Event::Forbidden { address, why, .. } => eprintln!("leader: refused {address}: {why}"),
            Event::Drain { .. } => {}
        }
        Ok(())
    }

    /// Sends a client's control message to the replica, after its requests. The replica echoes it after their replies.
    fn send_control(&mut self, client: ClientId, control: Control) -> io::Result<()> {
        let Some(&(number, sender)) = self.names.get(&client) else { return Ok(()) };
        let mut frame = Vec::new();
        control.emit(Id(sender), &mut frame);
        self.replica.send(parcel_head(number, frame.len(), true), &frame, None)?;
        Ok(())
    }

    fn send_waiting(&mut self) -> io::Result<()> {
        for parcel in self.replica.push()? {
            if let Some(link) = parcel.link {
                self.links.forwarded(link, &parcel.bytes[PARCEL_HEAD_BYTES..]);
            }
        }
        Ok(())
    }

    // Replies.

    fn receive_replies(&mut self) -> io::Result<()> {
        match self.replica.stream.read(&mut self.buffer) {
            Ok(0) => {
                return Err(io::Error::new(ErrorKind::UnexpectedEof, "the replica closed its connection"));
            }
            Ok(received) => self.replica.received.extend_from_slice(&self.buffer[..received]),
            Err(error) if would_block(&error) => return Ok(()),
            Err(error) => return Err(error),
        }
        let received = std::mem::take(&mut self.replica.received);
        let mut rest = received.as_slice();
        while let Some((parcel_head, after)) = rest.split_first_chunk::<PARCEL_HEAD_BYTES>() {
            let [l0, l1, l2, l3, n0, n1, n2, n3] = *parcel_head;
            let (link, length) = (u32::from_be_bytes([l0, l1, l2, l3]), u32::from_be_bytes([n0, n1, n2, n3]));
            let Some((frames, after)) = after.split_at_checked((length & !CONTROL) as usize) else { break };
            rest = after;
            if length & CONTROL != 0 || link == SESSIONS {
                self.disassemble(link, frames)?;
            } else {
                self.compose_replies(link, frames)?;
            }
        }
        self.replica.received = rest.to_vec();
        Ok(())
    }

    /// Puts a link's replies unchanged into its next batch.
    fn compose_replies(&mut self, number: u32, run: &[u8]) -> io::Result<()> {
        let Some(&link) = self.link_by_number.get(&number) else { return Ok(()) };
        let waiting = self.waiting.entry(number).or_default();
        if waiting.is_empty() {
            self.links.compose_run(link, run, waiting);
        } else {
            waiting.extend_from_slice(run);
            self.compose_waiting_frames(number)?;
        }
        Ok(())
    }

    fn compose_waiting_frames(&mut self, number: u32) -> io::Result<()> {
        let (Some(&link), Some(waiting)) = (self.link_by_number.get(&number), self.waiting.get_mut(&number))
        else {
            return Ok(());
        };
        let run = std::mem::take(waiting);
        self.links.compose_run(link, &run, waiting);
        if waiting.len() <= WAITING_BYTES_MAX {
            return Ok(());
        }
        // The client with most waiting bytes reads too slowly: it is reset.
        let mut bytes = HashMap::new();
        for (header, _) in frames(waiting) {
            *bytes.entry(header.id.0).or_insert(0) += usize::from(header.length);
        }
        let Some((sender, _)) = bytes.into_iter().max_by_key(|(_, bytes)| *bytes) else { return Ok(()) };
        let mut kept = Vec::new();
        for (header, payload) in frames(waiting).filter(|(header, _)| header.id.0 != sender) {
            kept.extend_from_slice(&header.emit());
            kept.extend_from_slice(payload);
        }
        *waiting = kept;
        if let Some(&client) = self.clients.get(&(number, sender))
            && self.closing.insert(client, CloseReason::Reset).is_none()
        {
            self.send_control(client, Control::Close(CloseReason::Reset))?;
        }
        Ok(())
    }

    fn compose_waiting(&mut self, client: ClientId) -> io::Result<()> {
        let Some(&(number, _)) = self.names.get(&client) else { return Ok(()) };
        if number != SESSIONS {
            self.compose_waiting_frames(number)?;
        } else if let Some(waiting) = self.session_waiting.get_mut(&client) {
            let composed = self.links.compose(client, waiting);
            waiting.drain(..composed);
            self.links.consumed(client, composed).expect("consumed bytes should have been received");
        }
        let finishing: Vec<ClientId> = self.finishing.iter().copied().collect();
        finishing.into_iter().for_each(|client| self.end_if_answered(client));
        Ok(())
    }

    fn disassemble(&mut self, number: u32, mut frames: &[u8]) -> io::Result<()> {
        let mut disassembler = Disassembler::new();
        while let Some(piece) = disassembler.next(&mut frames).map_err(io::Error::other)? {
            let (Piece::Data { id, .. } | Piece::Control { id, .. }) = piece;
            let Some(&client) = self.clients.get(&(number, id.0)) else { continue };
            match piece {
                Piece::Data { bytes, .. } => {
                    self.session_waiting.entry(client).or_default().extend_from_slice(bytes);
                    self.compose_waiting(client)?;
                }
                Piece::Control { control: Control::Finish(_), .. } => {
                    self.finishing.insert(client);
                    self.end_if_answered(client);
                }
                // The *close*: the replica has answered everything, so the name is free.
                Piece::Control { .. } => {
                    let reason = self.closing.get(&client).copied().unwrap_or(CloseReason::Normal);
                    self.links.close(client, reason);
                    self.forget(client);
                }
            }
        }
        Ok(())
    }

    /// Closes a client that has finished, if all its replies are composed.
    fn end_if_answered(&mut self, client: ClientId) {
        let Some(&(number, sender)) = self.names.get(&client) else { return };
        let waits =
            self.waiting.get(&number).is_some_and(|run| frames(run).any(|(header, _)| header.id.0 == sender))
                || self.session_waiting.get(&client).is_some_and(|bytes| !bytes.is_empty());
        if !waits && !self.closing.contains_key(&client) {
            self.links.finish(client);
            self.links.close(client, CloseReason::Normal);
            self.forget(client);
        }
    }

    fn forget(&mut self, client: ClientId) {
        if let Some(name) = self.names.remove(&client) {
            self.clients.remove(&name);
        }
        self.closing.remove(&client);
        self.finishing.remove(&client);
        self.session_waiting.remove(&client);
    }

    fn watch_replica(&mut self) -> io::Result<()> {
        let has_unsent = !self.replica.unsent.is_empty();
        if std::mem::replace(&mut self.replica.watches_room, has_unsent) != has_unsent {
            let mut interest = EventFlags::IN;
            interest.set(EventFlags::OUT, has_unsent);
            epoll::modify(&self.epoll, &self.replica.stream, data(MARK_REPLICA), interest)?;
        }
        Ok(())
    }
}

/// The frames of a run.
fn frames(mut run: &[u8]) -> impl Iterator<Item = (Header, &[u8])> {
    std::iter::from_fn(move || {
        let header = Header::parse(run.first_chunk::<HEADER_BYTES>()?).ok()?;
        let (payload, rest) = run[HEADER_BYTES..].split_at_checked(usize::from(header.length))?;
        run = rest;
        Some((header, payload))
    })
}

struct Arguments {
    link: SocketAddr,
    replica: SocketAddr,
    settings: Settings,
}

impl Arguments {
    fn parse() -> Result<Arguments, String> {
        let (mut link, mut replica, mut settings) = (None, None, Settings::default());
        let mut arguments = std::env::args().skip(1);
        while let Some(name) = arguments.next() {
            let value = arguments.next().ok_or_else(|| format!("{name} needs a value"))?;
            let address = || value.parse::<SocketAddr>().map_err(|error| format!("{name} {value}: {error}"));
            let key = || read_key_file(&value).map_err(|error| error.to_string());
            match name.as_str() {
                "--link" => link = Some(address()?),
                "--replica" => replica = Some(address()?),
                "--key" => settings.keys.accept(Role::Helper, key()?),
                "--client-key" => settings.keys.accept(Role::Client, key()?),
                _ => return Err(format!("unknown argument {name}")),
            }
        }
        Ok(Arguments {
            link: link.ok_or("--link ADDRESS:PORT is missing")?,
            replica: replica.ok_or("--replica ADDRESS:PORT is missing")?,
            settings,
        })
    }
}

fn would_block(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

fn data(mark: u32) -> EventData {
    EventData::new_u64(u64::from(mark) << 32)
}
