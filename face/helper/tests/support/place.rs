//! Where a test runs: with the helper on kernel sockets over loopback, or on the user-level TCP stack, on another host.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use spillway_helper::config::Engine;
use spillway_helper::{Helper, HelperConfig, StartError};
use spillway_lab::{Host, HostOptions, Lab, Launch, unavailable};

use super::EchoServer;

/// The helper's end of the cable.
pub const HELPER_END: &str = "helper0";
/// The end of clients and servers.
pub const PEERS_END: &str = "peers0";
pub const HELPER: Ipv4Addr = Ipv4Addr::new(10, 79, 1, 2);
/// The address from which clients connect. Servers refuse clients with their own address, and so need
/// another.
const CLIENTS: Ipv4Addr = Ipv4Addr::new(10, 79, 1, 1);
const SERVERS: Ipv4Addr = Ipv4Addr::new(10, 79, 1, 3);
const HELPER_V6: &str = "fd79::2";
const CLIENTS_V6: &str = "fd79::1";
const SERVERS_V6: &str = "fd79::3";
/// Receive queues of the helper's interface; a helper has at most as many threads.
const QUEUES: usize = 2;
/// Longer than any command that sets up an interface takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Number of laboratories of this process, for their names.
static LABS: AtomicU32 = AtomicU32::new(0);

/// Where the helper of a test runs. The test itself runs on the host of clients and servers.
pub enum Place {
    /// On the same host, on kernel sockets.
    Loopback,
    /// On another host, at the end of a cable.
    Cable(Host),
}

impl Place {
    /// Runs a test with a helper on this engine. Skips it with a reason if this process may not create hosts.
    pub fn run(engine: Engine, test: fn(&Place)) {
        if engine == Engine::Sockets {
            return test(&Place::Loopback);
        }
        if let Some(reason) = unavailable() {
            eprintln!("skipped: {reason}");
            return;
        }
        let lab = Lab::new(&format!("helper-{}", LABS.fetch_add(1, Ordering::Relaxed))).unwrap();
        let host = |name| lab.host(name, HostOptions::default()).unwrap();
        let (helper, peers) = (host("helper"), host("peers"));
        let namespace = peers.namespace();
        let command = |host: &Host, line: String| run_on(host, &line);
        let queues = format!("numrxqueues {QUEUES} numtxqueues {QUEUES}");
        command(
            &helper,
            format!(
                "ip link add {HELPER_END} {queues} type veth peer name {PEERS_END} {queues} netns {namespace}"
            ),
        );
        for (host, interface, address) in [(&helper, HELPER_END, HELPER), (&peers, PEERS_END, CLIENTS)] {
            command(host, format!("ethtool -K {interface} tx off tso off gro on"));
            command(host, format!("ip addr add {address}/24 dev {interface}"));
            command(host, format!("ip link set {interface} up"));
        }
        command(&peers, format!("ip addr add {SERVERS}/24 dev {PEERS_END}"));
        for (host, interface, address) in [
            (&helper, HELPER_END, HELPER_V6),
            (&peers, PEERS_END, CLIENTS_V6),
            // The prefix of 128 bits covers no other address, so clients do not choose this one as source.
            (&peers, PEERS_END, SERVERS_V6),
        ] {
            // The laboratory disables IPv6 on its hosts.
            command(host, format!("sysctl -qw net.ipv6.conf.{interface}.disable_ipv6=0"));
            let bits = if address == SERVERS_V6 { 128 } else { 64 };
            command(host, format!("ip addr add {address}/{bits} dev {interface} nodad"));
        }
        // On a veth the sender chooses the receiver's queue. By default Linux chooses another one after a
        // timeout, and so another thread; the hash of a network card does not change.
        command(&peers, "sysctl -qw net.core.txrehash=0".to_owned());
        // Operators reserve the stack's ports in this way. The laboratory's local ports end at 60999 anyway.
        command(&helper, "sysctl -qw net.ipv4.ip_local_reserved_ports=61000-65535".to_owned());
        let place = Place::Cable(helper);
        let result = peers.run_inside(|| std::panic::catch_unwind(|| test(&place))).unwrap();
        drop(place);
        lab.close().unwrap();
        if let Err(panic) = result {
            std::panic::resume_unwind(panic);
        }
    }

    /// The helper's host.
    pub fn helper_host(&self) -> &Host {
        match self {
            Place::Loopback => panic!("the test should run on a cable"),
            Place::Cable(host) => host,
        }
    }

    /// An address of the helper's host, with a port that the helper chooses.
    pub fn listen(&self) -> SocketAddr {
        match self {
            Place::Loopback => ([127, 0, 0, 1], 0).into(),
            Place::Cable(_) => (HELPER, 0).into(),
        }
    }

    /// An address of the test's host that the helper reaches, with a port that the host chooses.
    pub fn own(&self) -> SocketAddr {
        match self {
            Place::Loopback => ([127, 0, 0, 1], 0).into(),
            Place::Cable(_) => (SERVERS, 0).into(),
        }
    }

    /// The address from which clients connect.
    pub fn clients(&self) -> Ipv4Addr {
        match self {
            Place::Loopback => Ipv4Addr::LOCALHOST,
            Place::Cable(_) => CLIENTS,
        }
    }

    /// An address of the helper's host with a free port.
    pub fn free_address(&self) -> SocketAddr {
        let free = || TcpListener::bind(self.listen()).unwrap().local_addr().unwrap();
        match self {
            Place::Loopback => free(),
            Place::Cable(host) => host.run_inside(free).unwrap(),
        }
    }

    pub fn change(&self, helper: &Helper, config: HelperConfig) -> Result<(), StartError> {
        match self {
            Place::Loopback => helper.change(config).map(drop),
            Place::Cable(host) => host.run_inside(|| helper.change(on_cable(config)).map(drop)).unwrap(),
        }
    }

    /// As [`listen`](Self::listen), with IPv6.
    pub fn listen_v6(&self) -> SocketAddr {
        self.v6(HELPER_V6)
    }

    /// As [`own`](Self::own), with IPv6.
    pub fn own_v6(&self) -> SocketAddr {
        self.v6(SERVERS_V6)
    }

    fn v6(&self, on_cable: &str) -> SocketAddr {
        match self {
            Place::Loopback => (Ipv6Addr::LOCALHOST, 0).into(),
            Place::Cable(_) => (on_cable.parse::<Ipv6Addr>().unwrap(), 0).into(),
        }
    }

    /// Starts an echo server for links on the test's host.
    pub fn echo_server(&self) -> EchoServer {
        EchoServer::start_at(self.own())
    }

    pub fn start(&self, config: HelperConfig) -> Result<Helper, StartError> {
        match self {
            Place::Loopback => Helper::start(config),
            Place::Cable(_) => self.start_as_given(on_cable(config)),
        }
    }

    /// Starts a helper on a cable with the engine and the interface of its settings.
    pub fn start_as_given(&self, config: HelperConfig) -> Result<Helper, StartError> {
        self.helper_host().run_inside(|| Helper::start(config)).unwrap()
    }
}

pub fn run_on(host: &Host, line: &str) {
    let words: Vec<_> = line.split(' ').collect();
    let mut process = host.spawn(&Launch::new(words[0]).args(&words[1..])).unwrap();
    assert!(process.wait(PATIENCE).unwrap().success(), "{line}: {}", process.stderr().unwrap());
}

/// Runs a command on the test's host.
pub fn run_here(line: &str) {
    let words: Vec<_> = line.split(' ').collect();
    let output = std::process::Command::new(words[0]).args(&words[1..]).output().unwrap();
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
}

pub fn on_cable(config: HelperConfig) -> HelperConfig {
    HelperConfig { engine: Engine::Xdp, interface: Some(HELPER_END.to_owned()), ..config }
}

/// Makes two tests, one on each engine, of each function that takes a [`Place`].
#[allow(unused_macros)]
macro_rules! on_each_engine {
    ($($test:ident,)*) => {
        mod sockets {
            $(#[test]
            fn $test() {
                crate::support::Place::run(spillway_helper::config::Engine::Sockets, super::$test);
            })*
        }

        mod xdp {
            $(#[test]
            fn $test() {
                crate::support::Place::run(spillway_helper::config::Engine::Xdp, super::$test);
            })*
        }
    };
}
#[allow(unused_imports)]
pub(crate) use on_each_engine;
