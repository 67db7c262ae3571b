//! The helpers of these tests are UDP sockets that send what the test chooses.

use std::net::UdpSocket;

use spillway_auth::{KeyRing, prove_load, verify_ask};
use spillway_wire::load::{ASK_BYTES, Load};
use spillway_wire::preamble::Role;

use super::*;

const PATIENCE: Duration = Duration::from_secs(20);

fn key() -> Key {
    Key::from_secret([2; 32])
}

struct Helper(UdpSocket);

impl Helper {
    fn new(ip: &str) -> Helper {
        let socket = UdpSocket::bind((ip, 0)).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        Helper(socket)
    }

    fn address(&self) -> SocketAddr {
        self.0.local_addr().unwrap()
    }

    fn target(&self) -> LinkTarget {
        LinkTarget { address: self.address(), key: key(), server: None, encryption: Default::default() }
    }

    /// The next question, and its source address.
    fn question(&self) -> (Question, SocketAddr) {
        let mut bytes = [0; ASK_BYTES + 1];
        let (length, from) = self.0.recv_from(&mut bytes).unwrap();
        let mut ring = KeyRing::new();
        ring.accept(Role::Client, key());
        (verify_ask(&ring, &bytes[..length]).unwrap().0, from)
    }

    /// Answers the next question with this load. Returns the question's source address.
    fn answer(&self, load: Load) -> SocketAddr {
        let (question, from) = self.question();
        let bytes = prove_load(&key(), &Load { nonce: question.nonce, ..load });
        self.0.send_to(&bytes, from).unwrap();
        from
    }
}

fn busy(load: u32) -> Load {
    Load { load, ..Load::default() }
}

/// Waits for this many answers. Then polls once, with the deadline as the present time, and returns the decision.
fn decide(ask: &mut Ask, answers: usize) -> Asked {
    let start = Instant::now();
    let mut answered = 0;
    while answered < answers {
        assert!(start.elapsed() < PATIENCE, "{answered} of {answers} answers after {PATIENCE:?}");
        if rustix::event::poll(
            &mut [rustix::event::PollFd::new(ask, rustix::event::PollFlags::IN)],
            Some(&rustix::event::Timespec { tv_sec: 1, tv_nsec: 0 }),
        )
        .unwrap()
            > 0
        {
            ask.handle_ready();
            answered = ask.questions.len() - ask.choice.silent();
        }
    }
    ask.poll(ask.poll_timeout()).expect("a decision at the deadline")
}

fn chosen(asked: Asked) -> (usize, u16, bool) {
    match asked {
        Asked::Helper { helper, local_port, heard } => (helper, local_port, heard),
        Asked::Nobody => panic!("no helper was chosen"),
    }
}

#[test]
fn the_least_loaded_is_chosen_as_soon_as_all_have_answered() {
    for ip in ["127.0.0.1", "::1"] {
        if UdpSocket::bind((ip, 0)).is_err() {
            println!("skipped: {ip}");
            continue;
        }
        let helpers = [Helper::new(ip), Helper::new(ip)];
        let targets = [helpers[0].target(), helpers[1].target()];
        let now = Instant::now();
        let mut ask = Ask::start(now, &targets, 2).unwrap();
        assert_eq!(ask.poll(now), None, "no helper has answered");
        let from = helpers[0].answer(busy(9));
        assert_eq!(helpers[1].answer(busy(5)).port(), from.port(), "all from one port");
        let _ = decide(&mut ask, 2);
        assert_eq!(chosen(ask.poll(now).expect("all have answered")), (1, from.port(), true));
    }
}

#[test]
fn helpers_of_both_families_are_asked_by_one_socket() {
    if UdpSocket::bind("[::1]:0").is_err() {
        println!("skipped: no IPv6");
        return;
    }
    let helpers = [Helper::new("127.0.0.1"), Helper::new("::1")];
    let mut ask = Ask::start(Instant::now(), &[helpers[0].target(), helpers[1].target()], 2).unwrap();
    let ports = [helpers[0].answer(busy(5)).port(), helpers[1].answer(busy(9)).port()];
    assert_eq!(ports[0], ports[1]);
    assert_eq!(chosen(decide(&mut ask, 2)), (0, ports[0], true));
}

#[test]
fn silent_helpers_are_chosen_only_if_no_helper_answers() {
    let (alive, dead) = (Helper::new("127.0.0.1"), Helper::new("127.0.0.1"));
    let targets = [alive.target(), dead.target()];
    drop(dead);
    let mut ask = Ask::start(Instant::now(), &targets, 2).unwrap();
    alive.answer(busy(999_999));
    assert_eq!(decide(&mut ask, 1), Asked::Helper { helper: 0, local_port: ask.local_port, heard: true });
    drop(alive);
    let mut ask = Ask::start(Instant::now(), &targets, 2).unwrap();
    assert!(!chosen(decide(&mut ask, 0)).2);
    let mut ask = Ask::start(Instant::now(), &[], 2).unwrap();
    assert_eq!(ask.poll(Instant::now()), Some(Asked::Nobody));
}

#[test]
fn no_helper_is_chosen_if_all_that_answer_are_full_or_draining() {
    let helpers = [Helper::new("127.0.0.1"), Helper::new("127.0.0.1")];
    let targets = [helpers[0].target(), helpers[1].target()];
    for second in [Some(Load { draining: true, ..busy(0) }), None] {
        let mut ask = Ask::start(Instant::now(), &targets, 2).unwrap();
        helpers[0].answer(Load { full: true, ..busy(0) });
        match second {
            Some(load) => drop(helpers[1].answer(load)),
            None => drop(helpers[1].question()),
        }
        assert_eq!(decide(&mut ask, 1 + usize::from(second.is_some())), Asked::Nobody);
    }
}

/// Datagrams that are not the helper's answer to this question are ignored.
#[test]
fn forged_stale_and_misaddressed_answers_are_ignored() {
    let (helper, stranger) = (Helper::new("127.0.0.1"), Helper::new("127.0.0.1"));
    let mut old = Ask::start(Instant::now(), &[helper.target()], 1).unwrap();
    let (old_question, _) = helper.question();
    let replayed = prove_load(&key(), &Load { nonce: old_question.nonce, ..Load::default() });
    assert!(!chosen(decide(&mut old, 0)).2);

    let mut ask = Ask::start(Instant::now(), &[helper.target()], 1).unwrap();
    let (question, from) = helper.question();
    let good = prove_load(&key(), &Load { nonce: question.nonce, ..Load::default() });
    let forged = prove_load(&Key::from_secret([3; 32]), &Load { nonce: question.nonce, ..Load::default() });
    let mut altered = good;
    altered[39] ^= 1;
    let long = [good.as_slice(), &[0]].concat();
    for bytes in [replayed.as_slice(), &forged, &altered, &long, &good[1..], b""] {
        helper.0.send_to(bytes, from).unwrap();
    }
    // The right answer from the wrong address.
    stranger.0.send_to(&good, from).unwrap();
    // The helper's last datagram: when it arrives, all of its earlier datagrams have arrived.
    let full = prove_load(&key(), &Load { nonce: question.nonce, full: true, ..Load::default() });
    helper.0.send_to(&full, from).unwrap();
    assert_eq!(decide(&mut ask, 1), Asked::Nobody, "only the last one was right, and it is full");
    // Only the first answer to a question counts.
    helper.0.send_to(&good, from).unwrap();
    ask.handle_ready();
    assert_eq!(ask.poll(ask.poll_timeout()), Some(Asked::Nobody));
}

/// A helper that always claims to be idle gets every client that asks it, and no others. A client asks two of the five
/// helpers, so that is two clients in five.
#[test]
fn a_helper_that_always_claims_to_be_idle_gets_only_clients_that_ask_it() {
    let helpers: Vec<Helper> = (0..5).map(|_| Helper::new("127.0.0.1")).collect();
    let targets: Vec<LinkTarget> = helpers.iter().map(Helper::target).collect();
    let mut asks: Vec<Ask> = Vec::new();
    for _ in 0..200 {
        let ask = Ask::start(Instant::now(), &targets, 2).unwrap();
        for helper in ask.choice.asked() {
            helpers[helper].answer(busy(if helper == 3 { 0 } else { 500_000 }));
        }
        asks.push(ask);
    }
    let asked = asks.iter().filter(|ask| ask.choice.asked().any(|helper| helper == 3)).count();
    let went = asks.iter_mut().map(|ask| decide(ask, 2)).filter(|asked| chosen(*asked).0 == 3).count();
    assert_eq!(went, asked);
    assert!((40..120).contains(&went), "about two in five of 200: {went}");
}

#[test]
fn concurrent_asks_use_different_ports() {
    let helpers: Vec<Helper> = (0..3).map(|_| Helper::new("127.0.0.1")).collect();
    let targets: Vec<LinkTarget> = helpers.iter().map(Helper::target).collect();
    let mut asks = Vec::new();
    for _ in 0..1000 {
        match Ask::start(Instant::now(), &targets, 2) {
            Ok(ask) => asks.push(ask),
            // Test runners may be short of descriptors.
            Err(error) => {
                assert!(asks.len() > 200, "{error}");
                break;
            }
        }
        for helper in asks.last().unwrap().choice.asked() {
            helpers[helper].answer(busy(1));
        }
    }
    let mut ports: Vec<u16> = asks.iter_mut().map(|ask| chosen(decide(ask, 2)).1).collect();
    ports.sort_unstable();
    ports.dedup();
    assert_eq!(ports.len(), asks.len(), "each has a port of its own");
}
