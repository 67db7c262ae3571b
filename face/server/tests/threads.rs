//! Sessions at a server whose threads share a link port: a session's next carrier may be a connection on a link of
//! another thread.

mod support;

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use spillway_batch::{CloseReason, Control, Encryption, Id, Role};
use spillway_client::session::{BlockingSession, Gone, SessionSettings};
use spillway_client::{Key, LinkTarget};
use spillway_server::{ClientId, Event, KeyRing, Settings, Threads};
use spillway_session::{ClientEvent, ClientSession, StreamLimits};
use spillway_transport::Time;
use spillway_wire::RefuseReason;
use spillway_wire::session::SessionId;
use support::helper::TestHelper;
use support::port::{Port, Serve, run_until};
use support::raw::{LinkEvent, RawLink};
use support::streams::stream_and_move;
use support::{Keys, round_trip};

/// One thread's echoing link port.
struct Worker {
    port: Port,
    /// Replies that wait for room, and whether the client has finished.
    clients: HashMap<ClientId, (Vec<u8>, bool)>,
    opened: usize,
    closed: usize,
    /// Number of data events that arrived by a link of another thread.
    from_other_threads: usize,
}

fn settings(keys: &Keys, threads: &Threads) -> Settings {
    let mut ring = KeyRing::new();
    ring.accept(Role::Helper, keys.helper.clone());
    ring.accept(Role::Client, keys.client.clone());
    Settings { keys: ring, threads: Some(threads.clone()), ..Settings::default() }
}

impl Worker {
    fn bind(address: SocketAddr, settings: Settings) -> Worker {
        let port = Port::bind(Instant::now(), address, settings);
        Worker { port, clients: HashMap::new(), opened: 0, closed: 0, from_other_threads: 0 }
    }

    /// Binds a port for this worker only, so that the test chooses which thread gets a link.
    fn on_own_port(keys: &Keys, threads: &Threads) -> Worker {
        Worker::bind("127.0.0.1:0".parse().unwrap(), settings(keys, threads))
    }

    fn target(&self, keys: &Keys) -> LinkTarget {
        LinkTarget {
            address: self.port.links.address(),
            key: keys.client.clone(),
            server: None,
            encryption: Default::default(),
        }
    }

    fn turn(&mut self) {
        // A small buffer, so that data from another thread's link arrives in several parts.
        self.turn_at(Instant::now(), &mut [0; 1000]);
    }

    fn reply(&mut self, client: ClientId) {
        let Some((waiting, finished)) = self.clients.get_mut(&client) else { return };
        let composed = self.port.links.compose(client, waiting);
        waiting.drain(..composed);
        self.port.links.consumed(client, composed).unwrap();
        if *finished && waiting.is_empty() {
            self.port.links.finish(client);
        }
    }
}

impl Serve for Worker {
    fn port(&mut self) -> &mut Port {
        &mut self.port
    }

    fn handle(&mut self, event: Event<'_>) {
        match event {
            Event::Connected { client, .. } => {
                self.opened += 1;
                self.clients.insert(client, Default::default());
                self.port.links.accept(client);
            }
            Event::Data { client, bytes } => {
                let link = self.port.links.link(client).expect("a client that sends should have a link");
                // A thread has counters of its own links only.
                self.from_other_threads += usize::from(self.port.links.counters(link).is_none());
                self.clients.get_mut(&client).unwrap().0.extend_from_slice(bytes);
                self.reply(client);
            }
            Event::CanCompose { client } => self.reply(client),
            Event::Finished { client } => {
                self.clients.get_mut(&client).unwrap().1 = true;
                self.reply(client);
            }
            Event::Closed { client, reason } => {
                self.closed += usize::from(self.clients.remove(&client).is_some());
                self.port.links.close(client, reason);
            }
            _ => {}
        }
    }
}

fn open(routes: Vec<LinkTarget>) -> BlockingSession {
    BlockingSession::open(routes, SessionSettings::default()).unwrap()
}

/// Runs each worker on a thread while `test` runs, and returns the workers.
fn run(workers: Vec<Worker>, test: impl FnOnce()) -> Vec<Worker> {
    let done = AtomicBool::new(false);
    /// Stops the workers also if the test panics.
    struct StopOnDrop<'a>(&'a AtomicBool);
    impl Drop for StopOnDrop<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    std::thread::scope(|scope| {
        let threads: Vec<_> = workers
            .into_iter()
            .map(|mut worker| {
                let done = &done;
                scope.spawn(move || {
                    while !done.load(Ordering::Relaxed) {
                        worker.turn();
                    }
                    worker
                })
            })
            .collect();
        let end = StopOnDrop(&done);
        test();
        drop(end);
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn sessions_move_between_the_links_of_all_threads() {
    let (keys, threads) = (Keys::new(), Threads::default());
    let workers: Vec<Worker> = (0..3).map(|_| Worker::on_own_port(&keys, &threads)).collect();
    let addresses: Vec<SocketAddr> = workers.iter().map(|worker| worker.port.links.address()).collect();
    let mut routes: Vec<LinkTarget> = workers.iter().map(|worker| worker.target(&keys)).collect();
    let moves = AtomicUsize::new(0);
    let workers = run(workers, || {
        // Each helper's link carries sessions of all threads.
        let helpers = [TestHelper::start(&keys, addresses[0]), TestHelper::start(&keys, addresses[1])];
        routes.extend(helpers.iter().map(|helper| helper.target(&keys)));
        std::thread::scope(|scope| {
            for number in 0..8 {
                let mut routes = routes.clone();
                // Sessions begin at different threads.
                routes.rotate_left(number % 5);
                let moves = &moves;
                scope.spawn(move || {
                    moves.fetch_add(stream_and_move(routes, number, 400_000), Ordering::Relaxed);
                });
            }
        });
    });
    let sum = |count: fn(&Worker) -> usize| workers.iter().map(count).sum::<usize>();
    assert!(moves.load(Ordering::Relaxed) > 8, "each session should move");
    assert_eq!(
        (sum(|worker| worker.opened), sum(|worker| worker.closed)),
        (8, 8),
        "each session should be one client"
    );
    assert!(sum(|worker| worker.from_other_threads) > 0, "some data should arrive by another thread's link");
    assert!(workers.iter().all(|worker| worker.clients.is_empty()));
}

#[test]
fn threads_share_an_address_and_the_kernel_distributes_links() {
    let (keys, threads) = (Keys::new(), Threads::default());
    let first = Worker::on_own_port(&keys, &threads);
    let address = first.port.links.address();
    let mut workers = vec![first];
    workers.extend((0..3).map(|_| Worker::bind(address, settings(&keys, &threads))));
    let target = workers[0].target(&keys);
    let workers = run(workers, || {
        std::thread::scope(|scope| {
            for number in 0..6 {
                let routes = vec![target.clone(); 2];
                scope.spawn(move || stream_and_move(routes, number, 200_000));
            }
        });
    });
    let sum = |count: fn(&Worker) -> usize| workers.iter().map(count).sum::<usize>();
    assert_eq!((sum(|worker| worker.opened), sum(|worker| worker.closed)), (6, 6));
}

#[test]
fn sessions_of_an_ended_thread_are_gone_and_others_continue() {
    let (keys, threads) = (Keys::new(), Threads::default());
    let (gone, stays) = (Worker::on_own_port(&keys, &threads), Worker::on_own_port(&keys, &threads));
    let (of_gone, of_stays) = (gone.target(&keys), stays.target(&keys));
    let stays = run(vec![stays], || {
        let mut sessions = Vec::new();
        let gone = run(vec![gone], || {
            // Each session begins at one thread and moves to the other.
            for routes in [[of_gone.clone(), of_stays.clone()], [of_stays.clone(), of_gone.clone()]] {
                let mut session = open(routes.to_vec());
                round_trip(&mut session, 100, 1);
                session.session().move_to(Instant::now(), 1).unwrap();
                round_trip(&mut session, 100, 2);
                sessions.push(session);
            }
        });
        assert_eq!(
            gone[0].from_other_threads, 1,
            "only the second request of the first session should arrive by another thread's link"
        );
        drop(gone);
        let mut second = sessions.pop().unwrap();
        round_trip(&mut second, 1000, 3);
        second.close().unwrap();
        let mut first = sessions.pop().unwrap();
        first.write_all(b"lost").unwrap();
        let error = first.read(&mut [0; 9]).unwrap_err();
        let gone = error.get_ref().and_then(|inner| inner.downcast_ref::<Gone>()).copied();
        assert!(
            gone.is_some_and(|gone| gone.written == 204),
            "the error should report 100 + 100 + 4 written bytes: {error}"
        );
    });
    assert_eq!((stays[0].opened, stays[0].closed), (1, 1));
}

/// Two threads' ports, which the test drives.
struct Pair {
    first_thread: Worker,
    second_thread: Worker,
    keys: Keys,
}

impl Pair {
    fn new() -> Pair {
        let (keys, threads) = (Keys::new(), Threads::default());
        Pair {
            first_thread: Worker::on_own_port(&keys, &threads),
            second_thread: Worker::on_own_port(&keys, &threads),
            keys,
        }
    }

    fn turn(&mut self) {
        self.first_thread.turn();
        self.second_thread.turn();
    }

    fn run_until(&mut self, description: &str, done: impl FnMut(&mut Pair) -> bool) {
        run_until(self, description, Pair::turn, done);
    }

    fn next_event(&mut self, link: &mut RawLink) -> LinkEvent {
        if link.is_all_decomposed() {
            self.run_until("an answer", |_| link.has_input());
        }
        link.next_event()
    }

    fn establish(&mut self, address: SocketAddr) -> RawLink {
        // No encryption, because one test writes frames itself.
        let mut link = RawLink::open_as(address, Role::Client, self.keys.client.clone(), Encryption::Off);
        assert_eq!(self.next_event(&mut link), LinkEvent::Established);
        link.flush();
        link
    }

    /// Sends an opening message on a link, and returns the answer.
    fn send_opening(&mut self, link: &mut RawLink, opening: Control) -> Control {
        link.end.open_with_message(opening).unwrap();
        link.flush();
        match self.next_event(link) {
            LinkEvent::Control(_, control) => control,
            other => panic!("{other:?}"),
        }
    }

    /// A session that begins at the first thread and resumes on the second: both links, and the second carrier's id.
    fn carry_by_second_thread(&mut self) -> (RawLink, RawLink, Id) {
        let mut first_link = self.establish(self.first_thread.port.links.address());
        let mut session = session(&self.keys.client);
        let connect = session.open(Time::ZERO, first_link.stream.local_addr().unwrap(), None);
        let answer = self.send_opening(&mut first_link, connect);
        session.handle_control(Time::ZERO, &answer).unwrap();
        let mut second_link = self.establish(self.second_thread.port.links.address());
        let reconnect = session.open(Time::ZERO, second_link.stream.local_addr().unwrap(), None);
        let id = second_link.end.open_with_message(reconnect).unwrap();
        second_link.flush();
        let event = self.next_event(&mut second_link);
        assert!(matches!(event, LinkEvent::Control(_, Control::Resumed(_))), "{event:?}");
        (first_link, second_link, id)
    }
}

fn session(key: &Key) -> ClientSession {
    ClientSession::new(key.clone(), SessionId([7; 16]), StreamLimits::default())
}

#[test]
fn opening_messages_at_two_threads_begin_one_session() {
    let mut pair = Pair::new();
    let (mut first_link, mut second_link) = (
        pair.establish(pair.first_thread.port.links.address()),
        pair.establish(pair.second_thread.port.links.address()),
    );
    let mut session = session(&pair.keys.client);
    let connect = session.open(Time::ZERO, first_link.stream.local_addr().unwrap(), None);
    let second_connect = session.open(Time::ZERO, second_link.stream.local_addr().unwrap(), None);
    // The opening message with the higher epoch arrives first; the other one is stale.
    let answer = pair.send_opening(&mut second_link, second_connect);
    assert_eq!(session.handle_control(Time::ZERO, &answer), Ok(Some(ClientEvent::Attached { room: false })));
    assert_eq!(pair.send_opening(&mut first_link, connect), Control::Refused(RefuseReason::Stale));
    assert_eq!((pair.first_thread.opened, pair.second_thread.opened), (0, 1));
    // The next carrier reaches the thread where the session did not begin, and the old carrier is closed.
    drop(first_link);
    let mut first_link = pair.establish(pair.first_thread.port.links.address());
    let reconnect = session.open(Time::ZERO, first_link.stream.local_addr().unwrap(), None);
    let answer = pair.send_opening(&mut first_link, reconnect);
    assert_eq!(session.handle_control(Time::ZERO, &answer), Ok(Some(ClientEvent::Attached { room: false })));
    let is_moved =
        |event: &LinkEvent| matches!(event, LinkEvent::Control(_, Control::Close(CloseReason::Moved)));
    while !is_moved(&pair.next_event(&mut second_link)) {}
    assert_eq!((pair.first_thread.opened, pair.second_thread.opened, pair.second_thread.closed), (0, 1, 0));
}

#[test]
fn session_waits_after_the_loss_of_a_link_of_another_thread() {
    let mut pair = Pair::new();
    let (_one, second_link, _) = pair.carry_by_second_thread();
    let client = *pair.first_thread.clients.keys().next().unwrap();
    assert!(pair.first_thread.port.links.link(client).is_some());
    drop(second_link);
    pair.run_until("the loss of the carrier", |pair| pair.first_thread.port.links.link(client).is_none());
    assert!(pair.first_thread.port.links.info(client).is_some(), "the session should wait for its client");
    assert_eq!(pair.first_thread.closed, 0);
}

/// Data beyond the window does not accumulate in a mailbox while the session's thread is busy.
#[test]
fn data_posted_to_another_thread_is_bounded() {
    let mut pair = Pair::new();
    let (_one, mut second_link, id) = pair.carry_by_second_thread();
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut sent = 0;
    second_link.stream.set_nonblocking(true).unwrap();
    loop {
        assert!(
            Instant::now() < deadline && sent < 10_000_000,
            "the connection should be closed before 10 MB: {sent} bytes sent"
        );
        // New input can only be the close: only this link's thread runs, and it does not answer data.
        if second_link.stream.peek(&mut [0]).is_ok() {
            break;
        }
        // A *request* frame: kind 1, length 0x4000, the connection's id, and data.
        let mut frame = vec![1, 0x40, 0, 0, 0, 0, id.0 as u8];
        frame.resize(7 + 0x4000, b'x');
        let mut offset = 0;
        while offset < frame.len() {
            offset += second_link.stream.write(&frame[offset..]).unwrap_or(0);
            // Only the thread that owns the link runs.
            pair.second_thread.turn();
        }
        sent += frame.len();
    }
    second_link.stream.set_nonblocking(false).unwrap();
    let mut event = second_link.next_event();
    // `Accepted` follows `Resumed`, because the application has accepted the session on the first carrier.
    while event == LinkEvent::Control(id, Control::Accepted) {
        event = second_link.next_event();
    }
    assert_eq!(event, LinkEvent::Control(id, Control::Close(CloseReason::OverCredit)));
    pair.run_until("the loss of the carrier", |pair| {
        pair.first_thread.clients.keys().all(|client| pair.first_thread.port.links.link(*client).is_none())
    });
}
