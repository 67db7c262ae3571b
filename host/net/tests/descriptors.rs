//! Behaviour without free file descriptors. The test runs in a process of its own, because the limit is per process.

mod common;

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::Running;
use rustix::process::{Resource, Rlimit, setrlimit};
use spillway_net::Config;
use spillway_transport::HostLimit;

const SERVER_VARIABLE: &str = "SPILLWAY_TEST_DESCRIPTORS_CHILD";

/// The server process. Does nothing when it runs as an ordinary test.
#[test]
fn server_process() {
    if std::env::var_os(SERVER_VARIABLE).is_none() {
        return;
    }
    let running = Running::start(&Config::default(), 1);
    setrlimit(Resource::Nofile, Rlimit { current: Some(40), maximum: Some(40) }).unwrap();
    println!("address {}", running.address);
    for _ in std::io::stdin().lines() {
        let (turns, reported) =
            running.remotes[0].run_and_wait(|_, app, _| (app.turns, app.refused.clone())).unwrap();
        let is_valid = |(limit, peers): &(HostLimit, u64)| *limit == HostLimit::Descriptors && *peers > 0;
        assert!(reported.iter().all(is_valid), "{reported:?}");
        let refused: u64 = reported.iter().map(|(_, peers)| peers).sum();
        let notice = running.notices.try_iter().map(|notice| format!("{notice:?} ")).collect::<String>();
        println!("turns {turns} {refused} {notice}");
    }
    running.stop();
}

#[test]
fn without_descriptors_new_peers_are_refused_and_the_thread_does_not_spin() {
    let mut server_process = Command::new(std::env::current_exe().unwrap())
        .args(["server_process", "--exact", "--nocapture"])
        .env(SERVER_VARIABLE, "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("this test program should start");
    let mut lines = BufReader::new(server_process.stdout.take().unwrap()).lines();
    let mut line_after = |prefix: &str| loop {
        let line = lines.next().expect("the server process should print a line").unwrap();
        // The test harness prints on the same line before the child does.
        if let Some((_, rest)) = line.split_once(prefix) {
            return rest.trim().to_owned();
        }
    };
    let address: SocketAddr = line_after("address ").parse().unwrap();
    let mut input = server_process.stdin.take().unwrap();
    let mut query_status = || {
        writeln!(input, "status").expect("the server process should accept a command");
        let status = line_after("turns ");
        let mut words = status.splitn(3, ' ');
        let mut number = || words.next().unwrap().parse::<u64>().unwrap();
        let (turns, refused) = (number(), number());
        (turns, refused, words.next().unwrap_or("").to_owned())
    };

    let (mut served, mut refused, mut by_kernel) = (Vec::new(), 0, 0);
    for _ in 0..80 {
        // An error: the peer was reset while it waited to be accepted, or it was refused.
        let Ok(mut stream) = TcpStream::connect(address) else {
            (refused, by_kernel) = (refused + 1, by_kernel + 1);
            continue;
        };
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        if echoes(&mut stream) { served.push(stream) } else { refused += 1 }
    }
    assert!(
        served.len() > 10 && refused > 20,
        "more than 10 peers should be served and more than 20 refused: {} and {refused}",
        served.len()
    );
    let (before, reported, notices) = query_status();
    assert!(notices.contains("DescriptorsExhausted"), "{notices}");
    // Peers connect one after the other. The transport reports the peer that is reset when the listener closes; the
    // kernel refuses further peers until the listener opens again.
    assert!(
        (1..=refused).contains(&reported) && reported >= refused - by_kernel,
        "peers not refused by the kernel should be reported: {reported} of {refused}, kernel: {by_kernel}"
    );
    std::thread::sleep(Duration::from_millis(300));
    let (after, _, _) = query_status();
    assert!(
        after - before < 20,
        "an idle context should run fewer than 20 turns in 300 ms: {}",
        after - before
    );

    assert!(served.iter_mut().all(echoes), "established connections should still be served");
    served.truncate(served.len() / 2);
    let deadline = Instant::now() + Duration::from_secs(20);
    let is_served = || TcpStream::connect(address).is_ok_and(|mut stream| echoes(&mut stream));
    while !is_served() {
        assert!(Instant::now() < deadline, "a freed descriptor should serve a new peer within 20 s");
        std::thread::sleep(Duration::from_millis(5));
    }
    drop(input);
    assert!(server_process.wait().expect("the server process should end").success());
}

fn echoes(stream: &mut TcpStream) -> bool {
    let mut back = [0; 5];
    match stream.write_all(b"hello").and_then(|()| stream.read_exact(&mut back)) {
        Ok(()) => back == *b"hello",
        Err(error) => {
            let kinds = [ErrorKind::ConnectionReset, ErrorKind::BrokenPipe, ErrorKind::UnexpectedEof];
            assert!(kinds.contains(&error.kind()), "{error}");
            false
        }
    }
}
