//! Where a list comes from, as operators write it.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

use crate::{Entry, HELPERS_MAX, is_target, tidy};

const HOST_BYTES_MAX: usize = 253; // RFC 1035, §2.3.4

/// Where a list of helpers comes from. Written and read as one text:
/// - `10.0.0.9:11411,[2001:db8::9]:11411`: these;
/// - `dns:helpers.cache.svc:11411`: all addresses of a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// These, sorted, each once.
    Static(Vec<SocketAddr>),
    /// All addresses of a name.
    Dns {
        /// The name.
        host: String,
        /// The link port of all of them.
        port: u16,
    },
}

/// A text that names no source. Its text tells the operator the next step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceError {
    text: String,
    problem: Problem,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Problem {
    Empty,
    NotAnAddress(String),
    NotATarget(String),
    TooMany,
    Dns,
}

impl fmt::Display for SourceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} names no helpers: ", self.text)?;
        match &self.problem {
            Problem::Empty => f.write_str("give ADDRESS:PORT,… or dns:NAME:PORT"),
            Problem::NotAnAddress(part) => {
                write!(f, "{part:?} is no ADDRESS:PORT; for a name write dns:NAME:PORT")
            }
            Problem::NotATarget(part) => {
                write!(f, "nobody can connect to {part}: give an address that clients reach, and a port")
            }
            Problem::TooMany => write!(f, "more than {HELPERS_MAX} helpers"),
            Problem::Dns => f.write_str("write dns:NAME:PORT, with the port of the helpers' link_listen"),
        }
    }
}

impl std::error::Error for SourceError {}

impl FromStr for Source {
    type Err = SourceError;

    fn from_str(text: &str) -> Result<Source, SourceError> {
        let text = text.trim();
        let source = if let Some(name) = text.strip_prefix("dns:") { dns(name) } else { addresses(text) };
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
        }
    }
}

fn addresses(text: &str) -> Result<Source, Problem> {
    let mut all = Vec::new();
    for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let address: SocketAddr = part.parse().map_err(|_| Problem::NotAnAddress(part.to_owned()))?;
        if !is_target(address) {
            return Err(Problem::NotATarget(part.to_owned()));
        }
        all.push(Entry::at(address));
    }
    if tidy(&mut all) {
        return Err(Problem::TooMany);
    }
    if all.is_empty() {
        return Err(Problem::Empty);
    }
    Ok(Source::Static(all.into_iter().map(|entry| entry.link).collect()))
}

fn dns(text: &str) -> Result<Source, Problem> {
    let (host, port) = text.rsplit_once(':').ok_or(Problem::Dns)?;
    match port.parse() {
        Ok(port) if port != 0 && is_host(host) => Ok(Source::Dns { host: host.to_owned(), port }),
        _ => Err(Problem::Dns),
    }
}

fn is_host(text: &str) -> bool {
    let fine = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    (1..=HOST_BYTES_MAX).contains(&text.len()) && text.bytes().all(fine)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(text: &str) -> String {
        let source: Source = text.parse().unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(source.to_string().parse(), Ok(source.clone()), "{text}");
        source.to_string()
    }

    #[test]
    fn each_kind_is_one_text() {
        assert_eq!(round("10.0.0.9:11411"), "10.0.0.9:11411");
        assert_eq!(
            round(" [2001:db8::9]:11411, 10.0.0.9:2,10.0.0.9:1,10.0.0.9:2,"),
            "10.0.0.9:1,10.0.0.9:2,[2001:db8::9]:11411"
        );
        assert_eq!(round("dns:helpers.cache.svc:11411"), "dns:helpers.cache.svc:11411");
    }

    #[test]
    fn what_is_none_says_the_next_step() {
        for (text, step) in [
            ("", "dns:NAME:PORT"),
            (",", "dns:NAME:PORT"),
            ("helpers:11411", "dns:NAME:PORT"),
            ("10.0.0.9", "is no ADDRESS:PORT"),
            ("10.0.0.9:0", "nobody can connect"),
            ("0.0.0.0:11411", "nobody can connect"),
            ("239.1.1.1:1", "nobody can connect"),
            ("dns:helpers", "write dns:NAME:PORT"),
            ("dns::11411", "write dns:NAME:PORT"),
            ("dns:helpers:0", "write dns:NAME:PORT"),
            ("dns:a b:1", "write dns:NAME:PORT"),
        ] {
            let error = text.parse::<Source>().expect_err(text).to_string();
            assert!(error.contains(step), "{text}: {error}");
        }
        let many: Vec<String> = (0..=HELPERS_MAX).map(|n| format!("10.0.0.1:{}", n + 1)).collect();
        assert!(many.join(",").parse::<Source>().unwrap_err().to_string().contains("more than 4096"));
        assert!(many[1..].join(",").parse::<Source>().is_ok());
    }
}
