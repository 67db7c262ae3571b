//! Frames that are too long, cut or damaged.

use std::time::{Duration, Instant};

use spillway_parts::Random;
use spillway_xdp::{Adapter, SocketOptions, send};

use super::noise::random_frame;
use super::pair::{CLIENT_END, Family, Pair, SERVER_END, context, run};
use crate::application::{Role, Roles};
use crate::rig::PATIENCE;

/// Longer than [`spillway_xdp::RECEIVED_BYTES_MAX`] and than the stack's MTU.
const LONG_BYTES: usize = 1900;

pub fn frames_that_are_too_long_cut_or_damaged_are_counted_and_not_answered(family: Family) {
    const EACH: u64 = 50;
    let Some(pair) = Pair::of(family, "xdp-bad") else { return };
    for (host, interface) in [(&pair.client, CLIENT_END), (&pair.server, SERVER_END)] {
        run(host, &format!("ip link set {interface} mtu 3000"));
    }
    let adapter = pair.adapter().unwrap();
    let mac = adapter.interface().mac.0;
    let mut context = context(&pair, adapter, Roles::new(vec![Role::Echo], vec![]));
    // An AF_XDP socket on the client's interface sends the frames.
    let open = || Adapter::open(CLIENT_END, SocketOptions::default(), |_| Ok(())).unwrap();
    let mut sender = pair.client.run_inside(open).unwrap();
    let mut socket = sender.take_sockets().remove(0);
    let mut random = Random::new(19);
    for number in 0..3 * EACH {
        let mut frame = random_frame(family, &mut random, mac);
        match number % 3 {
            0 => frame.resize(LONG_BYTES, 7),
            // Ends after the ports of the TCP header.
            1 => frame.truncate(if family == Family::V4 { 14 + 20 + 4 } else { 14 + 40 + 4 }),
            _ => {}
        }
        let start = Instant::now();
        while !send(&mut socket, &frame).unwrap() {
            assert!(start.elapsed() < PATIENCE, "the socket never has room");
        }
        // One frame at a time, so that the veth's ring does not overflow.
        loop {
            context.turn(Some(Duration::ZERO)).unwrap();
            let figures = context.command(|_, _, port| port.figures());
            if figures.sockets.dropped + figures.stack.frames_received > number {
                break;
            }
            assert!(start.elapsed() < PATIENCE, "frame {number} does not arrive");
        }
    }
    let figures = context.command(|_, _, port| port.figures());
    assert_eq!(figures.sockets.dropped, EACH, "{figures:?}");
    assert_eq!(figures.stack.frames_malformed, 2 * EACH, "{figures:?}");
    assert_eq!((figures.driver.sent, figures.stack.frames_sent), (0, 0), "{figures:?}");
    drop((context, socket, sender));
    pair.lab.close().unwrap();
}
