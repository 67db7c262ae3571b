//! Tests: configurations are read, refused and shown, and agree with the reference.

mod on_this_host;

use std::path::{Path, PathBuf};
use std::time::Duration;

use spillway_config::is_toml;

use super::*;
use crate::config::schema::SECTIONS;
use crate::config::tests::{VALID, host, read as valid};

fn read(text: &str) -> Result<SwitchConfig, Vec<Problem>> {
    read_text(text, &Reading { base: PathBuf::new(), reads_host: false })
}

/// A problem as `line:column: message`.
fn placed(problem: &Problem) -> String {
    let Problem { line, column, message } = problem;
    format!("{line}:{column}: {message}")
}

/// The only error.
fn only_problem(text: &str) -> String {
    let problems = read(text).expect_err(text);
    assert_eq!(problems.len(), 1, "{text}: {problems:?}");
    placed(&problems[0])
}

/// [`VALID`] with one replacement, which must apply.
fn with(from: &str, to: &str) -> String {
    assert_eq!(VALID.matches(from).count(), 1, "{from} should appear once");
    VALID.replace(from, to)
}

/// [`VALID`] with further lines at its end.
fn and(more: &str) -> String {
    format!("{}{more}\n", *VALID)
}

/// [`VALID`] with a further service of server `a`.
fn and_service(name: &str, address: &str) -> String {
    and(&format!(
        "[[service]]\nname = \"{name}\"\nendpoints = [{{ address = \"{address}\", server = \"a\" }}]"
    ))
}

/// [`VALID`] with a further prefix.
fn and_prefix(range: &str) -> String {
    and(&format!("[[prefix]]\nprefix = \"{range}\"\nnext_hop = \"02:00:00:00:00:09\"\nport = \"eth0\""))
}

const B: &str = "[[server]]\nname = \"b\"\n";
const PLACE: &str = "places = [{ address = \"10.0.0.6:21211\", service = \"cache\" }]";
const ENDPOINT: &str = "{ address = \"10.0.0.5:11211\", server = \"a\" }";

#[test]
fn a_valid_file_is_read_and_shown() {
    let config = valid(&VALID);
    let ports: Vec<(u8, &str, &[u8])> =
        config.ports.iter().map(|port| (port.number, port.interface.as_str(), &port.may_own[..])).collect();
    assert_eq!(ports, [(0, "eth0", &[][..]), (1, "eth1", &[0]), (2, "eth2", &[0])]);
    assert_eq!(config.control, ["10.0.0.1:9511".parse().unwrap()]);
    assert_eq!(config.addresses, ["10.0.0.1".parse::<IpAddr>().unwrap()]);
    let service = &config.services[0];
    assert_eq!((service.name.as_str(), service.number, service.endpoints[0].server), ("cache", 0, 1));
    let b = &config.servers[1];
    assert_eq!((b.name.as_str(), b.id, b.port, b.places[0].service), ("b", 2, 2, 0));
    assert_eq!(b.places[0].endpoint, service.endpoints[0].address);
    let shown = config.to_string();
    assert_eq!(valid(&shown).to_string(), shown, "the shown text should be a configuration");
}

#[test]
fn keys_that_are_not_given_have_the_defaults_of_the_reference() {
    let config = valid(&VALID);
    assert_eq!((config.name.as_str(), config.flows_max), ("switch", 131_072));
    assert_eq!((config.owner_timeout, config.metrics), (Duration::from_secs(1), None));
    assert_eq!(config.socket, crate::default_socket());
    let mut head = String::from("[switch]\n");
    for entry in SECTIONS[0].entries.iter().filter(|entry| is_toml(entry.default)) {
        head += &format!("{} = {}\n", entry.key, entry.default);
    }
    let explicit = valid(&VALID.replace("[switch]\n", &head));
    let socket = PathBuf::from("/run/spillway/switch.sock");
    assert_eq!(explicit.to_string(), SwitchConfig { socket, ..config }.to_string());
}

#[test]
fn the_example_of_the_reference_is_valid() {
    let page = crate::config::reference();
    let (_, example) = page.split_once("```toml\n").expect("the page has an example");
    let (example, _) = example.split_once("```").expect("the example ends");
    assert_eq!(valid(example).servers.len(), 2);
}

#[test]
fn every_key_is_read() {
    let text = r#"
        [switch]
        name = "rack-1"
        mode = "gateway"
        control = ["10.0.0.1:9511", "[2001:db8::1]:9511"]
        addresses = ["192.0.2.1"]
        owner_timeout = "500ms"
        flows_max = 1000
        socket = "/tmp/s.sock"
        admin_group = "root"
        metrics = "127.0.0.1:9412"
        [[port]]
        interface = "eth0"
        [[port]]
        interface = "eth1"
        may_own = ["cache", "web"]
        [[station]]
        mac = "02:00:00:00:00:01"
        port = "eth0"
        [[prefix]]
        prefix = "0.0.0.0/0"
        next_hop = "02:00:00:00:00:02"
        port = "eth0"
        [[service]]
        name = "cache"
        flows_max = 50
        endpoints = [{ address = "10.0.0.5:11211", server = "a" }, { address = "[2001:db8::5]:11211", server = "a" }]
        [[service]]
        name = "web"
        endpoints = [{ address = "10.0.0.5:80", server = "a" }]
        [[server]]
        name = "a"
        id = 7
        address = "2001:db8::5"
        mac = "02:00:00:00:00:05"
        port = "eth1"
        encapsulate = false
        key_file = "a.key"
        places = [{ address = "[2001:db8::5]:21211", service = "cache", endpoint = "[2001:db8::5]:11211" }]
    "#;
    let config = valid(text);
    assert_eq!((config.name.as_str(), config.flows_max), ("rack-1", 1000));
    assert_eq!((config.control.len(), config.addresses.len()), (2, 3));
    assert_eq!(config.owner_timeout, Duration::from_millis(500));
    assert_eq!(config.socket, Path::new("/tmp/s.sock"));
    assert_eq!(config.admin_group.as_ref().map(ToString::to_string).as_deref(), Some("root"));
    assert_eq!(config.metrics, Some("127.0.0.1:9412".parse().unwrap()));
    assert_eq!(config.ports[1].may_own, [0, 1]);
    assert_eq!((config.stations.len(), config.routes[0].network.length()), (1, 0));
    let server = &config.servers[0];
    assert_eq!((server.id, server.has_fixed_id, server.key_file.as_str()), (7, true, "a.key"));
    assert_eq!(server.places[0].endpoint, "[2001:db8::5]:11211".parse().unwrap());
    assert_eq!(config.services[1].endpoints[0].server, 7);
    assert_eq!((config.services[0].flows_max, config.services[1].flows_max), (Some(50), None));
    let is_word = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    let has_key =
        |key: &str| text.match_indices(&format!("{key} = ")).any(|(at, _)| !text[..at].ends_with(is_word));
    for entry in SECTIONS.iter().flat_map(|section| section.entries) {
        assert!(has_key(entry.key), "the text should have {}", entry.key);
    }
    assert_eq!(valid(&config.to_string()).to_string(), config.to_string());
}

#[test]
fn each_problem_has_line_column_and_the_next_step() {
    let station = |mac: &str, port: &str| and(&format!("[[station]]\nmac = \"{mac}\"\nport = \"{port}\""));
    let switch = |line: &str| with("[switch]\n", &format!("[switch]\n{line}\n"));
    let control = |list: &str| with("[\"10.0.0.1:9511\"]", list);
    let place = |list: &str| with(PLACE, &format!("places = [{list}]"));
    let cases = [
        // [switch]
        ("[switch".to_owned(), "1:"),
        (with("control = [\"10.0.0.1:9511\"]\n", ""), "1:1: control is missing: give the address"),
        (control("[]"), "2:11: give the address of this host"),
        (control("[\"10.0.0.1\"]"), "2:12: 10.0.0.1 has no port: give ADDRESS:PORT"),
        (control("[\"rack:1\"]"), "2:12: rack:1: give ADDRESS:PORT"),
        (control("[\"0.0.0.0:1\"]"), "2:12: 0.0.0.0: packets of other hosts"),
        (control("[\"10.0.0.1:1\", \"10.0.0.2:1\"]"), "2:26: 10.0.0.1:1 has the same address family"),
        (control("[\"10.0.0.1:1\", \"[2001:db8::1]:2\"]"), "2:26: give both addresses the same port"),
        (switch("addresses = [\"host\"]"), "2:14: host: give an IP address"),
        (
            switch(&format!("addresses = {:?}", (1..65).map(|n| format!("192.0.2.{n}")).collect::<Vec<_>>())),
            "2:13: 65 addresses; a switch has at most 64",
        ),
        (switch("owner_timeout = \"1ms\""), "2:17: give a time from 20ms to 1h"),
        (switch("owner_timeout = 1"), "2:17: give a text in quotes, with its unit"),
        (switch("flows_max = 0"), "2:13: give a whole number from 1 to 16777216"),
        (switch("name = \"rack.1\""), "2:8: a switch's name has 1 to 64 letters, digits, '-' and '_'"),
        (switch("mode = \"bridge\""), "2:8: give \"gateway\", between several interfaces, or \"host\""),
        (switch("socket = \"s\""), "2:10: give an absolute path"),
        (switch("admin_group = \"none-such\""), "2:15: there is no group \"none-such\""),
        (switch("metrics = \"nowhere\""), "2:11: nowhere has no port"),
        (switch("flow_max = 5"), "2:1: unknown field `flow_max`, did you mean `flows_max`?"),
        (and("[[prot]]"), "34:3: unknown field `prot`, did you mean `port`?"),
        // [[port]]
        (with("interface = \"eth0\"\n", ""), "3:1: interface is missing"),
        (
            with("interface = \"eth0\"", "interface = \"sixteen-bytes-no\""),
            "4:13: the name of an interface has",
        ),
        (with("interface = \"eth2\"", "interface = \"eth1\""), "9:13: eth1 is already a port"),
        (
            with("interface = \"eth2\"", "interface = \"e\\u001b[31m\""),
            "9:13: the name of an interface has no space, control",
        ),
        (with("[\"10.0.0.0/24\"]", "[]"), "10:11: name the services that the port's servers may own"),
        (with("[\"10.0.0.0/24\"]", "[\"web\"]"), "10:12: no [[service]] has name = \"web\""),
        (with("[\"10.0.0.0/24\"]", "[\"10.0.0.1/24\"]"), "10:12: 10.0.0.1/24: address bits are set"),
        (with("[\"10.0.0.0/24\"]", "[\"10.2.0.0/24\"]"), "10:12: no service has an endpoint in 10.2.0.0/24"),
        // [[station]]
        (with("mac = \"02:00:00:00:00:01\"\n", ""), "11:1: mac is missing"),
        (with("02:00:00:00:00:01", "02:00"), "12:7: 02:00: give an Ethernet address"),
        (with("02:00:00:00:00:01", "ff:ff:ff:ff:ff:ff"), "12:7: ff:ff:ff:ff:ff:ff: no interface has"),
        (station("02:00:00:00:00:01", "eth0"), "35:7: 02:00:00:00:00:01 is already a station"),
        (station("02:00:00:00:00:01", "eth1"), "35:7: 02:00:00:00:00:01 is already a station"),
        (
            station("02:00:00:00:00:09", "eth9"),
            "36:8: no [[port]] has interface = \"eth9\": add it, or name one of eth0",
        ),
        (
            station("02:00:00:00:00:06", "eth0"),
            "30:7: 02:00:00:00:00:06 is a station on port eth0, but this server is on",
        ),
        // [[prefix]]
        (and_prefix("10.1.2.0/24"), "35:10: 10.1.2.0/24 overlaps 10.1.0.0/16: divide them"),
        (and_prefix("10.0.0.0/8"), "35:10: 10.0.0.0/8 overlaps 10.1.0.0/16"),
        (and_prefix("10.1.0.0/16"), "35:10: 10.1.0.0/16 is already a prefix"),
        (and_prefix("10.3.0.0/40"), "35:10: 10.3.0.0/40: the number after the slash"),
        (with("prefix = \"10.1.0.0/16\"\n", ""), "14:1: prefix is missing"),
        (with("next_hop = \"02:00:00:00:00:02\"\n", ""), "14:1: next_hop is missing"),
        // [[service]]
        (and_service("cache", "10.0.0.5:1"), "35:8: cache is already a service"),
        (and_service("web", "192.0.2.5:80"), "35:8: no server may own web: add may_own = [\"web\"]"),
        (
            with(ENDPOINT, &ENDPOINT.replace("10.0.0.5:11211", "10.0.0.1:80")),
            "20:26: 10.0.0.1 is an address of the switch",
        ),
        (with(ENDPOINT, &ENDPOINT.replace("\"a\"", "\"c\"")), "20:53: no [[server]] has name = \"c\""),
        (and("[[service]]\nendpoints = []"), "34:1: name is missing: name the service"),
        (
            with(ENDPOINT, &format!("{ENDPOINT}, {ENDPOINT}")).replace(PLACE, ""),
            "20:72: 10.0.0.5:11211 is already an endpoint of service cache",
        ),
        (
            with(ENDPOINT, "{ server = \"a\" }").replace("10.0.0.0/24", "cache").replace(PLACE, ""),
            "20:14: address is missing: give the address and TCP port of the endpoint",
        ),
        // [[server]]
        (with(B, "[[server]]\n"), "27:1: name is missing: name the server"),
        (with(B, "[[server]]\nname = \"a\"\n"), "28:8: a is already a server"),
        (with(B, &format!("{B}id = 0\n")), "29:6: give a whole number from 1 to 255"),
        (
            with(B, &format!("{B}id = 9\n")).replace("name = \"a\"\n", "name = \"a\"\nid = 9\n"),
            "30:6: 9 is already the id of server a",
        ),
        (
            with("address = \"10.0.0.6\"", "address = \"10.0.0.5\""),
            "29:11: 10.0.0.5 is already the address of server a",
        ),
        (
            with("address = \"10.0.0.6\"", "address = \"10.0.0.1\""),
            "29:11: 10.0.0.1 is an address of the switch itself",
        ),
        (with("address = \"10.0.0.6\"", "address = \"2001:db8::6\""), "29:11: control has no IPv6 address"),
        (with("address = \"10.0.0.6\"\n", ""), "27:1: address is missing"),
        (
            with("02:00:00:00:00:06", "02:00:00:00:00:05"),
            "30:7: 02:00:00:00:00:05 is already the address of server a",
        ),
        (with("port = \"eth2\"\n", ""), "27:1: port is missing: name the interface that leads to the server"),
        (with("port = \"eth2\"", "port = \"eth9\""), "31:8: no [[port]] has interface = \"eth9\""),
        (with("port = \"eth2\"", "port = \"eth0\""), "31:8: port eth0 is not for servers: add may_own"),
        (with("key_file = \"b.key\"\n", ""), "27:1: key_file is missing: make a key with `spillway key new"),
        // places
        (
            place("{ address = \"10.0.0.5:11211\", service = \"cache\" }"),
            "33:23: 10.0.0.5:11211 is already an endpoint of service cache",
        ),
        (
            place("{ service = \"cache\" }"),
            "33:11: address is missing: give the address and TCP port of the place",
        ),
        (place("{ address = \"10.0.0.6:1\" }"), "33:11: service is missing"),
        (
            place("{ address = \"10.0.0.6:1\", service = \"web\" }"),
            "33:47: no [[service]] has name = \"web\"",
        ),
        (
            place("{ address = \"[2001:db8::6]:1\", service = \"cache\" }"),
            "33:23: [2001:db8::6]:1 has another address family",
        ),
        (
            place("{ address = \"10.0.0.6:1\", service = \"cache\", endpoint = \"10.0.0.5:1\" }"),
            "33:67: 10.0.0.5:1 is not an endpoint of cache",
        ),
        (
            with(
                "key_file = \"a.key\"\n",
                "key_file = \"a.key\"\nplaces = [{ address = \"10.0.0.6:21211\", service = \"cache\" }]\n",
            ),
            "34:23: 10.0.0.6:21211 is already a place of server a",
        ),
    ];
    for (text, expected) in cases {
        let problem = only_problem(&text);
        assert!(problem.starts_with(expected), "{text}\nproblem:  {problem}\nexpected: {expected}");
    }
}

#[test]
fn a_host_has_one_port_and_is_one_of_the_servers() {
    let config = valid(&host());
    assert_eq!(
        (config.mode, config.ports.len(), config.servers[0].address),
        (Mode::Host, 1, config.addresses[0])
    );
    assert!(config.local_server().is_none(), "the interface was not read");
    assert_eq!(valid(&config.to_string()).to_string(), config.to_string());
    let mut keyed = SwitchConfig { ..config };
    keyed.ports[0].mac = keyed.servers[0].mac;
    assert_eq!(keyed.local_server().map(|server| server.id), Some(1));
    for server in &mut keyed.servers {
        server.key = Some(spillway_auth::Key::from_secret([server.id; 32]));
    }
    let rules = keyed.rules(spillway_auth::SwitchKey::from_bytes([9; 16]));
    assert_eq!((rules.check(), rules.stations.len()), (Ok(()), 0));
    let section = |text: &str| format!("{}{text}\n", host());
    let station = "[[station]]\nmac = \"02:00:00:00:00:09\"\nport = \"eth0\"";
    let prefix = "[[prefix]]\nprefix = \"0.0.0.0/0\"\nnext_hop = \"02:00:00:00:00:09\"\nport = \"eth0\"";
    for (text, expected) in [
        (section("[[port]]\ninterface = \"eth1\""), "23:1: mode = \"host\" has one port"),
        (section(station), "23:1: mode = \"host\" forwards only the packets of moved connections"),
        (section(prefix), "23:1: mode = \"host\" forwards only"),
    ] {
        let problem = only_problem(&text);
        assert!(problem.starts_with(expected), "{text}\nproblem:  {problem}\nexpected: {expected}");
    }
    let first = |text: &str| placed(&read(text).expect_err(text)[0]);
    let unowned = first(&host().replace("may_own = [\"cache\"]\n", ""));
    assert!(unowned.starts_with("4:1: name the services that servers may own"), "{unowned}");
    let none = first("[switch]\nmode = \"host\"\ncontrol = [\"10.0.0.5:9511\"]\n");
    assert!(none.starts_with("1:1: mode = \"host\" needs this server's own interface"), "{none}");
}

#[test]
fn servers_of_other_racks_are_encapsulated() {
    let with =
        |lines: &str| host().replace("key_file = \"b.key\"", &format!("key_file = \"b.key\"\n{lines}"));
    let router = "next_hop = \"02:00:00:00:00:fe\"";
    let config = valid(&with(&format!("encapsulate = true\n{router}")));
    let next_hop =
        |config: &SwitchConfig| config.servers[1].encapsulation.map(|one| one.next_hop.to_string());
    assert_eq!(next_hop(&config).as_deref(), Some("02:00:00:00:00:fe"));
    assert_eq!(valid(&config.to_string()).to_string(), config.to_string());
    assert_eq!(next_hop(&valid(&with("encapsulate = true"))).as_deref(), Some("02:00:00:00:00:06"));
    assert_eq!(next_hop(&valid(&with("encapsulate = false"))), None);
    assert_eq!(config.tunnel_packet_max(&config.servers[1]), None, "the interface was not read");
    let mut keyed = config.clone();
    keyed.ports[0].mac = keyed.servers[0].mac;
    assert_eq!(keyed.tunnel_packet_max(&keyed.servers[1]), Some(1480));
    assert_eq!(keyed.tunnel_packet_max(&keyed.servers[0]), None);
    for (lines, expected) in [
        ("encapsulate = 1".to_owned(), "22:15: give true or false"),
        (format!("{router}\nencapsulate = \"yes\""), "23:15: give true or false"),
        (router.to_owned(), "22:12: next_hop needs encapsulate = true"),
        (format!("encapsulate = false\n{router}"), "23:12: next_hop needs encapsulate = true"),
        ("encapsulate = true\nnext_hop = \"router\"".to_owned(), "23:12: router: "),
        ("encapsulate = true\nnext_hop = 7".to_owned(), "23:12: "),
    ] {
        let problem = only_problem(&with(&lines));
        assert!(problem.starts_with(expected), "{lines}\nproblem:  {problem}\nexpected: {expected}");
    }
    let gateway = VALID.replace("key_file = \"b.key\"", "key_file = \"b.key\"\nencapsulate = true");
    let problem = only_problem(&gateway);
    assert!(problem.starts_with("33:15: encapsulate needs mode = \"host\""), "{problem}");
}

#[test]
fn the_port_of_a_host_keeps_its_number_with_another_interface() {
    let before = valid(&host());
    let mut after = valid(&host().replace("\"eth0\"", "\"eth1\""));
    after.keep_numbers(&crate::known::of_config(&before)).unwrap();
    assert_eq!((after.ports[0].number, after.servers[1].port), (0, 0));
}

#[test]
fn a_switch_needs_two_ports_and_servers_a_port_for_servers() {
    let first = |text: &str| placed(&read(text).expect_err(text)[0]);
    let one_port = "[switch]\ncontrol = [\"10.0.0.1:9511\"]\n[[port]]\ninterface = \"eth0\"\n";
    assert!(first(one_port).starts_with("3:1: a switch has at least two ports"));
    let unowned = first(&with("may_own = [\"cache\"]\n", ""));
    assert!(unowned.starts_with("24:8: port eth1 is not for servers: add may_own"), "{unowned}");
    let without_owners =
        VALID.replace("may_own = [\"cache\"]\n", "").replace("may_own = [\"10.0.0.0/24\"]\n", "");
    assert!(
        first(&without_owners).starts_with("17:8: no server may own cache: add may_own"),
        "{}",
        first(&without_owners)
    );
}

#[test]
fn a_service_may_need_the_endpoint_of_a_place() {
    let two = with(ENDPOINT, &format!("{ENDPOINT}, {{ address = \"10.0.0.5:11212\", server = \"a\" }}"));
    assert!(only_problem(&two).starts_with("33:51: cache has several endpoints: add endpoint"));
    let named = two.replace("service = \"cache\" }", "service = \"cache\", endpoint = \"10.0.0.5:11212\" }");
    assert_eq!(valid(&named).servers[1].places[0].endpoint, "10.0.0.5:11212".parse().unwrap());
    let partly = two.replace("10.0.0.5:11212", "10.9.0.5:11212").replace(PLACE, "");
    assert!(
        only_problem(&partly)
            .starts_with("10:12: 10.0.0.0/24 contains some endpoints of cache and not others")
    );
}

#[test]
fn an_original_server_must_be_allowed_to_own_its_service() {
    let web = and_service("web", "10.7.0.5:80");
    let text = web.replace("may_own = [\"10.0.0.0/24\"]", "may_own = [\"cache\", \"web\"]");
    let problem = only_problem(&text);
    assert!(problem.starts_with("36:50: a is on port eth1, whose servers may not own web: add"), "{problem}");
    let place = web
        .replace("service = \"cache\"", "service = \"web\"")
        .replace("may_own = [\"cache\"]", "may_own = [\"cache\", \"web\"]");
    let problem = only_problem(&place);
    assert!(problem.starts_with("33:51: the servers of port eth2 may not own web"), "{problem}");
}

#[test]
fn a_default_route_may_contain_other_prefixes() {
    assert_eq!(valid(&and_prefix("0.0.0.0/0")).routes.len(), 2);
}

#[test]
fn numbers_of_sections_are_bounded() {
    let ports: String = (0..61).map(|n| format!("[[port]]\ninterface = \"x{n}\"\n")).collect();
    assert!(only_problem(&and(&ports)).contains("a switch has at most 63 ports"));
    let stations: String = (0..4096)
        .map(|n| {
            format!("[[station]]\nmac = \"02:01:00:00:{:02x}:{:02x}\"\nport = \"eth0\"\n", n >> 8, n & 255)
        })
        .collect();
    assert!(only_problem(&and(&stations)).contains("a switch has at most 4096 stations"));
    let prefixes: String = (0..1024)
        .map(|n| {
            let range = format!("172.{}.{}.0/24", 16 + (n >> 8), n & 255);
            format!("[[prefix]]\nprefix = \"{range}\"\nnext_hop = \"02:00:00:00:00:09\"\nport = \"eth0\"\n")
        })
        .collect();
    assert!(only_problem(&and(&prefixes)).contains("a switch has at most 1024 prefixes"));
    let servers: String = (0..254)
        .map(|n| {
            format!(
                "[[server]]\nname = \"s{n}\"\naddress = \"10.5.0.{n}\"\nmac = \"02:02:00:00:00:{n:02x}\"\nport = \"eth1\"\n\
                 key_file = \"k\"\n"
            )
        })
        .collect();
    assert!(only_problem(&and(&servers)).contains("a switch has at most 255 servers"));
}

#[test]
fn files_are_distinguished_from_those_of_helpers() {
    use crate::config::is_of_switch;
    assert!(is_of_switch(&VALID) && !is_of_switch("[switch") && is_of_switch("  [[port"));
    assert!(!is_of_switch("[helper]\n[service.cache]\nlisten = [\":1\"]\n"));
}
