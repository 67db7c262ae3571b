//! A TAP interface in a namespace. A minimal endpoint answers the kernel's ARP requests and `ping`.

use std::time::{Duration, Instant};

use spillway_lab::{HostOptions, Lab, Launch, unavailable};
use spillway_transport::Time;
use spillway_wire::packet::ethernet::{self, Mac};
use spillway_wire::packet::{arp, icmp::v4::Message, ipv4};
use spillway_xdp::{Driver, Endpoint, Stop, Tap, TapError, send};

const PATIENCE: Duration = Duration::from_secs(20);
const OURS: std::net::Ipv4Addr = std::net::Ipv4Addr::new(10, 78, 0, 2);
const CARD: Mac = Mac([2, 0, 0, 0, 0, 2]);

fn skipped() -> bool {
    let reason = unavailable();
    if let Some(reason) = &reason {
        eprintln!("skipped: {reason}");
    }
    reason.is_some()
}

/// Answers ARP requests for its address, and echo requests.
#[derive(Default)]
struct Answers(Vec<Vec<u8>>);

impl Answers {
    fn answer(&mut self, frame: &[u8]) -> Option<()> {
        let (from, packet) = ethernet::Header::parse(frame).ok()?;
        let mut head = [0; ethernet::HEADER_BYTES];
        ethernet::Header { target: from.source, source: CARD, kind: from.kind }.emit(&mut head);
        match from.kind {
            ethernet::KIND_ARP => {
                let request = arp::Packet::parse(packet).ok().filter(|request| request.target_ip == OURS)?;
                let mut out = [0; arp::BYTES];
                let reply = arp::Packet {
                    operation: arp::Operation::Reply,
                    sender_mac: CARD,
                    sender_ip: OURS,
                    target_mac: request.sender_mac,
                    target_ip: request.sender_ip,
                };
                reply.emit(&mut out);
                self.0.push([&head[..], &out].concat());
            }
            ethernet::KIND_IPV4 => {
                let (ip, _, payload) = ipv4::Header::parse(packet).ok()?;
                let Message::EchoRequest { ident, sequence, payload } = Message::parse(payload).ok()? else {
                    return None;
                };
                let mut out = vec![0; 8 + payload.len()];
                Message::EchoReply { ident, sequence, payload }.emit(&mut out);
                let mut ip_head = [0; ipv4::HEADER_BYTES];
                ipv4::Header { source: ip.target, target: ip.source, ..ip }.emit(&mut ip_head);
                self.0.push([&head[..], &ip_head, &out].concat());
            }
            _ => return None,
        }
        Some(())
    }
}

impl Endpoint for Answers {
    fn begin_turn(&mut self, _now: Time) {}

    fn deliver(&mut self, _now: Time, frame: &[u8]) {
        self.answer(frame);
    }

    fn end_turn(&mut self, _now: Time) {}

    fn poll_transmit(&mut self, _now: Time, slot: &mut [u8]) -> Option<usize> {
        let frame = self.0.pop()?;
        slot[..frame.len()].copy_from_slice(&frame);
        Some(frame.len())
    }

    fn poll_timeout(&self) -> Option<Time> {
        None
    }
}

#[test]
fn the_kernel_s_ping_is_answered() {
    if skipped() {
        return;
    }
    let lab = Lab::new("tap").unwrap();
    let host = lab.host("only", HostOptions::default()).unwrap();
    let mut tap = host.run_inside(|| Tap::open("spw0")).unwrap().unwrap();
    assert!(!send(&mut tap, &[0; 60]).unwrap(), "while the interface is down, frames are lost");
    let taken = host.run_inside(|| Tap::open("spw0")).unwrap().unwrap_err();
    assert!(
        matches!(&taken, TapError::Interface { .. }) && taken.to_string().contains("there already"),
        "{taken}"
    );

    let run = |words: &[&str]| {
        let mut process = host.spawn(&Launch::new(words[0]).args(&words[1..])).unwrap();
        let status = process.wait(PATIENCE).unwrap();
        (status.success(), process.stdout().unwrap() + &process.stderr().unwrap())
    };
    for words in
        [&["ip", "addr", "add", "10.78.0.1/24", "dev", "spw0"][..], &["ip", "link", "set", "spw0", "up"]]
    {
        let (is_done, printed) = run(words);
        assert!(is_done, "{printed}");
    }

    let stop = Stop::new().unwrap();
    let loops = std::thread::spawn({
        let stop = stop.clone();
        let start = Instant::now();
        move || {
            let mut driver = Driver::new(tap);
            driver
                .run(&mut Answers::default(), || Time::ZERO + start.elapsed(), &stop)
                .map(|()| driver.counters())
        }
    });
    let (is_answered, printed) =
        run(&["ping", "-c", "20", "-i", "0.01", "-s", "1400", "-w", "10", "10.78.0.2"]);
    assert!(is_answered && printed.contains(" 0% packet loss"), "{printed}");
    stop.set();
    let counters = loops.join().unwrap().unwrap();
    assert!(counters.received >= 21 && counters.sent >= 21 && counters.lost == 0, "{counters:?}");
    let (is_there, printed) = run(&["ip", "link", "show", "spw0"]);
    assert!(!is_there, "the interface goes with its descriptor: {printed}");
    lab.close().unwrap();
}
