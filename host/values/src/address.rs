//! Parsing of addresses in configurations and on command lines.

use std::fmt;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, ToSocketAddrs};

/// An address that cannot be used.
#[derive(Debug)]
pub struct AddressError {
    text: String,
    problem: Problem,
}

#[derive(Debug)]
enum Problem {
    NotAnAddress,
    NoPort,
    /// The port's text.
    NotAPort(String),
    /// An IPv6 address without brackets.
    NoBrackets {
        host: String,
        port: String,
    },
    Lookup(io::Error),
    NotFound,
}

impl fmt::Display for AddressError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = &self.text;
        match &self.problem {
            Problem::NotAnAddress => write!(f, "{text} is not an address: give HOST:PORT, :PORT or PORT"),
            Problem::NoPort => write!(f, "{text} has no port: give HOST:PORT"),
            Problem::NotAPort(port) => write!(f, "{text}: {port:?} is not a port (1 to 65535)"),
            Problem::NoBrackets { host, port } => {
                write!(f, "{text}: an IPv6 address needs brackets: [{host}]:{port}")
            }
            Problem::Lookup(error) => write!(f, "cannot look up {text}: {error}"),
            Problem::NotFound => write!(f, "the look-up of {text} returned no address"),
        }
    }
}

impl std::error::Error for AddressError {}

/// Parses the address of a server's link port: `HOST:PORT`; `:PORT` and `PORT` mean 127.0.0.1. Fails for other texts,
/// unknown names and port 0.
pub fn server_address(text: &str) -> Result<SocketAddr, AddressError> {
    let error = |problem| AddressError { text: text.to_owned(), problem };
    let port = text.strip_prefix(':').unwrap_or(text);
    let address = match port.parse::<u16>() {
        Ok(port) => (Ipv4Addr::LOCALHOST, port).into(),
        Err(_) => look_up(text)?.into_iter().next().ok_or_else(|| error(Problem::NotFound))?,
    };
    if address.port() == 0 { Err(error(Problem::NotAPort("0".to_owned()))) } else { Ok(address) }
}

/// The first address of [`listen_addresses`], which is IPv4 for `:PORT`. Fails for other texts and unknown names.
pub fn listen_address(text: &str) -> Result<SocketAddr, AddressError> {
    let error = || AddressError { text: text.to_owned(), problem: Problem::NotFound };
    listen_addresses(text)?.into_iter().next().ok_or_else(error)
}

/// Parses addresses to listen on: `HOST:PORT`, `:PORT` for every address of this host, `PORT` for loopback only. Fails
/// for other texts and unknown names.
pub fn listen_addresses(text: &str) -> Result<Vec<SocketAddr>, AddressError> {
    let error = |problem| AddressError { text: text.to_owned(), problem };
    if let Ok(port) = text.parse::<u16>() {
        return Ok(vec![(Ipv4Addr::LOCALHOST, port).into()]);
    }
    if let Some(port) = text.strip_prefix(':').filter(|rest| !rest.contains(':')) {
        let port = port.parse::<u16>().map_err(|_| error(Problem::NotAPort(port.to_owned())))?;
        let mut all: Vec<SocketAddr> = vec![(Ipv4Addr::UNSPECIFIED, port).into()];
        // The host may not support IPv6.
        if TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).is_ok() {
            all.push((Ipv6Addr::UNSPECIFIED, port).into());
        }
        return Ok(all);
    }
    let found = look_up(text)?;
    if found.is_empty() { Err(error(Problem::NotFound)) } else { Ok(found) }
}

fn look_up(text: &str) -> Result<Vec<SocketAddr>, AddressError> {
    let error = |problem| AddressError { text: text.to_owned(), problem };
    if let Ok(address) = text.parse::<SocketAddr>() {
        return Ok(vec![address]);
    }
    let Some((host, port)) = text.rsplit_once(':') else {
        // A text that begins with a digit and has no dots is meant to be a port.
        let is_port = text.starts_with(|first: char| first.is_ascii_digit()) && !text.contains('.');
        return Err(error(if is_port { Problem::NotAPort(text.to_owned()) } else { Problem::NoPort }));
    };
    if host.parse::<Ipv6Addr>().is_ok() {
        return Err(error(Problem::NoBrackets { host: host.to_owned(), port: port.to_owned() }));
    }
    if text.parse::<Ipv6Addr>().is_ok() {
        return Err(error(Problem::NoBrackets { host: text.to_owned(), port: "PORT".to_owned() }));
    }
    if port.parse::<u16>().is_err() {
        return Err(error(Problem::NotAPort(port.to_owned())));
    }
    if host.is_empty() || host.contains([':', '[', ']']) {
        return Err(error(Problem::NotAnAddress));
    }
    let found = text.to_socket_addrs().map_err(|lookup| error(Problem::Lookup(lookup)))?;
    Ok(found.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_address_gives_an_error_with_the_reason() {
        for (text, reason) in [
            ("10.0.0.1", "no port"),
            ("a:b:1", "not an address"),
            ("host:port", "\"port\" is not a port"),
            (":x", "\"x\" is not a port"),
            ("99999", "\"99999\" is not a port (1 to 65535)"),
            ("80x", "\"80x\" is not a port"),
            ("10.0.0.1:99999", "\"99999\" is not a port"),
            ("::1:11411", "brackets: [::1]:11411"),
            ("2001:db8::5:11411", "brackets: [2001:db8::5]:11411"),
            ("fe80::", "brackets: [fe80::]:PORT"),
        ] {
            let error = listen_addresses(text).unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        }
        assert!(server_address("no.such.host.invalid:1").unwrap_err().to_string().contains("look up"));
        assert!(server_address("127.0.0.1:0").unwrap_err().to_string().contains("not a port"));
        assert!(server_address("0").is_err());
        assert_eq!(server_address("11411").unwrap().to_string(), "127.0.0.1:11411");
    }

    #[test]
    fn port_alone_means_loopback_and_colon_port_every_address() {
        let parsed =
            |text| listen_addresses(text).unwrap().iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(parsed("1001"), ["127.0.0.1:1001"]);
        assert_eq!(parsed(":1002")[0], "0.0.0.0:1002");
        assert_eq!(parsed("[::1]:5"), ["[::1]:5"]);
    }
}
