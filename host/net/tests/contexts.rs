//! Contexts on threads: shared ports, limits, commands, idle cost, and unusual peers.

mod common;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use common::{Echo, Running};
use spillway_net::{Clock, Config, Context, Listeners, Notice, Unreachable};
use spillway_transport::conformance::{Probe, Seen, pattern};
use spillway_transport::{HostLimit, LostReason, Transport};

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).expect("the listener should accept a connection");
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream
}

fn echo(stream: &mut TcpStream, bytes: &[u8]) {
    stream.write_all(bytes).unwrap();
    let mut back = vec![0; bytes.len()];
    stream.read_exact(&mut back).unwrap();
    assert_eq!(back, bytes);
}

#[test]
fn contexts_share_a_port_and_its_connections() {
    let running = Running::start(&Config::default(), 2);
    let mut streams: Vec<_> = (0..64).map(|_| connect(running.address)).collect();
    for round in 0..20_u8 {
        streams.iter_mut().for_each(|stream| echo(stream, &[round; 300]));
    }
    let opened: Vec<u64> =
        running.remotes.iter().map(|remote| remote.run_and_wait(|_, app, _| app.opened).unwrap()).collect();
    assert_eq!(opened.iter().sum::<u64>(), 64);
    assert!(opened.iter().all(|count| *count > 0), "each context should open connections: {opened:?}");
    // The server ends its direction when the client has ended its own.
    for stream in &mut streams {
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(stream.read(&mut [0; 16]).unwrap(), 0);
    }
    let remote = running.remotes[0].clone();
    running.stop();
    assert_eq!(
        remote.run_and_wait(|_, _, _| ()),
        Err(Unreachable),
        "an ended context should reject commands"
    );
    assert_eq!(remote.run(|_, _, _| ()), Err(Unreachable));
}

#[test]
fn idle_context_runs_no_turns() {
    let running = Running::start(&Config::default(), 1);
    let mut stream = connect(running.address);
    echo(&mut stream, b"hello");
    let turns = || running.remotes[0].run_and_wait(|_, app, _| app.turns).unwrap();
    let before = turns();
    std::thread::sleep(Duration::from_millis(300));
    // Only the command of `turns` has caused a turn.
    assert_eq!(turns(), before + 1);
    running.stop();
}

#[test]
fn bind_of_an_unusable_address_gives_the_reason() {
    let busy = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = busy.local_addr().unwrap();
    let error = Listeners::bind(&[address], 2, &Config::default()).unwrap_err();
    assert_eq!(error.address, address);
    assert!(error.to_string().contains("another program listens there"), "{error}");
    // Listeners of another set do not share their port either.
    let running = Running::start(&Config::default(), 2);
    let error = Listeners::bind(&[running.address], 1, &Config::default()).unwrap_err();
    assert!(error.to_string().contains("another program listens there"), "{error}");
    running.stop();
    let error = Listeners::bind(&["192.0.2.1:80".parse().unwrap()], 1, &Config::default());
    assert!(error.unwrap_err().to_string().contains("no interface"));
}

#[test]
fn connections_beyond_the_limit_are_reset_and_others_are_served() {
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
    let reported = running.remotes[0].run_and_wait(|_, app, _| app.refused.clone());
    assert_eq!(reported, Ok(vec![(HostLimit::Connections, 1); 5]), "each reset should be reported");
    drop(served.pop());
    let deadline = Instant::now() + Duration::from_secs(20);
    while running.remotes[0].run_and_wait(|_, _, sockets| sockets.connections()) != Ok(2) {
        assert!(Instant::now() < deadline, "a closed connection should free its slot within 20 s");
    }
    echo(&mut connect(running.address), b"room again");
    running.stop();
}

#[test]
fn urgent_data_stays_in_the_stream() {
    let running = Running::start(&Config::default(), 1);
    let mut stream = connect(running.address);
    for _ in 0..50 {
        stream.write_all(b"before ").unwrap();
        rustix::net::send(&stream, b"!", rustix::net::SendFlags::OOB).unwrap();
        stream.write_all(b" after").unwrap();
        let mut back = [0; 14];
        stream.read_exact(&mut back).unwrap();
        assert_eq!(&back, b"before ! after");
    }
    running.stop();
}

#[test]
fn all_bytes_before_the_end_are_echoed_and_the_connection_is_freed() {
    let running = Running::start(&Config::default(), 1);
    for _ in 0..200 {
        let mut stream = connect(running.address);
        let bytes = [7; 90_000];
        stream.write_all(&bytes).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut back = Vec::new();
        stream.read_to_end(&mut back).expect("the stream should end in order");
        assert_eq!(back, bytes);
    }
    let deadline = Instant::now() + Duration::from_secs(20);
    while running.remotes[0].run_and_wait(|_, app, sockets| (app.lost, sockets.connections())) != Ok((200, 0))
    {
        assert!(Instant::now() < deadline, "all connections should be freed within 20 s");
    }
    running.stop();
}

/// Linux keeps what it received before a reset. The application gets as much of that as it has granted; the report of
/// the loss does not wait for a further grant.
#[test]
fn granted_bytes_before_a_reset_are_delivered() {
    let (config, address) = (Config::default(), "127.0.0.1:0".parse().unwrap());
    for granted in [0, 400, 1000, 2000] {
        let bound = Listeners::bind(&[address], 1, &config).unwrap();
        let address = bound.addresses()[0];
        let listeners = bound.into_contexts().remove(0);
        let hook = |notice| panic!("{notice}");
        let mut context =
            Context::new(config.clone(), listeners, Clock::start(), Probe::new(), hook).unwrap();
        context.command(|_, _, out| out.set_listening(0, true));
        let mut stream = connect(address);
        while context.command(|_, probe, _| probe.accepted().is_empty()) {
            context.turn(Some(Duration::from_millis(1))).unwrap();
        }
        let bytes: Vec<u8> = (0..1000).map(pattern).collect();
        stream.write_all(&bytes).unwrap();
        rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
        drop(stream);
        // The grant takes effect after the reset has arrived: loopback delivers within the call.
        let conn = context.command(|_, probe, out| {
            let conn = probe.accepted()[0];
            probe.grant(conn, granted, out);
            conn
        });
        let deadline = Instant::now() + Duration::from_secs(20);
        while !context.command(|_, probe, _| probe.saw(conn, Seen::Lost(LostReason::Reset))) {
            assert!(Instant::now() < deadline, "the loss should be reported within 20 s");
            context.turn(Some(Duration::from_millis(1))).unwrap();
        }
        assert_eq!(context.command(|_, probe, _| probe.received(conn)), u64::from(granted.min(1000)));
    }
}

#[test]
fn queue_of_a_peer_that_does_not_read_is_bounded_and_others_are_served() {
    let config = Config { queued_bytes_max: 10_000, ..Config::default() };
    let bound = Listeners::bind(&["127.0.0.1:0".parse().unwrap()], 1, &config).unwrap();
    let address = bound.addresses()[0];
    let mut context =
        Context::new(config, bound.into_contexts().remove(0), Clock::start(), Probe::new(), |notice| {
            panic!("{notice}")
        })
        .unwrap();
    context.command(|_, _, out| out.set_listening(0, true));
    let streams = [connect(address), connect(address)];
    while context.command(|_, probe, _| probe.accepted().len()) < 2 {
        context.turn(Some(Duration::from_millis(1))).unwrap();
    }
    // The kernel's buffers are bounded, so `send` accepts no more bytes in the end.
    let mut rejected_sends = 0;
    while rejected_sends < 50 {
        let sent = context.command(|_, probe, out| {
            let conn = probe.accepted()[0];
            let sent = out.send(conn, &[1; 30_000]);
            assert!(out.queued(conn) <= 10_000);
            sent
        });
        rejected_sends = if sent == 0 { rejected_sends + 1 } else { 0 };
        context.turn(Some(Duration::from_millis(1))).unwrap();
    }
    context.command(|_, probe, out| assert_eq!(out.send(probe.accepted()[1], b"is served"), 9));
    let mut back = [0; 9];
    (&streams[1]).read_exact(&mut back).expect("the other connection should be served");
    assert_eq!(&back, b"is served");
}

#[test]
fn events_of_accepted_connections_wait_until_the_deadline_at_most() {
    let config = Config { input_patience: Duration::from_secs(60), ..Config::default() };
    let bound = Listeners::bind(&["127.0.0.1:0".parse().unwrap()], 1, &config).unwrap();
    let (address, clock) = (bound.addresses()[0], Clock::start());
    let listeners = bound.into_contexts().remove(0);
    let mut context =
        Context::new(config, listeners, clock, Probe::new(), |notice| panic!("{notice}")).unwrap();
    let remote_listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let target = remote_listener.local_addr().unwrap();
    let opened_conn = context.command(|now, probe, out| {
        out.set_listening(0, true);
        probe.grant_on_open = 1000;
        out.connect(now, target).unwrap()
    });
    let client = connect(address);
    let (mut server, _) = remote_listener.accept().unwrap();
    while context.command(|_, probe, _| probe.accepted().is_empty() || probe.of(opened_conn).is_empty()) {
        context.turn(None).unwrap();
    }
    let accepted_conn = context.command(|_, probe, _| probe.accepted()[0]);

    // Data of an opened connection is handled before the deadline, data of an accepted one at the deadline.
    context.command(|now, probe, _| probe.timeout = Some(now + Duration::from_secs(1)));
    (&client).write_all(&[0]).unwrap();
    server.write_all(&[0]).unwrap();
    while context.command(|_, probe, _| probe.received(opened_conn)) == 0 {
        context.turn(None).unwrap();
    }
    let (received_early, timeouts) =
        context.command(|_, probe, _| (probe.received(accepted_conn), probe.timeouts.len()));
    if timeouts == 0 {
        assert_eq!(
            received_early, 0,
            "an accepted connection should not wake the context before the deadline"
        );
    } else {
        println!("not checked: the deadline of 1 s passed before the data was handled");
    }
    while context.command(|_, probe, _| probe.timeouts.is_empty()) {
        context.turn(None).unwrap();
    }
    assert_eq!(
        context.command(|_, probe, _| probe.received(accepted_conn)),
        1,
        "the data should be handled in the turn of the deadline"
    );

    // Without a deadline no event waits.
    (&client).write_all(&[1]).unwrap();
    while context.command(|_, probe, _| probe.received(accepted_conn)) < 2 {
        context.turn(None).unwrap();
    }
}

#[test]
fn connect_without_an_answer_times_out() {
    // A listener whose queue is full does not answer SYNs.
    let full_listener =
        rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::STREAM, None).unwrap();
    rustix::net::bind(&full_listener, &"127.0.0.1:0".parse::<SocketAddr>().unwrap()).unwrap();
    rustix::net::listen(&full_listener, 0).unwrap();
    let target = SocketAddr::try_from(rustix::net::getsockname(&full_listener).unwrap()).unwrap();
    let queued_connects: Vec<OwnedFd> = (0..8).map(|_| start_connecting(target)).collect();

    let config = Config { connect_timeout: Duration::from_millis(50), ..Config::default() };
    let mut context =
        Context::new(config, Default::default(), Clock::start(), Probe::new(), |notice| panic!("{notice}"))
            .unwrap();
    let conn = context.command(|now, _, out| out.connect(now, target)).unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    while context.command(|_, probe, _| probe.of(conn).is_empty()) {
        context.turn(None).unwrap();
        assert!(Instant::now() < deadline, "the connect should time out within 20 s");
    }
    assert_eq!(context.command(|_, probe, _| probe.of(conn)), [Seen::Lost(LostReason::TimedOut)]);
    drop(queued_connects);
}

fn start_connecting(target: SocketAddr) -> OwnedFd {
    let flags = rustix::net::SocketFlags::NONBLOCK;
    let (family, kind) = (rustix::net::AddressFamily::INET, rustix::net::SocketType::STREAM);
    let fd = rustix::net::socket_with(family, kind, flags, None).unwrap();
    // The attempt is in progress, or the connection is established while the queue has room.
    let _ = rustix::net::connect(&fd, &target);
    fd
}

#[test]
fn connect_with_a_full_table_fails() {
    let config = Config { connections_max: 1, ..Config::default() };
    let mut context =
        Context::new(config, Default::default(), Clock::start(), Echo::default(), |_| ()).unwrap();
    let running = Running::start(&Config::default(), 1);
    let target = running.address;
    context.command(|now, _, out| {
        let first = out.connect(now, target).expect("the empty table should have room");
        out.connect(now, target).expect_err("a full table should have no room");
        out.abort(first);
        out.connect(now, target).expect("the slot should be free after the abort");
    });
    running.stop();
}
