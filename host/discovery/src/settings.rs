use std::time::Duration;

use crate::etcd::EtcdAccess;

/// Settings of a watcher.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Time between look-ups of a name, spread by a quarter.
    pub dns_interval: Duration,
    /// Timeout of one member of etcd.
    pub request_timeout: Duration,
    /// Time between requests to etcd, spread by a quarter.
    pub etcd_interval: Duration,
    /// Trusted authorities and credentials for etcd.
    pub etcd_access: EtcdAccess,
    /// How long helpers stay that are missing from etcd without a seen removal, and how long the last list stays after
    /// all were removed. Must exceed the time in which helpers register again.
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
