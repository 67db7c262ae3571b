//! What happens without the hold (Prism, Figure 3), and beyond its bounds.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;

use spillway_bpf::Budget;

use crate::fork::{Family, Fork, INTERFACE};
use crate::stream::Pattern;
use crate::{Target, captured, counter, skipped, wait_until};

/// Sends a byte and checks that the connection is reset.
#[track_caller]
fn assert_reset(mut client: &TcpStream) {
    client.write_all(&[1]).unwrap();
    let error = client.read(&mut [0]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
}

#[test]
fn without_a_hold_a_packet_that_is_early_resets_the_connection() {
    if skipped() {
        return;
    }
    let fork = Fork::new("held-early", Family::V4, &[]);
    let (client, _server) = fork.connection();
    let other = fork.address();
    let mut target = Target::new(&fork.servers[1], INTERFACE);
    // Another flow is held.
    let peer = std::net::SocketAddr::new(client.local_addr().unwrap().ip(), 1);
    target.held.hold(other, peer, Budget { frames_max: 10, bytes_max: 10_000 }).unwrap();
    fork.send_to(1);
    assert_reset(&client);
    assert_eq!(target.counter("Tcp:OutRsts"), 1);
}

#[test]
fn a_packet_that_meets_the_former_host_resets_the_connection() {
    if skipped() {
        return;
    }
    let fork = Fork::new("held-late", Family::V4, &[]);
    let (client, server) = fork.connection();
    captured(&fork.servers[0], server);
    // The switch still sends the client's packets there.
    assert_reset(&client);
    assert_eq!(counter(&fork.servers[0], "Tcp:OutRsts"), 1);
}

#[test]
fn packets_beyond_the_budget_are_dropped_and_the_client_repeats_them() {
    if skipped() {
        return;
    }
    let fork = Fork::new("held-budget", Family::V4, &[]);
    // Here a timeout is expected.
    crate::fork::run(&fork.client, "ip route replace 10.82.0.0/24 metric 0 dev fork0 proto kernel");
    let (client, server) = fork.connection();
    let mut target = Target::new(&fork.servers[1], INTERFACE);
    let (local, peer) = (server.local_addr().unwrap(), server.peer_addr().unwrap());
    let hold = target.held.hold(local, peer, Budget { frames_max: 2, bytes_max: 1 << 20 }).unwrap();
    fork.send_to(1);
    let mut requests = (Pattern::new(1), Pattern::new(1));
    for _ in 0..6 {
        requests.0.write(&client, 1_000);
    }
    wait_until("packets are dropped", || target.held.waiting(hold).unwrap().dropped_frames >= 4);
    assert_eq!(target.held.waiting(hold).unwrap().frames, 2);
    let server = target.take(&fork.servers[0], server, hold);
    requests.1.read(&server, 6_000);
    assert!(counter(&fork.client, "Tcp:RetransSegs") > 0, "the client repeats what was dropped");
    assert_eq!(target.counter("Tcp:OutRsts"), 0);
    assert_eq!(target.counter("TcpExt:TCPChallengeACK"), 0);
}
