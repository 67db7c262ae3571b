//! A server that sends its sessions to helpers and back, while they are in use.

mod support;

use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use spillway_client::relief::{ActivationSettings, Member};
use spillway_client::session::{BlockingSession, SessionSettings};
use spillway_client::{LinkTarget, Relief, ReliefSettings, Session};

use spillway_server::{Event, KeyRing, Links, Override, ReleaseSettings, Role, Settings};
use support::helper::TestHelper;
use support::port::{Port, Serve};
use support::{Keys, round_trip};

type Order = Box<dyn FnOnce(&mut Links) + Send>;

/// An echo server on a thread, which runs the closures that the test sends.
struct Server {
    link_port: SocketAddr,
    orders: Option<Sender<Order>>,
    thread: Option<JoinHandle<()>>,
}

struct Echo(Port);

impl Serve for Echo {
    fn port(&mut self) -> &mut Port {
        &mut self.0
    }

    fn handle(&mut self, event: Event<'_>) {
        let links = &mut self.0.links;
        match event {
            Event::Connected { client, .. } => links.accept(client),
            Event::Data { client, bytes } => {
                assert_eq!(links.compose(client, bytes), bytes.len(), "small replies should fit");
                links.consumed(client, bytes.len()).unwrap();
            }
            Event::Closed { client, reason } => links.close(client, reason),
            _ => {}
        }
    }
}

impl Server {
    fn start(keys: &Keys) -> Server {
        Server::start_with(keys, None)
    }

    fn start_with(keys: &Keys, release: Option<ReleaseSettings>) -> Server {
        let mut ring = KeyRing::new();
        ring.accept(Role::Client, keys.client.clone());
        ring.accept(Role::Helper, keys.helper.clone());
        let settings = Settings { keys: ring, release, ..Settings::default() };
        let mut echo = Echo(Port::bind(Instant::now(), "127.0.0.1:0".parse().unwrap(), settings));
        let link_port = echo.0.links.address();
        let (orders, received): (Sender<Order>, Receiver<Order>) = channel();
        let thread = std::thread::spawn(move || {
            let mut buffer = vec![0; 64 * 1024];
            loop {
                match received.try_recv() {
                    Ok(order) => order(&mut echo.0.links),
                    Err(std::sync::mpsc::TryRecvError::Empty) => {}
                    Err(std::sync::mpsc::TryRecvError::Disconnected) => return,
                }
                echo.turn_at(Instant::now(), &mut buffer);
            }
        });
        Server { link_port, orders: Some(orders), thread: Some(thread) }
    }

    fn target(&self, keys: &Keys) -> LinkTarget {
        LinkTarget {
            address: self.link_port,
            key: keys.client.clone(),
            server: None,
            encryption: Default::default(),
        }
    }

    /// Runs `order` on the server's thread, and returns its result.
    fn run_on_thread<T: Send + 'static>(&self, order: impl FnOnce(&mut Links) -> T + Send + 'static) -> T {
        let (answer, answered) = channel();
        let order = move |links: &mut Links| answer.send(order(links)).unwrap();
        self.orders.as_ref().unwrap().send(Box::new(order)).unwrap();
        answered.recv().unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.orders = None;
        let ended = self.thread.take().unwrap().join();
        assert!(ended.is_ok() || std::thread::panicking(), "the server's thread should not panic");
    }
}

/// Uses the sessions until all of them are carried by links to this port.
fn exchange_until_carried_by(sessions: &mut [BlockingSession], port: SocketAddr) {
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut round = 0;
    while !sessions.iter_mut().all(|session| session.session().carrier() == Some(port)) {
        assert!(Instant::now() < deadline, "all sessions should be carried by {port} within 60 s");
        sessions.iter_mut().for_each(|session| round_trip(session, 1 + round % 900, round));
        round += 1;
    }
    sessions.iter_mut().for_each(|session| round_trip(session, 500, round));
}

fn settings(server: &Server) -> SessionSettings {
    SessionSettings { server_port: Some(server.link_port), ..SessionSettings::default() }
}

#[test]
fn sessions_follow_the_servers_override() {
    let keys = Keys::new();
    let server = Server::start(&keys);
    let helper = TestHelper::start(&keys, server.link_port);
    let routes = vec![server.target(&keys), helper.target(&keys)];
    let open = || BlockingSession::open(routes.clone(), settings(&server)).unwrap();
    let mut sessions: Vec<BlockingSession> = (0..20).map(|_| open()).collect();
    exchange_until_carried_by(&mut sessions, server.link_port);

    let within = Duration::from_millis(50);
    assert_eq!(server.run_on_thread(move |links| links.set_override(Override::On, within)), 20);
    exchange_until_carried_by(&mut sessions, helper.link_port);
    // A session that is opened later is asked to move, too.
    sessions.push(open());
    exchange_until_carried_by(&mut sessions, helper.link_port);
    assert_eq!(helper.library_clients(), 21);

    assert_eq!(server.run_on_thread(move |links| links.set_override(Override::Off, within)), 21);
    exchange_until_carried_by(&mut sessions, server.link_port);
    assert_eq!(server.run_on_thread(move |links| links.set_override(Override::Auto, within)), 0);
    for session in &mut sessions {
        session.session().move_to(Instant::now(), 1).unwrap();
    }
    exchange_until_carried_by(&mut sessions, helper.link_port);

    // A release applies once: a session that moves to the helper later may stay there.
    assert_eq!(server.run_on_thread(move |links| links.release(within)), 21);
    exchange_until_carried_by(&mut sessions, server.link_port);
    sessions[0].session().move_to(Instant::now(), 1).unwrap();
    exchange_until_carried_by(&mut sessions[..1], helper.link_port);
    sessions.into_iter().for_each(|session| session.close().unwrap());
}

#[test]
fn server_releases_sessions_after_low_load() {
    let keys = Keys::new();
    let ms = Duration::from_millis;
    // A high `service_max`, because service is slow on a busy machine.
    let quick_release = ReleaseSettings {
        service_max: Duration::from_secs(5),
        low_for: ms(600),
        spread: ms(200),
        ..ReleaseSettings::default()
    };
    for release in [None, Some(quick_release)] {
        let server = Server::start_with(&keys, release);
        let helper = TestHelper::start(&keys, server.link_port);
        let routes = vec![server.target(&keys), helper.target(&keys)];
        let open = || BlockingSession::open(routes.clone(), settings(&server)).unwrap();
        let mut sessions: Vec<BlockingSession> = (0..10).map(|_| open()).collect();
        let exchange_for = |sessions: &mut Vec<BlockingSession>, duration: Duration, pause: Duration| {
            let began = Instant::now();
            while began.elapsed() < duration {
                sessions.iter_mut().for_each(|session| round_trip(session, 100, 1));
                std::thread::sleep(pause);
            }
        };
        exchange_for(&mut sessions, ms(600), Duration::ZERO);
        sessions.iter_mut().for_each(|session| session.session().move_to(Instant::now(), 1).unwrap());
        exchange_until_carried_by(&mut sessions, helper.link_port);
        // Few requests, which are served fast.
        exchange_for(&mut sessions, ms(2_500), ms(300));
        if release.is_some() {
            exchange_until_carried_by(&mut sessions, server.link_port);
            let counters = server.run_on_thread(|links| links.release_counters());
            assert!(counters.releases >= 1 && counters.drains >= 10, "{counters:?}");
            assert!(server.run_on_thread(|links| links.poll_release_notice()).is_some());
        } else {
            exchange_until_carried_by(&mut sessions, helper.link_port);
        }
        sessions.into_iter().for_each(|session| session.close().unwrap());
    }
}

#[test]
fn session_without_a_helper_route_stays_despite_the_override() {
    let keys = Keys::new();
    let server = Server::start(&keys);
    let mut session = BlockingSession::open(vec![server.target(&keys)], settings(&server)).unwrap();
    round_trip(&mut session, 100, 1);
    assert_eq!(server.run_on_thread(|links| links.set_override(Override::On, Duration::ZERO)), 1);
    (0..20).for_each(|round| round_trip(&mut session, 100, round));
    assert_eq!(session.session().carrier(), Some(server.link_port));
    session.close().unwrap();
}

#[test]
fn session_continues_on_replaced_routes() {
    let keys = Keys::new();
    let server = Server::start(&keys);
    let (helper_a, helper_b) =
        (TestHelper::start(&keys, server.link_port), TestHelper::start(&keys, server.link_port));
    let routes = vec![helper_a.target(&keys), server.target(&keys)];
    let mut session = BlockingSession::open(routes, settings(&server)).unwrap();
    round_trip(&mut session, 100, 1);
    assert!(session.session().set_routes(Vec::new()).is_err());
    // The present carrier is not in the new list: it stays until it is lost.
    session.session().set_routes(vec![server.target(&keys), helper_b.target(&keys)]).unwrap();
    round_trip(&mut session, 100, 2);
    assert_eq!(session.session().carrier(), Some(helper_a.link_port));
    helper_a.stop();
    round_trip(&mut session, 100, 3);
    assert_eq!(session.session().carrier(), Some(helper_b.link_port));
    session.close().unwrap();
}

/// A program with sessions that its [`Relief`] opens and moves.
struct Program {
    relief: Relief,
    members: Vec<(Member, Option<Session>)>,
    /// Latency that is reported for direct and for helped replies.
    latency: [Duration; 2],
    server: SocketAddr,
    /// Replies are reported every 10 ms since `began`, however fast the machine is.
    began: Instant,
    reported: u32,
}

impl Program {
    fn start(settings: ReliefSettings, connections: usize) -> Program {
        let (now, server) = (Instant::now(), settings.server.address);
        let mut relief = Relief::new(now, settings).unwrap();
        let members = (0..connections).map(|_| (relief.join(now).unwrap(), None)).collect();
        let latency = [Duration::from_micros(200); 2];
        Program { relief, members, latency, server, began: now, reported: 0 }
    }

    /// Each session makes one round trip. `latency` is only reported, so that the test does not wait for slow replies.
    fn turn(&mut self) {
        let now = Instant::now();
        self.relief.handle_ready(now);
        self.relief.handle_timeout(now);
        while let Some(order) = self.relief.poll_move() {
            let member = order.member;
            let (_, session) = self.members.iter_mut().find(|(other, _)| *other == member).unwrap();
            match session {
                Some(session) => order.apply(now, session).unwrap(),
                None => *session = Some(order.open(now).unwrap()),
            }
        }
        let due = (self.began.elapsed().as_millis() / 10) as u32;
        let replies = due - std::mem::replace(&mut self.reported, due);
        for (member, session) in &mut self.members {
            let Some(session) = session else { continue };
            round_trip_without_blocking(session, b"a request");
            let is_direct = session.carrier() == Some(self.server);
            for _ in 0..replies {
                self.relief.record_latency(Instant::now(), *member, self.latency[usize::from(!is_direct)]);
            }
            while let Some(event) = session.poll_event() {
                self.relief.handle_event(Instant::now(), *member, &event);
            }
        }
        while let Some(notice) = self.relief.poll_notice() {
            println!("{notice}");
        }
        std::thread::sleep(Duration::from_millis(1));
    }

    #[track_caller]
    fn turn_until_helped(&mut self, expected: usize) {
        let deadline = Instant::now() + Duration::from_secs(60);
        let helped = |program: &Program| {
            let carriers = program.members.iter().filter_map(|(_, session)| session.as_ref()?.carrier());
            carriers.filter(|carrier| *carrier != program.server).count()
        };
        while helped(self) != expected {
            assert!(
                Instant::now() < deadline,
                "{expected} sessions should be helped within 60 s, but {} are: {:?}",
                helped(self),
                self.relief.status(Instant::now())
            );
            self.turn();
        }
    }
}

fn round_trip_without_blocking(session: &mut Session, request: &[u8]) {
    let deadline = Instant::now() + Duration::from_secs(60);
    let (mut sent, mut reply) = (0, Vec::new());
    while reply.len() < request.len() {
        let now = Instant::now();
        assert!(now < deadline, "a reply should arrive within 60 s");
        session.handle_ready(now);
        session.handle_timeout(now);
        sent += session.send(now, &request[sent..]).unwrap_or(0);
        let mut buffer = [0; 100];
        match session.receive(now, &mut buffer) {
            Ok(received) => reply.extend_from_slice(&buffer[..received]),
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock),
        }
    }
    assert_eq!(reply, request);
}

/// Settings with short times, so that decisions come soon.
fn quick_settings(server: &Server, helpers: &[&TestHelper], keys: &Keys) -> ReliefSettings {
    let ms = Duration::from_millis;
    let activation = ActivationSettings {
        window: ms(200),
        slice: ms(20),
        trial: ms(400),
        backoff_min: ms(300),
        backoff_max: ms(300),
        ..ActivationSettings::default()
    };
    let helpers = helpers.iter().map(|helper| helper.target(keys)).collect();
    ReliefSettings { activation, ..ReliefSettings::new(server.target(keys), helpers) }
}

#[test]
fn slow_replies_move_sessions_to_helpers_and_a_release_returns_them() {
    let keys = Keys::new();
    let server = Server::start(&keys);
    let (helper_a, helper_b) =
        (TestHelper::start(&keys, server.link_port), TestHelper::start(&keys, server.link_port));
    let mut program = Program::start(quick_settings(&server, &[&helper_a, &helper_b], &keys), 30);
    program.turn_until_helped(0);
    (0..100).for_each(|_| program.turn());
    program.turn_until_helped(0);
    assert_eq!(
        program.relief.counters().activations,
        0,
        "sessions should stay direct while replies are fast"
    );

    program.latency[0] = Duration::from_millis(5);
    program.turn_until_helped(30);
    assert!(
        helper_a.library_clients() > 0 && helper_b.library_clients() > 0,
        "both helpers should carry sessions"
    );
    // A session that joins now is helped, too.
    let joined = program.relief.join(Instant::now()).unwrap();
    program.members.push((joined, None));
    program.turn_until_helped(31);

    program.latency[0] = Duration::from_micros(200);
    server.run_on_thread(|links| links.release(Duration::from_millis(50)));
    program.turn_until_helped(0);
    assert!(program.relief.counters().releases > 0);
}

#[test]
fn relief_backs_off_when_helped_replies_are_slow_too() {
    let keys = Keys::new();
    let server = Server::start(&keys);
    let helper = TestHelper::start(&keys, server.link_port);
    let mut program = Program::start(quick_settings(&server, &[&helper], &keys), 30);
    program.turn_until_helped(0);
    program.latency = [Duration::from_millis(5); 2];
    let deadline = Instant::now() + Duration::from_secs(60);
    while program.relief.counters().back_offs < 2 {
        let status = program.relief.status(Instant::now());
        assert!(Instant::now() < deadline, "relief should back off twice within 60 s: {status:?}");
        program.turn();
    }
    program.turn_until_helped(0);
}

#[test]
fn override_and_replaced_helpers_take_effect() {
    let keys = Keys::new();
    let server = Server::start(&keys);
    let (helper_a, helper_b) =
        (TestHelper::start(&keys, server.link_port), TestHelper::start(&keys, server.link_port));
    let mut program = Program::start(quick_settings(&server, &[&helper_a], &keys), 10);
    program.relief.set_override(Instant::now(), Override::On, None);
    program.turn_until_helped(10);
    // The helper stops; the list has a new helper instead.
    program.relief.set_helpers(Instant::now(), vec![helper_b.target(&keys)]);
    helper_a.stop();
    program.turn_until_helped(10);
    let deadline = Instant::now() + Duration::from_secs(60);
    while helper_b.library_clients() < 10 {
        let status = program.relief.status(Instant::now());
        assert!(Instant::now() < deadline, "all sessions should use the new helper within 60 s: {status:?}");
        program.turn();
    }
    program.relief.set_override(Instant::now(), Override::Off, None);
    program.turn_until_helped(0);
    program.relief.set_helpers(Instant::now(), Vec::new());
    program.relief.set_override(Instant::now(), Override::On, None);
    (0..100).for_each(|_| program.turn());
    program.turn_until_helped(0);
}
