//! Whether clients should be sent to a helper.

use std::fmt::Write as _;

use crate::status::HelperStatus;

/// Says what is wrong, a line each: it is going away, or a service or a link is down, or a thread is silent.
///
/// # Errors
/// What is wrong.
pub fn health(status: &HelperStatus) -> Result<(), String> {
    let mut why = String::new();
    // Writing to a string does not fail.
    if status.draining {
        why.push_str("draining: told to go\n");
    }
    if status.threads_silent > 0 {
        let _ = writeln!(why, "{} of {} threads do not answer", status.threads_silent, status.threads);
    }
    // One that is removed only lets its clients finish.
    for service in status.services.iter().filter(|service| !service.removed) {
        let up = service.links.iter().filter(|link| link.state == "up").count();
        // A link that was replaced stands in for the new one until that is up, and is not missed after that.
        let links = service.links.iter().filter(|link| !link.replaced).count();
        let up = up.min(links);
        if up < links || links == 0 {
            let _ = writeln!(why, "{}: {up} of {links} links to {} are up", service.name, service.server);
        }
    }
    if why.is_empty() { Ok(()) } else { Err(why) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::{LinkStatus, ServiceStatus};

    #[test]
    fn every_reason_is_said() {
        let link = |state: &str| LinkStatus { state: state.into(), ..LinkStatus::default() };
        let service = |links| ServiceStatus { name: "cache".into(), links, ..ServiceStatus::default() };
        let of = |services, draining, threads_silent| {
            health(&HelperStatus {
                services,
                draining,
                threads: 2,
                threads_silent,
                ..HelperStatus::default()
            })
        };
        assert_eq!(of(vec![service(vec![link("up"), link("up")])], false, 0), Ok(()));
        let why = of(vec![service(vec![link("up"), link("waiting")])], false, 0).unwrap_err();
        assert!(why.contains("cache: 1 of 2 links"), "{why}");
        assert!(of(vec![service(vec![link("draining")])], false, 0).is_err(), "the server drains");
        assert!(of(vec![service(vec![])], false, 0).is_err());
        let replaced = |state| LinkStatus { replaced: true, ..link(state) };
        assert_eq!(
            of(vec![service(vec![link("connecting"), replaced("up")])], false, 0),
            Ok(()),
            "it stands in"
        );
        assert_eq!(
            of(vec![service(vec![link("up"), replaced("draining")])], false, 0),
            Ok(()),
            "it is not missed"
        );
        assert!(of(vec![service(vec![link("connecting"), replaced("draining")])], false, 0).is_err());
        let removed = ServiceStatus { removed: true, ..service(vec![link("closed")]) };
        assert_eq!(of(vec![service(vec![link("up")]), removed], false, 0), Ok(()));
        assert!(of(vec![], true, 0).unwrap_err().contains("draining"));
        assert!(of(vec![], false, 1).unwrap_err().contains("1 of 2 threads"));
    }
}
