//! Health of a helper: whether it accepts new clients of all services.

use std::fmt::Write as _;

use spillway_policy::Override;

use crate::status::{HelperStatus, ServiceStatus};

/// Whether load balancers should send new clients to the helper. An error holds the reasons for which they should not,
/// one on each line: the helper or a service drains, relief of a service is off, a link is down, a thread is silent or
/// has failed, all threads have their maximum number of clients, or an address was removed from the interface.
pub fn health(status: &HelperStatus) -> Result<(), String> {
    let mut why = String::new();
    // Writing to a string cannot fail.
    if status.draining {
        why.push_str("draining\n");
    }
    if let Some(failure) = &status.thread_failure {
        let _ = writeln!(why, "{failure}");
    }
    if status.threads_silent > 0 {
        let _ = writeln!(why, "{} of {} threads do not answer", status.threads_silent, status.threads);
    }
    for problem in status.engine.problems() {
        let _ = writeln!(why, "{problem}");
    }
    if is_full(status) {
        let _ = writeln!(
            why,
            "full: no new clients; {} connected, max_connections = {}",
            status.clients, status.max_connections
        );
    }
    // A removed service refuses new clients on purpose, and ends with its last client.
    for service in status.services.iter().filter(|service| !service.removed) {
        if let Some(reason) = refusal_reason(service) {
            let _ = writeln!(why, "{}: {reason}", service.name);
        }
    }
    if why.is_empty() { Ok(()) } else { Err(why) }
}

/// Whether every thread has its maximum number of clients.
fn is_full(status: &HelperStatus) -> bool {
    let max = status.max_connections_of_thread;
    !status.per_thread.is_empty() && max > 0 && status.per_thread.iter().all(|thread| thread.clients >= max)
}

/// The reason for which a service does not accept new clients on every thread; `None` if it accepts them.
pub(crate) fn refusal_reason(service: &ServiceStatus) -> Option<String> {
    if let Some(drained) = service.drained {
        return Some(format!("draining: no new clients; {} connected", drained.remaining));
    }
    if service.relief_override == Override::Off.name() {
        let left = service.override_left_ms.map(|ms| format!(" for {} s more", ms / 1000));
        return Some(format!("relief is off{}: no new clients", left.unwrap_or_default()));
    }
    let up = service.links_up();
    // A replaced link accepts clients until the new link is up: it counts as up, but need not be up.
    let links = service.links.iter().filter(|link| !link.replaced).count();
    let up = up.min(links);
    (up < links || links == 0).then(|| format!("{up} of {links} links to {} are up", service.server))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::EngineStatus;
    use crate::status::{Drained, LinkStatus, ThreadStatus};

    #[test]
    fn a_helper_is_full_when_no_thread_accepts_clients() {
        let thread = |clients| ThreadStatus { clients, ..ThreadStatus::default() };
        let health_of = |clients: [u32; 2]| {
            health(&HelperStatus {
                clients: clients.iter().sum(),
                max_connections: 4,
                max_connections_of_thread: 3,
                per_thread: clients.map(thread).to_vec(),
                ..HelperStatus::default()
            })
        };
        assert_eq!(health_of([3, 2]), Ok(()), "one thread should still accept clients");
        assert_eq!(
            health_of([3, 3]).unwrap_err(),
            "full: no new clients; 6 connected, max_connections = 4\n"
        );
    }

    #[test]
    fn each_reason_against_new_clients_is_reported() {
        let link = |state: &str| LinkStatus { state: state.into(), ..LinkStatus::default() };
        let service = |links| ServiceStatus { name: "cache".into(), links, ..ServiceStatus::default() };
        let health_of = |services, draining, threads_silent| {
            health(&HelperStatus {
                services,
                draining,
                threads: 2,
                threads_silent,
                ..HelperStatus::default()
            })
        };
        assert_eq!(health_of(vec![service(vec![link("up"), link("up")])], false, 0), Ok(()));
        let why = health_of(vec![service(vec![link("up"), link("waiting")])], false, 0).unwrap_err();
        assert!(why.contains("cache: 1 of 2 links"), "{why}");
        assert!(
            health_of(vec![service(vec![link("draining")])], false, 0).is_err(),
            "a draining link should count as down"
        );
        assert!(health_of(vec![service(vec![])], false, 0).is_err());
        let replaced = |state| LinkStatus { replaced: true, ..link(state) };
        assert_eq!(
            health_of(vec![service(vec![link("connecting"), replaced("up")])], false, 0),
            Ok(()),
            "a replaced link should count as up until the new one is up"
        );
        assert_eq!(
            health_of(vec![service(vec![link("up"), replaced("draining")])], false, 0),
            Ok(()),
            "a replaced link need not be up"
        );
        assert!(health_of(vec![service(vec![link("connecting"), replaced("draining")])], false, 0).is_err());
        let removed = ServiceStatus { removed: true, ..service(vec![link("closed")]) };
        assert_eq!(health_of(vec![service(vec![link("up")]), removed], false, 0), Ok(()));
        let drained = Some(Drained { remaining: 3, ..Drained::default() });
        let drains = ServiceStatus { drained, ..service(vec![link("up")]) };
        let why = health_of(vec![drains], false, 0).unwrap_err();
        assert_eq!(why, "cache: draining: no new clients; 3 connected\n");
        let off = |left| ServiceStatus {
            relief_override: "off".into(),
            override_left_ms: left,
            ..service(vec![link("up")])
        };
        let why = health_of(vec![off(None), off(Some(5000))], false, 0).unwrap_err();
        assert_eq!(
            why,
            "cache: relief is off: no new clients\ncache: relief is off for 5 s more: no new clients\n"
        );
        let on = ServiceStatus { relief_override: "on".into(), ..service(vec![link("up")]) };
        assert_eq!(health_of(vec![on], false, 0), Ok(()));
        let failed =
            HelperStatus { thread_failure: Some("thread net-0 failed".into()), ..HelperStatus::default() };
        assert_eq!(health(&failed).unwrap_err(), "thread net-0 failed\n");
        let engine = EngineStatus {
            interface: Some("eth0".into()),
            missing_addresses: vec![[10, 0, 0, 2].into()],
            ..EngineStatus::default()
        };
        let removed = HelperStatus { engine, ..HelperStatus::default() };
        let why = "interface eth0 does not have the address 10.0.0.2 any more";
        assert_eq!(health(&removed).unwrap_err(), format!("{why}\n"));
        assert!(removed.to_string().contains(why), "{removed}");
        assert!(health_of(vec![], true, 0).unwrap_err().contains("draining"));
        assert!(health_of(vec![], false, 1).unwrap_err().contains("1 of 2 threads"));
    }
}
