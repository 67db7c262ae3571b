//! Checks what the engine `xdp` needs.

use std::net::IpAddr;

use spillway_bpf::switch::{Behind, SwitchAt};
use spillway_bpf::{QUEUES_MAX, Steer, attached_program};
use spillway_helper::config::XdpConfig;
use spillway_xdp::{Interface, PortsError, check_reserved, check_unused};

use super::finding::Finding;
use super::machine::capability;

/// The capabilities of the engine, by number (`linux/capability.h`) and name.
const CAPABILITIES: [(u32, &str); 3] = [(12, "CAP_NET_ADMIN"), (13, "CAP_NET_RAW"), (39, "CAP_BPF")];
/// `CAP_SYS_ADMIN` includes `CAP_BPF`, which kernels before 5.8 do not have (capabilities(7)).
const SYS_ADMIN: u32 = 21;
/// The largest MTU of a veth interface with an XDP program: a page of 4,096 bytes without headroom (256),
/// Ethernet header (14) and `skb_shared_info` (320); `veth_xdp_set` of Linux.
const VETH_MTU_MAX: u32 = 3506;

pub(super) fn findings(name: &str) -> Vec<Finding> {
    let mut findings = interface(name);
    // Without the interface, sockets at wildcard addresses are still found.
    let found = Interface::find(name).ok();
    let addresses = found.as_ref().and_then(|interface| interface.addresses().ok()).unwrap_or_default();
    let queues = found.map_or(1, |interface| interface.queues);
    findings.extend([capabilities(), program(), ports(&addresses), memory(queues)]);
    findings
}

fn interface(name: &str) -> Vec<Finding> {
    let interface = match Interface::find(name) {
        Ok(interface) => interface,
        Err(error) => {
            return vec![Finding::missing("interface", error.to_string(), "name one of this host's")];
        }
    };
    let Interface { mtu, queues, .. } = &interface;
    let is_up = match interface.is_up {
        true => Finding::ok("interface", format!("{name}: up, MTU {mtu}, {queues} receive queues")),
        false => Finding::missing("interface", format!("{name} is down"), format!("ip link set {name} up")),
    };
    let mut findings = vec![is_up];
    if *queues > QUEUES_MAX {
        let next = format!("ethtool -L {name} combined {QUEUES_MAX}");
        findings.push(Finding::missing("receive queues", format!("{queues} of at most {QUEUES_MAX}"), next));
    }
    if *mtu > VETH_MTU_MAX {
        let next =
            format!("most drivers take XDP programs up to {VETH_MTU_MAX} bytes: ip link set {name} mtu 1500");
        findings.push(Finding::warning("MTU", mtu.to_string(), next));
    }
    for offload in interface.harmful_offloads().unwrap_or_default() {
        let next =
            format!("ethtool -K {name} {} off, or configure_interface in [helper.xdp]", offload.name());
        findings.push(Finding::warning("offloads", format!("{offload} is on"), next));
    }
    findings.push(xdp_program(name));
    findings.push(match interface.addresses() {
        Ok(addresses) if addresses.is_empty() => Finding::missing(
            "addresses",
            format!("{name} has none"),
            format!("ip addr add ADDRESS/BITS dev {name}"),
        ),
        Ok(mut addresses) => {
            addresses.retain(|address| !is_link_local(*address));
            let texts: Vec<String> = addresses.iter().map(ToString::to_string).collect();
            Finding::ok("addresses", format!("{}: listen at one of them", texts.join(", ")))
        }
        Err(error) => Finding::missing("addresses", error.to_string(), ""),
    });
    findings
}

/// The XDP program that the interface has. Behind that of a switch in host mode there is place for one more.
fn xdp_program(interface: &str) -> Finding {
    let what = "XDP program";
    let id = match attached_program(interface) {
        Ok(None) => return Finding::ok(what, format!("{interface} has none")),
        Ok(Some(id)) => id,
        Err(error) => return Finding::missing(what, error.to_string(), "use Linux 5.18 or later"),
    };
    let switch = match SwitchAt::find(interface) {
        Ok(Some(switch)) => switch,
        Ok(None) => {
            return Finding::missing(
                what,
                format!("{interface} has another one, number {id}"),
                format!("bpftool prog show id {id}; a helper that runs already is the usual reason"),
            );
        }
        Err(error) => return Finding::missing(what, error.to_string(), "run as root"),
    };
    beside_switch(interface, &switch)
}

/// What the program of a switch at the interface means for a further program.
fn beside_switch(interface: &str, SwitchAt { name, behind }: &SwitchAt) -> Finding {
    let what = "XDP program";
    match behind {
        Behind::Free => Finding::ok(
            what,
            format!(
                "{interface} has that of switch {name} in host mode; a server of this engine can run behind it"
            ),
        ),
        Behind::Taken(id) => Finding::missing(
            what,
            format!(
                "{interface} has that of switch {name} in host mode, and another process has placed number {id} behind it"
            ),
            format!("bpftool prog show id {id}; stop the server or helper that runs on {interface}"),
        ),
        Behind::Gateway => Finding::missing(
            what,
            format!("{interface} is a port of switch {name}, behind whose program no other one can run"),
            format!(
                "choose another interface, or remove the [[port]] of {interface} and run spillway reload"
            ),
        ),
        Behind::OtherVersion => Finding::missing(
            what,
            format!(
                "{interface} has that of switch {name}, whose tables another version of Spillway has made"
            ),
            "use that version, or remove the switch by spillway switch --detach, which ends moved connections",
        ),
    }
}

/// Whether an address is valid only on its network segment; clients of other segments cannot connect to it.
fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}

fn capabilities() -> Finding {
    let has = |number| capability(number) || number == 39 && capability(SYS_ADMIN);
    let missing: Vec<&str> =
        CAPABILITIES.into_iter().filter(|(number, _)| !has(*number)).map(|(_, name)| name).collect();
    match missing.as_slice() {
        [] => Finding::ok("capabilities", "CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF"),
        names => Finding::missing(
            "capabilities",
            format!("without {}", names.join(" and ")),
            "install -D /usr/share/spillway/systemd/spillway-helper.service.d/xdp.conf /etc/systemd/system/spillway-helper.service.d/xdp.conf, or run as root",
        ),
    }
}

/// Loads the steering program, so that the kernel verifies it, and unloads it.
fn program() -> Finding {
    match Steer::load() {
        Ok(_) => Finding::ok("steering program", "the kernel accepts it"),
        Err(error) => Finding::missing("steering program", error.to_string(), "use Linux 5.18 or later"),
    }
}

/// Checks that the kernel neither chooses nor uses the TCP stack's local ports at these addresses.
fn ports(addresses: &[IpAddr]) -> Finding {
    let ports = XdpConfig::default().ports;
    let text = format!("{} to {}", ports.start(), ports.end());
    match check_reserved(&ports).and_then(|()| check_unused(&ports, addresses)) {
        Ok(()) => Finding::ok("local ports", format!("the kernel leaves {text} alone")),
        // The text of the error contains the next step.
        Err(error @ PortsError::Used { .. }) => {
            Finding::missing("local ports", format!("{error}: ports in [helper.xdp]"), "")
        }
        Err(error) => {
            Finding::missing("local ports", error.to_string(), "or choose others: ports in [helper.xdp]")
        }
    }
}

fn memory(queues: u32) -> Finding {
    // The default of 4,096 frames of 2 KiB for each queue.
    let needed = u64::from(queues) * (8 << 20);
    match rustix::process::getrlimit(rustix::process::Resource::Memlock).current {
        Some(bytes) if bytes < needed && !capability(14) => Finding::missing(
            "locked memory",
            format!("{bytes} bytes, and {queues} queues need {needed}"),
            "LimitMEMLOCK=infinity in the unit, or `ulimit -l unlimited` as root",
        ),
        Some(bytes) => Finding::ok("locked memory", format!("{bytes} bytes")),
        None => Finding::ok("locked memory", "no limit"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::finding::State;
    use super::*;

    #[test]
    fn only_a_switch_in_host_mode_leaves_place_for_a_program() {
        let finding = |behind| beside_switch("eth0", &SwitchAt { name: "rack7".into(), behind });
        let free = finding(Behind::Free);
        assert_eq!(free.state, State::Ok);
        assert!(free.found.contains("switch rack7 in host mode"), "{}", free.found);
        for (behind, expected) in [
            (Behind::Taken(77), "number 77 behind it"),
            (Behind::Gateway, "is a port of switch rack7"),
            (Behind::OtherVersion, "another version"),
        ] {
            let finding = finding(behind);
            assert_eq!(finding.state, State::Missing);
            assert!(finding.found.contains(expected) && !finding.next.is_empty(), "{}", finding.found);
        }
    }

    #[test]
    fn an_interface_that_cannot_be_used_is_missing() {
        for name in ["", "../net/lo", "no-such-if", "lo"] {
            let finding = &interface(name)[0];
            assert_eq!(finding.state, State::Missing, "{name}");
            assert!(!finding.next.is_empty(), "{name}");
        }
    }
}
