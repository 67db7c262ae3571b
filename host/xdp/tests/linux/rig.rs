//! The stack on a TAP interface, or by AF_XDP on a veth. Its peer is the kernel of a network namespace.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use spillway_bpf::{AddressRule, Mode};
use spillway_lab::{Host, HostOptions, Lab, Launch, unavailable};
use spillway_tcp::isn::Key;
use spillway_tcp::{Counters, Listener, Resolver, Settings, Stack};
use spillway_transport::{Application, Time};
use spillway_wire::packet::ethernet::Mac;
use spillway_xdp::{
    Adapter, Device, Driver, Endpoint, Faulted, Faults, FaultsOptions, Hosted, Interface, Socket,
    SocketOptions, Stop, Tap,
};

use crate::application::{Role, Roles, Tally, fill, is_right};

/// Timeout of every wait in a test.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// The kernel's address.
pub const KERNEL_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 1);
/// The stack's address.
pub const STACK_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 2);
/// Both addresses on [`Wire::XdpIpv6`].
const KERNEL_ADDRESS_IPV6: Ipv6Addr = Ipv6Addr::new(0xfd78, 0, 0, 0, 0, 0, 0, 1);
const STACK_ADDRESS_IPV6: Ipv6Addr = Ipv6Addr::new(0xfd78, 0, 0, 0, 0, 0, 0, 2);
const STACK_MAC: Mac = Mac([2, 0, 0, 0, 0, 2]);
/// Port of the first listener. Further listeners have the next ports.
pub const PORT: u16 = 7000;

/// Whether this machine cannot run these tests. Prints the reason.
pub fn skipped() -> bool {
    let reason = unavailable();
    if let Some(reason) = &reason {
        eprintln!("skipped: {reason}");
    }
    reason.is_some()
}

/// What [`Rig::stop`] returns.
#[derive(Debug)]
pub struct StackResults {
    pub tally: Tally,
    pub counters: Counters,
    pub faulted: Faulted,
    pub connections: usize,
}

pub struct Rig {
    _lab: Lab,
    wire: Wire,
    pub host: Host,
    stop: Stop,
    roles_thread: Option<JoinHandle<StackResults>>,
    application_thread: Option<JoinHandle<Counters>>,
    open_connections: Arc<AtomicUsize>,
    device: Option<TestDevice>,
}

/// The connection between the stack and the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wire {
    Tap,
    /// A veth, with AF_XDP at the stack's end.
    Xdp,
    /// As `Xdp`, over IPv6. Both ends have a static entry for the other's Ethernet address, because the stack
    /// has no neighbour discovery.
    XdpIpv6,
}

impl Wire {
    pub fn stack_address(self) -> IpAddr {
        if self == Wire::XdpIpv6 { STACK_ADDRESS_IPV6.into() } else { STACK_ADDRESS.into() }
    }

    fn kernel_address(self) -> IpAddr {
        if self == Wire::XdpIpv6 { KERNEL_ADDRESS_IPV6.into() } else { KERNEL_ADDRESS.into() }
    }

    fn settings(self) -> Settings {
        let (prefix, resolver) =
            if self == Wire::XdpIpv6 { (64, Resolver::Driver) } else { (24, Resolver::Arp) };
        Settings { resolver, ..Settings::new(STACK_MAC, self.stack_address(), prefix, Key([7; 16])) }
    }
}

impl Rig {
    /// Creates the namespace and the interface, but does not start the stack.
    pub fn new(wire: Wire, name: &str) -> Rig {
        Rig::with_sysctls(wire, name, &[])
    }

    /// Like [`new`](Self::new), with sysctls for the kernel's end.
    pub fn with_sysctls(wire: Wire, name: &str, sysctls: &[(&str, &str)]) -> Rig {
        let lab = Lab::new(name).unwrap();
        let sysctls = sysctls.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        let host = lab.host("kernel", HostOptions { sysctls, ..HostOptions::default() }).unwrap();
        let mut rig = Rig {
            _lab: lab,
            wire,
            host,
            stop: Stop::new().unwrap(),
            roles_thread: None,
            application_thread: None,
            open_connections: Arc::default(),
            device: None,
        };
        let device = match wire {
            Wire::Tap => TestDevice::Tap(rig.host.run_inside(|| Tap::open("spw0")).unwrap().unwrap()),
            Wire::Xdp | Wire::XdpIpv6 => rig.open_veth(),
        };
        rig.device = Some(device);
        rig.command(&["ip", "link", "set", "spw0", "up"]);
        match wire {
            Wire::Tap | Wire::Xdp => {
                rig.command(&["ip", "addr", "add", &format!("{KERNEL_ADDRESS}/24"), "dev", "spw0"]);
            }
            Wire::XdpIpv6 => {
                rig.command(&["sysctl", "-qw", "net.ipv6.conf.spw0.disable_ipv6=0"]);
                let kernel_address = format!("{KERNEL_ADDRESS_IPV6}/64");
                rig.command(&["ip", "addr", "add", &kernel_address, "dev", "spw0", "nodad"]);
                let (stack_address, mac) = (STACK_ADDRESS_IPV6.to_string(), text_of(STACK_MAC));
                rig.command(&["ip", "neigh", "replace", &stack_address, "lladdr", &mac, "dev", "spw0"]);
            }
        }
        rig
    }

    fn kernel_mac(&self) -> Mac {
        self.host
            .run_inside(|| Interface::find("spw0").map(|interface| interface.mac).unwrap_or(Mac::ZERO))
            .unwrap()
    }

    fn open_veth(&self) -> TestDevice {
        let mac = text_of(STACK_MAC);
        self.command(&["ip", "link", "add", "spw0", "type", "veth", "peer", "name", "spw1", "address", &mac]);
        // Otherwise the kernel sends partial checksums, and segments longer than the MTU.
        self.command(&["ethtool", "-K", "spw0", "tx", "off", "tso", "off"]);
        self.command(&["ip", "link", "set", "spw1", "up"]);
        let stack_address = self.wire.stack_address();
        let adapter = self.host.run_inside(|| {
            let rule = AddressRule { ports: None, is_separate: true };
            Adapter::open("spw1", SocketOptions::default(), |steer| steer.set_address(stack_address, &rule))
        });
        let mut adapter = adapter.unwrap().unwrap();
        assert_eq!((adapter.mode(), adapter.interface().mac), (Mode::Native, STACK_MAC));
        let socket = adapter.take_sockets().pop().expect("a veth has a queue");
        TestDevice::Xdp(Box::new((socket, adapter)))
    }

    pub fn command(&self, words: &[&str]) -> String {
        let mut process = self.host.spawn(&Launch::new(words[0]).args(&words[1..])).unwrap();
        let status = process.wait(PATIENCE).unwrap();
        let printed = process.stdout().unwrap() + &process.stderr().unwrap();
        assert!(status.success(), "{words:?}: {printed}");
        printed
    }

    /// Starts the stack with listeners at [`PORT`] and the next ports.
    pub fn start(&mut self, listeners: Vec<Role>, to_open: Vec<(SocketAddr, Role)>, faults: FaultsOptions) {
        self.start_with(listeners, to_open, faults, |_| {});
    }

    /// Like [`start`](Self::start); `change` adjusts the stack's settings.
    pub fn start_with(
        &mut self,
        listeners: Vec<Role>,
        to_open: Vec<(SocketAddr, Role)>,
        faults: FaultsOptions,
        change: impl FnOnce(&mut Settings),
    ) {
        let mut settings = self.wire.settings();
        for (port, role) in (PORT..).zip(&listeners) {
            let address = SocketAddr::from((self.wire.stack_address(), port));
            settings.listeners.push(Listener { address, is_gated: matches!(role, Role::Gated(_)) });
        }
        change(&mut settings);
        let device = self.device.take().unwrap();
        let (stop, kernel_mac) = (self.stop.clone(), self.kernel_mac());
        let application = Roles::new(listeners, to_open);
        self.open_connections = application.count();
        let run = move || {
            let start = Instant::now();
            let stack = Stack::new(Time::ZERO, settings).unwrap();
            let mut endpoint = StaticNeighbour { hosted: Hosted { stack, application }, kernel_mac };
            let mut driver = Driver::new(Faults::new(device, faults));
            driver.run(&mut endpoint, || Time::ZERO + start.elapsed(), &stop).unwrap();
            let hosted = endpoint.hosted;
            StackResults {
                tally: hosted.application.tally.clone(),
                counters: *hosted.stack.counters(),
                faulted: driver.device().faulted(),
                connections: hosted.stack.connections(),
            }
        };
        self.roles_thread = Some(std::thread::Builder::new().name("stack".into()).spawn(run).unwrap());
    }

    /// Starts the stack with another application, which [`stop_application`](Self::stop_application) ends.
    pub fn start_application<A: Application + Send + 'static>(
        &mut self,
        application: A,
        change: impl FnOnce(&mut Settings),
    ) {
        let mut settings = self.wire.settings();
        change(&mut settings);
        let (device, stop) = (self.device.take().unwrap(), self.stop.clone());
        let run = move || {
            let start = Instant::now();
            let stack = Stack::new(Time::ZERO, settings).unwrap();
            let mut hosted = Hosted { stack, application };
            Driver::new(device).run(&mut hosted, || Time::ZERO + start.elapsed(), &stop).unwrap();
            *hosted.stack.counters()
        };
        self.application_thread = Some(std::thread::Builder::new().name("stack".into()).spawn(run).unwrap());
    }

    /// Ends the application's thread at once, without closing its connections.
    pub fn stop_application(&mut self) -> Counters {
        self.stop.set();
        self.application_thread.take().unwrap().join().unwrap()
    }

    pub fn connect(&self, listener: u16) -> TcpStream {
        self.host.run_inside(|| connect(self.wire, listener)).unwrap()
    }

    pub fn listen(&self) -> TcpListener {
        self.host.run_inside(|| TcpListener::bind((self.wire.kernel_address(), 0)).unwrap()).unwrap()
    }

    /// Waits until all connections of the stack have ended, ends its loop and returns its results.
    pub fn stop(mut self) -> StackResults {
        let start = Instant::now();
        while self.open_connections.load(Ordering::Relaxed) != 0 && start.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.stop.set();
        self.roles_thread.take().unwrap().join().unwrap()
    }
}

/// A stack with its application. The answer to each next-hop request is the kernel's Ethernet address.
struct StaticNeighbour<A> {
    hosted: Hosted<A>,
    kernel_mac: Mac,
}

impl<A: Application> Endpoint for StaticNeighbour<A> {
    fn begin_turn(&mut self, now: Time) {
        self.hosted.begin_turn(now);
    }

    fn deliver(&mut self, now: Time, frame: &[u8]) {
        self.hosted.deliver(now, frame);
    }

    fn end_turn(&mut self, now: Time) {
        self.hosted.end_turn(now);
    }

    fn poll_transmit(&mut self, now: Time, slot: &mut [u8]) -> Option<usize> {
        loop {
            if let Some(length) = self.hosted.poll_transmit(now, slot) {
                return Some(length);
            }
            let target = self.hosted.stack.poll_next_hop_request()?;
            self.hosted.stack.set_next_hop(now, target, Some(self.kernel_mac));
        }
    }

    fn poll_timeout(&self) -> Option<Time> {
        self.hosted.poll_timeout()
    }
}

/// The address in the notation of `ip link`.
fn text_of(mac: Mac) -> String {
    mac.0.map(|byte| format!("{byte:02x}")).join(":")
}

enum TestDevice {
    Tap(Tap),
    Xdp(Box<(Socket, Adapter)>),
}

impl TestDevice {
    fn device(&mut self) -> &mut dyn Device {
        match self {
            TestDevice::Tap(tap) => tap,
            TestDevice::Xdp(parts) => &mut parts.0,
        }
    }
}

impl Device for TestDevice {
    fn receive(&mut self) -> io::Result<Option<&[u8]>> {
        self.device().receive()
    }

    fn transmit(&mut self) -> io::Result<Option<&mut [u8]>> {
        self.device().transmit()
    }

    fn commit(&mut self, length: usize) -> io::Result<bool> {
        self.device().commit(length)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.device().flush()
    }

    fn wait(&mut self, timeout: Option<Duration>, wakes: &[BorrowedFd<'_>]) -> io::Result<bool> {
        self.device().wait(timeout, wakes)
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.stop.set();
    }
}

/// Connects to a listener of the stack. Call it on a thread inside the namespace.
pub fn connect(wire: Wire, listener: u16) -> TcpStream {
    let target = SocketAddr::from((wire.stack_address(), PORT + listener));
    let stream = TcpStream::connect_timeout(&target, PATIENCE).unwrap();
    set_timeouts(&stream);
    stream
}

/// Sets timeouts, so that a test fails instead of waiting for ever.
pub fn set_timeouts(stream: &TcpStream) {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
}

/// Sends this many bytes of the pattern, then finishes.
pub fn send_pattern(mut stream: &TcpStream, bytes: u64) {
    let (mut offset, mut chunk) = (0, [0; 64 * 1024]);
    while offset < bytes {
        let chunk = &mut chunk[..(64 * 1024).min((bytes - offset) as usize)];
        fill(offset, chunk);
        stream.write_all(chunk).unwrap();
        offset += chunk.len() as u64;
    }
    stream.shutdown(Shutdown::Write).unwrap();
}

/// Reads the pattern up to the end of the stream and returns its length in bytes.
pub fn take_pattern(mut stream: &TcpStream) -> u64 {
    let (mut offset, mut chunk) = (0, [0; 64 * 1024]);
    loop {
        match stream.read(&mut chunk).unwrap() {
            0 => return offset,
            length => {
                assert!(is_right(offset, &chunk[..length]), "a wrong byte after {offset}");
                offset += length as u64;
            }
        }
    }
}

/// Sends a message of the pattern and checks that the peer returns it.
pub fn ask(mut stream: &TcpStream, offset: u64, bytes: usize) {
    let (mut message, mut answer) = (vec![0; bytes], vec![0; bytes]);
    fill(offset, &mut message);
    stream.write_all(&message).unwrap();
    stream.read_exact(&mut answer).unwrap();
    assert!(answer == message, "another message came back");
}
