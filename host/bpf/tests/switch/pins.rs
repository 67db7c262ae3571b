//! Pinned maps and links: the daemon restarts while the program forwards.

use std::collections::BTreeMap;
use std::net::UdpSocket;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
use spillway_bpf::switch::{PinError, PortState, Switch, SwitchError};
use spillway_rules::{Config, PortId, Verdict};
use spillway_wire::switch::Kind;

use super::scene::*;

/// Runs a test with a BPF file system and a network of its own. `None` without root.
pub fn isolated(test: impl FnOnce(&Path) + Send) {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: needs root for namespaces");
        return;
    }
    static TESTS: AtomicUsize = AtomicUsize::new(0);
    let number = TESTS.fetch_add(1, Ordering::Relaxed);
    let directory = std::env::temp_dir().join(format!("spillway-pins-{}-{number}", std::process::id()));
    let work = || {
        let flags = rustix::thread::UnshareFlags::NEWNS | rustix::thread::UnshareFlags::NEWNET;
        // SAFETY: the flags do not include FILES, so descriptors stay shared with the other threads.
        unsafe { rustix::thread::unshare_unsafe(flags) }.unwrap();
        mount_change("/", MountPropagationFlags::REC | MountPropagationFlags::PRIVATE).unwrap();
        std::fs::create_dir_all(&directory).unwrap();
        mount("bpf", &directory, "bpf", MountFlags::empty(), None).unwrap();
        test(&directory);
    };
    let result = std::thread::scope(|scope| scope.spawn(work).join());
    let _ = std::fs::remove_dir_all(&directory);
    result.unwrap();
}

pub fn ip(arguments: &str) {
    let status = Command::new("ip").args(arguments.split(' ')).status().unwrap();
    assert!(status.success(), "ip {arguments}");
}

/// Two veths: the switch's ends are `port0` and `port1`, the hosts' ends `host0` and `host1`.
pub fn create_interfaces() {
    ip("link set lo up");
    for number in 0..2 {
        ip(&format!("link add port{number} type veth peer name host{number}"));
        for end in ["port", "host"] {
            std::fs::write(format!("/proc/sys/net/ipv6/conf/{end}{number}/disable_ipv6"), "1").unwrap();
        }
        ip(&format!("link set port{number} address {}", port_mac(number)));
        ip(&format!("link set port{number} up"));
        ip(&format!("link set host{number} address {}", mac(number)));
        ip(&format!("link set host{number} up"));
    }
    ip("addr add 10.0.1.0/24 dev host0");
    ip(&format!("neigh add 10.0.1.1 lladdr {} dev host0", mac(1)));
}

/// Ports with the names of their interfaces.
pub fn interfaces(names: &[(u8, &str)]) -> BTreeMap<PortId, String> {
    names.iter().map(|(number, name)| (port(*number), (*name).to_owned())).collect()
}

/// Opens the switch and attaches all of these ports.
pub fn open(pins: &Path, config: &Config, epoch: u64, names: &[(u8, &str)]) -> Switch {
    let mut switch = Switch::open_or_create(pins, config, epoch).unwrap();
    let failures = switch.apply(config, &interfaces(names)).unwrap();
    assert!(failures.is_empty(), "{failures:?}");
    switch
}

#[test]
fn a_restart_loses_no_packet_and_no_state() {
    const RESTARTS: usize = 50;
    isolated(|bpf| {
        create_interfaces();
        let pins = bpf.join("switch");
        let open = |epoch| open(&pins, &config(1), epoch, &[(0, "port0"), (1, "port1")]);
        let mut switch = open(EPOCH);
        let done = AtomicBool::new(false);
        let (switch, sent) = std::thread::scope(|scope| {
            let sender = scope.spawn(|| {
                let socket = UdpSocket::bind("10.0.1.0:1").unwrap();
                let mut sent = 0_u64;
                while !done.load(Ordering::Relaxed) {
                    socket.send_to(b"packet", "10.0.1.1:2").unwrap();
                    sent += 1;
                }
                sent
            });
            for restart in 0..RESTARTS {
                drop(switch);
                std::thread::sleep(std::time::Duration::from_millis(2));
                switch = open(EPOCH + 1 + restart as u64);
                assert_eq!(switch.epoch(), EPOCH, "the epoch stays with the pins");
                let ports = switch.ports();
                assert!(
                    matches!(ports[..], [(_, PortState::Attached { .. }), (_, PortState::Attached { .. })]),
                    "{ports:?}"
                );
                switch.attach(port(0), "port0").expect("attaching again changes nothing");
            }
            done.store(true, Ordering::Relaxed);
            (switch, sender.join().unwrap())
        });
        println!("{sent} packets during {RESTARTS} restarts");
        assert!(sent > 1000, "{sent} packets");
        assert_eq!(switch.counters().unwrap().of(Verdict::Switched), sent);
        let hello = control_frame(0, message(Kind::Hello, 0, 5, 0));
        let term = answer_of(0, &switch.control(&hello).unwrap().unwrap()).generation();
        assert_eq!(term, EPOCH + 1, "the first generation after the epoch");
        drop(switch);
        let switch = open(EPOCH);
        let hello = control_frame(0, message(Kind::Hello, 0, 6, 0));
        assert_eq!(answer_of(0, &switch.control(&hello).unwrap().unwrap()).generation(), EPOCH + 2);
        switch.remove().unwrap();
        assert!(!pins.exists());
        assert_eq!(spillway_bpf::attached_program("port0").unwrap(), None);
    });
}

#[test]
fn removed_interfaces_are_attached_again() {
    isolated(|bpf| {
        create_interfaces();
        let pins = bpf.join("switch");
        let switch = open(&pins, &config(1), EPOCH, &[(0, "port0")]);
        ip("link del port0");
        assert_eq!(switch.ports(), [(port(0), PortState::Detached)]);
        drop(switch);
        let mut switch = open(&pins, &config(1), EPOCH, &[]);
        assert_eq!(switch.ports(), [], "the link without an interface is unpinned");
        ip("link add port0 type veth peer name host0");
        switch.attach(port(0), "port0").unwrap();
        ip("link del port0");
        ip("link add port0 type veth peer name host0");
        switch.attach(port(0), "port0").expect("in the same process, too");
        assert!(spillway_bpf::attached_program("port0").unwrap().is_some());
        switch.attach(port(0), "port1").unwrap();
        assert_eq!(spillway_bpf::attached_program("port0").unwrap(), None, "the port has moved");
        switch.detach(port(0)).unwrap();
        assert_eq!(spillway_bpf::attached_program("port1").unwrap(), None);
        let error = switch.attach(port(0), "absent").unwrap_err().to_string();
        assert!(error.contains("interface absent"), "{error}");
    });
}

#[test]
fn pins_of_another_layout_are_refused_and_unfinished_ones_replaced() {
    use libbpf_rs::{MapCore, MapFlags, MapHandle};
    isolated(|bpf| {
        let pins = bpf.join("switch");
        let open = || Switch::open_or_create(&pins, &config(1), EPOCH);
        drop(open().unwrap());
        drop(self::open(&pins, &config(1), EPOCH, &[]));
        let larger = Config { flows_max: 9999, ..config(1) };
        let switch = Switch::open_or_create(&pins, &larger, EPOCH).unwrap();
        assert_eq!(switch.flows_max(), config(1).flows_max, "the pinned table keeps its size");
        drop(switch);
        let settings = MapHandle::from_pinned_path(pins.join("settings")).unwrap();
        let mut value = settings.lookup(&[0; 4], MapFlags::ANY).unwrap().unwrap();
        value[..4].copy_from_slice(&99_u32.to_ne_bytes());
        settings.update(&[0; 4], &value, MapFlags::ANY).unwrap();
        let error = open().unwrap_err();
        assert!(matches!(error, SwitchError::Pins(PinError::Layout { found: 99, .. })), "{error}");
        assert!(error.to_string().contains("layout 99"), "{error}");
        value.fill(0);
        settings.update(&[0; 4], &value, MapFlags::ANY).unwrap();
        assert_eq!(open().unwrap().epoch(), EPOCH, "maps without settings are replaced");
    });
}

#[test]
fn foreign_files_in_the_directory_stay() {
    use libbpf_rs::MapHandle;
    isolated(|bpf| {
        let pins = bpf.join("switch");
        // A map of another program, and a directory.
        drop(Switch::open_or_create(&bpf.join("other"), &config(1), EPOCH).unwrap());
        std::fs::create_dir_all(pins.join("directory")).unwrap();
        MapHandle::from_pinned_path(bpf.join("other/verdicts")).unwrap().pin(pins.join("foreign")).unwrap();
        let names = || {
            let files = std::fs::read_dir(&pins).unwrap();
            let mut names: Vec<_> =
                files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
            names.sort();
            names
        };
        // A start that ends before the settings are written, one that replaces its pins, and a removal.
        drop(Switch::open_or_create(&pins, &config(1), EPOCH).unwrap());
        drop(open(&pins, &config(1), EPOCH, &[]));
        assert!(names().len() > 10);
        spillway_bpf::switch::remove(&pins).unwrap();
        assert_eq!(names(), ["directory", "foreign"]);
        let error = spillway_bpf::switch::remove(&pins).unwrap_err();
        assert!(matches!(error, PinError::Absent(_)), "{error}");
        // A directory with the name of a pin cannot be removed: the error names it.
        std::fs::create_dir(pins.join("port-7")).unwrap();
        drop(Switch::open_or_create(&pins, &config(1), EPOCH));
        let error = spillway_bpf::switch::remove(&pins).unwrap_err().to_string();
        assert!(error.contains("switch/port-7"), "{error}");
    });
}

#[test]
fn a_pin_that_was_removed_by_hand_does_not_keep_its_port() {
    isolated(|bpf| {
        create_interfaces();
        let pins = bpf.join("switch");
        let mut switch = open(&pins, &config(1), EPOCH, &[(0, "port0")]);
        std::fs::remove_file(pins.join("port-0")).unwrap();
        switch.detach(port(0)).unwrap();
        assert_eq!((switch.ports(), spillway_bpf::attached_program("port0").unwrap()), (vec![], None));
    });
}

#[test]
fn pins_need_a_bpf_file_system() {
    let outside = std::env::temp_dir().join("spillway-no-bpf");
    let error = Switch::open_or_create(&outside, &config(1), EPOCH).unwrap_err();
    assert!(error.to_string().contains("mount -t bpf"), "{error}");
}
