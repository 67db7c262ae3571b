//! Laboratories of switches' tests.

use std::sync::atomic::{AtomicU32, Ordering};

use spillway_lab::{Forwarding, Host, HostOptions, Lab, LabOptions, unavailable};

/// A laboratory with a number in its name. `None`, after a message, if network namespaces cannot be created.
pub fn lab(name: &str, forwarding: Forwarding) -> Option<Lab> {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    if let Some(reason) = unavailable() {
        eprintln!("skipped: {reason}");
        return None;
    }
    let name = format!("{name}-{}", NUMBER.fetch_add(1, Ordering::Relaxed));
    Some(Lab::with_options(&name, LabOptions { forwarding, ..LabOptions::default() }).unwrap())
}

/// A client and two servers, which compute checksums themselves, as XDP requires. `servers_pass`: whether the servers'
/// interfaces have a program that passes all frames; otherwise the servers attach programs of their own.
pub fn hosts(lab: &Lab, servers_pass: bool) -> [Host; 3] {
    [("client", true), ("a", servers_pass), ("b", servers_pass)].map(|(name, pass_program)| {
        let options = HostOptions { tx_checksums: false, pass_program, ..HostOptions::default() };
        lab.host(name, options).unwrap()
    })
}
