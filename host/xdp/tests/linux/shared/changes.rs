//! Interfaces and programs that change while a stack runs.

use std::io;
use std::net::IpAddr;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use spillway_transport::Application;
use spillway_xdp::{Context, Device, InterfaceState, Notice};

use super::pair::{Family, OURS, Pair, SERVER, context, context_with, run};
use super::programs;
use crate::application::{Role, Roles};
use crate::rig::{PATIENCE, ask};

/// Commands on the server's host, and the resulting errors.
const CHANGES: [(&str, &str); 4] = [
    ("ip link del two1", "interface two1 was removed"),
    ("ethtool -L two1 rx 4", "interface two1 has 4 queues now and had 2"),
    (
        "ip link set two1 address 02:00:00:00:00:77",
        "interface two1 has the Ethernet address 02:00:00:00:00:77 now and had ",
    ),
    ("ip link set two1 mtu 1400", "interface two1 has an MTU of 1400 bytes now and had 1500"),
];

/// A cable with four queues, two of which are in use.
fn pair() -> Option<Pair> {
    let pair = Pair::with(Family::V4, "xdp-changed", 4)?;
    run(&pair.client, "ethtool -L two0 rx 2 tx 2");
    run(&pair.server, "ethtool -L two1 rx 2 tx 2");
    Some(pair)
}

fn end_of<A: Application>(context: &mut Context<A>, change: &str) -> io::Error {
    let start = Instant::now();
    loop {
        match context.turn(Some(Duration::from_millis(10))) {
            Ok(()) => assert!(start.elapsed() < PATIENCE, "the loop does not end: {change}"),
            Err(error) => return error,
        }
    }
}

#[test]
fn a_changed_interface_ends_the_loop() {
    for (change, expected) in CHANGES {
        let Some(pair) = pair() else { return };
        let mut context = context(&pair, pair.adapter().unwrap(), Roles::new(vec![Role::Echo], vec![]));
        context.turn(Some(Duration::ZERO)).unwrap();
        run(&pair.server, change);
        let error = end_of(&mut context, change);
        assert_eq!(error.kind(), io::ErrorKind::NetworkDown, "{error}");
        assert!(error.to_string().contains(expected), "{error}");
        drop(context);
        pair.lab.close().unwrap();
    }
}

/// For drivers without a context, such as that of a load generator.
#[test]
fn a_socket_reports_a_changed_interface() {
    for (change, expected) in CHANGES {
        let Some(pair) = pair() else { return };
        let mut adapter = pair.adapter().unwrap();
        let mut socket = adapter.take_sockets().remove(0);
        run(&pair.server, change);
        let start = Instant::now();
        let error = loop {
            match socket.wait(None, &[]) {
                Ok(_) => assert!(start.elapsed() < PATIENCE, "the socket does not report: {change}"),
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), io::ErrorKind::NetworkDown, "{error}");
        assert!(error.to_string().contains(expected), "{error}");
        drop((socket, adapter));
        pair.lab.close().unwrap();
    }
}

/// The client sends before, while and after the interface is down, and gets every byte back.
#[test]
fn an_interface_that_is_down_for_a_while_ends_no_connection() {
    let Some(pair) = pair() else { return };
    let (sender, notices) = channel();
    let hook = Box::new(move |notice| sender.send(notice).unwrap());
    let roles = Roles::new(vec![Role::Echo], vec![]);
    let mut context = context_with(&pair, pair.adapter().unwrap(), roles, (None, hook));
    let remote = context.remote();
    let server = std::thread::spawn(move || context.run().map(|()| context));
    let streams: Vec<_> = (0..4).map(|_| pair.connect(OURS, PATIENCE).unwrap()).collect();
    streams.iter().for_each(|stream| ask(stream, 0, 64));
    run(&pair.server, "ip link set two1 down");
    let interface = "two1".to_owned();
    let next = || notices.recv_timeout(PATIENCE).expect("a notice of the change");
    assert_eq!(next(), Notice::InterfaceDown { interface: interface.clone() });
    std::thread::scope(|scope| {
        let replies: Vec<_> = streams.iter().map(|stream| scope.spawn(|| ask(stream, 64, 64))).collect();
        // More than one check of the interface finds it down.
        std::thread::sleep(Duration::from_secs(3));
        run(&pair.server, "ip link set two1 up");
        replies.into_iter().for_each(|reply| reply.join().unwrap());
    });
    assert_eq!(next(), Notice::InterfaceUp { interface });
    streams.iter().for_each(|stream| ask(stream, 128, 64));
    assert_eq!(notices.try_iter().count(), 0, "one notice for each change");
    drop(streams);
    remote.stop();
    drop(server.join().unwrap().expect("the loop should end without an error"));
    pair.lab.close().unwrap();
}

/// A larger MTU, the same number of queues and another name need no restart.
#[test]
fn a_harmless_change_does_not_end_the_loop() {
    let Some(pair) = pair() else { return };
    let adapter = pair.adapter().unwrap();
    run(&pair.server, "ip link set two1 mtu 2000");
    run(&pair.server, "ip addr add 10.79.9.9/32 dev two1");
    adapter.check().unwrap();
    run(&pair.server, "ip link set two1 mtu 1500");
    adapter.check().unwrap();
    run(&pair.server, "ip link set two1 name renamed1");
    adapter.check().expect("a renamed interface should be found by its number");
    run(&pair.server, "ip link set renamed1 down");
    assert_eq!(adapter.check().unwrap(), Some(InterfaceState::Down));
    assert_eq!(adapter.check().unwrap(), None, "each change is reported once");
    run(&pair.server, "ip link set renamed1 up");
    assert_eq!(adapter.check().unwrap(), Some(InterfaceState::Up));
    drop(adapter);
    pair.lab.close().unwrap();
}

#[test]
fn a_removed_address_is_reported_until_it_is_back() {
    let Some(pair) = pair() else { return };
    let (sender, notices) = channel();
    let hook = Box::new(move |notice| sender.send(notice).unwrap());
    let roles = Roles::new(vec![Role::Echo], vec![]);
    let mut context = context_with(&pair, pair.adapter().unwrap(), roles, (None, hook));
    let mut next = || {
        let start = Instant::now();
        loop {
            context.turn(Some(Duration::from_millis(10))).expect("a removed address should not end the loop");
            match notices.try_recv() {
                Ok(notice) => return notice,
                Err(_) => assert!(start.elapsed() < PATIENCE, "no notice"),
            }
        }
    };
    let (interface, address) = ("two1".to_owned(), IpAddr::from(SERVER));
    run(&pair.server, &format!("ip addr del {SERVER}/24 dev two1"));
    let removed = Notice::AddressRemoved { interface: interface.clone(), address };
    assert_eq!(next(), removed);
    assert!(removed.to_string().contains(&format!("ip addr add {SERVER}/BITS dev two1")), "{removed}");
    run(&pair.server, &format!("ip addr add {SERVER}/24 dev two1"));
    assert_eq!(next(), Notice::AddressReturned { interface, address });
    drop(context);
    pair.lab.close().unwrap();
}

#[test]
fn a_program_that_others_detach_or_replace_ends_the_loop() {
    for is_replaced in [false, true] {
        let Some(pair) = pair() else { return };
        let adapter = pair.adapter().unwrap();
        let program = adapter.program_id();
        let mut context = context(&pair, adapter, Roles::new(vec![Role::Echo], vec![]));
        context.turn(Some(Duration::ZERO)).unwrap();
        let expected = if is_replaced {
            let other = programs::replace(program);
            format!("the steering program of interface two1 was replaced by program {other}")
        } else {
            programs::detach(program);
            "the steering program of interface two1 was detached".to_owned()
        };
        let error = end_of(&mut context, &expected);
        assert_eq!(error.kind(), io::ErrorKind::NetworkDown, "{error}");
        assert!(error.to_string().contains(&expected), "{error}");
        drop(context);
        pair.lab.close().unwrap();
    }
}
