//! Requests on both carriers and moves between the carriers, with the small server of `support`.

mod support;

use std::io::{Read, Write};

use spillway_batch::Limits;
use spillway_moving_client::blocking::Client;
use spillway_moving_client::{Carrier, Route, Settings};
use support::Server;

fn round_trip(client: &mut Client, length: usize, seed: usize) {
    let request: Vec<u8> = (0..length).map(|offset| ((offset * 7 + seed) % 251) as u8).collect();
    client.write_all(&request).unwrap();
    let mut reply = vec![0; length];
    client.read_exact(&mut reply).unwrap();
    assert_eq!(reply, request);
}

fn move_to_link_and_back(host: &str) {
    let server = Server::start(host, Limits::default());
    let target = server.target();
    let mut client = Client::connect(server.plain_port, Settings::default()).unwrap();
    for round in 0..10 {
        assert_eq!(client.carrier(), Some(Carrier::Direct(server.plain_port)));
        (1..50).for_each(|length| round_trip(&mut client, length * 13, round));
        client.move_to(Route::Link(&target)).unwrap();
        assert_eq!(client.carrier(), Some(Carrier::Link(server.link_port)));
        (1..50).for_each(|length| round_trip(&mut client, length * 13, round));
        client.move_to(Route::Direct).unwrap();
    }
}

#[test]
fn connections_move_to_a_link_and_back_over_ipv4() {
    move_to_link_and_back("127.0.0.1");
}

#[test]
fn connections_move_to_a_link_and_back_over_ipv6() {
    move_to_link_and_back("::1");
}
