//! ARP and neighbour discovery at servers' ports: no server announces an address of another one.

use crate::address::Address;
use crate::config::PortId;
use crate::parse::{PROTOCOL_ICMPV6, Packet, Parsed, Upper, array};
use crate::tables::Tables;

/// The messages of neighbour discovery, from router solicitation to redirect (RFC 4861 §4).
const DISCOVERY: core::ops::RangeInclusive<u8> = 133..=137;
/// Types of the messages that announce the Ethernet address of their field *target*, besides that of the sender.
const ADVERTISEMENT: u8 = 136;
const REDIRECT: u8 = 137;
/// Offset of the field *target*.
const TARGET_AT: usize = 8;

/// Whether a frame from a server's port announces the Ethernet address of an address that belongs to servers of other
/// ports, or to the switch.
pub(crate) fn announces_foreign(tables: &Tables, port: PortId, frame: &[u8], parsed: &Parsed) -> bool {
    let is_foreign = |address| !tables.may_announce(port, address);
    match parsed {
        // Receivers learn the sender's address also from requests.
        Parsed::Arp(arp) => is_foreign(arp.sender),
        Parsed::Ip(Packet {
            network,
            source,
            upper: Upper::Other { protocol: PROTOCOL_ICMPV6, at, .. },
            ..
        }) if !network.is_ipv4 => {
            let Ok([kind]) = array(frame, *at) else { return false };
            let target = || array(frame, at + TARGET_AT).is_ok_and(|target| is_foreign(Address(target)));
            DISCOVERY.contains(&kind)
                && (is_foreign(*source) || (matches!(kind, ADVERTISEMENT | REDIRECT) && target()))
        }
        Parsed::Ip(_) | Parsed::Other | Parsed::ManyTags => false,
    }
}
