//! Local ports of the stacks' connections. The kernel has the same address, so it must not use these ports.

use std::net::Ipv4Addr;
use std::ops::RangeInclusive;

use spillway_xdp::check_reserved;

/// The first port of the default range, above those of most servers.
const DEFAULT_FIRST: u16 = 10_000;
const LOCAL_PORTS: &str = "/proc/sys/net/ipv4/ip_local_port_range";
/// Tables of the kernel's TCP sockets in the calling thread's network namespace.
const SOCKETS: [&str; 2] = ["/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"];
/// The state of a socket that only remembers a closed connection (TCP_TIME_WAIT of the kernel).
const TIME_WAIT: &str = "06";

/// Checks the range `wanted`, or chooses one: from 10,000 up to the port before the range that the kernel uses for its
/// own connections. The error contains the next step.
pub(super) fn choose(
    wanted: Option<RangeInclusive<u16>>,
    address: Ipv4Addr,
    connections: u32,
) -> Result<RangeInclusive<u16>, String> {
    let ports = match wanted {
        Some(ports) => ports,
        None => {
            let text = std::fs::read_to_string(LOCAL_PORTS)
                .map_err(|error| format!("cannot read {LOCAL_PORTS}: {error}"))?;
            default_range(&text).ok_or_else(|| {
                "the kernel uses all ports from 10,000 on (net.ipv4.ip_local_port_range): give --ports FIRST-LAST"
                    .to_owned()
            })?
        }
    };
    let count = u32::from(*ports.end() - *ports.start()) + 1;
    if count < connections {
        return Err(format!(
            "{connections} connections need {connections} local ports, but {} to {} are only {count}: give a larger \
             range with --ports, or fewer --connections",
            ports.start(),
            ports.end()
        ));
    }
    check_reserved(&ports).map_err(|error| error.to_string())?;
    for file in SOCKETS {
        // A kernel without IPv6 has no table of its sockets.
        let table = std::fs::read_to_string(file).unwrap_or_default();
        if let Some(port) = used_port(&table, &ports, address) {
            return Err(format!(
                "a socket of the kernel uses the local port {port}, whose packets the stack would take: give other \
                 ports with --ports FIRST-LAST (`ss -tan 'sport = {port}'` shows the socket)"
            ));
        }
    }
    Ok(ports)
}

/// Divides a range into one range for each thread. The last one also has the remainder.
pub(super) fn shares(ports: &RangeInclusive<u16>, threads: u32) -> Vec<RangeInclusive<u16>> {
    let (first, last) = (u32::from(*ports.start()), u32::from(*ports.end()));
    let each = (last - first + 1) / threads;
    let port = |number: u32| u16::try_from(number).unwrap_or(u16::MAX);
    (0..threads)
        .map(|thread| {
            let start = first + thread * each;
            let end = if thread + 1 == threads { last } else { start + each - 1 };
            port(start)..=port(end)
        })
        .collect()
}

/// `local` is the kernel's range for its own connections, such as `32768 60999`.
fn default_range(local: &str) -> Option<RangeInclusive<u16>> {
    let first: u16 = local.split_whitespace().next()?.parse().ok()?;
    let last = first.checked_sub(1)?;
    (last >= DEFAULT_FIRST).then_some(DEFAULT_FIRST..=last)
}

/// A port of the range that a socket in the table uses at `address`, or at all addresses.
fn used_port(table: &str, ports: &RangeInclusive<u16>, address: Ipv4Addr) -> Option<u16> {
    // The kernel prints an address as a number in the machine's byte order.
    let own = format!("{:08X}", u32::from_ne_bytes(address.octets()));
    table.lines().skip(1).find_map(|line| {
        let mut columns = line.split_whitespace().skip(1);
        let (ip, port) = columns.next()?.rsplit_once(':')?;
        let port = u16::from_str_radix(port, 16).ok()?;
        let state = columns.nth(1)?;
        // The kernel prints an IPv4-mapped IPv6 address with the IPv4 address at its end.
        let is_here = ip.bytes().all(|digit| digit == b'0') || ip.ends_with(&own);
        (is_here && state != TIME_WAIT && ports.contains(&port)).then_some(port)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_range_ends_before_the_kernels() {
        assert_eq!(default_range("32768\t60999\n"), Some(10_000..=32_767));
        assert_eq!(default_range("20000 64999"), Some(10_000..=19_999));
        assert_eq!(
            [default_range("1024 65535"), default_range(""), default_range("x y")],
            [None, None, None]
        );
    }

    #[test]
    fn threads_have_disjoint_ports() {
        assert_eq!(shares(&(10..=19), 1), [10..=19]);
        assert_eq!(shares(&(10..=19), 3), [10..=12, 13..=15, 16..=19]);
        assert_eq!(shares(&(65_534..=65_535), 2), [65_534..=65_534, 65_535..=65_535]);
    }

    #[test]
    fn sockets_in_the_range_are_found() {
        // 10.79.0.1, port 10,000 (0x2710).
        let own = format!("{:08X}", u32::from_ne_bytes([10, 79, 0, 1]));
        let table = |ip: &str, state: &str| {
            format!(
                "  sl  local_address rem_address   st\n   0: {ip}:2710 00000000:0000 {state} 00000000:00000000\n"
            )
        };
        let found = |table: &str, ports| used_port(table, &ports, Ipv4Addr::new(10, 79, 0, 1));
        assert_eq!(found(&table("00000000", "0A"), 10_000..=10_010), Some(10_000));
        assert_eq!(found(&table(&own, "01"), 9_000..=10_000), Some(10_000));
        let mapped = format!("0000000000000000FFFF0000{own}");
        assert_eq!(found(&table(&mapped, "0A"), 10_000..=10_000), Some(10_000));
        assert_eq!(
            found(&table("0100007F", "0A"), 10_000..=10_000),
            None,
            "a socket at another address should not count"
        );
        assert_eq!(found(&table(&own, TIME_WAIT), 10_000..=10_000), None);
        assert_eq!(found(&table(&own, "0A"), 10_001..=10_010), None);
    }
}
