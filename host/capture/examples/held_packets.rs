//! Prints what a held packet costs in the program that holds it, and when it is injected; beside, what the program costs other
//! packets, and what a write to a TAP interface costs, another way to inject:
//! `cargo run --release -p spillway-capture --example held_packets -- [PACKETS]`. Needs root.

use std::error::Error;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use rustix::io::write;
use spillway_bpf::{Budget, HeldFlows, Hold, Pass, Release};
use spillway_capture::Injector;
use spillway_lab::{Host, HostOptions, Lab, Launch};
use spillway_wire::packet::ipv4;
use spillway_xdp::Tap;

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

const BUDGET: Budget = Budget { frames_max: 1_000, bytes_max: 2 << 20 };
const PAYLOADS: [usize; 2] = [100, 1_400];
/// Packets that are held at a time: fewer than a client sends without an acknowledgement.
const AT_A_TIME: usize = 8;
/// Runs of a program of which the mean is one measurement.
const REPETITIONS: u32 = 1_000;
const PATIENCE: Duration = Duration::from_secs(10);
const TAP: &str = "held0";
const TAP_MAC: [u8; 6] = [2, 0, 0, 0, 0, 0x77];

/// A way to give a packet to its socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    RawSocket,
    Tap,
}

fn main() -> Outcome<()> {
    let packets = std::env::args().nth(1).map_or(Ok(10_000), |text| text.parse())?;
    measure_program(packets)?;
    let lab = Lab::new("held-packets")?;
    let whole_checksums = || HostOptions { tx_checksums: false, ..HostOptions::default() };
    let [client, server] = [lab.host("client", whole_checksums())?, lab.host("server", whole_checksums())?];
    server.run_inside(|| measure_injection(&client, &server, packets))?
}

/// The program's times for packets of a held flow and for others.
fn measure_program(packets: usize) -> Outcome<()> {
    let (local, peer): (SocketAddr, SocketAddr) = ("192.0.2.2:7000".parse()?, "192.0.2.9:40000".parse()?);
    let mut held = HeldFlows::load(1_024, 4 << 20)?;
    let pass = Pass::load()?;
    for payload in PAYLOADS {
        let frame = frame(peer, local, payload);
        let unheld = unheld_ns(&held, &frame, packets)?;
        let other = held.hold(local, SocketAddr::new(peer.ip(), 1), BUDGET)?;
        let beside = unheld_ns(&held, &frame, packets)?;
        held.forget(other)?;
        println!("another packet, {payload} bytes: {unheld} ns while no flow is held, {beside} ns otherwise");
        // The time of a single run includes a reading of the clock, which the other program's time shows.
        let (mut times, mut baseline) = (Vec::new(), Vec::new());
        while times.len() < packets {
            let hold = held.hold(local, peer, BUDGET)?;
            for _ in 0..AT_A_TIME {
                times.push(held.test_run(&frame, 1)?.1);
                baseline.push(pass.time_run(&frame)?);
            }
            held.forget(hold)?;
        }
        print_times(&format!("a held packet, {payload} bytes, in the program"), times);
        print_times("  beside: a program that only passes", baseline);
    }
    Ok(())
}

/// The median of the program's mean times.
fn unheld_ns(held: &HeldFlows, frame: &[u8], packets: usize) -> Outcome<u128> {
    let mut times = Vec::new();
    for _ in 0..packets.div_ceil(REPETITIONS as usize) {
        times.push(held.test_run(frame, REPETITIONS)?.1.as_nanos());
    }
    times.sort_unstable();
    Ok(times[times.len() / 2])
}

/// A frame without valid checksums, which the program does not read.
fn frame(source: SocketAddr, target: SocketAddr, payload: usize) -> Vec<u8> {
    let mut frame = vec![0; 14];
    frame[12..14].copy_from_slice(&[8, 0]);
    if let (IpAddr::V4(from), IpAddr::V4(to)) = (source.ip(), target.ip()) {
        let mut head = [0; ipv4::HEADER_BYTES];
        ipv4::Header::new(from, to, ipv4::PROTOCOL_TCP, (20 + payload) as u16).emit(&mut head);
        frame.extend(head);
    }
    frame.extend(source.port().to_be_bytes());
    frame.extend(target.port().to_be_bytes());
    frame.resize(frame.len() + 16 + payload, 0);
    frame
}

/// The times of injections into a socket of the server.
fn measure_injection(client: &Host, server: &Host, packets: usize) -> Outcome<()> {
    let raw = Injector::open()?;
    let tap = Tap::open(TAP)?;
    let mac = TAP_MAC.map(|byte| format!("{byte:02x}")).join(":");
    for command in [
        "sysctl -qw net.ipv4.conf.all.rp_filter=0".to_owned(),
        format!("sysctl -qw net.ipv4.conf.{TAP}.rp_filter=0"),
        format!("ip link set {TAP} up address {mac}"),
    ] {
        let words: Vec<_> = command.split(' ').collect();
        let status = server.spawn(&Launch::new(words[0]).args(&words[1..]))?.wait(PATIENCE);
        if !status.is_some_and(|status| status.success()) {
            return Err(format!("{command}: {status:?}").into());
        }
    }
    let listener = TcpListener::bind(SocketAddr::new(server.address(), 7_000))?;
    let address = listener.local_addr()?;
    let mut sender = client.run_inside(|| TcpStream::connect(address))??;
    let (mut receiver, peer) = listener.accept()?;
    sender.set_nodelay(true)?;
    let mut held = HeldFlows::load(16, 4 << 20)?;
    held.attach(server.interface())?;
    let socket = raw.for_socket(&receiver)?;
    for payload in PAYLOADS {
        for way in [Way::RawSocket, Way::Tap] {
            let mut times = Vec::new();
            while times.len() < packets {
                let hold = held.hold(address, peer, BUDGET)?;
                for number in 1..=AT_A_TIME {
                    sender.write_all(&vec![7; payload])?;
                    wait_for_packets(&held, hold, number as u64)?;
                }
                let mut failure = None;
                let inject = |packet: &[u8]| {
                    let frame = [&TAP_MAC[..], &[2, 0, 0, 0, 0, 1, 8, 0], packet].concat();
                    let start = Instant::now();
                    let result = match way {
                        Way::RawSocket => socket.inject(packet).map_err(|error| error.to_string()),
                        Way::Tap => write(&tap, &frame).map(|_| ()).map_err(|errno| errno.to_string()),
                    };
                    times.push(start.elapsed());
                    failure = result.err().or(failure.take());
                };
                if held.release(hold, inject)? != Release::Released || failure.is_some() {
                    return Err(failure.unwrap_or_else(|| "the client sends too much".to_owned()).into());
                }
                receiver.read_exact(&mut vec![0; AT_A_TIME * payload])?;
            }
            let name = match way {
                Way::RawSocket => "an injected packet",
                Way::Tap => "  beside: a write to a TAP interface",
            };
            print_times(&format!("{name}, {payload} bytes"), times);
        }
    }
    Ok(())
}

/// Waits for a number of packets, so that the client does not merge two into one.
fn wait_for_packets(held: &HeldFlows, hold: Hold, number: u64) -> Outcome<()> {
    let start = Instant::now();
    while held.waiting(hold)?.frames < number {
        if start.elapsed() > PATIENCE {
            return Err("a packet was not held".into());
        }
    }
    Ok(())
}

fn print_times(name: &str, mut times: Vec<Duration>) {
    times.sort_unstable();
    let at = |permille: usize| times[(times.len() - 1) * permille / 1_000].as_nanos() as f64 / 1_000.0;
    println!("{name}: median {:.2} µs, p99 {:.2} µs", at(500), at(990));
}
