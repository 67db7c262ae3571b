//! Connections of unmodified clients, each of which sends requests one after the other and checks each byte of the replies.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use spillway_lab::{Host, LabError};

use crate::support::{PATIENCE, eventually};

/// Requests have 1 byte up to this length.
const REQUEST_BYTES_MAX: usize = 6000;
/// Gaps between replies that a connection remembers.
const GAPS_MAX: usize = 1 << 20;

/// What all connections together have seen.
#[derive(Clone, Copy, Debug)]
pub struct Figures {
    pub requests: u64,
    /// Medians of the longest waits for a reply, during a move and in a time as long without a move.
    pub longest_moving: Duration,
    pub longest_quiet: Duration,
}

struct Connection {
    address: SocketAddr,
    replies: Arc<AtomicU64>,
    /// The begin and the end of each wait for a reply.
    waits: Arc<Mutex<Vec<(Instant, Instant)>>>,
    thread: JoinHandle<Result<(), LabError>>,
}

pub struct Clients {
    connections: Vec<Connection>,
    is_over: Arc<AtomicBool>,
    /// The longest wait for a reply during each move, and in as many times without a move.
    blackouts: Vec<Duration>,
    quiet: Vec<Duration>,
}

impl Clients {
    pub fn start(host: &Host, service: SocketAddr, count: usize) -> Clients {
        let is_over = Arc::new(AtomicBool::new(false));
        // All connect before the first one sends: on a busy machine the later ones would wait long for the cores.
        let connect =
            || (0..count).map(|_| TcpStream::connect_timeout(&service, PATIENCE).unwrap()).collect();
        let streams: Vec<TcpStream> = host.run_inside(connect).unwrap();
        let start = |(number, stream): (usize, TcpStream)| {
            stream.set_nodelay(true).unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            let address = stream.local_addr().unwrap();
            let (replies, waits) = (Arc::<AtomicU64>::default(), Arc::<Mutex<Vec<_>>>::default());
            let run = {
                let (is_over, replies, waits) =
                    (Arc::clone(&is_over), Arc::clone(&replies), Arc::clone(&waits));
                move || exchange(stream, number as u64, &is_over, &replies, &waits)
            };
            Connection { address, replies, waits, thread: host.thread(run).unwrap() }
        };
        let connections = streams.into_iter().enumerate().map(start).collect();
        Clients { connections, is_over, blackouts: Vec::new(), quiet: Vec::new() }
    }

    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.connections.iter().map(|connection| connection.address).collect()
    }

    /// Waits until each connection has received further replies.
    pub fn wait_for_replies(&self) {
        let replies = |connection: &Connection| connection.replies.load(Ordering::Relaxed);
        let seen: Vec<u64> = self.connections.iter().map(replies).collect();
        eventually("further replies", || {
            self.connections.iter().zip(&seen).all(|(connection, seen)| {
                assert!(
                    !connection.thread.is_finished(),
                    "the connection of {} has ended",
                    connection.address
                );
                replies(connection) > seen + 3
            })
        });
    }

    /// The begin of a move, for [`record_move`](Self::record_move).
    pub fn mark(&self) -> Instant {
        Instant::now()
    }

    /// Records the longest wait for a reply on a connection that has moved since `began`.
    pub fn record_move(&mut self, client: SocketAddr, began: Instant) {
        let longest = self.longest_wait(client, began);
        self.blackouts.extend(longest);
    }

    /// As [`record_move`](Self::record_move), for a time in which the connection did not move.
    pub fn record_quiet(&mut self, client: SocketAddr, began: Instant) {
        let longest = self.longest_wait(client, began);
        self.quiet.extend(longest);
    }

    fn longest_wait(&self, client: SocketAddr, began: Instant) -> Option<Duration> {
        let connection = self.connections.iter().find(|connection| connection.address == client)?;
        let waits = connection.waits.lock().unwrap();
        let during = waits.iter().rev().take_while(|(_, end)| *end >= began);
        during.map(|(start, end)| *end - *start).max()
    }

    /// Ends all connections in order.
    pub fn stop(self) -> Figures {
        self.is_over.store(true, Ordering::Relaxed);
        let mut requests = 0;
        for connection in self.connections {
            connection.thread.join().unwrap().unwrap();
            requests += connection.replies.load(Ordering::Relaxed);
        }
        Figures { requests, longest_moving: median(self.blackouts), longest_quiet: median(self.quiet) }
    }
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

/// Sends requests until `is_over`; then the server must have returned everything, and ends the connection.
fn exchange(
    mut stream: TcpStream,
    number: u64,
    is_over: &AtomicBool,
    replies: &AtomicU64,
    waits: &Mutex<Vec<(Instant, Instant)>>,
) {
    let mut state = number + 1;
    let (mut request, mut reply) = (Vec::new(), Vec::new());
    while !is_over.load(Ordering::Relaxed) {
        request.clear();
        let length = 1 + (next(&mut state) as usize) % REQUEST_BYTES_MAX;
        request.extend((0..length).map(|_| next(&mut state) as u8));
        reply.resize(length, 0);
        let sent_at = Instant::now();
        stream.write_all(&request).expect("the connection should take the request");
        stream.read_exact(&mut reply).expect("the whole reply should come");
        assert_eq!(reply, request, "request {}", replies.load(Ordering::Relaxed));
        let mut waits = waits.lock().unwrap();
        if waits.len() < GAPS_MAX {
            waits.push((sent_at, Instant::now()));
        }
        replies.fetch_add(1, Ordering::Relaxed);
    }
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(stream.read(&mut [0; 1]).expect("the server should end the connection in order"), 0);
}

/// A pseudo-random number (xorshift64).
fn next(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state >> 11
}
