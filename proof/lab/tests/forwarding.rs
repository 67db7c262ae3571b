//! Hosts joined by an XDP program instead of the bridge. Skips without root.

mod support;

use spillway_bpf::Pass;
use spillway_lab::{Forwarding, HostOptions, Lab, LabError, LabOptions};
use support::{command, exchange, exchange_datagram, host};

fn lab(name: &str) -> Option<Lab> {
    support::lab(name, LabOptions { forwarding: Forwarding::Xdp, ..LabOptions::default() })
}

#[test]
fn all_traffic_between_hosts_passes_unchanged() {
    let Some(lab) = lab("xdp-hub") else { return };
    let hosts = ["left", "right", "third"].map(|name| host(&lab, name));
    let [left, right, third] = &hosts;
    // The first packet between two hosts needs ARP, whose requests the bridge broadcasts.
    for (from, to) in [(left, right), (right, third), (third, left)] {
        let ping = ["-c", "3", "-i", "0.01", "-w", "20", &to.address().to_string()];
        assert!(command(from, "ping", &ping).contains(" 0% packet loss"));
        exchange(from, to, to.address());
        exchange_datagram((from, from.address()), (to, to.address()));
    }
    for host in &hosts {
        // 1 MiB is 725 segments of 1,448 bytes.
        let packets = host.forwarded_packets().unwrap();
        assert!(packets > 700, "the program forwarded only {packets} packets of {}", host.name());
    }
    assert_eq!(left.interface_threads().len(), 1);
    assert_eq!(left.ipv6_address(), None);
    lab.close().unwrap();
}

#[test]
fn hosts_of_a_segment_have_both_families_and_may_attach_programs() {
    let options = LabOptions { forwarding: Forwarding::Segment, ..LabOptions::default() };
    let Some(lab) = support::lab("segment", options) else { return };
    let [left, right] = ["left", "right"].map(|name| host(&lab, name));
    let pass = Pass::load().unwrap();
    let attached = left.run_inside(|| pass.attach(left.interface()).unwrap()).unwrap();
    left.pin_and_account_interface().unwrap();
    for address in [right.address(), right.ipv6_address().unwrap()] {
        exchange(&left, &right, address);
    }
    drop(attached);
    exchange(&right, &left, left.address());
    let error = right.drop_packets(0.1).map(drop).unwrap_err();
    assert!(matches!(&error, LabError::BadOption(what) if what.contains("Forwarding::Bridge")), "{error}");
    lab.close().unwrap();
}

#[test]
fn options_that_the_program_does_not_support_are_refused() {
    let Some(lab) = lab("xdp-hub-refuses") else { return };
    let error = lab.host("partial", HostOptions::default()).map(drop).unwrap_err();
    assert!(matches!(&error, LabError::BadOption(what) if what.contains("tx_checksums")), "{error}");
    let error = host(&lab, "lossy").drop_packets(0.1).map(drop).unwrap_err();
    assert!(matches!(&error, LabError::BadOption(what) if what.contains("Forwarding::Bridge")), "{error}");
    lab.close().unwrap();
}
