//! The text of a source, and its parser.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

use crate::{Entry, HELPERS_MAX, is_connectable, sort_and_bound};

/// Maximal number of etcd endpoints; clusters usually have three or five members.
const ENDPOINTS_MAX: usize = 16;
const HOST_BYTES_MAX: usize = 253; // RFC 1035 §2.3.4: 255 octets in the wire format
const PREFIX_BYTES_MAX: usize = 256;

/// The source of a list of helpers. Its text is one of:
/// - `10.0.0.9:11411,[2001:db8::9]:11411`: these addresses
/// - `dns:helpers.cache.svc:11411`: all addresses of a name
/// - `etcd:https://10.0.0.1:2379,https://10.0.0.2:2379/spillway/cache/`, or with `http://`: the helpers registered
///   under a prefix
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// Fixed addresses, sorted, each once.
    Static(Vec<SocketAddr>),
    /// All addresses of a name.
    Dns {
        /// The DNS name.
        host: String,
        /// The link port of all helpers.
        port: u16,
    },
    /// The helpers registered under a prefix.
    Etcd(EtcdPrefix),
}

/// A prefix in an etcd cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdPrefix {
    /// `http://HOST:PORT` or `https://HOST:PORT` of the members' client ports; not empty.
    pub(crate) endpoints: Vec<String>,
    /// Prefix of the keys. Begins and ends with a slash.
    pub(crate) prefix: String,
}

/// The text is not a source. The error's text contains the operator's next step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceError {
    text: String,
    problem: Problem,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Problem {
    Empty,
    NotAnAddress(String),
    NotConnectable(String),
    TooManyHelpers,
    Dns,
    Scheme,
    Password,
    Endpoint(String),
    TooManyEndpoints,
    Prefix,
}

impl fmt::Display for SourceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The message must not repeat the text, because it contains a password.
        if self.problem == Problem::Password {
            return f.write_str(
                "a password does not belong here: write https://HOST:PORT, and give user and password_file in \
                 [etcd] (--etcd-user, --etcd-password-file)",
            );
        }
        write!(f, "{:?} does not name helpers: ", self.text)?;
        match &self.problem {
            Problem::Empty => {
                f.write_str("give ADDRESS:PORT,…, dns:NAME:PORT, or etcd:http://HOST:PORT/PREFIX/")
            }
            Problem::NotAnAddress(part) => {
                write!(f, "{part:?} is not ADDRESS:PORT; for a name write dns:NAME:PORT")
            }
            Problem::NotConnectable(part) => {
                write!(f, "clients cannot connect to {part}: give an address that clients reach, and a port")
            }
            Problem::TooManyHelpers => write!(f, "more than {HELPERS_MAX} helpers"),
            Problem::Dns => f.write_str("write dns:NAME:PORT, with the port of the helpers' link_listen"),
            Problem::Scheme => {
                f.write_str("write etcd:http://HOST:PORT/PREFIX/ or etcd:https://HOST:PORT/PREFIX/")
            }
            Problem::Password => Ok(()),
            Problem::Endpoint(part) => {
                write!(f, "{part:?} is not an endpoint: write http://HOST:PORT or https://HOST:PORT")
            }
            Problem::TooManyEndpoints => write!(f, "at most {ENDPOINTS_MAX} endpoints"),
            Problem::Prefix => {
                write!(
                    f,
                    "after the last endpoint give a prefix of printable ASCII, shorter than {PREFIX_BYTES_MAX} bytes, \
                     such as /spillway/cache/"
                )
            }
        }
    }
}

impl std::error::Error for SourceError {}

impl FromStr for Source {
    type Err = SourceError;

    fn from_str(text: &str) -> Result<Source, SourceError> {
        let text = text.trim();
        let source = if let Some(name) = text.strip_prefix("dns:") {
            parse_dns(name)
        } else if let Some(rest) = text.strip_prefix("etcd:") {
            parse_etcd(rest).map(Source::Etcd)
        } else {
            parse_addresses(text)
        };
        source.map_err(|problem| SourceError { text: text.to_owned(), problem })
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Static(all) => {
                for (index, address) in all.iter().enumerate() {
                    write!(f, "{}{address}", if index > 0 { "," } else { "" })?;
                }
                Ok(())
            }
            Source::Dns { host, port } => write!(f, "dns:{host}:{port}"),
            Source::Etcd(place) => write!(f, "{place}"),
        }
    }
}

impl EtcdPrefix {
    pub(crate) fn has_scheme(&self, scheme: &str) -> bool {
        self.endpoints.iter().any(|endpoint| endpoint.split_once(':').is_some_and(|(own, _)| own == scheme))
    }

    pub(crate) fn key(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }
}

impl FromStr for EtcdPrefix {
    type Err = SourceError;

    /// Parses the text of [`Source::Etcd`].
    fn from_str(text: &str) -> Result<EtcdPrefix, SourceError> {
        match text.parse()? {
            Source::Etcd(place) => Ok(place),
            _ => Err(SourceError { text: text.to_owned(), problem: Problem::Scheme }),
        }
    }
}

impl fmt::Display for EtcdPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "etcd:{}{}", self.endpoints.join(","), self.prefix)
    }
}

fn parse_addresses(text: &str) -> Result<Source, Problem> {
    let mut all = Vec::new();
    for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let address: SocketAddr = part.parse().map_err(|_| Problem::NotAnAddress(part.to_owned()))?;
        if !is_connectable(address) {
            return Err(Problem::NotConnectable(part.to_owned()));
        }
        all.push(Entry::at(address));
    }
    if sort_and_bound(&mut all) {
        return Err(Problem::TooManyHelpers);
    }
    if all.is_empty() {
        return Err(Problem::Empty);
    }
    Ok(Source::Static(all.into_iter().map(|entry| entry.link).collect()))
}

fn parse_dns(text: &str) -> Result<Source, Problem> {
    let (host, port) = text.rsplit_once(':').ok_or(Problem::Dns)?;
    match port.parse() {
        Ok(port) if port != 0 && is_host(host) => Ok(Source::Dns { host: host.to_owned(), port }),
        _ => Err(Problem::Dns),
    }
}

fn parse_etcd(text: &str) -> Result<EtcdPrefix, Problem> {
    let mut endpoints = Vec::new();
    let mut rest = text;
    loop {
        let (scheme, after) = rest.split_once("://").ok_or(Problem::Scheme)?;
        if !["http", "https"].contains(&scheme) {
            return Err(Problem::Scheme);
        }
        rest = after;
        let end = rest.find([',', '/']).unwrap_or(rest.len());
        let endpoint = &rest[..end];
        if endpoint.contains('@') {
            return Err(Problem::Password);
        }
        if !is_endpoint(endpoint) {
            return Err(Problem::Endpoint(endpoint.to_owned()));
        }
        endpoints.push(format!("{scheme}://{endpoint}"));
        if endpoints.len() > ENDPOINTS_MAX {
            return Err(Problem::TooManyEndpoints);
        }
        match rest[end..].strip_prefix("/,").or_else(|| rest[end..].strip_prefix(',')) {
            Some(next) => rest = next,
            None => {
                let prefix = parse_prefix(&rest[end..])?;
                return Ok(EtcdPrefix { endpoints, prefix });
            }
        }
    }
}

/// Checks the prefix and ends it with a slash: without one, `/a/b` would also match the keys of `/a/bc`.
fn parse_prefix(text: &str) -> Result<String, Problem> {
    let trimmed = text.trim_end_matches('/');
    let is_printable = trimmed.bytes().all(|byte| byte.is_ascii_graphic());
    if trimmed.is_empty() || trimmed.len() >= PREFIX_BYTES_MAX || !is_printable {
        return Err(Problem::Prefix);
    }
    Ok(format!("{trimmed}/"))
}

fn is_endpoint(text: &str) -> bool {
    if let Ok(address) = text.parse::<SocketAddr>() {
        return is_connectable(address);
    }
    let is_port = |port: &str| port.parse::<u16>().is_ok_and(|port| port != 0);
    text.rsplit_once(':').is_some_and(|(host, port)| is_host(host) && is_port(port))
}

fn is_host(text: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    (1..=HOST_BYTES_MAX).contains(&text.len()) && text.bytes().all(is_allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed_and_displayed(text: &str) -> String {
        let source: Source = text.parse().unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(source.to_string().parse(), Ok(source.clone()), "{text}");
        source.to_string()
    }

    #[test]
    fn sources_are_displayed_in_one_normal_form() {
        assert_eq!(parsed_and_displayed("10.0.0.9:11411"), "10.0.0.9:11411");
        assert_eq!(
            parsed_and_displayed(" [2001:db8::9]:11411, 10.0.0.9:2,10.0.0.9:1,10.0.0.9:2,"),
            "10.0.0.9:1,10.0.0.9:2,[2001:db8::9]:11411"
        );
        assert_eq!(parsed_and_displayed("dns:helpers.cache.svc:11411"), "dns:helpers.cache.svc:11411");
        assert_eq!(
            parsed_and_displayed("etcd:http://10.0.0.1:2379/spillway/cache"),
            "etcd:http://10.0.0.1:2379/spillway/cache/"
        );
        let two = "etcd:http://10.0.0.1:2379,http://etcd-2:2379/spillway/cache/";
        assert_eq!(parsed_and_displayed(two), two);
        assert_eq!(parsed_and_displayed(&two.replace("2379,", "2379/,")), two);
        let mixed_schemes = "etcd:https://10.0.0.1:2379,http://10.0.0.2:2379/a/";
        assert_eq!(parsed_and_displayed(mixed_schemes), mixed_schemes);
        assert_eq!(parsed_and_displayed("etcd:http://[::1]:2379/a//"), "etcd:http://[::1]:2379/a/");
    }

    #[test]
    fn invalid_source_gives_an_error_with_the_next_step() {
        for (text, step) in [
            ("", "dns:NAME:PORT"),
            (",", "dns:NAME:PORT"),
            ("helpers:11411", "dns:NAME:PORT"),
            ("10.0.0.9", "is not ADDRESS:PORT"),
            ("10.0.0.9:0", "clients cannot connect"),
            ("0.0.0.0:11411", "clients cannot connect"),
            ("239.1.1.1:1", "clients cannot connect"),
            ("dns:helpers", "write dns:NAME:PORT"),
            ("dns::11411", "write dns:NAME:PORT"),
            ("dns:helpers:0", "write dns:NAME:PORT"),
            ("dns:a b:1", "write dns:NAME:PORT"),
            ("etcd:10.0.0.1:2379/a/", "write etcd:http://"),
            ("etcd:ftp://10.0.0.1:2379/a/", "write etcd:http://"),
            ("etcd:http://10.0.0.1/a/", "is not an endpoint"),
            ("etcd:http://:2379/a/", "is not an endpoint"),
            ("etcd:http://10.0.0.1:2379", "prefix"),
            ("etcd:http://10.0.0.1:2379/", "prefix"),
            ("etcd:http://10.0.0.1:2379/ä/", "prefix"),
        ] {
            let error = text.parse::<Source>().expect_err(text).to_string();
            assert!(error.contains(step), "{text}: {error}");
        }
        let error = "etcd:http://root:hunter2@10.0.0.1:2379/a/".parse::<Source>().unwrap_err().to_string();
        assert!(error.contains("password") && !error.contains("hunter2"), "{error}");
        assert!("10.0.0.1:1".parse::<EtcdPrefix>().is_err());
        let too_many: Vec<String> = (0..=HELPERS_MAX).map(|n| format!("10.0.0.1:{}", n + 1)).collect();
        assert!(too_many.join(",").parse::<Source>().unwrap_err().to_string().contains("more than 4096"));
        assert!(too_many[1..].join(",").parse::<Source>().is_ok());
    }
}
