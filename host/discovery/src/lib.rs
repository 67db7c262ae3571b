//! Sources of lists of helpers, and registration of helpers.
//!
//! A [`Source`] is one text: addresses, a DNS name, or a prefix in etcd. A [`Watcher`] returns the source's list at
//! first and after each change; its descriptor wakes an event loop. If the source fails, the last list stays, because
//! the helpers in it may still work.
//!
//! A [`Registrar`] keeps a helper registered in etcd.
#![forbid(unsafe_code)]

mod dns;
mod etcd;
mod notice;
mod settings;
mod source;
mod stop;
mod updates;
mod watcher;

use std::fmt;
use std::net::SocketAddr;

pub use etcd::{
    AccessError, EtcdAccess, EtcdFiles, Registrar, RegistrarNotice, RegistrarStatus, Registration,
};
pub use notice::Notice;
pub use settings::Settings;
pub use source::{EtcdPrefix, Source, SourceError};
pub use watcher::Watcher;

/// Maximal number of helpers in a list; more are ignored and reported.
pub const HELPERS_MAX: usize = 4096;

/// One helper.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Entry {
    /// Address of the helper's link port.
    pub link: SocketAddr,
    /// The helper's name, if the source has names.
    pub name: Option<String>,
}

impl Entry {
    /// A helper without a name.
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

fn is_connectable(address: SocketAddr) -> bool {
    address.port() != 0 && !address.ip().is_unspecified() && !address.ip().is_multicast()
}

/// Sorts a list, removes repeated addresses, and truncates it to [`HELPERS_MAX`]. Returns whether it was truncated.
fn sort_and_bound(list: &mut Vec<Entry>) -> bool {
    list.sort();
    list.dedup_by_key(|entry| entry.link);
    let too_many = list.len() > HELPERS_MAX;
    list.truncate(HELPERS_MAX);
    too_many
}
