//! A helper on the user-level TCP stack, and changes and faults of its interface.

mod support;

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};
use spillway_helper::config::{Engine, XdpConfig};
use spillway_helper::{Helper, HelperConfig, Service};
use spillway_lab::Launch;
use support::place::{HELPER, HELPER_END, PEERS_END, on_cable, run_here, run_on};
use support::{EchoServer, Place, connect, echo, helper_key, is_served, wait};

fn config(place: &Place, server: &EchoServer) -> HelperConfig {
    let service = Service {
        listen: vec![place.listen()],
        keys: vec![helper_key()],
        ..Service::new("cache", server.address)
    };
    HelperConfig { threads: 2, ..HelperConfig::new(vec![service]) }
}

fn port(helper: &Helper) -> SocketAddr {
    helper.status().services[0].listen[0]
}

fn await_links(helper: &Helper) {
    wait("the links", || {
        let status = helper.status();
        status.services[0].links_up() == status.threads
    });
}

/// Starts a helper with one client.
fn start(place: &Place, server: &EchoServer) -> (Helper, TcpStream) {
    let helper = place.start(config(place, server)).unwrap();
    await_links(&helper);
    let mut client = connect(port(&helper));
    echo(&mut client, 1, 1000);
    (helper, client)
}

/// Why a helper with these settings does not start: one line.
fn refusal(place: &Place, config: HelperConfig) -> String {
    let error = place.start_as_given(config).err().expect("the helper should not start").to_string();
    assert!(!error.contains('\n'), "{error}");
    error
}

#[test]
fn a_changed_interface_ends_the_threads_and_a_new_helper_serves() {
    fn on_xdp(place: &Place) {
        let server = place.echo_server();
        // A veth with a program needs at least as many receive queues as its other end has transmit queues.
        run_here(&format!("ethtool -L {PEERS_END} tx 1"));
        run_on(place.helper_host(), &format!("ethtool -L {HELPER_END} rx 1"));
        for (change, reason, repair) in [
            ("ip link set helper0 mtu 1400", "an MTU of 1400 bytes now", "ip link set helper0 mtu 1500"),
            ("ethtool -L helper0 rx 2", "has 2 queues now and had 1", "ethtool -L helper0 rx 1"),
        ] {
            let (mut helper, mut client) = start(place, &server);
            assert!(helper.all_threads_run() && helper.failure().is_none());
            run_on(place.helper_host(), change);
            wait("the end of the threads", || !helper.all_threads_run());
            wait("the reason", || helper.failure().is_some());
            let failure = helper.failure().unwrap().to_owned();
            assert!(failure.contains(reason), "{failure}");
            run_on(place.helper_host(), repair);
            // The test restarts the helper, as a service manager would.
            drop(helper);
            helper = place.start(config(place, &server)).unwrap();
            await_links(&helper);
            assert!(is_served(port(&helper)), "after: {repair}");
            // The kernel, or the new helper, resets connections of the old one.
            let _ = client.write_all(b"late");
            let end = client.read(&mut [0; 1]);
            assert!(matches!(&end, Err(error) if error.kind() == ErrorKind::ConnectionReset), "{end:?}");
            helper.stop();
        }
    }
    Place::run(Engine::Xdp, on_xdp);
}

#[test]
fn connections_survive_the_removal_of_an_address() {
    fn on_xdp(place: &Place) {
        let server = place.echo_server();
        let (helper, mut client) = start(place, &server);
        let host = place.helper_host();
        run_on(host, &format!("ip addr del {HELPER}/24 dev {HELPER_END}"));
        echo(&mut client, 2, 3000);
        // A reload with the missing address is refused, and the present settings stay.
        let present = helper.status().services[0].listen.clone();
        let mut other = config(place, &server);
        other.services[0].listen = present.clone();
        let error = place.change(&helper, other.clone()).unwrap_err().to_string();
        assert!(error.contains(&format!("cannot listen at {}", present[0])), "{error}");
        assert!(error.contains("interface helper0 does not have this address"), "{error}");
        echo(&mut client, 3, 100);
        run_on(host, &format!("ip addr add {HELPER}/24 dev {HELPER_END}"));
        place.change(&helper, other).unwrap();
        echo(&mut client, 4, 3000);
        assert!(is_served(port(&helper)));
        let status = helper.status();
        assert_eq!((status.services[0].links_up(), status.services[0].clients_lost_with_link), (2, 0));
    }
    Place::run(Engine::Xdp, on_xdp);
}

/// Ethernet addresses change when a server or a router fails over to another machine.
#[test]
fn connections_follow_neighbours_to_another_ethernet_address() {
    fn on_xdp(place: &Place) {
        let server = place.echo_server();
        let (helper, mut client) = start(place, &server);
        // A machine that takes over an address announces this by ARP. Without this, the kernel, too, would
        // use its old entry until the entry is stale.
        run_here(&format!("sysctl -qw net.ipv4.conf.{PEERS_END}.arp_notify=1"));
        for last in [0x77, 0x78] {
            run_here(&format!("ip link set {PEERS_END} address 02:00:00:00:00:{last:02x}"));
            echo(&mut client, last, 3000);
            assert!(is_served(port(&helper)));
        }
        let status = helper.status();
        assert_eq!((status.services[0].links_up(), status.services[0].clients_lost_with_link), (2, 0));
    }
    Place::run(Engine::Xdp, on_xdp);
}

#[test]
fn the_engine_auto_is_xdp_where_it_can_be() {
    fn on_xdp(place: &Place) {
        let server = place.echo_server();
        let auto = || HelperConfig { engine: Engine::Auto, ..on_cable(config(place, &server)) };
        let helper = place.start_as_given(auto()).unwrap();
        assert_eq!(helper.status().engine.name, "xdp");
        await_links(&helper);
        assert!(is_served(port(&helper)));
        drop(helper);
        // Each of these settings makes xdp impossible: the kernel may choose the ports of the last one.
        let mut wildcard = auto();
        wildcard.services[0].listen = vec![(Ipv4Addr::UNSPECIFIED, 0).into()];
        let taken = XdpConfig { ports: 30_000..=30_999, ..XdpConfig::default() };
        for config in [
            wildcard,
            HelperConfig { interface: None, ..auto() },
            HelperConfig { interface: Some("no-such-if".into()), ..auto() },
            HelperConfig { xdp: taken, ..auto() },
        ] {
            let helper = place.start_as_given(config).unwrap();
            assert_eq!(helper.status().engine.name, "sockets");
            await_links(&helper);
            let port = SocketAddr::new(HELPER.into(), port(&helper).port());
            assert!(is_served(port));
        }
    }
    Place::run(Engine::Xdp, on_xdp);
}

#[test]
fn a_thread_that_polls_serves_and_stops() {
    fn on_xdp(place: &Place) {
        let server = place.echo_server();
        let mut config = config(place, &server);
        config.xdp.busy_poll = Duration::from_millis(5);
        let helper = place.start(config).unwrap();
        await_links(&helper);
        let mut clients: Vec<TcpStream> = (0..20).map(|_| connect(port(&helper))).collect();
        for round in 0..50 {
            clients.iter_mut().for_each(|client| echo(client, round, 1 + round * 50));
        }
        helper.stop();
    }
    Place::run(Engine::Xdp, on_xdp);
}

#[test]
fn a_helper_configures_its_interface_if_it_may() {
    fn on_xdp(place: &Place) {
        let server = place.echo_server();
        let host = place.helper_host();
        let printed = |line: &str| {
            let words: Vec<_> = line.split(' ').collect();
            let mut process = host.spawn(&Launch::new(words[0]).args(&words[1..])).unwrap();
            assert!(process.wait(Duration::from_secs(60)).unwrap().success(), "{line}");
            process.stdout().unwrap()
        };
        run_here(&format!("ethtool -L {PEERS_END} tx 1"));
        run_on(host, &format!("ethtool -L {HELPER_END} rx 1"));
        run_on(host, &format!("ethtool -K {HELPER_END} rxvlan on"));
        for (is_allowed, threads, vlan) in [(false, 1, "on"), (true, 2, "off")] {
            let mut config = config(place, &server);
            config.xdp.configure_interface = is_allowed;
            let helper = place.start(config).unwrap();
            await_links(&helper);
            assert!(is_served(port(&helper)));
            let status = helper.status();
            assert_eq!((status.threads, status.engine.queues), (threads, Some(threads as u32)));
            let offloads = printed(&format!("ethtool -k {HELPER_END}"));
            assert!(offloads.contains(&format!("rx-vlan-offload: {vlan}")), "{offloads}");
        }
    }
    Place::run(Engine::Xdp, on_xdp);
}

/// A macvlan has only generic mode.
#[test]
fn an_interface_without_native_xdp_serves_in_generic_mode() {
    fn on_xdp(place: &Place) {
        let host = place.helper_host();
        run_on(host, &format!("ip link add generic0 link {HELPER_END} type macvlan mode bridge"));
        run_on(host, "ip addr add 10.79.2.2/24 dev generic0");
        run_on(host, "ip link set generic0 up");
        // In generic mode the kernel joins packets (GRO) before it runs the program.
        run_on(host, &format!("ethtool -K {HELPER_END} gro off"));
        for last in [1, 3] {
            run_here(&format!("ip addr add 10.79.2.{last}/24 dev {PEERS_END}"));
        }
        let server = EchoServer::start_at("10.79.2.3:0".parse().unwrap());
        let mut config =
            HelperConfig { interface: Some("generic0".into()), ..on_cable(config(place, &server)) };
        config.services[0].listen = vec!["10.79.2.2:0".parse().unwrap()];
        let helper = place.start_as_given(config).unwrap();
        let engine = helper.status().engine;
        assert_eq!((engine.name.as_str(), engine.mode.as_deref()), ("xdp", Some("generic")));
        await_links(&helper);
        let mut client = connect(port(&helper));
        for round in 0..20 {
            echo(&mut client, round, 1 + round * 5000);
        }
    }
    Place::run(Engine::Xdp, on_xdp);
}

#[test]
fn a_helper_that_cannot_have_its_interface_says_why_in_one_line() {
    fn on_xdp(place: &Place) {
        let server = place.echo_server();
        let good = || on_cable(config(place, &server));
        let with = |change: &dyn Fn(&mut HelperConfig)| {
            let mut config = good();
            change(&mut config);
            refusal(place, config)
        };
        let listen =
            |address: &str| with(&|config| config.services[0].listen = vec![address.parse().unwrap()]);
        let unknown = with(&|config| config.interface = Some("no-such-if".into()));
        assert!(unknown.contains("no-such-if") && unknown.contains("`ip link`"), "{unknown}");
        let none = with(&|config| config.interface = None);
        assert!(none.contains("--interface"), "{none}");
        let taken = with(&|config| config.xdp.ports = 30_000..=30_999);
        assert!(taken.contains("sysctl -w net.ipv4.ip_local_reserved_ports="), "{taken}");
        assert!(listen("0.0.0.0:7000").contains("single addresses"));
        assert!(listen("127.0.0.1:7000").contains("loopback"));
        let foreign = listen("10.79.1.99:7000");
        assert!(foreign.contains("does not have this address; it has 10.79.1.2"), "{foreign}");
        let local = with(&|config| config.services[0].server = (HELPER, 7001).into());
        assert!(local.contains("is on this host"), "{local}");

        let host = place.helper_host();
        let unprivileged = {
            let config = good();
            let start = move || {
                let (effective, permitted) = (CapabilitySet::empty(), CapabilitySet::empty());
                let inheritable = CapabilitySet::empty();
                set_capabilities(None, CapabilitySets { effective, permitted, inheritable }).unwrap();
                Helper::start(config).err().expect("the helper should not start").to_string()
            };
            host.run_inside(start).unwrap()
        };
        assert!(unprivileged.contains("CAP_BPF") && !unprivileged.contains('\n'), "{unprivileged}");

        run_on(host, &format!("ethtool -L {HELPER_END} rx 1"));
        let few = refusal(place, good());
        assert!(few.contains("receive queues"), "{few}");
        run_on(host, &format!("ethtool -L {HELPER_END} rx 2"));
        let first = place.start_as_given(good()).unwrap();
        let second = refusal(place, good());
        assert!(second.contains("bpftool prog show id"), "{second}");
        drop(first);
        for end in [HELPER_END, PEERS_END] {
            let line = format!("ip link set {end} mtu 4000");
            if end == HELPER_END { run_on(host, &line) } else { run_here(&line) }
        }
        let long = refusal(place, good());
        assert!(long.contains("MTU") && long.contains("3,506"), "{long}");
    }
    Place::run(Engine::Xdp, on_xdp);
}
