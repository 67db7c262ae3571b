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
use spillway_server::{Client, Event, KeyRing, Settings, Threads};
use spillway_session::{ClientEvent, ClientSession, StreamLimits};
use spillway_transport::Time;
use spillway_wire::RefuseReason;
use spillway_wire::session::SessionId;
use support::helper::Relief;
use support::port::{Port, Serve, until};
use support::raw::{Heard, RawLink};
use support::streams::stream_and_move;
use support::{Keys, round_trip};

/// One thread's echoing link port.
struct Worker {
    port: Port,
    /// Replies that wait for room, and whether the client has finished.
    clients: HashMap<Client, (Vec<u8>, bool)>,
    opened: usize,
    closed: usize,
    /// Number of data events that arrived by a link of another thread.
    far: usize,
}

fn settings(keys: &Keys, threads: &Threads) -> Settings {
    let mut ring = KeyRing::new();
    ring.accept(Role::Helper, keys.helper.clone());
    ring.accept(Role::Client, keys.client.clone());
    Settings { ring, threads: Some(threads.clone()), ..Settings::default() }
}

impl Worker {
    fn bind(address: SocketAddr, settings: Settings) -> Worker {
        let port = Port::bind(Instant::now(), address, settings);
        Worker { port, clients: HashMap::new(), opened: 0, closed: 0, far: 0 }
    }

    /// Binds a port for this worker only, so that the test chooses which thread gets a link.
    fn alone(keys: &Keys, threads: &Threads) -> Worker {
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
        // A small buffer, so that posts are cut.
        self.turn_at(Instant::now(), &mut [0; 1000]);
    }

    fn reply(&mut self, client: Client) {
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
                let link = self.port.links.link(client).expect("bytes came by it");
                self.far += usize::from(self.port.links.counters(link).is_none());
                self.clients.get_mut(&client).unwrap().0.extend_from_slice(bytes);
                self.reply(client);
            }
            Event::Room { client } => self.reply(client),
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
    struct Done<'a>(&'a AtomicBool);
    impl Drop for Done<'_> {
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
        let end = Done(&done);
        test();
        drop(end);
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn sessions_move_between_the_links_of_all_threads() {
    let (keys, threads) = (Keys::new(), Threads::default());
    let workers: Vec<Worker> = (0..3).map(|_| Worker::alone(&keys, &threads)).collect();
    let addresses: Vec<SocketAddr> = workers.iter().map(|worker| worker.port.links.address()).collect();
    let mut routes: Vec<LinkTarget> = workers.iter().map(|worker| worker.target(&keys)).collect();
    let moves = AtomicUsize::new(0);
    let workers = run(workers, || {
        // Each helper's link carries sessions of all threads.
        let helpers = [Relief::start(&keys, addresses[0]), Relief::start(&keys, addresses[1])];
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
    let sum = |what: fn(&Worker) -> usize| workers.iter().map(what).sum::<usize>();
    assert!(moves.load(Ordering::Relaxed) > 8, "they move");
    assert_eq!(
        (sum(|worker| worker.opened), sum(|worker| worker.closed)),
        (8, 8),
        "one client for each session"
    );
    assert!(sum(|worker| worker.far) > 0, "some were carried by another thread");
    assert!(workers.iter().all(|worker| worker.clients.is_empty()));
}

#[test]
fn the_kernel_may_choose_the_thread() {
    let (keys, threads) = (Keys::new(), Threads::default());
    let first = Worker::alone(&keys, &threads);
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
    let sum = |what: fn(&Worker) -> usize| workers.iter().map(what).sum::<usize>();
    assert_eq!((sum(|worker| worker.opened), sum(|worker| worker.closed)), (6, 6));
}

#[test]
fn sessions_of_a_thread_that_has_gone_are_told_so_and_others_go_on() {
    let (keys, threads) = (Keys::new(), Threads::default());
    let (gone, stays) = (Worker::alone(&keys, &threads), Worker::alone(&keys, &threads));
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
        assert_eq!(gone[0].far, 1, "the first one's second round trip");
        drop(gone);
        let mut other = sessions.pop().unwrap();
        round_trip(&mut other, 1000, 3);
        other.close().unwrap();
        let mut first = sessions.pop().unwrap();
        first.write_all(b"lost").unwrap();
        let error = first.read(&mut [0; 9]).unwrap_err();
        let gone = error.get_ref().and_then(|inner| inner.downcast_ref::<Gone>()).copied();
        assert!(gone.is_some_and(|gone| gone.written == 204), "{error}");
    });
    assert_eq!((stays[0].opened, stays[0].closed), (1, 1));
}

/// Two threads' ports, which the test drives.
struct Pair {
    here: Worker,
    there: Worker,
    keys: Keys,
}

impl Pair {
    fn new() -> Pair {
        let (keys, threads) = (Keys::new(), Threads::default());
        Pair { here: Worker::alone(&keys, &threads), there: Worker::alone(&keys, &threads), keys }
    }

    fn turn(&mut self) {
        self.here.turn();
        self.there.turn();
    }

    fn until(&mut self, what: &str, done: impl FnMut(&mut Pair) -> bool) {
        until(self, what, Pair::turn, done);
    }

    fn hear(&mut self, link: &mut RawLink) -> Heard {
        if link.is_used_up() {
            self.until("an answer", |_| link.has_something());
        }
        link.hear()
    }

    fn establish(&mut self, address: SocketAddr) -> RawLink {
        // No encryption, because one test writes frames itself.
        let mut link = RawLink::open_as(address, Role::Client, self.keys.client.clone(), Encryption::Off);
        assert_eq!(self.hear(&mut link), Heard::Established);
        link.flush();
        link
    }

    /// Sends an opening message on a link, and returns the answer.
    fn say(&mut self, link: &mut RawLink, words: Control) -> Control {
        link.end.open_relayed(words).unwrap();
        link.flush();
        match self.hear(link) {
            Heard::Control(_, control) => control,
            other => panic!("{other:?}"),
        }
    }

    /// A session that begins at `here` and resumes on `there`: both links, and the carrier's id on the second one.
    fn carry_there(&mut self) -> (RawLink, RawLink, Id) {
        let mut one = self.establish(self.here.port.links.address());
        let mut session = session(&self.keys.client);
        let connect = session.open(Time::ZERO, one.stream.local_addr().unwrap(), None);
        let answer = self.say(&mut one, connect);
        session.handle_control(Time::ZERO, &answer).unwrap();
        let mut other = self.establish(self.there.port.links.address());
        let reconnect = session.open(Time::ZERO, other.stream.local_addr().unwrap(), None);
        let id = other.end.open_relayed(reconnect).unwrap();
        other.flush();
        let heard = self.hear(&mut other);
        assert!(matches!(heard, Heard::Control(_, Control::Resumed(_))), "{heard:?}");
        (one, other, id)
    }
}

fn session(key: &Key) -> ClientSession {
    ClientSession::new(key.clone(), SessionId([7; 16]), StreamLimits::default())
}

#[test]
fn words_that_two_threads_hear_begin_one_session() {
    let mut pair = Pair::new();
    let (mut one, mut other) =
        (pair.establish(pair.here.port.links.address()), pair.establish(pair.there.port.links.address()));
    let mut session = session(&pair.keys.client);
    let connect = session.open(Time::ZERO, one.stream.local_addr().unwrap(), None);
    let again = session.open(Time::ZERO, other.stream.local_addr().unwrap(), None);
    // The opening message with the higher epoch arrives first; the other one is stale.
    let answer = pair.say(&mut other, again);
    assert_eq!(session.handle_control(Time::ZERO, &answer), Ok(Some(ClientEvent::Attached { room: false })));
    assert_eq!(pair.say(&mut one, connect), Control::Refused(RefuseReason::Stale));
    assert_eq!((pair.here.opened, pair.there.opened), (0, 1));
    // The next carrier reaches the thread where the session did not begin, and the old carrier is closed.
    drop(one);
    let mut one = pair.establish(pair.here.port.links.address());
    let reconnect = session.open(Time::ZERO, one.stream.local_addr().unwrap(), None);
    let answer = pair.say(&mut one, reconnect);
    assert_eq!(session.handle_control(Time::ZERO, &answer), Ok(Some(ClientEvent::Attached { room: false })));
    let is_moved = |heard: &Heard| matches!(heard, Heard::Control(_, Control::Close(CloseReason::Moved)));
    while !is_moved(&pair.hear(&mut other)) {}
    assert_eq!((pair.here.opened, pair.there.opened, pair.there.closed), (0, 1, 0));
}

#[test]
fn a_lost_link_of_another_thread_leaves_the_session_waiting() {
    let mut pair = Pair::new();
    let (_one, other, _) = pair.carry_there();
    let client = *pair.here.clients.keys().next().unwrap();
    assert!(pair.here.port.links.link(client).is_some());
    drop(other);
    pair.until("the loss", |pair| pair.here.port.links.link(client).is_none());
    assert!(pair.here.port.links.info(client).is_some(), "it waits for its client");
    assert_eq!(pair.here.closed, 0);
}

/// Data beyond the window does not accumulate in a mailbox while the session's thread is busy.
#[test]
fn what_is_posted_is_bounded() {
    let mut pair = Pair::new();
    let (_one, mut other, id) = pair.carry_there();
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut sent = 0;
    other.stream.set_nonblocking(true).unwrap();
    loop {
        assert!(Instant::now() < deadline && sent < 10_000_000, "it takes {sent} bytes");
        if other.stream.peek(&mut [0]).is_ok() {
            break;
        }
        let mut frame = vec![1, 0x40, 0, 0, 0, 0, id.0 as u8];
        frame.resize(7 + 0x4000, b'x');
        let mut at = 0;
        while at < frame.len() {
            at += other.stream.write(&frame[at..]).unwrap_or(0);
            // Only the thread that owns the link runs.
            pair.there.turn();
        }
        sent += frame.len();
    }
    other.stream.set_nonblocking(false).unwrap();
    let mut heard = other.hear();
    while heard == Heard::Control(id, Control::Accepted) {
        heard = other.hear();
    }
    assert_eq!(heard, Heard::Control(id, Control::Close(CloseReason::OverCredit)));
    pair.until("the loss", |pair| {
        pair.here.clients.keys().all(|client| pair.here.port.links.link(*client).is_none())
    });
}
