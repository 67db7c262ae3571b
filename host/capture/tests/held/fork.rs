//! A client and two servers with the same address. All frames pass through the test, which sends the client's frames to one of the
//! servers, as a switch does.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, read, write};
use spillway_lab::{Host, HostOptions, Lab, Launch};
use spillway_xdp::Tap;

use super::PATIENCE;

pub const INTERFACE: &str = "fork0";
const PORT: u16 = 7000;
const CLIENT_MAC: &str = "02:00:00:00:82:01";
/// Of both servers, so that the client has one neighbour.
const SERVER_MAC: &str = "02:00:00:00:82:02";
const FRAME_BYTES_MAX: usize = 2048;
/// Packets that may wait at an interface for the test: more than a window has, so that none is lost there.
const QUEUE_PACKETS: u32 = 10_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    V4,
    V6,
}

pub struct Fork {
    _lab: Lab,
    pub client: Host,
    pub servers: [Host; 2],
    family: Family,
    /// The server that gets the client's frames. The forwarding thread has the lock from the reading of a frame to its end, so
    /// that a frame before a change has reached its server when the change is made.
    owner: Arc<Mutex<usize>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Fork {
    /// `sysctls` are the client's. The servers check sources strictly (`rp_filter`), at all interfaces.
    pub fn new(name: &str, family: Family, sysctls: &[(&str, &str)]) -> Fork {
        let lab = Lab::new(name).unwrap();
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        let host = |name, sysctls: &[(&str, &str)]| {
            let sysctls = sysctls.iter().map(owned).collect();
            lab.host(name, HostOptions { sysctls, ..HostOptions::default() }).unwrap()
        };
        let client = host("client", sysctls);
        let strict = [("net/ipv4/conf/all/rp_filter", "1"), ("net/ipv4/conf/default/rp_filter", "1")];
        let servers = [host("source", &strict), host("target", &strict)];
        let hosts = [&client, &servers[0], &servers[1]];
        let ends = hosts.map(|host| open_end(host, family));
        set_up(&client, (family.client(), CLIENT_MAC), (family.server(), SERVER_MAC));
        for server in &servers {
            set_up(server, (family.server(), SERVER_MAC), (family.client(), CLIENT_MAC));
        }
        make_timeouts_long(&client, family);
        let (owner, stop) = (Arc::<Mutex<usize>>::default(), Arc::<AtomicBool>::default());
        let thread = {
            let (owner, stop) = (Arc::clone(&owner), Arc::clone(&stop));
            Some(std::thread::spawn(move || forward(&ends, &owner, &stop)))
        };
        Fork { _lab: lab, client, servers, family, owner, stop, thread }
    }

    /// A connection of the client to the first server: both ends.
    pub fn connection(&self) -> (TcpStream, TcpStream) {
        super::connection(&self.client, &self.servers[0], self.address())
    }

    pub fn address(&self) -> SocketAddr {
        SocketAddr::new(self.family.server(), PORT)
    }

    /// From now on the client's frames go to this server. Earlier ones have reached theirs.
    pub fn send_to(&self, server: usize) {
        *self.owner.lock().unwrap() = server;
    }
}

impl Drop for Fork {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
            && !std::thread::panicking()
        {
            panic!("the forwarding thread has panicked");
        }
    }
}

impl Family {
    fn client(self) -> IpAddr {
        self.host(1)
    }

    fn server(self) -> IpAddr {
        self.host(2)
    }

    fn host(self, number: u8) -> IpAddr {
        match self {
            Family::V4 => Ipv4Addr::new(10, 82, 0, number).into(),
            Family::V6 => Ipv6Addr::new(0xfd82, 0, 0, 0, 0, 0, 0, number.into()).into(),
        }
    }
}

pub fn run(host: &Host, command: &str) {
    let words: Vec<_> = command.split(' ').collect();
    let mut process = host.spawn(&Launch::new(words[0]).args(&words[1..])).unwrap();
    assert!(process.wait(PATIENCE).unwrap().success(), "{command}: {}", process.stderr().unwrap());
}

/// Makes the client's retransmission timeouts far longer than a move, so that a retransmission stands for a lost packet, also on a
/// machine that stalls. Probes of a tail loss are off, which would hide it.
fn make_timeouts_long(client: &Host, family: Family) {
    let (version, route) = match family {
        Family::V4 => ("-4", "10.82.0.0/24 metric 0"),
        Family::V6 => ("-6", "fd82::/64 metric 256"),
    };
    run(client, &format!("ip {version} route replace {route} dev {INTERFACE} proto kernel rto_min 20s"));
    run(client, "sysctl -qw net.ipv4.tcp_early_retrans=0");
}

fn open_end(host: &Host, family: Family) -> OwnedFd {
    if family == Family::V6 {
        run(host, "sysctl -qw net.ipv6.conf.all.disable_ipv6=0 net.ipv6.conf.default.disable_ipv6=0");
    }
    let tap = host.run_inside(|| Tap::open(INTERFACE)).unwrap().unwrap();
    tap.as_fd().try_clone_to_owned().unwrap()
}

fn set_up(host: &Host, (address, mac): (IpAddr, &str), (peer, peer_mac): (IpAddr, &str)) {
    let (prefix, nodad) = if address.is_ipv4() { ("24", "") } else { ("64", " nodad") };
    run(host, &format!("ip link set {INTERFACE} address {mac} txqueuelen {QUEUE_PACKETS}"));
    run(host, "ip link set lo up");
    run(host, &format!("ip addr add dev {INTERFACE} {address}/{prefix}{nodad}"));
    run(host, &format!("ip link set {INTERFACE} up"));
    run(host, &format!("ip neigh replace {peer} lladdr {peer_mac} dev {INTERFACE} nud permanent"));
}

/// The first end is the client's.
fn forward(ends: &[OwnedFd; 3], owner: &Mutex<usize>, stop: &AtomicBool) {
    let mut frame = [0; FRAME_BYTES_MAX];
    let pause = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
    while !stop.load(Ordering::Relaxed) {
        let mut polled = ends.each_ref().map(|end| PollFd::new(end, PollFlags::IN));
        poll(&mut polled, Some(&pause)).unwrap();
        for from in 0..ends.len() {
            let owner = owner.lock().unwrap();
            // EIO: the interface is down.
            let length = match read(&ends[from], &mut frame) {
                Ok(length) => length,
                Err(Errno::AGAIN | Errno::INTR | Errno::IO) => continue,
                Err(errno) => panic!("cannot read a frame: {errno}"),
            };
            let to = if from == 0 { &ends[1 + *owner] } else { &ends[0] };
            match write(to, &frame[..length]) {
                // EIO: the interface is down.
                Ok(_) | Err(Errno::IO) => {}
                Err(errno) => panic!("cannot write a frame: {errno}"),
            }
        }
    }
}
