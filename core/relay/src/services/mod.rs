//! All services. A turn looks only at services in which something has changed or is due.

mod drain;
mod service;

pub(crate) use service::Service;

use crate::config::ServiceConfig;
use crate::marked::MarkedList;

/// Services by index. A service keeps its place when it is removed.
pub(crate) type Services = MarkedList<Service>;

impl Services {
    /// The index of a service with this name, also if it was removed.
    pub(crate) fn place_of(&self, name: &str) -> Option<usize> {
        self.iter().position(|service| service.config().name == name)
    }

    /// The index of a service with this name that is not gone.
    pub(crate) fn present(&self, name: &str) -> Option<usize> {
        self.place_of(name).filter(|place| !self[*place].is_gone())
    }

    pub(crate) fn configs(&self) -> impl Iterator<Item = &ServiceConfig> + '_ {
        self.iter().map(Service::config)
    }
}
