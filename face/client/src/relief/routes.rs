//! The list of link ports of a session, in the order in which it tries them.

use crate::LinkTarget;

/// Maximum of further helpers in a session's list, for an immediate failover. They differ between sessions, so that the
/// sessions of a failed helper move to different helpers.
const STANDBY_HELPERS: usize = 4;

#[derive(Debug)]
pub(super) struct LinkPorts {
    pub(super) server: LinkTarget,
    pub(super) helpers: Vec<LinkTarget>,
}

impl LinkPorts {
    /// The chosen helper, then random others, then the server. Without a chosen helper: the server, then some helpers.
    pub(super) fn routes(&self, chosen: Option<usize>, mut random: impl FnMut() -> f64) -> Vec<LinkTarget> {
        let mut routes = Vec::with_capacity(STANDBY_HELPERS + 2);
        match chosen.and_then(|chosen| self.helpers.get(chosen)) {
            Some(helper) => routes.push(helper.clone()),
            None => routes.push(self.server.clone()),
        }
        // Consecutive helpers from a random index on, each at most once.
        let count = self.helpers.len();
        if count > 0 {
            let first = (random() * count as f64) as usize;
            let others = (0..count).map(|step| (first + step) % count).filter(|index| Some(*index) != chosen);
            routes.extend(others.take(STANDBY_HELPERS).map(|index| self.helpers[index].clone()));
        }
        if chosen.is_some() {
            routes.push(self.server.clone());
        }
        routes
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use spillway_auth::Key;

    use super::*;

    fn ports_of(helpers: u16) -> LinkPorts {
        let target = |port| LinkTarget {
            address: SocketAddr::from(([127, 0, 0, 1], port)),
            key: Key::loopback_only(),
            server: None,
            encryption: Default::default(),
        };
        LinkPorts { server: target(9), helpers: (0..helpers).map(|helper| target(100 + helper)).collect() }
    }

    fn ports(routes: &[LinkTarget]) -> Vec<u16> {
        routes.iter().map(|route| route.address.port()).collect()
    }

    #[test]
    fn chosen_helper_is_first_and_server_last_or_server_first() {
        assert_eq!(ports(&ports_of(3).routes(Some(1), || 0.9)), [101, 102, 100, 9]);
        assert_eq!(ports(&ports_of(3).routes(None, || 0.4)), [9, 101, 102, 100]);
        assert_eq!(ports(&ports_of(0).routes(None, || 0.4)), [9]);
        assert_eq!(ports(&ports_of(1).routes(Some(0), || 0.4)), [100, 9]);
        // An index beyond the list.
        assert_eq!(ports(&ports_of(1).routes(Some(7), || 0.4))[0], 9);
    }

    #[test]
    fn list_has_the_chosen_helper_and_four_others_and_the_server() {
        let thousand = ports_of(1000);
        let routes = thousand.routes(Some(5), || 0.7);
        assert_eq!(ports(&routes), [105, 800, 801, 802, 803, 9]);
    }
}
