//! A stream that is lost after it has connected, on a network that reports the loss in every call.

mod support;

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use spillway_batch::Limits;
use spillway_moving_client::{
    Connection, Event, Kernel, MoveError, Network, Ready, Route, Settings, Slot, Socket, Stream,
};
use support::Server;

/// The kernel's network, whose streams have lost their address when they have connected.
#[derive(Clone, Debug)]
struct Losing;

#[derive(Debug)]
struct LostStream(Socket);

impl Network for Losing {
    type Stream = LostStream;

    fn connect(&self, target: SocketAddr) -> io::Result<LostStream> {
        Kernel.connect(target).map(LostStream)
    }
}

impl Stream for LostStream {
    fn is_connected(&self) -> io::Result<bool> {
        self.0.is_connected()
    }

    fn local_address(&self) -> io::Result<SocketAddr> {
        Err(io::ErrorKind::NotConnected.into())
    }

    fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        self.0.send(bytes)
    }

    fn receive(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.receive(buffer)
    }

    fn receive_into(&self, buffer: &mut Vec<u8>) -> io::Result<usize> {
        self.0.receive_into(buffer)
    }

    fn peek(&self) -> io::Result<usize> {
        self.0.peek()
    }

    fn finish(&self) -> io::Result<()> {
        self.0.finish()
    }
}

#[test]
fn lost_stream_is_an_error_of_the_system_and_not_an_invalid_welcome() {
    let server = Server::start("127.0.0.1", Limits::default());
    let now = Instant::now();
    let mut connection = Connection::connect_on(Losing, now, server.plain_port, Settings::default()).unwrap();
    connection.cancel_move();
    connection.begin_move(now, Route::Link(&server.target())).unwrap();
    let why = loop {
        if let Some(Event::MoveFailed { why, .. }) = connection.poll_event() {
            break why;
        }
        assert!(now.elapsed() < Duration::from_secs(60), "the move should fail");
        std::thread::sleep(Duration::from_millis(1));
        connection.handle_ready(now, Slot::LinkA, Ready { readable: true, writable: true });
    };
    assert!(matches!(&why, MoveError::System(error) if error.kind() == io::ErrorKind::NotConnected), "{why}");
}
