//! Contexts on threads: shared ports, limits, commands, idle cost, and unusual peers.

mod common;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use common::{Echo, Running};
use spillway_net::{Clock, Config, Context, Listeners, Notice, Unreachable};
use spillway_transport::conformance::{Probe, Seen};
use spillway_transport::{HostLimit, LostReason, Transport};

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).expect("the listener accepts");
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout");
    stream
}

fn echo(stream: &mut TcpStream, bytes: &[u8]) {
    stream.write_all(bytes).expect("a live connection");
    let mut back = vec![0; bytes.len()];
    stream.read_exact(&mut back).expect("an answer");
    assert_eq!(back, bytes);
}

#[test]
fn contexts_share_a_port_and_the_work() {
    let running = Running::start(&Config::default(), 2);
    let mut streams: Vec<_> = (0..64).map(|_| connect(running.address)).collect();
    for round in 0..20_u8 {
        streams.iter_mut().for_each(|stream| echo(stream, &[round; 300]));
    }
    let opened: Vec<u64> =
        running.remotes.iter().map(|remote| remote.ask(|_, app, _| app.opened).expect("it runs")).collect();
    assert_eq!(opened.iter().sum::<u64>(), 64);
    assert!(opened.iter().all(|count| *count > 0), "the kernel spreads connections: {opened:?}");
    // The server finishes when the client does.
    for stream in &mut streams {
        stream.shutdown(std::net::Shutdown::Write).expect("a live connection");
        assert_eq!(stream.read(&mut [0; 16]).expect("an end"), 0);
    }
    let remote = running.remotes[0].clone();
    running.stop();
    assert_eq!(remote.ask(|_, _, _| ()), Err(Unreachable), "a context that has ended takes no commands");
    assert_eq!(remote.run(|_, _, _| ()), Err(Unreachable));
}

#[test]
fn an_idle_context_sleeps() {
    let running = Running::start(&Config::default(), 1);
    let mut stream = connect(running.address);
    echo(&mut stream, b"hello");
    let turns = || running.remotes[0].ask(|_, app, _| app.turns).expect("it runs");
    let before = turns();
    std::thread::sleep(Duration::from_millis(300));
    // Only the command itself has caused a turn.
    assert_eq!(turns(), before + 1);
    running.stop();
}

#[test]
fn an_address_in_use_is_told_at_start() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let address = taken.local_addr().expect("bound");
    let error = Listeners::bind(&[address], 2, &Config::default()).expect_err("taken");
    assert_eq!(error.address, address);
    assert!(error.to_string().contains("another program listens there"), "{error}");
    // Another program of ours that listens does not share its port either.
    let running = Running::start(&Config::default(), 2);
    let error = Listeners::bind(&[running.address], 1, &Config::default()).expect_err("taken");
    assert!(error.to_string().contains("another program listens there"), "{error}");
    running.stop();
    let error = Listeners::bind(&["192.0.2.1:80".parse().expect("an address")], 1, &Config::default());
    assert!(error.expect_err("not ours").to_string().contains("no interface"));
}

#[test]
fn connections_beyond_the_limit_are_reset_and_others_do_not_notice() {
    let running = Running::start(&Config { connections_max: 3, ..Config::default() }, 1);
    let mut served: Vec<_> = (0..3).map(|_| connect(running.address)).collect();
    served.iter_mut().for_each(|stream| echo(stream, b"in"));
    for _ in 0..5 {
        let mut refused = connect(running.address);
        let end = refused.read(&mut [0; 1]);
        assert!(matches!(&end, Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset), "{end:?}");
    }
    served.iter_mut().for_each(|stream| echo(stream, b"still in"));
    assert_eq!(running.notices.try_recv(), Ok(Notice::ConnectionsExhausted { refused: 1 }));
    let told = running.remotes[0].ask(|_, app, _| app.refused.clone());
    assert_eq!(told, Ok(vec![(HostLimit::Connections, 1); 5]), "each is told");
    drop(served.pop());
    let deadline = Instant::now() + Duration::from_secs(20);
    while running.remotes[0].ask(|_, _, sockets| sockets.connections()) != Ok(2) {
        assert!(Instant::now() < deadline, "a closed connection makes room");
    }
    echo(&mut connect(running.address), b"room again");
    running.stop();
}

#[test]
fn urgent_data_is_data() {
    let running = Running::start(&Config::default(), 1);
    let mut stream = connect(running.address);
    for _ in 0..50 {
        stream.write_all(b"before ").expect("a live connection");
        rustix::net::send(&stream, b"!", rustix::net::SendFlags::OOB).expect("a live connection");
        stream.write_all(b" after").expect("a live connection");
        let mut back = [0; 14];
        stream.read_exact(&mut back).expect("an answer");
        assert_eq!(&back, b"before ! after");
    }
    running.stop();
}

#[test]
fn bytes_before_a_reset_or_an_end_are_not_lost() {
    let running = Running::start(&Config::default(), 1);
    for _ in 0..200 {
        let mut stream = connect(running.address);
        let bytes = [7; 90_000];
        stream.write_all(&bytes).expect("a live connection");
        stream.shutdown(std::net::Shutdown::Write).expect("a live connection");
        let mut back = Vec::new();
        stream.read_to_end(&mut back).expect("all of it, then the end");
        assert_eq!(back, bytes);
    }
    let deadline = Instant::now() + Duration::from_secs(20);
    while running.remotes[0].ask(|_, app, sockets| (app.lost, sockets.connections())) != Ok((200, 0)) {
        assert!(Instant::now() < deadline, "every connection is freed");
    }
    running.stop();
}

#[test]
fn a_peer_that_never_reads_is_met_with_a_bound_and_harms_nobody() {
    let config = Config { queued_bytes_max: 10_000, ..Config::default() };
    let bound = Listeners::bind(&["127.0.0.1:0".parse().expect("an address")], 1, &config).expect("loopback");
    let address = bound.addresses()[0];
    let mut context =
        Context::new(config, bound.into_contexts().remove(0), Clock::start(), Probe::new(), |notice| {
            panic!("{notice}")
        })
        .expect("descriptors");
    context.command(|_, _, out| out.set_listening(0, true));
    let streams = [connect(address), connect(address)];
    while context.command(|_, probe, _| probe.accepted().len()) < 2 {
        context.turn(Some(Duration::from_millis(1))).expect("a turn");
    }
    // The kernel's buffers are bounded, so sending comes to a standstill.
    let mut idle = 0;
    while idle < 50 {
        let taken = context.command(|_, probe, out| {
            let conn = probe.accepted()[0];
            let taken = out.send(conn, &[1; 30_000]);
            assert!(out.queued(conn) <= 10_000);
            taken
        });
        idle = if taken == 0 { idle + 1 } else { 0 };
        context.turn(Some(Duration::from_millis(1))).expect("a turn");
    }
    context.command(|_, probe, out| assert_eq!(out.send(probe.accepted()[1], b"unharmed"), 8));
    let mut back = [0; 8];
    (&streams[1]).read_exact(&mut back).expect("the other connection works");
    assert_eq!(&back, b"unharmed");
}

#[test]
fn patience_waits_for_the_application_and_never_longer() {
    let config = Config { input_patience: Duration::from_secs(60), ..Config::default() };
    let bound = Listeners::bind(&["127.0.0.1:0".parse().expect("an address")], 1, &config).expect("loopback");
    let (address, clock) = (bound.addresses()[0], Clock::start());
    let listeners = bound.into_contexts().remove(0);
    let mut context = Context::new(config, listeners, clock, Probe::new(), |notice| panic!("{notice}"))
        .expect("descriptors");
    let elsewhere = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let target = elsewhere.local_addr().expect("bound");
    let ours = context.command(|now, probe, out| {
        out.set_listening(0, true);
        probe.grant_on_open = 1000;
        out.connect(now, target).expect("room")
    });
    let client = connect(address);
    let (mut server, _) = elsewhere.accept().expect("our connection");
    while context.command(|_, probe, _| probe.accepted().is_empty() || probe.of(ours).is_empty()) {
        context.turn(None).expect("a turn");
    }
    let theirs = context.command(|_, probe, _| probe.accepted()[0]);

    // Data of an opened connection is handled before the deadline, data of an accepted one at the deadline.
    context.command(|now, probe, _| probe.timeout = Some(now + Duration::from_secs(1)));
    (&client).write_all(&[0]).expect("a live connection");
    server.write_all(&[0]).expect("a live connection");
    while context.command(|_, probe, _| probe.received(ours)) == 0 {
        context.turn(None).expect("a turn");
    }
    let (early, timeouts) = context.command(|_, probe, _| (probe.received(theirs), probe.timeouts.len()));
    if timeouts == 0 {
        assert_eq!(early, 0, "an accepted connection woke us before the deadline");
    } else {
        println!("not checked: this machine stood still for a second");
    }
    while context.command(|_, probe, _| probe.timeouts.is_empty()) {
        context.turn(None).expect("a turn");
    }
    assert_eq!(
        context.command(|_, probe, _| probe.received(theirs)),
        1,
        "handled before the deadline's work"
    );

    // Without a deadline no event waits.
    (&client).write_all(&[1]).expect("a live connection");
    while context.command(|_, probe, _| probe.received(theirs)) < 2 {
        context.turn(None).expect("a turn");
    }
}

#[test]
fn a_connect_without_an_answer_times_out() {
    // A listener whose queue is full does not answer SYNs.
    let silent = rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::STREAM, None)
        .expect("a socket");
    rustix::net::bind(&silent, &"127.0.0.1:0".parse::<SocketAddr>().expect("an address")).expect("loopback");
    rustix::net::listen(&silent, 0).expect("bound");
    let target = SocketAddr::try_from(rustix::net::getsockname(&silent).expect("bound")).expect("internet");
    let filler: Vec<OwnedFd> = (0..8).map(|_| start_connecting(target)).collect();

    let config = Config { connect_timeout: Duration::from_millis(50), ..Config::default() };
    let mut context =
        Context::new(config, Default::default(), Clock::start(), Probe::new(), |notice| panic!("{notice}"))
            .expect("descriptors");
    let conn = context.command(|now, _, out| out.connect(now, target)).expect("room");
    let deadline = Instant::now() + Duration::from_secs(20);
    while context.command(|_, probe, _| probe.of(conn).is_empty()) {
        context.turn(None).expect("a turn");
        assert!(Instant::now() < deadline, "the attempt ends");
    }
    assert_eq!(context.command(|_, probe, _| probe.of(conn)), [Seen::Lost(LostReason::TimedOut)]);
    drop(filler);
}

fn start_connecting(target: SocketAddr) -> OwnedFd {
    let flags = rustix::net::SocketFlags::NONBLOCK;
    let (family, kind) = (rustix::net::AddressFamily::INET, rustix::net::SocketType::STREAM);
    let fd = rustix::net::socket_with(family, kind, flags, None).expect("a socket");
    // In progress, or established while the queue has room.
    let _ = rustix::net::connect(&fd, &target);
    fd
}

#[test]
fn a_full_table_refuses_to_connect() {
    let config = Config { connections_max: 1, ..Config::default() };
    let mut context = Context::new(config, Default::default(), Clock::start(), Echo::default(), |_| ())
        .expect("descriptors");
    let running = Running::start(&Config::default(), 1);
    let target = running.address;
    context.command(|now, _, out| {
        let first = out.connect(now, target).expect("room for one");
        out.connect(now, target).expect_err("the table is full");
        out.abort(first);
        out.connect(now, target).expect("room again");
    });
    running.stop();
}
