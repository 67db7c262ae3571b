//! A link port that a test drives, turn by turn.

use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags};
use spillway_server::{Event, Links, Settings};

const MARK: u32 = 9;

pub struct Port {
    pub links: Links,
    epoll: OwnedFd,
}

/// A server with a [`Port`].
pub trait Serve {
    fn port(&mut self) -> &mut Port;
    fn handle(&mut self, event: Event<'_>);

    /// One turn of the loop, which waits at most 1 ms.
    fn turn_at(&mut self, now: Instant, buffer: &mut [u8]) {
        let mut space = [MaybeUninit::<epoll::Event>::uninit(); 64];
        for event in self.port().wait(now, &mut space) {
            assert!(Links::owns(MARK, event.data.u64()));
            let ready = self.port().links.handle_ready(now, event.data.u64(), event.flags);
            let Some(link) = ready else { continue };
            let received = self.port().links.receive(link, buffer);
            let mut input = &buffer[..received];
            while let Some(event) = self.port().links.decompose(now, link, &mut input) {
                self.handle(event);
            }
        }
        self.port().links.handle_timeout(now);
        while let Some(event) = self.port().links.poll_event() {
            self.handle(event);
        }
        self.port().links.flush(now);
    }
}

impl Port {
    pub fn bind(now: Instant, address: SocketAddr, settings: Settings) -> Port {
        let links = Links::bind(now, address, settings).unwrap();
        Port { links, epoll: epoll::create(CreateFlags::CLOEXEC).unwrap() }
    }

    fn wait<'a>(
        &mut self,
        now: Instant,
        space: &'a mut [MaybeUninit<epoll::Event>],
    ) -> &'a mut [epoll::Event] {
        self.links.watch_in(&self.epoll, MARK).unwrap();
        let due = self.links.poll_timeout().is_some_and(|at| at <= now);
        let timeout = Timespec { tv_sec: 0, tv_nsec: if due { 0 } else { 1_000_000 } };
        epoll::wait(&self.epoll, space, Some(&timeout)).unwrap().0
    }
}

/// Runs turns until `done`, for at most 60 s.
pub fn run_until<T>(
    server: &mut T,
    description: &str,
    turn: impl Fn(&mut T),
    mut done: impl FnMut(&mut T) -> bool,
) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !done(server) {
        assert!(Instant::now() < deadline, "{description} should occur within 60 s");
        turn(server);
    }
}
