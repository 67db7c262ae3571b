//! How sources are watched.

use std::time::Duration;

use crate::etcd::EtcdAccess;

/// How a source is watched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// How often a name is looked up, spread by a quarter.
    pub dns_interval: Duration,
    /// How long a member of etcd may take to answer.
    pub request_timeout: Duration,
    /// How often etcd is asked, spread by a quarter.
    pub etcd_interval: Duration,
    /// Which etcd is trusted, and as whom it is asked.
    pub etcd_access: EtcdAccess,
    /// How long helpers stay that are missing from etcd without having been removed, and the last of a list that has
    /// become empty. Longer than helpers take to register again.
    pub grace: Duration,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            dns_interval: Duration::from_secs(10),
            request_timeout: Duration::from_secs(3),
            etcd_interval: Duration::from_secs(2),
            etcd_access: EtcdAccess::default(),
            grace: Duration::from_secs(15),
        }
    }
}
