//! The transport of a helper's connections.

use std::ops::RangeInclusive;
use std::time::Duration;

use super::SeparateAddress;

/// Transport of a helper's connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Engine {
    /// Kernel sockets.
    #[default]
    Sockets,
    /// Spillway's TCP stack on AF_XDP, beside the kernel.
    Xdp,
    /// [`Xdp`](Self::Xdp) if the host and the settings allow it, otherwise [`Sockets`](Self::Sockets).
    Auto,
}

impl Engine {
    /// All engines.
    pub const ALL: [Engine; 3] = [Engine::Sockets, Engine::Xdp, Engine::Auto];

    /// The name in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Engine::Sockets => "sockets",
            Engine::Xdp => "xdp",
            Engine::Auto => "auto",
        }
    }
}

/// Maximum of [`XdpConfig::defer_interrupts`], for which a received packet may wait.
pub const DEFER_INTERRUPTS_MAX: Duration = Duration::from_millis(1);

/// Settings of the engine `xdp`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XdpConfig {
    /// The helper's own address, which the kernel does not have. `None`: the helper and the kernel share the
    /// interface's addresses.
    pub separate: Option<SeparateAddress>,
    /// Local ports of connections to servers. The kernel must not use them at a shared address.
    pub ports: RangeInclusive<u16>,
    /// Frames of 2 KiB for each receive queue: a power of two from 64 to 65,536.
    pub frames: u32,
    /// Time for which a thread polls for frames after the last one, before it sleeps; zero: no polling.
    pub busy_poll: Duration,
    /// Interval at which the kernel polls the interface while a thread is loaded; zero: interrupts only.
    pub defer_interrupts: Duration,
    /// Whether the helper sets the interface's offloads and queues as the engine needs them.
    pub configure_interface: bool,
}

impl Default for XdpConfig {
    /// The ports are those above Linux's default `ip_local_port_range`, 32768 to 60999.
    fn default() -> XdpConfig {
        XdpConfig {
            separate: None,
            ports: 61_000..=65_535,
            frames: 4096,
            busy_poll: Duration::ZERO,
            defer_interrupts: Duration::ZERO,
            configure_interface: false,
        }
    }
}

/// Reads a range of ports, `FIRST-LAST`.
///
/// # Errors
/// The text is not a range of ports above 0, or the range is empty.
pub fn parse_ports(text: &str) -> Result<RangeInclusive<u16>, String> {
    let number = |part: &str| part.trim().parse::<u16>().ok().filter(|port| *port > 0);
    text.split_once('-')
        .and_then(|(first, last)| Some(number(first)?..=number(last)?))
        .filter(|ports| !ports.is_empty())
        .ok_or_else(|| format!("{text}: give a range of ports, such as 61000-65535"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_of_ports_has_two_ends_in_order() {
        assert_eq!(parse_ports("61000-65535"), Ok(61_000..=65_535));
        assert_eq!(parse_ports(" 7 - 7 "), Ok(7..=7));
        for wrong in ["", "7", "-", "0-7", "8-7", "7-70000", "7-8-9", "a-b"] {
            assert!(parse_ports(wrong).unwrap_err().contains("61000-65535"), "{wrong}");
        }
    }
}
