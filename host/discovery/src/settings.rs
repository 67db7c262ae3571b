use std::time::Duration;

use crate::etcd::EtcdAccess;

/// Settings of a watcher.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Time between look-ups of a name, randomized by up to a quarter.
    pub dns_interval: Duration,
    /// Timeout of a request to one member of etcd.
    pub request_timeout: Duration,
    /// Time between requests to etcd, randomized by up to a quarter.
    pub etcd_interval: Duration,
    /// Trusted authorities and credentials for etcd.
    pub etcd_access: EtcdAccess,
    /// Time for which a helper stays in the list after its key is missing from etcd, if no removal of the key was seen;
    /// and time for which the last list stays after all its helpers were removed. Must exceed the time in which helpers
    /// register again.
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
