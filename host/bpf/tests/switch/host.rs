//! The filter at the egress of an interface, in host mode: attached with the port, repaired, adopted, and removed.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use libbpf_rs::MapHandle;
use rustix::io::Errno;
use rustix::mount::{MountFlags, mount};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, socket_with};
use spillway_bpf::switch::{PINS, PinError, PortState, Switch, SwitchError, remove};
use spillway_bpf::{Budget, HeldFlows, Release, attached_program};
use spillway_rules::{Config, Mode};

use super::pins::{create_interfaces, interfaces, isolated, open};
use super::scene::*;

/// The interface of a server, as port 0.
const PORT: [(u8, &str); 1] = [(0, "port0")];
const OTHER: [(u8, &str); 1] = [(0, "port1")];

/// Host mode on the interface of server 1.
fn host_config() -> Config {
    let mut config = Config { mode: Mode::Host, stations: Vec::new(), ..config(2) };
    config.ports = vec![spillway_rules::config::Port { id: port(0), mac: mac(1), ..config.ports[1].clone() }];
    config.servers.iter_mut().for_each(|server| server.port = port(0));
    config
}

fn tc(arguments: &str) -> String {
    let output = Command::new("tc").args(arguments.split(' ')).output().unwrap();
    assert!(output.status.success(), "tc {arguments}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The number of the program of the switch's filter at an interface.
fn filter(interface: &str) -> Option<u32> {
    let text = tc(&format!("filter show dev {interface} egress"));
    let (_, rest) = text.split_once("spillway_egress")?;
    let (_, id) = rest.split_once(" id ")?;
    Some(id.split_whitespace().next().unwrap().parse().unwrap())
}

/// Whether the XDP program and the filter are at these interfaces and at no others.
#[track_caller]
fn assert_only_at(names: &[&str]) {
    for interface in ["port0", "port1"] {
        let expected = names.contains(&interface);
        assert_eq!(attached_program(interface).unwrap().is_some(), expected, "program at {interface}");
        assert_eq!(filter(interface).is_some(), expected, "filter at {interface}");
    }
}

fn open_host(pins: &Path) -> Switch {
    open(pins, &host_config(), EPOCH, &PORT)
}

#[test]
fn the_filter_outlives_its_process_and_is_replaced_by_the_next_one() {
    isolated(|bpf| {
        create_interfaces();
        let pins = bpf.join("switch");
        let switch = open_host(&pins);
        assert_only_at(&["port0"]);
        let first = filter("port0");
        assert!(matches!(switch.ports()[..], [(_, PortState::Attached { .. })]));
        drop(switch);
        assert_eq!(filter("port0"), first);
        let switch = open_host(&pins);
        assert_ne!(filter("port0"), first, "the program of the new process");
        assert_eq!(tc("filter show dev port0 egress").matches("handle 0x5357").count(), 1);
        assert_eq!(pinned_programs(&pins), 1, "the earlier program is forgotten");
        switch.remove().unwrap();
        assert_only_at(&[]);
        drop(open_host(&pins));
        remove(&pins).unwrap();
        assert_only_at(&[]);
        assert!(!pins.exists());
    });
}

/// Numbers of pinned programs.
fn pinned_programs(pins: &Path) -> usize {
    let files = std::fs::read_dir(pins).unwrap().flatten();
    files.filter(|file| file.file_name().to_string_lossy().starts_with("egress-program-")).count()
}

#[test]
fn starts_that_fail_leave_no_programs_behind() {
    isolated(|bpf| {
        create_interfaces();
        let pins = bpf.join("switch");
        drop(open_host(&pins));
        for _ in 0..5 {
            drop(Switch::open_or_create(&pins, &host_config(), EPOCH).unwrap());
            assert_eq!(pinned_programs(&pins), 2, "the one that is attached, and the last one");
        }
        assert_only_at(&["port0"]);
        drop(open_host(&pins));
        assert_eq!(pinned_programs(&pins), 1);
    });
}

#[test]
fn a_filter_that_somebody_has_removed_is_attached_again() {
    isolated(|bpf| {
        create_interfaces();
        let mut switch = open_host(&bpf.join("switch"));
        for command in ["filter del dev port0 egress", "qdisc del dev port0 clsact"] {
            tc(command);
            assert!(matches!(switch.ports()[..], [(_, PortState::WithoutEgress { .. })]));
            switch.attach(port(0), "port0").unwrap();
            assert_only_at(&["port0"]);
            assert!(matches!(switch.ports()[..], [(_, PortState::Attached { .. })]));
        }
        let filter_before = filter("port0");
        switch.attach(port(0), "port0").unwrap();
        assert_eq!(filter("port0"), filter_before, "nothing to do");
        switch.detach(port(0)).unwrap();
        assert_only_at(&[]);
    });
}

#[test]
fn a_port_without_a_filter_is_refused_and_other_filters_stay() {
    isolated(|bpf| {
        create_interfaces();
        // This discipline excludes `clsact`, and has no egress.
        tc("qdisc add dev port0 handle ffff: ingress");
        let mut switch = Switch::open_or_create(&bpf.join("switch"), &host_config(), EPOCH).unwrap();
        let failures = switch.apply(&host_config(), &interfaces(&PORT)).unwrap();
        let texts: Vec<String> = failures.iter().map(|(port, error)| format!("{port}: {error}")).collect();
        assert!(texts[0].starts_with("0: cannot attach a tc program to the egress"), "{texts:?}");
        assert_only_at(&[]);
        tc("qdisc del dev port0 ingress");
        // The filter of another program, which passes all packets.
        tc("qdisc add dev port0 clsact");
        let file = bpf.with_extension("bytecode");
        std::fs::write(&file, "1,6 0 0 0").unwrap();
        tc(&format!("filter add dev port0 egress prio 9 protocol all bpf bytecode-file {}", file.display()));
        std::fs::remove_file(file).unwrap();
        switch.attach(port(0), "port0").unwrap();
        assert_only_at(&["port0"]);
        switch.remove().unwrap();
        assert_only_at(&[]);
        assert!(tc("filter show dev port0 egress").contains("pref 9 bpf"));
    });
}

#[test]
fn a_change_to_another_interface_takes_the_filter_along() {
    isolated(|bpf| {
        create_interfaces();
        let pins = bpf.join("switch");
        let mut switch = open_host(&pins);
        assert!(switch.apply(&host_config(), &interfaces(&OTHER)).unwrap().is_empty());
        assert_only_at(&["port1"]);
        drop(switch);
        // The next process has the first interface in its file again.
        let switch = open(&pins, &host_config(), EPOCH, &PORT);
        assert_only_at(&["port0"]);
        drop(switch);
        // The next process has no interface in its file.
        let _switch = open(&pins, &host_config(), EPOCH, &[]);
        assert_only_at(&[]);
    });
}

#[test]
fn a_refused_change_leaves_program_and_filter_as_they_were() {
    isolated(|bpf| {
        create_interfaces();
        let pins = bpf.join("switch");
        let mut switch = open_host(&pins);
        let before = filter("port0");
        // The map refuses changes from now on.
        MapHandle::from_pinned_path(pins.join("settings")).unwrap().freeze().unwrap();
        let mut after = host_config();
        after.owner_timeout *= 2;
        let error = switch.apply(&after, &interfaces(&OTHER)).unwrap_err();
        assert!(matches!(error, SwitchError::Bpf(_)) && error.to_string().contains("settings"), "{error}");
        assert_only_at(&["port0"]);
        assert_eq!(filter("port0"), before);
        assert!(matches!(switch.ports()[..], [(_, PortState::Attached { .. })]));
        // The same holds if only the tables change.
        assert!(switch.apply(&after, &interfaces(&PORT)).is_err());
        assert_only_at(&["port0"]);
    });
}

/// A process was killed after it had attached the filter and before it had a link, or after it had removed the link.
#[test]
fn a_filter_without_a_link_is_removed_by_the_next_start() {
    isolated(|bpf| {
        create_interfaces();
        let pins = bpf.join("switch");
        drop(open(&pins, &host_config(), EPOCH, &OTHER));
        std::fs::remove_file(pins.join("port-0")).unwrap();
        assert!(filter("port1").is_some());
        let switch = open_host(&pins);
        assert_eq!(filter("port1"), None);
        assert!(filter("port0").is_some());
        drop(switch);
        std::fs::remove_file(pins.join("port-0")).unwrap();
        remove(&pins).unwrap();
        assert_eq!(filter("port0"), None, "the removal finds it, too");
    });
}

#[test]
fn pins_of_the_other_mode_are_refused() {
    isolated(|bpf| {
        create_interfaces();
        let pins = bpf.join("switch");
        let mut switch = open_host(&pins);
        assert!(matches!(switch.apply(&config(2), &interfaces(&PORT)), Err(SwitchError::Config(_))));
        drop(switch);
        let error = Switch::open_or_create(&pins, &config(2), EPOCH).unwrap_err();
        assert!(matches!(error, SwitchError::Pins(PinError::Mode(_))), "{error}");
        assert_only_at(&["port0"]);
        assert_eq!(open_host(&pins).epoch(), EPOCH);
    });
}

#[test]
fn a_switch_without_pins_takes_its_filter_along() {
    isolated(|_| {
        create_interfaces();
        let mut switch = Switch::load(&host_config(), EPOCH).unwrap();
        switch.attach(port(0), "port0").unwrap();
        assert_only_at(&["port0"]);
        drop(switch);
        assert_only_at(&[]);
    });
}

#[test]
fn filters_are_removed_in_their_own_network_namespace_only() {
    isolated(|bpf| {
        create_interfaces();
        let pins = bpf.join("switch");
        drop(open_host(&pins));
        let elsewhere = || {
            // SAFETY: the flags do not include FILES, so descriptors stay shared with the other threads.
            unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNET) }.unwrap();
            create_interfaces();
            assert!(matches!(remove(&pins), Err(PinError::Namespace { .. })));
        };
        std::thread::scope(|scope| scope.spawn(elsewhere).join()).unwrap();
        assert_only_at(&["port0"]);
        remove(&pins).unwrap();
        assert_only_at(&[]);
    });
}

/// The program takes the place behind the switch, which passes the packets of its host.
#[test]
fn packets_that_the_switch_passes_to_its_host_can_be_held() {
    isolated(|_| {
        create_interfaces();
        // Of this test's own mount namespace.
        mount("bpf", "/sys/fs/bpf", "bpf", MountFlags::empty(), None).unwrap();
        std::fs::create_dir(PINS).unwrap();
        let switch = open_host(&Path::new(PINS).join("switch"));
        let program = attached_program("port0").unwrap();
        let mut held = HeldFlows::load(1, 0).unwrap();
        held.attach("port0").unwrap();
        assert!(held.attachments()[0].is_behind_switch());
        assert_eq!(attached_program("port0").unwrap(), program, "the switch's program stays");
        let (local, peer): (SocketAddr, SocketAddr) =
            ("10.0.1.1:9999".parse().unwrap(), "10.0.1.0:40000".parse().unwrap());
        let hold = held.hold(local, peer, Budget { frames_max: 10, bytes_max: 10_000 }).unwrap();
        let client =
            socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::NONBLOCK, None).unwrap();
        bind(&client, &peer).unwrap();
        assert_eq!(connect(&client, &local), Err(Errno::INPROGRESS));
        let start = Instant::now();
        while held.waiting(hold).unwrap().frames == 0 {
            assert!(start.elapsed() < Duration::from_secs(30), "the SYN arrives");
        }
        let mut packets = 0;
        assert_eq!(held.release(hold, |_| packets += 1).unwrap(), Release::Released);
        assert!(packets > 0);
        let other = HeldFlows::load(1, 0).unwrap().attach("port0").unwrap_err();
        assert!(other.to_string().contains("another process has placed a program behind it"), "{other}");
        drop(held);
        HeldFlows::load(1, 0).unwrap().attach("port0").expect("the place is free again");
        switch.remove().unwrap();
    });
}
