//! C programs with peers that use the Rust libraries.

mod support;

use std::io::{Read, Write};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags};
use spillway_client::session::{BlockingSession, SessionSettings};
use spillway_client::{Encryption, LinkTarget};
use spillway_keys::read_key_file;
use spillway_moving_client::{Route, Settings, blocking};
use spillway_server::{Event, KeyRing, Links, Role};
use support::helper::HelperProcess;
use support::process::Process;
use support::{Flavour, Workbench};

#[test]
#[ignore = "entry point of the helper process that the other tests start"]
fn helper_process() {
    support::helper::run_helper();
}

/// Serves until it is stopped. Ignores back-pressure, because the clients of these tests read all replies.
fn serve(mut links: Links, is_stopped: &AtomicBool) {
    const MARK: u32 = 1;
    let epoll = epoll::create(CreateFlags::CLOEXEC).unwrap();
    let mut buffer = vec![0; 64 * 1024];
    let handle = |links: &mut Links, event: Event<'_>| match event {
        Event::Connected { client, .. } => links.accept(client),
        Event::Data { client, bytes } => {
            assert_eq!(links.compose(client, bytes), bytes.len());
            links.consumed(client, bytes.len()).unwrap();
        }
        Event::Finished { client } => links.finish(client),
        Event::Closed { client, reason } => links.close(client, reason),
        _ => {}
    };
    while !is_stopped.load(Ordering::Relaxed) {
        links.watch_in(&epoll, MARK).unwrap();
        let mut space = [MaybeUninit::<epoll::Event>::uninit(); 64];
        let wait = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
        let events = epoll::wait(&epoll, &mut space, Some(&wait)).unwrap().0;
        let now = Instant::now();
        for event in events {
            let Some(link) = links.handle_ready(now, event.data.u64(), event.flags) else { continue };
            let received = links.receive(link, &mut buffer);
            let mut input = &buffer[..received];
            while let Some(event) = links.decompose(now, link, &mut input) {
                handle(&mut links, event);
            }
        }
        links.handle_timeout(now);
        while let Some(event) = links.poll_event() {
            handle(&mut links, event);
        }
        links.flush(now);
    }
}

#[test]
fn c_client_exchanges_messages_with_a_rust_server() {
    let bench = Workbench::get();
    let mut ring = KeyRing::new();
    ring.accept(Role::Helper, read_key_file(bench.key("helper.key")).unwrap());
    ring.accept(Role::Client, read_key_file(bench.key("client.key")).unwrap());
    let settings = spillway_server::Settings { keys: ring, ..spillway_server::Settings::default() };
    let loopback = SocketAddr::from(([127, 0, 0, 1], 0));
    let links = Links::bind(Instant::now(), loopback, settings).unwrap();
    let address = links.address().to_string();
    let is_stopped = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| serve(links, &is_stopped));
        let helper = HelperProcess::start(&bench, &address);
        for helpers in ["", helper.links.as_str()] {
            let lines = bench.client(Flavour::Shared, &address, helpers, "1000").succeed();
            let last = lines.last().unwrap();
            assert!(last.starts_with("1000 messages, every byte right"), "{lines:?}");
        }
        is_stopped.store(true, Ordering::Relaxed);
    });
}

fn round_trips(client: &mut (impl Read + Write), rounds: usize) {
    for round in 0..rounds {
        let request: Vec<u8> = (0..1 + round * 97 % 5000).map(|at| (at * 31 + round * 17) as u8).collect();
        client.write_all(&request).unwrap();
        let mut reply = vec![0; request.len()];
        client.read_exact(&mut reply).unwrap();
        assert!(reply == request, "the reply of round {round} should be equal to the request");
    }
}

#[test]
fn rust_clients_exchange_messages_with_a_c_server() {
    let bench = Workbench::get();
    let echo = bench.echo_server(Flavour::Sanitized);
    let helper = HelperProcess::start(&bench, &echo.links);
    let key = read_key_file(bench.key("client.key")).unwrap();
    let target = |address: &str| LinkTarget {
        address: address.parse().unwrap(),
        key: key.clone(),
        server: None,
        encryption: Default::default(),
    };
    // A session whose helper is killed.
    let routes = vec![target(&helper.links), target(&echo.links)];
    let mut session = BlockingSession::open(routes, SessionSettings::default()).unwrap();
    round_trips(&mut session, 100);
    // A connection without a session, which moves between the ordinary port and link ports.
    let mut client = blocking::Client::connect(echo.plain.parse().unwrap(), Settings::default()).unwrap();
    for route in [&target(&helper.links), &target(&echo.links)] {
        round_trips(&mut client, 20);
        client.move_to(Route::Link(route)).unwrap();
        round_trips(&mut client, 20);
        client.move_to(Route::Direct).unwrap();
    }
    drop(client);
    session.write_all(b"under way").unwrap();
    helper.kill();
    let mut reply = [0; 9];
    session.read_exact(&mut reply).unwrap();
    assert_eq!(&reply, b"under way");
    round_trips(&mut session, 100);
    assert_eq!(session.session().carrier().unwrap().to_string(), echo.links);
    session.close().unwrap();
    echo.stop();
}

#[test]
fn c_programs_that_require_encryption_refuse_unencrypted_peers() {
    let bench = Workbench::get();
    let key = read_key_file(bench.key("client.key")).unwrap();
    let mut ring = KeyRing::new();
    ring.accept(Role::Client, key.clone());
    let loopback = SocketAddr::from(([127, 0, 0, 1], 0));
    let is_stopped = AtomicBool::new(false);
    let refusal = "the link would not be encrypted, which is required here";
    std::thread::scope(|scope| {
        for flavour in [Flavour::Shared, Flavour::Sanitized] {
            let encryption = Encryption::Off;
            let settings = spillway_server::Settings {
                keys: ring.clone(),
                encryption,
                ..spillway_server::Settings::default()
            };
            let links = Links::bind(Instant::now(), loopback, settings).unwrap();
            let mut command = bench.command("encryption", flavour);
            command.args([bench.key("client.key"), links.address().to_string()]);
            let is_stopped = &is_stopped;
            scope.spawn(move || serve(links, is_stopped));
            let mut program = Process::start(command);
            program.line("refused session", |line| line.starts_with("session: ") && line.contains(refusal));
            let address = program.line_with("127.0.0.1:").parse().unwrap();
            let target = LinkTarget { address, key: key.clone(), server: None, encryption };
            // The session finds no carrier: the port refuses it, and is closed later.
            let settings =
                SessionSettings { give_up_after: Duration::from_secs(2), ..SessionSettings::default() };
            assert!(BlockingSession::open(vec![target], settings).is_err());
            let lines = program.succeed();
            let last = lines.last().unwrap();
            assert!(last.starts_with("port: ") && last.contains(refusal), "{lines:?}");
        }
        is_stopped.store(true, Ordering::Relaxed);
    });
}
