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

const CHILD: &str = "SPILLWAY_TEST_DESCRIPTORS_CHILD";

/// The server process. Does nothing when it runs as an ordinary test.
#[test]
fn child() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    let running = Running::start(&Config::default(), 1);
    setrlimit(Resource::Nofile, Rlimit { current: Some(40), maximum: Some(40) }).expect("a lower limit");
    println!("address {}", running.address);
    for _ in std::io::stdin().lines() {
        let (turns, told) =
            running.remotes[0].ask(|_, app, _| (app.turns, app.refused.clone())).expect("it runs");
        assert!(told.iter().all(|(limit, _)| *limit == HostLimit::Descriptors), "{told:?}");
        let refused: u64 = told.iter().map(|(_, peers)| peers).sum();
        let notice = running.notices.try_iter().map(|notice| format!("{notice:?} ")).collect::<String>();
        println!("turns {turns} {refused} {notice}");
    }
    running.stop();
}

#[test]
fn peers_are_refused_others_unharmed_and_nothing_spins() {
    let mut child = Command::new(std::env::current_exe().expect("this test"))
        .args(["child", "--exact", "--nocapture"])
        .env(CHILD, "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("this test runs");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let mut next = |word: &str| loop {
        let line = lines.next().expect("the child speaks").expect("text");
        // The test harness prints on the same line before the child does.
        if let Some((_, rest)) = line.split_once(word) {
            return rest.trim().to_owned();
        }
    };
    let address: SocketAddr = next("address ").parse().expect("an address");
    let mut input = child.stdin.take().expect("piped");
    let mut ask = || {
        writeln!(input, "status").expect("the child reads");
        let status = next("turns ");
        let mut words = status.splitn(3, ' ');
        let mut number = || words.next().expect("a word").parse::<u64>().expect("a number");
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
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout");
        if echoes(&mut stream) { served.push(stream) } else { refused += 1 }
    }
    assert!(served.len() > 10 && refused > 20, "{} served, {refused} refused", served.len());
    let (before, told, notices) = ask();
    assert!(notices.contains("DescriptorsExhausted"), "{notices}");
    // Each peer connects alone and is reset when the listener closes. The kernel refuses peers while the listener is closed.
    assert!((1..=refused).contains(&told) && told >= refused - by_kernel, "{told} of {refused}, {by_kernel}");
    std::thread::sleep(Duration::from_millis(300));
    let (after, _, _) = ask();
    assert!(after - before < 20, "{} turns while nothing happened", after - before);

    assert!(served.iter_mut().all(echoes), "connections that were there are unharmed");
    served.truncate(served.len() / 2);
    let deadline = Instant::now() + Duration::from_secs(20);
    let again = || TcpStream::connect(address).is_ok_and(|mut stream| echoes(&mut stream));
    while !again() {
        assert!(Instant::now() < deadline, "freed descriptors serve new peers");
        std::thread::sleep(Duration::from_millis(5));
    }
    drop(input);
    assert!(child.wait().expect("the child ends").success());
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
