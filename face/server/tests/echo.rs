//! The echo example with plain clients and library clients.

mod support;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::Duration;

use spillway_moving_client::blocking::Client;
use spillway_moving_client::{Carrier, LinkTarget, MoveError, Route, Settings};
use support::{Echo, Keys, round_trip};

#[test]
fn echo_example_serves_plain_and_helped_clients_together() {
    let keys = Keys::new();
    for host in ["127.0.0.1", "[::1]"] {
        let echo = Echo::start(&keys, host);
        let mut plain: Vec<TcpStream> =
            (0..20).map(|_| TcpStream::connect(echo.plain_port).unwrap()).collect();
        let helped = || {
            Client::connect_through_link(&echo.target(&keys), Some(echo.plain_port), Settings::default())
                .unwrap()
        };
        let mut helped: Vec<Client> = (0..20).map(|_| helped()).collect();
        for round in 0..20 {
            plain.iter_mut().for_each(|client| round_trip(client, 64 + round, round));
            helped.iter_mut().for_each(|client| round_trip(client, 64 + round, round));
        }
    }
}

#[test]
fn client_moves_between_plain_port_and_links() {
    let keys = Keys::new();
    let echo = Echo::start(&keys, "127.0.0.1");
    let target = echo.target(&keys);
    let mut client = Client::connect(echo.plain_port, Settings::default()).unwrap();
    for round in 0..20 {
        round_trip(&mut client, 1000, round);
        client.move_to(Route::Link(&target)).unwrap();
        assert_eq!(client.carrier(), Some(Carrier::Link(echo.link_port)));
        round_trip(&mut client, 1000, round);
        client.move_to(Route::Link(&target)).unwrap();
        round_trip(&mut client, 1000, round);
        client.move_to(Route::Direct).unwrap();
        assert_eq!(client.carrier(), Some(Carrier::Direct(echo.plain_port)));
    }
}

#[test]
fn large_transfers_complete_within_windows() {
    let keys = Keys::new();
    let echo = Echo::start(&keys, "127.0.0.1");
    let client = Client::connect_through_link(&echo.target(&keys), None, Settings::default()).unwrap();
    echo_8_mib(client);
    let small = Settings { window_bytes: 10, ..Settings::default() };
    let mut client = Client::connect_through_link(&echo.target(&keys), None, small).unwrap();
    round_trip(&mut client, 5000, 1);
}

/// Writes far more than all windows and socket buffers hold, before it reads the echoes.
fn echo_8_mib(mut client: Client) {
    const BYTES: usize = 8 << 20;
    let request: Vec<u8> = (0..BYTES).map(|i| (i % 251) as u8).collect();
    let (mut sent, mut reply, mut buffer) = (0, Vec::new(), vec![0; 1 << 16]);
    while reply.len() < BYTES {
        if sent < BYTES && sent < reply.len() + (200 << 10) {
            sent += client.write(&request[sent..BYTES.min(sent + 50_000)]).unwrap();
        } else {
            let received = client.read(&mut buffer).unwrap();
            assert!(received > 0, "the server should not end the stream");
            reply.extend_from_slice(&buffer[..received]);
        }
    }
    assert!(reply == request, "the reply should be equal to the request");
}

#[test]
fn half_closed_client_gets_its_replies() {
    let keys = Keys::new();
    let echo = Echo::start(&keys, "127.0.0.1");
    let mut plain = TcpStream::connect(echo.plain_port).unwrap();
    plain.write_all(b"last words").unwrap();
    plain.shutdown(Shutdown::Write).unwrap();
    let mut reply = Vec::new();
    plain.read_to_end(&mut reply).unwrap();
    assert_eq!(reply, b"last words");

    let mut helped = Client::connect_through_link(&echo.target(&keys), None, Settings::default()).unwrap();
    helped.write_all(b"last words").unwrap();
    helped.finish().unwrap();
    let mut reply = Vec::new();
    helped.read_to_end(&mut reply).unwrap();
    assert_eq!(reply, b"last words");
}

#[test]
fn wrong_key_is_reported_and_the_direct_connection_stays() {
    let keys = Keys::new();
    let echo = Echo::start(&keys, "127.0.0.1");
    let mut client = Client::connect(echo.plain_port, Settings::default()).unwrap();
    // A client is rejected with an unknown key, and with a helper's key.
    for key in [spillway_client::Key::from_secret([9; 32]), keys.helper.clone()] {
        let target = LinkTarget { key, ..echo.target(&keys) };
        let error = client.move_to(Route::Link(&target)).unwrap_err();
        assert!(error.to_string().contains("does not accept our key"), "{error}");
        round_trip(&mut client, 100, 1);
    }
}

#[test]
fn moving_to_a_port_other_than_a_link_port_is_an_error() {
    let keys = Keys::new();
    let echo = Echo::start(&keys, "127.0.0.1");
    // Another service, which sends fewer bytes than a welcome has, and waits.
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let target = LinkTarget { address: other.local_addr().unwrap(), ..echo.target(&keys) };
    let service = std::thread::spawn(move || {
        let (mut stream, _) = other.accept().unwrap();
        stream.write_all(b"-ERR what?\r\n").unwrap();
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let error = Client::connect_through_link(&target, None, Settings::default()).unwrap_err();
    assert!(matches!(error, MoveError::Link(_)), "{error}");
    service.join().unwrap();
    // The echo server's plain port echoes the client's hello: the beginning of a link, and then nothing.
    let target = LinkTarget { address: echo.plain_port, ..echo.target(&keys) };
    let short_timeout = Settings { accept_timeout: Duration::from_millis(50), ..Settings::default() };
    let error = Client::connect_through_link(&target, None, short_timeout).unwrap_err();
    assert!(matches!(error, MoveError::AcceptTimeout(_)), "{error}");
    let unused = spillway_ports::free_address();
    let target = LinkTarget { address: unused, ..echo.target(&keys) };
    let error = Client::connect_through_link(&target, None, Settings::default()).unwrap_err();
    assert!(
        matches!(&error, MoveError::System(e) if e.kind() == std::io::ErrorKind::ConnectionRefused),
        "{error}"
    );
}

#[test]
fn clients_beyond_the_descriptor_limit_wait_until_a_descriptor_is_freed() {
    let keys = Keys::new();
    let echo = Echo::start_limited(&keys, 40);
    let target = echo.target(&keys);
    let long_timeout = Settings { accept_timeout: Duration::from_secs(60), ..Settings::default() };
    let mut first: Vec<Client> =
        (0..20).map(|_| Client::connect_through_link(&target, None, Settings::default()).unwrap()).collect();
    // More clients of both kinds than descriptors: the last ones wait in the kernel's accept queues.
    let mut plain: Vec<TcpStream> = (0..30).map(|_| TcpStream::connect(echo.plain_port).unwrap()).collect();
    plain.iter_mut().for_each(|client| client.write_all(b"hello").unwrap());
    let waiting =
        std::thread::spawn(move || Client::connect_through_link(&target, None, long_timeout).unwrap());
    first.iter_mut().for_each(|client| round_trip(client, 1000, 1));
    plain[0].read_exact(&mut [0; 5]).unwrap();
    // Clients of both kinds that wait are accepted when descriptors are freed.
    first.truncate(2);
    let mut waited = waiting.join().unwrap();
    plain[1..].iter_mut().for_each(|client| client.read_exact(&mut [0; 5]).unwrap());
    first.iter_mut().for_each(|client| round_trip(client, 1000, 2));
    round_trip(&mut waited, 1000, 3);
}
