//! A server that executes the requests of a protocol one after the other, and answers each at once. Its connections move
//! between two requests, and nothing but the connection moves: a request that is half read, and replies that wait for room,
//! delay the move. A request that belongs to another server is handed off with its connection, and with what the client has
//! sent after it.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use spillway_stack_server::{Arrival, Attachment, Movable, Purpose, RequestCommand, RequestEvent, ServerId};
use spillway_transport::{Application, Conn, Event, Time, Transport};

use super::held::{ClientHeld, Held};
use super::protocol::{Outcome, Protocol};
use super::replies::{Replies, empty};

/// Maximum number of bytes that a client may send ahead. With the head of a request, which may be incomplete, they are an
/// attachment of permitted length.
const WINDOW_BYTES: usize = 55 * 1024;
/// How often the server tries to hand a request off: for a second at least, and for four if the other server is silent. A host
/// with too little CPU may not answer for some hundred milliseconds.
const ATTEMPTS_MAX: u8 = 100;
/// Time after which a hand-off that has failed is tried again.
const RETRY_AFTER: Duration = Duration::from_millis(10);
/// The protocol of attachments: the bytes that the client may still send (4), whether it has ended its direction (1), the
/// attempts to hand the first request off (1), and the requests that it has sent.
const PROTOCOL: &str = "spillway-lab-requests";

/// A server: its protocol, and what it knows of each client.
#[derive(Debug)]
pub(crate) struct RequestServer<P: Protocol> {
    protocol: P,
    clients: BTreeMap<Conn, Client<P::Progress>>,
    /// Unfinished requests and waiting replies of all clients.
    held: Held,
    /// What the server of the stack is to do with connections' requests.
    commands: VecDeque<(Conn, RequestCommand)>,
    /// Connections whose hand-off is tried again, in the order of the times.
    retries: VecDeque<(Time, Conn)>,
}

#[derive(Debug, Default)]
struct Client<S> {
    /// Granted bytes that have not arrived yet.
    granted: usize,
    /// Received bytes of requests that are not executed yet.
    input: Vec<u8>,
    /// What is answered of the first request in `input`.
    progress: S,
    /// Replies that the stack has no room for.
    replies: Replies,
    /// Bytes in `input` and `replies` at the end of the last event.
    held: ClientHeld,
    /// The client has ended its direction, or must be closed: the connection ends after the replies.
    is_ending: bool,
    /// The first request in `input` has come with the connection.
    has_come: bool,
    /// The connection is on its way to the server that has the object of the first request in `input`.
    is_leaving: bool,
    /// Attempts to hand that request off; after the last one it is refused.
    attempts: u8,
}

/// Why the execution of requests has stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    /// There is no complete request.
    Done,
    /// The buffer of replies is full.
    Full,
    /// The next request belongs to another server, which is named here.
    Elsewhere(ServerId),
}

impl<P: Protocol> RequestServer<P> {
    pub(crate) fn new(protocol: P) -> RequestServer<P> {
        RequestServer {
            protocol,
            clients: BTreeMap::new(),
            held: Held::default(),
            commands: VecDeque::new(),
            retries: VecDeque::new(),
        }
    }

    /// Executes requests, sends replies, and grants what the client may send.
    fn work<T: Transport>(&mut self, conn: Conn, out: &mut T) {
        let Some(client) = self.clients.get_mut(&conn) else { return };
        let waits = loop {
            let has_come = client.has_come;
            let stop = client.execute(&mut self.protocol);
            if has_come && !client.has_come {
                self.commands.push_back((conn, RequestCommand::Served));
            }
            let are_sent = client.replies.send(conn, out);
            match stop {
                Stop::Full if are_sent => {}
                Stop::Elsewhere(server) if are_sent => {
                    client.is_leaving = true;
                    client.attempts += 1;
                    self.commands.push_back((conn, RequestCommand::HandOff(server)));
                    break true;
                }
                _ => break !are_sent || client.is_leaving,
            }
        };
        if !self.held.set(&mut client.held, client.input.len() + client.replies.held()) {
            self.forget(conn);
            return out.abort(conn);
        }
        if client.is_ending {
            if !waits {
                out.finish(conn);
            }
            return;
        }
        let more = if waits { 0 } else { WINDOW_BYTES - client.granted.min(WINDOW_BYTES) };
        client.granted += more;
        out.grant(conn, u32::try_from(more).unwrap_or(u32::MAX));
    }

    /// Removes a client, and subtracts its held bytes from the total.
    fn forget(&mut self, conn: Conn) {
        if let Some(client) = self.clients.remove(&conn) {
            self.held.forget(&client.held);
        }
    }
}

impl<S: Default> Client<S> {
    /// Executes requests, until something stops it.
    fn execute(&mut self, protocol: &mut impl Protocol<Progress = S>) -> Stop {
        if self.is_leaving {
            return Stop::Done;
        }
        let mut executed = 0;
        let stop = loop {
            let input = &self.input[executed..];
            let outcome = if self.attempts >= ATTEMPTS_MAX {
                protocol.refuse(input, &mut self.replies)
            } else if self.has_come {
                protocol.execute_handed(input, &mut self.replies, &mut self.progress)
            } else {
                protocol.execute(input, &mut self.replies, &mut self.progress)
            };
            match outcome {
                Outcome::Answered(bytes) => {
                    executed += bytes;
                    (self.has_come, self.attempts) = (false, 0);
                }
                Outcome::Incomplete => break Stop::Done,
                Outcome::Elsewhere(server) => break Stop::Elsewhere(server),
                Outcome::Full => break Stop::Full,
                Outcome::Close => {
                    executed = self.input.len();
                    (self.has_come, self.is_ending) = (false, true);
                    break Stop::Done;
                }
            }
        };
        if executed == self.input.len() {
            empty(&mut self.input);
        } else {
            self.input.drain(..executed);
        }
        stop
    }

    /// What moves with the connection.
    fn attach(&self) -> Option<Attachment> {
        let granted = u32::try_from(self.granted).ok()?;
        let attachment = Attachment::new(
            PROTOCOL,
            [&granted.to_be_bytes()[..], &[u8::from(self.is_ending), self.attempts], &self.input].concat(),
        );
        debug_assert!(attachment.is_ok(), "the window bounds {} bytes", self.input.len());
        attachment.ok()
    }

    /// The client whose connection has come with this attachment.
    fn attached(attachment: &Attachment) -> Option<Client<S>> {
        let (granted, rest) = attachment.bytes().split_first_chunk()?;
        let ([is_ending, attempts], input) = rest.split_first_chunk()?;
        let granted = usize::try_from(u32::from_be_bytes(*granted)).ok()?;
        let (is_ending, attempts) = (*is_ending != 0, *attempts);
        Some(Client { granted, is_ending, attempts, input: input.to_vec(), ..Client::default() })
    }
}

impl<P: Protocol> Application for RequestServer<P> {
    fn handle<T: Transport>(&mut self, _now: Time, conn: Conn, event: Event<'_>, out: &mut T) {
        match event {
            Event::Opened { .. } => _ = self.clients.insert(conn, Client::default()),
            Event::Data { bytes, .. } => {
                let Some(client) = self.clients.get_mut(&conn) else { return };
                client.granted = client.granted.saturating_sub(bytes.len());
                if !client.is_ending {
                    client.input.extend_from_slice(bytes);
                }
            }
            Event::Finished => {
                if let Some(client) = self.clients.get_mut(&conn) {
                    client.is_ending = true;
                }
            }
            Event::Room | Event::Acknowledged { .. } => {}
            Event::Lost(_) => self.forget(conn),
        }
        self.work(conn, out);
    }

    fn handle_timeout<T: Transport>(&mut self, now: Time, out: &mut T) {
        while let Some((_, conn)) = self.retries.front().copied().filter(|(at, _)| *at <= now) {
            self.retries.pop_front();
            if let Some(client) = self.clients.get_mut(&conn) {
                client.is_leaving = false;
            }
            self.work(conn, out);
        }
    }

    fn end_of_turn<T: Transport>(&mut self, _now: Time, _out: &mut T) {}

    fn poll_timeout(&self) -> Option<Time> {
        self.retries.front().map(|(at, _)| *at)
    }
}

impl<P: Protocol> Movable for RequestServer<P> {
    /// True between two requests, when the stack has taken all replies.
    fn is_at_safe_point(&self, conn: Conn) -> bool {
        self.clients.get(&conn).is_some_and(|client| {
            client.granted == WINDOW_BYTES
                && client.input.is_empty()
                && client.replies.is_empty()
                && !client.is_ending
        })
    }

    fn leave(&mut self, _now: Time, conn: Conn) -> Option<Attachment> {
        let attachment = self.clients.get(&conn).filter(|client| client.is_leaving).and_then(Client::attach);
        self.forget(conn);
        attachment
    }

    fn knows_protocol(&self, protocol: &str) -> bool {
        protocol == PROTOCOL
    }

    fn serves_requests(&self) -> bool {
        true
    }

    fn poll_request_command(&mut self, _now: Time) -> Option<(Conn, RequestCommand)> {
        self.commands.pop_front()
    }

    fn on_request<T: Transport>(&mut self, now: Time, event: RequestEvent, _out: &mut T) {
        match event {
            RequestEvent::Stays { conn, .. } => self.retries.push_back((now + RETRY_AFTER, conn)),
            // The client has its response, or has learned of the end from its connection.
            RequestEvent::Ended { .. } => {}
        }
    }

    fn on_migrated<T: Transport>(&mut self, _now: Time, conn: Conn, arrival: &Arrival<'_>, out: &mut T) {
        let attached = match arrival.attachment {
            Some(attachment) => Client::attached(attachment),
            None => Some(Client { granted: WINDOW_BYTES, ..Client::default() }),
        };
        // Only a server that is not this program attaches anything else.
        let Some(mut client) = attached else { return out.abort(conn) };
        client.has_come = arrival.request.is_some_and(|request| request.purpose != Purpose::Served);
        // Whether it could be handed off follows. At another server it may have to be handed off again.
        client.attempts = if arrival.is_return { client.attempts } else { 0 };
        client.is_leaving = arrival.is_return && arrival.attachment.is_some();
        self.clients.insert(conn, client);
        self.work(conn, out);
    }
}

#[cfg(test)]
mod tests {
    use spillway_load::objects::Rest;
    use spillway_stack_server::{HandedRequest, OrderResult};

    use super::super::held::HELD_BYTES_MAX;
    use super::super::http::Http;
    use super::super::memcached::Store;
    use super::super::partition::Partition;
    use super::super::test_transport::TestTransport;
    use super::*;

    type Kv = RequestServer<Store>;

    fn server() -> Kv {
        Kv::new(Store::new(64 << 20))
    }

    const CONN: Conn = Conn { slot: 0, generation: 0 };
    const CONN_OF_ANOTHER: Conn = Conn { slot: 1000, generation: 0 };

    fn data(kv: &mut Kv, conn: Conn, bytes: &[u8], out: &mut TestTransport) {
        kv.handle(Time::ZERO, conn, Event::Data { end: 0, bytes }, out);
    }

    fn open<P: Protocol>(server: &mut RequestServer<P>, conn: Conn, out: &mut TestTransport) {
        let peer = "10.0.0.7:1000".parse().unwrap();
        server.handle(Time::ZERO, conn, Event::Opened { peer, listener: Some(0) }, out);
    }

    #[test]
    fn replies_to_a_client_that_does_not_read_are_bounded_and_then_complete() {
        let (mut kv, mut out) = (server(), TestTransport { room: 1000, ..TestTransport::default() });
        open(&mut kv, CONN, &mut out);
        let value = "v".repeat(1 << 20);
        data(&mut kv, CONN, format!("set a 0 0 {}\r\n{value}\r\n", value.len()).as_bytes(), &mut out);
        out.room = 1000;
        let get = format!("get{}\r\nversion\r\n", " a".repeat(100));
        data(&mut kv, CONN, get.as_bytes(), &mut out);
        let (mut total, granted) = (0, out.granted);
        while !kv.is_at_safe_point(CONN) {
            assert!(kv.clients[&CONN].replies.waiting().len() < (1 << 20) + 70_000);
            assert_eq!(out.granted, granted, "the client may not send while replies wait");
            (out.room, total) = (300_000, total + out.sent.len());
            out.sent.clear();
            kv.handle(Time::ZERO, CONN, Event::Room, &mut out);
        }
        assert!(out.sent.ends_with(b"\r\nEND\r\nVERSION spillway-lab\r\n"));
        let item = format!("VALUE a 0 {}\r\n", value.len()).len() + value.len() + 2;
        let expected = "STORED\r\n".len() + 100 * item + "END\r\nVERSION spillway-lab\r\n".len();
        assert_eq!(total + out.sent.len(), expected);
    }

    /// A server of HTTP that has a part of the targets, and targets of both parts.
    fn divided() -> (RequestServer<Http>, String, String) {
        let [one, two] = [1, 2].map(ServerId);
        let partition = Partition::new("one", one, [one, two]);
        let targets = || (0..).map(|number| format!("/{number}"));
        let here = targets().find(|target| partition.elsewhere(target).is_none()).unwrap();
        let elsewhere = targets().find(|target| partition.elsewhere(target).is_some()).unwrap();
        (RequestServer::new(Http { partition: Some(partition) }), here, elsewhere)
    }

    fn get(target: &str) -> String {
        format!("GET {target} HTTP/1.1\r\nHost: x\r\n\r\n")
    }

    #[test]
    fn a_request_of_another_server_leaves_with_those_behind_it_and_its_server_serves_them() {
        let (mut server, here, elsewhere) = divided();
        let mut out = TestTransport { room: 10_000, ..TestTransport::default() };
        let peer = "10.0.0.7:1000".parse().unwrap();
        server.handle(Time::ZERO, CONN, Event::Opened { peer, listener: Some(0) }, &mut out);
        let requests = [get(&here), get(&elsewhere), get(&here)].concat();
        server.handle(Time::ZERO, CONN, Event::Data { end: 0, bytes: requests.as_bytes() }, &mut out);
        assert!(out.sent.ends_with(here.as_bytes()));
        let hand_off = Some((CONN, RequestCommand::HandOff(ServerId(2))));
        assert_eq!(server.poll_request_command(Time::ZERO), hand_off);
        let (answered, granted) = (out.sent.len(), out.granted);
        // What arrives before the connection leaves belongs to the next server, too.
        let more = get(&elsewhere);
        server.handle(Time::ZERO, CONN, Event::Data { end: 0, bytes: more.as_bytes() }, &mut out);
        assert_eq!(
            (out.sent.len(), out.granted, server.poll_request_command(Time::ZERO)),
            (answered, granted, None)
        );
        server.handle(Time::ZERO, CONN, Event::Finished, &mut out);
        assert_eq!(out.finished, [], "requests are left");
        let attachment = server.leave(Time::ZERO, CONN).unwrap();
        let left = [get(&elsewhere), get(&here), get(&elsewhere)].concat();
        assert_eq!(&attachment.bytes()[6..], left.as_bytes());
        assert_eq!(server.held.total(), 0);

        let request = HandedRequest { origin: ServerId(1), number: 7, hops_left: 3, purpose: Purpose::Serve };
        let [one, two] = [1, 2].map(ServerId);
        let mut server = RequestServer::new(Http { partition: Some(Partition::new("two", two, [one, two])) });
        let attachment = Some(&attachment);
        let arrival =
            Arrival { peer, listener: Some(0), attachment, request: Some(request), is_return: false };
        let mut out = TestTransport { room: 10_000, ..TestTransport::default() };
        server.on_migrated(Time::ZERO, CONN_OF_ANOTHER, &arrival, &mut out);
        let commands: Vec<_> = std::iter::from_fn(|| server.poll_request_command(Time::ZERO)).collect();
        let expected = [RequestCommand::Served, RequestCommand::HandOff(ServerId(1))];
        assert_eq!(commands, expected.map(|command| (CONN_OF_ANOTHER, command)));
        assert!(out.sent.ends_with(elsewhere.as_bytes()));
        assert_eq!(server.held.total(), get(&here).len() + get(&elsewhere).len());
        // The last server ends the connection.
        assert_eq!(server.leave(Time::ZERO, CONN_OF_ANOTHER).unwrap().bytes()[4], 1);
    }

    #[test]
    fn a_connection_leaves_only_when_the_stack_has_the_whole_object_and_the_next_request_waits() {
        let (mut server, _, _) = divided();
        let targets = || (0..).map(|number| format!("/{number}?bytes=300000"));
        let is_here = |target: &String| {
            let partition = server.protocol.partition.as_ref().unwrap();
            partition.elsewhere(target).is_none()
        };
        let here = targets().find(is_here).unwrap();
        let elsewhere = targets().find(|target| !is_here(target)).unwrap();
        let mut out = TestTransport { room: 1_000, ..TestTransport::default() };
        open(&mut server, CONN, &mut out);
        let requests = [get(&here), get(&here), get(&elsewhere)].concat();
        let granted = out.granted;
        server.handle(Time::ZERO, CONN, Event::Data { end: 0, bytes: requests.as_bytes() }, &mut out);
        let mut turns = 0;
        let hand_off = loop {
            if let Some(command) = server.poll_request_command(Time::ZERO) {
                break command;
            }
            assert!(!server.is_at_safe_point(CONN) && server.held.total() < 1_000);
            assert_eq!(out.granted, granted, "the client may not send while a response waits");
            (out.room, turns) = (50_000, turns + 1);
            server.handle(Time::ZERO, CONN, Event::Room, &mut out);
        };
        assert_eq!((hand_off, turns), ((CONN, RequestCommand::HandOff(ServerId(2))), 12));
        let mut sent = &out.sent[..];
        for _ in 0..2 {
            let head = sent.windows(4).position(|bytes| bytes == b"\r\n\r\n").unwrap() + 4;
            let (body, rest) = sent[head..].split_at(300_000);
            assert!(Rest::of(here.as_bytes(), 300_000).take(body));
            sent = rest;
        }
        assert_eq!((sent, server.clients[&CONN].input.len()), (&b""[..], get(&elsewhere).len()));
    }

    #[test]
    fn a_request_that_cannot_be_handed_off_is_refused_and_the_next_ones_are_served() {
        let (mut server, here, elsewhere) = divided();
        let mut out = TestTransport { room: 10_000, ..TestTransport::default() };
        let peer = "10.0.0.7:1000".parse().unwrap();
        server.handle(Time::ZERO, CONN, Event::Opened { peer, listener: Some(0) }, &mut out);
        let requests = [get(&elsewhere), get(&here)].concat();
        server.handle(Time::ZERO, CONN, Event::Data { end: 0, bytes: requests.as_bytes() }, &mut out);
        let (why, hand_off) = (OrderResult::Busy, (CONN, RequestCommand::HandOff(ServerId(2))));
        let mut now = Time::ZERO;
        for attempt in 0..ATTEMPTS_MAX {
            assert_eq!(server.poll_request_command(Time::ZERO), Some(hand_off));
            assert_eq!(out.sent, b"", "attempt {attempt}");
            // Some attempts end before the connection has left, others after that.
            if attempt % 2 == 0 {
                let attachment = server.leave(Time::ZERO, CONN);
                let attachment = attachment.as_ref();
                let arrival = Arrival { peer, listener: Some(0), attachment, request: None, is_return: true };
                server.on_migrated(Time::ZERO, CONN, &arrival, &mut out);
                assert_eq!(server.poll_request_command(Time::ZERO), None, "whether it stays follows");
            }
            server.on_request(now, RequestEvent::Stays { conn: CONN, why }, &mut out);
            assert_eq!(server.poll_timeout(), Some(now + RETRY_AFTER));
            server.handle_timeout(now, &mut out);
            assert_eq!(server.poll_request_command(now), None, "it is not time yet");
            now = now + RETRY_AFTER;
            server.handle_timeout(now, &mut out);
        }
        assert_eq!(server.poll_timeout(), None);
        assert_eq!(server.poll_request_command(Time::ZERO), None);
        let sent = String::from_utf8(out.sent).unwrap();
        assert!(sent.starts_with("HTTP/1.1 503 ") && sent.ends_with(&here), "{sent}");
    }

    #[test]
    fn the_longest_input_of_a_connection_that_leaves_can_be_attached() {
        let (mut server, _, elsewhere) = divided();
        let mut out = TestTransport { room: 10_000, ..TestTransport::default() };
        let peer = "10.0.0.7:1000".parse().unwrap();
        server.handle(Time::ZERO, CONN, Event::Opened { peer, listener: Some(0) }, &mut out);
        // A head that is complete with the first byte of the next grant, and then all that the client may send.
        let rest = get(&elsewhere).len() + "a: \r\n".len();
        let head =
            get(&elsewhere).replace("\r\n\r\n", &format!("\r\na: {}\r\n\r\n", "b".repeat(8192 - rest)));
        let (first, last) = head.split_at(head.len() - 1);
        server.handle(Time::ZERO, CONN, Event::Data { end: 0, bytes: first.as_bytes() }, &mut out);
        assert_eq!(server.poll_request_command(Time::ZERO), None);
        let rest = [last.as_bytes(), &vec![b'x'; WINDOW_BYTES - 1]].concat();
        assert_eq!(server.clients[&CONN].granted, rest.len());
        server.handle(Time::ZERO, CONN, Event::Data { end: 0, bytes: &rest }, &mut out);
        assert!(server.poll_request_command(Time::ZERO).is_some());
        assert_eq!(server.leave(Time::ZERO, CONN).unwrap().bytes().len(), 6 + head.len() + WINDOW_BYTES - 1);
    }

    #[test]
    fn unfinished_requests_and_waiting_replies_of_all_clients_are_bounded() {
        let (mut kv, mut out) = (server(), TestTransport::default());
        let unfinished = [b"set k 0 0 1048576\r\n".to_vec(), vec![b'v'; 1 << 20]].concat();
        let clients = u32::try_from(HELD_BYTES_MAX / unfinished.len()).unwrap();
        let conn = |slot| Conn { slot, generation: 0 };
        for slot in 0..=clients {
            assert_eq!(out.aborted, []);
            open(&mut kv, conn(slot), &mut out);
            data(&mut kv, conn(slot), &unfinished, &mut out);
        }
        assert_eq!(out.aborted, [conn(clients)], "the client that exceeds the bound is reset");
        // Others go on: requests that are complete, and those that end now.
        out.room = 1000;
        open(&mut kv, CONN_OF_ANOTHER, &mut out);
        data(&mut kv, CONN_OF_ANOTHER, b"version\r\n", &mut out);
        data(&mut kv, conn(0), b"\r\n", &mut out);
        assert_eq!(out.sent, b"VERSION spillway-lab\r\nSTORED\r\n");
        // Each client that ends gives its bytes back.
        for slot in 0..=clients {
            kv.handle(Time::ZERO, conn(slot), Event::Lost(spillway_transport::LostReason::Reset), &mut out);
        }
        assert_eq!((kv.held.total(), out.aborted.len()), (0, 1));
        // Replies count, too.
        out.room = 0;
        let get = b"get k\r\n";
        for slot in 0..=clients {
            open(&mut kv, conn(slot), &mut out);
            data(&mut kv, conn(slot), get, &mut out);
        }
        assert!(out.aborted.len() > 1 && kv.held.total() <= HELD_BYTES_MAX);
    }
}
