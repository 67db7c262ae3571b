//! Measures memcached's CPU time for a GET: over a link in batches, and over plain connections.
//!
//! `link_driver [threads] [batch]... [--helped-only]` prints the server's CPU time (schedstat) for each GET: on plain
//! connections to memcached without and with the preload library, and on helped ones. Build with `--profile dist`.
//!
//! `link_driver attach PLAIN LINK BATCH ROUNDS` sends rounds of batches to a server that runs already, for instance
//! under `valgrind --tool=callgrind` with LD_PRELOAD and SPILLWAY_LINK set: two runs with different numbers of rounds
//! give the instructions per GET, which do not depend on the machine's other load.

#[path = "../tests/support/mod.rs"]
mod support;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use rustix::event::epoll;
use spillway_batch::Id;
use support::driver::Driver;
use support::memcached::memcached;
use support::process::Server;

const ROUND: Duration = Duration::from_secs(3);
const KEYS: usize = 1000;

fn key(number: usize) -> String {
    format!("key-{:028}", number % KEYS)
}

fn value(number: usize) -> String {
    format!("{:064}", number % KEYS)
}

fn reply(number: usize) -> Vec<u8> {
    format!("VALUE {} 0 64\r\n{}\r\nEND\r\n", key(number), value(number)).into_bytes()
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [command, plain, link, batch, rounds] = arguments.as_slice()
        && command == "attach"
    {
        let number = |text: &String| text.parse().expect("BATCH and ROUNDS are numbers");
        fill(plain.parse().expect("PLAIN is an address"));
        attach(link.parse().expect("LINK is an address"), number(batch), number(rounds));
        return;
    }
    let helped_only = arguments.iter().any(|argument| argument == "--helped-only");
    let mut numbers = arguments.iter().filter_map(|argument| argument.parse::<usize>().ok());
    let threads = numbers.next().unwrap_or(1).to_string();
    let mut batches: Vec<usize> = numbers.collect();
    if batches.is_empty() {
        batches = vec![1, 20, 200];
    }
    let arguments = ["-t", &threads, "-c", "8192"];
    let (bare, server) = (memcached(&arguments, &[("SPILLWAY_OFF", "1")]), memcached(&arguments, &[]));
    fill(bare.plain);
    fill(server.plain);
    println!("memcached -t {threads}, pid {}", server.pid());
    for batch in batches {
        let helped = helped(&server, batch);
        if helped_only {
            println!("batch {batch:4}: helped {helped:6.3} us/GET");
            continue;
        }
        let (without, with) = (plain(&bare, batch), plain(&server, batch));
        println!(
            "batch {batch:4}: plain {without:6.3} us/GET without the preload library, {with:6.3} with it; helped \
             {helped:6.3} us/GET: {:.1}x",
            without.min(with) / helped
        );
    }
}

fn fill(server: SocketAddr) {
    let mut stream = TcpStream::connect(server).expect("connect to memcached");
    for number in 0..KEYS {
        let set = format!("set {} 0 0 64\r\n{}\r\n", key(number), value(number));
        stream.write_all(set.as_bytes()).expect("send a set");
        let mut stored = [0; 8];
        stream.read_exact(&mut stored).expect("receive the reply to a set");
        assert_eq!(&stored, b"STORED\r\n");
    }
}

/// Clients on one link, each with one GET in each batch.
struct Clients {
    driver: Driver,
    ids: Vec<Id>,
    gets: Vec<String>,
    replies: Vec<Vec<u8>>,
}

impl Clients {
    fn new(link: SocketAddr, batch: usize) -> Clients {
        let mut driver = Driver::loopback(link);
        let ids = (0..batch).map(|_| driver.connect()).collect();
        let (gets, replies) =
            (0..batch).map(|number| (format!("get {}\r\n", key(number)), reply(number))).unzip();
        Clients { driver, ids, gets, replies }
    }

    fn round(&mut self) {
        let Clients { driver, ids, gets, replies } = self;
        for (id, get) in ids.iter().zip(gets) {
            driver.send(*id, get.as_bytes());
        }
        driver.flush();
        let mut done = 0;
        while done < ids.len() {
            let id = ids[done];
            if driver.connections[&id].received.len() >= replies[done].len() {
                assert_eq!(driver.take(id), replies[done]);
                done += 1;
            } else {
                assert!(driver.lost.is_none(), "{:?}", driver.lost);
                driver.receive(Duration::from_secs(1));
            }
        }
    }
}

fn attach(link: SocketAddr, batch: usize, rounds: usize) {
    let mut clients = Clients::new(link, batch);
    (0..rounds).for_each(|_| clients.round());
    println!("{} GETs", batch * rounds);
}

fn helped(server: &Server, batch: usize) -> f64 {
    let mut clients = Clients::new(server.link, batch);
    clients.round();
    let (began, before, mut gets_done) = (Instant::now(), server.cpu_ns(), 0);
    while began.elapsed() < ROUND {
        clients.round();
        gets_done += batch;
    }
    (server.cpu_ns() - before) as f64 / 1000.0 / gets_done as f64
}

/// Measures plain clients, each with one GET outstanding. One epoll loop drives them, each independently.
fn plain(server: &Server, clients: usize) -> f64 {
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).expect("create an epoll set");
    let gets: Vec<_> = (0..clients).map(|number| format!("get {}\r\n", key(number))).collect();
    let replies: Vec<_> = (0..clients).map(reply).collect();
    let mut streams = Vec::new();
    for (number, get) in gets.iter().enumerate() {
        let mut stream = TcpStream::connect(server.plain).expect("connect to memcached");
        stream.set_nodelay(true).expect("set TCP_NODELAY");
        let data = epoll::EventData::new_u64(number as u64);
        epoll::add(&epoll, &stream, data, epoll::EventFlags::IN).expect("add a socket to the epoll set");
        stream.write_all(get.as_bytes()).expect("send a get");
        streams.push(stream);
    }
    let (mut began, mut before, mut gets_done) = (None, 0, 0);
    let mut events = Vec::with_capacity(clients.max(1));
    let mut buffer = vec![0; 1024];
    loop {
        epoll::wait(&epoll, rustix::buffer::spare_capacity(&mut events), None)
            .expect("wait for the epoll set");
        for event in events.drain(..) {
            let number = event.data.u64() as usize;
            let reply = &replies[number];
            streams[number].read_exact(&mut buffer[..reply.len()]).expect("receive the reply to a get");
            assert_eq!(&buffer[..reply.len()], &reply[..]);
            streams[number].write_all(gets[number].as_bytes()).expect("send a get");
            gets_done += 1;
        }
        match began {
            None if gets_done >= clients => {
                (began, before, gets_done) = (Some(Instant::now()), server.cpu_ns(), 0);
            }
            Some(began) if began.elapsed() >= ROUND => {
                return (server.cpu_ns() - before) as f64 / 1000.0 / gets_done as f64;
            }
            _ => {}
        }
    }
}
