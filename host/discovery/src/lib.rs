//! Where lists of helpers come from.
//!
//! A [`Source`] is one text: addresses, a DNS name, or a prefix in etcd. A [`Watcher`] gives the list that a source has
//! now, and again each time that it changes; a loop waits for its descriptor. Whatever goes wrong with a source, the
//! last list stays: helpers that serve are worth more than a directory that does not.
//!
//! A [`Registrar`] keeps a helper registered in etcd.
#![forbid(unsafe_code)]

mod dns;
mod etcd;
mod news;
mod notice;
mod settings;
mod source;
mod stop;
mod watcher;

use std::fmt;
use std::net::SocketAddr;

pub use etcd::{
    AccessError, EtcdAccess, EtcdFiles, Registrar, RegistrarNotice, RegistrarStatus, Registration,
};
pub use notice::Notice;
pub use settings::Settings;
pub use source::{EtcdPlace, Source, SourceError};
pub use watcher::Watcher;

/// Helpers in a list, at most; more are left out, and told.
pub const HELPERS_MAX: usize = 4096;

/// One helper.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Entry {
    /// Its link port.
    pub link: SocketAddr,
    /// As it calls itself, where the source knows.
    pub name: Option<String>,
}

impl Entry {
    /// A helper of which only the address is known.
    pub fn at(link: SocketAddr) -> Entry {
        Entry { link, name: None }
    }
}

/// `NAME at ADDRESS`, or the address alone.
impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            Some(name) => write!(f, "{name} at {}", self.link),
            None => write!(f, "{}", self.link),
        }
    }
}

/// Whether clients can connect to it.
fn is_target(address: SocketAddr) -> bool {
    address.port() != 0 && !address.ip().is_unspecified() && !address.ip().is_multicast()
}

/// By address, each once, bounded. True when some were left out.
fn tidy(list: &mut Vec<Entry>) -> bool {
    list.sort();
    list.dedup_by_key(|entry| entry.link);
    let too_many = list.len() > HELPERS_MAX;
    list.truncate(HELPERS_MAX);
    too_many
}
