//! In these tests a helper is a UDP socket, and the test sends its answers.

use std::net::UdpSocket;

use spillway_auth::{KeyRing, prove_load, verify_query};
use spillway_wire::load::{LOAD_QUERY_BYTES, LoadReport};
use spillway_wire::preamble::Role;

use super::*;

const WAIT_MAX: Duration = Duration::from_secs(20);

fn key() -> Key {
    Key::from_secret([2; 32])
}

struct Helper(UdpSocket);

impl Helper {
    fn new(ip: &str) -> Helper {
        let socket = UdpSocket::bind((ip, 0)).unwrap();
        socket.set_read_timeout(Some(WAIT_MAX)).unwrap();
        Helper(socket)
    }

    fn address(&self) -> SocketAddr {
        self.0.local_addr().unwrap()
    }

    fn target(&self) -> LinkTarget {
        LinkTarget { address: self.address(), key: key(), server: None, encryption: Default::default() }
    }

    /// The next query, and its source address.
    fn query(&self) -> (LoadQuery, SocketAddr) {
        let mut bytes = [0; LOAD_QUERY_BYTES + 1];
        let (length, from) = self.0.recv_from(&mut bytes).unwrap();
        let mut ring = KeyRing::new();
        ring.accept(Role::Client, key());
        (verify_query(&ring, &bytes[..length]).unwrap().0, from)
    }

    /// Answers the next query with this load. Returns the query's source address.
    fn answer(&self, load: LoadReport) -> SocketAddr {
        let (query, from) = self.query();
        let bytes = prove_load(&key(), &LoadReport { nonce: query.nonce, ..load });
        self.0.send_to(&bytes, from).unwrap();
        from
    }
}

fn with_load(load: u32) -> LoadReport {
    LoadReport { load, ..LoadReport::default() }
}

/// Waits for this many answers. Then polls once, with the deadline as the present time, and returns the decision.
fn decide(queries: &mut LoadQueries, answers: usize) -> LoadQueryOutcome {
    let start = Instant::now();
    let mut answered = 0;
    while answered < answers {
        assert!(start.elapsed() < WAIT_MAX, "{answered} of {answers} answers after {WAIT_MAX:?}");
        if rustix::event::poll(
            &mut [rustix::event::PollFd::new(queries, rustix::event::PollFlags::IN)],
            Some(&rustix::event::Timespec { tv_sec: 1, tv_nsec: 0 }),
        )
        .unwrap()
            > 0
        {
            queries.handle_ready();
            answered = queries.outstanding.len() - queries.choice.unanswered();
        }
    }
    queries.poll(queries.poll_timeout()).expect("there should be a decision at the deadline")
}

fn chosen(outcome: LoadQueryOutcome) -> (usize, u16, bool) {
    match outcome {
        LoadQueryOutcome::Helper { helper, local_port, answered } => (helper, local_port, answered),
        LoadQueryOutcome::NoHelper => panic!("a helper should be chosen"),
    }
}

#[test]
fn the_least_loaded_is_chosen_as_soon_as_all_have_answered() {
    for ip in ["127.0.0.1", "::1"] {
        if UdpSocket::bind((ip, 0)).is_err() {
            println!("skipped: no socket at {ip}");
            continue;
        }
        let helpers = [Helper::new(ip), Helper::new(ip)];
        let targets = [helpers[0].target(), helpers[1].target()];
        let now = Instant::now();
        let mut queries = LoadQueries::start(now, &targets, 2).unwrap();
        assert_eq!(queries.poll(now), None, "there should be no decision before the first answer");
        let from = helpers[0].answer(with_load(9));
        assert_eq!(
            helpers[1].answer(with_load(5)).port(),
            from.port(),
            "all queries should come from one port"
        );
        let _ = decide(&mut queries, 2); // receives both answers
        let outcome = queries.poll(now).expect("there should be a decision after all answers");
        assert_eq!(chosen(outcome), (1, from.port(), true));
    }
}

#[test]
fn helpers_of_both_address_families_are_queried_by_one_socket() {
    if UdpSocket::bind("[::1]:0").is_err() {
        println!("skipped: no IPv6");
        return;
    }
    let helpers = [Helper::new("127.0.0.1"), Helper::new("::1")];
    let mut queries =
        LoadQueries::start(Instant::now(), &[helpers[0].target(), helpers[1].target()], 2).unwrap();
    let ports = [helpers[0].answer(with_load(5)).port(), helpers[1].answer(with_load(9)).port()];
    assert_eq!(ports[0], ports[1]);
    assert_eq!(chosen(decide(&mut queries, 2)), (0, ports[0], true));
}

#[test]
fn a_host_without_ipv6_uses_an_ipv4_socket() {
    let open = |is_ipv6: bool| if is_ipv6 { Err(Errno::AFNOSUPPORT.into()) } else { Ok("IPv4") };
    assert_eq!(open_or_fall_back(true, open).unwrap(), ("IPv4", false));
    assert_eq!(open_or_fall_back(false, open).unwrap(), ("IPv4", false));
    assert_eq!(open_or_fall_back(true, |_| Ok(())).unwrap(), ((), true));
    assert!(open_or_fall_back(true, |_| Err::<(), _>(Errno::MFILE.into())).is_err());
}

#[test]
fn silent_helpers_are_chosen_only_if_no_helper_answers() {
    let (alive, dead) = (Helper::new("127.0.0.1"), Helper::new("127.0.0.1"));
    let targets = [alive.target(), dead.target()];
    drop(dead);
    let mut queries = LoadQueries::start(Instant::now(), &targets, 2).unwrap();
    alive.answer(with_load(999_999));
    assert_eq!(
        decide(&mut queries, 1),
        LoadQueryOutcome::Helper { helper: 0, local_port: queries.local_port, answered: true }
    );
    drop(alive);
    let mut queries = LoadQueries::start(Instant::now(), &targets, 2).unwrap();
    assert!(!chosen(decide(&mut queries, 0)).2);
    let mut queries = LoadQueries::start(Instant::now(), &[], 2).unwrap();
    assert_eq!(queries.poll(Instant::now()), Some(LoadQueryOutcome::NoHelper));
}

#[test]
fn no_helper_is_chosen_if_all_that_answer_are_full_or_draining() {
    let helpers = [Helper::new("127.0.0.1"), Helper::new("127.0.0.1")];
    let targets = [helpers[0].target(), helpers[1].target()];
    for second in [Some(LoadReport { draining: true, ..with_load(0) }), None] {
        let mut queries = LoadQueries::start(Instant::now(), &targets, 2).unwrap();
        helpers[0].answer(LoadReport { full: true, ..with_load(0) });
        match second {
            Some(load) => drop(helpers[1].answer(load)),
            None => drop(helpers[1].query()),
        }
        assert_eq!(decide(&mut queries, 1 + usize::from(second.is_some())), LoadQueryOutcome::NoHelper);
    }
}

#[test]
fn forged_stale_and_misaddressed_answers_are_ignored() {
    let (helper, other_socket) = (Helper::new("127.0.0.1"), Helper::new("127.0.0.1"));
    let mut old = LoadQueries::start(Instant::now(), &[helper.target()], 1).unwrap();
    let (old_query, _) = helper.query();
    let replayed = prove_load(&key(), &LoadReport { nonce: old_query.nonce, ..LoadReport::default() });
    assert!(!chosen(decide(&mut old, 0)).2);

    let mut queries = LoadQueries::start(Instant::now(), &[helper.target()], 1).unwrap();
    let (query, from) = helper.query();
    let good = prove_load(&key(), &LoadReport { nonce: query.nonce, ..LoadReport::default() });
    let forged =
        prove_load(&Key::from_secret([3; 32]), &LoadReport { nonce: query.nonce, ..LoadReport::default() });
    let mut altered = good;
    altered[39] ^= 1;
    let long = [good.as_slice(), &[0]].concat();
    for bytes in [replayed.as_slice(), &forged, &altered, &long, &good[1..], b""] {
        helper.0.send_to(bytes, from).unwrap();
    }
    // A valid answer, but from another address.
    other_socket.0.send_to(&good, from).unwrap();
    // The helper's last datagram: when it arrives, all of its earlier datagrams have arrived.
    let full = prove_load(&key(), &LoadReport { nonce: query.nonce, full: true, ..LoadReport::default() });
    helper.0.send_to(&full, from).unwrap();
    assert_eq!(
        decide(&mut queries, 1),
        LoadQueryOutcome::NoHelper,
        "only the last answer should count, which says that the helper is full"
    );
    // Only the first answer to a query counts.
    helper.0.send_to(&good, from).unwrap();
    queries.handle_ready();
    assert_eq!(queries.poll(queries.poll_timeout()), Some(LoadQueryOutcome::NoHelper));
}

/// Helper 3 always claims to be idle. Each client queries two of the five helpers, so that two in five clients query
/// helper 3.
#[test]
fn a_helper_that_always_claims_to_be_idle_gets_only_clients_that_query_it() {
    let helpers: Vec<Helper> = (0..5).map(|_| Helper::new("127.0.0.1")).collect();
    let targets: Vec<LinkTarget> = helpers.iter().map(Helper::target).collect();
    let mut by_client: Vec<LoadQueries> = Vec::new();
    for _ in 0..200 {
        let queries = LoadQueries::start(Instant::now(), &targets, 2).unwrap();
        for helper in queries.choice.helpers_asked() {
            helpers[helper].answer(with_load(if helper == 3 { 0 } else { 500_000 }));
        }
        by_client.push(queries);
    }
    let queried_count =
        by_client.iter().filter(|queries| queries.choice.helpers_asked().any(|helper| helper == 3)).count();
    let outcomes = by_client.iter_mut().map(|queries| decide(queries, 2));
    let chosen_count = outcomes.filter(|outcome| chosen(*outcome).0 == 3).count();
    assert_eq!(chosen_count, queried_count);
    assert!(
        (40..120).contains(&chosen_count),
        "about 80 of 200 clients should choose helper 3, but {chosen_count} did"
    );
}

#[test]
fn concurrent_load_queries_use_different_ports() {
    let helpers: Vec<Helper> = (0..3).map(|_| Helper::new("127.0.0.1")).collect();
    let targets: Vec<LinkTarget> = helpers.iter().map(Helper::target).collect();
    let mut by_client = Vec::new();
    for _ in 0..1000 {
        match LoadQueries::start(Instant::now(), &targets, 2) {
            Ok(queries) => by_client.push(queries),
            // The test may have a low limit on descriptors.
            Err(error) => {
                assert!(by_client.len() > 200, "{error}");
                break;
            }
        }
        for helper in by_client.last().unwrap().choice.helpers_asked() {
            helpers[helper].answer(with_load(1));
        }
    }
    let mut ports: Vec<u16> = by_client.iter_mut().map(|queries| chosen(decide(queries, 2)).1).collect();
    ports.sort_unstable();
    ports.dedup();
    assert_eq!(ports.len(), by_client.len(), "each client should query from its own port");
}
