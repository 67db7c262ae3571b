//! The engine xdp beside the kernel: port conflicts, missing addresses, too many listeners, generic mode.

mod support;

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use spillway_helper::config::Engine;
use spillway_helper::{Helper, HelperConfig, Service, StartError, health};
use spillway_lab::{Host, Launch};
use support::{EchoServer, Place, connect, echo, helper_key, wait};

/// Longer than any command that sets up an interface takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

fn config(listen: Vec<SocketAddr>, server: &EchoServer) -> HelperConfig {
    let service = Service { listen, keys: vec![helper_key()], ..Service::new("cache", server.address) };
    HelperConfig { threads: 1, ..HelperConfig::new(vec![service]) }
}

/// The helper's host: these tests run on the engine xdp only.
fn host(place: &Place) -> &Host {
    let Place::Cable(host) = place else { panic!("the engine xdp needs a cable") };
    host
}

fn command(host: &Host, line: &str) {
    let words: Vec<_> = line.split(' ').collect();
    let mut process = host.spawn(&Launch::new(words[0]).args(&words[1..])).unwrap();
    assert!(process.wait(PATIENCE).unwrap().success(), "{line}: {}", process.stderr().unwrap());
}

fn refusal(started: Result<Helper, StartError>) -> String {
    started.map(drop).expect_err("the helper should not start").to_string()
}

#[test]
fn a_kernel_socket_at_the_stacks_ports_keeps_the_helper_from_starting() {
    fn on_xdp(place: &Place) {
        let server = place.echo_server();
        let start = || place.start(config(vec![place.listen()], &server));
        let listener = host(place).run_inside(|| TcpListener::bind("0.0.0.0:62000").unwrap()).unwrap();
        let error = refusal(start());
        assert!(error.contains("0.0.0.0:62000 listening; end their programs"), "{error}");
        let target = SocketAddr::from((place.listen().ip(), 62_000));
        let client = TcpStream::connect(target).unwrap();
        let accepted = listener.accept().unwrap();
        drop(listener);
        let error = refusal(start());
        assert!(error.contains(&format!("{target} connected to {}", accepted.1)), "{error}");
        // The helper's host closes first and is in TIME-WAIT, which does not count.
        drop(accepted);
        drop(client);
        let mut refused = 0;
        wait("the connection to end", || {
            let started = start();
            refused += usize::from(started.is_err());
            started.is_ok()
        });
        println!("refused {refused} times before the connection had ended");
    }
    Place::run(Engine::Xdp, on_xdp);
}

#[test]
fn a_helper_is_unhealthy_while_an_address_is_missing() {
    fn on_xdp(place: &Place) {
        let server = place.echo_server();
        let helper = place.start(config(vec![place.listen()], &server)).unwrap();
        wait("the link", || health(&helper.status()).is_ok());
        let port = helper.status().services[0].listen[0];
        let mut client = connect(port);
        echo(&mut client, 1, 1000);
        let ip = port.ip();
        command(host(place), &format!("ip addr del {ip}/24 dev helper0"));
        wait("the status to name the address", || !helper.status().engine.missing_addresses.is_empty());
        let why = health(&helper.status()).unwrap_err();
        assert!(why.contains(&format!("interface helper0 does not have the address {ip} any more")), "{why}");
        command(host(place), &format!("ip addr add {ip}/24 dev helper0"));
        wait("the helper to be healthy again", || health(&helper.status()).is_ok());
        echo(&mut client, 2, 1000);
    }
    Place::run(Engine::Xdp, on_xdp);
}

#[test]
fn too_many_listeners_are_refused_and_nothing_is_applied() {
    fn on_xdp(place: &Place) {
        let server = place.echo_server();
        let ip = place.listen().ip();
        let many = |count| (0..count).map(|at: u16| SocketAddr::new(ip, 10_000 + at)).collect::<Vec<_>>();
        let expected = "4097 listening addresses are configured, and the engine xdp has room for 4096";
        let error = refusal(place.start(config(many(4097), &server)));
        assert!(error.contains(expected), "{error}");
        let helper = place.start(config(many(1), &server)).unwrap();
        let error = place.change(&helper, config(many(4097), &server)).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
        assert_eq!(helper.status().services[0].listen, many(1));
        // The present listener ends only after the new ones are added.
        let others = many(4097).split_off(1);
        let error = place.change(&helper, config(others, &server)).unwrap_err().to_string();
        assert!(
            error.contains("4096 listening addresses are configured, and 1 others still have"),
            "{error}"
        );
        assert_eq!(helper.status().services[0].listen, many(1));
        wait("the link", || health(&helper.status()).is_ok());
        echo(&mut connect(many(1)[0]), 1, 1000);
    }
    Place::run(Engine::Xdp, on_xdp);
}

/// A macvlan has only generic mode.
#[test]
fn auto_takes_kernel_sockets_where_xdp_has_only_generic_mode() {
    fn on_xdp(place: &Place) {
        const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 79, 1, 5);
        let server = place.echo_server();
        command(host(place), "ip link add macvlan0 link helper0 type macvlan mode bridge");
        command(host(place), &format!("ip addr add {ADDRESS}/32 dev macvlan0"));
        command(host(place), "ip link set macvlan0 up");
        let to_server = format!("ip route add {}/32 dev macvlan0 src {ADDRESS}", server.address.ip());
        command(host(place), &to_server);
        for (engine, name, mode) in
            [(Engine::Auto, "sockets", None), (Engine::Xdp, "xdp", Some("generic".to_owned()))]
        {
            let interface = Some("macvlan0".to_owned());
            let config = HelperConfig { engine, interface, ..config(vec![(ADDRESS, 0).into()], &server) };
            let helper = host(place).run_inside(|| Helper::start(config)).unwrap().unwrap();
            let status = helper.status().engine;
            assert_eq!((status.name.as_str(), status.mode), (name, mode));
        }
    }
    Place::run(Engine::Xdp, on_xdp);
}
