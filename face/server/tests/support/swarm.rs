//! Many connections in one epoll loop, each with a request under way or a move; verifies every byte.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags};
use spillway_moving_client::{Connection, Event, LinkTarget, Route, Settings, split_token};

/// One connection of the swarm, with one request at a time.
struct Member {
    connection: Connection,
    index: usize,
    sent: usize,
    received: usize,
    /// Stream offset of the current request's end.
    end: usize,
    rounds: usize,
    moves: usize,
    /// A carrier is prepared: the connection moves to it after the next reply.
    prepared: bool,
}

pub struct Swarm {
    epoll: OwnedFd,
    members: Vec<Member>,
    rounds: usize,
    /// The routes of successive moves; `None` is direct.
    routes: Vec<Option<LinkTarget>>,
}

const ROUNDS_PER_MOVE: usize = 4;

impl Swarm {
    pub fn new(
        server: std::net::SocketAddr,
        count: usize,
        rounds: usize,
        routes: Vec<Option<LinkTarget>>,
    ) -> Swarm {
        let now = Instant::now();
        let epoll = epoll::create(CreateFlags::CLOEXEC).unwrap();
        let member = |index| {
            let mut connection = Connection::connect(now, server, Settings::default()).unwrap();
            connection.watch_in(&epoll, index as u64).unwrap();
            Member { connection, index, sent: 0, received: 0, end: 0, rounds: 0, moves: 0, prepared: false }
        };
        let members = (0..count).map(member).collect();
        Swarm { epoll, members, rounds, routes }
    }

    /// Runs until every member has done all its rounds. Returns the number of moves.
    pub fn run(&mut self) -> usize {
        let deadline = Instant::now() + Duration::from_secs(120);
        let mut buffer = vec![0; 1 << 16];
        for index in 0..self.members.len() {
            self.handle_events(index, &mut buffer);
        }
        while self.members.iter().any(|member| member.rounds < self.rounds) {
            assert!(Instant::now() < deadline, "all rounds should end within 120 s");
            let mut space = [MaybeUninit::<epoll::Event>::uninit(); 64];
            let timeout = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
            let Ok((events, _)) = epoll::wait(&self.epoll, &mut space, Some(&timeout)) else { continue };
            let now = Instant::now();
            for event in events {
                let (token, slot) = split_token(event.data.u64()).unwrap();
                let index = token as usize;
                if self.members[index].connection.handle_ready(now, slot, event.flags.into()) {
                    self.receive(index, &mut buffer);
                }
                self.handle_events(index, &mut buffer);
            }
        }
        self.members.iter().map(|member| member.moves).sum()
    }

    fn handle_events(&mut self, index: usize, buffer: &mut [u8]) {
        while let Some(event) = self.members[index].connection.poll_event() {
            match event {
                Event::Moved(_) => {
                    self.members[index].moves += 1;
                    self.members[index].send_next(self.rounds);
                }
                Event::Prepared(_) => self.members[index].prepared = true,
                Event::Room => self.members[index].send(),
                Event::Readable => self.receive(index, buffer),
                other => panic!("member {index}: {other:?}"),
            }
        }
        self.members[index].connection.watch_in(&self.epoll, index as u64).unwrap();
    }

    fn receive(&mut self, index: usize, buffer: &mut [u8]) {
        let member = &mut self.members[index];
        match member.connection.receive(buffer) {
            Ok(0) => panic!("member {index}: unexpected end of the stream"),
            Ok(received) => member.verify(&buffer[..received]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => panic!("member {index}: {error}"),
        }
        if member.received == member.end && member.received == member.sent && member.end > 0 {
            member.rounds += 1;
            member.continue_after_reply(self.rounds, &self.routes);
        }
    }
}

impl Member {
    fn byte(index: usize, offset: usize) -> u8 {
        (index * 7 + offset % 251) as u8
    }

    fn verify(&mut self, bytes: &[u8]) {
        for actual in bytes {
            assert_eq!(
                *actual,
                Member::byte(self.index, self.received),
                "member {} at {}",
                self.index,
                self.received
            );
            self.received += 1;
        }
        assert!(
            self.received <= self.sent,
            "member {} should not receive more bytes than it sent",
            self.index
        );
    }

    /// After a complete reply: begins, prepares or completes a move, or sends the next request.
    fn continue_after_reply(&mut self, rounds: usize, routes: &[Option<LinkTarget>]) {
        let now = Instant::now();
        let turn = self.rounds / ROUNDS_PER_MOVE + self.index;
        let route = routes[turn % routes.len()].as_ref().map_or(Route::Direct, Route::Link);
        if std::mem::take(&mut self.prepared) {
            self.connection.complete_move().unwrap();
        } else if self.rounds.is_multiple_of(ROUNDS_PER_MOVE) && !self.connection.is_moving() {
            // Odd members send requests during the move. An error means that the connection is on this route already.
            let outcome = if self.index % 2 == 1 {
                self.connection.prepare_move(now, route)
            } else {
                self.connection.begin_move(now, route)
            };
            if self.index % 2 == 1 || outcome.is_err() {
                self.send_next(rounds);
            }
        } else {
            self.send_next(rounds);
        }
    }

    /// Sends the next request, if rounds are left.
    fn send_next(&mut self, rounds: usize) {
        if self.rounds < rounds {
            self.end += 1 + (self.index * 31 + self.rounds * 97) % 3000;
            self.send();
        }
    }

    fn send(&mut self) {
        let bytes: Vec<u8> = (self.sent..self.end).map(|offset| Member::byte(self.index, offset)).collect();
        match self.connection.send(&bytes) {
            Ok(sent) => self.sent += sent,
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock, "member {}", self.index),
        }
    }
}
