//! Checks that the kernel does not use the stack's range of local ports.
//!
//! The kernel chooses local ports for its own connections from `ip_local_port_range`, except those in
//! `ip_local_reserved_ports`. If the kernel chose one of the stack's ports, the stack would receive the
//! answers. The same holds for kernel sockets that a program has bound to such a port.

use std::fmt;
use std::fs;
use std::io;
use std::net::IpAddr;
use std::ops::RangeInclusive;

use crate::kernel_sockets::{self, KernelSocket};

const RESERVED: &str = "/proc/sys/net/ipv4/ip_local_reserved_ports";
const LOCAL: &str = "/proc/sys/net/ipv4/ip_local_port_range";

/// Why the stack cannot use a range of local ports.
#[derive(Debug)]
pub enum PortsError {
    /// The kernel may choose ports of the range.
    NotReserved {
        /// The range.
        ports: RangeInclusive<u16>,
        /// The present value of `ip_local_reserved_ports`.
        reserved: String,
    },
    /// Sockets of the kernel use ports of the range, whose packets the stack would receive.
    Used {
        /// The range.
        ports: RangeInclusive<u16>,
        /// The sockets, at least one; listening ones first.
        sockets: Vec<KernelSocket>,
    },
    /// The kernel's settings could not be read.
    Read(io::Error),
}

const NAMED_MAX: usize = 3;

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
            PortsError::Used { ports, sockets } => {
                let (first, last) = (ports.start(), ports.end());
                let named: Vec<String> =
                    sockets.iter().take(NAMED_MAX).map(KernelSocket::to_string).collect();
                let more = match sockets.len().saturating_sub(NAMED_MAX) {
                    0 => String::new(),
                    more => format!(" and {more} more"),
                };
                write!(
                    f,
                    "kernel sockets use local ports of {first} to {last}, and the stack would take their packets: {}{more}; \
                     end their programs, which `ss -tanp 'sport >= :{first} and sport <= :{last}'` names, or choose other \
                     ports",
                    named.join(", ")
                )
            }
            PortsError::Read(error) => write!(f, "cannot read the kernel's use of local ports: {error}"),
        }
    }
}

impl std::error::Error for PortsError {}

/// Checks that the kernel never chooses a local port of a range, in the calling thread's network namespace.
///
/// # Errors
/// The kernel may choose a port of the range, or its settings cannot be read.
pub fn check_reserved(ports: &RangeInclusive<u16>) -> Result<(), PortsError> {
    let read = |file| fs::read_to_string(file).map_err(PortsError::Read);
    let (reserved, local) = (read(RESERVED)?, read(LOCAL)?);
    if is_left_alone(ports, &reserved, &local) {
        return Ok(());
    }
    Err(PortsError::NotReserved { ports: ports.clone(), reserved: reserved.trim().to_owned() })
}

/// Checks that no TCP socket of the kernel listens or is connected at a port of a range on one of these
/// addresses or on a wildcard address, in the calling thread's network namespace. TIME-WAIT does not count.
///
/// # Errors
/// A socket of the kernel uses a port of the range, or the tables of sockets cannot be read.
pub fn check_unused(ports: &RangeInclusive<u16>, addresses: &[IpAddr]) -> Result<(), PortsError> {
    let sockets = kernel_sockets::sockets_at(ports, addresses).map_err(PortsError::Read)?;
    if sockets.is_empty() { Ok(()) } else { Err(PortsError::Used { ports: ports.clone(), sockets }) }
}

/// Whether each port is in the list `reserved`, such as `8080,9000-9100`, or outside `local`, such as `32768
/// 60999`.
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

    #[test]
    fn the_error_names_the_first_sockets_and_the_next_step() {
        let socket = |port| KernelSocket { local: ([10, 0, 0, 2], port).into(), peer: None };
        let sockets = (62_000..62_005).map(socket).collect();
        let error = PortsError::Used { ports: 61_000..=65_535, sockets }.to_string();
        assert!(error.contains("10.0.0.2:62000 listening, 10.0.0.2:62001 listening"), "{error}");
        assert!(error.contains("62002 listening and 2 more; end their programs"), "{error}");
        assert!(error.contains("`ss -tanp 'sport >= :61000 and sport <= :65535'`"), "{error}");
        assert!(!error.contains("62003"), "{error}");
    }
}
