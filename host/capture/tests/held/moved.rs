//! Requests arrive at the target before the connection does.

use std::io::{ErrorKind, Read};
use std::net::Shutdown;

use spillway_bpf::HeldOutcome;
use spillway_capture::PeerPacket;

use crate::fork::{Family, Fork, INTERFACE};
use crate::kernel::{self, info};
use crate::stream::Pattern;
use crate::{Target, assert_unnoticed, captured, end, moves, skipped};

/// Bits of `tcpi_options`.
const TIMESTAMPS: u8 = 1;
const SACK: u8 = 2;

/// Moves a connection to and fro. In each move some requests arrive before the connection.
fn early_requests(name: &str, family: Family, missing: &[&str]) {
    if skipped() {
        return;
    }
    let sysctls: Vec<_> = missing.iter().map(|name| (*name, "0")).collect();
    let fork = Fork::new(name, family, &sysctls);
    let (client, mut server) = fork.connection();
    let has = |bit| info(&client).tcpi_options & bit != 0;
    assert_eq!(has(SACK), !missing.contains(&"net/ipv4/tcp_sack"));
    assert_eq!(has(TIMESTAMPS), !missing.contains(&"net/ipv4/tcp_timestamps"));
    let mut targets = [0, 1].map(|index| Target::new(&fork.servers[index], INTERFACE));
    let mut requests = (Pattern::new(1), Pattern::new(1));
    let mut replies = (Pattern::new(2), Pattern::new(2));
    let mut held_packets = 0;
    for number in 0..moves() {
        let target_index = (number + 1) % 2;
        let target = &mut targets[target_index];
        // Sometimes a part of the request was read, and a part of the reply is not acknowledged.
        let read = number % 3 * 500;
        requests.0.write(&client, read);
        requests.1.read(&server, read);
        let reply = number % 4 * 2_000;
        replies.0.write(&server, reply);

        let hold = target.hold(&server);
        fork.send_to(target_index);
        let early: usize = (0..1 + number % 5).map(|segment| 1 + segment * 1_100).sum();
        for segment in 0..1 + number % 5 {
            requests.0.write(&client, 1 + segment * 1_100);
        }
        target.waits_for_packets(hold, 1);
        server = target.take(&fork.servers[number % 2], server, hold);
        held_packets += 1;

        requests.1.read(&server, early);
        replies.0.write(&server, 300);
        replies.1.read(&client, reply + 300);
    }
    assert_unnoticed(&fork.client, &client, &targets);
    let held: u64 = targets.iter().map(|target| target.held.counters().unwrap().of(HeldOutcome::Held)).sum();
    assert!(held >= held_packets, "{held} packets were held in {held_packets} moves");
    end([client, server]);
}

#[test]
fn early_requests_are_served_over_ipv4() {
    early_requests("held-4", Family::V4, &[]);
}

#[test]
fn early_requests_are_served_over_ipv6() {
    early_requests("held-6", Family::V6, &[]);
}

#[test]
fn early_requests_are_served_without_sack() {
    early_requests("held-s", Family::V4, &["net/ipv4/tcp_sack"]);
}

#[test]
fn early_requests_are_served_without_timestamps() {
    early_requests("held-t", Family::V4, &["net/ipv4/tcp_timestamps"]);
}

#[test]
fn early_requests_are_served_without_any_option_over_ipv6() {
    let missing = ["net/ipv4/tcp_sack", "net/ipv4/tcp_timestamps", "net/ipv4/tcp_window_scaling"];
    early_requests("held-6n", Family::V6, &missing);
}

#[test]
fn an_early_end_of_the_clients_stream_arrives_behind_its_bytes() {
    if skipped() {
        return;
    }
    let fork = Fork::new("held-fin", Family::V4, &[]);
    let (client, server) = fork.connection();
    let mut targets = [Target::new(&fork.servers[1], INTERFACE)];
    let mut requests = (Pattern::new(1), Pattern::new(1));
    let hold = targets[0].hold(&server);
    fork.send_to(1);
    requests.0.write(&client, 5_000);
    client.shutdown(Shutdown::Write).unwrap();
    // The end is in the last packet with bytes, or in one of its own.
    targets[0].waits_for_packets(hold, 4);
    let mut server = targets[0].take(&fork.servers[0], server, hold);
    requests.1.read(&server, 5_000);
    assert_eq!(server.read(&mut [0]).unwrap(), 0, "the stream has ended");
    Pattern::new(2).write(&server, 3_000);
    Pattern::new(2).read(&client, 3_000);
    assert_unnoticed(&fork.client, &client, &targets);
    end([client, server]);
}

/// A moved connection's segments are cut anew, and the client acknowledges those that were under way: such an acknowledgement can
/// end within a segment of the new owner's queue.
#[test]
fn a_segment_that_was_acknowledged_in_part_moves_from_its_middle() {
    const BYTES: usize = 1_000;
    const ACKNOWLEDGED: usize = 400;
    if skipped() {
        return;
    }
    let fork = Fork::new("held-part", Family::V4, &[]);
    let (client, server) = fork.connection();
    let mut source = Target::new(&fork.servers[0], INTERFACE);
    let hold = source.hold(&server);
    Pattern::new(2).write(&server, BYTES);
    source.waits_for_packets(hold, 1);
    let injector = &source.injector;
    source
        .held
        .release(hold, |packet| {
            let mut packet = packet.to_vec();
            // The acknowledgement follows the ports and the sequence number.
            let place = 28..32;
            let number = u32::from_be_bytes(*packet[place.clone()].first_chunk().unwrap());
            let part = number.wrapping_sub((BYTES - ACKNOWLEDGED) as u32);
            packet[place].copy_from_slice(&part.to_be_bytes());
            injector.inject(&PeerPacket::read(packet).unwrap()).unwrap();
        })
        .unwrap();
    assert_eq!(kernel::unacknowledged(&server), (BYTES - ACKNOWLEDGED) as u32);
    let state = captured(&fork.servers[0], server);
    let mut stream = Pattern::new(2);
    stream.advance(ACKNOWLEDGED);
    let queue: Vec<u8> = state.sending.queue.chunks().concat();
    assert_eq!(queue, stream.next(BYTES - ACKNOWLEDGED));
    drop(client);
}

#[test]
fn an_early_reset_of_the_client_arrives() {
    if skipped() {
        return;
    }
    let fork = Fork::new("held-rst", Family::V4, &[]);
    let (client, server) = fork.connection();
    let mut target = Target::new(&fork.servers[1], INTERFACE);
    let hold = target.hold(&server);
    fork.send_to(1);
    rustix::net::sockopt::set_socket_linger(&client, Some(std::time::Duration::ZERO)).unwrap();
    drop(client);
    target.waits_for_packets(hold, 1);
    let mut server = target.take(&fork.servers[0], server, hold);
    assert_eq!(server.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    assert_eq!(target.counter("TcpExt:TCPChallengeACK"), 0);
}
