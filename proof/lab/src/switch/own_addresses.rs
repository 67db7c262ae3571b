//! Numbers of switches in a lab's networks, and the addresses that end with them.

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::addresses;

/// The number of the first switch in the lab's networks, as hosts have the numbers from 1 on. The next switches have
/// lower numbers.
const FIRST_OWN_NUMBER: u8 = 254;
/// Maximum number of switches in a row: their numbers do not reach those of hosts.
pub(super) const SWITCHES_MAX: usize = 32;

/// The number of a switch in the lab's networks.
pub(super) fn own_number(index: usize) -> u8 {
    FIRST_OWN_NUMBER.saturating_sub(u8::try_from(index).unwrap_or(u8::MAX))
}

/// The IPv4 and IPv6 address of the switch with this number.
pub(super) fn own_addresses(number: u8) -> (Ipv4Addr, Ipv6Addr) {
    (addresses::ipv4(number), addresses::ipv6(number))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::HOSTS_MAX;

    #[test]
    fn numbers_of_switches_and_hosts_differ() {
        let lowest = own_number(SWITCHES_MAX - 1);
        assert!(usize::from(lowest) > HOSTS_MAX, "switch {lowest}, hosts up to {HOSTS_MAX}");
        assert_eq!(own_number(0), FIRST_OWN_NUMBER);
    }
}
