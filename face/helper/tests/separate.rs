//! A helper at a separate address, which the kernel of its host does not have.

mod support;

use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::process::Command;

use spillway_client::{LinkTarget, LoadQueryOutcome};
use spillway_helper::config::{Engine, SeparateAddress};
use spillway_helper::{Helper, HelperConfig, Service};
use support::load_query::query;
use support::place::{HELPER, run_here, run_on};
use support::{EchoServer, Place, client_key, connect, echo, helper_key, wait};

/// The separate address, in the network of the cable.
const OWN: Ipv4Addr = Ipv4Addr::new(10, 79, 1, 9);
/// The address of a server in another network, behind the router.
const FAR_SERVER: &str = "10.80.0.3";

/// A helper for plain and for library clients at the separate address.
fn config(server: &EchoServer, threads: usize) -> HelperConfig {
    let service = Service {
        listen: vec![(OWN, 0).into()],
        link_listen: vec![(OWN, 0).into()],
        keys: vec![helper_key()],
        client_keys: vec![client_key()],
        ..Service::new("cache", server.address)
    };
    let mut config = HelperConfig { threads, ..HelperConfig::new(vec![service]) };
    config.xdp.separate = Some(SeparateAddress { ip: OWN, prefix: 24, gateway: None });
    config
}

fn await_links(helper: &Helper) {
    wait("the links", || {
        let status = helper.status();
        status.services[0].threads_listening == status.threads
    });
}

fn port(helper: &Helper) -> SocketAddr {
    helper.status().services[0].listen[0]
}

fn answers_ping(address: Ipv4Addr) -> bool {
    let arguments = ["-c", "1", "-W", "20", &address.to_string()];
    Command::new("ping").args(arguments).output().unwrap().status.success()
}

#[test]
fn a_helper_with_its_own_address_relays_and_answers_like_a_host() {
    fn on_xdp(place: &Place) {
        let server = place.echo_server();
        let helper = place.start(config(&server, 2)).unwrap();
        await_links(&helper);
        // With 16 clients each of the two threads has some, and must find the clients and the server by ARP.
        let mut clients: Vec<TcpStream> = (0..16).map(|_| connect(port(&helper))).collect();
        for (seed, client) in clients.iter_mut().enumerate() {
            echo(client, seed, 1 + seed * 3000);
        }
        assert!(helper.status().engine.missing_addresses.is_empty());
        assert!(answers_ping(OWN), "the helper answers for its address");
        assert!(answers_ping(HELPER), "the kernel answers for its own");
        // The peers have lost their ARP entries, and must resolve both addresses again.
        run_here("ip neigh flush dev peers0");
        clients.iter_mut().for_each(|client| echo(client, 7, 1000));
        let (address, key) = (helper.status().services[0].link_listen[0], client_key());
        let target = LinkTarget { address, key, server: None, encryption: Default::default() };
        let outcome = query(&[target]);
        assert!(matches!(outcome, LoadQueryOutcome::Helper { answered: true, .. }), "{outcome:?}");
        // The stack refuses connections to other ports.
        let closed = TcpStream::connect((OWN, 1)).unwrap_err();
        assert_eq!(closed.kind(), std::io::ErrorKind::ConnectionRefused);
    }
    Place::run(Engine::Xdp, on_xdp);
}

#[test]
fn a_server_in_another_network_is_reached_by_the_gateway() {
    fn on_xdp(place: &Place) {
        run_here(&format!("ip addr add {FAR_SERVER}/32 dev peers0"));
        let server = EchoServer::start_at(format!("{FAR_SERVER}:0").parse().unwrap());
        let mut config = config(&server, 1);
        let error = place.start(config.clone()).err().expect("no route").to_string();
        assert!(
            error.contains("10.80.0.3 is not in the network of address, 10.79.1.9/24: give gateway"),
            "{error}"
        );
        let clients = place.clients();
        config.xdp.separate =
            config.xdp.separate.map(|own| SeparateAddress { gateway: Some(clients), ..own });
        let helper = place.start(config).unwrap();
        await_links(&helper);
        echo(&mut connect(port(&helper)), 1, 100_000);
    }
    Place::run(Engine::Xdp, on_xdp);
}

#[test]
fn an_address_that_is_not_the_helpers_alone_is_refused_or_reported() {
    fn on_xdp(place: &Place) {
        let server = place.echo_server();
        let host = place.helper_host();
        let refusal = |config| place.start(config).err().expect("the helper should not start").to_string();
        run_on(host, &format!("ip addr add {OWN}/32 dev lo"));
        let error = refusal(config(&server, 1));
        assert!(
            error.contains("this host has the address 10.79.1.9, which is to be the helper's alone"),
            "{error}"
        );
        run_on(host, &format!("ip addr del {OWN}/32 dev lo"));
        let mut elsewhere = config(&server, 1);
        elsewhere.services[0].listen = vec![place.listen()];
        let error = refusal(elsewhere.clone());
        assert!(error.contains("the helper has the address 10.79.1.9 alone"), "{error}");
        let helper = place.start(config(&server, 1)).unwrap();
        await_links(&helper);
        let error = place.change(&helper, elsewhere).unwrap_err().to_string();
        assert!(error.contains("the helper has the address 10.79.1.9 alone"), "{error}");
        echo(&mut connect(port(&helper)), 1, 1000);
    }
    Place::run(Engine::Xdp, on_xdp);
}
