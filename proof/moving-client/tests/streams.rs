//! Property test: the echoed stream equals the sent one, for random sizes of sends, buffers and windows, with moves.

mod support;

use std::io;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use spillway_batch::Limits;
use spillway_moving_client::{Carrier, Connection, Event, Route, Settings};
use support::{Server, await_event, turn};

#[derive(Clone, Debug)]
enum Step {
    Send(usize),
    Receive(usize),
    Move,
}

fn random_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (1usize..3000).prop_map(Step::Send),
        1 => (1usize..90_000).prop_map(Step::Send),
        5 => (1usize..40).prop_map(Step::Receive),
        5 => (40usize..100_000).prop_map(Step::Receive),
        2 => Just(Step::Move),
    ]
}

fn byte_at(offset: usize) -> u8 {
    (offset % 251) as u8
}

struct Stream<'a> {
    connection: Connection,
    server: &'a Server,
    sent: usize,
    received: usize,
}

impl Stream<'_> {
    fn send(&mut self, length: usize) {
        let bytes: Vec<u8> = (self.sent..self.sent + length).map(byte_at).collect();
        match self.connection.send(&bytes) {
            Ok(sent) => self.sent += sent,
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
        }
    }

    fn receive(&mut self, length: usize) {
        let mut buffer = vec![0xee; length];
        match self.connection.receive(&mut buffer) {
            Ok(received) => {
                assert!(received > 0, "the stream should not end before its client ends it");
                for (index, got) in buffer[..received].iter().enumerate() {
                    assert_eq!(*got, byte_at(self.received + index), "at offset {}", self.received + index);
                }
                self.received += received;
                assert!(self.received <= self.sent);
            }
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
        }
    }

    fn receive_all_sent(&mut self, length: usize) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while self.received < self.sent {
            turn(&mut self.connection, deadline);
            while self.connection.poll_event().is_some() {}
            self.receive(length);
        }
    }

    fn change_carrier(&mut self) {
        self.receive_all_sent(5000);
        let target = self.server.target();
        let route = match self.connection.carrier() {
            Some(Carrier::Direct(_)) => Route::Link(&target),
            _ => Route::Direct,
        };
        self.connection.begin_move(Instant::now(), route).unwrap();
        while !matches!(await_event(&mut self.connection), Event::Moved(_)) {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn echoed_stream_equals_the_sent_stream(
        client_window in prop_oneof![1u32..100, 1000u32..300_000],
        server_window in prop_oneof![1u32..100, 1000u32..300_000],
        steps in prop::collection::vec(random_step(), 1..60),
    ) {
        let limits = Limits { window_bytes: server_window, ..Limits::default() };
        let server = Server::start("127.0.0.1", limits);
        let settings = Settings { window_bytes: client_window, ..Settings::default() };
        let connection =
            Connection::connect_through_link(Instant::now(), &server.target(), Some(server.plain_port), settings)
                .unwrap();
        let mut stream = Stream { connection, server: &server, sent: 0, received: 0 };
        assert!(matches!(await_event(&mut stream.connection), Event::Moved(_)));
        for step in steps {
            match step {
                Step::Send(length) => stream.send(length),
                Step::Receive(length) => stream.receive(length),
                Step::Move => stream.change_carrier(),
            }
        }
        stream.receive_all_sent(1000);
    }
}
