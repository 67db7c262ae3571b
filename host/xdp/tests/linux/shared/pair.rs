//! Two hosts with a cable, stacks that share interfaces with the kernel, and echo servers on kernel sockets.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use spillway_bpf::{AddressRule, Endpoint, Protocol, VerdictCounters};
use spillway_lab::{Host, HostOptions, Lab, Launch, serve_echo};
use spillway_net::Clock;
use spillway_tcp::isn::Key;
use spillway_tcp::{Counters, Listener, Resolver, Settings, Stack};
use spillway_transport::{Application, Time};
use spillway_xdp::{
    Adapter, AdapterError, AddressWatch, Context, Driver, Endpoints, Interrupts, NoticeHook, Parts, Shared,
    Socket, SocketOptions, Stop,
};

use crate::application::{Role, Roles, Tally};
use crate::rig::{PATIENCE, set_timeouts, skipped};

/// Port of the stack's listener.
pub const OURS: u16 = 7000;
/// Port of the kernel's echo servers, for TCP and UDP.
pub const THEIRS: u16 = 8000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    V4,
    V6,
}

impl Family {
    pub fn client(self) -> IpAddr {
        self.pick(CLIENT, CLIENT_IPV6)
    }

    pub fn server(self) -> IpAddr {
        self.pick(SERVER, SERVER_IPV6)
    }

    /// An address outside the link's prefix, and a prefix for a route to it.
    pub fn far(self) -> (IpAddr, &'static str) {
        let ip = self.pick(Ipv4Addr::new(198, 51, 100, 9), Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 9));
        (ip, if self == Family::V4 { "198.51.100.0/24" } else { "2001:db8::/64" })
    }

    fn prefix(self) -> u8 {
        if self == Family::V4 { 24 } else { 64 }
    }

    /// Arguments of `ip address add`. `nodad`: duplicate address detection delays an IPv6 address by 1 s.
    pub fn address_arguments(self, ip: IpAddr) -> String {
        format!("{ip}/{}{}", self.prefix(), if self == Family::V4 { "" } else { " nodad" })
    }

    fn pick(self, v4: Ipv4Addr, v6: Ipv6Addr) -> IpAddr {
        if self == Family::V4 { v4.into() } else { v6.into() }
    }
}

/// Two hosts with a cable between them. Packets on it have full checksums, as on a real network.
pub struct Pair {
    pub family: Family,
    pub lab: Lab,
    pub client: Host,
    pub server: Host,
}

pub const CLIENT_END: &str = "two0";
pub const SERVER_END: &str = "two1";
pub const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 79, 0, 1);
pub const SERVER: Ipv4Addr = Ipv4Addr::new(10, 79, 0, 2);
pub const CLIENT_IPV6: Ipv6Addr = Ipv6Addr::new(0xfd79, 0, 0, 0, 0, 0, 0, 1);
pub const SERVER_IPV6: Ipv6Addr = Ipv6Addr::new(0xfd79, 0, 0, 0, 0, 0, 0, 2);

impl Pair {
    pub fn new(name: &str) -> Option<Pair> {
        Pair::with(Family::V4, name, 1)
    }

    pub fn of(family: Family, name: &str) -> Option<Pair> {
        Pair::with(family, name, 1)
    }

    /// A cable with `queues` queues in each direction.
    pub fn with(family: Family, name: &str, queues: usize) -> Option<Pair> {
        if skipped() {
            return None;
        }
        let lab = Lab::new(name).unwrap();
        let host = |name| lab.host(name, HostOptions::default()).unwrap();
        let (client, server) = (host("client"), host("server"));
        let queues = format!("numrxqueues {queues} numtxqueues {queues}");
        let namespace = server.namespace();
        let add = format!(
            "ip link add {CLIENT_END} {queues} type veth peer name {SERVER_END} {queues} netns {namespace}"
        );
        run(&client, &add);
        for (host, interface, address) in
            [(&client, CLIENT_END, family.client()), (&server, SERVER_END, family.server())]
        {
            if family == Family::V6 {
                allow_ipv6(host);
            }
            // On a veth the sender chooses the receiver's queue, and Linux would choose another one after a
            // timeout, unlike the hash of a network card.
            run(host, "sysctl -qw net.core.txrehash=0");
            run(host, &format!("ethtool -K {interface} tx off tso off gro on"));
            run(host, &format!("ip addr add dev {interface} {}", family.address_arguments(address)));
            run(host, &format!("ip link set {interface} up"));
        }
        let pair = Pair { family, lab, client, server };
        pair.wait_for_route();
        Some(pair)
    }

    /// Waits for the server's route to the client: an IPv6 route appears some time after the cable is up.
    fn wait_for_route(&self) {
        let (start, client) = (Instant::now(), self.family.client().to_string());
        loop {
            let mut process = self.server.spawn(&Launch::new("ip").args(["route", "get", &client])).unwrap();
            let is_found = process.wait(PATIENCE).unwrap().success();
            if is_found && process.stdout().unwrap().contains(SERVER_END) {
                return;
            }
            assert!(start.elapsed() < PATIENCE, "no route to the client");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Makes both kernels resolve each other, so that the first packet of a test need not wait.
    pub fn introduce(&self) {
        run(&self.client, &format!("ping -c 1 -w 20 {}", self.family.server()));
    }

    pub fn adapter(&self) -> Result<Adapter, AdapterError> {
        share(&self.server, SERVER_END, self.family.server())
    }

    pub fn client_adapter(&self) -> Result<Adapter, AdapterError> {
        share(&self.client, CLIENT_END, self.family.client())
    }

    pub fn settings(&self, adapter: &Adapter) -> Settings {
        let interface = adapter.interface();
        let is_server = interface.name == SERVER_END;
        let ip = if is_server { self.family.server() } else { self.family.client() };
        Settings {
            resolver: Resolver::Driver,
            ports: PORTS,
            ..Settings::new(interface.mac, ip, self.family.prefix(), Key([7; 16]))
        }
    }

    pub fn connect(&self, port: u16, timeout: Duration) -> std::io::Result<TcpStream> {
        let target = SocketAddr::from((self.family.server(), port));
        let stream = self.client.run_inside(|| TcpStream::connect_timeout(&target, timeout)).unwrap()?;
        set_timeouts(&stream);
        stream.set_nodelay(true)?;
        Ok(stream)
    }
}

/// Shares an interface of a host. The stack has the port [`OURS`] and [`PORTS`], the kernel all others.
fn share(host: &Host, interface: &str, ip: IpAddr) -> Result<Adapter, AdapterError> {
    let open = || {
        let options = SocketOptions { has_opened_ring: true, ..SocketOptions::default() };
        Adapter::open(interface, options, |steer| {
            steer.set_address(ip, &AddressRule { ports: Some(PORTS), is_separate: false })?;
            steer.add_endpoint(Endpoint { protocol: Protocol::Tcp, address: (ip, OURS).into() })
        })
    };
    host.run_inside(open).unwrap()
}

/// Turns IPv6 on, which hosts of the laboratory do not have by default.
pub fn allow_ipv6(host: &Host) {
    run(host, "sysctl -qw net.ipv6.conf.all.disable_ipv6=0 net.ipv6.conf.default.disable_ipv6=0");
}

pub fn run(host: &Host, command: &str) {
    let words: Vec<_> = command.split(' ').collect();
    let mut process = host.spawn(&Launch::new(words[0]).args(&words[1..])).unwrap();
    assert!(process.wait(PATIENCE).unwrap().success(), "{command}: {}", process.stderr().unwrap());
}

/// Local ports of the connections that the stack opens.
pub const PORTS: RangeInclusive<u16> = 50_000..=50_999;

/// Stacks at the server's address, one for each queue, with an echo server.
pub struct Stacks {
    pub stop: Stop,
    pub threads: Vec<JoinHandle<(Socket, Tally, Counters)>>,
    /// Open connections of each stack; `usize::MAX` before its first turn.
    pub counts: Vec<Arc<AtomicUsize>>,
}

impl Stacks {
    pub fn start(pair: &Pair, adapter: &mut Adapter) -> Stacks {
        Stacks::opening(pair, adapter, vec![])
    }

    /// `to_open`: connections that the first stack opens.
    pub fn opening(pair: &Pair, adapter: &mut Adapter, mut to_open: Vec<(SocketAddr, Role)>) -> Stacks {
        let server = pair.family.server();
        let mut settings = pair.settings(adapter);
        settings.listeners.push(Listener { address: SocketAddr::from((server, OURS)), is_gated: false });
        let interface = adapter.interface().clone();
        let mut stacks = Stacks { stop: Stop::new().unwrap(), threads: vec![], counts: vec![] };
        for socket in adapter.take_sockets() {
            let application = Roles::new(vec![Role::Echo], std::mem::take(&mut to_open));
            stacks.counts.push(application.count());
            let stack = Stack::new(Time::ZERO, settings.clone()).unwrap();
            let mut shared =
                pair.server.run_inside(|| Shared::new(&interface, stack, application)).unwrap().unwrap();
            let stop = stacks.stop.clone();
            stacks.threads.push(std::thread::spawn(move || {
                let start = Instant::now();
                let mut driver = Driver::new(socket);
                driver.run(&mut shared, || Time::ZERO + start.elapsed(), &stop).unwrap();
                assert!(shared.take_error().is_none(), "the kernel answers");
                (driver.into_device(), shared.hosted.application.tally, *shared.hosted.stack.counters())
            }));
        }
        stacks
    }

    pub fn wait_until_idle(&self) {
        let start = Instant::now();
        while self.counts.iter().any(|count| count.load(Ordering::Relaxed) != 0) {
            assert!(start.elapsed() < PATIENCE, "a connection does not end");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    pub fn stop(self) -> Vec<(Socket, Tally, Counters)> {
        self.stop.set();
        let join = |thread: JoinHandle<(Socket, Tally, Counters)>| thread.join().unwrap();
        let ended: Vec<_> = self.threads.into_iter().map(join).collect();
        assert!(ended.iter().all(|(_, tally, _)| tally.wrong == 0));
        ended
    }
}

/// A context that serves all queues of an adapter. Its stack listens at [`OURS`].
pub fn context<A: Application + Send>(pair: &Pair, adapter: Adapter, application: A) -> Context<A> {
    context_with(pair, adapter, application, (None, Box::new(|notice| panic!("{notice}"))))
}

/// As [`context`], with deferred interrupts and a hook for notices.
pub fn context_with<A: Application + Send>(
    pair: &Pair,
    mut adapter: Adapter,
    application: A,
    (interrupts, notices): (Option<Interrupts>, NoticeHook),
) -> Context<A> {
    let mut settings = pair.settings(&adapter);
    let address = SocketAddr::from((settings.addresses[0].ip, OURS));
    settings.listeners.push(Listener { address, is_gated: false });
    let host = if adapter.interface().name == SERVER_END { &pair.server } else { &pair.client };
    let (sockets, interface) = (adapter.take_sockets(), adapter.interface().clone());
    let endpoints = Endpoints::new(adapter);
    let watch = || AddressWatch::new(interface, vec![address.ip()], endpoints.leased().clone()).unwrap();
    let parts = Parts {
        sockets,
        stack: Stack::new(Time::ZERO, settings).unwrap(),
        address_watch: Some(host.run_inside(watch).unwrap()),
        endpoints,
        crossing: None,
        application,
        clock: Clock::start(),
        busy_poll: Duration::ZERO,
        interrupts,
        notices,
    };
    host.run_inside(|| Context::new(parts).unwrap()).unwrap()
}

/// Starts echo servers on kernel sockets, which end with the test's process.
pub fn start_kernel_echo(host: &Host) {
    let (listener, datagrams) = host
        .run_inside(|| {
            // `::` accepts both families, if the host has IPv6.
            let any = TcpListener::bind(("::", THEIRS)).map_or("0.0.0.0", |_| "::");
            (TcpListener::bind((any, THEIRS)).unwrap(), UdpSocket::bind((any, THEIRS)).unwrap())
        })
        .unwrap();
    serve_echo(listener, datagrams);
}

pub fn verdicts_of(adapter: &Adapter) -> VerdictCounters {
    adapter.steer().counters().unwrap()
}
