//! IP addresses of hosts, and their ports. Names are not looked up: the switch compares addresses of packets.

use std::net::{IpAddr, SocketAddr};

/// Reads an IP address that a host of a network may have.
///
/// # Errors
/// Says what to give instead.
pub(super) fn host_address(text: &str) -> Result<IpAddr, String> {
    let ip: IpAddr = text
        .parse()
        .map_err(|_| format!("{text}: give an IP address, such as 10.0.0.5; names are not looked up"))?;
    check_host(ip.to_canonical())
}

/// Reads an address of a host, and a port.
///
/// # Errors
/// Says what to give instead.
pub(super) fn endpoint(text: &str) -> Result<SocketAddr, String> {
    if let Ok(ip) = text.parse::<IpAddr>() {
        let example = SocketAddr::new(ip, 11211);
        return Err(format!("{text} has no port: give ADDRESS:PORT, such as {example}"));
    }
    let address: SocketAddr = text.parse().map_err(|_| {
        format!(
            "{text}: give ADDRESS:PORT, such as 10.0.0.5:11211 or [2001:db8::5]:11211; names are not looked up"
        )
    })?;
    if address.port() == 0 {
        return Err(format!("{text}: give a port from 1 to 65535"));
    }
    Ok(SocketAddr::new(check_host(address.ip().to_canonical())?, address.port()))
}

fn check_host(ip: IpAddr) -> Result<IpAddr, String> {
    let is_broadcast = ip == IpAddr::V4(std::net::Ipv4Addr::BROADCAST);
    if ip.is_unspecified() || ip.is_loopback() || ip.is_multicast() || is_broadcast {
        return Err(format!(
            "{ip}: packets of other hosts do not have this address; give a host's own address"
        ));
    }
    Ok(ip)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_of_hosts_are_read() {
        assert_eq!(endpoint("10.0.0.5:80").map(|address| address.to_string()), Ok("10.0.0.5:80".to_owned()));
        assert_eq!(endpoint("[::ffff:10.0.0.5]:80"), endpoint("10.0.0.5:80"));
        assert_eq!(host_address("2001:db8::5").map(|ip| ip.to_string()), Ok("2001:db8::5".to_owned()));
        for (text, expected) in [
            ("10.0.0.5", "has no port: give ADDRESS:PORT, such as 10.0.0.5:11211"),
            ("2001:db8::5", "such as [2001:db8::5]:11211"),
            ("cache:80", "names are not looked up"),
            ("10.0.0.5:0", "a port from 1"),
            ("0.0.0.0:80", "a host's own address"),
            ("224.0.0.1:80", "a host's own address"),
            ("255.255.255.255:80", "a host's own address"),
            ("[::1]:80", "a host's own address"),
        ] {
            let error = endpoint(text).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
        assert!(host_address("10.0.0.5:80").unwrap_err().contains("give an IP address"));
        assert!(host_address("127.0.0.1").unwrap_err().contains("own address"));
    }
}
