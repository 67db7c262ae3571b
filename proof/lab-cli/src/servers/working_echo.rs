//! An echo server whose requests take a fixed time, one after the other, as if a processor of its own executed them. The
//! time passes without use of the CPU, so that several servers can share the cores of one machine, and a server is
//! overloaded at a known rate.
//!
//! A request is a received segment with data. When a connection moves, its requests that were not begun go along.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use spillway_stack_server::{Arrival, Attachment, Movable, OwnLoad};
use spillway_transport::{Application, Conn, Event, Time, Transport};

/// Bytes that a client may send ahead. The attachment of a connection has at most three times as many bytes, for requests of
/// one byte.
const WINDOW_BYTES: usize = 16 * 1024;
/// Name of the attachment's format: each request with its length in two bytes before it.
const PROTOCOL: &str = "spillway-lab-work";
/// Millionths in one.
const MILLION: u128 = 1_000_000;

/// The server.
#[derive(Debug)]
pub(crate) struct WorkingEcho {
    /// Time that a request takes.
    work: Duration,
    /// Time for which the execution of requests stops when a connection leaves.
    export_pause: Duration,
    clients: BTreeMap<Conn, Client>,
    /// Requests in the order of their arrival; at most `WINDOW_BYTES` of each client. The first is being executed.
    requests: VecDeque<Request>,
    /// When the execution of the first request ends.
    done_at: Time,
    measured: Measured,
}

#[derive(Debug, Default)]
struct Client {
    /// Granted bytes that have not arrived yet.
    granted: usize,
    /// Bytes of its requests.
    waiting: usize,
    /// The client has ended its direction: the connection ends after the replies.
    is_ending: bool,
}

#[derive(Debug)]
struct Request {
    conn: Conn,
    bytes: Vec<u8>,
    arrived: Time,
}

/// Figures since the last look at the load.
#[derive(Clone, Copy, Debug, Default)]
struct Measured {
    since: Time,
    busy: Duration,
    waited: Duration,
    begun: u32,
}

impl WorkingEcho {
    pub(crate) fn new(work: Duration, export_pause: Duration) -> WorkingEcho {
        WorkingEcho {
            work,
            export_pause,
            clients: BTreeMap::new(),
            requests: VecDeque::new(),
            done_at: Time::ZERO,
            measured: Measured::default(),
        }
    }

    fn add(&mut self, request: Request) {
        let is_idle = self.requests.is_empty();
        let arrived = request.arrived;
        self.requests.push_back(request);
        if is_idle {
            self.begin(arrived);
        }
    }

    /// Begins the first request, if there is one.
    fn begin(&mut self, now: Time) {
        if let Some(first) = self.requests.front() {
            let begins = now.max(first.arrived);
            self.measured.waited += begins.since(first.arrived);
            self.measured.begun += 1;
            self.done_at = begins + self.work;
        }
    }

    /// Answers the requests that are done. A late timer does not make the following requests late.
    fn answer_done<T: Transport>(&mut self, now: Time, out: &mut T) {
        while self.done_at <= now
            && let Some(request) = self.requests.pop_front()
        {
            self.measured.busy += self.work;
            self.begin(self.done_at);
            if let Some(client) = self.clients.get_mut(&request.conn) {
                client.waiting -= request.bytes.len();
                let sent = out.send(request.conn, &request.bytes);
                debug_assert_eq!(sent, request.bytes.len(), "grants never exceed the room");
                self.grant(request.conn, out);
            }
        }
    }

    /// Grants what the window and the send buffer allow, or ends the connection.
    fn grant<T: Transport>(&mut self, conn: Conn, out: &mut T) {
        let Some(client) = self.clients.get_mut(&conn) else { return };
        if client.is_ending {
            if client.waiting == 0 {
                out.finish(conn);
            }
            return;
        }
        let used = client.granted + client.waiting;
        let more = WINDOW_BYTES.min(out.room(conn)).saturating_sub(used);
        if more > 0 {
            client.granted += more;
            out.grant(conn, u32::try_from(more).unwrap_or(u32::MAX));
        }
        if used + more < WINDOW_BYTES {
            out.want_room(conn);
        }
    }

    /// Removes a client's requests. Returns those that were not begun.
    fn remove_requests(&mut self, now: Time, conn: Conn) -> Vec<Vec<u8>> {
        let was_executed = self.requests.front().is_some_and(|first| first.conn == conn);
        if was_executed {
            self.requests.pop_front();
        }
        let (removed, kept) = std::mem::take(&mut self.requests).into_iter().partition(|r| r.conn == conn);
        self.requests = kept;
        if was_executed {
            self.begin(now);
        }
        let removed: VecDeque<Request> = removed;
        removed.into_iter().map(|request| request.bytes).collect()
    }
}

impl Application for WorkingEcho {
    fn handle<T: Transport>(&mut self, now: Time, conn: Conn, event: Event<'_>, out: &mut T) {
        match event {
            Event::Opened { .. } => {
                self.clients.insert(conn, Client::default());
                self.grant(conn, out);
            }
            Event::Data { bytes, .. } => {
                let Some(client) = self.clients.get_mut(&conn) else { return };
                client.granted = client.granted.saturating_sub(bytes.len());
                client.waiting += bytes.len();
                self.add(Request { conn, bytes: bytes.to_vec(), arrived: now });
            }
            Event::Room => self.grant(conn, out),
            Event::Finished => {
                if let Some(client) = self.clients.get_mut(&conn) {
                    client.is_ending = true;
                }
                self.grant(conn, out);
            }
            Event::Acknowledged { .. } => {}
            Event::Lost(_) => {
                self.clients.remove(&conn);
                self.remove_requests(now, conn);
            }
        }
    }

    fn handle_timeout<T: Transport>(&mut self, now: Time, out: &mut T) {
        self.answer_done(now, out);
    }

    fn end_of_turn<T: Transport>(&mut self, _now: Time, _out: &mut T) {}

    fn poll_timeout(&self) -> Option<Time> {
        (!self.requests.is_empty()).then_some(self.done_at)
    }
}

impl Movable for WorkingEcho {
    /// When no request of the connection is being executed, and the rest of the window is granted: the next server
    /// assumes this.
    fn is_at_safe_point(&self, conn: Conn) -> bool {
        let is_executed = self.requests.front().is_some_and(|first| first.conn == conn);
        let client = self.clients.get(&conn);
        !is_executed
            && client
                .is_some_and(|client| client.granted + client.waiting == WINDOW_BYTES && !client.is_ending)
    }

    fn leave(&mut self, now: Time, conn: Conn) -> Option<Attachment> {
        self.clients.remove(&conn);
        let requests = self.remove_requests(now, conn);
        if !self.requests.is_empty() {
            self.done_at = self.done_at + self.export_pause;
        }
        let bytes = encode(&requests);
        let attachment = || Attachment::new(PROTOCOL, bytes).expect("the window bounds the attachment");
        (!requests.is_empty()).then(attachment)
    }

    fn knows_protocol(&self, protocol: &str) -> bool {
        protocol == PROTOCOL
    }

    fn own_load(&mut self, now: Time) -> OwnLoad {
        let Measured { since, busy, waited, begun } =
            std::mem::replace(&mut self.measured, Measured { since: now, ..Measured::default() });
        let share = busy.as_nanos() * MILLION / now.since(since).as_nanos().max(1);
        OwnLoad {
            busy: u32::try_from(share.min(MILLION)).unwrap_or(u32::MAX),
            queueing: waited / begun.max(1),
        }
    }

    fn on_migrated<T: Transport>(&mut self, now: Time, conn: Conn, arrival: &Arrival<'_>, out: &mut T) {
        let bytes = arrival.attachment.map_or(&[][..], |attachment| attachment.bytes());
        let requests = decode(bytes);
        let Some(requests) = requests.filter(|all| all.iter().map(Vec::len).sum::<usize>() <= WINDOW_BYTES)
        else {
            return out.abort(conn);
        };
        let waiting = requests.iter().map(Vec::len).sum();
        self.clients.insert(conn, Client { granted: WINDOW_BYTES - waiting, waiting, is_ending: false });
        for bytes in requests {
            self.add(Request { conn, bytes, arrived: now });
        }
    }
}

fn encode(requests: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for request in requests {
        let length = u16::try_from(request.len()).expect("a request is not longer than the window");
        bytes.extend_from_slice(&length.to_be_bytes());
        bytes.extend_from_slice(request);
    }
    bytes
}

/// `None` if the bytes have another format.
fn decode(mut bytes: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut requests = Vec::new();
    while let Some((length, rest)) = bytes.split_first_chunk() {
        let (request, rest) = rest.split_at_checked(usize::from(u16::from_be_bytes(*length)))?;
        requests.push(request.to_vec());
        bytes = rest;
    }
    bytes.is_empty().then_some(requests)
}

#[cfg(test)]
mod tests {
    use super::super::test_transport::TestTransport;
    use super::*;

    const WORK: Duration = Duration::from_micros(100);
    const PAUSE: Duration = Duration::from_micros(30);

    fn conn(slot: u32) -> Conn {
        Conn { slot, generation: 0 }
    }

    fn at(us: u64) -> Time {
        Time(us * 1_000)
    }

    fn server(clients: u32) -> (WorkingEcho, TestTransport) {
        let (mut echo, mut out) =
            (WorkingEcho::new(WORK, PAUSE), TestTransport { room: 1 << 20, ..Default::default() });
        for slot in 0..clients {
            let peer = "10.0.0.7:1000".parse().unwrap();
            echo.handle(at(0), conn(slot), Event::Opened { peer, listener: Some(0) }, &mut out);
        }
        (echo, out)
    }

    fn request(echo: &mut WorkingEcho, us: u64, slot: u32, bytes: &[u8], out: &mut TestTransport) {
        echo.handle(at(us), conn(slot), Event::Data { end: 0, bytes }, out);
    }

    #[test]
    fn requests_are_executed_one_after_the_other_and_late_timers_do_not_add_up() {
        let (mut echo, mut out) = server(2);
        request(&mut echo, 10, 0, b"a", &mut out);
        request(&mut echo, 20, 1, b"b", &mut out);
        assert_eq!(echo.poll_timeout(), Some(at(110)));
        echo.handle_timeout(at(109), &mut out);
        assert_eq!(out.sent, b"");
        echo.handle_timeout(at(150), &mut out);
        assert_eq!((&out.sent[..], echo.poll_timeout()), (&b"a"[..], Some(at(210))));
        echo.handle_timeout(at(210), &mut out);
        assert_eq!((&out.sent[..], echo.poll_timeout()), (&b"ab"[..], None));
        let OwnLoad { busy, queueing } = echo.own_load(at(400));
        assert_eq!((busy, queueing), (500_000, Duration::from_micros(45)), "200 of 400 us; 0 and 90 us");
        assert_eq!(echo.own_load(at(500)), OwnLoad::default());
    }

    #[test]
    fn requests_that_were_not_begun_move_with_their_connection() {
        let (mut echo, mut out) = server(2);
        request(&mut echo, 0, 0, b"first", &mut out);
        request(&mut echo, 0, 1, b"second", &mut out);
        request(&mut echo, 0, 1, b"third", &mut out);
        assert!(!echo.is_at_safe_point(conn(0)), "its request is being executed");
        assert!(echo.is_at_safe_point(conn(1)));
        let attachment = echo.leave(at(50), conn(1)).unwrap();
        assert!(echo.knows_protocol(attachment.protocol()));
        echo.handle_timeout(at(129), &mut out);
        assert_eq!(out.sent, b"", "the export has stopped the server for 30 us");
        echo.handle_timeout(at(130), &mut out);
        assert_eq!((&out.sent[..], echo.poll_timeout()), (&b"first"[..], None));
        assert_eq!(echo.leave(at(100), conn(0)), None);

        let (mut next, mut out) = server(0);
        let peer = "10.0.0.7:1000".parse().unwrap();
        let arrival = Arrival { peer, listener: Some(0), attachment: Some(&attachment), is_return: false };
        next.on_migrated(at(60), conn(7), &arrival, &mut out);
        assert!(!next.is_at_safe_point(conn(7)), "its first request is being executed");
        next.handle_timeout(at(260), &mut out);
        assert_eq!((&out.sent[..], next.is_at_safe_point(conn(7))), (&b"secondthird"[..], true));
    }

    #[test]
    fn requests_of_a_lost_client_are_dropped_and_those_of_others_go_on() {
        let (mut echo, mut out) = server(2);
        request(&mut echo, 0, 0, b"lost", &mut out);
        request(&mut echo, 0, 1, b"kept", &mut out);
        let lost = Event::Lost(spillway_transport::LostReason::Reset);
        echo.handle(at(30), conn(0), lost, &mut out);
        assert_eq!(echo.poll_timeout(), Some(at(130)));
        echo.handle_timeout(at(130), &mut out);
        assert_eq!(out.sent, b"kept");
    }

    #[test]
    fn a_foreign_attachment_ends_the_connection() {
        for bytes in [&b"\x00"[..], b"\x00\x05abc", &[b'x'; 2 * WINDOW_BYTES]] {
            let (mut echo, mut out) = server(0);
            let attachment = Attachment::new(PROTOCOL, bytes.to_vec()).unwrap();
            let peer = "10.0.0.7:1000".parse().unwrap();
            let arrival = Arrival { peer, listener: None, attachment: Some(&attachment), is_return: false };
            echo.on_migrated(at(0), conn(1), &arrival, &mut out);
            assert_eq!((out.aborted, echo.poll_timeout()), (vec![conn(1)], None));
        }
    }

    #[test]
    fn a_full_window_of_the_smallest_requests_fits_into_an_attachment() {
        let requests = vec![vec![1]; WINDOW_BYTES];
        let bytes = encode(&requests);
        assert_eq!(decode(&bytes), Some(requests));
        assert!(Attachment::new(PROTOCOL, bytes).is_ok());
    }
}
