//! Changes of configuration and ports: which numbers stay, what a failure leaves, what is not written.

use std::path::Path;

use libbpf_rs::{MapCore, MapFlags, MapHandle};
use spillway_bpf::attached_program;
use spillway_bpf::switch::{PinError, Pinned, PortState, Switch, SwitchError, remove};
use spillway_rules::config::Prefix;
use spillway_rules::{Address, PortId};
use spillway_transport::Time;

use super::pins::{create_interfaces, interfaces, ip, isolated, open};
use super::scene::*;

pub const BOTH: [(u8, &str); 2] = [(0, "port0"), (1, "port1")];
const NOW: Time = Time(5_000_000_000);

pub fn pinned_map(pins: &Path, name: &str) -> MapHandle {
    MapHandle::from_pinned_path(pins.join(name)).unwrap()
}

/// The interface's index.
pub fn index(interface: &str) -> u32 {
    let text = std::fs::read_to_string(format!("/sys/class/net/{interface}/ifindex"));
    // /sys has the interfaces of the namespace in which it was mounted.
    text.ok().and_then(|text| text.trim().parse().ok()).unwrap_or_else(|| {
        let output =
            std::process::Command::new("ip").args(["-o", "link", "show", interface]).output().unwrap();
        String::from_utf8(output.stdout).unwrap().split(':').next().unwrap().parse().unwrap()
    })
}

pub fn egress(pins: &Path, number: u8) -> Option<u32> {
    let value = pinned_map(pins, "egress").lookup(&u32::from(number).to_ne_bytes(), MapFlags::ANY).unwrap();
    value.map(|value| u32::from_ne_bytes(value.try_into().unwrap()))
}

pub fn attached(switch: &Switch) -> Vec<PortId> {
    let ports = switch.ports().into_iter();
    ports.filter(|(_, state)| matches!(state, PortState::Attached { .. })).map(|(port, _)| port).collect()
}

#[test]
fn pins_have_the_numbers_of_ports_places_and_servers() {
    isolated(|bpf| {
        create_interfaces();
        let pins = bpf.join("switch");
        assert_eq!(Pinned::read(&pins).unwrap(), None);
        drop(open(&pins, &config(2), EPOCH, &BOTH));
        let pinned = Pinned::read(&pins).unwrap().unwrap();
        assert_eq!(pinned.ports, [(port(0), index("port0")), (port(1), index("port1"))].into());
        let (mut places, mut expected) = (pinned.places, config(2).places);
        places.sort_by_key(|place| place.at);
        expected.sort_by_key(|place| place.at);
        assert_eq!(places, expected);
        assert_eq!(pinned.servers, config(2).servers);
        assert_eq!((pinned.heartbeat_services.len(), pinned.named_servers.len()), (0, 0));
    });
}

#[test]
fn a_change_attaches_new_ports_and_detaches_others_without_renumbering() {
    isolated(|bpf| {
        create_interfaces();
        let pins = bpf.join("switch");
        let mut switch = open(&pins, &config(3), EPOCH, &[(2, "port0")]);
        switch.apply(&config(3), &interfaces(&[(2, "port0"), (3, "port1")])).unwrap();
        assert_eq!(attached(&switch), [port(2), port(3)]);
        assert_eq!((egress(&pins, 2), egress(&pins, 3)), (Some(index("port0")), Some(index("port1"))));
        switch.apply(&config(3), &interfaces(&[(3, "port1")])).unwrap();
        assert_eq!(attached(&switch), [port(3)]);
        assert_eq!((egress(&pins, 2), attached_program("port0").unwrap()), (None, None));
        // Two ports exchange their interfaces: the links are replaced.
        switch.apply(&config(3), &interfaces(&[(2, "port0"), (3, "port1")])).unwrap();
        switch.apply(&config(3), &interfaces(&[(2, "port1"), (3, "port0")])).unwrap();
        assert_eq!((egress(&pins, 2), egress(&pins, 3)), (Some(index("port1")), Some(index("port0"))));
        assert_eq!(attached(&switch), [port(2), port(3)]);
    });
}

#[test]
fn a_port_that_cannot_be_attached_stops_no_other() {
    isolated(|bpf| {
        create_interfaces();
        let other = open(&bpf.join("other"), &config(1), EPOCH, &[(0, "port1")]);
        drop(other);
        let pins = bpf.join("switch");
        let mut switch = Switch::open_or_create(&pins, &config(3), EPOCH).unwrap();
        let wanted = interfaces(&[(0, "absent"), (1, "port1"), (2, "port0")]);
        let failures = switch.apply(&config(3), &wanted).unwrap();
        assert_eq!(attached(&switch), [port(2)]);
        let texts: Vec<String> = failures.iter().map(|(port, error)| format!("{port}: {error}")).collect();
        assert!(texts[0].starts_with("0: cannot find interface absent"), "{texts:?}");
        assert!(
            texts[1].contains("belongs to the switch other") && texts[1].contains("name = \"other\""),
            "{texts:?}"
        );
        // With the interface, the port is attached.
        ip("link add absent type veth peer name hostx");
        switch.attach(port(0), "absent").unwrap();
        remove(&bpf.join("other")).unwrap();
        switch.attach(port(1), "port1").unwrap();
        assert_eq!(attached(&switch), [port(0), port(1), port(2)]);
    });
}

#[test]
fn a_change_that_fails_leaves_tables_and_ports_as_they_were() {
    isolated(|bpf| {
        create_interfaces();
        let pins = bpf.join("switch");
        let mut switch = open(&pins, &config(2), EPOCH, &[(0, "port0")]);
        let before = Pinned::read(&pins).unwrap();
        let ports =
            |number: u32| pinned_map(&pins, "ports").lookup(&number.to_ne_bytes(), MapFlags::ANY).unwrap();
        let port_before = ports(1);
        // The map refuses changes from now on.
        pinned_map(&pins, "prefixes").freeze().unwrap();
        let mut after = config(1);
        after.ports[1].is_server = true;
        after.ports[1].mac = mac(77);
        after.prefixes =
            vec![Prefix { address: Address([0; 16]), length: 0, next_hop: mac(0), port: port(0) }];
        let error = switch.apply(&after, &interfaces(&[(1, "port1")])).unwrap_err();
        assert!(matches!(error, SwitchError::Bpf(_)) && error.to_string().contains("prefixes"), "{error}");
        assert_eq!(Pinned::read(&pins).unwrap(), before);
        assert_eq!(ports(1), port_before);
        assert_eq!((attached(&switch), egress(&pins, 0)), (vec![port(0)], Some(index("port0"))));
        assert_eq!((attached_program("port1").unwrap(), egress(&pins, 1)), (None, None));
    });
}

/// A value that is written again moves to another element, and the old element can be reused while the program reads it.
#[test]
fn values_that_stay_are_not_written() {
    isolated(|bpf| {
        let pins = bpf.join("switch");
        let mut switch = open(&pins, &config(2), EPOCH, &[]);
        for map in ["settings", "ports", "stations", "own_addresses", "places", "servers", "prefixes"] {
            pinned_map(&pins, map).freeze().unwrap();
        }
        switch.apply(&config(2), &interfaces(&[])).expect("nothing is written");
        assert!(switch.apply(&config(1), &interfaces(&[])).is_err());
    });
}

/// The devmap keeps an interface without a link if a daemon is killed between two steps; broadcasts would go there.
#[test]
fn interfaces_without_a_link_are_removed_from_the_maps() {
    isolated(|bpf| {
        create_interfaces();
        let pins = bpf.join("switch");
        drop(open(&pins, &config(1), EPOCH, &[(0, "port0")]));
        let stray = index("port1").to_ne_bytes();
        pinned_map(&pins, "egress").update(&9_u32.to_ne_bytes(), &stray, MapFlags::ANY).unwrap();
        pinned_map(&pins, "interfaces").update(&stray, &9_u32.to_ne_bytes(), MapFlags::ANY).unwrap();
        // The kept port lacks its entry.
        pinned_map(&pins, "egress").delete(&0_u32.to_ne_bytes()).unwrap();
        let _switch = open(&pins, &config(1), EPOCH, &[(0, "port0")]);
        assert_eq!((egress(&pins, 9), egress(&pins, 0)), (None, Some(index("port0"))));
        assert_eq!(pinned_map(&pins, "interfaces").lookup(&stray, MapFlags::ANY).unwrap(), None);
    });
}

#[test]
fn pins_with_ports_in_another_network_namespace_are_refused() {
    isolated(|bpf| {
        create_interfaces();
        let pins = bpf.join("switch");
        drop(open(&pins, &config(1), EPOCH, &BOTH));
        let elsewhere = || {
            // SAFETY: the flags do not include FILES, so descriptors stay shared with the other threads.
            unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNET) }.unwrap();
            create_interfaces();
            let error = Switch::open_or_create(&pins, &config(1), EPOCH).unwrap_err();
            assert!(matches!(error, SwitchError::Pins(PinError::Namespace { .. })), "{error}");
            assert!(matches!(Pinned::read(&pins), Err(PinError::Namespace { .. })));
        };
        std::thread::scope(|scope| scope.spawn(elsewhere).join()).unwrap();
        assert_eq!(attached(&open(&pins, &config(1), EPOCH, &BOTH)), [port(0), port(1)]);
    });
}

#[test]
fn a_removal_that_was_interrupted_leaves_nothing_to_adopt() {
    isolated(|bpf| {
        create_interfaces();
        let pins = bpf.join("switch");
        assert!(matches!(remove(&pins), Err(PinError::Absent(_))), "no such switch");
        drop(open(&pins, &config(1), EPOCH, &BOTH));
        std::fs::remove_file(pins.join("settings")).unwrap();
        assert_eq!(Pinned::read(&pins).unwrap(), None);
        let switch = Switch::open_or_create(&pins, &config(1), EPOCH + 1).unwrap();
        assert_eq!((switch.epoch(), attached_program("port0").unwrap()), (EPOCH + 1, None));
    });
}

/// A server's key was stolen, and its thief has used up all sequence numbers: with another key they begin anew.
#[test]
fn another_key_begins_with_the_lowest_sequence_number() {
    isolated(|bpf| {
        let pins = bpf.join("switch");
        let mut switch = open(&pins, &config(2), EPOCH, &[]);
        // The term and the highest sequence number of both servers, where `struct owner` has them.
        let mut owner = [0; 64];
        owner[8..16].copy_from_slice(&5_u64.to_ne_bytes());
        owner[32..40].copy_from_slice(&u64::MAX.to_ne_bytes());
        let owners = pinned_map(&pins, "owners");
        for id in [1_u32, 2] {
            owners.update(&id.to_ne_bytes(), &owner, MapFlags::LOCK).unwrap();
        }
        let known = |switch: &Switch| {
            let owners = switch.owners(NOW).unwrap();
            assert!(owners.iter().all(|owner| (owner.term, owner.highest) == (5, u64::MAX)));
            owners.iter().map(|owner| owner.server.0).collect::<Vec<_>>()
        };
        switch.apply(&config(2), &interfaces(&[])).unwrap();
        assert_eq!(known(&switch), [1, 2], "nothing has changed");
        let mut other = config(2);
        other.servers[0].key = key(99);
        switch.apply(&other, &interfaces(&[])).unwrap();
        assert_eq!(known(&switch), [2], "server 1 begins anew");
        switch.apply(&config(1), &interfaces(&[])).unwrap();
        assert_eq!(known(&switch), [], "server 2 is removed");
    });
}
