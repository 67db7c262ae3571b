//! Two stacks and a cable between them, in virtual time.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use spillway_tcp::isn::Key;
use spillway_tcp::{Listener, Resolver, Settings, Stack, drive};
use spillway_transport::{Application, Time};
use spillway_wire::packet::ethernet::Mac;

pub const PORT: u16 = 80;

/// Settings of host 1 or 2; host 1 listens.
pub fn settings(host: u8) -> Settings {
    settings_at(host, Ipv4Addr::new(10, 0, 0, host).into(), 24)
}

/// Settings with IPv6 addresses; [`Pair`] resolves next hops.
#[allow(dead_code, reason = "not every test program has tests over IPv6")]
pub fn settings_ipv6(host: u8) -> Settings {
    Settings { resolver: Resolver::Driver, ..settings_at(host, listener_ipv6(host).ip(), 64) }
}

/// The IPv6 address of a host, and the port at which host 1 listens.
pub fn listener_ipv6(host: u8) -> SocketAddr {
    (Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, host.into()), PORT).into()
}

fn settings_at(host: u8, address: IpAddr, prefix: u8) -> Settings {
    let listener = Listener { address: SocketAddr::from((address, PORT)), is_gated: false };
    let listeners = if host == 1 { vec![listener] } else { vec![] };
    Settings { listeners, ..Settings::new(mac_of(host), address, prefix, Key([host; 16])) }
}

fn mac_of(host: u8) -> Mac {
    Mac([2, 0, 0, 0, 0, host])
}

/// A stack, its application, and the frames in flight to it.
pub struct Host<A> {
    pub stack: Stack,
    pub application: A,
    arriving: VecDeque<(Time, Vec<u8>)>,
}

/// Whether a frame arrives, given the sending host and the bytes.
pub type Filter = Box<dyn FnMut(usize, &[u8]) -> bool>;

/// Alters a frame of the given host on its way.
pub type Rewrite = Box<dyn FnMut(usize, &mut [u8])>;

/// Two hosts and a cable, on which frames take a fixed time, unless the filter drops them.
pub struct Pair<A> {
    pub hosts: [Host<A>; 2],
    pub now: Time,
    pub delay: Duration,
    pub filter: Filter,
    pub rewrite: Option<Rewrite>,
    /// Whether a frame to the second host arrives at the queue of another stack.
    pub is_misdirected: Option<fn(&[u8]) -> bool>,
}

impl<A: Application> Pair<A> {
    pub fn new(settings: [Settings; 2], applications: [A; 2]) -> Pair<A> {
        let mut applications = applications.into_iter();
        let hosts = settings.map(|settings| Host {
            stack: Stack::new(Time::ZERO, settings).expect("valid settings"),
            application: applications.next().expect("an application for each host"),
            arriving: VecDeque::new(),
        });
        let filter = Box::new(|_: usize, _: &[u8]| true);
        Pair {
            hosts,
            now: Time::ZERO,
            delay: Duration::from_micros(25),
            filter,
            rewrite: None,
            is_misdirected: None,
        }
    }

    /// Runs `act` on a host between two turns, and then ends a turn of that host.
    pub fn command<R>(&mut self, host: usize, act: impl FnOnce(Time, &mut A, &mut Stack) -> R) -> R {
        let node = &mut self.hosts[host];
        let result = act(self.now, &mut node.application, &mut node.stack);
        self.end_turn(host);
        result
    }

    pub fn next_at(&self) -> Option<Time> {
        let next_of = |host: &Host<A>| {
            let frame = host.arriving.front().map(|(at, _)| *at);
            [frame, drive::poll_timeout(&host.stack, &host.application)].into_iter().flatten().min()
        };
        self.hosts.iter().filter_map(next_of).min()
    }

    /// Advances the time to the next event, but by no more than `max`, and runs the turns that are due.
    pub fn step(&mut self, max: Duration) {
        let latest = self.now + max;
        self.now = self.next_at().unwrap_or(latest).clamp(self.now, latest);
        for host in 0..2 {
            self.turn(host);
        }
    }

    fn turn(&mut self, host: usize) {
        let node = &mut self.hosts[host];
        let is_due = |at: Option<Time>| at.is_some_and(|at| at <= self.now);
        let first = node.arriving.front().map(|(at, _)| *at);
        if !is_due(first) && !is_due(drive::poll_timeout(&node.stack, &node.application)) {
            return;
        }
        drive::begin_turn(&mut node.stack, &mut node.application, self.now);
        while node.arriving.front().is_some_and(|(at, _)| *at <= self.now) {
            let (_, frame) = node.arriving.pop_front().expect("the frame just seen");
            if host == 1
                && self.is_misdirected.is_some_and(|is_misdirected| is_misdirected(&frame))
                && node.stack.reopen_misdirected(self.now, &frame)
            {
                continue;
            }
            drive::deliver(&mut node.stack, &mut node.application, self.now, &frame);
        }
        self.end_turn(host);
    }

    fn end_turn(&mut self, host: usize) {
        let node = &mut self.hosts[host];
        drive::end_turn(&mut node.stack, &mut node.application, self.now);
        let mut slot = vec![0; node.stack.frame_bytes_max()];
        loop {
            while let Some(length) = self.hosts[host].stack.poll_transmit(self.now, &mut slot) {
                if (self.filter)(host, &slot[..length]) {
                    if let Some(rewrite) = &mut self.rewrite {
                        rewrite(host, &mut slot[..length]);
                    }
                    self.hosts[1 - host].arriving.push_back((self.now + self.delay, slot[..length].to_vec()));
                }
            }
            // The other host is the only neighbour.
            let stack = &mut self.hosts[host].stack;
            let Some(target) = stack.poll_next_hop_request() else { return };
            stack.set_next_hop(self.now, target, Some(mac_of(if host == 0 { 2 } else { 1 })));
        }
    }
}
