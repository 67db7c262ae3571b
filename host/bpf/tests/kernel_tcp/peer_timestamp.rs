//! The latest timestamps of connections.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use rustix::net::sockopt::socket_cookie;
use spillway_bpf::{PeerTimestamp, PeerTimestamps};

use crate::{connected, isolated};

fn read(timestamps: &PeerTimestamps, socket: &TcpStream) -> Option<PeerTimestamp> {
    let (local, peer) = (socket.local_addr().unwrap(), socket.peer_addr().unwrap());
    timestamps.read(local, peer, socket_cookie(socket).unwrap()).unwrap()
}

/// The timestamp is that of the peer's clock, in milliseconds.
#[test]
fn timestamps_follow_the_peers_segments() {
    let Some(timestamps) = isolated(PeerTimestamps::load()) else { return };
    for address in ["127.0.0.1:0", "[::1]:0"] {
        let listener = TcpListener::bind(address).unwrap();
        let (mut client, mut server) = connected(&listener);
        let mut after_a_byte = |server: &mut TcpStream| {
            client.write_all(&[1]).unwrap();
            server.read_exact(&mut [0]).unwrap();
            read(&timestamps, server).unwrap()
        };
        let first = after_a_byte(&mut server);
        std::thread::sleep(Duration::from_millis(1_100));
        let later = read(&timestamps, &server).unwrap();
        assert_eq!(later.recent, first.recent, "no segment has arrived");
        assert!(later.age >= Duration::from_secs(1), "{later:?}");
        let second = after_a_byte(&mut server);
        let passed = second.recent.wrapping_sub(first.recent);
        assert!((1_100..600_000).contains(&passed), "{first:?}, {second:?}");
        assert!(read(&timestamps, &client).is_some(), "the server has acknowledged");
    }
}

#[test]
fn ends_of_ipv4_connections_may_be_mapped() {
    let Some(timestamps) = isolated(PeerTimestamps::load()) else { return };
    let listener = TcpListener::bind("[::]:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let client = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let (server, peer) = listener.accept().unwrap();
    assert!(peer.is_ipv6(), "{peer}");
    assert!(read(&timestamps, &server).is_some() && read(&timestamps, &client).is_some());
}

#[test]
fn other_connections_and_those_without_timestamps_have_none() {
    let Some(timestamps) = isolated(PeerTimestamps::load()) else { return };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (client, server) = connected(&listener);
    let (local, peer) = (server.local_addr().unwrap(), server.peer_addr().unwrap());
    let cookie = socket_cookie(&server).unwrap();
    assert!(timestamps.read(local, peer, cookie).unwrap().is_some());
    assert_eq!(timestamps.read(local, peer, cookie + 1_000_000).unwrap(), None, "another socket");
    let other_port = SocketAddr::new(peer.ip(), peer.port() ^ 1);
    assert_eq!(timestamps.read(local, other_port, cookie).unwrap(), None, "no connection");
    let other_family: SocketAddr = "[::1]:1".parse().unwrap();
    assert_eq!(timestamps.read(local, other_family, cookie).unwrap(), None, "no connection");
    drop((client, server));

    std::fs::write("/proc/sys/net/ipv4/tcp_timestamps", "0").unwrap();
    let (mut client, mut server) = connected(&listener);
    client.write_all(&[1]).unwrap();
    server.read_exact(&mut [0]).unwrap();
    assert_eq!(read(&timestamps, &server), None);
}
