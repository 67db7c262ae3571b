//! The server: the shipped end of its links, and a small application behind them with its own buffers.

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
use crate::oracle::Shared;
use crate::pattern::{TOKEN_BYTES, Token, bytes_of, reply_word};
use crate::relay::canary::Canary;
use crate::rng::Rng;

/// Replies that the application prepares before it stops reading requests.
const OWED_BYTES_MAX: u64 = 64 * 1024;

pub struct Server {
    config: Arc<ServerConfig>,
    local: SocketAddr,
    rng: Rng,
    oracle: Shared,
    links: BTreeMap<Conn, Link>,
    /// Connections, of a thousand, that are refused; and as many that are closed early.
    early_ends_in_1000: u64,
    /// A fault that is not planted yet, or one that lasts.
    pub(crate) canary: Option<Canary>,
    /// An attacker alters links on their path.
    pub(crate) is_altered: bool,
    work_at: Option<Time>,
}

struct Link {
    end: ServerLink,
    unsent: Option<Chunk>,
    /// Bytes that were read, to be granted again when [`ServerLink::may_read`] allows it.
    ungranted: u32,
    connections: BTreeMap<u32, Connection>,
    /// Closed by the client; the application closes them later, at its own pace.
    closing: Vec<(Id, CloseReason)>,
    /// A piece held back by [`Canary::SwapPieces`].
    held: Option<(u32, Vec<u8>)>,
}

struct Connection {
    client: SocketAddr,
    head: Vec<u8>,
    token: Option<Token>,
    /// Received and not yet read by the application.
    waiting: u64,
    read: u64,
    owed: u64,
    replied: u64,
    client_finished: bool,
    finished: bool,
    /// Closes early, when it has read this many bytes.
    close_at: Option<u64>,
    /// Closes as soon as it has finished; otherwise the client closes first.
    closes_first: bool,
    /// For [`Canary::ForgetClose`].
    keeps_id: bool,
}

impl Connection {
    /// Length of the replies to `read` bytes of requests: nothing, an echo, or four times as much.
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
        early_ends_in_1000: u64,
        rng: Rng,
        oracle: Shared,
    ) -> Server {
        Server {
            config,
            local,
            rng,
            oracle,
            links: BTreeMap::new(),
            early_ends_in_1000,
            canary: None,
            is_altered: false,
            work_at: Some(Time::ZERO),
        }
    }

    /// Virtual connections that have not ended on both sides.
    pub fn connections(&self) -> usize {
        self.links.values().map(|link| link.end.connections()).sum()
    }

    /// Plain clients with kept replies, and the offset at which these begin.
    pub(crate) fn kept_from(&self) -> impl Iterator<Item = (SocketAddr, u64)> + '_ {
        let ends = self.links.values().map(|link| &link.end);
        ends.flat_map(|end| {
            end.ids().filter_map(|id| Some((end.info(id)?.client, end.unacknowledged(id)?.acknowledged)))
        })
    }

    fn data<T: Transport>(&mut self, now: Time, conn: Conn, bytes: &[u8], out: &mut T) {
        let Some(mut link) = self.links.remove(&conn) else { return };
        let mut scratch = Scratch::new();
        let mut input = link.end.unseal(now, bytes, &mut scratch);
        loop {
            match link.end.decompose(now, &mut input) {
                Ok(Some(event)) => self.event(&mut link, event),
                Ok(None) => break,
                Err(error) => {
                    // Faults lose connections, and only an alterer changes bytes: all other input must be valid.
                    // Helpers may also use keys that the server does not know.
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
        link.ungranted += bytes.len() as u32; // at most what was granted
        self.links.insert(conn, link);
    }

    fn event(&mut self, link: &mut Link, event: ServerEvent<'_>) {
        match event {
            ServerEvent::Established { .. } => {
                if self.config.encryption != Encryption::Off && !link.end.is_encrypted() {
                    self.oracle.borrow_mut().violation("a link is not encrypted".to_owned());
                }
            }
            ServerEvent::Drain { .. } => {}
            ServerEvent::Connect { id, client, .. } => self.connect(link, id, client),
            ServerEvent::Forbidden { client, why } => {
                self.oracle.borrow_mut().violation(format!("{client} was carried: {why}"));
            }
            ServerEvent::Session { id, client, .. } if is_attacker(client) => {
                link.end.refuse(id, RefuseReason::Gone);
            }
            ServerEvent::Session { .. }
            | ServerEvent::Carried { .. }
            | ServerEvent::CarriedControl { .. } => {
                self.oracle.borrow_mut().violation("there are no sessions in this world".to_owned());
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
                        oracle.violation(format!("stream {token:x} was closed for {reason:?}"));
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
        if self.rng.chance(self.early_ends_in_1000, 1000) {
            link.end.refuse(id, RefuseReason::Full);
            self.oracle.borrow_mut().server_refuses(client);
            return;
        }
        link.end.accept(id);
        let ends_early = self.rng.chance(self.early_ends_in_1000, 1000);
        let keeps_id = self.canary == Some(Canary::ForgetClose);
        let connection = Connection {
            client,
            head: Vec::new(),
            token: None,
            waiting: 0,
            read: 0,
            owed: 0,
            replied: 0,
            client_finished: false,
            finished: false,
            close_at: ends_early.then(|| self.rng.scale(1, 100_000)),
            closes_first: self.rng.chance(1, 2),
            keeps_id,
        };
        link.connections.insert(id.0, connection);
    }

    /// Delivers bytes, with the planted fault.
    fn receive(&mut self, link: &mut Link, id: Id, bytes: &[u8]) {
        let known = link.connections.get(&id.0).is_some_and(|connection| connection.token.is_some());
        match self.canary.filter(|_| known) {
            Some(Canary::DropPiece) => {
                self.canary = None;
                return;
            }
            Some(Canary::RepeatPiece) => {
                self.canary = None;
                self.take_in(link, id.0, bytes);
                // The fault is the repeated delivery, not the count of unread bytes.
                if let Some(connection) = link.connections.get_mut(&id.0) {
                    connection.waiting -= bytes.len() as u64;
                }
            }
            Some(Canary::SwapPieces) if link.held.is_none() => {
                link.held = Some((id.0, bytes.to_vec()));
                return;
            }
            _ => {}
        }
        self.take_in(link, id.0, bytes);
        if link.held.as_ref().is_some_and(|(held, _)| *held == id.0)
            && let Some((_, bytes)) = link.held.take()
        {
            self.canary = None;
            self.take_in(link, id.0, &bytes);
        }
    }

    fn take_in(&mut self, link: &mut Link, id: u32, bytes: &[u8]) {
        let Some(connection) = link.connections.get_mut(&id) else { return };
        let mut oracle = self.oracle.borrow_mut();
        connection.waiting += bytes.len() as u64;
        if is_attacker(connection.client) {
            return;
        }
        if connection.waiting > u64::from(self.config.limits.window_bytes) {
            oracle.violation(format!(
                "{} bytes wait for the application, more than its window",
                connection.waiting
            ));
        }
        let mut rest = bytes;
        if connection.token.is_none() {
            let missing = TOKEN_BYTES as usize - connection.head.len();
            let (head, tail) = bytes.split_at(missing.min(bytes.len()));
            connection.head.extend_from_slice(head);
            rest = tail;
            if let Ok(head) = <[u8; 8]>::try_from(connection.head.as_slice()) {
                let token = Token::from_le_bytes(head);
                if oracle.recognise(token, connection.client) {
                    connection.token = Some(token);
                    oracle.server_received(token, &head);
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

    /// Gives the applications of a link a turn: they read, reply, and end. Returns whether any is still busy.
    fn work(&mut self, link: &mut Link) -> bool {
        let mut busy = false;
        let mut closed = Vec::new();
        if self.rng.chance(1, 3) {
            link.closing.drain(..).for_each(|(id, reason)| link.end.close(id, reason));
        }
        busy |= !link.closing.is_empty();
        while link.end.poll_room().is_some() {}
        for (id, connection) in &mut link.connections {
            let id = Id(*id);
            if self.rng.chance(1, 4) {
                busy = true;
                continue;
            }
            let room = OWED_BYTES_MAX.saturating_sub(connection.owed - connection.replied);
            let part = connection.waiting.min(self.rng.scale(1, 64 * 1024)).min(room / 4);
            connection.waiting -= part;
            connection.read += part;
            if self.canary != Some(Canary::ForgetCredit) {
                let outcome = link.end.consumed(id, part as usize);
                debug_assert_eq!(outcome, Ok(()), "at most what waits");
            }
            connection.owed = connection.reply_bytes(connection.read);
            if is_attacker(connection.client) {
                let part = (connection.owed - connection.replied).min(64 * 1024) as usize; // fits
                connection.replied += link.end.compose(id, &vec![0; part]) as u64;
                busy |= connection.waiting > 0 || connection.replied < connection.owed;
                continue;
            }
            let Some(token) = connection.token else { continue };
            let mut oracle = self.oracle.borrow_mut();
            let part = (connection.owed - connection.replied).min(self.rng.scale(1, 64 * 1024));
            if part > 0 {
                let bytes = bytes_of(reply_word, token, connection.replied, part);
                let taken = link.end.compose(id, &bytes) as u64;
                connection.replied += taken;
                oracle.replied(token, taken);
            }
            if self.rng.chance(1, 16)
                && let Some(all) = link.end.unacknowledged(id)
            {
                let bytes_max = self.config.limits.kept_bytes_max;
                oracle.kept(token, all.acknowledged, &[all.bytes.0, all.bytes.1].concat(), bytes_max);
            }
            if connection.close_at.is_some_and(|at| connection.read >= at) {
                let reason = self.rng.pick(&[CloseReason::Normal, CloseReason::Reset]);
                oracle.replied_all(token);
                oracle.server_done(token);
                link.end.close(id, reason);
                closed.push(id.0);
                continue;
            }
            let all = connection.client_finished
                && connection.waiting == 0
                && connection.replied == connection.owed;
            if all && !connection.finished {
                connection.finished = true;
                oracle.replied_all(token);
                link.end.finish(id);
                if connection.closes_first && !connection.keeps_id {
                    oracle.server_done(token);
                    link.end.close(id, CloseReason::Normal);
                    closed.push(id.0);
                }
            }
            busy |= connection.waiting > 0 || connection.replied < connection.owed;
        }
        closed.iter().for_each(|id| drop(link.connections.remove(id)));
        busy
    }

    fn transmit<T: Transport>(&mut self, now: Time, conn: Conn, link: &mut Link, out: &mut T) {
        while let Some(mut chunk) = link.unsent.take().or_else(|| link.end.flush(now)) {
            match out.send_chunk(conn, chunk) {
                Ok(()) => continue,
                Err(returned) => chunk = returned,
            }
            let taken = out.send(conn, chunk.as_slice());
            chunk.advance(taken);
            if !chunk.is_empty() {
                link.unsent = Some(chunk);
                break;
            }
        }
        if let Some(spent) = out.take_recycled_chunk() {
            link.end.recycle(spent);
        }
        if link.end.may_read() {
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
                let fresh = LinkRandomness::filled(|bytes| self.rng.fill(bytes));
                let end = ServerLink::new(self.config.clone(), now, peer, self.local, fresh);
                let link = Link {
                    end,
                    unsent: None,
                    ungranted: 0,
                    connections: BTreeMap::new(),
                    closing: Vec::new(),
                    held: None,
                };
                self.links.insert(conn, link);
                out.grant(conn, 1 << 20);
            }
            Event::Data { bytes, .. } => self.data(now, conn, bytes, out),
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
            if link.end.handle_timeout(now).is_err() {
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
        let of_link = |link: &Link| match link.end.pending() {
            0 => link.end.poll_timeout(),
            _ => link.end.poll_read_timeout(),
        };
        self.links.values().filter_map(of_link).chain(self.work_at).min()
    }
}
