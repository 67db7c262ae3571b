//! Interfaces that go to another network namespace, also where another port's interface has the same index.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use libbpf_rs::{MapCore, MapFlags};
use spillway_bpf::switch::{Pinned, PortState, Switch};
use spillway_bpf::{Mode, attached_program};

use super::changes::{BOTH, attached, egress, index, pinned_map};
use super::pins::{create_interfaces, interfaces, ip, isolated, open};
use super::scene::*;

/// Another network namespace, which a process keeps.
struct Elsewhere(Child);

impl Elsewhere {
    fn new() -> Elsewhere {
        let mut child = Command::new("unshare")
            .args(["--net", "sh", "-c", "echo ready && exec sleep infinity"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        Elsewhere(child)
    }

    /// Runs `ip` there, and returns what it prints.
    fn ip(&self, arguments: &str) -> String {
        let net = format!("--net=/proc/{}/ns/net", self.0.id());
        let output = Command::new("nsenter").args([&net, "ip"]).args(arguments.split(' ')).output().unwrap();
        assert!(output.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    fn take(&self, interface: &str) {
        ip(&format!("link set {interface} netns {}", self.0.id()));
    }

    /// Returns an interface to the test's namespace.
    fn give_back(&self, interface: &str) {
        let here = format!("/proc/{}/ns/net", rustix::thread::gettid().as_raw_nonzero());
        self.ip(&format!("link set {interface} netns {here}"));
        ip(&format!("link set {interface} up"));
    }

    fn has_program(&self, interface: &str) -> bool {
        self.ip(&format!("link show {interface}")).contains("prog/xdp")
    }

    fn index(&self, interface: &str) -> u32 {
        self.ip(&format!("-o link show {interface}")).split(':').next().unwrap().parse().unwrap()
    }

    /// Takes `port1`, so that it has the index there that `port0` has here.
    fn take_with_index_of_port0(&self) {
        // Its own index is used already. New interfaces get the lowest numbers, as `port0` did here.
        self.ip(&format!("link add used index {} type veth peer name other", index("port1")));
        self.take("port1");
        assert_eq!(self.index("port1"), index("port0"));
    }
}

impl Drop for Elsewhere {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn attached_at(interface: &str) -> PortState {
    PortState::Attached { interface: index(interface), mode: Mode::Native }
}

/// The port at whose interface frames with this index arrive.
fn port_at(pins: &Path, index: u32) -> Option<u32> {
    let port = pinned_map(pins, "interfaces").lookup(&index.to_ne_bytes(), MapFlags::ANY).unwrap();
    port.map(|port| u32::from_ne_bytes(port.try_into().unwrap()))
}

#[test]
fn a_port_whose_interface_was_away_is_closed_until_it_is_attached_again() {
    isolated(|bpf| {
        create_interfaces();
        let pins = bpf.join("switch");
        let mut switch = open(&pins, &config(1), EPOCH, &BOTH);
        assert_eq!(switch.ports(), [(port(0), attached_at("port0")), (port(1), attached_at("port1"))]);
        let elsewhere = Elsewhere::new();
        elsewhere.take("port1");
        assert_eq!(switch.ports(), [(port(0), attached_at("port0")), (port(1), PortState::Elsewhere)]);
        elsewhere.give_back("port1");
        assert_eq!(egress(&pins, 1), None, "the kernel has removed it");
        assert_eq!(switch.ports()[1].1, PortState::Closed { interface: index("port1") });
        assert_eq!(switch.release_lost(), []);
        switch.attach(port(1), "port1").unwrap();
        assert_eq!(switch.ports()[1].1, attached_at("port1"));
        assert_eq!((egress(&pins, 1), port_at(&pins, index("port1"))), (Some(index("port1")), Some(1)));
    });
}

#[test]
fn an_interface_elsewhere_is_released_and_stops_no_other() {
    isolated(|bpf| {
        create_interfaces();
        let pins = bpf.join("switch");
        let mut switch = open(&pins, &config(1), EPOCH, &BOTH);
        let (elsewhere, before) = (Elsewhere::new(), index("port1"));
        elsewhere.take("port1");
        assert!(elsewhere.has_program("port1"));
        assert_eq!(switch.release_lost(), [(port(1), PortState::Elsewhere)]);
        assert_eq!(switch.release_lost(), []);
        assert_eq!(switch.ports(), [(port(0), attached_at("port0"))]);
        assert!(!elsewhere.has_program("port1") && !pins.join("port-1").exists());
        assert_eq!(port_at(&pins, before), None);
        let failures = switch.apply(&config(1), &interfaces(&BOTH)).unwrap();
        assert!(failures[0].1.to_string().contains("cannot find interface port1"), "{failures:?}");
        assert_eq!((failures.len(), attached(&switch)), (1, vec![port(0)]));
        elsewhere.give_back("port1");
        switch.attach(port(1), "port1").unwrap();
        assert_eq!(attached(&switch), [port(0), port(1)]);
    });
}

#[test]
fn a_change_releases_an_interface_elsewhere() {
    isolated(|bpf| {
        create_interfaces();
        let mut switch = open(&bpf.join("switch"), &config(1), EPOCH, &BOTH);
        let elsewhere = Elsewhere::new();
        elsewhere.take("port1");
        assert_eq!(switch.apply(&config(1), &interfaces(&BOTH)).unwrap().len(), 1);
        assert_eq!((attached(&switch), elsewhere.has_program("port1")), (vec![port(0)], false));
        assert_eq!(switch.release_lost(), [(port(1), PortState::Elsewhere)]);
    });
}

/// One start has the port of the lost interface in its file, the other one does not.
#[test]
fn a_start_releases_interfaces_elsewhere_and_adopts_the_others() {
    isolated(|bpf| {
        create_interfaces();
        let pins = bpf.join("switch");
        for names in [&BOTH[..], &BOTH[..1]] {
            drop(open(&pins, &config(1), EPOCH, &BOTH));
            let elsewhere = Elsewhere::new();
            elsewhere.take("port1");
            let pinned = Pinned::read(&pins).unwrap().unwrap();
            assert_eq!(pinned.ports, [(port(0), index("port0"))].into());
            let mut switch = Switch::open_or_create(&pins, &config(1), EPOCH).unwrap();
            let failures = switch.apply(&config(1), &interfaces(names)).unwrap();
            assert_eq!(failures.len(), names.len() - 1, "{failures:?}");
            assert_eq!((attached(&switch), elsewhere.has_program("port1")), (vec![port(0)], false));
            assert_eq!(switch.release_lost(), [(port(1), PortState::Elsewhere)]);
            elsewhere.give_back("port1");
        }
    });
}

#[test]
fn an_interface_elsewhere_with_the_index_of_another_port_is_told_apart() {
    isolated(|bpf| {
        create_interfaces();
        let pins = bpf.join("switch");
        let mut switch = open(&pins, &config(1), EPOCH, &BOTH);
        let (elsewhere, before) = (Elsewhere::new(), index("port1"));
        elsewhere.take_with_index_of_port0();
        assert_eq!(switch.ports(), [(port(0), attached_at("port0")), (port(1), PortState::Elsewhere)]);
        drop(switch);
        assert_eq!(Pinned::read(&pins).unwrap().unwrap().ports, [(port(0), index("port0"))].into());
        switch = Switch::open_or_create(&pins, &config(1), EPOCH).unwrap();
        assert_eq!(switch.apply(&config(1), &interfaces(&BOTH)).unwrap().len(), 1);
        assert_eq!(switch.ports(), [(port(0), attached_at("port0"))]);
        assert!(attached_program("port0").unwrap().is_some() && !elsewhere.has_program("port1"));
        assert_eq!((egress(&pins, 0), egress(&pins, 1)), (Some(index("port0")), None));
        assert_eq!((port_at(&pins, index("port0")), port_at(&pins, before)), (Some(0), None));
    });
}

/// The new interface becomes that of the same port, or of another one.
#[test]
fn a_new_interface_gets_the_index_of_one_that_is_elsewhere() {
    for new in [1, 2] {
        isolated(|bpf| {
            create_interfaces();
            let pins = bpf.join("switch");
            let mut switch = open(&pins, &config(2), EPOCH, &BOTH);
            let (elsewhere, before) = (Elsewhere::new(), index("port1"));
            elsewhere.take("port1");
            ip(&format!("link add port1 index {before} type veth peer name new1"));
            assert_eq!(switch.ports()[1], (port(1), PortState::Elsewhere));
            assert_eq!(elsewhere.index("port1"), before);
            switch.attach(port(new), "port1").unwrap();
            assert_eq!(switch.ports(), [(port(0), attached_at("port0")), (port(new), attached_at("port1"))]);
            assert_eq!((egress(&pins, new), port_at(&pins, before)), (Some(before), Some(new.into())));
            assert!(!elsewhere.has_program("port1"));
        });
    }
}
