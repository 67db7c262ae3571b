//! The server: the shipped server end of links, and a small application with buffers of its own.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use spillway_batch::{
    CloseReason, Encryption, Id, LinkError, LinkRandomness, RefuseReason, Scratch, ServerConfig, ServerEvent,
    ServerLink,
};
use spillway_transport::{Application, Chunk, Conn, Event, Time, Transport};

use crate::attackers::is_attacker;
use crate::oracle::SharedOracle;
use crate::pattern::{TOKEN_BYTES, Token, bytes_of, reply_word};
use crate::relay::planted_fault::PlantedFault;
use crate::rng::Rng;

/// The application reads no requests while it has this many unwritten bytes of replies.
const UNWRITTEN_BYTES_MAX: u64 = 64 * 1024;

pub struct Server {
    config: Arc<ServerConfig>,
    local: SocketAddr,
    rng: Rng,
    oracle: SharedOracle,
    links: BTreeMap<Conn, Link>,
    /// Connections, of a thousand, that the application refuses. It closes as many others early.
    early_ends_per_1000: u64,
    /// The planted fault; `None` after the strike of a fault that strikes once.
    pub(crate) planted: Option<PlantedFault>,
    /// An attacker on the path alters the bytes of links.
    pub(crate) is_altered: bool,
    work_at: Option<Time>,
}

struct Link {
    protocol: ServerLink,
    unsent: Option<Chunk>,
    /// Bytes read and not yet granted again: [`ServerLink::may_read`] must allow the grant.
    ungranted: u32,
    connections: BTreeMap<u32, Connection>,
    /// Connections that the client has closed and the application closes later.
    closing: Vec<(Id, CloseReason)>,
    /// Bytes of an event that [`PlantedFault::SwapPieces`] holds back.
    held: Option<(u32, Vec<u8>)>,
}

struct Connection {
    client: SocketAddr,
    token_bytes: Vec<u8>,
    token: Option<Token>,
    unread: u64,
    read: u64,
    reply_end: u64,
    replied: u64,
    client_finished: bool,
    finished: bool,
    /// Closes early, after it has read this many bytes.
    close_at: Option<u64>,
    /// Closes right after the end of its replies; otherwise the client closes first.
    closes_first: bool,
    /// Planted fault [`PlantedFault::ForgetClose`]: the id stays in use.
    keeps_id: bool,
}

impl Connection {
    /// Length of the replies to `read` bytes of requests: 0, 1 or 4 times `read`, by the token.
    fn reply_bytes(&self, read: u64) -> u64 {
        if is_attacker(self.client) {
            return read * 4;
        }
        let factor = [0, 1, 1, 4][(self.token.unwrap_or(0) % 4) as usize];
        read * factor
    }
}

impl Server {
    pub fn new(
        config: Arc<ServerConfig>,
        local: SocketAddr,
        early_ends_per_1000: u64,
        rng: Rng,
        oracle: SharedOracle,
    ) -> Server {
        Server {
            config,
            local,
            rng,
            oracle,
            links: BTreeMap::new(),
            early_ends_per_1000,
            planted: None,
            is_altered: false,
            work_at: Some(Time::ZERO),
        }
    }

    /// Number of virtual connections that have not ended on both sides.
    pub fn connections(&self) -> usize {
        self.links.values().map(|link| link.protocol.connections()).sum()
    }

    /// By client: the offset at which the kept replies begin.
    pub(crate) fn kept_from(&self) -> impl Iterator<Item = (SocketAddr, u64)> + '_ {
        let protocols = self.links.values().map(|link| &link.protocol);
        protocols.flat_map(|protocol| {
            protocol
                .ids()
                .filter_map(|id| Some((protocol.info(id)?.client, protocol.unacknowledged(id)?.acknowledged)))
        })
    }

    fn handle_data<T: Transport>(&mut self, now: Time, conn: Conn, bytes: &[u8], out: &mut T) {
        let Some(mut link) = self.links.remove(&conn) else { return };
        let mut scratch = Scratch::new();
        let mut input = link.protocol.unseal(now, bytes, &mut scratch);
        loop {
            match link.protocol.decompose(now, &mut input) {
                Ok(Some(event)) => self.handle_event(&mut link, event),
                Ok(None) => break,
                Err(error) => {
                    // All input must be valid unless an attacker alters bytes: other faults only end
                    // connections. A helper may try a key that the server does not accept.
                    if !self.is_altered
                        && !matches!(error, LinkError::HandshakeTimeout | LinkError::UnknownKey { .. })
                    {
                        self.oracle.borrow_mut().violation(format!("the server's link failed: {error}"));
                    }
                    self.drop_link(link);
                    out.abort(conn);
                    return;
                }
            }
        }
        link.ungranted += bytes.len() as u32; // fits: at most the granted bytes
        self.links.insert(conn, link);
    }

    fn handle_event(&mut self, link: &mut Link, event: ServerEvent<'_>) {
        match event {
            ServerEvent::Established { .. } => {
                if self.config.encryption != Encryption::Off && !link.protocol.is_encrypted() {
                    self.oracle.borrow_mut().violation("a link is not encrypted".to_owned());
                }
            }
            ServerEvent::Drain { .. } => {}
            ServerEvent::Connect { id, client, .. } => self.connect(link, id, client),
            ServerEvent::Forbidden { client, why } => {
                self.oracle.borrow_mut().violation(format!(
                    "the link of a key opened a connection for {client}, which the rules forbid: {why}"
                ));
            }
            ServerEvent::Session { id, client, .. } if is_attacker(client) => {
                link.protocol.refuse(id, RefuseReason::Gone);
            }
            ServerEvent::Session { .. }
            | ServerEvent::Carried { .. }
            | ServerEvent::CarriedControl { .. } => {
                self.oracle
                    .borrow_mut()
                    .violation("a session was opened in a world without sessions".to_owned());
            }
            ServerEvent::Data { id, bytes } => self.receive(link, id, bytes),
            ServerEvent::Finished { id } => {
                if let Some(connection) = link.connections.get_mut(&id.0) {
                    connection.client_finished = true;
                    if let Some(token) = connection.token {
                        self.oracle.borrow_mut().server_saw_end(token);
                    }
                }
            }
            ServerEvent::Closed { id, reason } => {
                let Some(connection) = link.connections.remove(&id.0) else { return };
                if let Some(token) = connection.token {
                    let mut oracle = self.oracle.borrow_mut();
                    if reason == CloseReason::Normal {
                        oracle.server_saw_end(token);
                    } else if reason != CloseReason::Reset {
                        oracle.violation(format!("stream {token:x} was closed with the reason {reason:?}"));
                    }
                    oracle.server_done(token);
                }
                if !connection.keeps_id {
                    link.closing.push((id, reason));
                }
            }
        }
    }

    fn connect(&mut self, link: &mut Link, id: Id, client: SocketAddr) {
        if self.rng.chance(self.early_ends_per_1000, 1000) {
            link.protocol.refuse(id, RefuseReason::Full);
            self.oracle.borrow_mut().server_refuses(client);
            return;
        }
        link.protocol.accept(id);
        let ends_early = self.rng.chance(self.early_ends_per_1000, 1000);
        let keeps_id = self.planted == Some(PlantedFault::ForgetClose);
        let connection = Connection {
            client,
            token_bytes: Vec::new(),
            token: None,
            unread: 0,
            read: 0,
            reply_end: 0,
            replied: 0,
            client_finished: false,
            finished: false,
            close_at: ends_early.then(|| self.rng.log_uniform(1, 100_000)),
            closes_first: self.rng.chance(1, 2),
            keeps_id,
        };
        link.connections.insert(id.0, connection);
    }

    /// Delivers bytes to the application; a planted fault may drop, repeat or swap them.
    fn receive(&mut self, link: &mut Link, id: Id, bytes: &[u8]) {
        let has_token = link.connections.get(&id.0).is_some_and(|connection| connection.token.is_some());
        match self.planted.filter(|_| has_token) {
            Some(PlantedFault::DropPiece) => {
                self.planted = None;
                return;
            }
            Some(PlantedFault::RepeatPiece) => {
                self.planted = None;
                self.deliver(link, id.0, bytes);
                // Repeated bytes must not count as unread, because the client has no credit for them.
                if let Some(connection) = link.connections.get_mut(&id.0) {
                    connection.unread -= bytes.len() as u64;
                }
            }
            Some(PlantedFault::SwapPieces) if link.held.is_none() => {
                link.held = Some((id.0, bytes.to_vec()));
                return;
            }
            _ => {}
        }
        self.deliver(link, id.0, bytes);
        if link.held.as_ref().is_some_and(|(held, _)| *held == id.0)
            && let Some((_, bytes)) = link.held.take()
        {
            self.planted = None;
            self.deliver(link, id.0, &bytes);
        }
    }

    fn deliver(&mut self, link: &mut Link, id: u32, bytes: &[u8]) {
        let Some(connection) = link.connections.get_mut(&id) else { return };
        let mut oracle = self.oracle.borrow_mut();
        connection.unread += bytes.len() as u64;
        if is_attacker(connection.client) {
            return;
        }
        if connection.unread > u64::from(self.config.limits.window_bytes) {
            oracle.violation(format!("{} unread bytes exceed the application's window", connection.unread));
        }
        let mut rest = bytes;
        if connection.token.is_none() {
            let missing = TOKEN_BYTES as usize - connection.token_bytes.len();
            let (token_part, tail) = bytes.split_at(missing.min(bytes.len()));
            connection.token_bytes.extend_from_slice(token_part);
            rest = tail;
            if let Ok(token_bytes) = <[u8; 8]>::try_from(connection.token_bytes.as_slice()) {
                let token = Token::from_le_bytes(token_bytes);
                if oracle.recognise(token, connection.client) {
                    connection.token = Some(token);
                    oracle.server_received(token, &token_bytes);
                    if connection.close_at.is_some() || connection.keeps_id {
                        oracle.server_ends_early(token);
                    }
                }
            }
        }
        if let Some(token) = connection.token
            && !rest.is_empty()
        {
            oracle.server_received(token, rest);
        }
    }

    /// Runs a turn of a link's applications: they read, reply and close. Returns whether any is still busy.
    fn work(&mut self, link: &mut Link) -> bool {
        let mut busy = false;
        let mut closed = Vec::new();
        if self.rng.chance(1, 3) {
            link.closing.drain(..).for_each(|(id, reason)| link.protocol.close(id, reason));
        }
        busy |= !link.closing.is_empty();
        while link.protocol.poll_room().is_some() {}
        for (id, connection) in &mut link.connections {
            let id = Id(*id);
            if self.rng.chance(1, 4) {
                busy = true;
                continue;
            }
            let room_for_replies =
                UNWRITTEN_BYTES_MAX.saturating_sub(connection.reply_end - connection.replied);
            let part = connection.unread.min(self.rng.log_uniform(1, 64 * 1024)).min(room_for_replies / 4);
            connection.unread -= part;
            connection.read += part;
            if self.planted != Some(PlantedFault::ForgetCredit) {
                let outcome = link.protocol.consumed(id, part as usize);
                debug_assert_eq!(outcome, Ok(()), "the application should consume only unread bytes");
            }
            connection.reply_end = connection.reply_bytes(connection.read);
            if is_attacker(connection.client) {
                let part = (connection.reply_end - connection.replied).min(64 * 1024) as usize; // fits: at most 64 KiB
                connection.replied += link.protocol.compose(id, &vec![0; part]) as u64;
                busy |= connection.unread > 0 || connection.replied < connection.reply_end;
                continue;
            }
            let Some(token) = connection.token else { continue };
            let mut oracle = self.oracle.borrow_mut();
            let part = (connection.reply_end - connection.replied).min(self.rng.log_uniform(1, 64 * 1024));
            if part > 0 {
                let bytes = bytes_of(reply_word, token, connection.replied, part);
                let accepted = link.protocol.compose(id, &bytes) as u64;
                connection.replied += accepted;
                oracle.replied(token, accepted);
            }
            if self.rng.chance(1, 16)
                && let Some(kept) = link.protocol.unacknowledged(id)
            {
                let bytes_max = self.config.limits.kept_bytes_max;
                oracle.kept(token, kept.acknowledged, &[kept.bytes.0, kept.bytes.1].concat(), bytes_max);
            }
            if connection.close_at.is_some_and(|at| connection.read >= at) {
                let reason = self.rng.pick(&[CloseReason::Normal, CloseReason::Reset]);
                oracle.replied_all(token);
                oracle.server_done(token);
                link.protocol.close(id, reason);
                closed.push(id.0);
                continue;
            }
            let has_replied_all = connection.client_finished
                && connection.unread == 0
                && connection.replied == connection.reply_end;
            if has_replied_all && !connection.finished {
                connection.finished = true;
                oracle.replied_all(token);
                link.protocol.finish(id);
                if connection.closes_first && !connection.keeps_id {
                    oracle.server_done(token);
                    link.protocol.close(id, CloseReason::Normal);
                    closed.push(id.0);
                }
            }
            busy |= connection.unread > 0 || connection.replied < connection.reply_end;
        }
        closed.iter().for_each(|id| drop(link.connections.remove(id)));
        busy
    }

    fn transmit<T: Transport>(&mut self, now: Time, conn: Conn, link: &mut Link, out: &mut T) {
        while let Some(mut chunk) = link.unsent.take().or_else(|| link.protocol.flush(now)) {
            match out.send_chunk(conn, chunk) {
                Ok(()) => continue,
                Err(returned) => chunk = returned,
            }
            let accepted = out.send(conn, chunk.as_slice());
            chunk.advance(accepted);
            if !chunk.is_empty() {
                link.unsent = Some(chunk);
                break;
            }
        }
        if let Some(spent) = out.take_recycled_chunk() {
            link.protocol.recycle(spent);
        }
        if link.protocol.may_read() {
            out.grant(conn, std::mem::take(&mut link.ungranted));
        }
    }

    fn drop_link(&mut self, link: Link) {
        let mut oracle = self.oracle.borrow_mut();
        link.connections
            .values()
            .filter_map(|connection| connection.token)
            .for_each(|token| oracle.server_done(token));
    }

    pub fn die(&mut self) {
        while let Some((_, link)) = self.links.pop_first() {
            self.drop_link(link);
        }
    }
}

impl Application for Server {
    fn handle<T: Transport>(&mut self, now: Time, conn: Conn, event: Event<'_>, out: &mut T) {
        match event {
            Event::Opened { peer, .. } => {
                let randomness = LinkRandomness::generate(|bytes| self.rng.fill(bytes));
                let protocol = ServerLink::new(self.config.clone(), now, peer, self.local, randomness);
                let link = Link {
                    protocol,
                    unsent: None,
                    ungranted: 0,
                    connections: BTreeMap::new(),
                    closing: Vec::new(),
                    held: None,
                };
                self.links.insert(conn, link);
                out.grant(conn, 1 << 20);
            }
            Event::Data { bytes, .. } => self.handle_data(now, conn, bytes, out),
            Event::Finished => {
                if let Some(link) = self.links.remove(&conn) {
                    self.drop_link(link);
                }
                out.finish(conn);
            }
            Event::Lost(_) => {
                if let Some(link) = self.links.remove(&conn) {
                    self.drop_link(link);
                }
            }
            Event::Room | Event::Acknowledged { .. } => {}
        }
    }

    fn handle_timeout<T: Transport>(&mut self, now: Time, out: &mut T) {
        if self.work_at == Some(Time::ZERO) {
            out.set_listening(0, true);
        }
        self.work_at = None;
        let mut failed = Vec::new();
        for (conn, link) in &mut self.links {
            if link.protocol.handle_timeout(now).is_err() {
                failed.push(*conn);
            }
        }
        for conn in failed {
            out.abort(conn);
            if let Some(link) = self.links.remove(&conn) {
                self.drop_link(link);
            }
        }
    }

    fn end_of_turn<T: Transport>(&mut self, now: Time, out: &mut T) {
        let mut busy = false;
        for (conn, mut link) in std::mem::take(&mut self.links) {
            busy |= self.work(&mut link);
            self.transmit(now, conn, &mut link, out);
            self.links.insert(conn, link);
        }
        if busy && self.work_at.is_none() {
            self.work_at = Some(now + Duration::from_nanos(self.rng.range(10_000, 500_000)));
        }
    }

    fn poll_timeout(&self) -> Option<Time> {
        let timeout_of = |link: &Link| match link.protocol.pending() {
            0 => link.protocol.poll_timeout(),
            _ => link.protocol.poll_read_timeout(),
        };
        self.links.values().filter_map(timeout_of).chain(self.work_at).min()
    }
}
