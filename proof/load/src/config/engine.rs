//! What carries the connections.

use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;

/// What carries the connections.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum EngineKind {
    /// The kernel's sockets.
    #[default]
    Sockets,
    /// The user-level TCP stack, on an interface that it shares with the kernel by AF_XDP.
    Xdp(XdpOptions),
}

/// Options of the user-level stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XdpOptions {
    /// The name of the interface towards the server. [`Config::threads`](crate::Config::threads) must equal the number of its receive queues.
    pub interface: String,
    /// Local ports of the connections, which the kernel must not use; at least one for each connection. `None`: from
    /// 10,000 up to the port before the range that the kernel uses for its own connections.
    pub ports: Option<RangeInclusive<u16>>,
}

impl EngineKind {
    /// Checks that the engine has sessions, if the run has them, and reaches these addresses.
    pub(super) fn check<'a>(
        &self,
        has_sessions: bool,
        mut targets: impl Iterator<Item = &'a SocketAddr>,
    ) -> Result<(), String> {
        let EngineKind::Xdp(options) = self else { return Ok(()) };
        if has_sessions {
            return Err(
                "--sessions use the client library, which has sockets of its own: omit --engine xdp or --sessions".into()
            );
        }
        targets.try_for_each(check_target)?;
        match &options.ports {
            Some(ports) if ports.is_empty() || *ports.start() == 0 => Err(format!(
                "--ports is {}-{}; give the first and the last port of a range, such as 10000-19999",
                ports.start(),
                ports.end()
            )),
            _ => Ok(()),
        }
    }
}

fn check_target(address: &SocketAddr) -> Result<(), String> {
    match address.ip() {
        IpAddr::V4(ip) if ip.is_loopback() => Err(format!(
            "--engine xdp does not reach {address}, because loopback is not an Ethernet interface: give the address of \
             another host, or omit --engine xdp"
        )),
        IpAddr::V4(_) => Ok(()),
        IpAddr::V6(_) => Err(format!(
            "--engine xdp has no IPv6, and {address} is an IPv6 address: give an IPv4 address, or omit --engine xdp"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, Sessions};

    #[test]
    fn options_that_the_stack_does_not_support_are_refused() {
        let options = XdpOptions { interface: "eth0".into(), ports: None };
        let mut config = Config::new("10.0.0.5:11211".parse().unwrap());
        config.engine = EngineKind::Xdp(options.clone());
        assert_eq!(config.check(), Ok(()));
        let error = |change: &dyn Fn(&mut Config)| {
            let mut config = config.clone();
            change(&mut config);
            config.check().unwrap_err()
        };
        let link = || Some("10.0.0.5:11411".parse().unwrap());
        let sessions = |config: &mut Config| {
            config.sessions = Some(Sessions { server_link: link(), ..Sessions::default() });
        };
        assert!(error(&sessions).contains("--sessions"));
        assert!(error(&|config| config.server = "127.0.0.1:1".parse().unwrap()).contains("loopback"));
        assert!(error(&|config| config.server = "[2001:db8::1]:1".parse().unwrap()).contains("IPv6"));
        for ports in [RangeInclusive::new(20, 10), 0..=10] {
            let options = XdpOptions { ports: Some(ports), ..options.clone() };
            assert!(error(&|config| config.engine = EngineKind::Xdp(options.clone())).contains("--ports"));
        }
    }
}
