//! Bounds on the number of connections: of all peers, and of each.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

/// Maximum number of connections at one time.
const CONNECTIONS_MAX: usize = 16;
/// Maximum number of connections of one peer. A peer is an IPv4 address or an IPv6 /64, the range that one host usually
/// has. The limit leaves places for load balancers and Prometheus when a single host opens many connections.
const PEER_CONNECTIONS_MAX: usize = 8;

/// Counts open connections by peer; at most [`CONNECTIONS_MAX`] peers.
#[derive(Clone, Default)]
pub(crate) struct Places {
    by_peer: Arc<Mutex<HashMap<IpAddr, usize>>>,
}

impl Places {
    /// Takes a place for a connection of a peer. `None`: a limit is reached; close the connection.
    pub(crate) fn take(&self, peer: IpAddr) -> Option<Place> {
        let peer = network(peer);
        let mut by_peer = self.by_peer.lock().unwrap_or_else(PoisonError::into_inner);
        let (taken, own) = (by_peer.values().sum::<usize>(), by_peer.get(&peer).copied().unwrap_or(0));
        if taken >= CONNECTIONS_MAX || own >= PEER_CONNECTIONS_MAX {
            return None;
        }
        by_peer.insert(peer, own + 1);
        Some(Place { places: self.clone(), peer })
    }
}

/// The place of one connection. Dropping it, also in a panic of the connection's thread, frees the place.
pub(crate) struct Place {
    places: Places,
    peer: IpAddr,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut by_peer = self.places.by_peer.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(own) = by_peer.get_mut(&self.peer) {
            *own -= 1;
            if *own == 0 {
                by_peer.remove(&self.peer);
            }
        }
    }
}

/// The address without the part that a host can choose.
fn network(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6((address.to_bits() >> 64 << 64).into()),
        address @ IpAddr::V4(_) => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(places: &Places, peer: &str) -> Option<Place> {
        places.take(peer.parse().unwrap())
    }

    #[test]
    fn one_peer_leaves_places_to_others() {
        let places = Places::default();
        let mut slow: Vec<Place> = std::iter::from_fn(|| take(&places, "10.0.0.7")).collect();
        assert_eq!(slow.len(), PEER_CONNECTIONS_MAX);
        assert!(take(&places, "::ffff:10.0.0.7").is_none(), "the same address at a dual-stack listener");
        assert!(take(&places, "10.0.0.8").is_some());
        slow.pop();
        assert!(take(&places, "10.0.0.7").is_some());
    }

    #[test]
    fn all_peers_together_are_bounded() {
        let places = Places::default();
        let peers = (0..100).filter_map(|host| take(&places, &format!("10.0.0.{host}")));
        let taken: Vec<Place> = peers.collect();
        assert_eq!(taken.len(), CONNECTIONS_MAX);
        drop(taken);
        assert!(places.by_peer.lock().unwrap().is_empty());
    }

    #[test]
    fn addresses_of_one_ipv6_network_are_one_peer() {
        let places = Places::default();
        let taken = (0..100).filter_map(|host| take(&places, &format!("2001:db8::{host:x}")));
        let taken: Vec<Place> = taken.collect();
        assert_eq!(taken.len(), PEER_CONNECTIONS_MAX);
        assert!(take(&places, "2001:db8:0:1::1").is_some());
    }
}
