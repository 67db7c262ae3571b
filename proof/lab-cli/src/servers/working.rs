//! Makes each request of an application take a fixed time, one after the other, as if a processor of its own executed them.
//! The time passes without use of the CPU, so that several servers can share the cores of one machine, and a server is
//! overloaded at a known rate.
//!
//! A request is a received segment with data: the application receives it when its time has passed. When a connection
//! moves, its requests that were not begun go along.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use spillway_stack_server::{Arrival, Attachment, Movable, OwnLoad};
use spillway_transport::{Application, Conn, Event, Time, Transport};

/// Longest attachment, in bytes. A connection whose waiting requests need more does not move.
const ATTACHMENT_BYTES_MAX: usize = 64 * 1024;
/// Bytes before each request in an attachment.
const REQUEST_HEAD_BYTES: usize = 12;
/// Name of the attachment's format: each request with the stream offset of its end in eight bytes, and with its length in
/// four bytes, before it.
const PROTOCOL: &str = "spillway-lab-work";
/// Millionths in one.
const MILLION: u128 = 1_000_000;

/// The server. What its application grants bounds the waiting requests, because granted bytes reach the application, and
/// are granted again, only when they have been executed.
#[derive(Debug)]
pub(crate) struct Working<A> {
    application: A,
    /// Time that a request takes.
    work: Duration,
    /// Time for which the execution of requests stops when a connection leaves.
    export_pause: Duration,
    /// Connections with waiting requests.
    waiting: BTreeMap<Conn, Waiting>,
    /// Requests in the order of their arrival. The first is being executed.
    requests: VecDeque<Request>,
    /// When the execution of the first request ends.
    done_at: Time,
    measured: Measured,
}

/// The requests of a connection.
#[derive(Debug, Default)]
struct Waiting {
    requests: usize,
    bytes: usize,
    /// The client has ended its direction: the application learns it after the requests.
    is_finished: bool,
}

#[derive(Debug)]
struct Request {
    conn: Conn,
    /// Stream offset after the bytes.
    end: u64,
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

impl<A: Movable> Working<A> {
    /// The application must use no attachments of its own.
    pub(crate) fn new(application: A, work: Duration, export_pause: Duration) -> Working<A> {
        Working {
            application,
            work,
            export_pause,
            waiting: BTreeMap::new(),
            requests: VecDeque::new(),
            done_at: Time::ZERO,
            measured: Measured::default(),
        }
    }

    fn add(&mut self, request: Request) {
        let waiting = self.waiting.entry(request.conn).or_default();
        waiting.requests += 1;
        waiting.bytes += request.bytes.len();
        let (is_idle, arrived) = (self.requests.is_empty(), request.arrived);
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

    /// Passes the requests that are done to the application. A late timer does not make the following requests late.
    fn pass_done<T: Transport>(&mut self, now: Time, out: &mut T) {
        while self.done_at <= now
            && let Some(Request { conn, end, bytes, .. }) = self.requests.pop_front()
        {
            self.measured.busy += self.work;
            self.begin(self.done_at);
            let is_last_before_the_end = self.waiting.get_mut(&conn).is_some_and(|waiting| {
                waiting.requests -= 1;
                waiting.bytes -= bytes.len();
                waiting.requests == 0 && waiting.is_finished
            });
            if self.waiting.get(&conn).is_some_and(|waiting| waiting.requests == 0) {
                self.waiting.remove(&conn);
            }
            self.application.handle(now, conn, Event::Data { end, bytes: &bytes }, out);
            if is_last_before_the_end {
                self.application.handle(now, conn, Event::Finished, out);
            }
        }
    }

    /// Removes a connection's requests. Returns those that were not begun.
    fn remove_requests(&mut self, now: Time, conn: Conn) -> VecDeque<Request> {
        if self.waiting.remove(&conn).is_none() {
            return VecDeque::new();
        }
        let was_executed = self.is_executed(conn);
        if was_executed {
            self.requests.pop_front();
        }
        let (removed, kept) = std::mem::take(&mut self.requests).into_iter().partition(|r| r.conn == conn);
        self.requests = kept;
        if was_executed {
            self.begin(now);
        }
        removed
    }

    fn is_executed(&self, conn: Conn) -> bool {
        self.requests.front().is_some_and(|first| first.conn == conn)
    }
}

impl<A: Movable> Application for Working<A> {
    fn handle<T: Transport>(&mut self, now: Time, conn: Conn, event: Event<'_>, out: &mut T) {
        match event {
            Event::Data { end, bytes } => {
                self.add(Request { conn, end, bytes: bytes.to_vec(), arrived: now });
            }
            Event::Finished if self.waiting.contains_key(&conn) => {
                self.waiting.entry(conn).or_default().is_finished = true;
            }
            Event::Lost(_) => {
                self.remove_requests(now, conn);
                self.application.handle(now, conn, event, out);
            }
            Event::Opened { .. } | Event::Finished | Event::Room | Event::Acknowledged { .. } => {
                self.application.handle(now, conn, event, out);
            }
        }
    }

    fn handle_timeout<T: Transport>(&mut self, now: Time, out: &mut T) {
        self.pass_done(now, out);
        if self.application.poll_timeout().is_some_and(|due| due <= now) {
            self.application.handle_timeout(now, out);
        }
    }

    fn end_of_turn<T: Transport>(&mut self, now: Time, out: &mut T) {
        self.application.end_of_turn(now, out);
    }

    fn poll_timeout(&self) -> Option<Time> {
        let done_at = (!self.requests.is_empty()).then_some(self.done_at);
        done_at.into_iter().chain(self.application.poll_timeout()).min()
    }
}

impl<A: Movable> Movable for Working<A> {
    /// When no request of the connection is being executed, and the application has no part of one.
    fn is_at_safe_point(&self, conn: Conn) -> bool {
        let may_leave = |waiting: &Waiting| {
            let attached = waiting.bytes + waiting.requests * REQUEST_HEAD_BYTES;
            !waiting.is_finished && attached <= ATTACHMENT_BYTES_MAX
        };
        !self.is_executed(conn)
            && self.waiting.get(&conn).is_none_or(may_leave)
            && self.application.is_at_safe_point(conn)
    }

    fn leave(&mut self, now: Time, conn: Conn) -> Option<Attachment> {
        let nothing = self.application.leave(now, conn);
        debug_assert!(nothing.is_none(), "the application must use no attachments");
        let requests = self.remove_requests(now, conn);
        if !self.requests.is_empty() {
            self.done_at = self.done_at + self.export_pause;
        }
        let attachment =
            || Attachment::new(PROTOCOL, encode(&requests)).expect("the safe point bounds the attachment");
        (!requests.is_empty()).then(attachment)
    }

    fn knows_protocol(&self, protocol: &str) -> bool {
        protocol == PROTOCOL
    }

    fn own_load(&mut self, now: Time) -> OwnLoad {
        let Measured { since, busy, waited, begun } =
            std::mem::replace(&mut self.measured, Measured { since: now, ..Measured::default() });
        let share = busy.as_nanos() * MILLION / now.since(since).as_nanos().max(1);
        let load = OwnLoad {
            busy: u32::try_from(share.min(MILLION)).unwrap_or(u32::MAX),
            queueing: waited / begun.max(1),
        };
        load.max(self.application.own_load(now))
    }

    fn on_migrated<T: Transport>(&mut self, now: Time, conn: Conn, arrival: &Arrival<'_>, out: &mut T) {
        let attached = arrival.attachment.map_or(&[][..], |attachment| attachment.bytes());
        let Some(requests) = decode(attached) else { return out.abort(conn) };
        self.application.on_migrated(now, conn, &Arrival { attachment: None, ..*arrival }, out);
        for (end, bytes) in requests {
            self.add(Request { conn, end, bytes, arrived: now });
        }
    }
}

fn encode(requests: &VecDeque<Request>) -> Vec<u8> {
    let mut encoded = Vec::new();
    for Request { end, bytes, .. } in requests {
        let length = u32::try_from(bytes.len()).expect("a request is not longer than the window");
        encoded.extend_from_slice(&end.to_be_bytes());
        encoded.extend_from_slice(&length.to_be_bytes());
        encoded.extend_from_slice(bytes);
    }
    encoded
}

/// The end and the bytes of each request; `None` if the bytes have another format.
fn decode(mut encoded: &[u8]) -> Option<Vec<(u64, Vec<u8>)>> {
    let mut requests = Vec::new();
    while let Some((end, rest)) = encoded.split_first_chunk() {
        let (length, rest) = rest.split_first_chunk()?;
        let length = usize::try_from(u32::from_be_bytes(*length)).ok()?;
        let (bytes, rest) = rest.split_at_checked(length)?;
        if bytes.is_empty() {
            return None;
        }
        requests.push((u64::from_be_bytes(*end), bytes.to_vec()));
        encoded = rest;
    }
    encoded.is_empty().then_some(requests)
}

#[cfg(test)]
mod tests {
    use super::super::echo::Echo;
    use super::super::memcached::Store;
    use super::super::requests::RequestServer;
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

    fn server_of<A: Movable>(application: A, clients: u32) -> (Working<A>, TestTransport) {
        let mut server = Working::new(application, WORK, PAUSE);
        let mut out = TestTransport { room: 1 << 20, ..Default::default() };
        for slot in 0..clients {
            let peer = "10.0.0.7:1000".parse().unwrap();
            server.handle(at(0), conn(slot), Event::Opened { peer, listener: Some(0) }, &mut out);
        }
        (server, out)
    }

    fn server(clients: u32) -> (Working<Echo>, TestTransport) {
        server_of(Echo::default(), clients)
    }

    fn request<A: Movable>(
        server: &mut Working<A>,
        us: u64,
        slot: u32,
        bytes: &[u8],
        out: &mut TestTransport,
    ) {
        server.handle(at(us), conn(slot), Event::Data { end: 0, bytes }, out);
    }

    fn arrival(attachment: Option<&Attachment>) -> Arrival<'_> {
        let peer = "10.0.0.7:1000".parse().unwrap();
        Arrival { peer, listener: Some(0), attachment, request: None, is_return: false }
    }

    #[test]
    fn requests_are_executed_one_after_the_other_and_late_timers_do_not_add_up() {
        let (mut server, mut out) = server(2);
        request(&mut server, 10, 0, b"a", &mut out);
        request(&mut server, 20, 1, b"b", &mut out);
        assert_eq!(server.poll_timeout(), Some(at(110)));
        server.handle_timeout(at(109), &mut out);
        assert_eq!(out.sent, b"");
        server.handle_timeout(at(150), &mut out);
        assert_eq!((&out.sent[..], server.poll_timeout()), (&b"a"[..], Some(at(210))));
        server.handle_timeout(at(210), &mut out);
        assert_eq!((&out.sent[..], server.poll_timeout()), (&b"ab"[..], None));
        let OwnLoad { busy, queueing } = server.own_load(at(400));
        assert_eq!((busy, queueing), (500_000, Duration::from_micros(45)), "200 of 400 us; 0 and 90 us");
        assert_eq!(server.own_load(at(500)), OwnLoad::default());
    }

    #[test]
    fn requests_that_were_not_begun_move_with_their_connection() {
        let (mut server, mut out) = server(2);
        request(&mut server, 0, 0, b"first", &mut out);
        request(&mut server, 0, 1, b"second", &mut out);
        request(&mut server, 0, 1, b"third", &mut out);
        assert!(!server.is_at_safe_point(conn(0)), "its request is being executed");
        assert!(server.is_at_safe_point(conn(1)));
        let attachment = server.leave(at(50), conn(1)).unwrap();
        assert!(server.knows_protocol(attachment.protocol()));
        server.handle_timeout(at(129), &mut out);
        assert_eq!(out.sent, b"", "the export has stopped the server for 30 us");
        server.handle_timeout(at(130), &mut out);
        assert_eq!((&out.sent[..], server.poll_timeout()), (&b"first"[..], None));
        assert_eq!(server.leave(at(100), conn(0)), None);

        let (mut next, mut out) = server_of(Echo::default(), 0);
        next.on_migrated(at(60), conn(7), &arrival(Some(&attachment)), &mut out);
        assert!(!next.is_at_safe_point(conn(7)), "its first request is being executed");
        next.handle_timeout(at(260), &mut out);
        assert_eq!((&out.sent[..], next.is_at_safe_point(conn(7))), (&b"secondthird"[..], true));
    }

    #[test]
    fn requests_of_a_lost_client_are_dropped_and_those_of_others_go_on() {
        let (mut server, mut out) = server(2);
        request(&mut server, 0, 0, b"lost", &mut out);
        request(&mut server, 0, 1, b"kept", &mut out);
        let lost = Event::Lost(spillway_transport::LostReason::Reset);
        server.handle(at(30), conn(0), lost, &mut out);
        assert_eq!(server.poll_timeout(), Some(at(130)));
        server.handle_timeout(at(130), &mut out);
        assert_eq!(out.sent, b"kept");
    }

    #[test]
    fn end_of_a_direction_follows_its_requests_and_the_connection_does_not_move() {
        let (mut server, mut out) = server_of(RequestServer::new(Store::new(1000)), 1);
        request(&mut server, 0, 0, b"version\r\n", &mut out);
        request(&mut server, 0, 0, b"vers", &mut out);
        request(&mut server, 0, 0, b"ion\r\n", &mut out);
        server.handle(at(0), conn(0), Event::Finished, &mut out);
        server.handle_timeout(at(100), &mut out);
        assert_eq!((out.finished.len(), server.is_at_safe_point(conn(0))), (0, false));
        server.handle_timeout(at(300), &mut out);
        assert_eq!(out.sent, b"VERSION spillway-lab\r\nVERSION spillway-lab\r\n");
        assert_eq!((out.finished, server.poll_timeout()), (vec![conn(0)], None));
    }

    #[test]
    fn connection_with_half_a_request_stays() {
        let (mut server, mut out) = server_of(RequestServer::new(Store::new(1000)), 1);
        request(&mut server, 0, 0, b"vers", &mut out);
        server.handle_timeout(at(100), &mut out);
        assert!(!server.is_at_safe_point(conn(0)));
        request(&mut server, 100, 0, b"ion\r\n", &mut out);
        server.handle_timeout(at(200), &mut out);
        assert!(server.is_at_safe_point(conn(0)));
    }

    #[test]
    fn connection_whose_requests_exceed_an_attachment_stays() {
        let (mut server, mut out) = server(2);
        request(&mut server, 0, 0, b"a", &mut out);
        let requests: usize = ATTACHMENT_BYTES_MAX / (REQUEST_HEAD_BYTES + 1);
        (0..requests).for_each(|_| request(&mut server, 0, 1, b"b", &mut out));
        assert!(server.is_at_safe_point(conn(1)));
        request(&mut server, 0, 1, b"b", &mut out);
        assert!(!server.is_at_safe_point(conn(1)));
        server.handle_timeout(at(200), &mut out);
        server.handle_timeout(at(299), &mut out);
        assert!(!server.is_at_safe_point(conn(1)), "a request is being executed");
        let attached = server.leave(at(299), conn(1)).unwrap();
        assert_eq!(decode(attached.bytes()).unwrap().len(), requests - 1);
    }

    #[test]
    fn a_foreign_attachment_ends_the_connection() {
        let empty_request = [0; REQUEST_HEAD_BYTES];
        for bytes in [&b"\x00"[..], b"\x00\x00\x00\x00\x00\x00\x00\x09\x00\x00\x00\x09abc", &empty_request] {
            let (mut server, mut out) = server(0);
            let attachment = Attachment::new(PROTOCOL, bytes.to_vec()).unwrap();
            server.on_migrated(at(0), conn(1), &arrival(Some(&attachment)), &mut out);
            assert_eq!((out.aborted, server.poll_timeout()), (vec![conn(1)], None));
        }
    }
}
