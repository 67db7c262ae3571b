//! Local ports of the stacks' connections. The kernel has the same address, so it must not use these ports.

use std::net::Ipv4Addr;
use std::ops::RangeInclusive;

use spillway_xdp::{PortsError, check_reserved, check_unused};

/// The first port of the default range, above those of most servers.
const DEFAULT_FIRST: u16 = 10_000;
const LOCAL_PORTS: &str = "/proc/sys/net/ipv4/ip_local_port_range";

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
    check_unused(&ports, &[address.into()]).map_err(|error| match error {
        PortsError::Used { .. } => format!("{error}: give --ports FIRST-LAST"),
        error => error.to_string(),
    })?;
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
}
