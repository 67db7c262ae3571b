//! Shared code of the tests: labs, and traffic between two hosts.

#![allow(dead_code, reason = "not every test uses all functions")]

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use spillway_lab::{Host, HostOptions, Lab, LabOptions, Launch, unavailable};

pub const TIMEOUT: Duration = Duration::from_secs(60);

/// A lab; `None`, after a message, if this machine cannot make one.
pub fn lab(name: &str, options: LabOptions) -> Option<Lab> {
    if let Some(reason) = unavailable() {
        println!("skipped: {reason}");
        return None;
    }
    Some(Lab::with_options(name, options).unwrap())
}

/// A host that computes checksums itself, as XDP requires.
pub fn host(lab: &Lab, name: &str) -> Host {
    lab.host(name, HostOptions { tx_checksums: false, ..HostOptions::default() }).unwrap()
}

/// Sends 1 MiB in each direction over TCP and compares the bytes.
pub fn exchange(from: &Host, to: &Host, address: IpAddr) {
    let bytes: Vec<u8> =
        (0..1 << 20).map(|n: u32| n.to_le_bytes()[usize::from(n.is_multiple_of(3))]).collect();
    let listener = to.run_inside(|| TcpListener::bind((address, 0)).unwrap()).unwrap();
    let target = listener.local_addr().unwrap();
    let echo = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut received = vec![0; 1 << 20];
        stream.read_exact(&mut received).unwrap();
        stream.write_all(&received).unwrap();
    });
    let mut stream = from.run_inside(|| TcpStream::connect_timeout(&target, TIMEOUT).unwrap()).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream.write_all(&bytes).unwrap();
    let mut received = vec![0; bytes.len()];
    stream.read_exact(&mut received).unwrap();
    assert!(received == bytes, "the echoed bytes should equal those that were sent");
    echo.join().unwrap();
}

/// Sends a datagram between two hosts, each with its address.
pub fn exchange_datagram((from, own): (&Host, IpAddr), (to, address): (&Host, IpAddr)) {
    let bind = |host: &Host, address: IpAddr| {
        let socket = host.run_inside(|| UdpSocket::bind((address, 0)).unwrap()).unwrap();
        socket.set_read_timeout(Some(TIMEOUT)).unwrap();
        socket
    };
    let (sender, receiver) = (bind(from, own), bind(to, address));
    let target: SocketAddr = receiver.local_addr().unwrap();
    sender.send_to(b"datagram", target).unwrap();
    let mut received = [0; 16];
    let (length, source) = receiver.recv_from(&mut received).unwrap();
    assert_eq!((&received[..length], source), (&b"datagram"[..], sender.local_addr().unwrap()));
}

/// Runs a command on a host, and returns its output.
pub fn command(host: &Host, program: &str, arguments: &[&str]) -> String {
    let mut process = host.spawn(&Launch::new(program).args(arguments)).unwrap();
    let status = process.wait(TIMEOUT).unwrap_or_else(|| panic!("{program} {arguments:?} did not end"));
    assert!(status.success(), "{program} {arguments:?}: {}", process.last_output());
    process.stdout().unwrap()
}

/// Waits until a condition holds.
pub fn wait_until(what: &str, holds: impl Fn() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !holds() {
        assert!(Instant::now() < deadline, "it does not become true that {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
