//! Hosts joined by an XDP program instead of the bridge. Skips without root.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use spillway_lab::{Forwarding, Host, HostOptions, Lab, LabError, LabOptions, Launch, unavailable};

const TIMEOUT: Duration = Duration::from_secs(60);

fn lab(name: &str) -> Option<Lab> {
    if let Some(reason) = unavailable() {
        println!("skipped: {reason}");
        return None;
    }
    let options = LabOptions { forwarding: Forwarding::Xdp, ..LabOptions::default() };
    Some(Lab::with_options(name, options).unwrap())
}

fn host(lab: &Lab, name: &str) -> Host {
    lab.host(name, HostOptions { tx_checksums: false, ..HostOptions::default() }).unwrap()
}

/// Sends 1 MiB in each direction and compares the bytes.
fn exchange(from: &Host, to: &Host) {
    let bytes: Vec<u8> =
        (0..1 << 20).map(|n: u32| n.to_le_bytes()[usize::from(n.is_multiple_of(3))]).collect();
    let listener = to.run_inside(|| TcpListener::bind((to.address(), 0)).unwrap()).unwrap();
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

fn exchange_datagram(from: &Host, to: &Host) {
    let bind = |host: &Host| {
        let socket = host.run_inside(|| UdpSocket::bind((host.address(), 0)).unwrap()).unwrap();
        socket.set_read_timeout(Some(TIMEOUT)).unwrap();
        socket
    };
    let (sender, receiver) = (bind(from), bind(to));
    let target: SocketAddr = receiver.local_addr().unwrap();
    sender.send_to(b"datagram", target).unwrap();
    let mut received = [0; 16];
    let (length, source) = receiver.recv_from(&mut received).unwrap();
    assert_eq!((&received[..length], source), (&b"datagram"[..], sender.local_addr().unwrap()));
}

fn command(host: &Host, program: &str, arguments: &[&str]) -> String {
    let mut process = host.spawn(&Launch::new(program).args(arguments)).unwrap();
    assert!(process.wait(TIMEOUT).unwrap().success(), "{}", process.stderr().unwrap());
    process.stdout().unwrap()
}

#[test]
fn all_traffic_between_hosts_passes_unchanged() {
    let Some(lab) = lab("xdp-hub") else { return };
    let hosts = ["left", "right", "third"].map(|name| host(&lab, name));
    let [left, right, third] = &hosts;
    // The first packet between two hosts needs ARP, whose requests the bridge broadcasts.
    for (from, to) in [(left, right), (right, third), (third, left)] {
        let ping = ["-c", "3", "-i", "0.01", "-w", "20", &to.address().to_string()];
        assert!(command(from, "ping", &ping).contains(" 0% packet loss"));
        exchange(from, to);
        exchange_datagram(from, to);
    }
    for host in &hosts {
        // 1 MiB is 725 segments of 1,448 bytes.
        let packets = host.forwarded_packets().unwrap();
        assert!(packets > 700, "the program forwarded only {packets} packets of {}", host.name());
    }
    assert_eq!(left.interface_threads().len(), 1);
    lab.close().unwrap();
}

#[test]
fn options_that_the_program_does_not_support_are_refused() {
    let Some(lab) = lab("xdp-hub-refuses") else { return };
    let error = lab.host("partial", HostOptions::default()).map(drop).unwrap_err();
    assert!(matches!(&error, LabError::BadOption(what) if what.contains("tx_checksums")), "{error}");
    let error = host(&lab, "lossy").drop_packets(0.1).map(drop).unwrap_err();
    assert!(matches!(&error, LabError::BadOption(what) if what.contains("Forwarding::Bridge")), "{error}");
    lab.close().unwrap();
}
