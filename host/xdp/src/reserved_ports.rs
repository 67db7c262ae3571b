//! Whether the kernel leaves the stack's range of local ports alone.
//!
//! The kernel chooses local ports for its own connections from `ip_local_port_range`, except those in
//! `ip_local_reserved_ports`. If it chose one of the stack's, the answers would go to the stack.

use std::fmt;
use std::fs;
use std::io;
use std::ops::RangeInclusive;

const RESERVED: &str = "/proc/sys/net/ipv4/ip_local_reserved_ports";
const LOCAL: &str = "/proc/sys/net/ipv4/ip_local_port_range";

/// Why the stack cannot use a range of local ports.
#[derive(Debug)]
pub enum PortsError {
    /// The kernel may choose ports of the range.
    NotReserved {
        /// The range.
        ports: RangeInclusive<u16>,
        /// What `ip_local_reserved_ports` contains at present.
        reserved: String,
    },
    /// The kernel's settings could not be read.
    Read(io::Error),
}

impl fmt::Display for PortsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PortsError::NotReserved { ports, reserved } => {
                let (first, last) = (ports.start(), ports.end());
                let separator = if reserved.is_empty() { "" } else { "," };
                write!(
                    f,
                    "the kernel may use the local ports {first} to {last} for its own connections: reserve them with \
                     `sysctl -w net.ipv4.ip_local_reserved_ports={reserved}{separator}{first}-{last}`, and in \
                     /etc/sysctl.d for the next start"
                )
            }
            PortsError::Read(error) => write!(f, "cannot read the kernel's ranges of local ports: {error}"),
        }
    }
}

impl std::error::Error for PortsError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            PortsError::NotReserved { .. } => None,
            PortsError::Read(error) => Some(error),
        }
    }
}

/// Checks that the kernel of the calling thread's network namespace chooses no local port of a range.
///
/// # Errors
/// A port of the range is neither reserved nor outside the range from which the kernel chooses.
pub fn check_reserved(ports: &RangeInclusive<u16>) -> Result<(), PortsError> {
    let read = |file| fs::read_to_string(file).map_err(PortsError::Read);
    let (reserved, local) = (read(RESERVED)?, read(LOCAL)?);
    if is_left_alone(ports, &reserved, &local) {
        return Ok(());
    }
    Err(PortsError::NotReserved { ports: ports.clone(), reserved: reserved.trim().to_owned() })
}

/// Whether each port is in the list `reserved`, such as `8080,9000-9100`, or outside the pair `local`, such as `32768 60999`.
fn is_left_alone(ports: &RangeInclusive<u16>, reserved: &str, local: &str) -> bool {
    let number = |text: &str| text.trim().parse::<u16>().ok();
    let mut pair = local.split_whitespace().map(number);
    let local = pair.next().flatten().zip(pair.next().flatten());
    let reserved: Vec<_> = reserved
        .split(',')
        .filter_map(|part| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            Some(number(first)?..=number(last)?)
        })
        .collect();
    ports.clone().all(|port| {
        let may_be_chosen = local.is_none_or(|(first, last)| (first..=last).contains(&port));
        !may_be_chosen || reserved.iter().any(|range| range.contains(&port))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_left_alone_if_reserved_or_outside_the_kernels_range() {
        let local = "32768\t60999\n";
        for (ports, reserved, expected) in [
            (50_000..=50_999, "\n", false),
            (50_000..=50_999, "50000-50999\n", true),
            (50_000..=50_999, "8080,50000-50500,50501-50999", true),
            (50_000..=50_999, "50000-50998", false),
            (61_000..=61_999, "", true),
            (60_999..=61_000, "", false),
            (60_999..=61_000, "60999", true),
            (1_024..=2_047, "", true),
        ] {
            assert_eq!(is_left_alone(&ports, reserved, local), expected, "{ports:?} with {reserved:?}");
        }
        assert!(!is_left_alone(&(1..=1), "", "unreadable"));
    }

    #[test]
    fn the_error_has_the_command_that_keeps_present_reservations() {
        let error = PortsError::NotReserved { ports: 50_000..=50_999, reserved: "8080".into() };
        assert!(error.to_string().contains("ip_local_reserved_ports=8080,50000-50999`"), "{error}");
    }
}
