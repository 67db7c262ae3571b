//! A server in another rack gets the packets of moved connections through a tunnel, and answers the client itself.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;

use serde_json::json;
use spillway_lab::Place;
use spillway_lab::peers::Memcached;

use super::scene::{FAMILIES, SERVICE_PORT, Scene};
use super::support::{eventually, value_of};
use super::{connect_from, exchange, free_address, memcached, terminate};

#[test]
fn a_server_of_another_rack_serves_connections_through_a_tunnel() {
    let Some(scene) = Scene::start_racks() else { return };
    let daemons = [&scene.a, &scene.b].map(|host| scene.start_daemon(host));
    let _here = memcached(&scene.a, SERVICE_PORT);
    let [v4, v6] = scene.addresses(&scene.b);
    let listen = ["-l".to_owned(), v4.to_string(), "-l".to_owned(), format!("[{v6}]")];
    let there = Memcached::default().port(scene.place(0).port()).args(listen);
    let _there = there.start(&Place::Host(scene.b.clone())).unwrap();
    for family in FAMILIES {
        let mut agents = scene.agents(family);
        let source = free_address(&scene.client, family);
        let generation = scene.move_rule(&mut agents, source, family);
        let mut moved = connect_from(&scene.client, source, scene.service(family));
        exchange(&mut moved, b"set host 0 0 1\r\nb\r\n", b"STORED\r\n");
        // The client's segments are longer than the tunnel permits, until the client has learned the path MTU.
        let value = value_of("large", 500_000);
        let set = [format!("set large 0 0 {}\r\n", value.len()).as_bytes(), &value, b"\r\n"].concat();
        exchange(&mut moved, &set, b"STORED\r\n");
        let reply = exchange(&mut moved, b"get large\r\n", b"\r\nEND\r\n");
        assert!(reply.windows(value.len()).any(|window| window == value), "the value comes back unchanged");

        let client = source.to_string();
        let listed = scene.result(&scene.a, &["flows", "--client", &client]);
        let owner = &listed["flows"][0]["owner"];
        assert_eq!((&owner["server"], &owner["encapsulated"]), (&json!("b"), &json!(true)), "{listed}");
        let text =
            String::from_utf8(scene.command(&scene.a, &["flows", "--client", &client]).stdout).unwrap();
        assert!(text.trim_end().ends_with(" encapsulated"), "{text}");

        // Server `a` owns the flow again. Its kernel has no such connection, and says so under the service's address.
        scene.heartbeats(&mut agents, family);
        scene.move_back(&mut agents, (source, generation), family);
        moved.write_all(b"get host\r\n").unwrap();
        assert_eq!(moved.read(&mut [0; 9]).unwrap_err().kind(), ErrorKind::ConnectionReset);
        let service = scene.service(family);
        let mut plain = scene.client.run_inside(|| TcpStream::connect(service).unwrap()).unwrap();
        assert_eq!(exchange(&mut plain, b"get host\r\n", b"END\r\n"), b"END\r\n", "the memcached of a");
    }
    eventually("both switches count the packets", || {
        // Each value of 500,000 bytes has 350 segments.
        scene.packets(&scene.a, "encapsulated") > 700
            && scene.packets(&scene.a, "too_long_answered") >= 2
            && scene.packets(&scene.b, "decapsulated") > 700
            && scene.packets(&scene.b, "from_owner") > 22
    });
    assert_eq!(
        (scene.packets(&scene.a, "to_owner") > 0, scene.packets(&scene.a, "drop_too_long")),
        (true, 0)
    );
    let status = String::from_utf8(scene.command(&scene.a, &["status"]).stdout).unwrap();
    let [west, _] = scene.routers.unwrap();
    assert!(status.contains(&format!(", encapsulated via {west}: ")), "{status}");
    daemons.into_iter().for_each(terminate);
    scene.close();
}

#[test]
fn a_new_mtu_is_noticed_and_mistakes_about_tunnels_are_reported() {
    let Some(scene) = Scene::start_racks() else { return };
    let daemon = scene.start_daemon(&scene.a);
    let interface = scene.a.interface();
    scene.run(&scene.a, &format!("ip link set {interface} mtu 1540"));
    eventually("the daemon notices the new MTU", || {
        daemon.stderr().unwrap().contains("the interface's MTU is 1540 now; it was 1500")
    });
    let check = || {
        let mut check = scene.a.spawn(&scene.check(&scene.a)).unwrap();
        let ended = check.wait(super::support::PATIENCE).expect("the check should end");
        (ended.success(), check.stdout().unwrap() + &check.stderr().unwrap())
    };
    let (is_valid, text) = check();
    assert!(is_valid && !text.contains("do not fit into the tunnel"), "1,520 bytes fit: {text}");
    scene.run(&scene.a, &format!("ip link set {interface} mtu 1500"));
    let (is_valid, text) = check();
    let warning = "server b: packets of more than 1480 bytes do not fit into the tunnel";
    assert!(is_valid && text.contains(warning) && text.contains("advmss 1420"), "{text}");

    let file = scene.config(&scene.a);
    let valid = std::fs::read_to_string(&file).unwrap();
    let [west, _] = scene.routers.unwrap();
    let own = format!("next_hop = \"{}\"", spillway_wire::packet::ethernet::Mac(scene.a.mac()));
    let replacements = [
        (format!("next_hop = \"{west}\""), own, "is the address of this host's interface"),
        (
            format!("address = \"{}\"\nmac", scene.addresses(&scene.b)[0]),
            "address = \"fd78::2\"\nmac".into(),
            "one family",
        ),
        (
            "key_file = \"a-at-a.key\"".into(),
            "key_file = \"a-at-a.key\"\nencapsulate = true".into(),
            "a is this host's own server",
        ),
    ];
    for (from, to, expected) in replacements {
        assert_eq!(valid.matches(&from).count(), 1, "{from} in {valid}");
        std::fs::write(&file, valid.replace(&from, &to)).unwrap();
        let (is_valid, text) = check();
        assert!(!is_valid && text.contains(expected), "{text}");
    }
    terminate(daemon);
    scene.close();
}
