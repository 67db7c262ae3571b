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

/// A client and two servers, which compute checksums themselves, as XDP requires.
pub fn hosts(lab: &Lab) -> [Host; 3] {
    let options = HostOptions { tx_checksums: false, ..HostOptions::default() };
    ["client", "a", "b"].map(|name| lab.host(name, options.clone()).unwrap())
}
